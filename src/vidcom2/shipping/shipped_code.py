"""Which files of `modeling/` and `configuration/` a Hub repo holds, and how its config.json names them."""

import hashlib
import json
from os.path import lexists
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import LocalTokenNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils.sha import git_hash
from transformers import PreTrainedConfig, PreTrainedModel, ProcessorMixin

from ..configuration.saved_with_code import refuse_taken
from ..families import FAMILIES
from ..records.whole_files import write_whole
from ..repo_shape import AUTO_MODEL_CLASSES, CONFIG, CUSTOM_GENERATE, PIPELINE_TASK, sha256_of
from .shipped_files import shipped_files
from .shipped_methods import code_of_method

PIPELINE = "pipeline_video_text_to_text.VideoTextToTextPipeline"
SHA256_FIELD = "vidcom2_code_sha256"
CODE_FIELDS = ("auto_map", "custom_pipelines", SHA256_FIELD)
LICENSE = "LICENSE-vidcom2"  # the base may have a LICENSE of its own
# Those of the families that have no processor in Transformers.
PROCESSORS = {family.processor for family in FAMILIES.values()} - {None}


def module_of(cls: type) -> str:
    return cls.__module__.rpartition(".")[2]


def code_of(model_class: type[PreTrainedModel], method: str = "vidcom2") -> dict[str, bytes]:
    """The code of a model repo: config, model, pipeline and, where the project has its own, processor; and the
    compression method, if it is a user's.

    Raises:
        UnshippableMethodError: if the method cannot go along.
    """
    config_class: Any = model_class.config_class
    named = [PIPELINE, FAMILIES[config_class.model_type].processor]
    modules = [name.partition(".")[0] for name in named if name is not None]
    files = shipped_files(module_of(config_class), module_of(model_class), *modules) | code_of_method(method)
    return dict(sorted(files.items()))


def code_of_custom_generate() -> dict[str, bytes]:
    """The code of a `custom_generate` repo, by the path in the repo: its entry point must be called `generate.py`.

    The pipeline is among it, since Transformers fetches whatever a file that it loads seems to import.
    """
    files = shipped_files("custom_generate")
    files["generate.py"] = files.pop("custom_generate.py")
    return {f"{CUSTOM_GENERATE}/{name}": content for name, content in sorted(files.items())}


def fields_of(model_class: type[PreTrainedModel], method: str = "vidcom2") -> dict[str, Any]:
    """What a repo's config.json says about its code.

    `architectures` is the custom name: with the stock one, a pipeline that cannot load the custom class would fall
    back on the stock class without a word. The sha256 tell a later `save_pretrained` into the same folder which files
    are of this project, as it wrote them.
    """
    config_class: Any = model_class.config_class
    model = f"{module_of(model_class)}.{model_class.__name__}"
    auto_classes = AUTO_MODEL_CLASSES if model_class.can_generate() else AUTO_MODEL_CLASSES[:1]
    fields = {
        "architectures": [model_class.__name__],
        "auto_map": {"AutoConfig": f"{module_of(config_class)}.{config_class.__name__}"}
        | dict.fromkeys(auto_classes, model),
        SHA256_FIELD: {name: sha256(content) for name, content in code_of(model_class, method).items()},
    }
    if model_class.can_generate():
        pipeline = {"impl": PIPELINE, "pt": ["AutoModelForImageTextToText"], "type": "multimodal"}
        fields["custom_pipelines"] = {PIPELINE_TASK: pipeline}
    return fields


def license_file() -> Path:
    """The licence of the code: beside this file in the installed package, at the top of the checkout."""
    package = Path(__file__).resolve().parents[1]
    return next(path for path in (package / LICENSE, package.parents[1] / "LICENSE") if path.is_file())


