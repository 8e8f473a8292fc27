"""The questions of `vidcom2 eval`, and when an answer counts as right. Nothing here imports PyTorch."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checks import local_path
from ..errors import OptionError, brief, did_you_mean, sentence
from ..records.jsonl import json_object, numbered_lines
from .named_choice import LETTERS, final_text, named_choice, normalised

KNOWN_KEYS = ("id", "video", "question", "answer", "choices", "kind")
CHOICES_INSTRUCTION = "Answer with the letter of the right option."
# "B", "(b)", "B. a dog"; the letter of a right answer, with or without its text
LETTERED = re.compile(r"\W*([A-Za-z])(?:\W*$|[.):]\s*(?=\S)(.*))", re.S)
# An option in a question: "A. a dog", "(A) a dog"
IN_QUESTION = re.compile(r"(?:^|\s)\(?([A-Z])[.):]\s+")
# Keys under which data sets have an option each: "A", "option_A", "Option 0"
KEY_OF_AN_OPTION = re.compile(r"[A-J]|(?i:option|choice|candidate)[ _-]?[A-Ja-j0-9]")


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
        given: the line as it is in the file, with the user's own keys; of a question that is no line, what one would
            hold.

    Raises:
        OptionError: on right answers or options that no answer of a model could match.
    """

    id: str
    video: str
    question: str
    answers: tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = None
    kind: str | None = None
    given: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, texts, says in (("answers", self.answers, normalised), ("choices", self.choices, str.strip)):
            of_texts = not isinstance(texts, str) and all(isinstance(each, str) and says(each) for each in texts or ())
            if texts is not None and not (texts and of_texts):
                raise OptionError(f"`{name}` is {brief(texts)}, but must be a tuple of texts, at least one")
        if self.answers is not None and self.choices is not None:
            is_choice = len(self.answers) == 1 and self.answers[0] in self.choices
            if not is_choice and right_option(self.answers, self.choices) is None:
                raise OptionError(f"`answers` is {brief(self.answers)}, but must be one of `choices`, or its letter")
        if not self.given:  # answers are known again by it
            line = {"video": self.video, "question": self.question, "answer": self.answers, "choices": self.choices}
            for name, value in line.items():
                if value is not None:
                    self.given[name] = list(value) if isinstance(value, tuple) else value

    @property
    def prompt(self) -> str:
        return prompt_of(self.question, self.choices)

    def is_correct(self, text: str) -> bool | None:
        """Tell whether a model's answer is right; None if that is not known.

        With choices, the answer must name the right option, as `named_choice` reads it. Otherwise its final text must
        equal that of an accepted answer, both `normalised`.
        """
        if self.answers is None:
            return None
        if self.choices is not None:
            by_text = self.answers[0] in self.choices
            right = self.choices.index(self.answers[0]) if by_text else right_option(self.answers, self.choices)
            named = named_choice(text, self.choices)
            return named is not None and named == right
        return normalised(final_text(text)) in {normalised(answer) for answer in self.answers}

    def agree(self, text: str, other: str) -> bool:
        """Tell whether two answers name the same option or, if they name none, have the same `normalised` text."""
        named = [None if self.choices is None else named_choice(each, self.choices) for each in (text, other)]
        if named != [None, None]:
            return named[0] == named[1]
        # Two models that are still thinking agree only if they think the same.
        finals = [normalised(final_text(each)) or normalised(each) for each in (text, other)]
        return finals[0] == finals[1]

    def names_no_option(self, text: str) -> bool:
        """Tell whether an answer to a multiple choice question names none of its options, or several."""
        return self.choices is not None and named_choice(text, self.choices) is None


def prompt_of(question: str, choices: Sequence[str] | None) -> str:
    """Return the question. With choices, add a lettered line for each and the request for a letter, unless the question
    shows these options itself."""
    if choices is None or options_in(question) == tuple(choices):
        return question
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices)]
    return "\n".join([question, *lines, CHOICES_INSTRUCTION])


def options_in(question: str) -> tuple[str, ...] | None:
    """Return the texts of the options that a question itself shows behind the letters A, B and so on; None without."""
    _, *parts = IN_QUESTION.split(question)
    letters, texts = parts[::2], tuple(part.strip().split("\n")[0].strip() for part in parts[1::2])
    return texts if len(texts) > 1 and "".join(letters) == LETTERS[: len(letters)] and all(texts) else None


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
    if choices is None and answers is not None and all(re.fullmatch(r"\(?[A-Z]\)?\.?", each) for each in answers):
        choices = options_in(given["question"])  # the right answer is a letter of these
    if choices is None and answers is not None and len(answers) == 1:
        _check_no_lone_letter(answers[0], given["question"])
    if answers is not None and not all(map(normalised, answers)):
        raise OptionError(f"`answer` is {brief(given['answer'])}, but must have more than punctuation")
    if choices is not None and answers is not None:
        right = right_option(answers, choices)
        if right is None:
            raise OptionError(f"`answer` is {brief(given['answer'])}, but must be one of `choices`, or its letter")
        answers = (choices[right],)
    kind = given.get("kind")
    if kind is not None and (not isinstance(kind, str) or len(kind.splitlines()) != 1):
        raise OptionError(f"`kind` is {brief(kind)}, but must be a text of one line")
    if "chat_template_kwargs" in given:
        raise OptionError("`chat_template_kwargs` holds for all questions. Pass it as --chat-template-kwargs")
    video = video_from(given["video"], folder)
    return Question(id_of(given, number), video, given["question"], answers, choices, kind, given)


