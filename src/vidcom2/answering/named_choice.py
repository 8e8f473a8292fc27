"""Which option of a multiple choice question the text of a model names. Nothing here imports PyTorch.

Public evaluations decide this differently. Video-MME's takes the first capital of A to D, so that "A man walks" is A.
MMMU's takes the last letter, and draws one at random where there is none. VLMEvalKit takes the only letter or text, and
asks another model otherwise. Here a letter must be declared, or be the only one that is named; nothing is guessed.
"""

import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

LETTERS = string.ascii_uppercase
# Stripped from both ends of each word. Signs of numbers stay, and so does punctuation inside words.
PUNCTUATION = ".,;:!?\"'`()[]{}<>*_“”‘’«»…。，、！？；：【】「」"

# What encloses the thoughts of models, in the families' chat templates. The last two are Gemma 4's.
THOUGHT_MARKS = ("<think>", "</think>", "<|channel>", "<channel|>")
BEGINS_THOUGHT, ENDS_THOUGHT = re.compile(r"<think(?:ing)?>|<\|channel>"), re.compile(r"</think(?:ing)?>|<channel\|>")
# What models put a final answer into: LaTeX, the tags of models that were trained with rewards, and GLM's tokens.
BOX = re.compile(
    r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)(?:\}|$)|<answer>(.*?)(?:</answer>|$)"
    r"|<\|begin_of_box\|>(.*?)(?:<\|end_of_box\|>|$)",
    re.S | re.I,
)
LATEX = re.compile(r"\\[A-Za-z]+\s*\{([^{}]*)\}")  # \text{B}

# A letter that stands alone. "A" and "I" are words too, so only what follows them makes them letters.
_WORD = "A-Za-z0-9\u00c0-\u024f"
LETTER = re.compile(
    rf"(?<![{_WORD}&°-])(?<![A-Za-z]['’.])(?<![Nn]/)"
    rf"(?:[B-HJ-Z](?![{_WORD}&+#]|['’][A-Za-z]|-[A-Za-z0-9]|\.[A-Za-z]\.)"
    rf"|A(?=['\"”»*_`$]|\s*(?:[^\s{_WORD}'\"”»*_`$&+#-]|$|[-–—]\s|\n|(?:and|or|nor|is|isn['’]t|are|because|since|as)\b))"
    r"|I(?=\s*(?:[.):\]】]|$))"
    r"|(?<=[(\[【])[a-z](?=[)\]】.:]))"
)
# A small letter counts only in brackets, or where a statement begins.
SMALL = re.compile(
    r"(?:[\W_]|\b(?:the|option|choice|letter)\b)*\b([a-z])"
    r"(?=[\W_]*$|\s*[.):\]】,;*_\n](?![a-z]\.)|\s+(?:because|since|is)\b)"
)
BETWEEN = re.compile(
    r"[\s)\]】.*_\"']*(?:,|/|、|\b(?:and|or|nor)\b|[和与或])[\s(\[【*_\"']*(?:(?:and|or|option)\s+)*[\s(\[【*_\"']*"
)
_OPENS = r"(?:[\W_]|\b(?:the|option|choice|letter|answer|be|it['’]?s|it\s+is|that)\b|选项)*"
NOT_BEFORE = re.compile(
    r"(?:\b(?:not|never|cannot|neither|than|instead\s+of|rul\w+\s+out|eliminat\w+|exclud\w+|except)|n['’]t|不是|不选|排除)"
    rf"(?:\s+(?:choose|select|pick|think|believe|say))?{_OPENS}$",
    re.I,
)
_CLOSES = r"[\s)\]】}\"'*_`]*"
_FALSE = r"(?:incorrect|wrong|false|unlikely|impossible|ruled\s+out|eliminated|excluded|not)\b"
NOT_AFTER = re.compile(
    rf"{_CLOSES}(?:(?:is|are|was|can|could|do|does|must|would|should)\s*(?:not\b|n['’]t)|cannot\b|(?:选?项)?(?:不|是?错)"
    rf"|(?:is|are|was|seems?|looks?|can\s+be|must\s+be|would\s+be)\s+(?:\w+ly\s+)?{_FALSE})",
    re.I,
)
_TRUE = (
    r"(?:correct|right|accurate|likely|plausible|best|answer)"
    r"(?=\W*$|\s*[.,;:!*_)\n]|\s+(?:answer|option|choice|one|because|since|as)\b)"
)
TRUE_AFTER = re.compile(
    rf"{_CLOSES}(?:[:–—-]\s*)?(?:(?:is|are|must\s+be|would\s+be|should\s+be|seems?|looks|appears)\s+(?:to\s+be\s+)?)?"
    rf"(?:the\s+)?(?:(?:only|most|more|best)\s+)*{_TRUE}|{_CLOSES}(?:选?项)?是?(?:正确|对的)",
    re.I,
)
LEADS = re.compile(r"\s*(?:$|[^\s\w]|[_\n]|(?:because|since|as)\b)")  # what follows a letter that begins a statement
# What declares an answer: "the answer is", "Answer:", "the correct option would be", "答案是".
_SUBJECT = (
    r"(?:\b(?:answers?|(?<!each\s)(?<!every\s)(?:option|choice)|respuesta|resposta|réponse|antwort)\b"
    r"|答案|选项|정답|答え|ответ)"
)
ANSWER = re.compile(
    rf"{_SUBJECT}(?:(?!n['’]t|\bnot\b|\bnever\b|\bcannot\b|不|{_SUBJECT})[^.!?;\n]){{0,60}}?"
    r"(?:\b(?:is|are|be|est|es|é|ist)\b|(?<!不)[是为]|[:=는은は]|\s[-–—]\s)",
    re.I,
)
CHOSEN = re.compile(
    r"\b(?:answer|so|therefore|thus|hence|choose|chose|pick|select|go(?:ing)?\s+with|think|believe|guess|say|must\s+be)\b|(?<!不)选择?",
    re.I,
)

