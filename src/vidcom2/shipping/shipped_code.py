"""The files of `modeling/` and `configuration/` that a Hub repo holds, and the fields of config.json that name them."""

import hashlib
import json
from collections.abc import Collection, Mapping
from os.path import lexists
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.utils.sha import git_hash
from transformers import PreTrainedConfig, PreTrainedModel, ProcessorMixin

from ..configuration.compression_settings import TABLES, CompressionSettings
from ..configuration.saved_with_code import refuse_taken
from ..families.table import FAMILIES, PROCESSORS
from ..records.whole_files import write_whole
from ..repo_shape import AUTO_MODEL_CLASSES, CONFIG, PIPELINE_TASK, sha256_of
from .shipped_files import shipped_files
from .shipped_methods import REGISTERED_METHODS, only_registers, sources_of_methods

PIPELINE = "pipeline_video_text_to_text.VideoTextToTextPipeline"
SHA256_FIELD = "vidcom2_code_sha256"
CODE_FIELDS = ("auto_map", "custom_pipelines", SHA256_FIELD)
LICENSE = "LICENSE-vidcom2"  # not LICENSE, which the base may have


def module_of(cls: type) -> str:
    return cls.__module__.rpartition(".")[2]


def code_of(
    model_class: type[PreTrainedModel], method: str = "vidcom2", vision_method: str = "full", more: Collection[str] = ()
) -> dict[str, bytes]:
    """Return the code of a model repo: config, model, pipeline, the family's usual processor, VidCom², and the methods
    that the config names.

    Args:
        method, vision_method: the methods of the repo's config.
        more: the names of further methods that the repo holds.

    Raises:
        UnshippableMethodError: if a method cannot be saved with a model.
    """
    config_class: Any = model_class.config_class
    modules = [name.partition(".")[0] for name in (PIPELINE, FAMILIES[config_class.model_type].processor)]
    others = sources_of_methods(held_methods(method, vision_method, more))
    return shipped_files(module_of(config_class), module_of(model_class), *modules, others=others)


def held_methods(method: str, vision_method: str, more: Collection[str] = ()) -> dict[str, list[str]]:
    """Return setting -> the names of the methods that it can choose in a repo, with the arguments of `code_of`."""
    default = CompressionSettings()
    return {
        setting: sorted({getattr(default, setting), chosen, *(name for name in more if name in TABLES[setting])})
        for setting, chosen in (("compression_method", method), ("vision_method", vision_method))
    }


