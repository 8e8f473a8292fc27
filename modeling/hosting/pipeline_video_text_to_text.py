"""`pipeline("video-text-to-text")`, which answers questions about videos. The Hub knows this task and Transformers does
not.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from transformers import ImageTextToTextPipeline, SmolVLMVideoProcessor

FILE_FRAMES = 32  # This many frames are sampled from a file, since all of them would be too many.


class VideoTextToTextPipeline(ImageTextToTextPipeline):
    """Answers questions about videos.

    Modifications:
        - takes `videos` and a question, and makes a chat of them.
        - samples `num_frames` frames from a video file.
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
                list of images, or a list of these. With a list of questions, a list with one entry for each. A chat may
                be passed here or as `text`.
            text: a question, a list of questions, or chats as `pipeline("image-text-to-text")` takes them.
            num_frames: frames to sample from each video. By default, 32 from a file or URL, and all decoded frames.
            **kwargs: arguments of `pipeline("image-text-to-text")`, such as `max_new_tokens` or `generate_kwargs`.

        Returns:
            One list of answers per question. Each answer has a `generated_text`: for a question the answer alone, for a
            chat the continued chat.

        Raises:
            ValueError: if a question has no video, a chat has videos beside it, or the lists have different lengths.
        """
        chats = text if _is_chat(text) else videos if text is None and _is_chat(videos) else None
        if chats is text is not None and videos is not None:
            raise ValueError(
                f"`text` is a chat, but `videos` is a {type(videos).__name__} beside it. Put the videos into the chat, "
                'as {"type": "video", "video": ...}.'
            )
        if chats is None:
            if videos is None or text is None:
                raise ValueError(
                    f"`videos` is {type(videos).__name__} and `text` is {type(text).__name__}, but a question needs "
                    "both. Pass a video and a question, or a chat as `text`."
                )
            if isinstance(text, str):
                chats = _chat(videos, text)
            elif isinstance(videos, (list, tuple)) and len(videos) == len(text):
                chats = [_chat(of_one, question) for of_one, question in zip(videos, text, strict=True)]
            else:
                raise ValueError(
                    f"`text` is a list of {len(text)} questions, so `videos` must be a list of as many entries, but it "
                    f"is {f'of {len(videos)}' if isinstance(videos, (list, tuple)) else type(videos).__name__}."
                )
            kwargs.setdefault("return_full_text", False)
            if num_frames is None and _has_file(videos):
                num_frames = FILE_FRAMES
        sampling: dict[str, Any] = {}
        if num_frames is not None:
            sampling = {"num_frames": num_frames, "do_sample_frames": True}
        elif not _has_file(_videos_of(chats)):
            # Qwen3-VL's processor would sample decoded frames too, as if there were 24 a second.
            sampling = {"do_sample_frames": False}
        if sampling:
            kwargs["processor_kwargs"] = sampling | (kwargs.get("processor_kwargs") or {})
        with _without_own_rate(self.processor, num_frames):
            return super().__call__(text=cast(Any, chats), **kwargs)  # The parent's annotations lack chats.


@contextmanager
def _without_own_rate(processor: Any, num_frames: int | None) -> Iterator[None]:
    """Hide the processor's own `fps` while `num_frames` is asked for.

    Qwen3-VL's processor refuses a number of frames beside frames per second, and mistakes its own `fps` for the
    caller's. SmolVLM's needs both: it samples at its rate, and at most so many.
    """
    video_processor = processor.video_processor
    own = getattr(video_processor, "fps", None)
    if own is None or num_frames is None or isinstance(video_processor, SmolVLMVideoProcessor):
        yield
        return
    video_processor.fps = None
    try:
        yield
    finally:
        video_processor.fps = own


def _is_chat(value: Any) -> bool:
    """Whether `value` is a list of messages, or a list of such lists."""
    if not isinstance(value, (list, tuple)) or not value:
        return False
    first = value[0][0] if isinstance(value[0], (list, tuple)) and value[0] else value[0]
    return isinstance(first, dict) and "role" in first


def _chat(videos: Any, question: str) -> list[dict[str, Any]]:
    is_one = not isinstance(videos, (list, tuple)) or _is_frames(videos)
    paths_as_text = [_as_text(video) for video in ([videos] if is_one else videos)]
    content = [{"type": "video", "video": video} for video in paths_as_text]
    return [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]


def _is_frames(videos: Sequence) -> bool:
    """Whether a list is a single video given as images."""
    return bool(videos) and all(hasattr(entry, "getpixel") for entry in videos)


def _videos_of(chats: Any) -> list[Any]:
    """Return the videos in a list of messages, or in a list of such lists."""
    if isinstance(chats, dict):
        content = chats.get("content")
        parts = content if isinstance(content, (list, tuple)) else []
        return [part.get("video", part.get("url")) for part in parts if part.get("type") == "video"]
    return [video for each in chats for video in _videos_of(each)]


def _as_text(video: Any) -> Any:
    return video.__fspath__() if hasattr(video, "__fspath__") else video


def _has_file(videos: Any) -> bool:
    if isinstance(videos, (list, tuple)):
        return any(_has_file(entry) for entry in videos)
    return isinstance(_as_text(videos), str)
