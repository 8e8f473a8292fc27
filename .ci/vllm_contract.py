"""What the plugin uses of vLLM, read from sources: nothing of vLLM is imported, so any version can be looked at.

    python .ci/vllm_contract.py FOLDER                           # compares it with .ci/vllm_contract.json
    python .ci/vllm_contract.py --print FOLDER > .ci/vllm_contract.json

FOLDER holds the package `vllm`: site-packages, or an unpacked wheel as `.ci/vllm_contract` makes it. The file is of
vLLM 0.32, on which the plugin's own tests run (`.ci/vllm`). The contract has an entry for each name that the plugin
imports, for each member of vLLM's classes that its subclasses override, call or read, and for each field of `READS`. An
entry of a method has its signature, and a digest of its code, because a plugin that overrides one step of a method
depends on the steps around it.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PLUGIN = Path(__file__).parents[1] / "src" / "vidcom2" / "vllm_plugin"
CONTRACT = Path(__file__).with_suffix(".json")
# Changes in code around the plugin that somebody has read: the end of a name, its new digest, and what it means.
READ = {
    "0.33": {
        "get_language_model": (
            "1abaa6078ec1",
            "A text tower is recognised by two of its methods, where it was by three. It is the same in all families.",
        ),
        "get_encoder_cudagraph_config": (
            "1949ba5e7ae6",
            "Graphs of Gemma 4's tower have widths. The plugin uses none.",
        ),
        "_mark_tower_model": ("0c6838f5066d", "Later pipeline stages may have no tower, whatever they serve."),
        "__init__": (
            "1dd5ac116fea",
            "Whether a tower of Gemma 4's is quantized depends on its own sizes, not on those of the vision tower.",
        ),
    },
}
# What the plugin reads and calls on vLLM's objects, by their class. The steps of the two model runners are those in
# which a video's features, its settings and the positions pass through the plugin's methods.
READS = {
    "vllm.config.model:ModelConfig": "architecture hf_config hf_overrides multimodal_config",
    "vllm.config.multimodal:MultiModalConfig": (
        "mm_hasher_algorithm mm_processor_kwargs video_pruning_method video_pruning_rate is_multimodal_pruning_enabled"
    ),
    "vllm.config.lora:LoRAConfig": "enable_tower_connector_lora",
    "vllm.config.parallel:ParallelConfig": "pipeline_parallel_size use_ubatching",
    "vllm.config.scheduler:SchedulerConfig": "max_num_batched_tokens",
    "vllm.config.speculative:SpeculativeConfig": "method",
    "vllm.config.vllm:VllmConfig": "lora_config model_config parallel_config scheduler_config speculative_config",
    # of `bulk/many_in_vllm.py`
    "vllm.entrypoints.llm:LLM": "enqueue get_default_sampling_params llm_engine",
    "vllm.v1.engine.llm_engine:LLMEngine": "engine_core step",
    "vllm.exceptions:VLLMValidationError": "__str__",
    "vllm.model_executor.models.interfaces:SupportsMRoPE": "get_mrope_input_positions",
    "vllm.model_executor.models.qwen3_vl:Qwen3VLMultiModalProcessor": "get_video_repl",
    "vllm.model_executor.models.registry:_ModelRegistry": "get_supported_archs register_model",
    "vllm.model_executor.models.utils:WeightsMapper": "__or__ orig_to_new_regex",
    "vllm.multimodal.hasher:MultiModalHasher": "hash_kwargs",
    "vllm.multimodal.inputs:MultiModalFeatureSpec": "data mm_position modality",
    "vllm.multimodal.inputs:MultiModalFieldConfig": "batched",
    "vllm.multimodal.inputs:PlaceholderRange": "length offset",
    "vllm.multimodal.parse:MultiModalDataItems": "get_all_counts get_items",
    "vllm.multimodal.parse:VideoProcessorItems": "get_num_frames",
    "vllm.multimodal.processing.context:BaseProcessingInfo": "ctx get_hf_config get_tokenizer",
    "vllm.multimodal.processing.context:InputProcessingContext": "get_mm_config",
    "vllm.multimodal.processing.inputs:ProcessorInputs": "hf_processor_mm_kwargs mm_data_items",
    "vllm.multimodal.processing.processor:PromptUpdate": "modality target",
    "vllm.multimodal.processing.processor:PromptUpdateDetails": "full",
    "vllm.multimodal.registry:MultiModalRegistry": "register_processor",
    "vllm.multimodal.registry:_ProcessorFactories": "info processor dummy_inputs",
    "vllm.model_executor.models.transformers.multimodal:MultiModalProcessor": (
        "_get_hf_mm_inputs _get_modality_field_names _get_field_config"
    ),
    "vllm.sequence:IntermediateTensors": "__getitem__ __setitem__",
    "vllm.v1.worker.encoder_cudagraph_defs:EncoderCudaGraphConfig": "modalities",
    "vllm.v1.worker.gpu.mm.encoder_runner:EncoderRunner": "execute_mm_encoder gather_mm_embeddings get_inputs_embeds",
    "vllm.v1.worker.gpu.mm.rope:RopeState": "init_prefill_positions get_positions prepare_positions",
    "vllm.v1.worker.gpu.model_states.default:DefaultModelState": "prepare_inputs prepare_inputs_embeds",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": (
        "_calc_mrope_positions _execute_mm_encoder _gather_mm_embeddings _init_mrope_positions _preprocess "
        "sync_and_gather_intermediate_tensors"
    ),
}


class Found(NamedTuple):
    """A top-level definition, and the module that it stands in."""

    module: str
    node: ast.AST


class Sources:
    """The sources of one version of vLLM."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = cache(self._text)
        self.tree = cache(lambda module: ast.parse(self.text(module)))
        self.imports = cache(self._imports)
        self.find = cache(self._find)

    def _text(self, module: str) -> str:
        path = self.folder.joinpath(*module.split("."))
        return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")

    def package(self, module: str) -> str:
        is_package = self.folder.joinpath(*module.split(".")).is_dir()
        return module if is_package else module.rpartition(".")[0]

    def _imports(self, module: str) -> dict[str, tuple[str, str]]:
        """Return the module and name behind each name that a module imports. `vllm` itself has a table of them."""
        imports: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree(module)):
            if isinstance(node, ast.ImportFrom):
                source = self._absolute(module, node)
                imports |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
            elif isinstance(node, ast.Dict) and module == "vllm":
                for key, value in zip(node.keys, node.values, strict=True):
                    where, _, there = str(_constant(value)).partition(":")
                    if there:
                        imports[str(_constant(key))] = (module + where, there)
        return imports

    def _find(self, module: str, name: str) -> Found | None:
        """Return where a module's name is defined, or None if that is not in vLLM."""
        here = next((Found(module, node) for node in self.tree(module).body if name in _names(node)), None)
        if here is not None or name not in self.imports(module):
            return here
        source, there = self.imports(module)[name]
        return self.find(source, there) if source.partition(".")[0] == "vllm" else None

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        start = self.package(module).split(".")
        return ".".join(start[: len(start) - node.level + 1] + ([node.module] if node.module else []))

    def lineage(self, found: Found) -> Iterator[Found]:
        """Yield a class and, depth first, those of its bases that vLLM itself defines."""
        yield found
        assert isinstance(found.node, ast.ClassDef)
        for base in found.node.bases:
            parent = self.find(found.module, ast.unparse(base).partition("[")[0])
            if parent is not None and isinstance(parent.node, ast.ClassDef):
                yield from self.lineage(parent)

    def processor(self, model: Found) -> Found:
        """Return the class that vLLM registers as the processor of a model, or of one of its bases."""
        for found in self.lineage(model):
            assert isinstance(found.node, ast.ClassDef)
            for each in found.node.decorator_list:
                if isinstance(each, ast.Call) and ast.unparse(each.func).endswith("register_processor"):
                    processor = self.find(found.module, ast.unparse(each.args[0]))
                    if processor is not None:
                        return processor
        raise LookupError(f"{model.module} registers no processor.")

    def member(self, owner: Found, name: str) -> str | None:
        """Describe what a class or its bases have under a name: a method, or an attribute of the class or of `self`."""
        for found in self.lineage(owner):
            assert isinstance(found.node, ast.ClassDef)
            for node in reversed(found.node.body):  # the last of several overloads is the code
                if name in _names(node):
                    return f"{found.node.name}: {self.described(Found(found.module, node))}"
            for node in ast.walk(found.node):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == name:
                    return f"{found.node.name}: an attribute of instances"
        return None

    def described(self, found: Found) -> str:
        """Return an entry of the contract for a definition."""
        node = found.node
        if isinstance(node, ast.ClassDef):
            return f"class({', '.join(ast.unparse(base) for base in node.bases)})"
        if isinstance(node, ast.FunctionDef):
            decorators = "".join(f"@{ast.unparse(each)} " for each in node.decorator_list)
            return f"{decorators}def({ast.unparse(node.args)}), code {self.digest(found)}"
        return "a value"

    def digest(self, found: Found) -> str:
        """Return a short digest of a function's code, without its comments, docstring and layout."""
        node = found.node
        assert isinstance(node, ast.FunctionDef)
        lines = self.text(found.module).splitlines()[node.lineno - 1 : node.end_lineno]
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(_constant(first.value), str):
            lines[first.lineno - node.lineno : (first.end_lineno or 0) - node.lineno + 1] = []
        code = "".join(line.strip() for line in lines if not line.strip().startswith("#"))
        return hashlib.sha256(code.encode()).hexdigest()[:12]


