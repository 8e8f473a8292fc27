"""Errors that a caller can fix, and helpers that explain the errors of other libraries. Nothing heavy is imported."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class OptionError(ValueError):
    """A value outside its accepted set, or options that do not go together."""


class CheckpointError(ValueError):
    """A checkpoint that is missing, unreadable or of a family that VidCom² does not know."""


@contextmanager
def written_to(path: Path) -> Iterator[None]:
    """Turn an error of the file system, such as a full disk or a missing right, into an OptionError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno is None:  # it does not come from the system
            raise
        raise OptionError(f"cannot write {str(path)!r}: {error.strerror}.") from error


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether memory ran out. On CUDA PyTorch has a class for this; on the CPU and MPS it is a RuntimeError."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, RuntimeError):
        return False
    in_words = ("DefaultCPUAllocator: can't allocate memory", "MPS backend out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in in_words)


def memory_reason(error: Exception) -> str:
    """Return the first line of an error that `is_out_of_memory` recognises."""
    return (str(error).strip() or "no more is free").splitlines()[0]


def one_line(error: Exception) -> str:
    """Return the text of an error without line breaks."""
    return " ".join(str(error).split())
