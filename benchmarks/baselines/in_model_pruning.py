"""Answering while video tokens are dropped between layers of the language model. FastV, PyramidDrop and SparseVLM share
this file.

The layers are the stock model's own, called one after the other. Between two of them tokens are removed from the hidden
states. A kept token keeps its rotary position. The KV cache of a layer holds the tokens that this layer saw, so that
new tokens attend to all of these. (The released code of PyramidDrop and of SparseVLM renumbers positions after each
drop; that of FastV keeps them. Their papers do not say which is meant.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlavaOnevisionForConditionalGeneration
from transformers.masking_utils import create_causal_mask
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2Model, apply_rotary_pos_emb

from vidcom2 import CompressionSettings, frame_budgets
from vidcom2.modeling.hosting.in_transformers import CACHE

from .prompts import Prompt
from .schedules import Stage

Rotary = tuple[Tensor, Tensor]  # cosines and sines, each (B, S, head width)


@dataclass(frozen=True)
class Answer:
    """The answer of a baseline, and how many video tokens it used."""

    token_ids: Tensor  # (B, n) new tokens, as `generate` returns them; padding after the end of a row
    logits: Tensor  # (B, n, vocabulary) float32, from which the tokens were chosen
    tokens_per_layer: list[int]  # video tokens that each layer held in the prefill, not counting the newline
    num_video_tokens: int  # T·M of the full video

    @property
    def retention_ratio(self) -> float:
        """The average share of video tokens over the layers. A recycled token counts as one token."""
        return sum(self.tokens_per_layer) / len(self.tokens_per_layer) / self.num_video_tokens


@dataclass(frozen=True)
class Pruning:
    """The rules by which a method drops tokens."""

    stages: Sequence[Stage] = ()
    # (B, n): how much each of the last n prompt tokens counts as a query when video tokens are ranked.
    query_weights: Tensor | None = None
    # Whether the attention of the next layer ranks the tokens, rather than that of the layer that just ran.
    ranks_in_next_layer: bool = False
    # Makes C tokens from a row's dropped ones, given their hidden states (P, D), their scores (P,) and C. It returns
    # which tokens the new ones stand for, (C,), and the hidden states of the new ones, (C, D).
    recycle: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]] | None = None
    frame_adjustment: bool = False


@torch.no_grad()
def answer_with_pruning(
    model: LlavaOnevisionForConditionalGeneration, prompt: Prompt, pruning: Pruning, max_new_tokens: int
) -> Answer:
    """Decode greedily after a prefill that drops video tokens.

    Only `eos_token_id` and `pad_token_id` of the generation config are read.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens!r} is not positive. Pass the largest number of new tokens.")
    decoder = cast(Qwen2Model, model.model.language_model)
    cache = DynamicCache(config=decoder.config)
    hidden, masks, tokens_per_layer = prefill(decoder, prompt, pruning, cache)
    position = prompt.positions[:, -1:]
    ends, padding = end_and_padding_tokens(model)
    finished = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
    token_ids, logits = [], []
    while True:
        logits.append(model.lm_head(decoder.norm(hidden[:, -1])).float())
        token_ids.append(torch.where(finished, padding, logits[-1].argmax(dim=-1)))
        finished |= torch.isin(token_ids[-1], ends)
        if len(token_ids) == max_new_tokens or finished.all():
            return Answer(
                torch.stack(token_ids, dim=1), torch.stack(logits, dim=1), tokens_per_layer, prompt.num_video_tokens
            )
        position = position + 1
        hidden = decode(decoder, model.get_input_embeddings()(token_ids[-1][:, None]), position, masks, cache)


