"""A stock LLaVA-OneVision of just under a million parameters: absolute places in a SigLIP tower, pooled tokens, and
time only by the order of the tokens."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessor

from vidcom2.tiny.llava import untrained_llava_onevision
from vidcom2.tiny.tokens import CHAT_TEMPLATE, LLAVA_TOKENS

from ..drawing import PATCH_SIZE, SIZE
from .tokens import HEAD, build_tokenizer, place_waves

VISION = {"hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 3, "num_attention_heads": 6}
TEXT = {
    "hidden_size": 96,
    "intermediate_size": 144,
    "num_hidden_layers": 8,  # with fewer, methods that drop tokens between layers could not reach low ratios
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "initializer_range": 0.1,  # about 1 / √96; weights would take long to grow from the 0.02 of wide models
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}


class LlavaOnevision:
    """See `Architecture`."""

    name = "llava_onevision"
    frames_per_group = 1
    before_question = "\n"

    def build(self, seed: int = 0) -> tuple[LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessor]:
        tokenizer = build_tokenizer(LLAVA_TOKENS, CHAT_TEMPLATE)
        model, processor = untrained_llava_onevision(tokenizer, SIZE, VISION, TEXT, seed)
        places = model.model.vision_tower.get_submodule("embeddings.position_embedding").weight
        places.data = place_waves(SIZE // PATCH_SIZE, places.shape[1])
        return model, processor

    def tower(self, model: Any) -> nn.Module:
        return nn.ModuleList([model.model.vision_tower, model.model.multi_modal_projector])

    def language(self, model: Any) -> nn.Module:
        newline = nn.ParameterList([model.model.image_newline])
        return nn.ModuleDict({"language": model.model.language_model, "head": model.lm_head, "newline": newline})

    def features(self, model: Any, frames: Tensor) -> Tensor:
        pixels = (frames[:, 0].to(model.device).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
        features = model.model.get_video_features(pixels[None]).pooler_output
        features = features[0] if isinstance(features, (list, tuple)) else features
        features = features.reshape(-1, features.shape[-1])[:-1]  # without the newline
        return features.unflatten(0, (len(frames), -1))[:, None]

    def hidden(
        self, model: Any, processor: Any, features: Tensor, rate: float, ids: Tensor, kept: Tensor | None = None
    ) -> Tensor:
        embed = model.get_input_embeddings()
        head = torch.tensor(processor.tokenizer(HEAD, add_special_tokens=False).input_ids, device=ids.device)
        head, tokens = embed(head).expand(len(ids), -1, -1), features.flatten(1, 3)
        newline = model.model.image_newline.expand(len(ids), 1, -1)
        embeds = torch.cat([head, tokens, newline, embed(ids)], dim=1)
        positions = None
        if kept is not None:
            every = torch.arange(embeds.shape[1], device=ids.device).expand(len(ids), -1)
            before, after = head.shape[1], head.shape[1] + tokens.shape[1]
            positions = torch.cat([every[:, :before], before + kept, every[:, after:]], dim=1)
            embeds = embeds.gather(1, positions[..., None].expand(-1, -1, embeds.shape[-1]))
        # Without a mask, Transformers would take the gaps in the positions for the borders of packed sequences.
        mask = torch.ones(embeds.shape[:2], dtype=torch.int64, device=ids.device)
        hidden = model.model.language_model(
            inputs_embeds=embeds, attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state
        return hidden[:, -ids.shape[1] - 1 :]
