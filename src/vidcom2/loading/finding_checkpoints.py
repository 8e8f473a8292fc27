"""Finding the checkpoint that a command or a call names, in a folder or in a repo that the Hub is asked for once, and
checking the options for it. Nothing is loaded, and neither PyTorch nor Transformers is imported."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..checks import FAMILY_SETTINGS, check_settings
from ..errors import CheckpointError, OptionError
from ..families.table import FAMILIES, Family, no_class_for
from ..repo_shape import CONFIG
from ..toys import toy_of
from .placement import Placement

HUB_SECONDS = 10  # how long the Hub may take to say whether it has a checkpoint
ADAPTER_CONFIG = "adapter_config.json"
MAYBE_POINTERS = ("*.json", "*.jinja", "*.model", "merges.txt", "model*.safetensors", "adapter_model.safetensors")
POINTER_BYTES = 1024  # a pointer of Git LFS is shorter
NAMES_CODE = re.compile("auto_map|custom_.*")  # fields of a checkpoint's files that name Python code, maybe elsewhere
LEADING_ELSEWHERE = ("audio_tokenizer_class", "megatron_config")  # to another repo, or a module that is imported
WHOLE_WEIGHTS = ("model*.safetensors", "model*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.json")
NOT_IN_THE_ADAPTER = ("non_lora_*",)  # what scripts for LLaVA and Qwen2-VL train besides it, in files of their own


@dataclass(frozen=True)
class Source:
    """The files that a model is loaded from.

    Attributes:
        path: a folder, or a Hub id.
        commit: the commit of the Hub repo; None for a folder.
        base: if these are an adapter, where the weights are that it changes.
    """

    path: str
    commit: str | None
    base: "Source | None" = None

    def holding(self, names: Sequence[str], **hub: Any) -> "Source":
        """Return where these files are. Those that an adapter does not bring along are those of its base."""
        if self.base is None or any(checkpoint_file(self.path, self.commit, name, **hub) for name in names):
            return self
        return self.base


@dataclass(frozen=True)
class Resolved:
    """A model that was found, with options that were checked. What loads it checks nothing of that again.

    Attributes:
        name: what results and errors call it.
        source: its files, at the commits that the revisions were when it was found.
        placement, settings: the options.
        hub: how the Hub is asked for the files: `token`, `cache_dir` and so on.
    """

    name: str
    source: Source
    family: Family
    placement: Placement
    settings: dict[str, Any]
    hub: dict[str, Any] = field(default_factory=dict)

    @property
    def name_in_results(self) -> str:
        """The name without the folder that it is in, which is nobody else's business and which no card names."""
        folder = Path(self.name).expanduser()
        return folder.resolve().name if folder.is_dir() else self.name


def resolve(model: str | None, placement: Placement, settings: Mapping[str, Any], **hub: Any) -> Resolved:
    """Find the model that is named, and check the options for it: once, and before anything slow starts.

    The Hub is asked once. Transformers would ask for a missing repo again and again, for half a minute.

    Args:
        model: a folder, a Hub id, or the name of a toy; None means the first toy.
        **hub: how Transformers will ask for it: `token`, `cache_dir`, `local_files_only`.

    Raises:
        CheckpointError: if neither this machine nor the Hub has it, or the Hub cannot be asked; if it is of no family
            that VidCom² knows. As in `base_of`, if it is an adapter.
        OptionError: on an option that is unknown, outside its accepted set, or of another family, or a package that is
            missing.
    """
    settings = dict(settings)
    check_settings(settings)
    placement.check(model)
    path, toy = _found(model, placement.revision, **hub), toy_of(model)
    name = str(model) if toy is None else toy.title
    source = _source_of(path, placement.revision, **hub)
    family = family_of(f"the model {name!r}", _config(name, source.holding((CONFIG,), **hub), **hub))
    check_settings_of(f"the model {name!r}", family, settings)
    family.check_cache(placement.cache_implementation)
    return Resolved(name, source, family, placement, settings, hub)


def family_of(what: str, config: Mapping[str, Any]) -> Family:
    """Return the family of a checkpoint.

    Args:
        what: whose config it is, for the error.
        config: the content of its config.json.

    Raises:
        CheckpointError: if VidCom² has no class for it.
        OptionError: if a package is missing that it needs.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(
            f"cannot load {what} because of its config: it names no `model_type`. Is it complete? Download it again."
        )
    family = FAMILIES.get(model_type) or next((each for each in FAMILIES.values() if each.part_of == model_type), None)
    if family is None:
        raise CheckpointError(no_class_for(what, model_type))
    family.check_packages()
    return family


def check_settings_of(what: str, family: Family, settings: Mapping[str, Any]) -> None:
    """Check that the family has each setting. Raises an OptionError on one that only other families have."""
    foreign = [name for name in settings if name in FAMILY_SETTINGS and name not in family.settings]
    if foreign:
        raise OptionError(
            f"`{foreign[0]}` is not a setting of {what}, which is of type {family.model_type!r}. Leave it out."
        )


def family_at(path: str, revision: str | None = None) -> Family | None:
    """Return the family that a checkpoint's config names; None if it names none that VidCom² knows."""
    file = checkpoint_file(path, revision, CONFIG)
    return None if file is None else FAMILIES.get(str(read_object(file).get("model_type")))


