"""The page of `vidcom2 explain -o x.html`, one self-contained file. It is made from the template page.html."""

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from ..records.whole_files import write_whole
from .drawing_file import DRAWN_BY

if TYPE_CHECKING:
    from .explanation import Explanation


def draw_html(explanation: "Explanation", path: str) -> None:
    """Write to the file `path` every frame with its heat map and bars of u_t and k_t, and a strip of all over time."""
    import jinja2

    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    height, width = explanation.frames.shape[1:3]
    page = environment.from_string(template).render(
        title=explanation.title,
        subtitle=explanation.subtitle,
        drawn_by=DRAWN_BY,
        with_u=explanation.frame_uniqueness is not None,
        with_heat=explanation.token_uniqueness is not None,
        with_merged=explanation.merged is not None,
        width=width,
        height=height,
        cards=[_card(explanation, index) for index in range(len(explanation.frames))],
        grid={"rows": explanation.kept.shape[1], "columns": explanation.kept.shape[2], "covered": explanation.covered},
        tokens=[_tokens(explanation, index) for index in range(len(explanation.frames))],
    )
    write_whole(Path(path), page)


def _card(explanation: "Explanation", index: int) -> dict[str, object]:
    card: dict[str, object] = {
        "label": explanation.label(index),
        "seconds": f"{explanation.seconds[index]:.2f} s",
        "kept": _data_url(explanation.kept_picture(index), "JPEG"),
        "whole": _data_url(explanation.frames[index], "JPEG"),
        "k": int(explanation.frame_budgets[index]),
        "k_share": float(explanation.shares_of_budget()[index]),
    }
    if explanation.frame_uniqueness is not None:
        card["u"] = f"{explanation.frame_uniqueness[index]:.4f}".replace("-", "\N{MINUS SIGN}")
        card["u_share"] = float(explanation.shares_of_uniqueness()[index])
    if explanation.token_uniqueness is not None:
        card["heat"] = _data_url(explanation.heat_map(index), "PNG")
    return card


def _tokens(explanation: "Explanation", index: int) -> dict[str, list]:
    """Return what the page tells about the token under the pointer: whether it is dropped (0), kept (1) or merged into
    a kept one (2), and its u (null if it is not finite)."""
    kept = explanation.kept[index].astype(int)
    if explanation.merged is not None:
        kept = kept + 2 * explanation.merged[index]
    tokens: dict[str, list] = {"kept": kept.ravel().tolist()}
    if explanation.token_uniqueness is not None:
        u = explanation.token_uniqueness[index].ravel().astype(float)
        tokens["u"] = [round(value, 4) if np.isfinite(value) else None for value in u.tolist()]
    return tokens


def _data_url(picture: np.ndarray, form: str) -> str:
    buffer = io.BytesIO()
    options = {"quality": 85} if form == "JPEG" else {"optimize": True}
    Image.fromarray(picture).save(buffer, format=form, **options)
    return f"data:image/{form.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()
