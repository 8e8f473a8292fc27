"""Verifying a staged repo with a tiny model instead of weights that are large, or not on this machine."""

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

# The names that configs have for widths, depths and heads. The number of a video's tokens does not depend on these.
SIZE = re.compile(
    r"hidden_size$|intermediate_size$|^embed_dim$|^depth$|^num_.*(layers|heads|experts|per_tok)$|head_dim$"
    r"|^hidden_size_per_layer_input$|^layer_types$|^max_window_layers$|^mrope_section$|_indexes$"
    r"|^(mm_embed_dim|output_proj_dims)$"  # of what projects pixels and sound where there is no tower
    r"|^d_model$|^output_dim$|^encoder_(layers|ffn_dim|attention_heads)$"  # of a tower that hears
)


def rehearse_with_twin(staged: StagedRepo, folder: Path) -> Path:
    """Make a repo like the staged one, but with a tiny random model instead of the weights, and return its folder.

    Code, settings, processor and vocabulary are those of the staged repo. The twin proves nothing about the base's
    weights. It has no card, because the card lists another config.json.
    """
    assert staged.base is not None  # only a Space has none
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
    """Return `config` with the sizes of a tiny one of the same family. Everything that decides about tokens stays."""
    small = {name: value for name, value in config.items() if name != "quantization_config"}  # that of the weights
    for name, value in tiny.items():
        if name == "per_layer_config" and name in small:  # by the numbers of layers, which a tiny model has not
            small[name] = value
        elif isinstance(value, dict) and isinstance(small.get(name), dict):
            small[name] = shrunk(small[name], value)
        elif SIZE.search(str(name)):
            small[name] = value
    return small
