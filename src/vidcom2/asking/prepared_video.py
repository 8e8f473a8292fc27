"""How a processor writes a video into a prompt, recorded once, so that a further question or ratio needs only its text.

A processor writes a text in place of the video's placeholder, such as the time of each frame and a token for each part
of it, and tokenizes the whole prompt. This text depends neither on the question nor on what the frames show. A prompt
gets it with a placeholder for each token that stays.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from ..configuration.compression_settings import NUM_KEPT
from ..errors import OptionError
from ..loading.processors import (
    of_whole_prompts,
    placeholder_of,
    show_sizes_alone,
)
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..modeling.methods.compression import VideoCompression
from ..modeling.prompt.calls import VIDEO
from ..modeling.prompt.processing_short_prompts import group_sizes, with_fewer
from ..video.reading import Video
from .chats import Prompt
from .frame_size import resized
from .prompting import (
    OF_TEXTS,
    OF_VIDEOS,
    check_vocabulary,
    frames_together,
    has_grid_rows,
    prepare_inputs,
    prompt_text,
)

QUESTION = "⟦question⟧"  # stands for any question while the processor's text is recorded


class _Recorder:
    """Stands in for a processor's tokenizer, and remembers the last call of it.

    Args:
        num_placeholders: how many placeholders a text must have; None if any number is right.

    Attributes:
        text, arguments: the texts of the last call, and its other arguments.
    """

    def __init__(self, processor: Any, num_placeholders: int | None) -> None:
        self._tokenizer, self._num_placeholders = processor.tokenizer, num_placeholders
        self._processor = processor
        self.text: Any = None
        self.arguments: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __call__(self, text: Any, **arguments: Any) -> Any:
        self.text, self.arguments = text, arguments
        if self._num_placeholders is not None:
            _check_number(text[0].count(placeholder_of(self._processor, text[0])), self._num_placeholders)
        return self._tokenizer(text, **arguments)


@dataclass(frozen=True, eq=False)
class PreparedVideo:
    """A video as a processor writes it into a prompt.

    Attributes:
        video: how large its frames are and when they are shown, without pixels.
        inputs: the processor's inputs that describe the video, such as its size in patches, without pixels.
        placeholder: the part of a prompt that the processor replaces.
        written: the text that it writes there.
        tokenizer_arguments: how it calls its tokenizer.
        lead: what the processor writes before the text of the chat template.
        types: the types of a video's tokens, by id, for `mm_token_type_ids`; None if the model takes no such input.
        scaled_alone: as in `prepare_without_pixels`.
    """

    video: Video
    inputs: dict[str, Any]
    placeholder: str
    written: str
    tokenizer_arguments: dict[str, Any]
    lead: str
    types: Mapping[int, int] | None
    scaled_alone: bool = False

    def prompt(
        self, processor: ProcessorMixin, prompt: Prompt, template_arguments: Mapping[str, Any] | None = None
    ) -> "VideoPrompt":
        """Return a question about this video, in the processor's chat template.

        Raises:
            OptionError: on what `prompt_text` refuses, and if the chat template writes the video in another way than
                for a question alone.
        """
        text = prompt_text(processor, prompt, template_arguments)
        before, placeholder, after = text.partition(self.placeholder)
        if not placeholder:
            raise OptionError(
                f"the chat template does not write {self.placeholder!r} for the video of this chat, as it does for a "
                "question alone. Prepare the inputs with the processor, and call the model's own `generate`."
            )
        return VideoPrompt(self, self.lead + before, after)

    def thinned(self, placeholder: str, total: int) -> str | None:
        """Return the video's text with `total` placeholders, shared evenly among its groups, such as frames. None if
        some group would be left without a placeholder."""
        if total < len(group_sizes(self.written, placeholder)):
            return None
        return with_fewer(self.written, placeholder, total)


@dataclass(frozen=True, eq=False)
class VideoPrompt:
    """A question about a video, which is written anew for each choice of the video's tokens.

    Attributes:
        before, after: the prompt's text on either side of the video.
    """

    video: PreparedVideo
    before: str
    after: str

    def inputs(
        self,
        processor: ProcessorMixin,
        model: PreTrainedModel,
        features: VidCom2VideoFeatures,
        device: torch.device | str | None = None,
    ) -> dict[str, Any]:
        """Return the model's inputs for a prompt with these features, without pixels.

        The prompt has one placeholder for each token that stays, even if their number depends on what the video shows.
        If there are fewer of them than frames, the prompt has a placeholder for every token, and the model shortens it.

        Args:
            features: the kept tokens of the video, or of B copies of it for a batch of B rows. `run_tower(...).outputs`
                gives a prompt with all tokens.
            device: the device of the inputs; the model's by default.
        """
        of, compressions = cast(Any, processor), features.video_compressions
        total = len(features.pooler_output[0])
        short = None if compressions is None else self.video.thinned(placeholder_of(of, self.video.written), total)
        text = self.before + (self.video.written if short is None else short) + self.after
        encoded = of.tokenizer([text] * len(features.pooler_output), **self.video.tokenizer_arguments)
        inputs = {name: torch.as_tensor(encoded[name]) for name in OF_TEXTS if name in encoded}
        check_vocabulary(model, inputs["input_ids"])
        if self.video.types is not None:
            inputs["mm_token_type_ids"] = types = torch.zeros_like(inputs["input_ids"])
            for token, kind in self.video.types.items():
                types[inputs["input_ids"] == token] = kind
        inputs |= self.video.inputs
        if short is not None:
            inputs[NUM_KEPT] = torch.tensor([len(each.indices) for each in compressions])
        return dict(BatchFeature(inputs).to(model.device if device is None else device))


def num_video_tokens(features: VidCom2VideoFeatures) -> int:
    """Return how many tokens a video has in a prompt without compression."""
    compressions = features.video_compressions
    return len(features.pooler_output[0]) if compressions is None else compressions[0].num_placeholders


def prepare_video(
    processor: ProcessorMixin,
    video: Video,
    model: PreTrainedModel | None = None,
    num_placeholders: int | None = None,
    batch_size: int = 1,
    device: torch.device | None = None,
) -> tuple[PreparedVideo, BatchFeature]:
    """Let a processor prepare a video, once.

    Args:
        model, batch_size, device: as in `prepare_inputs`.
        num_placeholders: how many the processor must write; None if any number is right.

    Returns:
        The video, for any number of questions; and the processor's inputs with its pixels, for `run_tower`.

    Raises:
        OptionError: if the processor changes more of the prompt than the part around the video, or writes another
            number of placeholders.
    """
    recording: Any = copy.copy(processor)
    recorder = recording.tokenizer = _Recorder(processor, num_placeholders)
    inputs = prepare_inputs(recording, QUESTION, video, model, batch_size, device=device)
    asked, made = prompt_text(processor, QUESTION), recorder.text[0]
    before, _, after = asked.partition(cast(Any, processor).video_token)
    lead = made.partition(before)[0] if before and before in made else ""
    made = made.removeprefix(lead)
    start = common_length(before, made)
    end = common_length(after[::-1], made[::-1])
    if QUESTION not in before[:start] + after[len(after) - end :]:
        raise OptionError(
            f"{type(processor).__name__} rewrites the question with the video, so the video cannot be prepared once "
            "for several questions."
        )
    types = None
    if "mm_token_type_ids" in inputs:
        of_ids = zip(inputs["input_ids"].flatten().tolist(), inputs["mm_token_type_ids"].flatten().tolist())
        types = {token: kind for token, kind in of_ids if kind}
    elif "num_frames" in inputs and cast(Any, processor).video_token not in made:
        # InternVL's and SmolVLM's stock processors write the tokens of frames as those of images, without types.
        types = {recorder.convert_tokens_to_ids(placeholder_of(processor, made)): VIDEO}
    prepared = PreparedVideo(
        video=video.without_pixels(),
        # On the CPU, wherever frames were prepared: another process may have no accelerator.
        inputs={name: torch.as_tensor(inputs[name]).cpu() for name in OF_VIDEOS if name in inputs},
        placeholder=asked[start : len(asked) - end],
        written=made[start : len(made) - end],
        tokenizer_arguments=recorder.arguments | {"return_tensors": "pt"},
        lead=lead,
        types=types,
    )
    return prepared, inputs


def prepare_without_pixels(
    processor: ProcessorMixin, video: Video, compression: VideoCompression, scaled_alone: bool
) -> PreparedVideo:
    """Let a processor prepare a video whose features are known, from the size and the times of its frames alone.

    The processor is given tensors without values, so no pixels are in memory.

    Args:
        video: its frames may be without pixels.
        compression: says how many tokens and placeholders the video has.
        scaled_alone: whether each frame, or each group of frames that share their tokens, was scaled by itself, as in a
            live video. Its size then does not depend on the number of frames.

    Raises:
        OptionError: if the processor writes another number of placeholders than the compression knows.
    """
    blind = of_whole_prompts(processor)
    size = video.frames.shape[1:3]
    # Kimi-K2.5's scales each frame alone in any case, and pads it only where it may scale it.
    is_to_scale = scaled_alone and not has_grid_rows(processor)
    scaled = resized(processor, frames_together(processor), *size) if is_to_scale else None
    if scaled is not None:
        size, blind.video_processor.do_resize = scaled, False

    def check(made: Any) -> None:
        if "video_grid_thw" in made:  # before a text is written, which might fill the memory
            grids = made["video_grid_thw"][:, int(has_grid_rows(blind)) :]  # The frames of a row are averaged.
            merged = blind.video_processor.merge_size**2
            _check_number(int(grids.prod(dim=1).sum()) // merged, compression.num_tokens)

    show_sizes_alone(blind, *size, check=check)
    shown = replace(video, frames=np.broadcast_to(np.uint8(0), (len(video.frames), *size, 3)))
    prepared, _ = prepare_video(blind, shown, num_placeholders=compression.num_placeholders)
    return replace(prepared, video=video, scaled_alone=scaled_alone)


def _check_number(written: int, expected: int) -> None:
    if written != expected:
        raise OptionError(
            f"the processor writes {written} placeholders for the video, but its features are those of {expected}. "
            "Use the processor and the settings of frame sizes that the video was encoded with."
        )


def common_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how long the beginning is that two sequences have in common."""
    pairs = zip(one, other)
    return next((place for place, (here, there) in enumerate(pairs) if here != there), min(len(one), len(other)))
