"""The questions of `vidcom2 eval`, and when an answer counts as right. Nothing here imports PyTorch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checks import foreign_scheme, local_path
from ..configuration.compression_settings import SETTING_NAMES
from ..errors import OptionError, brief, did_you_mean, option_name, sentence
from ..records.jsonl import json_object, numbered_lines
from .named_choice import LETTERS, final_text, named_choice, normalised
from .options import Options, options_in, options_of, right_option, texts_of

# Keys of `vidcom2 run --requests` that hold for all questions of an evaluation
OF_ALL = ("max_new_tokens", "chat_template_kwargs", *SETTING_NAMES)
KNOWN_KEYS = ("id", "video", "question", "answer", "choices", "kind")
CHOICES_INSTRUCTION = "Answer with the letter of the right option."


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
        _ = self.right_choice  # is checked
        if not self.given:  # answers are known again by it
            line = {"video": self.video, "question": self.question, "answer": self.answers, "choices": self.choices}
            for name, value in line.items():
                if value is not None:
                    self.given[name] = list(value) if isinstance(value, tuple) else value

    @property
    def prompt(self) -> str:
        return prompt_of(self.question, self.choices)

    @property
    def right_choice(self) -> int | None:
        """The number of the right option; None without options or a right answer."""
        if self.choices is None or self.answers is None:
            return None
        if len(self.answers) == 1 and self.answers[0] in self.choices:
            return self.choices.index(self.answers[0])
        return right_option(self.answers, Options(self.choices), "answers")

    def is_correct(self, text: str) -> bool | None:
        """Tell whether a model's answer is right, by the option that it names or, without choices, by its `normalised`
        final text; None if that is not known."""
        if self.answers is None:
            return None
        if self.choices is not None:
            return named_choice(text, self.choices) == self.right_choice
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
    """Return the question. With choices, add a line for each behind a capital letter, and the request for a letter,
    unless the question shows them so itself."""
    shown = None if choices is None else options_in(question)
    if choices is None or (shown and shown.certain and shown.labels[0] == "A" and shown.texts == tuple(choices)):
        return question
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices)]
    return "\n".join([question, *lines, CHOICES_INSTRUCTION])


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
        name = ""
        try:
            given = json_object(line)
            name = f"question {brief(given['id'])}: " if "id" in given else ""
            question = _question(given, number, path.parent)
            if question.id in seen:
                raise OptionError(f"`id` is {question.id!r}, which an earlier line has. Give each line its own")
        except OptionError as reason:
            yield number, f"{name}{reason}"
            continue
        seen.add(question.id)
        yield number, question


# The OptionErrors below hold only the reason, without a full stop.


def _question(given: dict[str, Any], number: int, folder: Path) -> Question:
    for key in ("video", "question"):
        check_text(given, key)
    answers = texts_of(given, "answer")
    options = options_of(given, answers)
    if answers is not None and not all(map(normalised, answers)):
        raise OptionError(f"`answer` is {brief(given['answer'])}, but must have more than punctuation")
    if options is not None and answers is not None:
        answers = (options.texts[right_option(answers, options)],)
    kind = given.get("kind")
    if kind is not None and (not isinstance(kind, str) or len(kind.splitlines()) != 1):
        raise OptionError(f"`kind` is {brief(kind)}, but must be a text of one line")
    for name in (each for each in OF_ALL if given.get(each) is not None):
        option = {"compression_method": "--methods", "retention_ratio": "--ratios"}.get(name, option_name(name))
        raise OptionError(f"`{name}` holds for all questions. Pass it as {option}, or give your own key another name")
    video = video_from(given["video"], folder)
    choices = None if options is None else options.texts
    return Question(id_of(given, number), video, given["question"], answers, choices, kind, given)


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
    """Return the video that a line of a file in this folder names: a URL unchanged, of which reading may refuse the
    scheme, and a path relative to the folder."""
    path = local_path(video)
    return video if path is None or foreign_scheme(video) else str(folder / path)
