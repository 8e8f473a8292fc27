"""A tiny model in place of weights that are large, or not on this machine."""

import json
import re
from pathlib import Path
from typing import Any

import torch

from ..checkpoints import no_progress_bars
from ..configuration.compression_settings import SETTING_NAMES
from ..repo_shape import CARD, CONFIG
from ..shipping.shipped_code import CODE_FIELDS
from .staging import StagedRepo

# How a config calls its widths, depths and heads, which the tokens of a video do not depend on.
SIZE = re.compile(
    r"hidden_size$|intermediate_size$|^embed_dim$|^depth$|^num_.*(layers|heads|experts|per_tok)$|head_dim$"
    r"|^layer_types$|^max_window_layers$|^mrope_section$|_indexes$"
)


def rehearse_with_twin(staged: StagedRepo, folder: Path) -> Path:
    """A repo like the staged one, with a tiny random model in place of the weights: code, settings, processor and
    vocabulary are the staged one's. It proves nothing about the base's weights, and goes without the card, which lists
    another config.json.
    """
    assert staged.base is not None  # a repo of code alone has no weights to stand in for
    family = staged.base.family
    config = json.loads((staged.folder / CONFIG).read_text(encoding="utf-8"))
    stock_class: Any = family.uncompressed_class
    full, (tiny, _) = stock_class.config_class.from_pretrained(staged.folder), family.build_tiny()
    with torch.random.fork_rng(devices=[]), no_progress_bars():
        torch.manual_seed(0)
        stock_class(type(full)(**shrunk(full.to_dict(), tiny.config.to_dict()))).save_pretrained(folder)
    saved = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    ours = (*SETTING_NAMES, *family.settings, "architectures", *CODE_FIELDS)
    (folder / CONFIG).write_text(json.dumps(saved | {name: config[name] for name in ours}), encoding="utf-8")
    for path in staged.files:
        if path not in (CONFIG, CARD):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).unlink(missing_ok=True)
            (folder / path).symlink_to((staged.folder / path).resolve())
    return folder


def shrunk(config: dict[str, Any], tiny: dict[str, Any]) -> dict[str, Any]:
    """A config with the sizes of a tiny one of the same family; whatever decides about tokens stays."""
    small = {name: value for name, value in config.items() if name != "quantization_config"}  # of the weights
    for name, value in tiny.items():
        if isinstance(value, dict) and isinstance(small.get(name), dict):
            small[name] = shrunk(small[name], value)
        elif SIZE.search(str(name)):
            small[name] = value
    return small
