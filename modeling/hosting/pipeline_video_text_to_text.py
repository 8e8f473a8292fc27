"""`pipeline("video-text-to-text")`, which answers questions about videos. The Hub knows this task and Transformers does
not.
"""

import copy
from collections.abc import Sequence
from os import PathLike, fspath
from typing import Any, cast

from transformers import ImageTextToTextPipeline

FILE_FRAMES = 32  # This many frames are sampled from a file, since all of them would be too many.


class VideoTextToTextPipeline(ImageTextToTextPipeline):
    """Answers questions about videos.

    Modifications:
        - takes `videos` and a question, and makes a chat of them.
        - samples `num_frames` frames evenly, in all families alike, and 32 from a file if it is not told how many.
        - answers in batches with models that hear, too. The parent refuses them where the feature extractor of sounds
          pads on another side than the tokenizer.

    ```
    pipe = pipeline(model="org/name", trust_remote_code=True)
    pipe(videos="clip.mp4", text="What happens?", num_frames=32)[0]["generated_text"]
    ```
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.feature_extractor = None  # The parent only pads batches by it, and these hold no sound.

    def __call__(
        self, videos: Any = None, text: Any = None, num_frames: int | None = None, **kwargs: Any
    ) -> list[dict[str, Any]] | list[list[dict[str, Any]]]:
        """Generate an answer.

        Args:
            videos: the videos of one question: a file, a URL, decoded frames (num_frames, channels, height, width), a
                list of images, or a list of these, or an array with one more dimension. With a list of questions, a
                list with one entry for each. A chat may be passed here or as `text`.
            text: a question, a list of questions, or chats as `pipeline("image-text-to-text")` takes them.
            num_frames: frames to sample from each video. By default, 32 from a file or URL, and all decoded frames. A
                shorter video is taken whole.
            **kwargs: arguments of `pipeline("image-text-to-text")`, such as `max_new_tokens` or `generate_kwargs`. With
                `fps` or `do_sample_frames` among its `processor_kwargs`, the processor samples in its own way.

        Returns:
            One list of answers per question. Each answer has a `generated_text`: for a question the answer alone, for a
            chat the continued chat.

        Raises:
            ValueError: if a question has no video, a chat has videos beside it, the lists have different lengths, or
                files and decoded frames are in one chat.
        """
        dimensions = getattr(videos, "ndim", None)
        videos = list(videos) if dimensions == 5 else videos
        chats = text if _is_chat(text) else videos if text is None and _is_chat(videos) else None
        if chats is text is not None and videos is not None:
            raise ValueError(
                f"`text` is a chat, but `videos` is a {type(videos).__name__} beside it. Put the videos into the chat, "
                'as {"type": "video", "video": ...}.'
            )
        if chats is None:
            if isinstance(text, str) and (isinstance(videos, (str, PathLike, list, tuple)) or dimensions == 4):
                chats = _chat(videos, text)
            elif isinstance(text, (list, tuple)) and isinstance(videos, (list, tuple)) and len(videos) == len(text):
                chats = [_chat(of_one, question) for of_one, question in zip(videos, text, strict=True)]
            else:
                raise ValueError(
                    f"`videos` is {type(videos).__name__} and `text` is {type(text).__name__}, but a question needs a "
                    "video: a file, a URL, frames in 4 dimensions, or a list of these. A list of questions needs a "
                    "list of as many entries. Or pass a chat as `text`."
                )
            kwargs.setdefault("return_full_text", False)
        # The parent's annotations lack chats.
        return super().__call__(text=cast(Any, chats), num_frames=num_frames, **kwargs)

    def preprocess(self, inputs: Any = None, *args: Any, num_frames: int | None = None, **kwargs: Any) -> Any:
        """Return the processor's inputs for a chat, with frames that are sampled evenly.

        Raises:
            ValueError: if files and decoded frames are in one chat.
        """
        are_files = {isinstance(video, (str, PathLike)) for video in _videos_of(inputs.messages)}
        if len(are_files) > 1:
            raise ValueError("A chat has both files and decoded frames. Pass all its videos in one of these forms.")
        given = dict(kwargs.pop("processor_kwargs", None) or {})
        num_frames = given.pop("num_frames", num_frames)
        pipe, processor = copy.copy(self), cast(Any, copy.copy(self.processor))
        if not given.keys() & {"fps", "do_sample_frames"}:
            if True in are_files and num_frames is None:
                num_frames = FILE_FRAMES
            # Qwen3-VL's processor would sample decoded frames too, as if there were 24 a second.
            given["do_sample_frames"] = num_frames is not None
            # By itself, a processor refuses more frames than there are, or a number beside its rate.
            processor.video_processor = copy.copy(processor.video_processor)
            processor.video_processor.sample_frames = _evenly
            pipe.processor = processor
        if num_frames is not None:
            given["num_frames"] = num_frames
        return super(VideoTextToTextPipeline, pipe).preprocess(inputs, *args, processor_kwargs=given, **kwargs)


def _evenly(metadata: Any, num_frames: int, temporal_patch_size: int | None = 1, **others: Any) -> list[int]:
    """Return which frames to take: evenly spaced ones from the first to the last, or all frames of a shorter video. A
    single frame is taken twice where two share their tokens."""
    num_frames = min(num_frames, metadata.total_num_frames)
    last, steps = metadata.total_num_frames - 1, max(1, num_frames - 1)
    frames = [(2 * number * last + steps - 1) // (2 * steps) for number in range(num_frames)]  # the nearest ones
    return frames * (temporal_patch_size or 1) if num_frames == 1 else frames


def _is_chat(value: Any) -> bool:
    """Return whether `value` is a list of messages, or a list of such lists."""
    if not isinstance(value, (list, tuple)) or not value:
        return False
    first = value[0][0] if isinstance(value[0], (list, tuple)) and value[0] else value[0]
    return isinstance(first, dict) and "role" in first


def _chat(videos: Any, question: str) -> list[dict[str, Any]]:
    is_one = not isinstance(videos, (list, tuple)) or _is_frames(videos)
    as_text = [fspath(each) if isinstance(each, PathLike) else each for each in ([videos] if is_one else videos)]
    content = [{"type": "video", "video": video} for video in as_text]
    return [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]


def _is_frames(videos: Sequence) -> bool:
    """Return whether a list is a single video given as images."""
    return bool(videos) and all(hasattr(entry, "getpixel") for entry in videos)


def _videos_of(messages: list[dict[str, Any]]) -> list[Any]:
    """Return the videos in a chat."""
    contents = (each["content"] for each in messages if isinstance(each["content"], (list, tuple)))
    videos = [part for content in contents for part in content if part.get("type") == "video"]
    return [next((part[key] for key in ("video", "url", "path") if part.get(key) is not None), None) for part in videos]