def prefill(
    decoder: Qwen2Model, prompt: Prompt, pruning: Pruning, cache: DynamicCache
) -> tuple[Tensor, list[Tensor], list[int]]:
    """Run the prompt through the layers.

    Returns:
        The last layer's hidden states (B, S', D), the attention mask (B, S_l) of each layer's cached tokens, and the
        number of video tokens that each layer held.
    """
    stages = {stage.after: stage for stage in pruning.stages}
    hidden, places = prompt.embeddings, prompt.places
    attention_mask, positions = prompt.attention_mask, prompt.positions
    rotary, causal_mask = layer_inputs(decoder, hidden, attention_mask, positions)
    masks, tokens_per_layer = [], []
    before = hidden  # the input of the layer that ran last
    for num_run, layer in enumerate(decoder.layers):
        if num_run in stages and stages[num_run].kept < tokens_per_layer[-1]:
            stage = stages[num_run]
            ranking, states = (layer, hidden) if pruning.ranks_in_next_layer else (decoder.layers[num_run - 1], before)
            assert pruning.query_weights is not None  # a method with stages has them
            scores = attention_received(
                cast(Qwen2DecoderLayer, ranking), states, rotary, attention_mask, pruning.query_weights
            )
            budgets = stage_budgets(prompt, stage.selected) if pruning.frame_adjustment else None
            chosen = highest_scores(scores, places, stage.selected, budgets, prompt.tokens_per_frame)
            if stage.recycled:
                chosen, hidden = recycled_as_well(hidden, places, scores, chosen, stage.recycled, pruning.recycle)
            index = kept_in_order(chosen | (places < 0))
            hidden = hidden.gather(1, index[..., None].expand(-1, -1, hidden.shape[-1]))
            attention_mask, positions, places = (x.gather(1, index) for x in (attention_mask, positions, places))
            rotary, causal_mask = layer_inputs(decoder, hidden, attention_mask, positions)
        before = hidden
        masks.append(attention_mask)
        tokens_per_layer.append(int((places >= 0).sum()) // len(places))
        hidden = layer(hidden, attention_mask=causal_mask, position_embeddings=rotary, use_cache=True, **{CACHE: cache})
    return hidden, masks, tokens_per_layer


def decode(decoder: Qwen2Model, hidden: Tensor, position: Tensor, masks: list[Tensor], cache: DynamicCache) -> Tensor:
    """Run one new token of each row, (B, 1, D), through the layers, and add its column to each of `masks`."""
    rotary = decoder.rotary_emb(hidden, position)
    for index, layer in enumerate(decoder.layers):
        masks[index] = nn.functional.pad(masks[index], (0, 1), value=True)
        mask = None
        if not masks[index].all():
            mask = torch.zeros(masks[index].shape, dtype=hidden.dtype, device=hidden.device)
            mask = mask.masked_fill(~masks[index], torch.finfo(hidden.dtype).min)[:, None, None]
        hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary, use_cache=True, **{CACHE: cache})
    return hidden


def layer_inputs(
    decoder: Qwen2Model, hidden: Tensor, attention_mask: Tensor, positions: Tensor
) -> tuple[Rotary, Tensor | None]:
    """Return the rotary embeddings and the causal mask of a prefill over these tokens."""
    mask = create_causal_mask(decoder.config, hidden, attention_mask, None)
    return decoder.rotary_emb(hidden, positions), mask


def attention_received(
    layer: Qwen2DecoderLayer, hidden: Tensor, rotary: Rotary, attention_mask: Tensor, query_weights: Tensor
) -> Tensor:
    """Return (B, S) float32, the attention that each token gets in a layer, averaged over its heads.

    It is computed here, only for the rows of the queries, so that it works with any attention implementation.

    Args:
        hidden: (B, S, D), the input of the layer.
        attention_mask: (B, S) bool.
        query_weights: (B, n), the weights of the last n tokens as queries.
    """
    attention, num_queries = layer.self_attn, query_weights.shape[1]
    states = layer.input_layernorm(hidden)
    queries = attention.q_proj(states[:, -num_queries:]).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
    keys = attention.k_proj(states).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
    cos, sin = rotary
    queries = apply_rotary_pos_emb(queries, queries, cos[:, -num_queries:], sin[:, -num_queries:])[0]
    keys = apply_rotary_pos_emb(keys, keys, cos, sin)[0].repeat_interleave(attention.num_key_value_groups, dim=1)
    logits = (queries @ keys.transpose(2, 3) * attention.scaling).float()  # (B, heads, n, S)

    length = hidden.shape[1]
    order = torch.arange(length, device=hidden.device)
    visible = (order <= order[length - num_queries :, None]) & attention_mask[:, None, None]
    weights = logits.masked_fill(~visible, torch.finfo(logits.dtype).min).softmax(dim=-1).mean(dim=1)
    return torch.einsum("bn,bns->bs", query_weights.float(), weights)


