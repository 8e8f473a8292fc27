"""The requests of a run over many videos: lines of a JSONL file, or the videos of a folder.

Nothing here imports PyTorch.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..checks import FAMILY_SETTINGS, check_settings, in_full, is_watched, whole_number
from ..configuration.compression_settings import SETTING_NAMES, checked_setting
from ..errors import ALIKE, OptionError, brief, did_you_mean, reason_of, sentence
from ..judging.options import choices_of
from ..judging.questions import check_text, id_of, prompt_of, video_from
from ..records.jsonl import json_object, numbered_lines
from ..records.run_record import RequestStamp, stamp_of

if TYPE_CHECKING:
    from ..video.reading import Video

VIDEO_SUFFIXES = (
    *(".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".vob"),
    *(".webm", ".wmv"),
)
TEMPLATE = "chat_template_kwargs"
OF_TEMPLATES = ("enable_thinking", "add_generation_prompt", "continue_final_message")
NAMES = ("num_frames", "max_new_tokens", TEMPLATE, *SETTING_NAMES)  # names that a user's own keys must not take
OF_THE_MODEL = (*FAMILY_SETTINGS, "spatial_pool_mode")  # settings that a single call cannot change


@dataclass(frozen=True, kw_only=True)
class HowToAnswer:
    """The arguments of `answer_many` that hold for all requests of a run, whatever answers them."""

    num_frames: int
    max_new_tokens: int
    batch_size: int
    workers: int
    scale_while_reading: bool
    chat_template_kwargs: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name in ("num_frames", "max_new_tokens", "batch_size", "workers"):
            whole_number(name, getattr(self, name))


@dataclass(frozen=True, eq=False)
class VideoRequest:
    """A question about a video, one of many.

    Attributes:
        id: its own id, or its number, from 1.
        video: a path, absolute or from the current folder, of a video or of a watched one, an http(s) URL, a list of
            the paths of pictures, or what `read_video` returned.
        prompt: what the model reads.
        num_frames, max_new_tokens: those of this request; None means those of the run.
        chat_template_kwargs: values for the chat template, beside those of the run.
        fps, times: when the pictures of a list are shown, as in `Video.from_frames`.
        settings: the settings of `CompressionSettings` that this request changes.
        given: the request as the caller or the line of the file has it, with the user's own keys.
        problem: why it cannot be asked; None if no reason is known.
    """

    id: str
    video: str | list[str] | Video = ""
    prompt: str = ""
    num_frames: int | None = None
    max_new_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    fps: float | None = None
    times: list[float] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def stamp(self) -> RequestStamp:
        """Identifies the request that was answered, with its video file as it is now."""
        return stamp_of(self.given, self.video)

    def read_by(self, read: Callable[..., Video], num_frames: int) -> Video:
        """Return the video, read by `read_video` or a function like it if it is not decoded yet.

        Args:
            read: takes a path or a URL and the number of frames. Of a list of pictures it takes the list of their
                paths, and by keyword `fps` or `times`, whichever the request gives.
        """
        num_frames = self.num_frames or num_frames
        if isinstance(self.video, str):
            return read(self.video, num_frames)
        if isinstance(self.video, list):
            when = {"fps": self.fps, "times": self.times}
            return read(self.video, num_frames, **{name: each for name, each in when.items() if each is not None})
        return self.video


@dataclass(frozen=True)
class AnsweredRequest:
    """A request with its answer, or with the reason why there is none.

    Attributes:
        answer: the text; None after an error.
        error: why there is no answer, in one line; None if there is one.
        prompt_tokens, video_tokens, full_prompt_tokens, full_video_tokens, new_tokens: as in `Answer`.
        lost_frames: how many frames of the file could not be decoded.
        refused: whether the model or the method refused the request. Asking it again would fail the same way.
    """

    request: VideoRequest
    answer: str | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    video_tokens: int | None = None
    full_prompt_tokens: int | None = None
    full_video_tokens: int | None = None
    new_tokens: int | None = None
    lost_frames: int | None = None
    refused: bool = False

    @classmethod
    def without(cls, request: VideoRequest, error: Exception, of_model: bool = False) -> AnsweredRequest:
        """Return a request that this error leaves without an answer. Raises the error itself where `reason_of` does.

        Args:
            of_model: whether the model or the method raised it, and not what read and prepared the video.
        """
        return cls(request, error=reason_of(error), refused=of_model and isinstance(error, ValueError))

    @property
    def row(self) -> dict[str, Any]:
        """The row that `vidcom2 run` writes: `id`, `given`, and either `error` or all the other attributes."""
        own = ("request", "refused")
        found = {name: value for name, value in vars(self).items() if name not in own and value is not None}
        return {"id": self.request.id, "given": self.request.given, **found}


def request_of(given: Mapping[str, Any], number: int, folder: Path = Path()) -> VideoRequest:
    """Return the request that a line or a dict describes. If something is wrong with it, `problem` says what.

    Args:
        given: `video`, and `prompt` or `question`. Optional keys are `id`, `choices` (shown below the question),
            `num_frames`, `max_new_tokens`, `chat_template_kwargs`, settings of `CompressionSettings`, and `fps` or
            `times` beside a list of pictures. Other keys are kept as your own; a near miss of a known key is refused.
        number: the id of a request that has none.
        folder: the folder that paths are relative to.
    """
    known = str(number)
    try:
        if not isinstance(given, Mapping):
            raise OptionError(f"it is {brief(given)}, but must be a dict with `video` and `prompt`")
        given = _plain(given)
        known = id_of(given, number)
        if "prompt" in given and "question" in given:
            raise OptionError("it has both `prompt` and `question`. Give only one")
        asked = "question" if "question" in given else "prompt"
        _check_text(given, asked)
        options = choices_of(given)
        video = given.get("video")
        of_pictures: dict[str, Any] = {}
        if isinstance(video, list | tuple):
            video, of_pictures = _pictures(given, folder)
        else:
            if not _is_decoded(video):
                _check_text(given, "video")
                video = video_from(given["video"], folder)
            for name in ("fps", "times"):
                if given.get(name) is not None:
                    raise OptionError(
                        f"`{name}` is for a list of pictures, but `video` has its own times. Leave it out"
                    )
            if is_watched(video) and given.get("num_frames") is not None:
                raise OptionError("`num_frames` is for a video, but a watched one has no frames left. Leave it out")
        return VideoRequest(
            id=known,
            video=cast("str | list[str] | Video", video),
            **of_pictures,
            prompt=prompt_of(given[asked], options.texts if options else None),
            num_frames=_count(given, "num_frames"),
            max_new_tokens=_count(given, "max_new_tokens"),
            chat_template_kwargs=_template_arguments(given),
            settings=_settings(given),
            given=given,
        )
    except Exception as error:
        given = given if isinstance(given, dict) else {"request": given}
        return VideoRequest(known, given=given, problem=f"the request cannot be asked: {sentence(reason_of(error))}")


def requests_in(given: Iterable[Mapping[str, Any] | VideoRequest]) -> Iterator[VideoRequest]:
    """Yield each item as a `VideoRequest`. Raises an OptionError on the second of one id."""
    seen = set()
    for number, each in enumerate(given, start=1):
        request = each if isinstance(each, VideoRequest) else request_of(each, number)
        if request.id in seen:
            which = f"{request.id!r} (one without an `id` has its number)"
            raise OptionError(f"two requests have the id {which}. Give each its own.")
        seen.add(request.id)
        yield request


def read_requests(path: Path) -> list[VideoRequest]:
    """Read the requests of a JSONL file, which has a JSON object on each line. Empty lines are skipped. A line that is
    not such an object, or lacks something, becomes a request with a `problem`. Without an id of its own, its id is its
    line number, as in "4", or "line 4" if another request has that id.

    Raises:
        OptionError: on a file that cannot be read or is empty, and on an id that two lines have.
    """

    def request_in(line: str, number: int) -> VideoRequest:
        try:
            return request_of(json_object(line), number, path.parent)
        except OptionError as error:
            problem = f"the request cannot be asked: {sentence(error)}"
            return VideoRequest(str(number), given={"line": line}, problem=problem)

    requests = [request_in(line, number) for number, line in numbered_lines(path, "requests")]
    if not requests:
        raise OptionError(f"{str(path)!r} holds no request. Write one JSON object with `video` and `prompt` per line.")
    return list(requests_in(_with_free_ids(requests)))


def _with_free_ids(requests: Sequence[VideoRequest]) -> list[VideoRequest]:
    """Return the requests, where those that cannot be asked and have no id of their own are given a free one."""
    nameless = [each.problem is not None and str(each.given.get("id")) != each.id for each in requests]
    taken = {each.id for each, is_nameless in zip(requests, nameless) if not is_nameless}
    found = []
    for each, is_nameless in zip(requests, nameless):
        name = each.id
        while is_nameless and name in taken:
            name = f"line {name}"
        taken.add(name)
        found.append(replace(each, id=name))
    return found


def requests_of_folder(folder: Path, prompt: str) -> tuple[list[VideoRequest], dict[str, list[str]]]:
    """Return the same question about each video of a folder and its subfolders, sorted by path; and what is left out,
    as lists of names by kind. Hidden files are skipped.

    A file with the suffix of a video counts as one even if it cannot be read, so that its row says why. Other files are
    opened. The id of a request, and the video that it was given, is the path in the folder. Its `video` is absolute,
    because a name in the folder may begin with `~`, which in a relative path means a home folder.

    Raises:
        OptionError: if there is no such folder, or no video in it.
    """
    if not folder.is_dir():
        raise OptionError(f"`--videos` is {str(folder)!r}, but there is no such folder. For one file pass --video.")
    paths = sorted(folder.rglob("*"))
    kinds: dict[str, dict[str, None]] = {}  # names by kind; a folder that cannot be entered is found with each entry
    for path in paths:
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            kind, entry = _kind_of(path)
            kinds.setdefault(kind, {})[entry.relative_to(folder).as_posix()] = None
    kinds.pop("folders", None)
    found = {kind: list(names) for kind, names in kinds.items()}
    names = found.pop("videos", [])
    if not names:
        held = " and ".join(f"{len(others):,} {kind}" for kind, others in found.items())
        rest = f"holds no video, but {held or 'hidden files or empty folders'}" if paths else "is empty"
        raise OptionError(f"{str(folder)!r} {rest}. Name a folder with videos.")
    requests = [
        replace(
            request_of({"id": name, "video": name, "prompt": prompt}, i, folder), video=str((folder / name).absolute())
        )
        for i, name in enumerate(names, start=1)
    ]
    return requests, found


def _kind_of(path: Path) -> tuple[str, Path]:
    """Return what an entry of a folder of videos is, and the entry, or else its folder, if that cannot be entered."""
    from ..video.file import is_video

    named_so = path.suffix.lower() in VIDEO_SUFFIXES
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if os.path.islink(path):
            return "links that lead nowhere", path
        is_locked = isinstance(error, PermissionError)
        return ("folders that cannot be read", path.parent) if is_locked else ("files that cannot be read", path)
    if stat.S_ISREG(mode):
        kind = "videos" if named_so or is_video(str(path.absolute())) else "files that hold no video"
    elif not stat.S_ISDIR(mode):
        kind = "pipes or devices"
    elif os.path.islink(path):
        kind = "links to folders"
    elif not os.access(path, os.R_OK | os.X_OK):
        kind = "folders that cannot be read"
    else:
        kind = "folders named like videos" if named_so else "folders"
    return kind, path


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request in which NumPy's integers, a path and a tuple of options are what a line of JSON would hold."""
    is_number = {name: isinstance(each, Integral) and not isinstance(each, bool) for name, each in given.items()}
    given = {name: int(each) if is_number[name] else each for name, each in given.items()}
    if isinstance(given.get("video"), PathLike):
        given["video"] = fspath(given["video"])
    if isinstance(given.get("choices"), tuple):
        given["choices"] = list(given["choices"])
    return given


