"""The questions of `vidcom2 eval`, and when an answer counts as right. Nothing here imports PyTorch."""

import re
import string
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checks import local_path
from ..errors import OptionError, did_you_mean, sentence
from ..records.jsonl import json_object, numbered_lines

KNOWN_KEYS = ("id", "video", "question", "answer", "choices", "kind")
LETTERS = string.ascii_uppercase
CHOICES_INSTRUCTION = "Answer with the letter of the right option."
# Stripped from both ends of each word. Signs of numbers stay, and so does punctuation inside words.
PUNCTUATION = ".,;:!?\"'`()[]{}<>*_“”‘’«»…。，、！？；："
# "B", "(b)", "B.", "B: a cat", "The answer is B." A letter with more text needs a mark after it: "A dog" is no letter.
LETTER = re.compile(
    r"\W*(?:(?:the )?(?:(?:best|correct|right) )?(?:answer|option)(?: is)?\W+)?([a-z])(?:\W*|[.):,\n].*)", re.I | re.S
)


@dataclass(frozen=True)
class Question:
    """A question about a video.

    Attributes:
        id: its own id, or the number of its line.
        video: a path, absolute or from the current folder, or an http(s) URL.
        question: the question as in the file; `prompt` is what the model reads.
        answers: the answers that count as right; with choices, only the right one. None if no right answer is known.
        choices: the options of a multiple choice question; None for other questions.
        kind: a label; questions of one kind are also counted by themselves.
        given: the line as it is in the file, with the user's own keys.
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
        return prompt_of(self.question, self.choices)

    def is_correct(self, text: str) -> bool | None:
        """Tell whether a model's answer is right; None if that is not known.

        With choices, the answer must name the right option. Otherwise its `normalised` text must equal that of an
        accepted answer.
        """
        if self.answers is None:
            return None
        return self.meaning(text) in {self.meaning(answer) for answer in self.answers}

    def agree(self, text: str, other: str) -> bool:
        """Tell whether two answers name the same option or, if they name none, have the same `normalised` text."""
        return self.meaning(text) == self.meaning(other)

    def meaning(self, text: str) -> str | int:
        """Return the number of the option that an answer names by text or letter, or else its normalised text."""
        if self.choices is None:
            return normalised(text)
        number = named_choice(text, self.choices)
        return normalised(text) if number is None else number


def prompt_of(question: str, choices: Sequence[str] | None) -> str:
    """Return the question. With choices, add a lettered line for each and the request for a letter."""
    if choices is None:
        return question
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices)]
    return "\n".join([question, *lines, CHOICES_INSTRUCTION])


def normalised(text: str) -> str:
    """Return a text in lower case, without double spaces and punctuation around words: `"A  car!"` is `"a car"`."""
    words = unicodedata.normalize("NFKC", text).casefold().split()
    return " ".join(filter(None, (word.strip(PUNCTUATION) for word in words)))


def named_choice(text: str, choices: Sequence[str]) -> int | None:
    """Return the number of the option that an answer names by its `normalised` text, or else by its letter, or None.

    A letter counts if it stands alone, or if `.`, `)`, `:`, `,` or a new line follows it. "The answer is" or the like
    may precede it.
    """
    texts = [normalised(choice) for choice in choices]
    if normalised(text) in texts:
        return texts.index(normalised(text))
    found = LETTER.fullmatch(text)
    number = LETTERS.index(found[1].upper()) if found else len(choices)
    return number if number < len(choices) else None


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """Read the questions of a JSONL file, which has a JSON object on each line. Empty lines are skipped.

    Args:
        limit: read only this many, from the start of the file.

    Raises:
        OptionError: on a file that cannot be read or is empty, and on a line that is no question. It names the line.
    """
    questions: dict[str, Question] = {}
    for number, question in checked_questions(path):
        if limit is not None and len(questions) == limit:
            break
        if isinstance(question, str):
            raise OptionError(f"line {number} of {str(path)!r} is no question: {sentence(question)}")
        questions[question.id] = question
    if not questions:
        raise OptionError(f"{str(path)!r} holds no question. Write one JSON object with `video` and `question` a line.")
    return list(questions.values())


def checked_questions(path: Path) -> Iterator[tuple[int, Question | str]]:
    """Yield each line's number with its question, or with the reason why it holds none.

    Raises:
        OptionError: on a file that cannot be read.
    """
    seen = set()
    for number, line in numbered_lines(path, "questions"):
        try:
            question = _question(json_object(line), number, path.parent)
            if question.id in seen:
                raise OptionError(f"`id` is {question.id!r}, which an earlier line has. Give each line its own")
        except OptionError as reason:
            yield number, str(reason)
            continue
        seen.add(question.id)
        yield number, question


# The OptionErrors below hold only the reason, without a full stop.


def _question(given: dict[str, Any], number: int, folder: Path) -> Question:
    for key in ("video", "question"):
        check_text(given, key)
    answers, choices = _texts(given, "answer"), choices_of(given)
    if choices is not None and answers is not None:
        right = named_choice(answers[0], choices)
        if len(answers) != 1 or right is None:
            raise OptionError(f"`answer` is {given['answer']!r}, but must be one of `choices`, or its letter")
        answers = (choices[right],)
    kind = given.get("kind")
    if kind is not None and not isinstance(kind, str):
        raise OptionError(f"`kind` is {kind!r}, but must be a text")
    video, name = video_from(given["video"], folder), str(given.get("id", number))
    return Question(name, video, given["question"], answers, choices, kind, given)


def check_text(given: Mapping[str, Any], key: str) -> None:
    """Check that the value of a key is a text that is not blank. Raises an OptionError if not."""
    if key not in given:
        raise OptionError(f"`{key}` is missing{_meant(given, key)}")
    if not isinstance(given.get(key), str) or not given[key].strip():
        raise OptionError(f"`{key}` is {given.get(key)!r}, but must be a text")


def _meant(given: Mapping[str, Any], key: str) -> str:
    """Return a hint at the key of a line that may stand for one that it lacks."""
    if key == "question" and "prompt" in given:
        return ". `prompt` is a key of `vidcom2 run --requests`; for `vidcom2 eval` call it `question`"
    hint = did_you_mean(key, given.keys() - {*KNOWN_KEYS, "prompt"})
    return f".{hint.replace('Did you mean', 'Did you mean it by the key')}" if hint else ""


def video_from(video: str, folder: Path) -> str:
    """Return the video that a line of a file in this folder names: a URL unchanged, a path relative to the folder."""
    path = local_path(video)
    return video if path is None else str(folder / path)


def choices_of(given: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the options of a multiple choice question; None for other questions. Raises an OptionError on bad ones."""
    choices = _texts(given, "choices")
    if choices is None:
        return None
    if isinstance(given["choices"], str) or not 2 <= len(choices) <= len(LETTERS):
        raise OptionError(f"`choices` is {given['choices']!r}, but must be a list of 2 to 26 texts")
    if len(set(map(normalised, choices))) < len(choices):
        raise OptionError(f"`choices` {list(choices)} differ in case or punctuation alone. Tell them apart")
    return choices


def _texts(given: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Return a text, or a list of texts, as a tuple; None if the key is missing or null."""
    value = given.get(key)
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise OptionError(f"`{key}` is {value!r}, but must be a text or a list of texts")
    return tuple(texts)