def _config(name: str, source: Source, **hub: Any) -> dict[str, Any]:
    """Return the content of config.json. Raises a CheckpointError if it holds no object."""
    file = checkpoint_file(source.path, source.commit, CONFIG, **hub)
    try:
        return read_object(Path(CONFIG) if file is None else file)
    except CheckpointError as error:
        raise CheckpointError(f"cannot load the model {name!r} because of its config: {error}") from error


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a checkpoint, without the names of code that it has at any depth.

    Raises:
        CheckpointError: if there is no such file, it holds something else, or it asks for another repo.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"), object_hook=_without_code)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.name} is not valid ({error}). Download it again, or take another.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file.name} holds a {type(content).__name__}, but must hold an object.")
    return content


def _without_code(fields: dict[str, Any]) -> dict[str, Any]:
    for name, value in fields.items():
        is_kernel = name.endswith("_implementation") and "/" in str(value)
        if is_kernel or (value and name in LEADING_ELSEWHERE):
            raise ValueError(f"its `{name}` asks for code or a model that is not in it")
    return {name: value for name, value in fields.items() if not NAMES_CODE.fullmatch(name)}


def _source_of(path: str, revision: str | None, **hub: Any) -> Source:
    """Return the files of a checkpoint that was found, at the commits that the revisions are now: the Hub's, or the
    cache's if the Hub cannot be asked."""
    files = (checkpoint_file(path, revision, name, **hub) for name in (CONFIG, ADAPTER_CONFIG))
    file = next((each for each in files if each is not None), None)
    if file is None:
        raise CheckpointError(f"cannot load the model {path!r}: it has no {CONFIG}.")
    commit = None if Path(path).is_dir() else file.parent.name  # snapshots/<commit>/config.json
    base = base_of(path, commit, **hub)
    return Source(path, commit, None if base is None else _source_of(*base, **hub))


def base_of(path: str, revision: str | None = None, **hub: Any) -> tuple[str, str | None] | None:
    """Return the path or Hub id, and the revision, of the checkpoint whose weights an adapter of PEFT changes. Return
    None for a checkpoint that is no adapter.

    Raises:
        CheckpointError: if it is not certain which weights are meant, or the base is not found.
        OptionError: if PEFT is missing.
    """
    file = checkpoint_file(path, revision, ADAPTER_CONFIG, **hub)
    if file is None:
        return None
    cannot = f"cannot load the adapter {path!r}"
    names = _names(path, revision, file, **hub)
    if beside := _matching(names, WHOLE_WEIGHTS):
        raise CheckpointError(
            f"{cannot}: the weights of a whole model lie beside it ({beside[0]}), and nothing says whether they "
            f"include it already. If so, remove {ADAPTER_CONFIG}. If not, move the adapter to a folder of its own."
        )
    if beside := _matching(names, NOT_IN_THE_ADAPTER):
        raise CheckpointError(
            f"{cannot}: {beside[0]} beside it holds further trained weights, in a format of the script that trained "
            "them. Merge both into the base with that script, and load the result."
        )
    try:
        adapter = read_object(file)
    except CheckpointError as error:
        raise CheckpointError(f"{cannot}: its base is not known, since {error}") from error
    base, revision = adapter.get("base_model_name_or_path"), adapter.get("revision")
    remedy = f"Write where the base is into its {ADAPTER_CONFIG}, as `base_model_name_or_path`."
    if not base or not isinstance(base, str) or not isinstance(revision, str | None):
        raise CheckpointError(f"{cannot}: its base is not known. {remedy}")
    if find_spec("peft") is None:
        raise OptionError(f"{cannot}: an adapter needs PEFT, which is not installed. Run: pip install peft")
    revision = None if Path(base).expanduser().is_dir() else revision
    try:
        found = _found(base, revision, **hub)
    except CheckpointError as error:
        raise CheckpointError(f"{cannot} because of its base: {error} {remedy}") from None
    if checkpoint_file(found, revision, ADAPTER_CONFIG, **hub) is not None:
        raise CheckpointError(f"{cannot}: its base {base!r} is an adapter too. Merge that into its own base first.")
    return found, revision


def checkpoint_file(path: str, revision: str | None, file: str, **hub: Any) -> Path | None:
    """Return a file of a checkpoint that was found, from the Hub if need be; None if the checkpoint does not have it.

    Raises:
        CheckpointError: if the Hub does not say so.
    """
    if Path(path).is_dir():
        return Path(path, file) if Path(path, file).is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    from .hub_calls import TRANSPORT_ERRORS

    try:
        return Path(hf_hub_download(path, file, revision=revision, **hub))
    except EntryNotFoundError:  # also if it is not in the cache, and the Hub is not asked
        return None
    except (HfHubHTTPError, OSError, *TRANSPORT_ERRORS) as error:
        raise CheckpointError(f"cannot load the model {path!r}: {' '.join(str(error).split())}") from error


