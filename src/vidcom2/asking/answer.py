"""The answer to a question about a video: a text that knows how it came about."""

from typing import Any

from ..modeling.methods.compression import VideoCompression
from ..video.reading import Video
from .chats import Prompt
from .comparison import Comparison


class Answer(str):
    """The answer to a question about a video: its text, and what is known about it.

    Attributes:
        model: the model's name.
        question: the text, or the chat, as it was asked.
        prompt_tokens: length of the compressed prompt, as it is in the KV cache after prefill.
        video_tokens: how many of these are tokens of the video.
        full_prompt_tokens, full_video_tokens: the same without compression.
        new_tokens: how many tokens were generated.
        video: the frames that the model saw; None if the video was loaded by `load_watched`.
        compression: the tokens that were kept of it.
        measured: what `vidcom2 run` reports; None without `measure=True`.
    """

    model: str
    question: Prompt
    prompt_tokens: int
    video_tokens: int
    full_prompt_tokens: int
    full_video_tokens: int
    new_tokens: int
    video: Video | None
    compression: VideoCompression
    measured: Comparison | None = None

    def __new__(cls, text: str, **known: Any) -> "Answer":
        answer = super().__new__(cls, text)
        vars(answer).update(known)
        return answer
