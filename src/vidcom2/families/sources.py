"""Writes the modules of families that differ from their stock classes by mixins and attributes alone, from the rows of
`table.py`. A Hub repo holds these sources, and `modules.py` runs them in this package, under the same names.

A module that has a file in `modeling/` or `configuration/` is that file: LLaVA-OneVision's and Qwen2-VL's are, for
readers, and those of families with code of their own.
"""

import textwrap
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from itertools import groupby
from pathlib import Path

from .table import (
    FAMILIES,
    GRID_ROWS,
    GRIDS,
    HEAD_OF_GRID_ROWS,
    LINEAR_ATTENTION,
    MROPE_GRIDS,
    MROPE_SHARED_IDS,
    POSITIONS_BY_ORDER,
    PROCESSOR_ROWS,
    SHARED_IDS,
    Family,
)

WIDTH = 120
FAMILY_ROOM = "modeling.families"
# What each mixin changes, as the docstrings say it.
SHORTENS = "`forward` leaves dropped tokens out of a stock prompt."
APART = "a frame's time and the marks around it are structure, and stay even if the frame keeps nothing."
M_ROPE = "M-RoPE positions are computed on the full prompt, and every kept token keeps its own (t, h, w)."
CHANGES: dict[str, tuple[str, ...]] = {
    GRIDS: (SHORTENS,),
    MROPE_GRIDS: (SHORTENS, M_ROPE),
    MROPE_SHARED_IDS: (SHORTENS, M_ROPE, "a prompt may have images and videos together, which the parent refuses."),
    SHARED_IDS: ("a text may name the marks of a video, which the parent would count as real ones.",),
    GRID_ROWS: (
        "it also takes `num_chunks_per_video`, which the stock processor does not return.",
        "`forward` leaves dropped tokens out of a stock prompt, if `num_chunks_per_video` is passed, too.",
    ),
    HEAD_OF_GRID_ROWS: ("`get_video_features` also takes `num_chunks_per_video`.",),
    LINEAR_ATTENTION: ("prompts of a batch that continue a KV cache with different numbers of tokens are refused.",),
    POSITIONS_BY_ORDER: ("`generate` numbers tokens without padding on the left, as other models do.",),
}
WHY = {  # comments on attributes
    "placeholder": "that of images, between the marks of a video",
    "input_modalities": "older versions list text alone, or nothing",
}


@cache
def written_modules() -> dict[str, str]:
    """Return the name of each module that has no file and is written from a row -> the room that it belongs to."""
    found = {}
    for family in (each for each in FAMILIES.values() if each.mixins):
        found[f"configuration_vidcom2_{family.module}"] = "configuration"
        found[f"modeling_vidcom2_{family.module}"] = FAMILY_ROOM
    found |= {f"processing_vidcom2_{row.module}": FAMILY_ROOM for row in PROCESSOR_ROWS.values()}
    tops = {room: import_module(f"..{room}", __package__).__path__ for room in ("configuration", FAMILY_ROOM)}
    exists = {name: any((Path(top) / f"{name}.py").exists() for top in tops[room]) for name, room in found.items()}
    return {name: room for name, room in found.items() if not exists[name]}


def written_families() -> list[Family]:
    """Return the families whose model is written from their row."""
    return [family for family in FAMILIES.values() if f"modeling_vidcom2_{family.module}" in written_modules()]


@cache
def written_source(module: str) -> str:
    """Return the source of a module as a file of this package would have it.

    Raises:
        KeyError: if there is no such row.
    """
    kind, _, name = module.partition("_vidcom2_")
    if kind == "processing":
        return _processing(next(stock for stock, row in PROCESSOR_ROWS.items() if row.module == name))
    family = next(each for each in FAMILIES.values() if each.module == name)
    return {"configuration": _configuration, "modeling": _modeling}[kind](family)


def _configuration(family: Family) -> str:
    ours, config = f"{family.classes}Config", f"{family.stock}Config"
    shared = "What the configs of all families share is in `family_config.py`."
    title = f"{family.name}'s config with the VidCom² settings."
    what = f"Config of `{family.classes}ForConditionalGeneration`: `{config}` plus the fields of `CompressionSettings`."
    return f'''{_docstring(f"{title} {shared}", title, "", shared)}

{_import("transformers", [config])}

from .family_config import FamilyConfig


{_class(ours, ["FamilyConfig", config])}
    """{_paragraph(what, first=7)}

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "{family.model_type}"
'''


