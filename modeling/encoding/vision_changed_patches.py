"""`vision_method="changed_patches"`: a SigLIP tower computes only the patches that changed. This is STC-Cacher, of
*Streaming Token Compression* (arXiv 2512.00891).

Frames come in groups. The first frame of a group is its reference frame, and is computed in full. In the other frames,
each layer computes the keys of all patches and compares them with the reference frame's keys at the same places. The
patches whose keys differ most are dynamic: the layer computes their query, value, attention output and MLP. The others
are static and reuse the reference frame's value, attention output and MLP output. These are added to each frame's own
residual stream throughout.

One thing is not in the authors' code: a frame in which too many patches changed, as after a cut, becomes the reference
for the frames after it. A static patch would gain nothing from another scene.
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

from ...configuration.compression_settings import CompressionSettings
from ...configuration.method_tables import VISION_METHODS

REFERENCE_INTERVAL = VISION_METHODS["changed_patches"].group_frames
# A patch has changed if the cosine of its key in the first layer and the reference frame's key is below this. In the
# needle benchmark the median is 0.99 within a scene, 0.93 where the camera moves, and 0.60 where nearly every frame is
# a cut.
UNCHANGED = 0.85


@dataclass(frozen=True)
class LayerOutputs:
    """What a layer computed for R reference frames, each (R, patches, dim)."""

    keys: Tensor
    values: Tensor
    attention: Tensor
    mlp: Tensor


def changed_patches(
    tower: SiglipVisionModel,
    frames: Tensor,
    run_lengths: Sequence[int],
    settings: CompressionSettings,
    feature_layers: Sequence[int],
) -> Tensor:
    """Encode frames as an `EncodeFrames` does; reads `vision_update_ratio`."""
    return patch_states(tower, frames, groups_of(run_lengths), settings.vision_update_ratio, feature_layers)


def patch_states(
    tower: SiglipVisionModel,
    frames: Tensor,
    group_lengths: Sequence[int],
    update_ratio: float,
    feature_layers: Sequence[int],
) -> Tensor:
    """Return the tower's hidden states. Those of frames between reference frames are approximate.

    Args:
        frames: (F, channels, height, width) pixels.
        group_lengths: how many frames each group has; they add up to F. The first frame of a group is its reference. A
            frame in which too many patches changed since then becomes the reference for the frames after it.
        update_ratio: share of a frame's patches that are dynamic, in (0, 1]; at least one patch is. At 1.0 all frames
            are computed in full, up to rounding.
        feature_layers: whose hidden states to return: 0 for the embeddings, n for the n-th layer's output, -1 for the
            last layer's.

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
    """Split runs of frames, each of one video, into groups, and return the lengths of these."""
    return [
        min(REFERENCE_INTERVAL, length - first)
        for length in run_lengths
        for first in range(0, length, REFERENCE_INTERVAL)
    ]


def num_dynamic(num_patches: int, update_ratio: float) -> int:
    """Return how many patches of a frame are dynamic: at least one, and the share's exact value rounded up."""
    return max(1, math.ceil(update_ratio * num_patches - 1e-6))


@torch.no_grad()
def first_keys(tower: SiglipVisionModel, embedded: Tensor) -> Tensor:
    """Compute the first layer's keys (F, patches, dim) from the tower's embeddings (F, patches, dim)."""
    layer: Any = tower.encoder.layers[0]
    return layer.self_attn.k_proj(layer.layer_norm1(embedded))


def split_at_cuts(keys: Tensor, group_lengths: Sequence[int], budget: int) -> list[int]:
    """Split groups before each frame in which more than `budget` patches changed since the reference frame.

    Args:
        keys: (F, patches, dim), the first layer's.
    """
    keys = nn.functional.normalize(keys.float(), dim=-1)
    counts = [torch.zeros(len(keys), dtype=torch.long, device=keys.device)]  # by the distance between the two frames
    for apart in range(1, max(group_lengths)):
        alike = (keys[apart:] * keys[:-apart]).sum(dim=-1)
        counts.append(nn.functional.pad((alike < UNCHANGED).sum(dim=1), (apart, 0)))
    changed = torch.stack(counts).tolist()  # the only wait for the device
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
    """Run a layer of the tower on the states (R + S, patches, dim) of R reference frames and S other frames.

    Args:
        reference_of: (S,) int64: the reference frame of each of the S others.
        budget: how many patches of each of the S others are dynamic.
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
        """Copy each frame's reference, and replace the dynamic patches."""
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
    """Return the patches whose keys differ most from the reference frame's keys at the same places, by their cosine.

    Args:
        keys, reference_keys: (S, patches, dim) of S frames and of their reference frames.

    Returns:
        (S, budget) int64. Of equal patches the earlier one comes first.
    """
    similarity = nn.functional.cosine_similarity(keys.float(), reference_keys.float(), dim=-1)
    return similarity.argsort(dim=1, stable=True)[:, :budget]


def _attended(attention: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Let queries (F, n, dim) attend to keys and values (F, patches, dim), and apply the output projection."""
    heads = (each.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for each in (queries, keys, values))
    dropout = attention.dropout if attention.training else 0.0
    attended = nn.functional.scaled_dot_product_attention(*heads, dropout_p=dropout, scale=attention.scale)
    return attention.out_proj(attended.transpose(1, 2).flatten(2))
