"""What is to be published, made loadable on this machine before it is sent."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from ..configuration.compression_settings import SETTING_NAMES
from ..shipped_code import CODE_FIELDS
from .staging import CARD, StagedRepo

TWIN_HIDDEN, TWIN_HEADS, TWIN_KEY_VALUE_HEADS, TWIN_LAYERS = 64, 4, 2, 2


def rehearse(staged: StagedRepo, folder: Path) -> Path:
    """A folder like the repo will be, weights and all, made of links."""
    _link_files(staged, folder, staged.files)
    if staged.base is not None:
        for weights in staged.base.weights:
            _link(staged.base.folder / weights.path, folder / weights.path)
    return folder


def rehearse_with_twin(staged: StagedRepo, folder: Path) -> Path:
    """The same, with a tiny random model in place of the weights: code, settings, processor and vocabulary are the
    repo's. It proves nothing about the base's weights, and goes without the card, which lists another config.json.
    """
    config = json.loads((staged.folder / "config.json").read_text(encoding="utf-8"))
    uncompressed_class = staged.base.model_class.__bases__[-1]
    small = _shrunk(uncompressed_class.config_class.from_pretrained(staged.folder))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        uncompressed_class(small).save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    ours = (*SETTING_NAMES, "architectures", *CODE_FIELDS)
    saved |= {name: config[name] for name in ours}
    (folder / "config.json").write_text(json.dumps(saved), encoding="utf-8")
    _link_files(staged, folder, [path for path in staged.files if path not in ("config.json", CARD)])
    return folder


def _shrunk(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config with fewer and narrower layers; whatever decides about tokens stays."""
    fields = config.to_dict()
    fields.pop("quantization_config", None)  # the twin's weights are not quantized
    text, vision = fields["text_config"], fields["vision_config"]
    head_size = TWIN_HIDDEN // TWIN_HEADS
    text |= {
        "hidden_size": TWIN_HIDDEN,
        "intermediate_size": 2 * TWIN_HIDDEN,
        "num_hidden_layers": TWIN_LAYERS,
        "num_attention_heads": TWIN_HEADS,
        "num_key_value_heads": TWIN_KEY_VALUE_HEADS,
        "max_window_layers": TWIN_LAYERS,
    }
    if text.get("layer_types"):
        text["layer_types"] = text["layer_types"][:TWIN_LAYERS]
    rope = text.get("rope_parameters") or {}
    if "mrope_section" in rope:
        third = head_size // 2 // 3
        rope["mrope_section"] = [head_size // 2 - 2 * third, third, third]
    if "embed_dim" in vision:  # Qwen2-VL
        vision |= {"depth": TWIN_LAYERS, "embed_dim": 32, "num_heads": 2, "hidden_size": TWIN_HIDDEN}
    else:
        layers = fields.get("vision_feature_layer", -1)
        layers = layers if isinstance(layers, list) else [layers]
        deepest = max(-layer if layer < 0 else layer for layer in layers)
        vision |= {"num_hidden_layers": max(TWIN_LAYERS, deepest), "hidden_size": 32, "intermediate_size": 64}
        vision |= {"num_attention_heads": 2}
    return type(config)(**fields)


def _link_files(staged: StagedRepo, folder: Path, paths: Sequence[str]) -> None:
    for path in paths:
        _link(staged.folder / path, folder / path)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.symlink_to(source.resolve())
