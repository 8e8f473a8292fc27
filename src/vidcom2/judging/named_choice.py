"""Which option of a multiple choice question a free answer names. Nothing here imports PyTorch.

`vidcom2 eval` reads answers so where a model thinks aloud or a candidate answers by itself. Nothing is guessed: an
option is named if it is declared as the answer, if the answer begins with it, or if no other is mentioned.
"""

import re
import string
import unicodedata
from collections.abc import Sequence
from functools import partial

from ..asking.thoughts import BEGINS_THOUGHT, ENDS_THOUGHT

LETTERS = string.ascii_uppercase
# Stripped from both ends of each word, except from the beginning of numbers such as -5, .5 and <5.
PUNCTUATION = ".,;:!?\"'`()[]{}<>*_“”‘’«»…。，、！？；：【】「」"
_OPENING = re.compile(rf"^[{re.escape(PUNCTUATION)}]*?(?=[<>]?=?[-+]?\.?\d|[^{re.escape(PUNCTUATION)}]|$)")
# Marks that enclose final answers: tags, LaTeX and GLM's tokens.
BOX = re.compile(r"""(?isx)\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)(?:\}|$)
    |<(?:answer|\|begin_of_box\|)>(.*?)(?:</answer>|<\|end_of_box\|>|$)""")
LATEX = re.compile(r"\\[A-Za-z]+\s*\{([^{}]*)\}")  # \text{B}

# To be read, an answer gets 𝐀 to 𝐙 for letters of options, 𝑨 to 𝒁 where these belong to names, and 𝐴 to 𝑍 for texts.
_ANY, _S, _W = "[𝐀-𝐙𝐴-𝑍]", r"[^.!?;\n]", "A-Za-z0-9À-ɏ"  # any of them, within a sentence, within a word
_AND, _N = "[ ]*(?:[,/、和与或][ ]*)?(?:(?:and|or|nor)[ ]+)?", rf"(?:(?!{_ANY}){_S}){{0,60}}?"
_A = rf"[𝐀-𝐙](?:{_AND}[𝐀-𝐙]){{0,25}}(?!{_AND}[𝐀-𝐙])"  # letters that are mentioned together
_D, _ALONE = _A.replace("𝐙", "𝐙𝑨-𝒁"), rf"^[^\w\n]*({_A})[^\w\n]*$"
_pattern = partial(re.compile, flags=re.I | re.M | re.X)
NEXT_TURN = _pattern(r"(?<=[\w.)])\W*?(?:\n\s*(?:question|q|human|user|problem)\b[\d ]*:|<\|im_|</s>)(?s:.)*")
SMALL = _pattern(r"""\A[\W_]*(?:(?:the|my|final|best|correct|right|answer|option|choice|letter|is)\b[\W_]*)*
    \b(?-i:[a-z])(?=[\W_]*$|\s*[.):\]】,;*_\n](?!(?-i:[a-z])\.)|\s+(?:because|since)\b)""")  # counts only here
NAME = _pattern(r"""(?<![^\W_])(?!(?:options?|choices?|cho[os]+e|select|pick|answer|letter|therefore|hence|thus|\w+ly
    |shows?|matches|fits|(?:leav|elimin|exclud)\w+|believe|think|guess|meant|because|n?either|both|then|than|rather
    |with|were|over|that|since)\b)(an?|row|[A-Z]{4,})[ ]([𝐀-𝐙])""")  # "vitamin C", "Plan B"
