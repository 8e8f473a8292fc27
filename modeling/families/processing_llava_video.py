"""LLaVA-Video's processor. It is LLaVA-OneVision's, plus the newlines of pooled frames and the time instruction."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from transformers import BatchFeature, LlavaOnevisionProcessor
from transformers.processing_utils import MultiModalData, ProcessingKwargs, VideosKwargs
from transformers.utils import logging

from ...configuration.configuration_vidcom2_llava_video import (
    SPATIAL_POOL_MODES,
    checked_choice,
    pooled_side,
    tokens_per_frame,
)
from ...configuration.saved_with_code import SavedWithCode
from ..prompt.processing_short_prompts import VidCom2ProcessorMixin

logger = logging.get_logger(__name__)

# The model was trained with exactly this text, without a space before "Please".
TIME_INSTRUCTION = (
    "The video lasts for {duration:.2f} seconds, and {num_frames} frames are uniformly sampled from it. "
    "These frames are located at {times}.Please answer the following questions related to this video."
)


class LlavaVideoVideosKwargs(VideosKwargs, total=False):
    """Arguments for videos.

    Attributes:
        add_time_instruction: overrides the processor's own setting.
    """

    add_time_instruction: bool | None


class LlavaVideoProcessorKwargs(ProcessingKwargs, total=False):
    videos_kwargs: LlavaVideoVideosKwargs
    _defaults = {}  # noqa: RUF012  # pyright: ignore[reportGeneralTypeIssues]  (Transformers 5.19 asks for it)


def time_instruction(seconds: Sequence[float], duration: float) -> str:
    """Return what the original tells the model about a video of `duration` seconds with frames at `seconds`."""
    times = ",".join(f"{second:.2f}s" for second in seconds)
    return TIME_INSTRUCTION.format(duration=duration, num_frames=len(seconds), times=times)


class UncompressedLlavaVideoProcessor(SavedWithCode, LlavaOnevisionProcessor):
    """Tokenizer, image and video processor of the uncompressed LLaVA-Video, with a placeholder for every token.

    Modifications:
        - `<video>` becomes num_frames · side · (side + 1) placeholders, one per token and one per newline of a row.
        - the time instruction follows on a line of its own: how long the video is, and when its frames are.

    Video files are sampled as in Transformers, at the first frame of each of `num_frames` equal parts. The original
    spreads the frames from the first to the last. To have that, pass frames that are sampled so, with `video_metadata`.

    Args:
        spatial_pool_mode: must agree with the model's config.
        add_time_instruction: whether to write the time instruction, which needs the times of the frames. Those of a
            video file are known. For decoded frames, pass
            `video_metadata=[{"fps": ..., "total_num_frames": ..., "frames_indices": ...}]`. If the times are unknown,
            the instruction is left out with a warning, and a call with `add_time_instruction=True` is refused.
        num_image_tokens, vision_feature_select_strategy, ...: as in the parent class.

    Raises:
        ValueError: if `spatial_pool_mode` is outside the accepted set, in the constructor and on assignment alike.
    """

    valid_processor_kwargs = LlavaVideoProcessorKwargs

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        video_processor: Any = None,
        num_image_tokens: int | None = None,
        vision_feature_select_strategy: str | None = None,
        chat_template: str | dict[str, str] | None = None,
        image_token: str = "<image>",
        video_token: str = "<video>",
        vision_aspect_ratio: str = "anyres_max_9",
        spatial_pool_mode: str = "average",
        add_time_instruction: bool = True,
        **kwargs: Any,
    ):
        self.spatial_pool_mode = spatial_pool_mode
        self.add_time_instruction = add_time_instruction
        # This goes into processor_config.json, so that a Hub repo's own copy of this file is found.
        self.auto_map = {"AutoProcessor": f"{__name__.rpartition('.')[2]}.{type(self).__name__}"}
        super().__init__(
            image_processor,
            tokenizer,
            video_processor,
            num_image_tokens,
            vision_feature_select_strategy,
            chat_template,
            image_token,
            video_token,
            vision_aspect_ratio,
            **kwargs,
        )

    if TYPE_CHECKING:  # Transformers' own annotations refuse `return_tensors`, and chats with anything but text.

        def __call__(self, *args: Any, **kwargs: Any) -> BatchFeature: ...
        def apply_chat_template(self, conversation: Any, *args: Any, **kwargs: Any) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "spatial_pool_mode":
            value = checked_choice(name, value, SPATIAL_POOL_MODES)
        super().__setattr__(name, value)

    def _process_videos(
        self, videos: Any, add_time_instruction: bool | None = None, **kwargs: Any
    ) -> tuple[dict[str, Any], list[str]]:
        processed, replacements = super()._process_videos(videos, **kwargs | {"return_metadata": True})
        if add_time_instruction or (add_time_instruction is None and self.add_time_instruction):
            lengths = map(len, processed["pixel_values_videos"])
            for i, (metadata, num_frames) in enumerate(zip(processed["video_metadata"], lengths, strict=True)):
                replacements[i] += self._time_line(metadata, num_frames, is_asked_for=bool(add_time_instruction))
        return processed, replacements

    def _time_line(self, metadata: Any, num_frames: int, is_asked_for: bool) -> str:
        frames = metadata.frames_indices
        if frames is None and metadata.total_num_frames == num_frames:
            frames = range(num_frames)
        if metadata.fps and frames is not None and len(frames) == num_frames:
            seconds = [float(frame / metadata.fps) for frame in frames]
            return "\n" + time_instruction(seconds, metadata.total_num_frames / metadata.fps)
        reason = (
            f"The time instruction needs `video_metadata` with `fps`, `total_num_frames` and `frames_indices` of the "
            f"video's {num_frames} frames, but got {dict(metadata)}. Pass them, or `add_time_instruction=False`."
        )
        if is_asked_for:
            raise ValueError(reason)
        logger.warning_once(reason)
        return ""

    def replace_video_token(self, video_inputs: dict[str, Any], video_idx: int, **kwargs: Any) -> str:
        return self.video_token * self._num_video_tokens(len(video_inputs["pixel_values_videos"][video_idx]))

    def _num_video_tokens(self, num_frames: int) -> int:
        return num_frames * tokens_per_frame(math.isqrt(cast(int, self.num_image_tokens)), self.spatial_pool_mode)

    def _get_num_multimodal_tokens(
        self, image_sizes: Any = None, video_sizes: Any = None, **kwargs: Any
    ) -> MultiModalData:
        data = super()._get_num_multimodal_tokens(image_sizes=image_sizes, **kwargs)
        if video_sizes is not None:
            data.num_video_tokens = [self._num_video_tokens(num_frames) for num_frames, _, _ in video_sizes]
        return data


class LlavaVideoProcessor(VidCom2ProcessorMixin, UncompressedLlavaVideoProcessor):
    """Tokenizer, image and video processor of `VidCom2LlavaVideoForConditionalGeneration`, which write a placeholder
    for each video token that stays, and for all newlines."""

    def num_structure(self, num_placeholders: int, num_frames: int) -> int:
        return num_frames * pooled_side(math.isqrt(cast(int, self.num_image_tokens)), self.spatial_pool_mode)
