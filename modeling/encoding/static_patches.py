"""A SigLIP tower that computes only the patches that changed: STC-Cacher, of *Streaming Token Compression*
(arXiv 2512.00891).

Frames come in groups. The first of a group is the reference frame and computed in full. In each layer of the others all
keys are computed; the patches whose keys are least like the reference frame's at the same places are dynamic, and have
query, value, attention output and MLP of their own. The static ones take over the reference frame's value, attention
output and MLP output. What these are added to is each frame's own throughout.

Not in the authors' code: a frame of which more patches changed than may be computed, as after a cut, is a reference
frame too. What another scene's would give its static patches is worth nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import SiglipVisionModel

# It bounds what can be saved, with the keys of all patches: 69 % of the operations of SigLIP so400m's layers at 4, 81 %
# at 8. Every fourth frame in full is what docs/needle.md measures.
REFERENCE_INTERVAL = 4
# A patch has changed if its key in the first layer and that of the reference frame have a smaller cosine. In the needle
# benchmark its median is 0.99 within a scene, 0.93 where the camera moves, and 0.60 where nearly every frame is a cut.
UNCHANGED = 0.85


@dataclass(frozen=True)
class LayerOutputs:
    """What a layer computed of R frames, each (R, patches, dim)."""

    keys: Tensor
    values: Tensor
    attention: Tensor
    mlp: Tensor


def patch_states(
    tower: SiglipVisionModel,
    frames: Tensor,
    group_lengths: Sequence[int],
    update_ratio: float,
    feature_layers: Sequence[int],
) -> Tensor:
    """Hidden states of the tower, of which those between reference frames are approximate.

    Args:
        frames: (F, channels, height, width) pixels.
        group_lengths: of how many frames each group is; they add up to F. The first of a group is its reference, and
            a frame of which too much changed since then is that of those after it.
        update_ratio: share of the patches that are dynamic, in (0, 1]; of a frame at least one. At 1.0 all frames are
            computed in full, to rounding.
        feature_layers: whose hidden states: 0 for the embeddings, n for the n-th layer's output, -1 for the last's.

    Returns:
        (F, patches, len(feature_layers) · dim), the layers beside each other.
    """
    embedded = tower.embeddings(frames)
    budget = num_dynamic(embedded.shape[1], update_ratio)
    group_lengths = split_at_cuts(first_keys(tower, embedded), group_lengths, budget)
    starts = list(accumulate(group_lengths, initial=0))[:-1]
    between = sorted(set(range(len(frames))) - set(starts))
    order = torch.tensor(starts + between, device=embedded.device)
    reference_of = order.new_tensor([group for group, length in enumerate(group_lengths) for _ in range(length - 1)])
    wanted = [range(len(tower.encoder.layers) + 1)[layer] for layer in feature_layers]

    # Reference frames first, then the others.
    states = embedded.index_select(0, order)
    found = {0: states}
    for number, layer in enumerate(tower.encoder.layers[: max(wanted)], start=1):
        arguments = (layer, states, reference_of, budget)
        if layer.gradient_checkpointing and layer.training:
            states = checkpoint(_layer, *arguments, use_reentrant=False)
        else:
            states = _layer(*arguments)
        if number in wanted:
            found[number] = states
    return torch.cat([found[number] for number in wanted], dim=-1).index_select(0, order.argsort())


def groups_of(run_lengths: Sequence[int]) -> list[int]:
    """The lengths of the groups in runs of frames, each run of one video."""
    return [
        min(REFERENCE_INTERVAL, length - first)
        for length in run_lengths
        for first in range(0, length, REFERENCE_INTERVAL)
    ]


def num_dynamic(num_patches: int, update_ratio: float) -> int:
    """How many patches of a frame are dynamic: the share, rounded up from its exact value, and at least one."""
    return max(1, math.ceil(update_ratio * num_patches - 1e-6))


@torch.no_grad()
def first_keys(tower: SiglipVisionModel, embedded: Tensor) -> Tensor:
    """(F, patches, dim) keys of the first layer, of the tower's embeddings alike."""
    layer: Any = tower.encoder.layers[0]
    return layer.self_attn.k_proj(layer.layer_norm1(embedded))