def _names(path: str, revision: str | None, file: Path, token: str | bool | None = None, **_: Any) -> list[str]:
    """Return the names of a checkpoint's files, one of which is `file`. Of a repo that the Hub does not list, these are
    the files in the cache."""
    if not Path(path).is_dir():
        from huggingface_hub import HfApi

        from .hub_calls import HUB_ERRORS

        try:
            return HfApi(token=token).list_repo_files(path, revision=revision)
        except HUB_ERRORS:
            pass
    return sorted(each.name for each in file.parent.iterdir())


def _matching(names: list[str], patterns: tuple[str, ...]) -> list[str]:
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _found(name: str | None, revision: str | None, **hub: Any) -> str:
    """Return where a checkpoint is: a folder, or a Hub id that the Hub or the cache has."""
    toy = toy_of(name)
    name = f"toy:{toy.name}" if name is None and toy is not None else str(name)
    if not name.strip():
        raise CheckpointError(
            f"cannot load the model {name!r}: the name is empty. Is a shell variable unset? Name a folder, or a Hub "
            "id: org/name."
        )
    if toy is not None and revision is not None:
        raise OptionError(f"`revision` is {revision!r}, but the model {name!r} comes with vidcom2 and has none.")
    folder = toy.folder if toy is not None else Path(name).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise OptionError(f"`revision` is {revision!r}, but the model {name!r} is a folder, which has none.")
        if not any((folder / file).is_file() for file in (CONFIG, ADAPTER_CONFIG)):
            raise CheckpointError(f"cannot load the model {name!r}: the folder has no config.json.")
        check_no_pointers(folder)
        return str(folder)
    if folder.exists():
        raise CheckpointError(f"cannot load the model {name!r}: it is a file. Name the checkpoint's folder.")
    _ask_the_hub(name, revision, **hub)
    return name


def check_no_pointers(folder: Path) -> None:
    """Raise a CheckpointError if a folder has pointers of Git LFS instead of a checkpoint's files."""
    for file in sorted(folder.iterdir()):
        is_short = _matching([file.name], MAYBE_POINTERS) and file.is_file() and file.stat().st_size < POINTER_BYTES
        if is_short and file.read_bytes().startswith(b"version https://git-lfs"):
            raise CheckpointError(
                f"cannot load the model {str(folder)!r}: its {file.name} is only a pointer of Git LFS. Run "
                "`git lfs pull` in the folder."
            )


def folder_named(name: str, revision: str | None) -> Path | None:
    """Return the folder that a name means; None if it can only be a Hub id.

    Raises:
        OptionError: if there is no such folder, or a revision is given for one.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise OptionError(f"`--revision` is {revision!r}, but {name!r} is a folder, which has none.")
        return folder
    if name.startswith((".", "/", "~")):
        raise OptionError(f"there is no folder {name!r}. Name a folder, or a Hub repo as `org/name`.")
    return None


def check_hub_id(name: str) -> None:
    """Check that a name which is not a folder could be a Hub id.

    Raises:
        CheckpointError: if it could not.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    refused = f"cannot load the model {name!r}: there is no such folder, and "
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise CheckpointError(refused + "it is no Hub id, which looks like org/name.") from None
    if "/" not in name:
        raise CheckpointError(refused + "a Hub id has its organisation in front, as in org/name.")


def _ask_the_hub(
    name: str,
    revision: str | None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    **_: Any,
) -> None:
    """Check that the Hub, or its cache on this machine, has the checkpoint. Raises a CheckpointError if not."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import RevisionNotFoundError

    from .hub_calls import HUB_ERRORS, explained

    def refused(reason: str) -> CheckpointError:
        missing = "there is no such folder, the cache does not have it, and"
        return CheckpointError(f"cannot load the model {name!r}: {missing} {reason}")

    check_hub_id(name)
    for file in (CONFIG, ADAPTER_CONFIG):
        if isinstance(try_to_load_from_cache(name, file, cache_dir=cache_dir, revision=revision), str):
            return
    if local_files_only:
        raise refused("`local_files_only` is set. Leave it out to ask the Hub.")
    try:
        files = HfApi(token=token).model_info(name, revision=revision, timeout=HUB_SECONDS).siblings
    except RevisionNotFoundError:
        raise refused(f"the Hub's repo has no commit, tag or branch {revision!r}.") from None
    except HUB_ERRORS as error:
        raise refused(explained(error, name)) from error
    if not {CONFIG, ADAPTER_CONFIG} & {file.rfilename for file in files or []}:
        raise refused("the Hub's repo has no config.json: it is not a Transformers checkpoint.")