CORRECTED = _pattern(rf"\A(?s:.)*\b(?:wait|actually|correction|sorry|second\s+thought|meant)\b(?=(?s:.)*{_ANY})")
DENIED = _pattern(rf"""(?:\b(?:no|not|never|neither|nor|than|at\s+(?:least|most)|without|except|instead\s+of
    |rul\w+\s+out|(?:exclud|eliminat)\w+)\b|n['’]t\b|cannot|不是|不选|排除)(?:\s+(?:choose|pick|think|believe|say|that|is|it|be|an?|the
    |answer|it['’]s))*[\s(]{{0,3}}(?:{_D}|{_ANY})|{_D}(?:选?项)?(?:都?不|是?错|[ ]*[✗✘❌])|{_D}[ )]*(?:(?:is|are|was|can
    |could|do|does|must|would|should|seems?|looks?|be|ruled|\w+ly|all|less)[ ]+|[:–—-][ ]*)*(?:not|\w*n['’]t|cannot
    |incorrect|wrong|false|unlikely|(?<=less[ ])\w+|impossible|out|no|excluded|plausible)\b""")
OTHERS = _pattern(rf"\b(?:wrong|incorrect|others?|second|next|alternative|worst|remaining|rejected|tempting)\b{_S}*")
SUPPOSED = _pattern(rf"""(?=\b{_S}{{0,200}}\b(?:would|were|was)\b){_S}{{0,200}}\bif\b(?![ ]I[ ]ha){_S}*
    |\bif\b[^,.!?;\n]*|\b(?:at\s+first|initially|first\s+(?:thought|guess)|while|(?:al)?though|why|note|(?:one|you|some|many|others
    |people|nobody)\s+(?:might|may|could|would|will|say))\b(?:(?!,?\s+but\b|,\s+I\b){_S})*""")
ASKED, MAYBE = _pattern(rf"{_S}{{0,200}}\?"), _pattern(rf"\b(?:could|might|may)\b(?:(?!,?\s+but\b){_S})*")
ALONE, FIRST = _pattern(_ALONE), _pattern(rf"\A[\W_]*({_A})(?=\s*(?:$|[^\s\w]|_|(?:because|since|as)\b|{_ANY}))")
DECLARED = _pattern(rf"""(?:\b(?:answers?|ans|option|choice|respuesta|resposta|réponse|antwort|solution|conclusion
    |prediction|selected|result)\b|答案|选项|정답|答え|正解|ответ){_N}(?:\b(?:is|are|be|est|es|é|ist)\b|[是为:=는은は→]
    |->|[-–]\s){_N}({_A}|{_ANY})|({_A})[\s)*"']*(?:[:–—-]\s*)?(?:(?:is|are|must\s+be|would\s+be|seems|looks|appears)\s+
    (?:to\s+be\s+)?)?(?:the\s+)?(?:only\s+)?(?:correct|right|accurate|true|yes|best|most\s+\w+|(?:right|correct|best)?
    \s*(?:answer|one)|✓|✔)(?!\w)|({_A})(?:选?项)?是?(?:正确|对的)|{_ALONE}""")
CHOSEN = _pattern(rf"""(?:\b(?:answer|so|therefore|thus|hence|cho[os]+e|pick|select|go(?:ing)?\s+with|think|believe
    |guess|say|leav\w+|must\s+be)\b|选择?){_N}({_A})""")


def normalised(text: str) -> str:
    """Return a text in lower case, without double spaces and punctuation around words: `"A  car!"` is `"a car"`."""
    words = _plain(text).casefold().split()
    return " ".join(filter(None, (_OPENING.sub("", word, count=1).rstrip(PUNCTUATION) for word in words)))


def _plain(text: str) -> str:
    text = re.sub(r"(?<![\w)])[−–](?=\d)", "-", unicodedata.normalize("NFKC", text))
    return re.sub(r"([<>]=?)\s+(?=\d)", r"\1", text)  # signs stand at their numbers


def final_text(text: str) -> str:
    r"""Return what a model answered at last: without its thoughts, and only the content of the last \boxed{}, <answer>
    or box of GLM's if there is one. It is empty if the model was still thinking."""
    text = BEGINS_THOUGHT.split(ENDS_THOUGHT.split(text)[-1])[0]
    boxes = ["".join(filter(None, found.groups())) for found in BOX.finditer(text)]
    text = next((box for box in reversed(boxes) if box.strip(" ._$…")), text)
    return LATEX.sub(r"\1", LATEX.sub(r"\1", text))


