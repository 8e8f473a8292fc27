"""Write the line at the end of `run`, `eval` and `bench` that sums up their tables."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..measuring.figures import ALL_TOKENS, of_setup
from ..measuring.tables import method_name

if TYPE_CHECKING:
    from ..answering.comparison import Comparison

FEW_QUESTIONS = 30


def verdict_of_run(result: "Comparison") -> str:
    """Return, for example, "25 %: same answer, 3.7× fewer video tokens, prefill 2.7× faster"."""
    short, full = result.compressed, result.uncompressed
    parts = [_fewer(result.full_video_tokens, short.video_tokens)]
    if full is not None:
        same = short.answer.strip() == full.answer.strip()
        parts = ["same answer" if same else "a different answer than with all tokens", *parts]
        parts.append(f"prefill {_faster(full.prefill_seconds, short.prefill_seconds)}")
    has_budget = result.settings.get("max_video_tokens") is not None  # which may keep less than the ratio
    return f"{percent(round(result.kept_share, 3) if has_budget else result.retention_ratio)}: {', '.join(parts)}"


def verdict_of_bench(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what VidCom² saves in the last setup, or what the first method saves if VidCom² was not measured.

    Args:
        rows: as `read_results` returns them.
    """
    measured = [row for row in rows if row["seconds"]]
    if not measured:
        return None
    last = [row for row in measured if of_setup(row) == of_setup(measured[-1])]
    whole = next((row for row in last if row["method"] == ALL_TOKENS), None)
    others = [row for row in last if row is not whole]
    if whole is None or not others:
        return None
    row = next((row for row in others if row["method"].startswith("vidcom2")), others[0])
    before, after = whole["seconds"], row["seconds"]
    parts = [_fewer(whole["video_tokens"], row["video_tokens"])]
    for what, name in (("prefill", "prefill"), ("end to end", "end_to_end")):
        parts.append(f"{what} {_faster(before[name], after[name])}")
    return f"{percent(row['retention_ratio'])}, {row['num_frames']} frames, {method_name(row)}: {', '.join(parts)}"


def verdict_of_eval(results: Sequence[Mapping[str, Any]]) -> str | None:
    """Return which method did best at each ratio, by accuracy or, if no answers are known, by agreement.

    Args:
        results: as `summary` returns them, beginning with all tokens.
    """
    whole, *others = [result for result in results if "refused" not in result]
    measure, what = "accuracy", "right answers"
    if whole["accuracy"] is None:
        measure, what = "agreement", "answers as with all tokens"
    best: dict[float, Mapping[str, Any]] = {}
    for each in (result for result in others if result[measure]):  # nobody is best with nothing right
        ratio = each["retention_ratio"]
        if ratio not in best or each[measure] > best[ratio][measure]:
            best[ratio] = each
    if not others:
        return None
    ratios = sorted(best, reverse=True)
    parts = [f"{best[each]['method']} at {percent(each)} with {_points(best[each][measure])}" for each in ratios]
    of_all = f"; all tokens have {_points(whole['accuracy'])}" if measure == "accuracy" else ""
    found = f"Most {what}: {', '.join(parts)}" if parts else f"No {what} by any method at any ratio"
    return f"{found}{of_all}{_caution(whole['questions'])}"


def _caution(num_questions: int) -> str:
    return f". {num_questions} questions tell little: see the intervals" if num_questions < FEW_QUESTIONS else ""


def percent(share: float) -> str:
    return f"{100 * share:g} %"


def _points(share: Any) -> str:
    return f"{100 * share:.1f} %"


def _fewer(before: int, after: int) -> str:
    return f"{before / max(after, 1):.1f}× fewer video tokens"


def _faster(before: float, after: float) -> str:
    times = before / max(after, 1e-9)
    return f"{times:.1f}× faster" if times >= 1 else f"{1 / max(times, 1e-9):.1f}× slower"
