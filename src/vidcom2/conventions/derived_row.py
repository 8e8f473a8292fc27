"""The row that a stock model and its processor give by themselves, if they keep to the conventions of Qwen's videos."""

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from transformers import AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.video_utils import VideoMetadata

from ..errors import OptionError
from ..families.sources import written_modules, written_source
from ..families.table import (
    FAMILIES,
    GRIDS,
    LINEAR_ATTENTION,
    MROPE_GRIDS,
    MROPE_SHARED_IDS,
    POSITIONS_BY_ORDER,
    PROCESSOR_ROWS,
    PROCESSORS,
    SHARED_IDS,
    Family,
    ProcessorRow,
)
from ..modeling.prompt.processing_short_prompts import group_sizes

# Layer types that read all tokens into states, some of them beside attention.
IN_ORDER = {"linear_attention", "conv", "mamba", "recurrent", "hybrid", "hybrid_sliding"}
SIDE = 8  # patches per side of a frame of noise, before the processor resizes it


class BrokenConventionError(OptionError):
    """A family cannot be hosted by a row alone. The message says which convention it breaks."""


def noise(num_frames: int, side: int, seed: int = 0) -> torch.Tensor:
    """Return frames of noise (num_frames, 3, side, 1.5 · side) uint8."""
    made = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_frames, 3, side, side * 3 // 2), dtype=torch.uint8, generator=made)


def shown_at(frames: torch.Tensor) -> VideoMetadata:
    """Return the metadata of frames that are shown twice a second."""
    count = len(frames)
    return VideoMetadata(total_num_frames=count, fps=2.0, duration=count / 2, frames_indices=list(range(count)))


def frame_side(processor: Any) -> int:
    """Return how many pixels high a frame of noise is, for this processor."""
    return SIDE * int(getattr(processor.video_processor, "patch_size", None) or 14)


def derived_row(model: PreTrainedModel, processor: Any) -> tuple[Family, str, ProcessorRow]:
    """Return the row of a family, the name of its stock processor, and that one's row.

    Args:
        model: of the stock class with a head.
        processor: its stock processor.

    Raises:
        BrokenConventionError: if the classes, or what the processor writes of a video, differ from the conventions.
    """
    stem, inner = type(model).__name__.removesuffix("ForConditionalGeneration"), getattr(model, "model", None)
    names = type(model.config).__name__, type(inner).__name__, type(model).__name__
    own = names[0].removesuffix("Config")
    if names != (f"{own}Config", f"{stem}Model", f"{stem}ForConditionalGeneration"):
        raise BrokenConventionError(
            f"its classes are {', '.join(names)}, but a row needs a config, an inner <name>Model at `.model`, and "
            "<name>ForConditionalGeneration"
        )
    _check_methods(inner, processor)
    for part in (model, inner, model.config, processor):
        if not type(part).__module__.startswith("transformers."):
            raise BrokenConventionError(f"its {type(part).__name__} is not a class of Transformers")
    apart, placeholder = _written_by(processor, model.config)
    layers = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    has_mrope = hasattr(inner, "get_rope_index")
    if placeholder is None:
        videos = (MROPE_GRIDS if has_mrope else GRIDS,)
    else:
        videos = (MROPE_SHARED_IDS,) if has_mrope else (SHARED_IDS, GRIDS)
    num_together = int(getattr(processor.video_processor, "temporal_patch_size", 1))
    family = Family(
        model_type=model.config.model_type,
        name=own,
        classes=f"VidCom2{own}",
        of=stem if stem != own else "",
        tiny="",
        stock_processors=(type(processor).__name__,),
        frame=f"{num_together} frames together",
        mixins=(*((LINEAR_ATTENTION,) if layers & IN_ORDER else ()), *videos),
        head_mixins=(POSITIONS_BY_ORDER,) if _drops_positions(model) else (),
    )
    return family, type(processor).__name__, ProcessorRow(own, family.module, apart, placeholder)


def _check_methods(inner: Any, processor: Any) -> None:
    encoder = getattr(inner, "get_video_features", None)
    if encoder is None or "video_grid_thw" not in inspect.signature(encoder).parameters:
        raise BrokenConventionError(
            f"{type(inner).__name__} has no `get_video_features` that takes `video_grid_thw`, so it is not known what "
            "a frame is"
        )
    if "mm_encoder_outputs" not in inspect.signature(inner.forward).parameters:
        raise BrokenConventionError(f"the `forward` of {type(inner).__name__} takes no `mm_encoder_outputs`")
    if not hasattr(processor, "replace_video_token") or getattr(processor, "video_processor", None) is None:
        raise BrokenConventionError(f"{type(processor).__name__} does not write videos by `replace_video_token`")