# What comes right before a declaration that is not the model's answer: "the wrong option is A", "I did not choose A".
ANOTHERS = re.compile(
    r"(?:\b(?:not|never|other|wrong|incorrect|second|third|next(?:\s+best)?|alternative|worst)|n['’]t)(?:\s+\w+)?\s+$",
    re.I,
)
# What makes it no declaration: "one might think A", "at first I thought A", "if it meowed, the answer would be A".
SUPPOSED = re.compile(
    r"\b(?:might|may|could)\b(?:\s+\w+){0,3}\s*$"
    r"|\b(?:one|you|some|many|others|people)(?:\s+\w+){0,2}\s*\b(?:choose|pick|select|think|believe|guess|say)$"
    r"|\b(?:at\s+first|initially)\b(?:(?!\bbut\b)[^.!?\n])*$"
    r"|\bif\b(?:(?!\bbut\b)[^.!?\n])*\b(?:would|was|were)\b(?:(?!\bbut\b)[^.!?\n])*$",
    re.I,
)
# After these, "so B" takes back what was declared before.
AGAIN = re.compile(r"\b(?:wait|actually|correction|sorry|hold\s+on|second\s+thought|hmm+)\b[^\n]*$", re.I)
OF_AN_OPTION = re.compile(r"(?<!\w)[A-HJ-Z](?!\w)")  # "option A is" tells about A, not about the answer
STATEMENT = 400  # characters after "the answer is" that are read as the answer
TWO = -1  # stands for an option where two are named


def normalised(text: str) -> str:
    """Return a text in lower case, without double spaces and punctuation around words: `"A  car!"` is `"a car"`."""
    words = unicodedata.normalize("NFKC", text).casefold().split()
    return " ".join(filter(None, (word.strip(PUNCTUATION) for word in words)))


def final_text(text: str) -> str:
    r"""Return what a model answered at last: without its thoughts, and only the content of the last \boxed{}, <answer>
    or box of GLM's if there is one. It is empty if the model was still thinking."""
    text = BEGINS_THOUGHT.split(ENDS_THOUGHT.split(text)[-1])[0]
    boxes = ["".join(filter(None, found.groups())) for found in BOX.finditer(text)]
    text = next((box for box in reversed(boxes) if box.strip(" ._$…")), text)
    for _ in range(2):
        text = LATEX.sub(r"\1", text)
    return text


