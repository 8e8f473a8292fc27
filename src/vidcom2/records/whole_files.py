"""Writing files and folders that appear under their name only when complete, and grow under a name of their own.

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

MARKER = ".vidcom2-incomplete"  # a file in a growing folder, which shows that this project made the folder


class TakenError(ValueError):
    """Raised for a name that is taken, or that another process is using."""


@contextmanager
def growing_file(path: Path) -> Iterator[Path]:
    """Yield the name of a temporary file that replaces `path` when the block ends. A link stays, and its file is
    replaced. A file that others may not read stays so.

    The name is new, so that two processes which write `path` never write the same file, and no file of the user's has
    it. After an error the file is removed and `path` is unchanged. If the process is killed, the file stays.
    """
    path = Path(os.path.realpath(path))
    part = path.with_name(f".{path.name}.{_new_id()}.part")
    try:
        yield part
        if path.exists():
            shutil.copymode(path, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it is complete or, after an interruption, unchanged."""
    with growing_file(path) as part:
        _write(part, content)


def write_alone(path: Path, content: str | bytes) -> None:
    """Write a file as `write_whole` does, one process at a time. What a killed one left is removed by the next.

    Raises:
        TakenError: if another process is writing `path`.
        FileNotFoundError: if there is no folder for it.
    """
    if not path.parent.is_dir():  # the lock would make it
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r}")
    part = path.with_name(f".{path.name}.incomplete")
    with locked(path.with_name(f".{path.name}.lock"), f"another process is writing {str(path)!r}"):
        part.unlink(missing_ok=True)
        try:
            _write(part, content)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def _write(path: Path, content: str | bytes) -> None:
    with path.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def growing_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, which is renamed to `target` when the block ends. Its name is
    `{target}.incomplete-` with eight hexadecimal digits.

    After an error the folder is removed. If a process is killed, the next one that makes `target` removes its folder.

    Raises:
        TakenError: if `target` exists at the beginning or at the end, or if another process is making it.
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
    """Check that nothing has this name. Raises a TakenError if something does."""
    if os.path.lexists(target):
        raise TakenError(f"{str(target)!r} exists already. Remove it or name another folder.")


@contextmanager
def locked(lock_file: Path, otherwise: str) -> Iterator[None]:
    """Keep other processes out of blocks with the same lock file, which is removed when the block ends.

    Raises:
        TakenError: with the text `otherwise`, if another process is in such a block.
    """
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise TakenError(otherwise) from None
    try:
        yield
    finally:
        if os.name == "posix":  # elsewhere an open file cannot be removed; there `release` removes it
            lock_file.unlink(missing_ok=True)
        lock.release()


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes left of `target`. Raises a TakenError if one of them is still alive."""
    name = re.compile(re.escape(target.name) + r"\.incomplete-[0-9a-f]{8}")
    for folder in target.parent.glob(f"{glob.escape(target.name)}.incomplete-*"):
        if name.fullmatch(folder.name) and (folder / MARKER).is_file():
            with locked(
                _lock_of(folder),
                f"{str(target)!r} is being made by another process, in {str(folder)!r}. Wait until it ends, or name "
                "another folder.",
            ):
                shutil.rmtree(folder, ignore_errors=True)


def _rename(folder: Path, target: Path) -> None:
    try:
        os.rename(folder, target)  # fails if `target` is a folder that is not empty
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
