"""Asking a question about a video, in one call; and watching a video, to ask many."""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast, overload

from huggingface_hub.utils import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from ..checks import WATCHED, is_watched, settings_hint, whole_number
from ..errors import OptionError, brief
from ..loading.placement import Placement
from ..presets import NUM_FRAMES
from ..records.fingerprints import stamped
from ..video.frames import Frames, is_list_of_pictures
from ..video.reading import Progress, Video, check_video, read_video
from .answer import Answer
from .arguments import (
    DEMO_WARNING,
    check_generate_arguments,
    check_model,
    checkpoint_of,
    pop_call_settings,
    pop_placement,
)
from .chats import Chat, Message, Prompt, is_single, prompts_of
from .comparison import compare_answers
from .frame_size import size_of_frames
from .prompting import check_template_arguments
from .watched import Watched, load_watched_file, watch_frames
from .watched_file import read_header

SECONDS_UNSEEN = 2.0  # a bar appears when reading takes longer


@overload
def ask(  # pyright: ignore[reportOverlappingOverload]  (a text is a sequence of texts, too)
    video: str | PathLike[str] | Video | Frames,
    question: str | Sequence[Message],
    model: str | PreTrainedModel | None = None,
    **arguments: Any,
) -> Answer: ...
@overload
def ask(
    video: str | PathLike[str] | Video | Frames,
    question: Sequence[str] | Sequence[Chat],
    model: str | PreTrainedModel | None = None,
    **arguments: Any,
) -> list[Answer]: ...
def ask(
    video: str | PathLike[str] | Video | Frames,
    question: Prompt | Sequence[Prompt],
    model: str | PreTrainedModel | None = None,
    *,
    processor: ProcessorMixin | None = None,
    num_frames: int = NUM_FRAMES,
    fps: float | None = None,
    times: Sequence[float] | None = None,
    max_new_tokens: int = 64,
    scale_while_reading: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    measure: bool = False,
    progress: bool = True,
    **arguments: Any,
) -> Answer | list[Answer]:
    """Read a video, compress it, and ask a model one or several questions about it.

    Args:
        video: a path, an http(s) or file URL, or a `Video`; or a file that `Watched.save` wrote. Or, with `fps` or
            `times`, a list of the paths of pictures, or decoded frames in one of the forms of `Video.from_frames`.
        question: a text; or a chat, which is a list of messages; or a list of texts and chats, which are asked one
            after the other about a video that is encoded once. In a chat `{"type": "video"}` stands for the video.
            Without it the video comes before the user's first text. The model continues a chat that ends with words of
            the assistant, and the answer has the new words only.
        model: a Hub id or a folder, which may hold a stock checkpoint. Or a loaded VidCom² model, which saves loading
            it for each question. None means the bundled toy model.
        processor: the processor of a loaded model.
        num_frames: how many frames are sampled, evenly in time. All frames of a `Video`, or decoded frames, are used.
        fps, times: when decoded frames or pictures are shown, as in `Video.from_frames`.
        max_new_tokens: the most tokens that an answer may have.
        scale_while_reading: scale the frames of a file to the size that the processor wants while they are read, where
            it would make them smaller. This saves memory and time, but pixels differ a little from the processor's.
        chat_template_kwargs: values for the model's chat template, such as `{"enable_thinking": False}`.
        measure: answer again with and without compression, and measure both, as `vidcom2 run` does. These answers are
            greedy, whatever the arguments of `generate`.
        progress: whether a bar on the terminal shows how far a long video is read.
        **arguments: how to load a model that is named, by the fields of `Placement` (`device="cpu"`, `dtype`,
            `attn_implementation`, `device_map`, `revision`); `prepare_on="cpu"`, to prepare frames there whatever holds
            the model; settings of VidCom² (`retention_ratio=0.15`), the checkpoint's own where not given; and arguments
            of `generate`, which is greedy unless told `do_sample=True`.

    Returns:
        The answer; to a list of questions, the list of their answers.

    Raises:
        VideoError: if the video cannot be read, or frames are of another shape, dtype or range, or without times.
        CheckpointError: if the model cannot be loaded.
        ValueError: on an argument that is unknown, outside its accepted set, or useless together with another.
    """
    placement = pop_placement(model, arguments)
    settings = pop_call_settings(arguments)
    # Refuse all that can be refused before anything slow starts.
    prompts = prompts_of(question)
    max_new_tokens = whole_number("max_new_tokens", max_new_tokens)
    check_generate_arguments("ask", arguments)
    if measure and not isinstance(question, str):
        raise OptionError("`measure=True` measures one text, but `question` is a list. Ask one text, or leave it out.")
    if measure and settings and isinstance(model, PreTrainedModel):
        raise OptionError(
            f"`measure=True` measures the model with its own settings, but {', '.join(map(repr, settings))} is given "
            "for this call. Set it in `model.config` instead."
        )
    frames = {"num_frames": num_frames, "fps": fps, "times": times, "scale_while_reading": scale_while_reading}
    if isinstance(video, str | PathLike) and is_watched(fspath(video)):
        for name, value in {**frames, "measure": measure}.items():
            if value not in (None, False, NUM_FRAMES):
                raise OptionError(
                    f"`{name}` needs the frames of a video, but a watched one has none left. Leave it out."
                )
        watched = _watched_in(video, model, processor, placement, settings)
    else:
        watched = _watch(video, model, processor, placement, settings, chat_template_kwargs, progress, **frames)
    answers = watched.answers(prompts, {"max_new_tokens": max_new_tokens, **arguments}, chat_template_kwargs)
    if not is_single(question):
        return answers
    if measure:
        answers[0].measured = compare_answers(
            watched.checkpoint,
            cast(Video, watched.video),
            cast(str, question),
            max_new_tokens,
            chat_template_kwargs=chat_template_kwargs,
        )
    return answers[0]


