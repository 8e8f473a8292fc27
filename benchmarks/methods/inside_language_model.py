"""Dropping video tokens between layers of the language model, by hooks on the stock layers: what FastV, PyramidDrop and
SparseVLM share, the baselines of the VidCom² paper.

    with FastV(model, 0.25, inputs["input_ids"], inputs["attention_mask"]):
        output = model.generate(**inputs, max_new_tokens=5)

The ratio R is the paper's "equivalent retention ratio" (Section 4.1): the share of video tokens kept, averaged over all
layers. Before a layer runs, the tokens that it keeps are picked from the prompt, and its output is put back in their
places. So the model around the layers goes on with the whole prompt, and Qwen3-VL adds features of its tower where it
always does. A layer's KV cache holds what the layer saw, and the mask of a new token is narrowed to that. Every token
keeps its rotary position. (The released code of PyramidDrop and SparseVLM renumbers positions after a drop.)

Supported is what the benchmark needs, prefill and short answers: one call of `generate` without beams, drafts, chunks
or a filled cache, on prompts with one video each and padding on the left, in LLaVA-OneVision with Qwen2 or Qwen3-VL,
with "sdpa" or "eager" attention. All else is refused with a ValueError.

Shapes: B prompts of S tokens, N = T·M of them a video's, S' ≤ S tokens in a layer of L.
"""

from bisect import bisect
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlavaOnevisionForConditionalGeneration, Qwen3VLForConditionalGeneration
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from vidcom2 import CompressionSettings, compress, frame_budgets
from vidcom2.asking.candidates import BASELINE
from vidcom2.asking.generation import Batch, generate_answers, joined, keep_tokens


def kept_tokens(ratio: float, num_layers: int, layers: Sequence[int], num_tokens: int, fewest: int = 1) -> list[int]:
    """Return how many of N tokens stay after each of these layers: N·λ after the first, then N·λ², and so on. λ is the
    largest factor whose average over all layers is at most R. The last count takes what rounding leaves over."""
    lengths = [end - start for start, end in pairwise((0, *layers, num_layers))]
    target, steps = ratio * num_layers * num_tokens, 1_000_000

    def counts(step: int) -> list[int]:
        return [max(fewest, round(num_tokens * (step / steps) ** drop)) for drop in range(len(lengths))]

    def total(step: int) -> int:
        return sum(map(mul, lengths, counts(step)))

    if not total(0) <= target <= total(steps):
        raise ValueError(
            f"retention_ratio={ratio!r} is out of reach by drops after layers {list(layers)} of {num_layers}. Pass a "
            f"share from {total(0) / total(steps):.4f} to 1, on average over the layers."
        )
    *before, last = counts(best := bisect(range(steps + 1), target, key=total) - 1)
    return [*before, min(before[-1], last + round((target - total(best)) / lengths[-1]))][1:]


