"""The checkpoint that a repo is made from: a folder, or a Hub repo at one commit."""

import glob
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import PreTrainedModel

from ..checkpoints import MODEL_CLASSES, CheckpointError
from ..shipped_code import sha256_of
from .hub_calls import hub_errors, with_retries

# What a repo keeps of its base beside the weights. Whatever else may lie in a folder, a log or a token, must not be
# published by accident.
TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "spiece.model")
TEMPLATES = ("chat_template.*", "additional_chat_templates/*.jinja")
OTHER_SETTINGS = ("*processor_config.json", "generation_config.json")
TERMS = ("LICENSE*", "NOTICE*", "USE_POLICY*")
READ_ONLY = ("config.json", "README.md")  # replaced by new ones
INDEX, SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True)
class BaseFile:
    """A file of the base.

    Attributes:
        path: in the repo, and in the base's folder if it is there.
        size: bytes.
        sha256: of the content.
        on_server: whether the Hub can copy it from the base's repo into another.
    """

    path: str
    size: int
    sha256: str
    on_server: bool = False

    @property
    def is_weights(self) -> bool:
        return self.path.endswith(".safetensors")


@dataclass(frozen=True)
class Base:
    """The base checkpoint.

    Attributes:
        name: Hub id, or the folder's name.
        revision: commit of the Hub repo, 40 hexadecimal digits; None for a folder.
        folder: all files of a local base; of one on the Hub, the cached snapshot, in which weights may be missing.
        files: what a repo made from it keeps, `config.json` and the card not among it.
        left_out: what it does not keep.
    """

    name: str
    revision: str | None
    folder: Path
    files: tuple[BaseFile, ...]
    left_out: tuple[str, ...]

    @property
    def config(self) -> dict[str, Any]:
        """config.json, without the path that Transformers may have left in it."""
        return {
            name: value for name, value in read_json(self.folder / "config.json").items() if name != "_name_or_path"
        }

    @property
    def model_class(self) -> type[PreTrainedModel]:
        """The VidCom² class for it.

        Raises:
            CheckpointError: if there is none.
        """
        model_type = self.config.get("model_type")
        if model_type not in MODEL_CLASSES:
            raise CheckpointError(
                f"the base {self.name!r} is of type {model_type!r}, but VidCom² has classes for "
                f"{', '.join(map(repr, MODEL_CLASSES))}. Checkpoints of LLaVA-Video are converted first: "
                "`vidcom2 convert-llava-video`."
            )
        return MODEL_CLASSES[model_type]

    @property
    def weights(self) -> tuple[BaseFile, ...]:
        return tuple(file for file in self.files if file.is_weights)


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file.

    Raises:
        CheckpointError: if it holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path.name} of the base is no JSON: {error}.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path.name} of the base holds a {type(content).__name__}, but must hold an object.")
    return content


def local_base(folder: Path, progress: Callable[[str, float, float | None], None] = lambda *_: None) -> Base:
    """A base in a folder. Hashes its weights.

    Raises:
        CheckpointError: if it is not a whole checkpoint in safetensors of a family that VidCom² knows.
    """
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    paths = [path for path in paths if not any(part.startswith(".") for part in path.split("/"))]
    name = folder.resolve().name
    kept = _kept(name, paths, _shards(folder, paths))
    base = Base(name, None, folder, (), _left_out(paths, kept))
    _ = base.model_class  # which is refused, if at all, before the hashing
    files = []
    for done, path in enumerate(kept):
        progress(f"Hashing {path}", done, len(kept))
        files.append(BaseFile(path, (folder / path).stat().st_size, sha256_of(folder / path)))
    return replace(base, files=tuple(files))


def hub_base(api: HfApi, name: str, revision: str | None) -> Base:
    """A base on the Hub, at the commit that `revision` is now. Downloads all but the weights, into the usual cache.

    Raises:
        CheckpointError: if it is not a whole checkpoint in safetensors of a family that VidCom² knows.
    """
    with hub_errors(name):
        info = with_retries(lambda: api.model_info(name, revision=revision, files_metadata=True))
        remote = {sibling.rfilename: sibling for sibling in info.siblings}
        paths = sorted(remote)
        small = [path for path in paths if _is_kept(path) or path in (*READ_ONLY, INDEX)]
        folder = Path(
            api.snapshot_download(name, revision=info.sha, allow_patterns=[glob.escape(path) for path in small])
        )
        kept = _kept(name, paths, _shards(folder, paths))
        large = [path for path in kept if remote[path].lfs is not None]
        infos = with_retries(lambda: api.get_paths_info(name, large, revision=info.sha)) if large else []
        copyable = {file.path for file in infos if file.xet_hash}
        files = []
        for path in kept:
            lfs = remote[path].lfs
            sha = sha256_of(folder / path) if lfs is None else lfs.sha256
            files.append(BaseFile(path, remote[path].size, sha, path in copyable))
        base = Base(name, info.sha, folder, tuple(files), _left_out(paths, kept))
    _ = base.model_class  # which is refused, if at all, before weights are downloaded
    return base


def download(api: HfApi, base: Base, paths: Iterable[str]) -> None:
    """Bring files of a base on the Hub into its folder."""
    with hub_errors(base.name):
        with_retries(
            lambda: api.snapshot_download(
                base.name, revision=base.revision, allow_patterns=[glob.escape(path) for path in paths]
            )
        )


def is_read(path: str) -> bool:
    """Whether Transformers reads a file of this name beside config.json and weights."""
    return _matches(path, TOKENIZER_FILES + TEMPLATES + OTHER_SETTINGS)


def _is_kept(path: str) -> bool:
    return is_read(path) or _matches(path, TERMS)


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) and path.count("/") == pattern.count("/") for pattern in patterns)


def _shards(folder: Path, paths: list[str]) -> set[str]:
    """The files of weights that Transformers would load."""
    if SINGLE_FILE in paths or INDEX not in paths:
        return {SINGLE_FILE}
    weight_map = read_json(folder / INDEX).get("weight_map") or {}
    return set(weight_map.values())


def _kept(name: str, paths: list[str], weights: set[str]) -> list[str]:
    if "config.json" not in paths:
        raise CheckpointError(f"the base {name!r} has no config.json: it is not a checkpoint of Transformers.")
    if "adapter_config.json" in paths:
        raise CheckpointError(
            f"the base {name!r} is a PEFT adapter. Merge it first: `merge_and_unload`, `save_pretrained`."
        )
    if (missing := sorted(weights - set(paths))) or not weights:
        raise CheckpointError(
            f"the base {name!r} lacks the weights {missing}. Only safetensors are published: load a checkpoint of "
            "another format with `from_pretrained`, and save it with `save_pretrained`."
        )
    if nested := sorted(path for path in weights if "/" in path):
        raise CheckpointError(
            f"the base {name!r} has weights in sub-folders, {nested}. Save it with `save_pretrained`."
        )
    index = set() if SINGLE_FILE in weights else {INDEX}
    return [path for path in paths if path in weights | index or _is_kept(path)]


def _left_out(paths: list[str], kept: list[str]) -> tuple[str, ...]:
    replaced = {*kept, *READ_ONLY, ".gitattributes"}
    return tuple(path for path in paths if path not in replaced)