def _is_decoded(video: object) -> bool:
    if video is None or isinstance(video, str):  # so that no library is imported for these
        return False
    from ..video.reading import Video

    return isinstance(video, Video)


def _check_text(given: Mapping[str, Any], key: str) -> None:
    """Check that the value of a key is a text, and not a blank one. Raises an OptionError if not."""
    value = given.get(key)
    if isinstance(value, str) and not value.strip():
        raise OptionError(f"`{key}` is {brief(value)}, but must not be blank")
    check_text(given, key)


def _pictures(given: dict[str, Any], folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the paths of a list of pictures, and the keys that say when they are shown. Raises a ValueError on bad
    ones."""
    from ..video.frames import is_list_of_pictures, on_a_clock

    if not is_list_of_pictures(given["video"]):
        raise OptionError(f"`video` is {brief(given['video'])}, but must be a text or a list of the paths of pictures")
    names = given["video"] = [fspath(each) for each in given["video"]]
    when = {name: given[name] for name in ("fps", "times") if given.get(name) is not None}
    on_a_clock(len(names), when.get("fps"), when.get("times"), None)
    if "times" in when:
        when["times"] = [float(each) for each in when["times"]]  # arrays cannot be compared with those of the next
    return [video_from(name, folder) for name in names], when


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a request gives. Null means the run's own. Raises an OptionError on a bad one."""
    for name in OF_THE_MODEL:
        if given.get(name) is not None:
            raise OptionError(f"`{name}` is {brief(given[name])}, but belongs to the model. Set it for the whole run")
    for name in ("do_sample", "temperature"):
        if given.get(name):
            raise OptionError(
                f"`{name}` is {brief(given[name])}, but a request cannot ask for samples. Leave it out, or pass it to "
                "`answer_many` for all requests"
            )
    for name in (str(each) for each in given if each not in (*NAMES, *OF_THE_MODEL)):
        if _means_a_setting(name, given[name]) or name.startswith(("compression_", "retention_", "max_video")):
            hint = did_you_mean(in_full(name), SETTING_NAMES)
            raise OptionError(
                f"{name!r} is not a setting of VidCom².{hint} The settings are: {', '.join(SETTING_NAMES)}. Give a key "
                "of your own another name."
            )
        hint = did_you_mean(name, NAMES, ALIKE)
        if hint:
            raise OptionError(f"{name!r} has no meaning here.{hint}")
    settings = {name: given[name] for name in SETTING_NAMES if given.get(name) is not None}
    check_settings(settings)
    return settings


def _means_a_setting(name: str, value: Any) -> bool:
    """Tell whether a key that is short for a setting also has a value of it. Others are the user's own."""
    setting = in_full(name)
    if setting == name or value is None:
        return False
    try:
        checked_setting(setting, value)
    except ValueError:
        return False
    return True


def _template_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `chat_template_kwargs` that a request gives. Null means the run's own, also for one of them. Raises an
    OptionError on others, and on a key that belongs among them."""
    for name, each in ((str(name), each) for name, each in given.items()):
        if did_you_mean(name, OF_TEMPLATES, ALIKE):
            inner = json.dumps({name: each}, default=str)
            raise OptionError(f'{name!r} has no meaning here. Did you mean "{TEMPLATE}": {inner}?')
        if name.startswith("chat_template") and name != TEMPLATE:
            raise OptionError(f"{name!r} has no meaning here. Did you mean {TEMPLATE!r}?")
    value = given.get(TEMPLATE)
    if value is not None and not isinstance(value, Mapping):
        raise OptionError(
            f'`{TEMPLATE}` is {brief(value)}, but must be an object, such as {{"enable_thinking": false}}'
        )
    return {name: each for name, each in (value or {}).items() if each is not None}


def _count(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    return None if value is None else whole_number(name, value)
