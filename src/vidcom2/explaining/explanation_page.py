"""The page of `vidcom2 explain -o x.html`, one self-contained file. It is made from the template page.html."""

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path

import jinja2
import numpy as np
from PIL import Image

from ..asking.candidates import way_in_words
from .drawing_file import DRAWN_BY
from .explanation import Explanation, with_minus


def page_html(explanations: Sequence[Explanation]) -> str:
    """Return an HTML page. For each frame it shows its heat map, what the vision tower computed of it, and bars of its
    score u_t, of the number of tokens kept k_t, and of the share of patches computed; above, all frames over time.

    Args:
        explanations: one, or several of the same video and model, which the page shows side by side.
    """
    first = explanations[0]
    height, width = first.frames.shape[1:3]
    most_kept = max(int(each.frame_budgets.max()) for each in explanations)  # one scale for all bars of k_t
    return template(Path(__file__).with_name("page.html")).render(
        name=first.video or first.model,
        drawn_by=DRAWN_BY,  # so that a later call knows that it may overwrite the file
        parts=[_part(explanation, number, most_kept) for number, explanation in enumerate(explanations)],
        with_u=any(each.frame_uniqueness is not None for each in explanations),
        scores={each.method: each.scores for each in explanations if each.scores},  # what the methods' scores mean
        with_heat=any(each.token_uniqueness is not None for each in explanations),
        # so that a portrait frame is no taller than a landscape one is wide
        columns=len(explanations) * math.ceil(height / width),
        with_computed=any(each.computed is not None for each in explanations),
        with_merged=any(each.merged is not None for each in explanations),
        width=width,
        height=height,
        grid={"rows": first.kept.shape[1], "columns": first.kept.shape[2], "covered": first.covered},
        tokens=[_tokens(each, index) for each in explanations for index in range(len(each.frames))],
    )


def _part(explanation: Explanation, number: int, most_kept: int) -> dict[str, object]:
    """Return what the page shows of one way to compress the video.

    Args:
        number: its place among the ways.
    """
    frames = range(len(explanation.frames))
    return {
        "title": explanation.title,
        "subtitle": explanation.subtitle,
        "name": way_in_words(explanation.settings),
        "with_u": explanation.frame_uniqueness is not None,
        "with_heat": explanation.token_uniqueness is not None,
        "ends_of_heat": None if explanation.token_uniqueness is None else explanation.ends_of_heat(),
        "with_computed": explanation.computed is not None,
        "cards": [{**_card(explanation, i, most_kept), "place": number * len(frames) + i} for i in frames],
    }


def _card(explanation: Explanation, index: int, most_kept: int) -> dict[str, object]:
    card: dict[str, object] = {
        "label": explanation.label(index),
        "seconds": f"{explanation.seconds[index]:.2f} s",
        "kept": picture_url(explanation.kept_picture(index), "JPEG"),
        "whole": picture_url(explanation.frames[index], "JPEG"),
        "k": int(explanation.frame_budgets[index]),
        "k_share": int(explanation.frame_budgets[index]) / most_kept,
    }
    if explanation.frame_uniqueness is not None:
        card["u"] = with_minus(f"{explanation.frame_uniqueness[index]:.4f}")
        card["u_share"] = float(explanation.shares_of_uniqueness()[index])
    if explanation.token_uniqueness is not None:
        card["heat"] = picture_url(explanation.heat_map(index), "PNG")
    if explanation.computed is not None:
        card["computed"] = picture_url(explanation.computed_picture(index), "JPEG")
        card["computed_share"] = float(explanation.shares_of_patches()[index])
    return card


def _tokens(explanation: Explanation, index: int) -> dict[str, list]:
    """Return what the page tells about the token under the pointer: whether it is dropped (0), kept (1) or merged into
    a kept one (2), and its u (null if it is not finite)."""
    merged = 0 if explanation.merged is None else explanation.merged[index]
    kept = np.where(explanation.kept[index], 1, np.where(merged, 2, 0))
    tokens: dict[str, list] = {"kept": kept.ravel().tolist()}
    if explanation.token_uniqueness is not None:
        u = explanation.token_uniqueness[index].ravel().astype(float)
        tokens["u"] = [round(value, 4) if np.isfinite(value) else None for value in u.tolist()]
    return tokens


def template(path: Path) -> jinja2.Template:
    """Return the template of a page. It escapes what is filled in, and raises where a name is missing."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(path.read_text(encoding="utf-8"))


def picture_url(picture: np.ndarray, form: str) -> str:
    """Return a data URL of a picture (height, width, 3), encoded as `"JPEG"` or `"PNG"`."""
    buffer = io.BytesIO()
    options = {"quality": 85} if form == "JPEG" else {"optimize": True}
    Image.fromarray(picture).save(buffer, format=form, **options)
    return data_url(buffer.getvalue(), form)


def data_url(content: bytes, form: str) -> str:
    """Return a data URL of an encoded picture."""
    return f"data:image/{form.lower()};base64," + base64.b64encode(content).decode()
