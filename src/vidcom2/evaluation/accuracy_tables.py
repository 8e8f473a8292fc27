"""The tables of `vidcom2 eval`, from what `report.summary` returns."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..asking.candidates import method_in_words
from .references import reference_in_words
from .which_ratio import MARGIN, enough_in_words

# What a column means, by the heading that it begins with.
NOTES = {
    "kept": "`kept` is the measured share of the scored video tokens.",
    "accuracy": "`accuracy` is the share of right answers.",
    "agreement": "`agreement` is the share of answers that equal those with all tokens.",
    "method": "`all tokens` is the stock model, whose vision tower runs in full. n is the number of questions. "
    "Brackets hold 95 % intervals. Those of shares are Wilson's, which treat questions as independent.",
    "no option": "`no option` counts answers that name none of the options, or several. They are wrong.",
    "unfinished": "`unfinished` counts answers to open questions that end within the model's thoughts. They are wrong.",
    "difference": "`difference` is the accuracy minus that with all tokens, on the same questions. Its interval comes "
    "from a bootstrap over videos, which keeps the questions about a video together. A gained and a lost video are "
    "added to them, for the changes that so few videos may not have shown. So it is not empty where no answer changed. "
    "With one video there is no interval, since it says nothing about others.",
    "minus": "`minus` is the accuracy minus that of the named method, at the same ratio unless it has one of its own, "
    "on the same questions. Its interval is made as that of `difference`.",
}
BY_LETTER = "Questions with options are answered by the most probable letter, as the first token."
RATHER_NOT = (
    "with all tokens, the letters have {:.0f} % of the probability, so the model would rather begin with something "
    "else. Compare with its answers as texts (--no-letters)."
)
# Answers that are none: the number of questions that they are counted of, the share of these above which a warning says
# so, and what it says. Many answers without an option say more about their form than about the model.
UNANSWERED = {
    "no_option": ("of_choice", 0.1, "answers name no option, or several."),
    "unfinished": ("of_open", 0.0, "answers to open questions end within the model's thoughts."),
}
MORE_TOKENS = (
    "A model that explains or thinks may need more tokens (--max-new-tokens), or no thoughts (--chat-template-kwargs "
    "'{\"enable_thinking\": false}', where its template reads that)."
)


def table(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the results as cells. The first row holds the headings."""
    columns = _of_methods(results)
    columns.append(_column(results, "kept, %", "kept_share", "questions"))
    if results[0]["accuracy"] is not None:
        columns.append(_column(results, "accuracy, %", "accuracy"))
        columns.append(_column(results, "difference, points", "difference", sign="+"))
        if "reference" in results[0]:
            minus = f"minus {reference_in_words(results[0]['reference'])}, points"
            columns.append(_column(results, minus, "over_reference", sign="+"))
    if any(each["of_choice"] for each in results):
        columns.append(_column(results, "no option", "no_option", "of_choice"))
    if any(each["unfinished"] for each in results):
        columns.append(_column(results, "unfinished", "unfinished", "of_open"))
    columns.append(_column(results, "agreement, %", "agreement"))
    return [list(row) for row in zip(*columns, strict=True)]