def _written_by(processor: Any, config: Any) -> tuple[bool, str | None]:
    """Return whether frames stand apart in what the processor writes, and the attribute with the placeholder's text,
    if it is not `video_token`."""
    grids, text = [], ""
    for num_frames in (8, 16):
        frames = noise(num_frames, frame_side(processor))
        made = processor.video_processor(
            videos=[frames],
            video_metadata=[shown_at(frames)],
            return_metadata=True,
            do_sample_frames=False,
            return_tensors="pt",
        )
        grids.append(made["video_grid_thw"].tolist())
        if num_frames == 8:
            try:
                text = processor.replace_video_token(made, 0)
            except Exception as error:  # of any kind: the class is not this project's
                what = f"{type(error).__name__}: {error}"
                raise BrokenConventionError(f"`replace_video_token` fails on a video of noise ({what})") from error
    if [len(grid) for grid in grids] != [1, 1]:
        raise BrokenConventionError(f"videos of 8 and 16 frames have the grids {grids}, but each must have one")
    token, placeholder = processor.video_token, None
    if not group_sizes(text, token):
        token, placeholder = processor.image_token, "image_token"
    sizes, (t, h, w) = group_sizes(text, token), grids[0][0]
    merge = processor.video_processor.merge_size
    if getattr(config.vision_config, "spatial_merge_size", None) != merge:
        raise BrokenConventionError(f"`vision_config.spatial_merge_size` is not {merge}, the processor's `merge_size`")
    if sum(sizes) != t * h * w // merge**2 or len(sizes) not in (1, t):
        raise BrokenConventionError(
            f"a video with the grid {grids[0][0]} has {sum(sizes)} placeholders in {len(sizes)} groups, but must have "
            f"{t * h * w // merge**2} in one, or in one for each frame"
        )
    return len(sizes) > 1, placeholder


def _drops_positions(model: Any) -> bool:
    """Return whether the head's `generate` passes no positions on, so that those of the tokens that stay would be
    lost."""
    ids = torch.zeros(1, 4, dtype=torch.int64)
    positions = torch.arange(4)[None]
    made = model.prepare_inputs_for_generation(
        ids, attention_mask=torch.ones_like(ids), position_ids=positions, use_cache=True, is_first_iteration=True
    )
    return made.get("position_ids") is None


def put_rows(family: Family, processor: str, row: ProcessorRow) -> None:
    """Put a family into the tables, and its processor, if none of its name is there."""
    FAMILIES[family.model_type] = family
    if processor not in PROCESSORS:
        PROCESSOR_ROWS[processor], PROCESSORS[processor] = row, row.processor(processor)
        _forget_module(f"modeling.families.processing_vidcom2_{row.module}")
    _forget(family)


def drop_rows(family: Family, processor: str, row: ProcessorRow) -> None:
    """Take out of the tables what `put_rows` put there, and out of Transformers' what importing its classes did."""
    _unregister(family)
    del FAMILIES[family.model_type]
    if PROCESSOR_ROWS.get(processor) is row:
        del PROCESSOR_ROWS[processor], PROCESSORS[processor]
        _forget_module(f"modeling.families.processing_vidcom2_{row.module}")
    _forget(family)


@contextmanager
def hosted(family: Family, processor: str, row: ProcessorRow) -> Iterator[None]:
    """Have a row in the tables while something runs."""
    put_rows(family, processor, row)
    try:
        yield
    finally:
        drop_rows(family, processor, row)


def row_text(family: Family, processor: str, row: ProcessorRow) -> str:
    """Return the rows as they would stand in the tables of `families/table.py`, with the fields that differ from the
    defaults: that of the family, and that of its processor if the table has none of that name."""
    of_family = f"{_called(family)},"
    return of_family if processor in PROCESSORS else f'{of_family}\n"{processor}": {_called(row)},'


def _called(row: Family | ProcessorRow) -> str:
    lines = [
        f"    {field.name}={value!r},\n"
        for field in dataclasses.fields(row)
        if (value := getattr(row, field.name)) not in (field.default, (), {})
    ]
    text = f"{type(row).__name__}(\n{''.join(lines)})"
    for name in (*("GRIDS", "MROPE_GRIDS", "SHARED_IDS", "MROPE_SHARED_IDS"), "LINEAR_ATTENTION", "POSITIONS_BY_ORDER"):
        text = text.replace(repr(globals()[name]), name)
    return text


def _forget(family: Family) -> None:
    """Forget what was written from a family's row, and ran."""
    written_modules.cache_clear()
    written_source.cache_clear()
    for room, kind in (("configuration", "configuration"), ("modeling.families", "modeling")):
        _forget_module(f"{room}.{kind}_vidcom2_{family.module}")


def _forget_module(name: str) -> None:
    room, _, module = name.rpartition(".")
    if sys.modules.pop(f"vidcom2.{name}", None) is not None:
        vars(sys.modules[f"vidcom2.{room}"]).pop(module, None)


def _unregister(family: Family) -> None:
    """Take a family's classes out of the tables of Auto classes and pipelines, if they were imported."""
    module = sys.modules.get(f"vidcom2.modeling.families.modeling_vidcom2_{family.module}")
    if module is None:
        return
    config_class = vars(module)[family.class_names[0]]
    for auto_class in (AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM):
        cast(Any, auto_class)._model_mapping._extra_content.pop(config_class, None)
    for name in ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "CAUSAL_LM"):
        getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES").pop(f"vidcom2_{family.class_names[1]}", None)
