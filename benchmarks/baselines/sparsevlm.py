"""SparseVLM (Zhang et al., ICML 2025, arXiv 2410.04417).

Before the first layer the raters are chosen among the text tokens (Eqs. 5 and 6): each video embedding is compared
with each text embedding by inner product, softmax over the text, mean over the video; tokens at or above the mean are
raters. In a layer that drops, a video token's score is the attention that it gets from the raters (Eqs. 2 and 3),
averaged over heads and raters. The layer still runs on all tokens; then the best go on. Of the others, the best 30 %
are recycled (Section 3.3): density peaks clustering makes one token of each cluster, one for ten tokens.

Not here: the adaptive number of drops, λ·(L_v - rank(P)) (Eq. 7). It follows from the content, so it cannot meet a
ratio that is set. In their comparisons at a set number of tokens the authors use fixed numbers for each layer as well
(github.com/Gumpest/SparseVLMs, `score.py` of the branches main and v1.5).

Where paper and code differ:

- text: the paper's language instruction is, in the code and here, all tokens after the video;
- raters: `≥` mean in Eq. 5, `>` in the code; here `≥`, by which there is always one;
- τ, θ: not in the paper; 30 % and one tenth in the code and here, each rounded down, plus one;
- neighbours: k of Eq. 8 is the number of clusters in the code and here, a token being its own nearest; distances are
  divided by √D. Mutual neighbours tie in density; the code adds random noise, here the token of higher score counts as
  the denser, so that an answer can be repeated;
- δ of the densest token (Eq. 9): the largest distance of all in the code and here, and not of its own;
- clusters: the nearest centre by cosine in the paper, by Euclidean distance in the code and here;
- merging: the sum in Eq. 10, the mean in the code and here (a sum grows with the cluster, out of the model's range);
- places: in the code the recycled tokens follow the selected ones, and all positions are renumbered. Here a recycled
  token stands in the place of its cluster's centre, with its position, and for frame budgets it belongs to that frame.

How they are counted: a recycled token takes part in every later layer like a selected one, and counts as one. (The
comment beside the authors' fixed numbers counts none of them, and the first two drops one layer early.)
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from transformers import LlavaOnevisionForConditionalGeneration

from .in_model_pruning import Answer, Pruning, answer_with_pruning
from .prompts import Inputs, Prompt, num_layers_of, read_prompt
from .schedules import Stage, kept_tokens

# Drops come at the end of layers 2, 6 and 15, counted from 0, of the authors' 32.
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
    """
    Args:
        inputs, video_features: see `read_prompt`. retention_ratio: R, the average share of video tokens over the
        layers, with recycled tokens. frame_adjustment: select the best k_t tokens of each frame, with VidCom²'s
        budgets, and not the best of the video. layers: after how many layers tokens are dropped; by default what
        `default_layers` says.

    Raises:
        ValueError: if R is out of reach, which is so below (first of `layers`) / L, or the inputs do not fit.
    """
    prompt = read_prompt(model, inputs, video_features)
    drops = stages(retention_ratio, num_layers_of(model), prompt.num_video_tokens, layers)
    pruning = Pruning(drops, rater_weights(prompt), recycle=recycle, frame_adjustment=frame_adjustment)
    return answer_with_pruning(model, prompt, pruning, max_new_tokens)


def stages(
    retention_ratio: float, num_layers: int, num_tokens: int, layers: Sequence[int] | None = None
) -> list[Stage]:
    """N·λ, N·λ², N·λ³ tokens after the layers, recycled ones among them, with the λ for which the average is R.

    (The authors' fixed numbers fall likewise: 300, 200 and 110 for 192 of 576 tokens on average.)
    """
    layers = default_layers(num_layers) if layers is None else layers
    stages, before = [], num_tokens
    for after, kept in zip(layers, kept_tokens(retention_ratio, num_layers, layers, num_tokens, fewest_tokens)):
        selected = num_selected(before, kept)
        stages.append(Stage(after, selected, kept - selected))
        before = kept
    return stages


def default_layers(num_layers: int) -> list[int]:
    """The authors' 3, 7 and 16 of 32, in proportion: 3, 6, 14 of 28, 2, 5, 12 of 24, and 1, 2 of 3."""
    return sorted({max(1, round(after * num_layers / AUTHORS_DEPTH)) for after in AUTHORS_LAYERS})


def rater_weights(prompt: Prompt) -> Tensor:
    """(B, n) float32: for the last n tokens, 1 / (number of raters) where they are raters, else 0 (Eqs. 5 and 6)."""
    is_text = prompt.text_after_video
    text = prompt.embeddings[:, -is_text.shape[1] :].float()
    likeness = prompt.video_tokens.float() @ text.transpose(1, 2)  # (B, T·M, n)
    relevance = likeness.masked_fill(~is_text[:, None], -torch.inf).softmax(dim=-1).mean(dim=1)
    mean = 1 / is_text.sum(dim=1, keepdim=True)  # of what adds up to 1
    raters = is_text & (relevance >= mean - 1e-7)  # float32 noise: one text token alone is a rater
    return raters / raters.sum(dim=1, keepdim=True)


def num_recycled_of(num_dropped: int) -> int:
    """How many tokens are made of so many dropped ones."""
    if num_dropped == 0:
        return 0
    return num_pooled_of(num_dropped) // TOKENS_OF_A_CLUSTER + 1


def num_pooled_of(num_dropped: int) -> int:
    """How many of so many dropped tokens are recycled: the best 30 %."""
    return int(num_dropped * RECYCLED_SHARE) + 1


def num_selected(before: int, kept: int) -> int:
    """How many of `before` tokens to select, at least one, for `kept` together with those made of the others."""
    return next(k for k in range(1, before + 1) if k + num_recycled_of(before - k) >= kept)


def fewest_tokens(before: int) -> int:
    """What stays if one token of so many is selected."""
    return 1 + num_recycled_of(before - 1)


def recycle(states: Tensor, scores: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Makes tokens of dropped ones, by density peaks clustering of the best 30 % (Section 3.3).

    Args:
        states: (P, D) hidden states of the dropped tokens.
        scores: (P,) their scores.
        num_clusters: C.

    Returns:
        (C,) int64, which tokens are the centres; and (C, D) float32, the means of their clusters.
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
    cluster[centres] = torch.arange(num_clusters, device=cluster.device)  # also where two centres are the same point
    members = one_hot(cluster, num_clusters).float()  # (pool, C)
    return pool[centres], (members / members.sum(dim=0)).T @ states
