"""Checks of the arguments of commands and Python functions. They import neither PyTorch, Transformers nor PyAV, so that
a mistake is reported before anything slow starts."""

import operator
import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from .configuration.compression_settings import (
    COMPRESSION_METHODS,
    SETTING_NAMES,
    SHORT_NAMES,
    CompressionSettings,
    checked_setting,
)
from .errors import OptionError, brief, did_you_mean
from .families.table import FAMILIES

# Settings that only some families have, in addition to `CompressionSettings`, with the values they accept.
FAMILY_SETTINGS = {name: accepted for family in FAMILIES.values() for name, accepted in family.settings.items()}
WATCHED = ".watched"  # the ending of what `vidcom2 watch` writes


def whole_number(name: str, value: Any, error: type[ValueError] = OptionError) -> int:
    """Return a count as an int; it may be an integer of NumPy. Raises `error` if it is not a whole number >= 1."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise error(f"`{name}` is {brief(value)}, but must be a whole number, at least 1.")
    return number


def check_given(name: str, value: str | None, without: str) -> None:
    """Refuse an empty string: the shell passes one for a variable that is not set, so it does not mean the default.

    Args:
        without: what happens when the option is left out, for the error.

    Raises:
        OptionError: if the value is empty or blank.
    """
    if value is not None and not value.strip():
        raise OptionError(f"`{name}` is {value!r}: empty. Is a shell variable unset? Leave {name} out {without}.")


def check_settings(settings: dict[str, Any], typed: Mapping[str, str] | None = None) -> None:
    """Check each setting on its own, and that the compression method reads them if one is given.

    Args:
        typed: by what other name the user gave a setting, such as `--against` for `compression_method`.

    Raises:
        OptionError: on an unknown name, a value outside its accepted set, or one that the method does not read.
    """
    unknown = sorted(settings.keys() - {*SETTING_NAMES, *FAMILY_SETTINGS})
    if unknown:
        raise OptionError(f"{', '.join(map(repr, unknown))} is not a setting of VidCom².{settings_hint(unknown[0])}")
    for name, value in settings.items():
        if name in FAMILY_SETTINGS and value not in FAMILY_SETTINGS[name]:
            raise OptionError(f"`{name}` is {brief(value)}, but must be one of {', '.join(FAMILY_SETTINGS[name])}.")
    of_all = {name: value for name, value in settings.items() if name in SETTING_NAMES}
    try:
        for name, value in of_all.items():
            checked_setting(name, value)
        if "compression_method" in of_all:  # otherwise the checkpoint names it, and this is checked on loading
            CompressionSettings(**of_all)
    except ValueError as error:
        method, message = settings.get("compression_method"), str(error)
        for name, given in (typed or {}).items():
            if message.startswith(f"`{name}`"):  # the option may have another default than the setting, or none
                message = re.sub(r" The default is \S+\.", "", message)
            message = message.replace(f"`{name}`", f"`{given}`")
        raise OptionError(message + ("" if str(method) in COMPRESSION_METHODS else method_hint(method))) from None


def settings_hint(name: object, others: Iterable[str] = ()) -> str:
    """Return what a name that is no setting may have meant, and which settings there are, as sentences.

    Args:
        others: names that it may have meant besides settings.
    """
    settings = (*SETTING_NAMES, *FAMILY_SETTINGS)
    return f"{did_you_mean(in_full(str(name)), (*settings, *others))} The settings are: {', '.join(settings)}."


def in_full(name: str) -> str:
    """Return the setting that `ratio`, `method` or `compression_ratio` is short for; any other name as it is."""
    return SHORT_NAMES.get(name.lower().removeprefix("compression_"), name)


def method_hint(name: object) -> str:
    """Return " Did you mean 'dycoke'?" for a name that is close to a method's; else ""."""
    return "" if name is None else did_you_mean(name, COMPRESSION_METHODS)


