"""The options of questions in the forms of data sets, and which one is right. Nothing here imports PyTorch.

Text that looks like options but cannot be read for certain is refused. Otherwise right answers would count as wrong,
and no figure would tell. The OptionErrors hold only the reason, without a full stop.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import OptionError, brief
from .named_choice import LETTERS, PUNCTUATION, normalised

LABELS_READ = 200  # at the end of a question
GIVE_CHOICES = "Give `choices`, a list of the options' texts"
_BEFORE = r"""(?P<before>(?i:(?:option|choice|candidate|caption|sentence)\s*)?(?:[(\[（【]\s*)?)
    (?P<label>[A-Za-z]|\d{1,2})"""
# The label before an option: "A.", "(A)", "a)", "[A]", "A、", "（A）", "**A.**", "1.", "Option 1:"; but not in "1.5"
LABEL = re.compile(rf"""(?x)(?<![\dA-Za-zÀ-ɏ'’-])[*_]{{0,3}}{_BEFORE}
    (?P<after>[*_]{{0,3}}\s?[)\]）】.:、．：](?!(?<=\d[.:．：])\d)[*_]{{0,3}}[.:、．：]?[*_]{{0,3}}\s*)""")
_SIGNS = rf"[\s（）{re.escape(PUNCTUATION)}]*"
LABEL_ALONE = re.compile(rf"(?x){_SIGNS}?{_BEFORE}{_SIGNS}")
# Keys of data sets for all options, and for one: "options", "answer_choices"; "A", "option_a", "a0", "Option 0"
OF_OPTIONS = re.compile(r"(?:\w+[ _-])?(?:option|choice|candidate)s?", re.I)
OF_AN_OPTION = re.compile(r"(?:(?:option|choice|candidate)s?[ _-]?)?[a-j0-9]|a[ _-]?\d", re.I)


class Options(NamedTuple):
    """Options with their labels. They are not certain if others may be meant, or if the question comes after them."""

    texts: tuple[str, ...]
    labels: Sequence[str] = LETTERS
    certain: bool = True


def options_in(text: str) -> Options | None:
    """Return the options that a text shows, read from its end; None without. Those on lines of their own come first,
    since within lines there may be initials, as of "Samuel L. Jackson"."""
    labels = list(LABEL.finditer(text))[-LABELS_READ:]
    own = [each for each in labels if not re.search(r"\w", text[: each.start()].rpartition("\n")[2])]
    lettered = [each for each in own if each["label"].isalpha()]
    for some in (own, labels):
        for first in sorted(some, key=lambda each: (each["label"].isalpha(), each.start()), reverse=True):
            chain = [first] if first["label"] in "Aa01" else []
            for each in some:
                if chain and _form(each, -1) == _form(chain[-1]):
                    between = text[chain[-1].end() : each.start()].rstrip("-*• \n")
                    if between.strip(" ,;/.") not in ("", "and", "or") and (some is own or "\n" not in between):
                        chain.append(each)
            if 1 < len(chain) <= len(LETTERS) and not (lettered and lettered[-1].start() > chain[-1].start()):
                ends = [*(each.start() for each in chain[1:]), len(text)]
                lines = [text[each.end() : end].strip().split("\n")[0] for each, end in zip(chain, ends, strict=True)]
                texts = tuple(re.sub(r"(?:\s[-*•]|[,;\s])+$", "", line) for line in lines)
                asks = [bool(re.search("[?？]", part)) for part in (text[: first.start()], text[first.start() :])]
                return Options(texts, [each["label"] for each in chain], certain=asks != [False, True])
    unread = tuple(text[each.start() :].split("\n")[0] for each in lettered)
    return Options(unread, (), certain=False) if len(unread) > 1 else None


def _form(found: re.Match[str], add: int = 0) -> tuple[object, ...]:
    """Return what the labels of a question's options share, and the number of this one, to which `add` is added."""
    label = found["label"]
    number = int(label) if label.isdigit() else LETTERS.index(label.upper())
    return found["before"].strip().lower(), found["after"].strip(), label.isdigit(), label.islower(), number + add


def options_of(given: Mapping[str, Any], answers: Sequence[str] | None) -> Options | None:
    """Return the options that a line gives, or else those that its question shows; None for an open question. Raises an
    OptionError on bad options, and on a question or an answer that looks as if there were others.

    Letters stand for options unless several wordings are right. Numbers may count anything, such as steps. They stand
    for options only if the right answer is one of them."""
    options, shown = choices_of(given), options_in(given["question"])
    if options and shown and shown.texts != options.texts and sorted(shown.texts) == sorted(options.texts):
        raise OptionError("`choices` are in another order than in `question`. Leave them out of one of the two")
    if options is None and shown is not None:
        named = any(stated_option(each, shown) is not None for each in answers or ())
        if not shown.certain and (named or not shown.labels):
            raise OptionError(
                f"{brief(list(shown.texts))} in `question` read like options, but are not in one form and order behind "
                f"the question. {GIVE_CHOICES}, and leave them out of it"
            )
        if shown.certain and (named or (shown.labels[0].isalpha() and len(answers or "?") == 1)):
            return shown
    if options is None and answers is not None and len(answers) == 1:
        answer = answers[0].strip()
        found = LABEL_ALONE.fullmatch(answer) or LABEL.match(answer)
        if found and (found["before"] or found["label"].isalpha()) and not re.match(r"[A-Z]\.", answer[found.end() :]):
            raise OptionError(
                f"`answer` is {brief(answer)}, which reads like the label of an option, but the question has none. "
                f'{GIVE_CHOICES}. If it is meant as it is, give a second wording: ["{answer}", "the letter {answer}"]'
            )
    return options


def right_option(answers: Sequence[str], options: Options, key: str = "answer") -> int:
    """Return the number of the option that a right answer states. Raises an OptionError if it does not state one."""
    number = stated_option(answers[0], options) if len(answers) == 1 else None
    if number in (None, -1):
        raise OptionError(
            f"`{key}` is {brief(list(answers))}, but must be one of the options {brief(list(options.texts))}: its "
            f"text, its label or, where these are two options, both. {GIVE_CHOICES}, if there are others"
        )
    return number


def stated_option(answer: str, options: Options) -> int | None:
    """Return the number of the option that an answer states by its text, its label or both; None if it states none, and
    -1 if it is the text of one and the label of another."""
    texts, labels, answer = list(map(normalised, options.texts)), [*map(str.upper, options.labels)], answer.strip()
    by_text = texts.index(normalised(answer)) if texts.count(normalised(answer)) == 1 else None
    found = LABEL_ALONE.fullmatch(answer) or LABEL.match(answer)
    number = labels.index(found["label"].upper()) if found and found["label"].upper() in labels else len(texts)
    if not found or number >= len(texts) or normalised(answer[found.end() :]) not in ("", texts[number]):
        return by_text
    return number if by_text in (None, number) else -1


def choices_of(given: Mapping[str, Any]) -> Options | None:
    """Return the options by the key `choices`, without labels that they bring ("A. a cat"); None without. Raises an
    OptionError on bad ones, and on options under other keys."""
    choices = texts_of(given, "choices")
    if choices is None:
        _check_no_options(given)
        return None
    if isinstance(given["choices"], str) or not 2 <= len(choices) <= len(LETTERS):
        raise OptionError(f"`choices` is {brief(given['choices'])}, but must be a list of 2 to 26 texts")
    found, labels = options_in("\n".join(" ".join(each.split()) for each in choices)), list(map(LABEL.match, choices))
    if found is not None and found.labels and len(found.texts) == len(choices):
        choices = found.texts
    elif sorted(each["label"] if each else "" for each in labels) == list(LETTERS[: len(choices)]):
        raise OptionError(f"`choices` {list(choices)} bring letters in another order. Sort or remove the letters")
    else:
        found = Options(choices)
    if len(set(map(normalised, choices))) < len(choices):
        raise OptionError(f"`choices` {list(choices)} differ in case or punctuation alone. Tell them apart")
    return found


def _check_no_options(given: Mapping[str, Any]) -> None:
    """Check that a line whose question shows no options has none under other keys than `choices`. Raises an OptionError
    if it does."""
    of_texts = {key: each for key, each in given.items() if isinstance(each, str | list | tuple | Mapping)}
    every = [key for key, each in of_texts.items() if OF_OPTIONS.fullmatch(str(key)) and not str(each).isalnum()]
    single = [key for key in of_texts if OF_AN_OPTION.fullmatch(str(key))]
    names = every or (single[:2] if len(single) > 1 else [])
    if names and options_in(str(given.get("question", given.get("prompt")))) is None:
        raise OptionError(
            f"{' and '.join(map(repr, names))} ({brief(given[names[0]])}) read like options, which the model would not "
            f"see. {GIVE_CHOICES}"
        )


def texts_of(given: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Return a text, or a list of texts, as a tuple; None without. Raises an OptionError on anything else."""
    texts = [given[key]] if isinstance(given.get(key), str) else given.get(key)
    if texts is None:
        return None
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise OptionError(f"`{key}` is {brief(given[key])}, but must be a text or a list of texts")
    return tuple(texts)
