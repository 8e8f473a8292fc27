"""What the configs of families share whose parent takes a video's frames for images. They hold the ids of the text by
which a prompt of a stock processor, in which frames are to be refused, tells them from images.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar


class FrameMarksConfig:
    """How a checkpoint's tokenizer writes the text that stands before frames, and not before images. It comes before
    the parent's config among a config's bases, which has a field `frame_marks`.

    Attributes:
        frame_texts: what `frame_marks` holds the token ids of, in words for messages.
        released_marks: these ids in released vocabularies, by the id of an image's placeholder.
    """

    frame_texts: ClassVar[Sequence[str]]
    released_marks: ClassVar[dict[int, Any]]

    if TYPE_CHECKING:
        frame_marks: list[Any] | None
        image_token_id: int

    @property
    def video_token_id(self) -> int:
        return self.image_token_id

    @property
    def known_frame_marks(self) -> tuple[list[int], ...] | None:
        """The token ids of `frame_texts`, or None if they are not known.

        Raises:
            ValueError: if `frame_marks` is no list of as many lists of ids.
        """
        marks: Any = self.frame_marks
        if marks is None:
            marks = self.released_marks.get(self.image_token_id)
            return None if marks is None else tuple(map(list, marks))
        fits = isinstance(marks, list | tuple) and len(marks) == len(self.frame_texts)
        if not fits or not all(isinstance(mark, list | tuple) and len(mark) > 1 for mark in marks):
            raise ValueError(
                f"`frame_marks` is {marks!r}, but must be {len(self.frame_texts)} lists of token ids, those of "
                f"{list(self.frame_texts)}. Call `model.config.frame_marks = None; "
                "model.config.read_tokenizer(processor.tokenizer)`."
            )
        return tuple(map(list, marks))

    @property
    def tokens_per_tile(self) -> int:
        """How many tokens a frame has, and a tile of an image."""
        raise NotImplementedError

    def read_tokenizer(self, tokenizer: Any) -> None:
        """Take `frame_marks` from a checkpoint's tokenizer, unless the config has some."""
        if self.frame_marks is None:
            self.frame_marks = self.marks_of(tokenizer)

    @staticmethod
    def marks_of(tokenizer: Any) -> list[list[int]]:
        """Return the token ids of `frame_texts`, as they are in a prompt."""
        raise NotImplementedError

    def opens_a_frame(self, text: list[int]) -> bool:
        """Return whether a stock processor writes such tokens before a frame of a video, and not before an image.

        Args:
            text: the last tokens of a prompt before a run of placeholders.
        """
        raise NotImplementedError
