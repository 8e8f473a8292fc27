"""What `vidcom2 run` prints about one question and one video."""

import dataclasses
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from ..asking.candidates import changed_settings, in_words
from ..configuration.compression_settings import COMPRESSION_METHODS
from .console import out, print_table, print_verdict
from .loading import print_lost
from .verdicts import verdict_of_run

if TYPE_CHECKING:
    from ..asking.answer import Answer
    from ..asking.comparison import Comparison, Measured
    from ..asking.watched import Watched

BAR_WIDTH, OF_NUMBERS = 24, 38  # how wide the bars are at most, and the columns beside them
SCHEMA = 1  # of `--json`; it grows when a key goes or changes its meaning, and docs/command_line.md tells the keys


def as_json(result: "Comparison") -> dict[str, Any]:
    """Return all fields of a comparison, and the names of the sides that are longer than the model was made for."""
    return {"schema": SCHEMA} | dataclasses.asdict(result) | {"beyond_max_position_embeddings": list(result.too_long())}


def print_answer(answer: "Answer", watched: "Watched") -> None:
    """Print an answer about a watched video, and from how many tokens it was given."""
    way = in_words(changed_settings(watched.checkpoint.model.config, watched.settings))
    _print_heads(Model=answer.model, Method=way, Prompt=str(answer.question))
    kept, whole = f"{answer.video_tokens:,}", f"{answer.full_video_tokens:,}"
    out.print(f"[bold]Answer[/] ({kept} of {whole} video tokens, {answer.new_tokens:,} generated)", highlight=False)
    out.print(_printable(answer), markup=False, highlight=False)
    out.print("It is not compared with all tokens, because a watched video holds the kept ones alone.", style="dim")


def print_comparison(result: "Comparison", true_answer: str | None = None) -> None:
    """Print the answers, the tokens and seconds that they took, and how much of each frame was kept.

    Args:
        true_answer: the answer to the demo's question, if it is the demo.
    """
    short, full = result.compressed, result.uncompressed
    way = in_words({"retention_ratio": result.retention_ratio, **result.changed_settings})
    _print_heads(Model=result.model, Frames=str(result.num_frames), Method=way, Prompt=result.prompt, Truth=true_answer)
    for name, measured in result.sides.items():
        if measured is not None:
            tokens = f"{measured.video_tokens:,} video tokens, {measured.new_tokens:,} generated"
            out.print(f"[bold]Answer of {escape(name)}[/] ({tokens})", highlight=False)
            out.print(_printable(measured.answer), markup=False, highlight=False)

    other = [] if result.other is None else [result.other]
    cells = [["", *result.sides, "ratio"]]
    for name, which in (("prompt tokens", "prompt_tokens"), ("video tokens", "video_tokens")):
        before, *after = getattr(result, f"full_{which}"), *(getattr(side, which) for side in (short, *other))
        cells.append([name, f"{before:,}", *(f"{each:,}" for each in after), _times(before, after[0])])
    for name, which in (("prefill, seconds", "prefill_seconds"), ("generate, seconds", "total_seconds")):
        before, after = getattr(full, which, 0.0), getattr(short, which)
        # Answers of different lengths take different times even where compression changes nothing.
        comparable = full is not None and (which == "prefill_seconds" or full.new_tokens == short.new_tokens)
        shown = [_seconds(measured, which) for measured in (full, short, *other)]
        cells.append([name, *shown, _times(before, after) if comparable else ""])
    new = ["" if side is None else f"{side.new_tokens:,}" for side in (full, short, *other)]
    cells.append(["new tokens", *new, ""])
    print_table(cells)
    repeats = len(short.total_seconds_each)
    if repeats > 1:
        out.print(f"Times are medians of {repeats} (least–most); prefill is the language model's.", style="dim")
    if result.other is not None and result.other_kept_share != result.kept_share:
        out.print(escape(_unequal(result)), style="yellow", highlight=False, soft_wrap=True)
    for name, measured in result.too_long().items():
        out.print(
            f"[yellow]Too long:[/] {name} has {measured.prompt_tokens:,} prompt tokens and positions up to "
            f"{measured.num_positions - 1:,}, but the model was made for {result.max_position_embeddings:,} "
            "(max_position_embeddings and its scaling). Its answer may be wrong: take fewer frames.",
            highlight=False,
            soft_wrap=True,
        )

    largest, bar = max(result.frame_budgets), max(1, min(BAR_WIDTH, out.width - OF_NUMBERS))
    budgets = Table(title=f"Tokens kept per frame, of {result.tokens_per_frame}")
    u_t = result.frame_uniqueness  # not every method has it
    for column in ("frame", "second", *([] if u_t is None else ["u_t"]), "k_t"):
        budgets.add_column(column, justify="right")
    budgets.add_column("")
    for i, (second, k) in enumerate(zip(result.frame_seconds, result.frame_budgets, strict=True)):
        unique = [] if u_t is None else [f"{u_t[i]:.4f}"]
        budgets.add_row(str(i), f"{second:.2f}", *unique, str(k), "█" * round(bar * k / largest))
    out.print(budgets)
    out.print(escape(_meanings(result)), highlight=False)
    print_lost(result.lost_frames)
    out.print(", ".join(f"{name} {value}" for name, value in result.environment.items()), style="dim")
    print_verdict(verdict_of_run(result, true_answer))