class Pruning(ExitStack):
    """Drops video tokens in one call of `generate`, or of `forward`, while it is entered. A subclass is a method.

    Args:
        model: a stock model, or one of this project that keeps all tokens.
        input_ids, attention_mask: (B, S), those of the call.
        tokens_per_frame: M. With it, the best k_t tokens of each frame stay first: VidCom²'s adjustment of frames.
    """

    fewest = 1  # tokens that a drop can leave
    ranks_in_next_layer = False  # whether the layer after a drop ranks the tokens, and not the one before it

    def __init__(
        self, model: Any, ratio: float, input_ids: Tensor, attention_mask: Tensor, tokens_per_frame: int | None = None
    ):
        super().__init__()
        config, has_newline = model.config.get_text_config(), isinstance(model, LlavaOnevisionForConditionalGeneration)
        fits = isinstance(model, Qwen3VLForConditionalGeneration) or (has_newline and config.model_type == "qwen2")
        if not fits or config._attn_implementation not in ("sdpa", "eager"):
            raise ValueError(
                f"a {type(model).__name__} with {config._attn_implementation!r} attention is not supported. Load "
                "LLaVA-OneVision with Qwen2, or Qwen3-VL, with 'sdpa'."
            )
        found, self.attended = input_ids == model.config.video_token_id, attention_mask.bool()
        sizes = found.sum(dim=1) - int(has_newline)  # the newline after a video is structure, and stays
        self.num_tokens, self.tokens_per_frame = int(sizes[0]), tokens_per_frame
        self.is_video = found & (found.cumsum(dim=1) <= self.num_tokens)
        self.is_text = found.flip(1).cumsum(dim=1).flip(1) == 0  # the text after the video
        if self.num_tokens < 1 or bool((sizes != sizes[0]).any()) or not (self.is_text & self.attended)[:, -1].all():
            raise ValueError(
                f"the prompts have {sizes.tolist()} video tokens, but must have equally many, with text after them and "
                "padding on the left. Run videos of different sizes one by one."
            )
        self.layers = model.get_decoder().layers
        drops = self.drops_after(ratio, len(self.layers))
        kept = kept_tokens(ratio, len(self.layers), drops, self.num_tokens, self.fewest)
        self.stages = {after: number for after, number in zip(drops, kept, strict=True) if number < self.num_tokens}
        self.kept: list[Tensor] = []  # (B, S') int64: which tokens of the prompt each layer saw

    @staticmethod
    def drops_after(ratio: float, num_layers: int) -> list[int]:
        """Return after how many layers each drop comes, ascending numbers from 1 to L - 1."""
        raise NotImplementedError

    def query_weights(self, embeddings: Tensor) -> Tensor:
        """Return how much each of the last n tokens counts as a query that ranks video tokens, (B, n)."""
        return torch.ones_like(embeddings[:, -1:, 0])

    def drop(self, hidden: Tensor, left: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Return the states (B, S, D) with what a method changes, and which of the tokens that are left stay (B, S)."""
        return hidden, self.best(left, number)

    def __enter__(self) -> "Pruning":
        for index, layer in enumerate(self.layers):
            self.callback(layer.register_forward_pre_hook(partial(self._before, index), with_kwargs=True).remove)
            self.callback(layer.register_forward_hook(partial(self._after, index)).remove)
        return self

    def _before(self, index: int, layer: Any, args: tuple[Tensor], kwargs: dict[str, Any]) -> Any:
        """Return a layer's arguments for the tokens that it keeps."""
        (hidden,), mask, rotary = args, kwargs["attention_mask"], kwargs["position_embeddings"]
        batch, length = self.is_video.shape
        if hidden.shape[:2] == (batch, 1) and index < len(self.kept):  # a new token
            if mask is not None:
                new = torch.arange(length, mask.shape[-1], device=mask.device).expand(batch, -1)
                mask = mask.take_along_dim(torch.cat([self.kept[index], new], dim=1)[:, None, None], dim=3)
            return args, kwargs | {"attention_mask": mask}
        if hidden.shape[:2] != (batch, length) or index != len(self.kept):
            raise ValueError(
                f"a layer gets {tuple(hidden.shape[:2])} tokens, but the prompts are {(batch, length)}. Call "
                "`generate` once, without beams, drafts, chunks or a filled cache."
            )
        if index == 0:
            self.embeddings, self.weights = hidden, self.query_weights(hidden)
        self.kept.append(self.kept[-1] if index else torch.arange(length, device=hidden.device).expand(batch, -1))
        if index in self.stages:
            if self.ranks_in_next_layer:
                self.scores = self._received(layer, hidden, rotary)
            here = torch.zeros_like(self.is_video).scatter(1, self.kept[-1], True)
            hidden, stays = self.drop(hidden, here & self.is_video, self.stages[index])
            self.kept[-1] = (stays | here & ~self.is_video).nonzero()[:, 1].view(batch, -1)
        if index + 1 in self.stages and not self.ranks_in_next_layer:
            self.scores = self._received(layer, hidden, rotary)
        self.full, kept = hidden, self.kept[index][..., None]
        if kept.shape[1] == length:
            return None
        if mask is not None:
            mask = mask.take_along_dim(kept[:, None], dim=2).take_along_dim(kept[:, None].mT, dim=3)
        hidden, *rotary = (each.take_along_dim(kept, dim=1) for each in (hidden, *rotary))
        return (hidden,), kwargs | {"attention_mask": mask, "position_embeddings": rotary, "position_ids": None}

    def _after(self, index: int, layer: Any, args: Any, output: Tensor) -> Tensor | None:
        """Return a layer's output in the places of its tokens. Dropped tokens have their last states."""
        if output.shape[1] == 1 or output.shape == self.full.shape:
            return None
        return self.full.scatter(1, self.kept[index][..., None].expand_as(output), output)

    def _received(self, layer: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Return the attention (B, S) that tokens get in a layer from the queries, a mean over the heads. Fast kernels
        return no weights, so it is computed anew."""
        attention, kept, num_queries = layer.self_attn, self.kept[-1], self.weights.shape[1]
        states, *turns = (each.take_along_dim(kept[..., None], dim=1) for each in (hidden, *rotary))
        states = layer.input_layernorm(states)

        def heads(name: str, number: int) -> Tensor:
            norm, project = getattr(attention, f"{name}_norm", nn.Identity()), getattr(attention, f"{name}_proj")
            parts = norm(project(states[:, -number:]).unflatten(-1, (-1, attention.head_dim))).transpose(1, 2)
            return apply_rotary_pos_emb(parts, parts, *(each[:, -number:] for each in turns))[0]

        keys = heads("k", kept.shape[1]).repeat_interleave(attention.num_key_value_groups, dim=1)
        logits = (heads("q", num_queries) @ keys.mT * attention.scaling).float()  # (B, heads, n, S')
        seen = (kept[:, None] <= kept[:, -num_queries:, None]) & self.attended.gather(1, kept)[:, None]
        shares = logits.masked_fill(~seen[:, None], torch.finfo(logits.dtype).min).softmax(dim=-1).mean(dim=1)
        scores = (self.weights.float()[:, None] @ shares)[:, 0]
        return scores.new_zeros(hidden.shape[:2]).scatter(1, kept, scores)

    def best(self, left: Tensor, number: int) -> Tensor:
        """Return the tokens with the highest scores among those that are left (B, S), earlier ones first in a tie."""
        scores = self.scores.masked_fill(~left, -torch.inf)
        if (size := self.tokens_per_frame) is not None:
            videos = self.embeddings[self.is_video].view(len(left), -1, size, self.embeddings.shape[2])
            settings = CompressionSettings(retention_ratio=number / self.num_tokens, compression_rounding="exact")
            u_t: list[Any] = [compress(video).frame_uniqueness for video in videos]
            k_t = torch.stack([frame_budgets(each, size, settings)[0] for each in u_t])  # (B, T)
            of_frames = scores[self.is_video].view(*k_t.shape, size)
            place = of_frames.argsort(dim=2, descending=True, stable=True).argsort(dim=2)
            scores[self.is_video] += (place < k_t[..., None]).flatten().float()  # attention is at most 1
        order = scores.argsort(dim=1, descending=True, stable=True)
        return torch.zeros_like(left).scatter(1, order[:, :number], True)


def pruned_answers(
    model: Any, batch: Batch, max_new_tokens: int, method: type[Pruning], ratio: float, adjusted: bool = False
) -> tuple[Tensor, Tensor]:
    """Answer a batch with a method, in the form of `Candidate.answer`. The share kept is an average over the layers."""
    features = [keep_tokens(model, video, model.config.compression_settings(**BASELINE)) for video in batch.videos]
    inputs, size = batch.inputs(model, features), batch.videos[0].tokens[0].tokens.shape[1]
    with method(model, ratio, inputs["input_ids"], inputs["attention_mask"], size if adjusted else None) as pruning:
        new = generate_answers(model, inputs, joined(features), "consecutive", max_new_tokens=max_new_tokens)
    dropped = sum(pruning.is_video.shape[1] - kept.shape[1] for kept in pruning.kept) / len(pruning.layers)
    return new, torch.full((len(new),), 1 - dropped / pruning.num_tokens, dtype=torch.float64)
