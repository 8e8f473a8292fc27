"""Writing files and folders that appear under their name only when complete, and grow under a name of their own.

Nothing here imports PyTorch.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import OptionError


@contextmanager
def growing_file(path: Path) -> Iterator[Path]:
    """Yield the name of a temporary file that replaces `path` when the block ends. A link stays, and its file is
    replaced. A file that others may not read stays so.

    The name is new, so that two processes which write `path` never write the same file, and no file of the user's has
    it. After an error the file is removed and `path` is unchanged. If the process is killed, the file stays.
    """
    path = Path(os.path.realpath(path))
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield part
        if path.exists():
            shutil.copymode(path, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it is complete or, after an interruption, unchanged."""
    with growing_file(path) as part, part.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def growing_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, which is renamed to `target` when the block ends. After an error it is
    removed. If a process is killed, the next one that is to make `target` removes what it left.

    Raises:
        OptionError: if `target` exists, if another process is making it, or if a user's own file has the name of an
            unfinished folder.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part, lock = (target.with_name(f".{target.name}.{ending}") for ending in ("vidcom2-incomplete", "lock"))
    was_killed = lock.exists()  # since a process that ends removes its lock
    with locked(lock, f"{str(target)!r} is being made by another process. Wait until it ends, or name another folder."):
        if os.path.lexists(part) and not was_killed:
            raise OptionError(f"{str(part)!r} exists, and no lock beside it says that vidcom2 made it. Move it away.")
        shutil.rmtree(part, ignore_errors=True)  # which a killed process left
        check_free(target)
        part.mkdir()
        try:
            yield part
            os.replace(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def check_free(target: Path) -> None:
    """Check that nothing has this name. Raises an OptionError if something does."""
    if os.path.lexists(target):
        raise OptionError(f"{str(target)!r} exists already. Name a new folder, or remove it.")


@contextmanager
def locked(lock_file: Path, otherwise: str, stays: bool = False) -> Iterator[None]:
    """Keep other processes out of blocks with the same lock file, which is removed when the block ends, unless it
    `stays`.

    Raises:
        OptionError: with the text `otherwise`, if another process is in such a block.
    """
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise OptionError(otherwise) from None
    try:
        yield
    finally:
        if os.name == "posix" and not stays:  # elsewhere an open file cannot be removed; there `release` removes it
            lock_file.unlink(missing_ok=True)
        lock.release()