def split_at_cuts(keys: Tensor, group_lengths: Sequence[int], budget: int) -> list[int]:
    """The groups, split before frames of which more than `budget` patches changed since the reference frame.

    Args:
        keys: (F, patches, dim) of the first layer.
    """
    keys = nn.functional.normalize(keys.float(), dim=-1)
    counts = [torch.zeros(len(keys), dtype=torch.long, device=keys.device)]  # by how many frames the two are apart
    for apart in range(1, max(group_lengths)):
        alike = (keys[apart:] * keys[:-apart]).sum(dim=-1)
        counts.append(nn.functional.pad((alike < UNCHANGED).sum(dim=1), (apart, 0)))
    changed = torch.stack(counts).tolist()  # one question to the device
    lengths: list[int] = []
    for start, length in zip(accumulate(group_lengths, initial=0), group_lengths):
        reference = start
        for frame in range(start + 1, start + length):
            if changed[frame - reference][frame] > budget:
                lengths.append(frame - reference)
                reference = frame
        lengths.append(start + length - reference)
    return lengths


def _layer(layer: Any, states: Tensor, reference_of: Tensor, budget: int) -> Tensor:
    """A layer of the tower, of (R + S, patches, dim) states, of which the first R are reference frames.

    Args:
        reference_of: (S,) int64: which of these is the reference of each of the S others.
        budget: how many patches of each of the S are dynamic.
    """
    references, others = states.split([len(states) - len(reference_of), len(reference_of)])
    references, outputs = _reference_frames(layer, references)
    if len(others) == 0:
        return references
    return torch.cat([references, _frames_between(layer, others, outputs, reference_of, budget)])


def _reference_frames(layer: Any, states: Tensor) -> tuple[Tensor, LayerOutputs]:
    attention = layer.self_attn
    normed = layer.layer_norm1(states)
    keys, values = attention.k_proj(normed), attention.v_proj(normed)
    attended = _attended(attention, attention.q_proj(normed), keys, values)
    states = states + attended
    mlp = layer.mlp(layer.layer_norm2(states))
    return states + mlp, LayerOutputs(keys, values, attended, mlp)


def _frames_between(layer: Any, states: Tensor, references: LayerOutputs, reference_of: Tensor, budget: int) -> Tensor:
    attention = layer.self_attn
    normed = layer.layer_norm1(states)
    keys = attention.k_proj(normed)
    places = least_similar(keys, references.keys[reference_of], budget)
    first = torch.arange(len(states), device=states.device)[:, None] * states.shape[1]
    rows = (first + places).flatten()  # of the dynamic patches, among those of all frames

    def updated(of_references: Tensor, of_rows: Tensor) -> Tensor:
        """The reference's for each frame, but for the dynamic patches."""
        copies = of_references[reference_of].flatten(0, 1)
        return copies.index_copy_(0, rows, of_rows).view(len(states), -1, copies.shape[1])

    dynamic = normed.flatten(0, 1)[rows]
    values = updated(references.values, attention.v_proj(dynamic))
    queries = attention.q_proj(dynamic).unflatten(0, (-1, budget))
    states = states + updated(references.attention, _attended(attention, queries, keys, values).flatten(0, 1))
    mlp = layer.mlp(layer.layer_norm2(states.flatten(0, 1)[rows]))
    return states + updated(references.mlp, mlp)


@torch.no_grad()
def least_similar(keys: Tensor, reference_keys: Tensor, budget: int) -> Tensor:
    """(S, budget) int64: for frames' keys (S, patches, dim), the patches whose key is least like the reference frame's
    at the same place by their cosine; of equal ones the earlier."""
    similarity = nn.functional.cosine_similarity(keys.float(), reference_keys.float(), dim=-1)
    return similarity.argsort(dim=1, stable=True)[:, :budget]


def _attended(attention: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of queries (F, n, dim) to keys and values (F, patches, dim), through the output projection."""
    heads = (each.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for each in (queries, keys, values))
    dropout = attention.dropout if attention.training else 0.0
    attended = nn.functional.scaled_dot_product_attention(*heads, dropout_p=dropout, scale=attention.scale)
    return attention.out_proj(attended.transpose(1, 2).flatten(2))