def highest_scores(
    scores: Tensor, places: Tensor, num_kept: int, budgets: Tensor | None = None, tokens_per_frame: int = 1
) -> Tensor:
    """Return (B, S) bool, the video tokens with the highest scores of each row. A tie keeps the earlier token.

    With budgets, tokens among the k_t best of their frame go before all others. So exactly `num_kept` stay, even if a
    frame has fewer than k_t tokens left, or if there are more frames than tokens to keep.

    Args:
        scores: (B, S) float.
        places: (B, S) int64, see `Prompt`.
        budgets: (B, T) int64 k_t, or None to compare all tokens of the video.
    """
    order = scores.masked_fill(places < 0, -torch.inf).argsort(dim=1, descending=True, stable=True)
    if budgets is not None:
        frames = (places.gather(1, order) // tokens_per_frame)[..., None]  # -1 for all that are not video tokens
        of_frame = frames == torch.arange(budgets.shape[1], device=places.device)  # (B, S, T)
        beyond = ~(of_frame & (of_frame.cumsum(dim=1) <= budgets[:, None])).any(dim=-1)
        order = order.gather(1, beyond.to(torch.uint8).argsort(dim=1, stable=True))
    return torch.zeros_like(places, dtype=torch.bool).scatter(1, order[:, :num_kept], True)


def stage_budgets(prompt: Prompt, num_kept: int) -> Tensor:
    """Return (B, T) int64, the budgets of VidCom²'s Frame Compression Adjustment (its Eqs. 5 and 6, and Figure 5)."""
    settings = CompressionSettings(retention_ratio=num_kept / prompt.num_video_tokens, compression_rounding="exact")
    return torch.stack([frame_budgets(u, prompt.tokens_per_frame, settings)[0] for u in prompt.frame_uniqueness])


def recycled_as_well(
    hidden: Tensor,
    places: Tensor,
    scores: Tensor,
    chosen: Tensor,
    num_recycled: int,
    recycle: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]] | None,
) -> tuple[Tensor, Tensor]:
    """Make tokens of the dropped ones, and put each in the place of the dropped token that it stands for.

    Returns:
        The chosen tokens including the new ones, (B, S) bool, and the hidden states (B, S, D).
    """
    assert recycle is not None  # a method with recycled tokens has it
    chosen, hidden = chosen.clone(), hidden.clone()
    for row in range(len(hidden)):
        dropped = ((places[row] >= 0) & ~chosen[row]).nonzero()[:, 0]
        centres, merged = recycle(hidden[row, dropped], scores[row, dropped], num_recycled)
        hidden[row, dropped[centres]] = merged.to(hidden)
        chosen[row, dropped[centres]] = True
    return chosen, hidden


def kept_in_order(kept: Tensor) -> Tensor:
    """Return (B, S') int64, the ascending indices where `kept` (B, S) is True. Each row has as many."""
    return (~kept).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(kept[0].sum())]


def end_and_padding_tokens(model: LlavaOnevisionForConditionalGeneration) -> tuple[Tensor, int]:
    """Return the ids that end an answer, and the padding id, as `generate` reads them from the generation config."""
    config = model.generation_config
    ends = config.eos_token_id if config is not None else None
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    padding = config.pad_token_id if config is not None else None
    padding = padding if padding is not None else (ends[0] if ends else 0)
    return torch.tensor(ends, dtype=torch.long, device=model.device), padding
