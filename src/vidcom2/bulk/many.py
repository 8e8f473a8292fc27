"""`answer_many` asks about many videos. Videos are read and preprocessed ahead, and questions answered in batches."""

import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from transformers import PreTrainedModel, ProcessorMixin

from ..asking.arguments import (
    DEMO_WARNING,
    OWN_ARGUMENTS,
    check_generate_arguments,
    check_model,
    checkpoint_of,
    pop_call_settings,
    pop_placement,
)
from ..errors import OptionError, brief
from ..modeling.hosting.in_transformers import CACHE, FORMER_NAME
from ..presets import NUM_FRAMES
from ..video.reading import Video
from .many_in_transformers import TransformersEngine
from .requests import AnsweredRequest, HowToAnswer, VideoRequest, requests_in


def answer_many(
    requests: Iterable[Mapping[str, Any] | VideoRequest],
    model: str | PreTrainedModel | None = None,
    *,
    processor: ProcessorMixin | None = None,
    num_frames: int = NUM_FRAMES,
    max_new_tokens: int = 64,
    batch_size: int = 8,
    workers: int = 2,
    scale_while_reading: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    read: Callable[..., Video] | None = None,
    **arguments: Any,
) -> Generator[AnsweredRequest, None, None]:
    """Ask a model about many videos, and yield each answer as it comes.

    Threads read and preprocess the next videos while the model runs. Prompts of similar length share a call of
    `generate`, so answers come in a different order than requests. Requests are taken as needed. Consecutive requests
    about the same video read it once. A mistake in a request, an unreadable video, too little memory or a bug becomes
    the `error` of that request alone. A batch that does not fit into memory is halved.

    After `torch.manual_seed`, `do_sample=True` gives the same answers to the same requests with any number of workers:
    the model then waits for the videos in the order of the requests. Another `batch_size` or another request before
    them changes the samples, and so does a batch that is halved.

    Args:
        requests: dicts with `video` (a path, a URL, a `Video`, or, with `fps` or `times`, a list of the paths of
            pictures) and `prompt`. They may have an `id` (otherwise their number, from 1), `num_frames`,
            `max_new_tokens`, `chat_template_kwargs` and settings of VidCom² of their own. A path that ends in
            `.watched` is a file of `Watched.save`, which has frames and settings already.
        model: as in `ask`.
        processor: the processor of a loaded model.
        num_frames: how many frames are sampled, evenly in time.
        max_new_tokens: the most tokens that an answer may have.
        batch_size: the most requests in a call of `generate`. Up to four times as many wait encoded, in the model's
            memory.
        workers: threads that read videos. `workers` + `batch_size` videos are in memory at a time.
        scale_while_reading: as in `ask`, for the requests whose video is a file.
        chat_template_kwargs: as in `ask`. Those of a request are added to these, or replace them.
        read: reads a video's frames in place of `read_video`, and raises a ValueError if it cannot. For a list of
            pictures, it is given the list of their paths, and `fps` or `times` by keyword. Several threads call it.
        **arguments: as in `ask`, for all requests.

    Returns:
        A generator. The threads end when it is exhausted or closed.

    Raises:
        CheckpointError: at once, if the model cannot be loaded.
        ValueError: at once, on an argument that is unknown, outside its accepted set, or useless with another, and on
            an id that two requests of a list have; of other iterables, when the second is reached.
    """
    if isinstance(requests, Mapping | VideoRequest | str | PathLike):
        raise OptionError(f"`requests` is {brief(requests)}. Pass a list of requests, or another iterable.")
    asked = requests_in(requests)
    if isinstance(requests, Sequence):  # so that an id that two have is found at once
        asked = iter(list(asked))
    placement = pop_placement(model, arguments)
    settings = pop_call_settings(arguments)
    how = HowToAnswer(
        num_frames=num_frames,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        workers=workers,
        scale_while_reading=scale_while_reading,
        chat_template_kwargs=chat_template_kwargs or {},
    )
    if scale_while_reading and read is not None:
        raise OptionError(
            "`scale_while_reading` is for `read_video`, but `read` is given, which may scale frames itself. Leave one "
            "of them out."
        )
    check_generate_arguments("answer_many", arguments, (*OWN_ARGUMENTS, "streamer", FORMER_NAME, CACHE))
    found = check_model(model, processor, placement, settings)
    if model is None:
        warnings.warn(DEMO_WARNING, UserWarning, stacklevel=2)
    checkpoint, of_calls = checkpoint_of(found, processor, settings, placement.prepare_on)
    engine = TransformersEngine(checkpoint, how, of_calls, arguments, loaded_with=settings)
    return engine.answers(asked, read)