def named_choice(text: str, choices: Sequence[str]) -> int | None:
    """Return the number of the option that a model's text names; None if it names none, or several.

    The option whose text it is comes first. Then the letter that is declared last ("the answer is B", "B is correct",
    a line with B alone; without these also "so B" and "I choose B"), then the letter that the text begins with, then
    the only letter, then the option whose text alone occurs. Letters and texts after "not" and the like do not count,
    nor do suppositions ("one might think A") and what is said of another option ("option A is about a cat").
    """
    text = unicodedata.normalize("NFKC", final_text(text))
    found = _Reading(choices).of(text)
    return None if found == TWO else found


class _Group(NamedTuple):
    """Letters that a text names together, such as "A and B"."""

    start: int
    end: int
    options: frozenset[int]


class _Reading:
    """How texts are read that answer a question with these options. Its methods return an option, `TWO` or None."""

    def __init__(self, choices: Sequence[str]) -> None:
        self.texts = [normalised(choice) for choice in choices]
        words = [r"[\W_]+".join(map(re.escape, text.split())) or r"(?!)" for text in self.texts]
        self.patterns = [re.compile(self._alone(text, each), re.I) for text, each in zip(self.texts, words)]
        self.lettered = [
            re.compile(rf"(?<!\w)[(\[]?{letter}[)\].:,*_\s]+{each}", re.I) for letter, each in zip(LETTERS, words)
        ]
        self.with_letters = [  # such as "Person A"
            pattern
            for pattern, text, choice in zip(self.patterns, self.texts, choices)
            if len(text) > 1 and LETTER.search(unicodedata.normalize("NFKC", choice))
        ]

    @staticmethod
    def _alone(text: str, words: str) -> str:
        """Return a pattern for an option's text between other words. "Yes" and "no" must be whole statements."""
        if text in ("yes", "no"):
            return rf"(?:^|(?<=[.,;:!?\n(*_\"'])|(?<=\bis))[\s*_\"']{{0,9}}{words}(?=[\s*_\"']*(?:[.,;:!?)\n]|$))"
        return rf"(?<![{_WORD}-])(?<!\d[.,:]){words}(?![{_WORD}]|-\w|[.,:]\d)"

    def of(self, text: str) -> int | None:
        exact = self.exact(text)
        if exact is not None:
            return exact
        declared = self.declared(text)
        if declared is not None:
            return declared
        text = self.without_list(text)
        lines = [self.leading(line) for line in text.split("\n")]
        leading = {found for found in lines if found is not None}
        if len(leading) > 1:
            return TWO
        if leading and lines[0] is not None:
            return lines[0]
        letters = only(option for group in self.groups(text) for option in group.options)
        named = self.named(text)
        if letters is None or named is None or letters == named:
            return named if letters is None else letters
        return TWO

    def exact(self, text: str) -> int | None:
        """Return the option whose text this is. A letter of an option is not taken for its text."""
        whole = normalised(text)
        is_letter = len(whole) == 1 and whole.upper() in LETTERS[: len(self.texts)]
        return self.texts.index(whole) if whole in self.texts and whole and not is_letter else None

    def declared(self, text: str) -> int | None:
        """Return the option that is declared last as the answer, or, where none is, after "so", "I choose" and such."""
        masked, groups = self.masked(text), self.groups(text)
        found: list[tuple[bool, int, int | None]] = []  # whether it is declared as the answer, where, and the option
        for pattern, as_answer in ((ANSWER, True), (CHOSEN, False)):
            for each in pattern.finditer(masked):
                before = masked[max(0, each.start() - 60) : each.start()]
                if not (OF_AN_OPTION.search(each[0]) or ANOTHERS.search(before) or SUPPOSED.search(before + each[0])):
                    option = self.declared_at(text, each.end(), may_be_text=as_answer)
                    found.append((as_answer or bool(AGAIN.search(before)), each.end(), option))
        for group in groups:
            true = TRUE_AFTER.match(masked, group.end)
            if true and not SUPPOSED.search(masked[max(0, group.start - 60) : group.start] + true[0]):
                found.append((True, group.end, only(group.options)))
        alone = [group for group in groups if is_alone(masked, group)]
        if len({group.options for group in alone}) == 1:
            found.append((True, alone[-1].end, only(alone[-1].options)))
        for option, pattern in enumerate(self.lettered):  # "B. a dog: correct"
            found += [
                (True, each.end(), option) for each in pattern.finditer(text) if TRUE_AFTER.match(text, each.end())
            ]
        declared = [(as_answer, end, option) for as_answer, end, option in found if option is not None]
        return max(declared)[2] if declared else None

    def declared_at(self, text: str, start: int, may_be_text: bool) -> int | None:
        tail = text[start : start + STATEMENT].lstrip(" \t\n*_:\"'").split("\n")[0]
        option = self.leading(tail, anything_follows=True)
        if option is None and may_be_text:
            sentence = re.split(r"[.!?;](?:\s|$)", tail)[0]
            option = self.exact(sentence)
            if option is None:
                option = self.named(sentence)
            if option == TWO:  # "the answer is blue, because red is not seen"
                first = self.exact(re.split(r"[,(]|\b(?:because|since|as|not)\b", sentence)[0])
                return TWO if first is None else first
        return option

    def leading(self, text: str, anything_follows: bool = False) -> int | None:
        """Return the option whose letter a text begins with."""
        groups = self.groups(text)
        if groups and re.fullmatch(_OPENS, text[: groups[0].start], re.I):
            end = groups[0].end
            if re.match(rf"{_CLOSES}[?？]", text[end:]):  # "is it A? No, B."
                return None
            if anything_follows or LEADS.match(text, end) or self.follows(text, end, groups[0].options):
                return only(groups[0].options)
        small = SMALL.match(text)
        option = LETTERS.index(small[1].upper()) if small else len(self.texts)
        return option if option < len(self.texts) else None

    def follows(self, text: str, end: int, options: Iterable[int]) -> bool:
        """Tell whether the text of one of these options follows."""
        rest = normalised(text[end:])
        return any(self.texts[option] and rest.startswith(self.texts[option]) for option in options)

    def groups(self, text: str) -> list[_Group]:
        """Return the letters of options that a text names and does not deny."""
        masked = self.masked(text)
        groups: list[_Group] = []
        for found in LETTER.finditer(masked):
            option = LETTERS.index(found[0].upper())
            if option >= len(self.texts):
                continue
            last = groups[-1] if groups else None
            if last is not None and BETWEEN.fullmatch(masked, last.end, found.start()):
                groups[-1] = _Group(last.start, found.end(), last.options | {option})
            else:
                groups.append(_Group(found.start(), found.end(), frozenset({option})))
        return [group for group in groups if not self.is_denied(masked, group)]

    def is_denied(self, text: str, group: _Group) -> bool:
        if NOT_BEFORE.search(text[max(0, group.start - 60) : group.start]):
            return True
        return bool(NOT_AFTER.match(text, group.end)) and not self.follows(text, group.end, group.options)

    def masked(self, text: str) -> str:
        """Return a text with blanks in place of the options in whose texts letters stand."""
        for pattern in self.with_letters:
            text = pattern.sub(lambda found: " " * len(found[0]), text)
        return text

    def without_list(self, text: str) -> str:
        """Return a text without the options and their letters, if it repeats several of them."""
        if sum(bool(pattern.search(text)) for pattern in self.lettered) > 1:
            for pattern in self.lettered:
                text = pattern.sub(" ", text)
        return text

    def named(self, text: str) -> int | None:
        """Return the option whose text occurs in a text, and not as a part of another's."""
        spans = [(found.span(), i) for i, pattern in enumerate(self.patterns) for found in pattern.finditer(text)]
        return only(
            option
            for (start, end), option in spans
            if not any(a <= start and end <= b and b - a > end - start for (a, b), _ in spans)
            and not re.search(
                r"(?:\b(?:not|no|never|without|neither|nor|than|instead\s+of)|n['’]t)(?:\s+(?:an?|the|any))?\s*$",
                text[max(0, start - 30) : start],
                re.I,
            )
        )


def only(options: Iterable[int]) -> int | None:
    found = set(options)
    return None if not found else found.pop() if len(found) == 1 else TWO


def is_alone(text: str, group: _Group) -> bool:
    """Tell whether letters are all that is on their line."""
    before, after = text[: group.start].rpartition("\n")[2], text[group.end :].partition("\n")[0]
    return not re.search(r"\w", before + after)