def table_by_kind(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the accuracy, or the agreement where it is not known, of each kind of question; no rows without kinds."""
    measure = "agreement" if results[0]["accuracy"] is None else "accuracy"
    columns = _of_methods(results)
    columns += [_column([each["by_kind"][kind] for each in results], kind, measure) for kind in results[0]["by_kind"]]
    return [list(row) for row in zip(*columns, strict=True)] if results[0]["by_kind"] else []


def _of_methods(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    names, ratios = (
        [method_in_words(each["method"]) for each in results],
        [f"{each['retention_ratio']:g}" for each in results],
    )
    return [["method", *names], ["ratio", *ratios]]


def _column(
    results: Sequence[Mapping[str, Any]], title: str, name: str, asked: str | None = None, sign: str = ""
) -> list[str]:
    """Return a column of figures below its heading, which says of how many questions they are. Where these differ, each
    figure says it.

    Args:
        asked: the key of the number of questions.
    """
    counts = []
    for each in results:
        videos = each[f"{name}_videos"] if sign else 0  # of differences
        of_videos = f", {videos:,} video{'s' * (videos != 1)}" if videos else ""
        counts.append("" if each[name] is None else f" (n = {each[asked or f'{name}_n']:,}{of_videos})")
    alike = {*counts} - {""}
    shown = ["n/a" if each.get("questions") == 0 else cell(each, name, sign) for each in results]
    if len(alike) == 1:
        return [title + alike.pop(), *shown]
    return [title, *(figure + count for figure, count in zip(shown, counts, strict=True))]


def unanswered(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each candidate with too many answers that name no option, and for each that was still thinking.
    The last of them ends with what may help. A line before them says if all tokens would rather answer with something
    other than a letter."""
    lines = [
        f"with {named(each) if each is not results[0] else 'all tokens'}, {each[name]} of {each[asked]} {what}"
        for each in results
        for name, (asked, most, what) in UNANSWERED.items()
        if each[name] > most * each[asked]
    ]
    lines[-1:] = [f"{line} {MORE_TOKENS}" for line in lines[-1:]]
    share = results[0]["letter_share"]
    return [RATHER_NOT.format(100 * share), *lines] if share is not None and share < 0.5 else lines


def notes(results: Sequence[Mapping[str, Any]]) -> str:
    """Explain the columns of the table, and how questions with options are answered."""
    headings = table(results)[0]
    lines = [text for begin, text in NOTES.items() if any(each.startswith(begin) for each in headings)]
    return "\n".join([*lines, *[BY_LETTER] * (results[0]["letter_share"] is not None)])


def named(result: Mapping[str, Any]) -> str:
    """Return what a message calls a row of the results."""
    return f"{result['method']} at {result['retention_ratio']:g}"


def cell(result: Mapping[str, Any], name: str, sign: str = "") -> str:
    """Return a share, or a difference of shares, and its interval in per cent; a number of answers as it is."""
    value, low, high = result[name], result.get(f"{name}_low"), result.get(f"{name}_high", 0.0)
    if value is None or name in UNANSWERED:
        return "–" if value is None else f"{value:,}"
    interval = "" if low is None else f" [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"
    return f"{100 * value:{sign}.1f}{interval}".replace("-", "−")


def markdown(
    title: str, results: Sequence[Mapping[str, Any]], num_errors: int, origin: str, margin: float = MARGIN
) -> str:
    """Return the tables as a page of Markdown.

    Args:
        num_errors: how many questions ended in an error and are not in the results.
        origin: what was measured, where and when.
        margin: the loss of right answers that is accepted, in points.
    """
    whole = results[0]
    asked = f"{whole['questions']:,} questions about {whole['agreement_videos']:,} videos; {num_errors:,} errors."
    by_kind = [[as_text(cell) for cell in row] for row in table_by_kind(results)]
    is_enough = enough_in_words(results, margin)
    parts = [f"# {as_text(title)}", f"{asked} {origin}", pipes(table(results))]
    parts += [*([] if is_enough is None else [as_text(is_enough)]), notes(results)]
    parts += ["By kind, in per cent:", pipes(by_kind)] if by_kind else []
    refused = [f"{named(each)}: {each['refused']}" for each in results if "refused" in each]
    for what, lines in (("Cautions:", unanswered(results)), ("Refused:", refused)):
        parts += [what, "\n".join(f"- {line}" for line in lines)] if lines else []
    return "\n\n".join(parts) + "\n"


def pipes(cells: Sequence[Sequence[str]]) -> str:
    """Return cells of Markdown as a table. Their first row holds the headings."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:]])


def as_text(value: object) -> str:
    """Return a line of Markdown that shows a value as it is: its characters make no markup and no HTML."""
    line = re.sub(r"[^\S\xa0]+", " ", str(value))
    return re.sub(r"[\\`*<~&]|(?<![^\W_])_|_(?![^\W_])|(?<=\])\(", r"\\\g<0>", line)