def watch(
    video: str | PathLike[str] | Video | Frames,
    model: str | PreTrainedModel | None = None,
    *,
    processor: ProcessorMixin | None = None,
    num_frames: int = NUM_FRAMES,
    fps: float | None = None,
    times: Sequence[float] | None = None,
    scale_while_reading: bool = False,
    progress: bool = True,
    **arguments: Any,
) -> Watched:
    """Read, encode and compress a video once, to ask about it many times.

    `watched.ask` answers as `ask` does. `watched.prefill()` also runs the language model over the video once, and
    `watched.save` writes a file that `load_watched` reads.

    Args:
        video: as in `ask`, like all arguments that are not named here.
        **arguments: how to load a model that is named, as in `ask`; and settings of VidCom² (`retention_ratio=0.15`),
            the checkpoint's own where not given.

    Raises:
        VideoError, CheckpointError, ValueError: as `ask` does.
    """
    placement = Placement.popped_from(arguments)
    settings = _settings_alone("watch", arguments)
    frames = {"num_frames": num_frames, "fps": fps, "times": times, "scale_while_reading": scale_while_reading}
    return _watch(video, model, processor, placement, settings, None, progress, **frames)


def load_watched(
    path: str | PathLike[str],
    model: str | PreTrainedModel | None = None,
    *,
    processor: ProcessorMixin | None = None,
    **arguments: Any,
) -> Watched:
    """Load a video that `Watched.save` wrote.

    Args:
        path: the file.
        model, processor: the model that watched the video, as in `ask`. Its language model may have been tuned since.
        **arguments: how to load a model that is named, as in `ask`; and settings that the video must have been watched
            with. Others of its settings may be anything.

    Raises:
        OptionError: on a file that is damaged, of another version of vidcom2, of another model or with other settings,
            or whose video has changed since.
        CheckpointError: if the model cannot be loaded.
    """
    placement = Placement.popped_from(arguments)
    return _watched_in(path, model, processor, placement, _settings_alone("load_watched", arguments))


