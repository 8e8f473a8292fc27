"""What the commands and `load_checkpoint` accept, checked before anything takes long: nothing here imports PyTorch,
Transformers or PyAV."""

import operator
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .configuration.compression_settings import SETTING_NAMES, CompressionSettings, checked_setting
from .families import FAMILIES

DRAWN_BY = "vidcom2 explain"  # what its drawings say of themselves
HUB_SECONDS = 10  # how long the Hub may take to say whether it has a checkpoint
# Settings that not all families have, beside those of `CompressionSettings`, with what they accept.
FAMILY_SETTINGS = {name: accepted for family in FAMILIES.values() for name, accepted in family.settings.items()}


class OptionError(ValueError):
    """A value outside its accepted set, or options that do not go together."""


class CheckpointError(ValueError):
    """A checkpoint that is missing, unreadable or of a family that VidCom² does not know."""


def whole_number(name: str, value: Any, error: type[ValueError] = OptionError) -> int:
    """An argument that counts something, also as a number of NumPy. Raises an error of this class on another."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise error(f"`{name}` is {value!r}, but must be a whole number, at least 1.")
    return number


def check_given(name: str, value: str | None, without: str) -> None:
    """An empty string is what the shell makes of a variable that is not set; it does not mean the default.

    Args:
        without: what happens when the option is left out.
    """
    if value is not None and not value.strip():
        raise OptionError(f"`{name}` is {value!r}: empty. Is a shell variable unset? Leave {name} out {without}.")


def check_settings(settings: dict[str, Any]) -> None:
    """Each setting alone, and whether a method that is given reads them.

    Raises:
        OptionError: on an unknown name, a value outside its accepted set, or one that the method does not read.
    """
    unknown = sorted(settings.keys() - {*SETTING_NAMES, *FAMILY_SETTINGS})
    if unknown:
        known = ", ".join((*SETTING_NAMES, *FAMILY_SETTINGS))
        raise OptionError(f"{', '.join(map(repr, unknown))} is no setting of VidCom². They are: {known}.")
    for name, value in settings.items():
        if name in FAMILY_SETTINGS and value not in FAMILY_SETTINGS[name]:
            raise OptionError(f"`{name}` is {value!r}, but must be one of {', '.join(FAMILY_SETTINGS[name])}.")
    of_all = {name: value for name, value in settings.items() if name in SETTING_NAMES}
    try:
        for name, value in of_all.items():
            checked_setting(name, value)
        if "compression_method" in of_all:  # else it is the checkpoint's, and what it reads is known later
            CompressionSettings(**of_all)
    except ValueError as error:
        raise OptionError(str(error)) from None


def import_methods(module: str) -> None:
    """Import a module of the user's, by its name or its file, so that the compression methods in it are known.

    Raises:
        OptionError: if there is no such module, or its import fails.
    """
    path = Path(module).expanduser()
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise OptionError(f"`--import` is {module!r}, but there is no such file.")
    sys.path.insert(0, str(path.parent.resolve()) if is_file else os.getcwd())  # as for `python FILE` and `python -m`
    try:
        imported = import_module(path.stem if is_file else module)
    except Exception as error:  # whatever the user's code raises
        raise OptionError(f"`--import {module}` failed: {type(error).__name__}: {error}") from error
    found = imported.__file__
    if is_file and (found is None or Path(found).resolve() != path.resolve()):
        raise OptionError(f"`--import` is {module!r}, but another module has that name ({found}). Rename the file.")


def check_video_file(source: str) -> None:
    """That a path leads to a file; what is in it is for `read_video`."""
    if not source.startswith(("http://", "https://")) and not Path(source).is_file():
        raise OptionError(f"there is no video file {source!r}. Pass a path or an http(s) URL.")


def check_drawing(output: Path) -> None:
    """That `vidcom2 explain` can write its drawing there."""
    if output.suffix not in (".png", ".html"):
        raise OptionError(f"`--output` is {str(output)!r}, but must end in .png or .html.")
    if not output.parent.is_dir():
        raise OptionError(f"`--output` is {str(output)!r}, but there is no folder {str(output.parent)!r}.")
    if output.is_dir():
        raise OptionError(f"`--output` is {str(output)!r}, but that is a folder. Name a file.")
    if output.exists() and not _is_drawing(output):
        raise OptionError(
            f"`--output` is {str(output)!r}, but that file is no drawing of `vidcom2 explain`, and is not overwritten. "
            "Name another, or remove it."
        )
    if find_spec("matplotlib") is None:
        raise OptionError("the drawing needs matplotlib, which is not installed: pip install matplotlib.")


def _is_drawing(path: Path) -> bool:
    """Whether `vidcom2 explain` made the file, by what it writes near the beginning of each."""
    with written_to(path), path.open("rb") as file:
        return DRAWN_BY.encode() in file.read(4096)


@contextmanager
def written_to(path: Path) -> Iterator[None]:
    """What the file system has against writing there, a full disk or a missing right, as an OptionError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno is None:  # not the system's
            raise
        raise OptionError(f"cannot write {str(path)!r}: {error.strerror}.") from error