def _constant(node: ast.AST | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _names(node: ast.AST) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for each in targets if isinstance(each, ast.Name)]


class Plugin:
    """What the plugin's files import from vLLM, and what their classes use of their parents."""

    def __init__(self) -> None:
        trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PLUGIN.glob("*.py"))]
        self.imports: dict[str, str] = {}  # each name, and its module
        self.classes: dict[str, ast.ClassDef] = {}
        # The mixins that `with_processor` names, each with the models of vLLM's whose processors it stands before.
        self.processors: dict[str, list[str]] = {}
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
                self.imports |= {alias.name: str(node.module) for alias in node.names}
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
        for name, node in self.classes.items():
            for each in node.decorator_list:
                if isinstance(each, ast.Call) and ast.unparse(each.func) == "with_processor":
                    self.processors.setdefault(ast.unparse(each.args[0]), []).append(self.parents(name)[1][0])

    def parents(self, name: str) -> tuple[list[str], list[str]]:
        """Return the plugin's classes and vLLM's among a class and its bases, in their order."""
        if name in self.imports:
            return [], [name]
        if name not in self.classes:
            return [], []
        own, others = [name], []
        for base in self.classes[name].bases:
            more, far = self.parents(ast.unparse(base))
            own, others = own + more, others + far
        return own, others

    def used(self, own: list[str]) -> tuple[set[str], set[str]]:
        """Return the names that these classes define, and those that vLLM's classes must have: what `super()` reaches
        there, and what `self` has and these classes do not define."""
        defined: set[str] = set()
        asked: set[str] = set()
        read: set[str] = set()
        for name in reversed(own):
            above = set(defined)
            top = self.classes[name]
            defined.update(*(_names(node) for node in top.body))
            for node in ast.walk(top):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "super()":
                    asked |= {node.attr} - above
                elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                    (defined if isinstance(node.ctx, ast.Store) else read).add(node.attr)
        return defined, asked | read - defined