def _modeling(family: Family) -> str:
    stock, ours, head = family.stock_model, family.classes, f"{family.stock_model}ForConditionalGeneration"
    stock_classes = [name for name in (f"{stock}Model", head) if name not in family.not_exported]
    imports = [_import("transformers", stock_classes)]
    if family.not_exported:
        imports.append(_import(f"transformers.models.{family.module}.modeling_{family.module}", family.not_exported))
    of_ours = [_import(f"...configuration.configuration_vidcom2_{family.module}", [f"{ours}Config"])]
    of_ours += [_import("..prompt.compressed_generation", ["VidCom2GenerationMixin"])]
    mixins, head_mixins = ([_split(each) for each in group] for group in (family.mixins, family.head_mixins))
    named = sorted((*mixins, *head_mixins))
    of_ours += [_import(f".{module}", [name for _, name in of]) for module, of in groupby(named, lambda each: each[0])]
    line_break, apart = "\n", family.frames_stand_apart
    changes = ["`get_video_features` returns the kept tokens of each video."]
    changes += [each for mixin in family.mixins for each in CHANGES[mixin]] + [APART] * apart + list(family.changes)
    head_changes = [
        f"the inner `model` is a `{ours}Model`.",
        "`forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.",
        *(each for mixin in family.head_mixins for each in CHANGES[mixin]),
        *family.head_changes,
    ]
    same = "Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path."
    if {MROPE_GRIDS, MROPE_SHARED_IDS} & {*family.mixins}:
        same += " Their positions are the conversation's own, even while other chats run on the same model."
    *others, last = (f"`{module}.py`" for module in dict.fromkeys(module for module, _ in mixins))
    files = f"{', '.join(others)} and {last}" if others else last
    return f'''"""{family.name} with VidCom²: only what differs from the parent classes.

What the family shares with others is in {files}.
"""

{line_break.join(imports)}

{line_break.join(of_ours)}


{_class(f"{ours}Model", [*(name for _, name in mixins), f"{stock}Model"])}
    """{family.name} without its head. The language model runs on short prompts.

    Modifications:
{_listed(changes)}
    """

    config: {ours}Config
{_fields({"frames_stand_apart": True} if apart else {})}

{_class(f"{ours}ForConditionalGeneration", [*(name for _, name in head_mixins), "VidCom2GenerationMixin", head])}
    """{family.name} that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
{_listed(head_changes)}

    {_paragraph(same)}
    """

    config: {ours}Config
    inner_class = {ours}Model
{_fields(family.head_fields)}'''


def _processing(stock: str) -> str:
    row = PROCESSOR_ROWS[stock]
    module, mixin = _split(row.mixin)
    line_break, own = "\n", module.removeprefix("families.")
    fields: dict[str, object] = {"frames_stand_apart": True} if row.frames_stand_apart else {}
    fields |= {} if row.placeholder is None else {"placeholder": row.placeholder}
    return f'''"""{row.of}'s processor with VidCom²: only what differs from the stock class."""

from transformers import {stock}

from {f"..{module}" if own == module else f".{own}"} import {mixin}


{_class(f"VidCom2{stock}", [mixin, stock])}
    """`{stock}` that writes a placeholder for each video token that stays."""
{line_break + _fields(fields) if fields else ""}'''


# ---------------------------------------------------------------------------------------------------------------------
# How ruff would write it
# ---------------------------------------------------------------------------------------------------------------------


def _split(name: str) -> tuple[str, str]:
    module, _, attribute = name.rpartition(".")
    return module, attribute


def _docstring(line: str, *otherwise: str) -> str:
    """Return a docstring of one line, or of others if that is too long."""
    return f'"""{line}"""' if len(line) + 6 <= WIDTH else '"""' + "\n".join(otherwise) + '\n"""'


def _import(module: str, names: Iterable[str]) -> str:
    listed = sorted(names, key=lambda name: (name.lower(), name))
    line = f"from {module} import {', '.join(listed)}"
    if len(line) <= WIDTH:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in listed) + ")"


def _class(name: str, bases: Iterable[str]) -> str:
    line = f"class {name}({', '.join(bases)}):"
    return line if len(line) <= WIDTH else f"class {name}(\n    {', '.join(bases)}\n):"


def _paragraph(text: str, first: int = 4) -> str:
    """Return a text in lines behind four spaces, the first of which begins after `first` columns."""
    wrapped = textwrap.fill(text, WIDTH, initial_indent=" " * first, subsequent_indent="    ", break_on_hyphens=False)
    return wrapped[first:]


def _listed(changes: Iterable[str]) -> str:
    return "\n".join(
        textwrap.fill(each, WIDTH, initial_indent=" " * 8 + "- ", subsequent_indent=" " * 10, break_on_hyphens=False)
        for each in changes
    )


def _fields(fields: dict[str, object]) -> str:
    shown = {name: repr(value).replace("'", '"') for name, value in fields.items()}
    return "".join(
        f"    {name} = {value}{f'  # {WHY[name]}' if name in WHY else ''}\n" for name, value in shown.items()
    )
