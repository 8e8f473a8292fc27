"""The questions of `vidcom2 eval` and when an answer counts as right. Nothing here imports PyTorch."""

import json
import re
import string
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .options import OptionError

KNOWN_KEYS = ("id", "video", "question", "answer", "choices", "kind")
LETTERS = string.ascii_uppercase
CHOICES_INSTRUCTION = "Answer with the letter of the right option."
# Stripped from both ends of each word. Not the signs of numbers, nor what is inside words.
PUNCTUATION = ".,;:!?\"'`()[]{}<>*_“”‘’«»…。，、！？；："
# "B", "(b)", "B.", "B: a cat", "The answer is B." A letter with more text needs a mark after it: "A dog" is no letter.
LETTER = re.compile(
    r"\W*(?:(?:the )?(?:(?:best|correct|right) )?(?:answer|option)(?: is)?\W+)?([a-z])(?:\W*|[.):,\n].*)", re.I | re.S
)


@dataclass(frozen=True)
class Question:
    """A question about a video.

    Attributes:
        id: its own, or the number of its line.
        video: path, absolute or from the current folder, or an http(s) URL.
        question: as in the file; `prompt` is what the model reads.
        answers: those that count as right; of a question with choices, the right one alone. None: there is no truth.
        choices: the options, if it is multiple choice.
        kind: questions of a kind are counted together as well.
        given: the line as it is in the file, with keys of the user's own.
    """

    id: str
    video: str
    question: str
    answers: tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = None
    kind: str | None = None
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        """The question; with choices, a lettered line for each, and the request for a letter."""
        if self.choices is None:
            return self.question
        lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, self.choices)]
        return "\n".join([self.question, *lines, CHOICES_INSTRUCTION])

    def is_correct(self, text: str) -> bool | None:
        """Whether a model's answer is right; None if that is not known.

        With choices, the option that the answer names must be the right one; else its `normalised` text must be that
        of an accepted answer.
        """
        if self.answers is None:
            return None
        return self.meaning(text) in {self.meaning(answer) for answer in self.answers}

    def agree(self, text: str, other: str) -> bool:
        """Whether two answers name the same option or, of no option, are the same text but for case and punctuation."""
        return self.meaning(text) == self.meaning(other)

    def meaning(self, text: str) -> str | int:
        """What an answer says: the number of the option that it names, by its text or its letter, or its text."""
        if self.choices is None:
            return normalised(text)
        number = named_choice(text, self.choices)
        return normalised(text) if number is None else number


def normalised(text: str) -> str:
    """Lower case, single spaces, no punctuation at the ends of words: `"A red  car!"` is `"a red car"`."""
    words = unicodedata.normalize("NFKC", text).casefold().split()
    return " ".join(filter(None, (word.strip(PUNCTUATION) for word in words)))


def named_choice(text: str, choices: Sequence[str]) -> int | None:
    """Which option an answer names: the one of the same `normalised` text, else the one of its letter, else none.

    A letter stands alone, or has `.`, `)`, `:`, `,` or a new line after it, or "the answer is" or the like before it.
    """
    texts = [normalised(choice) for choice in choices]
    if normalised(text) in texts:
        return texts.index(normalised(text))
    found = LETTER.fullmatch(text)
    number = LETTERS.index(found[1].upper()) if found else len(choices)
    return number if number < len(choices) else None


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """The questions of a JSONL file: a JSON object on each line, empty lines left out.

    Args:
        limit: read that many, the first ones.

    Raises:
        OptionError: on a file that cannot be read or is empty, and on a line that is no question, by its number.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(f"cannot read the questions {str(path)!r}: {reason}. Name a JSONL file.") from error
    questions: dict[str, Question] = {}
    for number, line in enumerate(lines, start=1):
        if limit is not None and len(questions) == limit:
            break
        if not line.strip():
            continue
        question = _question(line, number, path)
        if question.id in questions:
            raise _refused(path, number, f"`id` is {question.id!r}, which an earlier line has. Give each its own")
        questions[question.id] = question
    if not questions:
        raise OptionError(f"{str(path)!r} holds no question. Write a JSON object with `video` and `question` a line.")
    return list(questions.values())


def _question(line: str, number: int, path: Path) -> Question:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise _refused(path, number, f"it is no JSON ({error}). Write one JSON object a line") from None
    if not isinstance(given, dict):
        raise _refused(path, number, f"it holds a {type(given).__name__}. Write one JSON object a line")
    for key in ("video", "question"):
        if not isinstance(given.get(key), str) or not given[key].strip():
            raise _refused(path, number, f"`{key}` is {given.get(key)!r}, but must be a text")
    answers, choices = _texts(given, "answer", path, number), _texts(given, "choices", path, number)
    if choices is not None and (isinstance(given["choices"], str) or not 2 <= len(choices) <= len(LETTERS)):
        raise _refused(path, number, f"`choices` is {given['choices']!r}, but must be a list of 2 to 26 texts")
    if choices is not None and len(set(map(normalised, choices))) < len(choices):
        raise _refused(path, number, f"`choices` {list(choices)} differ in case or punctuation alone. Tell them apart")
    if choices is not None and answers is not None:
        right = named_choice(answers[0], choices)
        if len(answers) != 1 or right is None:
            raise _refused(
                path, number, f"`answer` is {given['answer']!r}, but must be one of `choices`, or its letter"
            )
        answers = (choices[right],)
    kind = given.get("kind")
    if kind is not None and not isinstance(kind, str):
        raise _refused(path, number, f"`kind` is {kind!r}, but must be a text")
    video = given["video"]
    if not video.startswith(("http://", "https://")):
        video = str(path.parent / Path(video).expanduser())
    return Question(str(given.get("id", number)), video, given["question"], answers, choices, kind, given)


def _texts(given: dict[str, Any], key: str, path: Path, number: int) -> tuple[str, ...] | None:
    """One text or a list of them; None if the key is missing or null."""
    value = given.get(key)
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise _refused(path, number, f"`{key}` is {value!r}, but must be a text or a list of texts")
    return tuple(texts)


def _refused(path: Path, number: int, reason: str) -> OptionError:
    return OptionError(f"line {number} of {str(path)!r} is no question: {reason}.")