def contract(folder: Path) -> dict[str, str]:
    """Return the contract with the sources in a folder.

    Raises:
        LookupError: with all that is missing there.
    """
    sources, plugin = Sources(folder), Plugin()
    entries: dict[str, str] = {}
    missing: list[str] = []

    def add(key: str, entry: str | None) -> None:
        if entry is None:
            missing.append(key)
        else:
            entries[key] = entry

    def look(module: str, name: str) -> Found | None:
        try:
            return sources.find(module, name)
        except FileNotFoundError:
            return None

    for name, module in plugin.imports.items():
        found = look(module, name)
        add(f"{module}:{name}", None if found is None else sources.described(found))
    for where, names in READS.items():
        module, _, owner = where.partition(":")
        found = look(module, owner)
        for name in names.split():
            add(f"{where}.{name}", None if found is None else sources.member(found, name))
    for name in plugin.classes:
        own, others = plugin.parents(name)
        defined, needed = plugin.used(own)
        # One row of bases for a class, and one for each processor that a mixin stands before.
        rows = [[found for found in (look(plugin.imports[each], each) for each in others) if found is not None]]
        models = (look(plugin.imports[each], each) for each in plugin.processors.get(name, ()))
        rows += [[sources.processor(model)] for model in models if model is not None]
        for bases in filter(None, rows):
            first = bases[0].node
            assert isinstance(first, ast.ClassDef)
            for member in sorted(defined | needed):
                of_bases = (sources.member(base, member) for base in bases)
                entry = next((entry for entry in of_bases if entry is not None), None)
                if entry is not None or member in needed:  # the rest is the plugin's own
                    add(f"{first.name}.{member}", entry)
    if missing:
        raise LookupError(f"vLLM in {folder} lacks {', '.join(sorted(set(missing)))}.")
    return dict(sorted(entries.items()))


def check(folder: Path) -> None:
    """Exit with the entries of the contract that these sources change, and that nobody has read."""
    (metadata,) = folder.glob("vllm*.dist-info")
    version = ".".join(metadata.name.split("-")[1].split(".")[:2])
    expected, found, read = json.loads(CONTRACT.read_text()), contract(folder), READ.get(version, {})
    changed = {name: entry for name, entry in found.items() if entry != expected.get(name)}
    unread = {
        name: entry
        for name, entry in changed.items()
        if not entry.endswith(read.get(name.rpartition(".")[2], ("none",))[0])
    }
    if unread:
        sys.exit(f"vLLM {version} has changed this. Read it, then add it to READ.\n{json.dumps(unread, indent=1)}")
    if found.keys() != expected.keys():
        sys.exit(f"{CONTRACT.name} is of an older plugin. Make it again from vLLM 0.32, as the top of this file says.")
    print(f"vLLM {version} has all that the plugin uses, {len(changed)} parts of it changed as READ says.")


if __name__ == "__main__":
    if sys.argv[1] == "--print":
        print(json.dumps(contract(Path(sys.argv[2])), indent=1))
    else:
        check(Path(sys.argv[1]))
