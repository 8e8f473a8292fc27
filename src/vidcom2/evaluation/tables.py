"""The tables of `vidcom2 eval`, from what `report.summary` returns."""

from collections.abc import Mapping, Sequence
from typing import Any

# What a column means, by the heading that it begins with.
NOTES = {
    "kept": "`kept` is the measured share of the scored video tokens.",
    "accuracy": "`accuracy` is the share of right answers.",
    "agreement": "`agreement` is the share of answers that equal those with all tokens.",
    "method": "Brackets hold 95 % intervals. Those of shares are Wilson's, which treat questions as independent.",
    "no option": "`no option` counts answers that name none of the options, or several. They are wrong.",
    "difference": "Those of the difference to all tokens on the same questions come from a bootstrap over videos, "
    "which keeps the questions about a video together. Where no answer changed, they give the most that may have been "
    "missed, 1 − 0.025^(1 / videos).",
}
BY_LETTER = "Questions with options are answered by the most probable letter, as the first token."
TOO_MANY = 0.1  # more than this share of answers without an option says more about their form than about the model


def table(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the results as cells. The first row holds the headings."""
    with_truth = results[0]["accuracy"] is not None
    of_truth = ["accuracy, %", "difference, points"] if with_truth else []
    of_options = ["no option"] if has_choices(results) else []
    headings = ["method", "ratio", "kept, %", *of_truth, *of_options, "agreement, %"]
    cells = [headings]
    for result in results:
        name, ratio = result["method"], f"{result['retention_ratio']:g}"
        if "refused" in result:
            cells.append([name, ratio, *["n/a"] * (len(headings) - 2)])
            continue
        of_truth = [cell(result, "accuracy"), cell(result, "difference", "+")] if with_truth else []
        of_options = [str(result["no_option"])] if of_options else []
        kept = f"{100 * result['kept_share']:.1f}"
        cells.append([name, ratio, kept, *of_truth, *of_options, cell(result, "agreement")])
    return cells


def has_choices(results: Sequence[Mapping[str, Any]]) -> bool:
    return any(result["of_choice"] for result in results)


def without_options(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each candidate of whose answers too many name no option, and one if all tokens would rather
    answer with something else than a letter."""
    letters = (
        f"{named(results[0])}: the letters have {{:.0f}} % of the probability, so the model would rather begin with "
    )
    letters += "something else. Compare with its answers as texts (--no-letters)."
    share = results[0]["letter_share"]
    improbable = [letters.format(100 * share)] if share is not None and share < 0.5 else []
    return improbable + [
        f"{named(each)}: {each['no_option']} of {each['of_choice']} answers name no option, or several. A model that "
        "explains or thinks may need more tokens (--max-new-tokens), or no thoughts (--chat-template-kwargs "
        "'{\"enable_thinking\": false}', where its template reads that)."
        for each in results
        if each["no_option"] > TOO_MANY * each["of_choice"]
    ]


def table_by_kind(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the accuracy, or the agreement where it is not known, of each kind of question; no rows without kinds."""
    of_kinds = next((result for result in results if "refused" not in result), results[0])
    measure = "agreement" if of_kinds["accuracy"] is None else "accuracy"
    kinds = of_kinds["by_kind"]
    if not kinds:
        return []
    headings, *rows = table(results)
    cells = [[*headings[:2], *(f"{kind} (n = {shares[f'{measure}_n']})" for kind, shares in kinds.items())]]
    for result, row in zip(results, rows, strict=True):
        shown = ["n/a" if "refused" in result else cell(result["by_kind"][kind], measure) for kind in kinds]
        cells.append([*row[:2], *shown])
    return cells


def named(result: Mapping[str, Any]) -> str:
    """Return what a message calls a row of the results."""
    return f"{result['method']} at {result['retention_ratio']:g}"


def cell(result: Mapping[str, Any], name: str, sign: str = "") -> str:
    """Return a share, or a difference of shares, and its interval in per cent."""
    if result[name] is None:
        return "–"
    low, high = result[f"{name}_low"], result[f"{name}_high"]
    interval = "" if low is None else f" [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"
    return f"{100 * result[name]:{sign}.1f}{interval}".replace("-", "−")


def markdown(title: str, results: Sequence[Mapping[str, Any]], num_errors: int, origin: str) -> str:
    """Return the tables as a page of Markdown.

    Args:
        num_errors: how many questions ended in an error and are not in the results.
        origin: what was measured, where and when.
    """
    num_questions = max(result["questions"] for result in results)
    parts = [f"# {title}", f"{num_questions} questions; {num_errors} errors. {origin}"]
    by_kind = table_by_kind(results)
    cells = table(results)
    notes = "\n".join(text for begin, text in NOTES.items() if any(each.startswith(begin) for each in cells[0]))
    notes += f"\n{BY_LETTER}" * (results[0]["letter_share"] is not None)
    parts += [pipes(cells), notes, *(["By kind:", pipes(by_kind)] if by_kind else [])]
    refused = [f"- {named(each)}: {each['refused']}" for each in results if "refused" in each]
    unnamed = [f"- {line}" for line in without_options(results)]
    parts += ["Options:", "\n".join(unnamed)] if unnamed else []
    return "\n\n".join([*parts, *(["Refused:", "\n".join(refused)] if refused else [])]) + "\n"


def pipes(cells: Sequence[Sequence[str]]) -> str:
    """Return cells as a table in Markdown. Their first row holds the headings."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:]])