def is_out_of_memory(error: Exception) -> bool:
    """PyTorch has a class for it on CUDA; on the CPU and on MPS it is a RuntimeError."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, RuntimeError):
        return False
    in_words = ("DefaultCPUAllocator: can't allocate memory", "MPS backend out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in in_words)


def memory_reason(error: Exception) -> str:
    """What an error of `is_out_of_memory` says, in short."""
    return (str(error).strip() or "no more is free").splitlines()[0]


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def find_checkpoint(name: str, revision: str | None = None) -> str:
    """Where Transformers finds the checkpoint: a folder's path, or the Hub id as it is.

    Transformers asks for a missing repo again and again, half a minute long; here the Hub is asked once.

    Raises:
        CheckpointError: if neither this machine nor the Hub has it, or the Hub cannot be asked.
        OptionError: on a revision of a folder.
    """
    if not name.strip():
        raise CheckpointError(
            f"cannot load the model {name!r}: the name is empty. Name a folder, or a Hub id: org/name."
        )
    folder = Path(name).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise OptionError(f"`revision` is {revision!r}, but the model {name!r} is a folder, which has none.")
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"cannot load the model {name!r}: the folder has no config.json.")
        return str(folder)
    if folder.exists():
        raise CheckpointError(f"cannot load the model {name!r}: it is a file. Name the checkpoint's folder.")
    _ask_the_hub(name, revision)
    return name


def check_hub_id(name: str) -> None:
    """That a name which is no folder could be one of the Hub.

    Raises:
        CheckpointError: if not.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    refused = f"cannot load the model {name!r}: there is no such folder, and "
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise CheckpointError(refused + "it is no Hub id, which reads org/name.") from None
    if "/" not in name:
        raise CheckpointError(refused + "a Hub id has its organisation in front: org/name.")


def _ask_the_hub(name: str, revision: str | None) -> None:
    """That the Hub, or its cache on this machine, has the checkpoint."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    from .hub_calls import TRANSPORT_ERRORS

    def refused(reason: str) -> CheckpointError:
        return CheckpointError(f"cannot load the model {name!r}: there is no such folder, and {reason}")

    check_hub_id(name)
    if isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str):
        return
    try:
        files = HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS).siblings
    except GatedRepoError:
        raise refused("the Hub's repo is gated. Accept its terms there, and log in with `hf auth login`.") from None
    except RepositoryNotFoundError:
        raise refused("the Hub has no such repo, or hides it from you (`hf auth login`). Check the name.") from None
    except RevisionNotFoundError:
        raise refused(f"the Hub's repo has no commit, tag or branch {revision!r}.") from None
    except OfflineModeIsEnabled:
        raise refused(
            "the Hub is not asked, since HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set, and the cache does not have "
            "it. Unset it, or name a folder."
        ) from None
    except HfHubHTTPError as error:
        raise refused(f"the Hub answered {error.response.status_code}. Try again later.") from error
    except TRANSPORT_ERRORS as error:
        raise refused(f"the Hub cannot be reached ({error}). Check the name and the connection.") from error
    if "config.json" not in {file.rfilename for file in files or []}:
        raise refused("the Hub's repo has no config.json: it is not a checkpoint of Transformers.")
