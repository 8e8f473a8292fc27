"""A user's conversation about one clip.

It is a tuple of turns, which each call takes and returns, so users who ask at the same time share nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..asking.comparison import Measured
from ..errors import BUG, reason_of
from .answerer import SIDES, Answerer, EncodedClip, Side

NO_QUESTION = "There is no question. Write one about the clip."


@dataclass(frozen=True)
class Reply:
    """The answer of one side.

    Attributes:
        text: the answer so far.
        measured: the figures of the answer; None while it grows, and if it was stopped.
        seconds: the time of the whole answer, including the vision tower, which ran once for the clip.
    """

    text: str = ""
    measured: Measured | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Turn:
    """A question, and what each side has answered so far.

    Attributes:
        way: how the side with few tokens is compressed, in words.
        problem: why there is no answer, in one line; None if nothing is wrong.
    """

    question: str
    way: str
    replies: Mapping[Side, Reply] = field(default_factory=dict)
    problem: str | None = None


Turns = tuple[Turn, ...]


def asked(
    answerer: Answerer,
    clip: EncodedClip,
    question: str,
    overrides: Mapping[str, Any],
    max_new_tokens: int,
    turns: Turns = (),
) -> Iterator[Turns]:
    """Ask the next question of a conversation, and yield all its turns each time that an answer has grown.

    The model reads the whole conversation again with each question, using the clip's kept features. So the settings may
    change between two questions, and the times of both sides can be compared.
    """
    turn = Turn(question.strip(), answerer.way(overrides))
    if not turn.question:
        yield (*turns, replace(turn, problem=NO_QUESTION))
        return
    yield (*turns, turn)
    try:
        earlier: dict[Side, list[tuple[str, str]]] = {side: earlier_turns(turns, side) for side in SIDES}
        for update in answerer.answers(clip, turn.question, overrides, max_new_tokens, earlier):
            seconds = None
            if update.measured is not None:
                seconds = clip.encoder_seconds[update.side] + update.measured.total_seconds
            reply = Reply(update.text, update.measured, seconds)
            turn = replace(turn, replies={**turn.replies, update.side: reply})
            yield (*turns, turn)
    except Exception as error:
        yield (*turns, replace(turn, problem=problem_text(error)))


def earlier_turns(turns: Sequence[Turn], side: Side) -> list[tuple[str, str]]:
    """Return the questions that one side has answered, each with its answer."""
    return [(turn.question, reply.text) for turn in turns if (reply := turn.replies.get(side, Reply())).text]


def problem_text(error: Exception, path: str | None = None) -> str:
    """Return what the user can put right, in one sentence, with a file's name instead of its path on the server.

    An error that is a bug is raised again.
    """
    reason = reason_of(error)
    if reason.startswith(BUG):
        raise error
    reason = reason if path is None else reason.replace(path, Path(path).name)
    return reason[:1].upper() + reason[1:]