def write_code(saved: PreTrainedConfig | PreTrainedModel | ProcessorMixin, folder: str) -> None:
    """Put the code of a config's family, or of a processor, into a folder, and its names into the config.

    For `SavedWithCode`. Classes of users are left alone: their authors register them with Transformers themselves.

    Raises:
        ValueError: if the folder holds other files of these names; nothing is written.
    """
    code = _code_saved_with(saved)
    if isinstance(saved, PreTrainedConfig):
        _name_code(saved)
    target = Path(folder)
    written = written_before(target / CONFIG)
    changed = {name: content for name, content in code.items() if not _is_same(target / name, sha256(content))}
    taken = [name for name in changed if lexists(target / name) and not _is_same(target / name, written.get(name))]
    refuse_taken(taken, f"the folder {str(folder)!r}")
    if isinstance(saved, PreTrainedModel):  # whose config is saved next, and the code with it
        return
    target.mkdir(parents=True, exist_ok=True)
    for name, content in changed.items():
        # Not into a file that is there, which could be a link to one elsewhere; and several processes may save at once.
        write_whole(target / name, content)


def check_repo(
    saved: PreTrainedConfig | PreTrainedModel | ProcessorMixin, repo: str, token: Any, revision: str | None
) -> None:
    """Refuse to push code over files of others. For `SavedWithCode`.

    Raises:
        ValueError: if the repo holds other files of these names.
        HfHubHTTPError, OSError: if the Hub cannot be asked, as they come.
    """
    code = _code_saved_with(saved)
    if not code:
        return
    api = HfApi(token=token)
    try:
        if "/" not in repo:
            repo = f"{api.whoami()['name']}/{repo}"
        info = api.model_info(repo, revision=revision, files_metadata=True)
    except (RepositoryNotFoundError, RevisionNotFoundError, LocalTokenNotFoundError):
        return  # there is nothing to lose, or Transformers will say so
    there = {sibling.rfilename: sibling.blob_id for sibling in info.siblings or []}
    changed = [name for name, content in code.items() if name in there and there[name] != git_hash(content)]
    if not changed:
        return

    def content(name: str) -> Path:
        return Path(api.hf_hub_download(repo, name, revision=info.sha))

    written = written_before(content(CONFIG)) if CONFIG in there else {}
    taken = [name for name in changed if not _is_same(content(name), written.get(name))]
    refuse_taken(taken, f"the repo {repo!r}")


def _code_saved_with(saved: PreTrainedConfig | PreTrainedModel | ProcessorMixin) -> dict[str, bytes]:
    """The code that goes along with an object; none with one of a user's class."""
    if isinstance(saved, ProcessorMixin):
        module = module_of(type(saved))
        return shipped_files(module) if f"{module}.{type(saved).__name__}" in PROCESSORS else {}
    model_class = _class_saved_with(saved)
    if model_class is None:
        return {}
    config = saved if isinstance(saved, PreTrainedConfig) else saved.config
    return code_of(model_class, config.compression_method)


def _class_saved_with(saved: PreTrainedConfig | PreTrainedModel) -> type[PreTrainedModel] | None:
    """The class of this project that will load what is saved: the generating one, or the inner model."""
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
    """Enter the code that goes along into a config, and take out what an earlier one went along with."""
    named = " ".join(map(str, (getattr(config, "auto_map", None) or {}).values()))
    if any(f"modeling_vidcom2_{family.module}." in named for family in FAMILIES.values()):
        for name in CODE_FIELDS:
            vars(config).pop(name, None)
    model_class = _class_saved_with(config)
    if model_class is not None:
        fields = fields_of(model_class, config.compression_method)
        for name in CODE_FIELDS:
            if name in fields:
                setattr(config, name, fields[name])


def written_before(config: Path) -> dict[str, str]:
    """File name -> sha256 of the code that an earlier save put beside a config.json, by what it says itself."""
    try:
        fields = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    written = fields.get(SHA256_FIELD) if isinstance(fields, dict) else None
    return written if isinstance(written, dict) else {}


def _is_same(file: Path, known: str | None) -> bool:
    """Whether a file is there and has this sha256."""
    return known is not None and file.is_file() and sha256_of(file) == known


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