def _check_no_lone_letter(answer: str, question: str) -> None:
    """Check that the right answer to a question without options is no letter of one. Raises an OptionError if it is.

    A letter that the question mentions is accepted: it may show options in a form that `options_in` does not read.
    """
    found = re.fullmatch(r"\(?([A-Za-z])\)?\.?", answer.strip())
    if found and not re.search(rf"(?<![A-Za-z]){found[1]}(?![A-Za-z])", question, re.I):
        raise OptionError(
            f"`answer` is {brief(answer)}, which reads like the letter of an option, but the question shows none. Give "
            "`choices`, a list of the options' texts. If the letter itself is right, write "
            f'["{found[1]}", "the letter {found[1]}"]'
        )


def right_option(answers: Sequence[str], choices: Sequence[str]) -> int | None:
    """Return the number of the option that a right answer states by its text, its letter or both; None if it states
    none. Raises an OptionError if it is the text of one and the letter of another."""
    if len(answers) != 1:
        return None
    texts, answer = list(map(normalised, choices)), normalised(answers[0])
    by_text = texts.index(answer) if answer in texts else None
    found = LETTERED.fullmatch(answers[0])
    by_letter = LETTERS.index(found[1].upper()) if found else len(choices)
    with_text = found[2] if found else None
    if by_letter >= len(choices) or (with_text and normalised(with_text) != texts[by_letter]):
        return by_text
    if by_text not in (None, by_letter):
        raise OptionError(
            f"`answer` is {answers[0]!r}, which is the letter of {choices[by_letter]!r} and the text of option "
            f"{LETTERS[by_text]}. Write {f'{LETTERS[by_text]}. {choices[by_text]}'!r}, or the other in the same way"
        )
    return by_letter


def id_of(given: Mapping[str, Any], number: int) -> str:
    """Return the id that a line gives, or else its number. Raises an OptionError if it is no text or whole number."""
    name = given.get("id")
    if name is None:
        return str(number)
    if isinstance(name, bool) or not isinstance(name, str | int) or not str(name).strip():
        raise OptionError(f"`id` is {brief(name)}, but must be a text or a whole number")
    return str(name)


def check_text(given: Mapping[str, Any], key: str) -> None:
    """Check that the value of a key is a text that is not blank. Raises an OptionError if not."""
    if key not in given:
        raise OptionError(f"`{key}` is missing{_meant(given, key)}")
    if not isinstance(given.get(key), str) or not given[key].strip():
        raise OptionError(f"`{key}` is {brief(given.get(key))}, but must be a text")


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
    """Return the options of a multiple choice question, without letters that they bring ("A. a cat"); None for other
    questions. Raises an OptionError on bad ones."""
    choices = _texts(given, "choices")
    if choices is None:
        _check_no_options(given)
        return None
    if isinstance(given["choices"], str) or not 2 <= len(choices) <= len(LETTERS):
        raise OptionError(f"`choices` is {brief(given['choices'])}, but must be a list of 2 to 26 texts")
    lettered = [re.match(r"\s*\(?([A-Z])[.):]\s*(?=\S)", choice) for choice in choices]
    if all(lettered):
        letters = "".join(each[1] for each in lettered if each)
        if letters == LETTERS[: len(choices)]:
            choices = tuple(choice[each.end() :] for choice, each in zip(choices, lettered) if each)
        elif sorted(letters) == sorted(LETTERS[: len(choices)]):
            raise OptionError(f"`choices` {list(choices)} bring letters in another order. Sort or remove the letters")
    if len(set(map(normalised, choices))) < len(choices):
        raise OptionError(f"`choices` {list(choices)} differ in case or punctuation alone. Tell them apart")
    return choices


def _check_no_options(given: Mapping[str, Any]) -> None:
    """Check that a line without `choices` has no options under other keys. Raises an OptionError if it does."""
    for name in ("choice", "options", "candidates"):
        value = given.get(name)
        if isinstance(value, str):
            is_options = options_in(value) is not None or value.strip().startswith(("[", "{"))  # a list as a text
        else:
            is_options = isinstance(value, list | tuple | Mapping)
        if is_options:
            raise OptionError(
                f"`{name}` is {brief(value)}, which the model would not see. Call it `choices`, a list of the "
                "options' texts"
            )
    names = [key for key, value in given.items() if isinstance(value, str) and KEY_OF_AN_OPTION.fullmatch(str(key))]
    if len(names) > 1 and options_in(str(given.get("question", given.get("prompt")))) is None:
        raise OptionError(
            f"{names[0]!r} and {names[1]!r} read like options, which the model would not see. Give their texts as a "
            "list by the key `choices`"
        )


def _texts(given: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Return a text, or a list of texts, as a tuple; None if the key is missing or null."""
    value = given.get(key)
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise OptionError(f"`{key}` is {brief(value)}, but must be a text or a list of texts")
    return tuple(texts)
