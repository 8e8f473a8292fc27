"""Finds the frames of videos in a prompt where each frame stands as an image would. The text before a frame tells it
from an image.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import ClassVar


class FrameMarks:
    """The tokens that a processor writes before the frames of a video. No image has them before it.

    Attributes:
        lead, tail: what stands between two frames of a video, before and after the label of the second, which is its
            number or its time.
        unread: how many tokens before a frame's placeholders open any image, and belong to no mark.
        most: how many tokens a label may have.
    """

    lead: list[int]
    tail: list[int]
    unread: ClassVar[int]
    most: ClassVar[int]

    def __init__(self, marks: Sequence[list[int]]):
        """Take the token ids that the config's `known_frame_marks` holds."""
        raise NotImplementedError

    def begins(self, text: list[int], following: list[int] | None) -> bool:
        """Return whether a run of placeholders is the first frame of a video.

        Args:
            text: the tokens before it.
            following: the label of the next run, if it can be a later frame of the same video.
        """
        raise NotImplementedError

    def continues(self, text: list[int], label: list[int] | None, following: list[int] | None) -> bool:
        """Return whether a run behind a video's frame is another frame of it. `label` is its own, if it can be one."""
        return label is not None

    def is_label(self, label: list[int]) -> bool:
        return 0 < len(label) <= self.most

    def videos_of(self, ids: list[int], tokens_per_frame: int, placeholder: int) -> Iterator[list[range]]:
        """Yield for each video of a prompt where the placeholders of its frames are.

        A run of placeholders is a video's first frame if the text before it says so. Runs that are labelled further on
        follow, with nothing else between.

        Args:
            ids: the tokens of the prompt.
            tokens_per_frame: how many placeholders a frame has. A run of twice as many is an image in several tiles.
            placeholder: the id of a placeholder.
        """
        places = (
            list(group) for is_run, group in groupby(range(len(ids)), lambda at: ids[at] == placeholder) if is_run
        )
        runs = [range(run[0], run[-1] + 1) for run in places]
        labels = [None, *(self._label_between(ids, *pair) for pair in pairwise(runs)), None]
        video: list[range] = []
        for run, label, following in zip(runs, labels, labels[1:]):
            text = ids[: max(0, run.start - self.unread)]
            is_one_tile = len(run) < 2 * tokens_per_frame
            if is_one_tile and video and self.continues(text, label, following):
                video.append(run)
                continue
            if video:
                yield video
            video = [run] if is_one_tile and self.begins(text, following) else []
        if video:
            yield video

    def _label_between(self, ids: list[int], run: range, following: range) -> list[int] | None:
        """Return the label, in tokens, of the frame that follows on another one; None if these are none. One token
        closes a frame."""
        between = ids[run.stop + 1 : following.start - self.unread]
        label = between[len(self.lead) : len(between) - len(self.tail)]
        return label if between == [*self.lead, *label, *self.tail] and self.is_label(label) else None


class NumberedFrames(FrameMarks):
    """Frames behind "Frame1: ", "Frame2: " and so on. One token opens an image.

    What stands behind text that only ends in "1: " is a first frame too, if "Frame2: " follows.

    Args:
        marks: the token ids of "Frame1: ", which stands before a video's first frame; of "\\nFrame2: ", which stands
            between the first and the second; and of the first where a space precedes it, " Frame1: ".
    """

    unread = 1
    most = 6

    def __init__(self, marks: Sequence[list[int]]):
        first, second, spaced = marks
        same = next(at for at in range(1, len(first)) if first[-at] != second[-at])  # the numbers differ
        self.firsts = (first, spaced)
        self.one, self.two, self.tail = first[-same], second[-same], first[len(first) - same + 1 :]
        self.lead = second[: len(second) - same]  # the line's end and "Frame"

    def begins(self, text: list[int], following: list[int] | None) -> bool:
        return any(_ends_with(text, first) for first in self.firsts) or (
            following == [self.two] and _ends_with(text, [self.one, *self.tail])
        )

    def continues(self, text: list[int], label: list[int] | None, following: list[int] | None) -> bool:
        return label is not None and not self.begins(text, following)


class TimedFrames(FrameMarks):
    """Frames behind "Frame from 00:01:" and so on, each on a line of its own.

    Args:
        marks: the token ids of this text before a later frame and before the first one, with the tokens that open an
            image; and all tokens that times are made of, with their colons.
    """

    unread = 0
    most = 8

    def __init__(self, marks: Sequence[list[int]]):
        later, first, times = marks
        self.times = set(times)
        in_time = [at for at, token in enumerate(later) if token in self.times]
        self.lead, self.tail = later[: in_time[0]], later[in_time[-1] + 1 :]
        # A tokenizer may join the line's end with what precedes it. So a first frame is known by what is the same.
        begun = first[: len(first) - len(later) + len(self.lead)]
        same = next((at for at, (a, b) in enumerate(zip(self.lead[::-1], begun[::-1])) if a != b), len(self.lead))
        self.line = self.lead[len(self.lead) - same :]

    def is_label(self, label: list[int]) -> bool:
        return super().is_label(label) and self.times.issuperset(label)

    def begins(self, text: list[int], following: list[int] | None) -> bool:
        stop = start = len(text) - len(self.tail)
        while start > 0 and text[start - 1] in self.times:
            start -= 1
        return _ends_with(text, self.tail) and self.is_label(text[start:stop]) and _ends_with(text[:start], self.line)


def _ends_with(ids: list[int], end: Sequence[int]) -> bool:
    return ids[len(ids) - len(end) :] == [*end] if len(ids) >= len(end) else False
