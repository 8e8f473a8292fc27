"""Asking a question about a video, in one call."""

import warnings
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

from transformers import PreTrainedModel, ProcessorMixin

from ..checkpoints import Checkpoint
from ..checks import whole_number
from ..errors import OptionError
from ..modeling.methods.video_compression import VideoCompression
from ..placement import Placement
from ..video.reading import Video, read_video
from .arguments import (
    DEMO_WARNING,
    check_generate_arguments,
    check_model,
    checkpoint_of,
    pop_call_settings,
    with_tokenizer,
)
from .comparison import Comparison, run
from .generation import compress, encode, generate
from .prompting import prepare_inputs


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a question about a video. `str(answer)` is its text.

    Attributes:
        answer: the text.
        prompt_tokens: length of the compressed prompt, as it is in the KV cache after prefill.
        video_tokens: how many of these are tokens of the video.
        full_prompt_tokens, full_video_tokens: the same without compression.
        new_tokens: how many tokens were generated.
        video: the frames that were read from the file.
        compression: the tokens that were kept of it.
        measured: what `vidcom2 run` reports; None without `measure=True`.
    """

    answer: str
    model: str
    question: str
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


def ask(
    video: str | PathLike[str] | Video,
    question: str,
    model: str | PreTrainedModel | None = None,
    *,
    processor: ProcessorMixin | None = None,
    num_frames: int = 32,
    max_new_tokens: int = 64,
    measure: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    attn_implementation: str | None = None,
    device_map: str | None = None,
    revision: str | None = None,
    **arguments: Any,
) -> Answer:
    """Read a video, compress it, and ask a model a question about it.

    Args:
        video: a path, an http(s) URL, or what `read_video` returned.
        model: a Hub id or a folder, which may hold a stock checkpoint. Or a loaded VidCom² model, which saves loading
            it for each question. None means the bundled toy model.
        processor: the processor of a loaded model.
        num_frames: how many frames are sampled, evenly in time. A `Video` has its frames already.
        max_new_tokens: the most tokens that an answer may have.
        measure: answer again with and without compression, and measure both, as `vidcom2 run` does. These answers are
            greedy, whatever the arguments of `generate`.
        device, dtype, attn_implementation, device_map, revision: how to load a model that is named.
        **arguments: settings of VidCom² (`retention_ratio=0.15`), the checkpoint's own where not given; and arguments
            of `generate`. It decodes greedily unless told `do_sample=True`.

    Raises:
        VideoError: if the video cannot be read.
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
    if not isinstance(video, str | PathLike | Video):
        raise OptionError(f"`video` is {video!r}, but must be a path, an http(s) URL, or what `read_video` returned.")
    if not isinstance(question, str):
        raise OptionError(f"`question` is {question!r}, but must be text.")
    if not question.strip():
        raise OptionError(f"`question` is {question!r}. Ask something about the video.")
    num_frames = whole_number("num_frames", num_frames)
    max_new_tokens = whole_number("max_new_tokens", max_new_tokens)
    check_generate_arguments("ask", arguments)
    check_model(model, processor, placement)
    if measure and settings and isinstance(model, PreTrainedModel):
        raise OptionError(
            f"`measure=True` measures the model with its own settings, but {', '.join(map(repr, settings))} is given "
            "for this call. Set it in `model.config` instead."
        )
    if not isinstance(video, Video):
        video = read_video(video, num_frames)
    if model is None:
        warnings.warn(DEMO_WARNING, UserWarning, stacklevel=2)
    checkpoint, settings = checkpoint_of(model, processor, placement, settings)
    answer = _answer(checkpoint, video, question, settings, {"max_new_tokens": max_new_tokens, **arguments})
    if not measure:
        return answer

    return replace(answer, measured=run(checkpoint, video, question, max_new_tokens))


def _answer(
    checkpoint: Checkpoint, video: Video, question: str, settings: dict[str, Any], arguments: dict[str, Any]
) -> Answer:
    processor: Any = checkpoint.processor
    model = checkpoint.model
    of_call = model.config.compression_settings(**settings)
    inputs = prepare_inputs(processor, question, video, model)
    # Encode here, not in `generate`, so that the answer can say which tokens were kept.
    features = compress(model, encode(model, inputs, of_call), of_call)
    inputs.pop("pixel_values_videos")
    arguments = with_tokenizer(arguments, processor)
    new = generate(model, inputs, features, of_call.compression_positions, **arguments)[0]
    is_video = model.model.is_video(inputs["input_ids"])
    video_tokens = len(features.pooler_output[0])
    return Answer(
        answer=processor.decode(new, skip_special_tokens=True),
        model=checkpoint.name,
        question=question,
        prompt_tokens=int((~is_video).sum()) + video_tokens,
        video_tokens=video_tokens,
        full_prompt_tokens=is_video.numel(),
        full_video_tokens=int(is_video.sum()),
        new_tokens=len(new),
        video=video,
        compression=features.video_compressions[0],
    )
