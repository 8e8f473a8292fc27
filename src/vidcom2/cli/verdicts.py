"""Write the line at the end of `run`, `eval` and `bench` that sums up their tables."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..measuring.bench_tables import method_name
from ..measuring.figures import ALL_TOKENS, of_setup

if TYPE_CHECKING:
    from ..asking.comparison import Comparison

FEW_VIDEOS = 30


def verdict_of_run(result: "Comparison", true_answer: str | None = None) -> str:
    """Return, for example, "vidcom2 at 25 %: same answer, 3.7× fewer video tokens, prefill 2.7× faster".

    Args:
        true_answer: the right answer, if it is known. The verdict then says whether the answers are right.
    """
    short, full = result.compressed, result.uncompressed
    parts = [_fewer(result.full_video_tokens, short.video_tokens)]
    if full is not None:
        same, is_right = short.answer.strip() == full.answer.strip(), short.answer.strip() == true_answer
        known = "" if true_answer is None else "right " if is_right else "wrong "
        parts = [f"same {known}answer" if same else f"a different {known}answer than with all tokens", *parts]
        parts.append(f"prefill {_faster(full.prefill_seconds / max(short.prefill_seconds, 1e-9))}")
    has_budget = result.settings.get("max_video_tokens") is not None  # which may keep less than the ratio
    share = percent(round(result.kept_share, 3) if has_budget else result.retention_ratio)
    return f"{result.settings.get('compression_method', 'vidcom2')} at {share}: {', '.join(parts)}"


def verdict_of_bench(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what VidCom² saves in the last setup, or what the first method saves if VidCom² was not measured. It is
    compared with all tokens within each round, as in the table.

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
    parts = [_fewer(whole["video_tokens"], row["video_tokens"])]
    rounds = min(len(whole["turns"]), len(row["turns"]))
    for what, name in (("prefill", "prefill"), ("end to end", "end_to_end")):
        saved = (row["saved"][name], *row["saved_range"][name]) if rounds > 1 else (row["saved"][name],)
        parts.append(f"{what} {_faster(*(1 / (1 - share) for share in saved))}")
    found = f"{percent(row['retention_ratio'])}, {row['num_frames']} frames, {method_name(row)}: {', '.join(parts)}"
    return f"{found}; {f'medians of {rounds} rounds' if rounds > 1 else 'one round'}"


def verdict_of_eval(results: Sequence[Mapping[str, Any]]) -> str | None:
    """Return which methods did best at each ratio, by accuracy or, if no answers are known, by agreement. Those that
    refused a question have answered others, and are not compared.

    Args:
        results: as `summary` returns them, beginning with all tokens.
    """
    whole, *others = [result for result in results if "refused" not in result]
    measure, what = "accuracy", "right answers"
    if whole["accuracy"] is None:
        measure, what = "agreement", "answers as with all tokens"
    if not others:
        return None
    parts = []
    for ratio in sorted({each["retention_ratio"] for each in others}, reverse=True):
        of_ratio = [each for each in others if each["retention_ratio"] == ratio]
        most = max(each[measure] for each in of_ratio)
        best = [each["method"] for each in of_ratio if each[measure] == most]
        names = " and ".join(best) if len(best) < 3 else f"{best[0]} and {len(best) - 1} others"
        parts += [f"{names} at {percent(ratio)} with {_points(most)}"] * (most > 0)  # nobody is best with nothing right
    of_all = f"; all tokens have {_points(whole['accuracy'])}" if measure == "accuracy" else ""
    found = f"Most {what}: {', '.join(parts)}" if parts else f"No {what} by any method at any ratio"
    return f"{found}{of_all}{_caution(whole[f'{measure}_videos'])}"


def _caution(num_videos: int) -> str:
    if num_videos == 1:
        return ". 1 video says nothing about others: there is no interval"
    return f". {num_videos} videos tell little: see the intervals" if num_videos < FEW_VIDEOS else ""


def percent(share: float) -> str:
    return f"{100 * share:g} %"


def _points(share: Any) -> str:
    return f"{100 * share:.1f} %"


def _fewer(before: int, after: int) -> str:
    return f"{before / max(after, 1):.1f}× fewer video tokens"


def _faster(times: float, *between: float) -> str:
    """Return how many times as fast something is, and between what: "4.0× faster (3.8 to 4.1)"."""
    word, *shown = ("faster", times, *between) if times >= 1 else ("slower", 1 / times, *(1 / each for each in between))
    least_most = f" ({min(shown[1:]):.1f} to {max(shown[1:]):.1f})" if between else ""
    return f"{shown[0]:.1f}× {word}{least_most}"
