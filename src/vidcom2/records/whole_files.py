"""Files and folders that appear under their name when they are whole, and that grow where nothing else can be.

Nothing here imports PyTorch.
"""

import glob
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

MARKER = ".vidcom2-incomplete"  # in a folder that grows: this project made it


class TakenError(ValueError):
    """A name that another process is using, or that something else has."""


@contextmanager
def growing_file(path: Path) -> Iterator[Path]:
    """The name of a file that takes the place of `path` when the block ends.

    The name is new, so two processes that write `path` never write one file, and nothing of the user's has it. After
    an error nothing is left of it, and `path` is as it was; a kill leaves it there.
    """
    part = path.with_name(f".{path.name}.{_new_id()}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that is there as a whole or, after an interruption, as it was."""
    with growing_file(path) as part, part.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def growing_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, named `{target}.incomplete-` and eight letters, which becomes `target` when the
    block ends.

    After an error nothing is left of it. What a killed process left is removed by the next one that makes `target`.

    Raises:
        TakenError: if there is something called `target`, at the beginning or at the end, or if another process is
            making it.
    """
    check_free(target)
    _remove_leftovers(target)
    folder = target.with_name(f"{target.name}.incomplete-{_new_id()}")
    with locked(_lock_of(folder), f"{str(folder)!r} is in use. Run this again."):
        try:
            folder.mkdir()
            (folder / MARKER).touch()
            yield folder
            (folder / MARKER).unlink()
            _rename(folder, target)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def check_free(target: Path) -> None:
    """Raises a TakenError if there is something of this name."""
    if os.path.lexists(target):
        raise TakenError(f"{str(target)!r} exists already. Remove it or name another folder.")


@contextmanager
def locked(lock_file: Path, otherwise: str) -> Iterator[None]:
    """No other process is in a block of the same lock file. The file goes with the block.

    Raises:
        TakenError: with the text `otherwise`, if another process is.
    """
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise TakenError(otherwise) from None
    try:
        yield
    finally:
        if os.name == "posix":  # elsewhere an open file cannot be removed, and `release` does
            lock_file.unlink(missing_ok=True)
        lock.release()


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes left of `target`. Raises a TakenError if one of them is alive."""
    name = re.compile(re.escape(target.name) + r"\.incomplete-[0-9a-f]{8}")
    for folder in target.parent.glob(f"{glob.escape(target.name)}.incomplete-*"):
        if name.fullmatch(folder.name) and (folder / MARKER).is_file():
            with locked(
                _lock_of(folder),
                f"{str(target)!r} is being made by another process, in {str(folder)!r}. Wait for its end, or name "
                "another folder.",
            ):
                shutil.rmtree(folder, ignore_errors=True)


def _rename(folder: Path, target: Path) -> None:
    try:
        os.rename(folder, target)  # onto a folder that is not empty, this fails
    except OSError:
        if not os.path.lexists(target):
            raise
        raise TakenError(
            f"{str(target)!r} was made by another process in the meantime. Use that one, or name another folder."
        ) from None


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _new_id() -> str:
    return uuid.uuid4().hex[:8]