def _print_heads(**heads: str | None) -> None:
    for name, text in heads.items():
        if text is not None:
            out.print(f"[bold]{name:8}[/]{escape(text)}", highlight=False)


def _unequal(result: "Comparison") -> str:
    """Say how many tokens the other method keeps, where these are not as many."""
    scored = result.tokens_per_frame * len(result.frame_budgets)
    kept, others = (round(share * scored) for share in (result.kept_share, result.other_kept_share or 0.0))
    return (
        f"Not as many tokens: of the {scored:,} scored tokens, {result.other_method} keeps {others:,} instead of "
        f"{kept:,}. Raise --retention-ratio or --max-video-tokens to compare equal numbers."
    )


def _meanings(result: "Comparison") -> str:
    """Return how many tokens were kept, and what the words of the tables mean."""
    kept, scored = sum(result.frame_budgets), result.tokens_per_frame * len(result.frame_budgets)
    video, whole = result.compressed.video_tokens, result.full_video_tokens
    why = "; the model's own separators always stay" if whole > scored else ""
    if abs(kept / scored - result.retention_ratio) >= 0.0005 and (other := _why_another_share(result)):
        why += f"; {other}"
    lines = [
        f"Kept: {video:,} of {whole:,} video tokens ({video / whole:.1%}). The ratio is a share of the scored ones, of "
        f"which {kept:,} of {scored:,} are kept ({kept / scored:.1%}){why}."
    ]
    if result.scores is not None:
        lines.append(result.scores)
    return " ".join([*lines, "k_t is how many tokens of a frame are kept."])


def _why_another_share(result: "Comparison") -> str | None:
    """Say why the share of the scored tokens that is kept is not the ratio; None if that is not known."""
    kept, sizes = sum(result.frame_budgets), (len(result.frame_budgets), result.tokens_per_frame)
    scored, budget = sizes[0] * sizes[1], result.settings.get("max_video_tokens")
    method = COMPRESSION_METHODS[result.settings.get("compression_method", "vidcom2")]
    by_sizes = method.keeps_by_sizes(result.settings.get("compression_rounding", "exact"))
    if result.full_video_tokens < scored:
        return "tokens that repeat the frame before have no place in the prompt"
    if not by_sizes or method.count is None:
        is_rounded = "each frame keeps a whole number of tokens" if not by_sizes else None
        return "the budget lowers it" if kept == budget else is_rounded
    if kept < method.count(*sizes, result.retention_ratio):
        return "the budget lowers it"
    if abs(kept - result.retention_ratio * scored) < 1:
        return "a video keeps a whole number of tokens"
    return f"{method.name} keeps at least {kept:,} tokens of a video of this size" if method.own else None


def _times(before: float, after: float) -> str:
    return f"{before / max(after, 1e-9):.2f}×"


def _seconds(measured: "Measured | None", which: str) -> str:
    """Return the median, followed by the spread if there were several turns."""
    if measured is None:
        return "not run"
    each = getattr(measured, f"{which}_each")
    spread = f" ({min(each):.3f}–{max(each):.3f})" if len(each) > 1 else ""
    return f"{getattr(measured, which):.3f}{spread}"


def _printable(text: str) -> str:
    """Return a text without the control characters that a model with random weights may produce."""
    shown = "".join(letter if letter.isprintable() or letter == "\n" else "·" for letter in text).strip()
    return shown or "(nothing printable)"
