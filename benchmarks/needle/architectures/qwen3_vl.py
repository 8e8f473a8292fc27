"""A stock Qwen3-VL of a million and a half parameters: M-RoPE, features of the tower's lower layers added to the first
layers of the language model (deepstack), two frames in a patch, and the time of every two frames as text."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from vidcom2.asking.prompting import prepare_inputs
from vidcom2.tiny.qwen import QWEN2_VL_CHAT_TEMPLATE, QWEN2_VL_TOKENS, untrained_qwen3_vl
from vidcom2.video.reading import Video

from ..drawing import PATCH_SIZE, SIZE
from .tokens import build_tokenizer, place_waves

GRID = SIZE // PATCH_SIZE
VISION = {
    "hidden_size": 96,
    "intermediate_size": 384,
    "depth": 3,
    "num_heads": 6,
    "num_position_embeddings": GRID**2,
    "deepstack_visual_indexes": [0, 1],
    "initializer_range": 0.1,
}
TEXT = {
    "hidden_size": 96,
    "head_dim": 32,
    "intermediate_size": 144,
    "num_hidden_layers": 8,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "initializer_range": 0.1,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
TIMES = tuple(f"<{tenths / 10:.1f} seconds>" for tenths in range(0, 1280, 7))


class Layout(NamedTuple):
    """What stands before the question, for videos of some length.

    Attributes:
        ids: (P,) int64.
        is_video: (P,) bool, the video's tokens.
        positions: (3, P) int64, M-RoPE positions.
    """

    ids: Tensor
    is_video: Tensor
    positions: Tensor


class Qwen3VL:
    """See `Architecture`."""

    name = "qwen3_vl"
    frames_per_group = 2
    before_question = ""

    def build(self, seed: int = 0) -> tuple[Qwen3VLForConditionalGeneration, Qwen3VLProcessor]:
        tokenizer = build_tokenizer(QWEN2_VL_TOKENS, QWEN2_VL_CHAT_TEMPLATE, TIMES)
        model, processor = untrained_qwen3_vl(tokenizer, PATCH_SIZE, VISION, TEXT, seed)
        places = model.model.visual.pos_embed.weight
        places.data = place_waves(GRID, places.shape[1])
        return model, processor

    def tower(self, model: Any) -> nn.Module:
        return model.model.visual

    def language(self, model: Any) -> nn.Module:
        return nn.ModuleDict({"language": model.model.language_model, "head": model.lm_head})

    def features(self, model: Any, frames: Tensor) -> Tensor:
        pixels = (frames.to(model.device).float() / 255 - 0.5) / 0.5  # (N, 2, 140, 140, 3)
        merged = GRID // 2
        cut = pixels.reshape(len(frames), 2, merged, 2, PATCH_SIZE, merged, 2, PATCH_SIZE, 3)
        patches = cut.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(len(frames) * GRID**2, -1)
        grid = torch.tensor([[len(frames), GRID, GRID]], device=model.device)
        found = model.model.visual(patches, grid_thw=grid, return_dict=True)
        levels = [found.pooler_output, *found.deepstack_features]
        return torch.stack(levels).unflatten(1, (len(frames), -1)).transpose(0, 1)

    def hidden(
        self, model: Any, processor: Any, features: Tensor, rate: float, ids: Tensor, kept: Tensor | None = None
    ) -> Tensor:
        layout = _layout(model, processor, self.frames_per_group * features.shape[1], rate)
        whole = torch.cat([layout.ids.to(ids.device).expand(len(ids), -1), ids], dim=1)
        is_video = torch.cat([layout.is_video.to(ids.device).expand(len(ids), -1), torch.zeros_like(ids).bool()], dim=1)
        levels = [level.flatten(1, 2) for level in features.unbind(dim=2)]
        stays = torch.ones_like(is_video)
        if kept is not None:
            stays[is_video] = torch.zeros_like(levels[0][..., 0]).bool().scatter(1, kept, True).flatten()
            levels = [level.gather(1, kept[..., None].expand(-1, -1, level.shape[-1])) for level in levels]
        whole, is_video = (each[stays].unflatten(0, (len(ids), -1)) for each in (whole, is_video))
        first, *added = (level.flatten(0, 1) for level in levels)
        embeds = model.get_input_embeddings()(whole)
        embeds = embeds.masked_scatter(is_video[..., None], first)
        start = layout.positions.max() + 1
        after = torch.arange(ids.shape[1]).expand(3, -1) + start
        positions = torch.cat([layout.positions, after], dim=1)[:, None].expand(-1, len(ids), -1).to(ids.device)
        positions = torch.stack([each[stays].unflatten(0, (len(ids), -1)) for each in positions])
        hidden = model.model.language_model(
            inputs_embeds=embeds,
            position_ids=positions,
            visual_pos_masks=is_video,
            deepstack_visual_embeds=added,
            use_cache=False,
        ).last_hidden_state
        return hidden[:, -ids.shape[1] - 1 :]


@cache
def _layout(model: Any, processor: Any, num_frames: int, rate: float) -> Layout:
    """Return the layout that the stock processor and model give to a video."""
    frames = np.zeros((num_frames, SIZE, SIZE, 3), np.uint8)
    video = Video(frames, np.arange(num_frames), rate, num_frames)
    inputs = prepare_inputs(processor, "?", video, model)
    positions, _ = model.model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], video_grid_thw=inputs["video_grid_thw"]
    )
    ids = inputs["input_ids"][0]
    length = int((ids == model.config.vision_end_token_id).nonzero().max()) + 1
    return Layout(ids[:length], (ids == model.config.video_token_id)[:length], positions[:, 0, :length])
