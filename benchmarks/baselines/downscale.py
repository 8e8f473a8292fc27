"""Smaller frames: the simplest way to fewer tokens, which every method has to beat.

Each frame is scaled down, with antialiasing, to the number of patches that pools to about R·M tokens. SigLIP's position
embeddings are interpolated to that grid, as Transformers does for other image sizes. All else is the stock model. Every
layer holds the same tokens, so the equivalent retention ratio is their share.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import LlavaOnevisionForConditionalGeneration

from .in_model_pruning import Answer, Pruning, answer_with_pruning
from .prompts import Inputs, check_fits, read_prompt, token_grid, video_placeholders
from .schedules import check_ratio


@torch.no_grad()
def answer(
    model: LlavaOnevisionForConditionalGeneration,
    inputs: Inputs,
    retention_ratio: float,
    max_new_tokens: int = 4,
    *,
    video_features: Tensor | None = None,
    frame_adjustment: bool = False,
) -> Answer:
    """Answer from smaller frames.

    Args:
        inputs: see `read_prompt`; `pixel_values_videos` are required.
        retention_ratio: R. The answer says which ratio whole rows and columns made possible.
        video_features: must be None, because the frames are encoded anew.
        frame_adjustment: must be False, because all frames are scaled alike.

    Raises:
        ValueError: if R is not in (0, 1], or the inputs do not fit.
    """
    if video_features is not None or frame_adjustment:
        given = "video_features" if video_features is not None else "frame_adjustment"
        raise ValueError(f"downscale takes no `{given}`, because it encodes smaller frames of one size. Leave it out.")
    check_fits(model, inputs)
    if inputs.get("pixel_values_videos") is None:
        raise ValueError("inputs hold no `pixel_values_videos`, which downscale makes smaller. Pass them.")
    num_videos, num_frames = inputs["pixel_values_videos"].shape[:2]
    num_video_tokens = num_frames * math.prod(token_grid(model))
    is_video = video_placeholders(model, inputs["input_ids"], num_videos, num_video_tokens + 1)
    rows, columns = smaller_grid(retention_ratio, token_grid(model))
    features = features_of_smaller_frames(model, inputs["pixel_values_videos"], rows, columns)
    kept = ~is_video | (is_video.cumsum(dim=1) <= features.shape[1])
    given = {name: inputs.get(name) for name in ("input_ids", "attention_mask")}
    shorter = {name: ids[kept].view(len(kept), -1) for name, ids in given.items() if ids is not None}
    prompt = read_prompt(model, shorter, features, rows * columns)
    short = answer_with_pruning(model, prompt, Pruning(), max_new_tokens)
    return Answer(short.token_ids, short.logits, short.tokens_per_layer, num_video_tokens)


def smaller_grid(retention_ratio: float, grid: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of tokens whose product is nearest to R·M. There are as many columns as rows, or one
    more. A tie takes the square."""
    check_ratio(retention_ratio)
    wanted = retention_ratio * math.prod(grid)
    grids = [(rows, rows + more) for more in (0, 1) for rows in range(1, grid[0] + 1 - more)]
    return min(grids, key=lambda grid: abs(math.prod(grid) - wanted))


def features_of_smaller_frames(
    model: LlavaOnevisionForConditionalGeneration, pixels: Tensor, rows: int, columns: int
) -> Tensor:
    """Return (B, T·rows·columns + 1, D), which `get_video_features` would return for frames with that many rows and
    columns of tokens.

    Args:
        pixels: (B, T, C, H, W), in the model's own image size.
    """
    vision, inner = cast(Any, model.config.vision_config), cast(Any, model.model)
    side = vision.image_size // vision.patch_size
    # Two patches a side pool to one token. The full side may be odd, and the image may be larger than its patches.
    patches = [side if tokens == token_grid(model)[0] else 2 * tokens for tokens in (rows, columns)]
    frames = pixels.flatten(0, 1).float()  # antialiasing does not work in bfloat16 on the CPU
    size = [vision.image_size if number == side else number * vision.patch_size for number in patches]
    if size != list(frames.shape[-2:]):
        frames = nn.functional.interpolate(frames, size=size, mode="bicubic", antialias=True)
    states = inner.vision_tower(
        frames.to(model.dtype), interpolate_pos_encoding=True, output_hidden_states=True
    ).hidden_states
    layers = model.config.vision_feature_layer
    layers = [layers] if isinstance(layers, int) else layers
    states = torch.cat([states[layer] for layer in layers], dim=-1)
    if model.config.vision_feature_select_strategy == "default":
        states = states[:, 1:]
    grids = inner.multi_modal_projector(states).transpose(1, 2).unflatten(-1, patches)
    pooled = nn.functional.interpolate(grids, size=(rows, columns), mode="bilinear").flatten(2).transpose(1, 2)
    newline = inner.image_newline.to(pooled).expand(len(pixels), 1, -1)
    return torch.cat([pooled.reshape(len(pixels), -1, pooled.shape[-1]), newline], dim=1)