def named_choice(text: str, choices: Sequence[str]) -> int | None:
    """Return the number of the option that a model's text names; None if it names none, or several."""
    text, texts = NEXT_TURN.sub("", _plain(final_text(text))), [normalised(choice) for choice in choices]
    whole = normalised(text)
    if whole and whole in texts and whole.upper() not in [*LETTERS[: len(texts)]]:
        return texts.index(whole)
    said = _with_mentions(SMALL.sub(lambda start: start[0].upper(), text), texts)
    asked, alone = (set(re.findall("[𝐀-𝐙]", "".join(each.findall(said)))) for each in (ASKED, ALONE))
    for pattern in (CORRECTED, DENIED, OTHERS, SUPPOSED, ASKED, *[ALONE] * (len(alone) > 1)):
        said = pattern.sub(" ", said)
    said = next((each for each in (MAYBE.sub(" ", said), said) if re.search(_ANY, each)), "")
    lists = len(asked) > 1 or len(set(re.findall(r"^[^\w\n]*([𝐀-𝐙])", said, re.M))) > 1
    for pattern in (DECLARED, CHOSEN, *[FIRST] * (not lists)):
        found = [next(filter(None, each.groups())) for each in pattern.finditer(said)]
        if found:
            said, lists = found[-1], False
            break
    kinds = "" if lists else "𝐀-𝐙𝑨-𝒁" if re.search("[𝐀-𝐙]", said) else "𝐴-𝑍"
    named = {(ord(mark) - ord("𝐀")) % 52 for mark in re.findall(f"[{kinds}]", said)} if kinds else ()
    return named.pop() if len(named) == 1 else None


def _with_mentions(text: str, texts: Sequence[str]) -> str:
    before, end = rf"(?<![{_W}&°-])(?<![A-Z]['’.])(?<!n/)", rf"(?![{_W}&+#%]|['’][A-Z]|-\w|[.,:/]\d|\.[A-Z]\.)"
    behind_it = "and|or|nor|isn?|are|would|because|since|as"
    no_word = rf"(?=[\"'”»*_`$]|\s*(?:[^\s{_W}\"'”»*_`$&+#-]|$|[-–—]\s|\n|(?:{behind_it})\b))"
    label, closes = r"(?:\b(?:the\s+)?(?:options?|choice|letter)\s+|选项\s*)[(\[*\"'`]*", r"[)\]}>\"'*_`$）】]*"
    forms: list[tuple[int, int, str]] = []  # how early it is tried, the number of its mark, and its pattern
    for number, (letter, option) in enumerate(zip(LETTERS, texts)):
        words, alone = r"[\W_]+".join(map(re.escape, option.split())) or "(?!)", no_word if letter in "AI" else ""
        one = rf"{before}(?:{label}(?-i:{letter}){closes}(?![{_W}])|(?-i:{letter}){closes}{end}{alone})"
        both = rf"(?<!\w)(?:{label})?{letter}[)\].:,*_\s-]+{words}(?![{_W}]){closes}"
        of_text = rf"(?<![{_W}<>=≤≥.+~≈#-])(?<![<>=≤≥]\s)(?<!\d[.,:/]){words}{end}"
        if option in ("yes", "no"):  # which must be whole statements
            of_text = rf"(?:^|(?<=[.,;:!?\n(*_\"'])|(?<=\bis\s))[\s*_\"']{{0,9}}{words}(?=[\s*_\"']*(?:[.,;:!?)\n]|$))"
        forms += [(0, number, one), (1000 + len(option), number, both)]
        forms += [(len(option), number + 52, of_text)] * (option.upper() not in [*LETTERS[: len(texts)]])
    forms.sort(reverse=True)
    pattern = re.compile("|".join(f"({pattern})" for *_, pattern in forms), re.I)
    said = pattern.sub(lambda found: chr(ord("𝐀") + forms[(found.lastindex or 1) - 1][1]), text)
    return NAME.sub(lambda found: f"{found[1]} {chr(ord(found[2]) + 104)}", said)