def fields_of(model_class: type[PreTrainedModel], code: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the fields of a repo's config.json that describe its code, which `code_of` returned.

    `architectures` has the custom name: with the stock name, a pipeline that cannot load the custom class would
    silently use the stock class. By the sha256 values, a later `save_pretrained` into the same folder knows which files
    this project wrote and nobody has changed.
    """
    config_class: Any = model_class.config_class
    model = f"{module_of(model_class)}.{model_class.__name__}"
    auto_classes = AUTO_MODEL_CLASSES if model_class.can_generate() else AUTO_MODEL_CLASSES[:1]
    fields = {
        "architectures": [model_class.__name__],
        "auto_map": {"AutoConfig": f"{module_of(config_class)}.{config_class.__name__}"}
        | dict.fromkeys(auto_classes, model),
        SHA256_FIELD: {name: sha256(content) for name, content in code.items()},
    }
    if model_class.can_generate():
        pipeline = {"impl": PIPELINE, "pt": ["AutoModelForImageTextToText"], "type": "multimodal"}
        fields["custom_pipelines"] = {PIPELINE_TASK: pipeline}
    return fields


def license_file() -> Path:
    """Return the licence of the code, from the folder of the installed package or from the top of the checkout."""
    package = Path(__file__).resolve().parents[1]
    return next(path for path in (package / LICENSE, package.parents[1] / "LICENSE") if path.is_file())


def write_code(saved: PreTrainedConfig | PreTrainedModel | ProcessorMixin, folder: str) -> None:
    """Write the code of a config's family, or of a processor, into a folder, and its names into the config.

    `SavedWithCode` calls it. Users' classes are skipped: their authors register them with Transformers themselves.

    Raises:
        ValueError: if the folder has other files with these names. Nothing is written.
    """
    target = Path(folder)
    code = _code_saved_with(saved, target)
    if isinstance(saved, PreTrainedConfig):
        _name_code(saved)
    written = written_before(target / CONFIG)
    changed = {name: content for name, content in code.items() if not _is_same(target / name, sha256(content))}
    taken = [name for name in changed if lexists(target / name) and not _is_ours(target / name, written.get(name))]
    refuse_taken(taken, f"the folder {str(folder)!r}")
    if isinstance(saved, PreTrainedModel):  # its config is saved next, and writes the code
        return
    target.mkdir(parents=True, exist_ok=True)
    gone = written.keys() - code.keys() if isinstance(saved, PreTrainedConfig) and code else ()
    for name in gone:  # such as the file of a method that the config named before
        if Path(name).name == name and name.endswith(".py") and _is_same(target / name, written[name]):
            (target / name).unlink(missing_ok=True)
    for name, content in changed.items():
        if (target / name).is_symlink():  # to a file elsewhere, which stays as it is
            (target / name).unlink(missing_ok=True)
        write_whole(target / name, content)  # several processes may save at once


def check_repo(
    saved: PreTrainedConfig | PreTrainedModel | ProcessorMixin, repo: str, token: Any, revision: str | None
) -> Collection[str]:
    """Refuse to push code over files that this project did not write. `SavedWithCode` calls it.

    Returns:
        The names of the object's code files.

    Raises:
        ValueError: if the repo has other files with these names.
        HfHubHTTPError, OSError: if the Hub cannot be asked. They are passed on unchanged.
    """
    code = _code_saved_with(saved)
    if not code:
        return ()
    api = HfApi(token=token)
    try:
        info = api.model_info(repo, revision=revision, files_metadata=True)
    except RevisionNotFoundError:  # it will be made, from the main one
        info = api.model_info(repo, files_metadata=True)
    there = {sibling.rfilename: sibling.blob_id for sibling in info.siblings or []}
    changed = [name for name, content in code.items() if name in there and there[name] != git_hash(content)]
    if changed:

        def content(name: str) -> Path:
            return Path(api.hf_hub_download(repo, name, revision=info.sha))

        written = written_before(content(CONFIG)) if CONFIG in there else {}
        taken = [name for name in changed if not _is_ours(content(name), written.get(name))]
        refuse_taken(taken, f"the repo {repo!r}")
    return code.keys()


def _code_saved_with(
    saved: PreTrainedConfig | PreTrainedModel | ProcessorMixin, folder: Path | None = None
) -> dict[str, bytes]:
    """Return the code that is saved with an object, which is none if its class is a user's.

    Args:
        folder: where it is saved. A processor may lie beside a model, whose methods stay.
    """
    if isinstance(saved, ProcessorMixin):
        module = module_of(type(saved))
        if f"{module}.{type(saved).__name__}" not in PROCESSORS.values():
            return {}
        beside = _read_fields(folder / CONFIG) if folder is not None else {}
        method: Any = saved.compression_method  # pyright: ignore[reportAttributeAccessIssue]
        chosen = [str(beside.get(setting, "")) for setting in TABLES]
        return shipped_files(module, others=sources_of_methods(held_methods(method, "full", chosen)))
    model_class = _class_saved_with(saved)
    if model_class is None:
        return {}
    config = saved if isinstance(saved, PreTrainedConfig) else saved.config
    return code_of(model_class, config.compression_method, config.vision_method)


def _class_saved_with(saved: PreTrainedConfig | PreTrainedModel) -> type[PreTrainedModel] | None:
    """Return the class of this project that will load what is saved: the generating class or the inner model."""
    config = saved if isinstance(saved, PreTrainedConfig) else saved.config
    family = FAMILIES.get(config.model_type)
    if family is None or type(config) is not family.config_class:
        return None
    generating = family.model_class
    names = config.architectures or [] if saved is config else [type(saved).__name__.removeprefix("FSDP")]
    for model_class in (generating, generating.inner_class):
        if set(names) <= {cls.__name__ for cls in model_class.__mro__}:
            return model_class
    return None


def _name_code(config: PreTrainedConfig) -> None:
    """Name the code that is saved with a config in its fields, and remove the names that an earlier save left there."""
    named = " ".join(map(str, (getattr(config, "auto_map", None) or {}).values()))
    if any(f"modeling_vidcom2_{family.module}." in named for family in FAMILIES.values()):
        for name in CODE_FIELDS:
            vars(config).pop(name, None)
    model_class = _class_saved_with(config)
    if model_class is not None:
        fields = fields_of(model_class, _code_saved_with(config))
        for name in CODE_FIELDS:
            if name in fields:
                setattr(config, name, fields[name])


def written_before(config: Path) -> dict[str, str]:
    """Return file name -> sha256 of the code that an earlier save wrote beside a config.json, as its fields say."""
    written = _read_fields(config).get(SHA256_FIELD)
    return written if isinstance(written, dict) else {}


def _read_fields(config: Path) -> dict[str, Any]:
    """Return the fields of a config.json; none if it cannot be read."""
    try:
        fields = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _is_same(file: Path, known: str | None) -> bool:
    """Return whether a file exists and has this sha256."""
    return known is not None and file.is_file() and sha256_of(file) == known


def _is_ours(file: Path, known: str | None) -> bool:
    """Return whether this project wrote a file, by the sha256 value in the config.json beside it. The file that imports
    methods is recognized by its text, since a processor that is saved first leaves no config.json."""
    registers = file.stem == REGISTERED_METHODS and file.is_file() and only_registers(file.read_bytes())
    return registers or _is_same(file, known)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
