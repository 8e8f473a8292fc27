"""The checkpoint that a repo is made from: a folder, or a Hub repo at one commit."""

import glob
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import StrictDataclassError

from ..configuration.compression_settings import SETTING_NAMES, left_out
from ..errors import CheckpointError
from ..families.table import Family
from ..loading.checkpoints import PROCESSOR_FILES
from ..loading.finding_checkpoints import ADAPTER_CONFIG, check_no_pointers, check_settings_of, family_of, read_object
from ..loading.hub_calls import hub_errors
from ..repo_shape import CARD, CONFIG, INDEX, SINGLE_FILE, sha256_of, weight_files

# The files that a repo takes from its base beside the weights. Nothing else is taken, because a folder may also hold a
# log or a token, which must not be published by accident, and code, which users would run with the repo's own.
SETTINGS = (*PROCESSOR_FILES, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
READ = re.compile(  # by Transformers
    r"tokenizer[\w.-]*\.json|(tokenizer|spiece)\.model|vocab[\w.-]*\.(json|txt)|merges\.txt|added_tokens\.json"
    rf"|chat_template\.(jinja|json)|additional_chat_templates/[\w.-]+\.jinja|{'|'.join(map(re.escape, SETTINGS))}"
)
KEPT = re.compile(rf"{READ.pattern}|(LICENSE|NOTICE|USE_POLICY)([\w. -]*\.(txt|md)|[\w -]*)")
WEIGHTS = re.compile(r"[\w.-]+\.safetensors")
READ_ONLY = (CONFIG, CARD)  # read, but replaced by new ones


@dataclass(frozen=True)
class BaseFile:
    """A file of the base: its path in the repo, its size in bytes, and the sha256 of its content."""

    path: str
    size: int
    sha256: str

    @property
    def is_weights(self) -> bool:
        return self.path.endswith(".safetensors")


@dataclass(frozen=True)
class Base:
    """The base checkpoint.

    Attributes:
        name: the Hub id, the folder's name, or the name of a toy.
        revision: the commit of the Hub repo, 40 hexadecimal digits; None for a folder.
        folder: the folder of a local base; for a base on the Hub the cached snapshot, in which weights may be missing.
        files: the files that a repo made from it keeps, except `config.json` and the card.
        left_out: the files that such a repo does not keep.
        config: the content of config.json, without the path that Transformers may have left in it.
    """

    name: str
    revision: str | None
    folder: Path
    files: tuple[BaseFile, ...]
    left_out: tuple[str, ...]
    config: dict[str, Any]
    family: Family

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings of a repo made from it: those given, else the base's own, else the defaults.

        Raises:
            CheckpointError: if one is outside its accepted set, or if they contradict each other.
            OptionError: if one that is given belongs only to other families.
        """
        check_settings_of(f"the base {self.name!r}", self.family, given)
        names = (*SETTING_NAMES, *self.family.settings)
        own = {name: value for name, value in self.config.items() if name in names}
        try:
            checked = self.family.config_class(**own | left_out(own, given) | dict(given))
        except (ValueError, StrictDataclassError) as error:
            raise CheckpointError(f"the settings for {self.name!r} cannot be used: {error}") from error
        return {name: getattr(checked, name) for name in names}

    @property
    def weights(self) -> tuple[BaseFile, ...]:
        return tuple(file for file in self.files if file.is_weights)


def local_base(folder: Path, report: Callable[[str], None] = lambda what: None) -> Base:
    """Describe a base in a folder. Its files are hashed, and `report` is told which.

    Raises:
        CheckpointError: if it is not a complete safetensors checkpoint of a family that VidCom² knows.
    """
    home = folder.resolve()
    held = (home, home.parents[1] / "blobs") if home.parent.name == "snapshots" else (home,)  # as in the Hub's cache

    def described(path: str) -> BaseFile:
        if not any((folder / path).resolve().is_relative_to(each) for each in held):
            raise CheckpointError(f"the base's {path} is a link out of it. Copy the file, if it may be published.")
        report(f"Hashing {path}")
        return BaseFile(path, (folder / path).stat().st_size, sha256_of(folder / path))

    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    check_no_pointers(folder)
    return _base(home.name, None, folder, [path for path in paths if not re.search(r"(^|/)\.", path)], described)


def hub_base(api: HfApi, name: str, revision: str | None) -> Base:
    """Describe a base on the Hub, at the commit that `revision` is now. All files but the weights are downloaded, into
    the usual cache.

    Raises:
        CheckpointError: if it is not a complete safetensors checkpoint of a family that VidCom² knows.
        PublishError: if the Hub does not have it, or cannot be reached.
    """
    with hub_errors(name):
        info = api.model_info(name, revision=revision, files_metadata=True)
        remote = {file.rfilename: file for file in info.siblings or []}
        folder = _downloaded(api, name, info.sha, [p for p in remote if KEPT.fullmatch(p) or p in (*READ_ONLY, INDEX)])

    def described(path: str) -> BaseFile:
        file = remote[path]
        return BaseFile(path, file.size or 0, file.lfs.sha256 if file.lfs else sha256_of(folder / path))

    return _base(name, info.sha, folder, sorted(remote), described)


def download_weights(api: HfApi, base: Base) -> None:
    """Download the weights of a base on the Hub into its folder."""
    with hub_errors(base.name):
        _downloaded(api, base.name, base.revision, [file.path for file in base.weights])


def _downloaded(api: HfApi, name: str, commit: str | None, paths: list[str]) -> Path:
    return Path(api.snapshot_download(name, revision=commit, allow_patterns=[glob.escape(path) for path in paths]))


def _base(
    name: str, revision: str | None, folder: Path, paths: list[str], described: Callable[[str], BaseFile]
) -> Base:
    """Return the base with these paths. A bad one is refused before its files are `described`, and so hashed."""
    what = f"the base {name!r}"
    if ADAPTER_CONFIG in paths:
        raise CheckpointError(
            f"{what} is a PEFT adapter. Merge it first with `merge_and_unload` and `save_pretrained`."
        )
    if CONFIG not in paths:
        raise CheckpointError(f"{what} has no {CONFIG}, so it is not a Transformers checkpoint.")
    weights = weight_files(paths, lambda path: read_object(folder / path))
    if (missing := sorted(weights - set(paths))) or not weights:
        raise CheckpointError(
            f"{what} lacks the weights {missing}. Only safetensors are published. Load a checkpoint in another format "
            "with `from_pretrained`, and save it with `save_pretrained`."
        )
    if odd := sorted(path for path in weights if not WEIGHTS.fullmatch(path)):
        raise CheckpointError(
            f"{what} has weights that are no safetensors beside its index: {odd}. Save it with `save_pretrained`."
        )
    if SINGLE_FILE not in weights:
        weights.add(INDEX)
    config = {name: value for name, value in read_object(folder / CONFIG).items() if name != "_name_or_path"}
    family = family_of(what, config)
    kept = [path for path in paths if path in weights or KEPT.fullmatch(path)]
    left_out = tuple(path for path in paths if path not in {*kept, *READ_ONLY, ".gitattributes"})
    return Base(name, revision, folder, tuple(map(described, kept)), left_out, config, family)
