"""SparseVLM (Zhang et al., ICML 2025, arXiv 2410.04417).

Before the first layer, raters are chosen among the text tokens (Eqs. 5 and 6). Each video embedding is compared with
each text embedding by inner product, followed by a softmax over the text and a mean over the video; tokens at or above
the mean are raters. In a layer that drops tokens, a video token's score is the attention that it gets from the raters
(Eqs. 2 and 3), averaged over heads and raters. The layer still runs on all tokens, and then the best are selected. Of
the others, the best 30 % are recycled (Section 3.3): density peaks clustering forms a cluster for every ten of them,
and makes one token of each cluster.

The adaptive number of drops, λ·(L_v - rank(P)) (Eq. 7), is left out. It depends on the content, so it cannot meet a
given ratio. When the authors compare at a given number of tokens, they also use fixed numbers for each layer
(github.com/Gumpest/SparseVLMs, `score.py` of the branches main and v1.5).

Where paper and code differ, and where the paper leaves something open:

- text: for the paper's language instruction, the code and this file take all tokens after the video;
- raters: Eq. 5 has `≥` mean and the code `>`; this file has `≥`, which always gives at least one rater;
- τ, θ: the paper does not give them; the code and this file take 30 % and one tenth, each rounded down, plus one;
- neighbours: k of Eq. 8 is the number of clusters in the code and here, and a token is its own nearest neighbour;
  distances are divided by √D. Mutual neighbours tie in density. The code adds random noise to these, but here the token
  with the higher score counts as denser, so that an answer can be repeated;
- δ of the densest token (Eq. 9): in the code and here the largest of all distances, not of its own distances;
- clusters: the paper takes the nearest centre by cosine, the code and this file by Euclidean distance;
- merging: Eq. 10 has the sum, the code and this file the mean (a sum grows with the cluster, out of the model's range);
- places: in the code the recycled tokens follow the selected ones, and all positions are renumbered. Here a recycled
  token takes the place and the position of its cluster's centre, and for frame budgets it belongs to that frame.

A recycled token takes part in every later layer like a selected one, so it counts as one token. (The comment beside the
authors' fixed numbers counts none of them, and counts the first two drops one layer early.)
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from transformers import LlavaOnevisionForConditionalGeneration

from .in_model_pruning import Answer, Pruning, answer_with_pruning
from .prompts import Inputs, Prompt, num_layers_of, read_prompt
from .schedules import Stage, kept_tokens

# The authors drop at the end of layers 2, 6 and 15, counted from 0, of 32 layers.
AUTHORS_LAYERS, AUTHORS_DEPTH = (3, 7, 16), 32
RECYCLED_SHARE = 0.3  # τ
TOKENS_OF_A_CLUSTER = 10  # 1 / θ


def answer(
    model: LlavaOnevisionForConditionalGeneration,
    inputs: Inputs,
    retention_ratio: float,
    max_new_tokens: int = 4,
    *,
    video_features: Tensor | None = None,
    frame_adjustment: bool = False,
    layers: Sequence[int] | None = None,
) -> Answer:
    """Answer with SparseVLM.

    Args:
        inputs, video_features: see `read_prompt`.
        retention_ratio: R, the average share of video tokens over the layers, including recycled tokens.
        frame_adjustment: keep the best k_t tokens of each frame, with VidCom²'s budgets, instead of the video's best.
        layers: after how many layers tokens are dropped; by default as `default_layers` returns.

    Raises:
        ValueError: if R is out of reach, as it is below (first of `layers`) / L, or if the inputs do not fit.
    """
    prompt = read_prompt(model, inputs, video_features)
    drops = stages(retention_ratio, num_layers_of(model), prompt.num_video_tokens, layers)
    pruning = Pruning(drops, rater_weights(prompt), recycle=recycle, frame_adjustment=frame_adjustment)
    return answer_with_pruning(model, prompt, pruning, max_new_tokens)


def stages(
    retention_ratio: float, num_layers: int, num_tokens: int, layers: Sequence[int] | None = None
) -> list[Stage]:
    """Return stages that keep N·λ, N·λ² and N·λ³ tokens, including recycled ones, with λ such that the average is R.

    (The authors' fixed numbers fall in the same way: 300, 200 and 110 for 192 of 576 tokens on average.)
    """
    layers = default_layers(num_layers) if layers is None else layers
    stages, before = [], num_tokens
    for after, kept in zip(layers, kept_tokens(retention_ratio, num_layers, layers, num_tokens, fewest_tokens)):
        selected = num_selected(before, kept)
        stages.append(Stage(after, selected, kept - selected))
        before = kept
    return stages


def default_layers(num_layers: int) -> list[int]:
    """Return layers in the proportion of the authors' 3, 7 and 16 of 32: 3, 6, 14 of 28; 2, 5, 12 of 24; 1, 2 of 3."""
    return sorted({max(1, round(after * num_layers / AUTHORS_DEPTH)) for after in AUTHORS_LAYERS})


def rater_weights(prompt: Prompt) -> Tensor:
    """Return (B, n) float32 for the last n tokens: 1 / (number of raters) for a rater, else 0 (Eqs. 5 and 6)."""
    is_text = prompt.text_after_video
    text = prompt.embeddings[:, -is_text.shape[1] :].float()
    likeness = prompt.video_tokens.float() @ text.transpose(1, 2)  # (B, T·M, n)
    relevance = likeness.masked_fill(~is_text[:, None], -torch.inf).softmax(dim=-1).mean(dim=1)
    mean = 1 / is_text.sum(dim=1, keepdim=True)  # because the relevance adds up to 1
    raters = is_text & (relevance >= mean - 1e-7)  # despite float32 noise, a single text token is a rater
    return raters / raters.sum(dim=1, keepdim=True)


def num_recycled_of(num_dropped: int) -> int:
    """Return how many tokens are made from `num_dropped` dropped ones."""
    if num_dropped == 0:
        return 0
    return num_pooled_of(num_dropped) // TOKENS_OF_A_CLUSTER + 1


def num_pooled_of(num_dropped: int) -> int:
    """Return how many of `num_dropped` dropped tokens are recycled, which are the best 30 %."""
    return int(num_dropped * RECYCLED_SHARE) + 1


def num_selected(before: int, kept: int) -> int:
    """Return how many of `before` tokens to select, at least one, so that `kept` stay with those made from the rest."""
    return next(k for k in range(1, before + 1) if k + num_recycled_of(before - k) >= kept)


def fewest_tokens(before: int) -> int:
    """Return how many tokens stay if only one of `before` is selected."""
    return 1 + num_recycled_of(before - 1)


def recycle(states: Tensor, scores: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Make tokens from dropped ones, by density peaks clustering of the best 30 % (Section 3.3).

    Args:
        states: (P, D) hidden states of the dropped tokens.
        scores: (P,) their scores.
        num_clusters: C.

    Returns:
        (C,) int64, which tokens are the centres, and (C, D) float32, the means of their clusters.
    """
    pool = scores.argsort(descending=True, stable=True)[: num_pooled_of(len(states))]
    states = states[pool].float()
    distances = torch.cdist(states, states, compute_mode="donot_use_mm_for_euclid_dist") / states.shape[1] ** 0.5
    density = torch.exp(-distances.topk(num_clusters, largest=False).values.square().mean(dim=1))  # Eq. 8
    order = torch.arange(len(pool), device=pool.device)
    tied = (density[None] == density[:, None]) & (order < order[:, None])
    denser = (density[None] > density[:, None]) | tied
    distance_to_denser = distances.masked_fill(~denser, float(distances.max())).amin(dim=1)  # Eq. 9
    centres = (density * distance_to_denser).argsort(descending=True, stable=True)[:num_clusters]

    cluster = distances[:, centres].argmin(dim=1)
    cluster[centres] = torch.arange(num_clusters, device=cluster.device)  # even if two centres are the same point
    members = one_hot(cluster, num_clusters).float()  # (pool, C)
    return pool[centres], (members / members.sum(dim=0)).T @ states
