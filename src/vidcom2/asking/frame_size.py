"""The size to which a processor scales the frames of a video, so that FFmpeg can scale them while they are read."""

from typing import Any, cast

from torch import Tensor
from transformers import ProcessorMixin

from ..loading.processors import frames_without_values, of_whole_prompts
from ..video.reading import SizeOfFrames
from .prompting import frames_together


def size_of_frames(processor: ProcessorMixin) -> SizeOfFrames:
    """Return the `size` for `read_video` that leaves the processor nothing to scale.

    The processor's own code decides. Where it would not make the frames smaller, or would scale its own result once
    more, they keep the size of the file.
    """

    def size(num_frames: int, height: int, width: int) -> tuple[int, int] | None:
        wanted = resized(processor, num_frames, height, width)
        if wanted is None or wanted[0] > height or wanted[1] > width:
            return None
        return wanted if resized(processor, num_frames, *wanted) == wanted else None

    return size


def resized(processor: ProcessorMixin, num_frames: int, height: int, width: int) -> tuple[int, int] | None:
    """Return the size to which the processor scales frames, given some without pixels; None if not in one step. A
    row of fewer frames than the others, as Kimi-K2.5 has, is scaled by itself, to the same size."""
    of_videos = cast(Any, processor).video_processor
    sizes: list[tuple[int, int]] = []

    def resize(*args: Any, **kwargs: Any) -> Tensor:
        frames = of_videos.resize(*args, **kwargs)
        sizes.append(tuple(frames.shape[-2:]))
        return frames

    listening = of_whole_prompts(processor).video_processor  # a copy for each call: several threads read videos
    listening.resize = resize
    # Processors that join frames in pairs may refuse a single one.
    num_frames = max(num_frames, frames_together(processor))
    frames = frames_without_values(processor, num_frames, height, width)
    listening(videos=[frames], do_sample_frames=False, return_tensors="pt")
    return sizes[0] if len({*sizes}) == 1 else None
