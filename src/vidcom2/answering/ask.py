"""Asking a question about a video, in one call."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import Any, cast, overload

from transformers import PreTrainedModel, ProcessorMixin

from ..checkpoints import Checkpoint
from ..checks import whole_number
from ..configuration.compression_settings import brief
from ..errors import OptionError
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..modeling.methods.compression import VideoCompression
from ..placement import Placement
from ..video.frames import Frames, is_list_of_pictures
from ..video.reading import Video, check_video, read_video
from .arguments import (
    DEMO_WARNING,
    check_generate_arguments,
    check_model,
    checkpoint_of,
    pop_call_settings,
    with_tokenizer,
)
from .chats import Chat, Message, Prompt, is_single, prompts_of
from .comparison import Comparison, run
from .frame_size import size_of_frames
from .generation import compress, encode, generate
from .prompting import check_template_arguments, prepare_inputs


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a question about a video. `str(answer)` is its text.

    Attributes:
        answer: the text.
        prompt_tokens: length of the compressed prompt, as it is in the KV cache after prefill.
        video_tokens: how many of these are tokens of the video.
        full_prompt_tokens, full_video_tokens: the same without compression.
        new_tokens: how many tokens were generated.
        question: the text, or the chat, as it was asked.
        video: the frames that the model saw.
        compression: the tokens that were kept of it.
        measured: what `vidcom2 run` reports; None without `measure=True`.
    """

    answer: str
    model: str
    question: Prompt
    prompt_tokens: int
    video_tokens: int
    full_prompt_tokens: int
    full_video_tokens: int
    new_tokens: int
    video: Video = field(repr=False)
    compression: VideoCompression = field(repr=False)
    measured: Comparison | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.answer


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
    num_frames: int = 32,
    fps: float | None = None,
    times: Sequence[float] | None = None,
    max_new_tokens: int = 64,
    scale_while_reading: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    measure: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    attn_implementation: str | None = None,
    device_map: str | None = None,
    revision: str | None = None,
    **arguments: Any,
) -> Answer | list[Answer]:
    """Read a video, compress it, and ask a model one or several questions about it.

    Args:
        video: a path, an http(s) or file URL, or a `Video`. Or, with `fps` or `times`, a list of the paths of pictures,
            or decoded frames in one of the forms of `Video.from_frames`.
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
        device, dtype, attn_implementation, device_map, revision: how to load a model that is named.
        **arguments: settings of VidCom² (`retention_ratio=0.15`), the checkpoint's own where not given; and arguments
            of `generate`. It decodes greedily unless told `do_sample=True`.

    Returns:
        The answer; to a list of questions, the list of their answers.

    Raises:
        VideoError: if the video cannot be read, or frames are of another shape, dtype or range, or without times.
        CheckpointError: if the model cannot be loaded.
        ValueError: on an argument that is unknown, outside its accepted set, or useless together with another.
    """
    settings = pop_call_settings(arguments)
    placement = Placement(
        device=device,
        device_map=device_map,
        dtype=dtype,
        attn_implementation=attn_implementation,
        revision=revision,
    )
    # Refuse all that can be refused before anything slow starts.
    prompts = prompts_of(question)
    video = _with_times(video, fps, times)
    num_frames = whole_number("num_frames", num_frames)
    max_new_tokens = whole_number("max_new_tokens", max_new_tokens)
    check_generate_arguments("ask", arguments)
    found = check_model(model, processor, placement, settings)
    if processor is not None:
        check_template_arguments(processor, chat_template_kwargs)
    if measure and not isinstance(question, str):
        raise OptionError("`measure=True` measures one text, but `question` is a list. Ask one text, or leave it out.")
    if measure and settings and isinstance(model, PreTrainedModel):
        raise OptionError(
            f"`measure=True` measures the model with its own settings, but {', '.join(map(repr, settings))} is given "
            "for this call. Set it in `model.config` instead."
        )
    if isinstance(video, Video):
        if scale_while_reading:
            raise OptionError("`scale_while_reading` is for files, but `video` is already decoded. Leave it out.")
    elif not scale_while_reading:
        video = read_video(video, num_frames, fps=fps, times=times)
    elif isinstance(video, str | PathLike):  # the model's processor must be known before it is read
        check_video(fspath(video))
    if model is None:
        warnings.warn(DEMO_WARNING, UserWarning, stacklevel=2)
    checkpoint, settings = checkpoint_of(found, processor, settings)
    if processor is None:
        check_template_arguments(checkpoint.processor, chat_template_kwargs)
    if not isinstance(video, Video):
        video = read_video(video, num_frames, size=size_of_frames(checkpoint.processor), fps=fps, times=times)
    of_generate = {"max_new_tokens": max_new_tokens, **arguments}
    answers = _answers(checkpoint, video, prompts, settings, of_generate, chat_template_kwargs)
    if not is_single(question):
        return answers
    if not measure:
        return answers[0]
    measured = run(checkpoint, video, cast(str, question), max_new_tokens, chat_template_kwargs=chat_template_kwargs)
    return replace(answers[0], measured=measured)


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


def _answers(
    checkpoint: Checkpoint,
    video: Video,
    prompts: Sequence[Prompt],
    settings: dict[str, Any],
    arguments: dict[str, Any],
    template_arguments: Mapping[str, Any] | None,
) -> list[Answer]:
    processor: Any = checkpoint.processor
    model = checkpoint.model
    of_call = model.config.compression_settings(**settings)
    arguments = with_tokenizer(arguments, checkpoint)
    features: VidCom2VideoFeatures | None = None
    answers = []
    for prompt in prompts:
        inputs = prepare_inputs(processor, prompt, video, model, template_arguments=template_arguments)
        if features is None:  # encoded here, not in `generate`, so that the answer can say which tokens were kept
            features = compress(model, encode(model, inputs, of_call), of_call)
        inputs.pop("pixel_values_videos")
        new = generate(model, inputs, features, of_call.compression_positions, **arguments)[0]
        is_video = model.model.is_video(inputs["input_ids"])
        video_tokens = len(features.pooler_output[0])
        answers.append(
            Answer(
                answer=processor.decode(new, skip_special_tokens=True),
                model=checkpoint.name,
                question=prompt,
                prompt_tokens=int((~is_video).sum()) + video_tokens,
                video_tokens=video_tokens,
                full_prompt_tokens=is_video.numel(),
                full_video_tokens=int(is_video.sum()),
                new_tokens=len(new),
                video=video,
                compression=features.video_compressions[0],
            )
        )
    return answers
