"""The checkpoint that a repo is made from: a folder, or a Hub repo at one commit."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub import HfApi

from .checkpoints import CheckpointError
from .hub_calls import hub_errors, with_retries
from .shipped_code import sha256_of

# What a repo keeps of its base. Code, pickles, other frameworks' weights and pictures stay behind.
KEPT_SUFFIXES = {".json", ".jinja", ".txt", ".model", ".safetensors"}
KEPT_NAMES = ("LICENSE", "NOTICE")
KEPT_FOLDERS = {"additional_chat_templates"}
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
        return json.loads((self.folder / "config.json").read_text(encoding="utf-8"))

    @property
    def weights(self) -> tuple[BaseFile, ...]:
        return tuple(file for file in self.files if file.is_weights)


def local_base(folder: Path, progress: Callable[[str, float, float | None], None] = lambda *_: None) -> Base:
    """A base in a folder. Hashes its weights.

    Raises:
        CheckpointError: if it is not a whole checkpoint in safetensors.
    """
    paths = sorted(str(path.relative_to(folder).as_posix()) for path in folder.rglob("*") if path.is_file())
    kept = _kept(folder.name, paths, _shards(folder, paths))
    files = []
    for done, path in enumerate(kept):
        progress(f"Hashing {path}", done, len(kept))
        files.append(BaseFile(path, (folder / path).stat().st_size, sha256_of(folder / path)))
    return Base(folder.resolve().name, None, folder, tuple(files), _left_out(paths, kept))


def hub_base(api: HfApi, name: str, revision: str | None) -> Base:
    """A base on the Hub, at the commit that `revision` is now. Downloads all but the weights, into the usual cache.

    Raises:
        CheckpointError: if it is not a whole checkpoint in safetensors.
    """
    with hub_errors(name):
        info = with_retries(lambda: api.model_info(name, revision=revision, files_metadata=True))
        remote = {sibling.rfilename: sibling for sibling in info.siblings}
        paths = sorted(remote)
        small = [path for path in paths if not path.endswith(".safetensors") and (_is_kept(path) or path in READ_ONLY)]
        folder = Path(api.snapshot_download(name, revision=info.sha, allow_patterns=small))
        kept = _kept(name, paths, _shards(folder, paths))
        large = [path for path in kept if remote[path].lfs is not None]
        copyable = (
            {file.path for file in api.get_paths_info(name, large, revision=info.sha) if file.xet_hash}
            if large
            else set()
        )
        files = []
        for path in kept:
            lfs = remote[path].lfs
            sha = sha256_of(folder / path) if lfs is None else lfs.sha256
            files.append(BaseFile(path, remote[path].size, sha, path in copyable))
        return Base(name, info.sha, folder, tuple(files), _left_out(paths, kept))


def download(api: HfApi, base: Base, paths: Iterable[str]) -> None:
    """Bring files of a base on the Hub into its folder."""
    with hub_errors(base.name):
        with_retries(lambda: api.snapshot_download(base.name, revision=base.revision, allow_patterns=list(paths)))


def _is_kept(path: str) -> bool:
    parts = PurePosixPath(path)
    if len(parts.parts) > 1 and parts.parts[0] not in KEPT_FOLDERS:
        return False
    return path != "config.json" and (parts.suffix in KEPT_SUFFIXES or parts.name.upper().startswith(KEPT_NAMES))


def _shards(folder: Path, paths: list[str]) -> set[str]:
    """The files of weights that Transformers would load."""
    if INDEX not in paths:
        return {SINGLE_FILE}
    return set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())


def _kept(name: str, paths: list[str], weights: set[str]) -> list[str]:
    if "config.json" not in paths:
        raise CheckpointError(f"the base {name!r} has no config.json: it is not a checkpoint of Transformers.")
    if missing := sorted(weights - set(paths)):
        raise CheckpointError(
            f"the base {name!r} lacks the weights {missing}. Only safetensors are published: load a checkpoint of "
            "another format with `from_pretrained`, and save it with `save_pretrained`."
        )
    return [path for path in paths if _is_kept(path) and (path in weights or not path.endswith(".safetensors"))]


def _left_out(paths: list[str], kept: list[str]) -> tuple[str, ...]:
    replaced = {*kept, *READ_ONLY, ".gitattributes"}
    return tuple(path for path in paths if path not in replaced and not path.startswith(".cache/"))