def _watched_in(
    path: str | PathLike[str],
    model: str | PreTrainedModel | None,
    processor: ProcessorMixin | None,
    placement: Placement,
    asked: dict[str, Any],
) -> Watched:
    """Do what `load_watched` does."""
    file = Path(path)
    if not is_watched(file.name):
        raise OptionError(
            f"{str(path)!r} is no watched video, whose name ends in {WATCHED!r}. `vidcom2.watch` watches a video, and "
            "`save` of what it returns writes such a file."
        )
    header = read_header(file)  # refuses a damaged file before a model is loaded for it
    found = check_model(model, processor, placement, asked)
    checkpoint, _ = checkpoint_of(found, processor, dict(asked), placement.prepare_on)
    return load_watched_file(file, header, checkpoint, asked)


def _settings_alone(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the settings among a function's arguments. Raises an OptionError on anything else."""
    settings = pop_call_settings(arguments)
    for name in arguments:
        raise OptionError(
            f"`{name}` is neither an argument of `{function}` nor a setting of VidCom². Arguments of `generate` go to "
            f"`ask` of what it returns.{settings_hint(name)}"
        )
    return settings


def _watch(
    video: Any,
    model: str | PreTrainedModel | None,
    processor: ProcessorMixin | None,
    placement: Placement,
    settings: dict[str, Any],
    template_arguments: Mapping[str, Any] | None,
    progress: bool,
    *,
    num_frames: Any,
    fps: Any,
    times: Any,
    scale_while_reading: Any,
) -> Watched:
    """Do what `watch` does. The arguments for the chat template are checked as soon as the processor is known."""
    source = stamped(video)
    video = _with_times(video, fps, times)
    num_frames = whole_number("num_frames", num_frames)
    found = check_model(model, processor, placement, settings)
    if processor is not None:
        check_template_arguments(processor, template_arguments)
    if isinstance(video, Video):
        if scale_while_reading:
            raise OptionError("`scale_while_reading` is for files, but `video` is already decoded. Leave it out.")
    elif not scale_while_reading:
        with _bar(progress) as bar:
            video = read_video(video, num_frames, bar, fps=fps, times=times)
    elif isinstance(video, str | PathLike):  # the model's processor must be known before it is read
        check_video(fspath(video))
    if model is None:
        warnings.warn(DEMO_WARNING, UserWarning, stacklevel=3)
    checkpoint, settings = checkpoint_of(found, processor, settings, placement.prepare_on)
    if processor is None:
        check_template_arguments(checkpoint.processor, template_arguments)
    if not isinstance(video, Video):
        size = size_of_frames(checkpoint.processor)
        with _bar(progress) as bar:
            video = read_video(video, num_frames, bar, size=size, fps=fps, times=times)
    return watch_frames(checkpoint, video, settings, source)


@contextmanager
def _bar(wanted: bool) -> Iterator[Progress]:
    """Show on a terminal how far a video is read, if that takes longer than SECONDS_UNSEEN."""
    hidden = not wanted or not sys.stderr.isatty()
    with tqdm(unit="", delay=SECONDS_UNSEEN, leave=False, disable=hidden) as bar:

        def show(what: str, done: float, total: float | None) -> None:
            bar.desc, bar.total = what, total
            bar.update(done - bar.n)

        yield show


def _with_times(video: Any, fps: float | None, times: Sequence[float] | None) -> Any:
    """A path, a URL, a list of pictures or a `Video` as it is, and decoded frames as a `Video`."""
    if is_list_of_pictures(video):
        return video
    if isinstance(video, str | PathLike | Video):
        for name, value in (("fps", fps), ("times", times)):
            if value is not None:
                raise OptionError(f"`{name}` is for decoded frames, but `video` has its own times. Leave it out.")
        return video
    if not (isinstance(video, list | tuple) or hasattr(video, "__array__")):
        raise OptionError(
            f"`video` is {brief(video)}, but must be a path, an http(s) or file URL, a `Video`, a list of the paths of "
            "pictures, or decoded frames: an array, a tensor or a list of images. Write the bytes of a file into a "
            "file, and pass its path."
        )
    return Video.from_frames(video, fps=fps, times=times)