def video_pixels(size: str) -> tuple[int, int]:
    """Return the (width, height) that `--video-size` stands for. Raises an OptionError if it is none."""
    match = re.fullmatch(r"(\d+)x(\d+)", size)
    width, height = map(int, match.groups()) if match else (0, 0)
    if width < 32 or height < 32 or width % 2 or height % 2:
        raise OptionError(f"`--video-size` is {size!r}, but must be WIDTHxHEIGHT, even and at least 32, as in 640x360.")
    return width, height


def import_methods(module: str) -> None:
    """Import a module of the user's, by name or file, so that it registers its compression methods.

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
    except Exception as error:  # the user's code may raise anything
        raise OptionError(f"`--import {module}` failed: {type(error).__name__}: {error}") from error
    found = imported.__file__
    if is_file and (found is None or Path(found).resolve() != path.resolve()):
        raise OptionError(f"`--import` is {module!r}, but another module has that name ({found}). Rename the file.")


def local_path(source: str) -> str | None:
    """Return the path that a video's name means: `~` is the home folder, and a file URL names a file of this machine.
    None for an http(s) URL."""
    scheme, found, _ = source.partition("://")
    if found and scheme.lower() in ("http", "https"):
        return None
    if source[:6].lower() == "file:/":  # RFC 8089 allows one slash, and `Path` makes one of three
        return url2pathname(source[5:].removeprefix("//localhost").removeprefix("//"))
    try:
        return str(Path(source).expanduser()) if source.startswith("~") else source
    except RuntimeError:  # `~name` of a user who does not exist may be the name of a file
        return source


def foreign_scheme(source: str) -> str | None:
    """Return the scheme of a URL that no video is read from, such as rtsp; None for other URLs and for paths."""
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]+(?=://)", source)
    return scheme[0] if scheme and scheme[0].lower() not in ("http", "https", "file") else None


def is_watched(source: object) -> bool:
    """Tell whether a video is a file that `vidcom2 watch` wrote, which its ending says."""
    return isinstance(source, str) and source.endswith(WATCHED)


def compressed_already(path: object) -> str:
    """Return why a watched video cannot be compressed again."""
    return f"{str(path)!r} is a watched video, which has been compressed. Name the video that it was made of."


def check_watched_target(path: Path) -> None:
    """Check, before a video is watched, that it can be written there. Raises an OptionError if it cannot."""
    if not is_watched(path.name):  # so that no video is written over, either
        raise OptionError(f"the file to write is {str(path)!r}, but its name must end in {WATCHED!r}.")
    if not path.parent.is_dir():
        raise OptionError(f"there is no folder {str(path.parent)!r} to write in. Make it, or name another file.")


def new_output(given: Path | None, video: str | Path, ending: str) -> Path:
    """Return the file that a command writes: the given one, which must not exist, or one named after the video, in the
    current folder, with a number if that name is taken.

    Raises:
        OptionError: if the given file exists.
    """
    if given is not None and given.is_file():
        raise OptionError(
            f"`--output` is {str(given)!r}, but that file exists, and nothing is overwritten. Name another, or leave "
            "--output out for a free name."
        )
    stem = Path(urlsplit(str(video)).path).stem
    names = (Path(f"{stem}{'' if number == 1 else f'-{number}'}{ending}") for number in count(1))
    return given or next(name for name in names if not name.exists())


def path_of_watched(source: str) -> Path:
    """Return the path of a watched video. Raises an OptionError on a URL."""
    path = local_path(source)
    if path is None:
        raise OptionError(f"{source!r} is a watched video on the web. Download it, and pass its path.")
    return Path(path)


def check_video_file(source: str) -> None:
    """Check that a path leads to a file; `read_video` checks its content. Raises an OptionError if it does not."""
    path = local_path(source)
    if path is not None and not Path(path).is_file():
        raise OptionError(no_video_file(source, path))


def no_video_file(source: str, path: str) -> str:
    """Return the error for a path that leads to no file, as sentences."""
    if Path(path).is_dir():
        return f"{source!r} is a folder. Pass a video file in it. `vidcom2 run --videos` asks about all of them."
    return f"there is no video file {source!r}. Pass a path or an http(s) URL."
