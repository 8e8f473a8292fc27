"""Errors that a caller can fix, and helpers that explain the errors of other libraries. Nothing heavy is imported."""

import difflib
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

OLDEST_TRANSFORMERS, FIRST_TOO_NEW = (5, 19), (6,)  # as pyproject.toml says
LONGEST_REPR = 100  # how many characters of a caller's value a message shows
ALIKE = 0.8  # a name this close to a known one is probably a misspelling, and not the user's own
OUT_OF_MEMORY = (
    "out of memory ({}) for this request alone. Ask it again where more memory is free, or spread the model over "
    "devices. Otherwise take fewer frames, or keep fewer tokens."
)
BUG = "this is a bug in vidcom2, please report it"  # how the error of a request begins that a bug left without answer
# What PyTorch (2.8 and newer) raises for a device that failed, and vLLM for an engine. Neither works afterwards.
DEAD = ("AcceleratorError", "EngineDeadError")
PLACES_SHOWN = 8  # how many lines of code a bug in a request names


class OptionError(ValueError):
    """A value outside its accepted set, or options that do not go together."""


class NoAnswersError(OptionError):
    """A mistake that leaves every request of a run without an answer, so that the run ends at the first."""


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
    in_words = ("DefaultCPUAllocator: can't allocate memory", "MPS backend out of memory", "Invalid buffer size")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in in_words)


def memory_reason(error: Exception) -> str:
    """Return the first line of an error that `is_out_of_memory` recognises."""
    return (str(error).strip() or "no more is free").splitlines()[0]


def reason_of(error: Exception, reading: bool = False) -> str:
    """Return why one of many requests has no answer, in one line. A bug is called one, and says where it is.

    Args:
        reading: whether the video was being read. What another library raises then is the fault of the file.

    Raises:
        Exception: the error itself, if no other request can be answered after it.
    """
    is_dead = type(error).__name__ in DEAD or (isinstance(error, RuntimeError) and "CUDA error" in str(error))
    if is_dead or isinstance(error, NoAnswersError):
        raise error
    if is_out_of_memory(error):
        return OUT_OF_MEMORY.format(memory_reason(error))
    if isinstance(error, ValueError | OverflowError):  # the latter comes from a number of the user's
        return one_line(error) or type(error).__name__
    text = f"{type(error).__name__}: {one_line(error)}"
    places = [(frame.f_globals.get("__name__", "?"), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, OSError) or (reading and not places[-1][0].startswith(f"{__package__}.")):
        return f"cannot read the video: {text}"
    return f"{BUG}: {text} ({', '.join(f'{name}:{line}' for name, line in places[: -PLACES_SHOWN - 1 : -1])})"


def transformers_problem() -> str | None:
    """Return why the installed Transformers cannot be used, with the command that mends it; None if it can.

    The version is read from the package's metadata, so that Transformers itself is not imported.
    """
    supported = f"transformers>={'.'.join(map(str, OLDEST_TRANSFORMERS))},<{'.'.join(map(str, FIRST_TOO_NEW))}"
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return f'vidcom2 needs Transformers, which is not installed. Run: pip install "{supported}"'
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if OLDEST_TRANSFORMERS <= numbers < FIRST_TOO_NEW:
        return None
    how = "old" if numbers < OLDEST_TRANSFORMERS else "new"
    return f'Transformers {version} is too {how} for this vidcom2. Run: pip install "{supported}"'


def brief(value: Any) -> str:
    """Return a caller's value for a message: its repr, of which a long one is cut, as that of the bytes of a video."""
    text = repr(value)
    return text if len(text) <= LONGEST_REPR else f"{text[:LONGEST_REPR]}... ({len(text):,} characters)"


def how_to_install(extra: str) -> str:
    """Return how to install the packages of an extra, with or without a checkout."""
    try:
        required = metadata.requires("vidcom2") or []
    except metadata.PackageNotFoundError:  # nothing is installed, and a checkout is on Python's path
        return f'In that checkout of vidcom2, run: pip install -e ".[{extra}]"'
    packages = [each.split(";")[0] for each in required if re.search(f"extra == ['\"]{extra}['\"]", each)]
    return "Run: pip install " + " ".join(f'"{each}"' for each in packages)


def did_you_mean(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return " Did you mean 'vidcom2'?" for a word that is close to a known one, whatever its case; else "".

    Args:
        cutoff: how alike the two must be, from 0 to 1, as in `difflib.get_close_matches`.
    """
    in_lower_case = {name.lower(): name for name in known}
    close = difflib.get_close_matches(str(word).lower(), in_lower_case, n=1, cutoff=cutoff)
    return f" Did you mean {in_lower_case[close[0]]!r}?" if close else ""


def option_name(field: str) -> str:
    """Return the option that sets a field, as it is typed: `--max-new-tokens`."""
    return f"--{field.replace('_', '-')}"


def sentence(text: object) -> str:
    """Return a text that ends in a full stop or a question mark."""
    return f"{text}" if str(text).endswith((".", "?")) else f"{text}."


def one_line(error: object) -> str:
    """Return the text of an error, or another text, without line breaks."""
    return " ".join(str(error).split())
