"""Write the HTML of two parts of the page: the conversation, and the frames with what is kept of each."""

import html
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from ..explaining.explanation import Explanation
from ..explaining.explanation_page import picture_url, template
from .answerer import SIDES, Side
from .turns import Reply, Turn, Turns


@cache
def _template(name: str) -> jinja2.Template:
    return template(Path(__file__).with_name(name))


def progress_html(what: str) -> str:
    """Return one line that says what is being done."""
    return f'<p class="progress" role="status">{html.escape(what)}</p>'


def problem_html(problem: str) -> str:
    """Return one line that says what is wrong."""
    return f'<p class="problem" role="alert">{html.escape(problem)}</p>'


def frames_html(explanation: Explanation) -> str:
    """Draw each frame as `vidcom2 explain` does, and say how many of its tokens are kept."""
    several = explanation.frames_per_picture
    height, width = explanation.frames.shape[1:3]
    return _template("frames.html").render(
        title=explanation.title,
        merged=explanation.merged is not None,
        several=several if several > 1 else None,
        separators=explanation.separators,
        width=width,
        height=height,
        tokens=explanation.kept[0].size,
        frames=[
            {
                "label": explanation.label(index),
                "seconds": f"{explanation.seconds[index]:.1f} s",
                "picture": picture_url(explanation.kept_picture(index), "JPEG"),
                "kept": int(explanation.frame_budgets[index]),
                "share": round(100 * int(explanation.frame_budgets[index]) / explanation.kept[0].size),
            }
            for index in range(len(explanation.frames))
        ],
    )


def turns_html(turns: Turns, is_stopped: bool = False) -> str:
    """Write each question with its two answers and their figures.

    Args:
        is_stopped: whether the last turn was stopped. Answers of earlier turns that are incomplete always were.
    """
    return _template("turns.html").render(
        turns=[
            {
                "question": turn.question,
                "problem": turn.problem,
                "sides": []
                if turn.problem is not None
                else [_side(turn, side, is_stopped or turn is not turns[-1]) for side in SIDES],
                "gain": _gain(turn),
            }
            for turn in turns
        ]
    )


def _side(turn: Turn, side: Side, is_stopped: bool) -> dict[str, Any]:
    reply = turn.replies.get(side, Reply())
    title = "All tokens" if side == "all" else f"Few tokens: {turn.way}"
    measured, figures, note = reply.measured, [], None
    if measured is not None:
        figures = [
            ("video tokens", f"{measured.video_tokens:,}"),
            ("prefill", _seconds(measured.prefill_seconds)),
            ("whole answer", _seconds(reply.seconds or measured.total_seconds)),
        ]
        note = None if reply.text.strip() else "The answer is empty."
    elif is_stopped:
        note = "Stopped."
    elif side not in turn.replies:
        note = "Waiting for the other answer." if side == "all" else "Waiting for the model."
    elif not reply.text.strip():
        note = "…"
    return {"name": side, "title": title, "text": reply.text.strip(), "note": note, "figures": figures}


def _gain(turn: Turn) -> str | None:
    few, full = (turn.replies.get(side, Reply()).measured for side in SIDES)
    if few is None or full is None:
        return None
    tokens, prefill = full.video_tokens / max(few.video_tokens, 1), full.prefill_seconds / few.prefill_seconds
    speed = f"{prefill:.1f}× faster" if prefill >= 1 else f"{1 / prefill:.1f}× slower"
    return f"With {tokens:.1f}× fewer video tokens the prefill is {speed}."


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 1 else f"{seconds:.2f} s"
