"""FastV (Chen et al., "An Image is Worth 1/2 Tokens After Layer 2", ECCV 2024, arXiv 2403.06764).

Tokens are dropped once, after layer K (Section 4.1). Video tokens are ranked by the attention that they get in layer K,
averaged over its heads, and the lowest are dropped before layer K + 1.

Paper and code (github.com/pkunlp-icler/FastV) differ. In the paper a token's score is the average over all tokens that
attend to it, whereas the code uses only the last prompt token as the query. This file follows the code, as the VidCom²
paper does (Appendix "Baseline Details": attention of the output token). K = 0, for which the paper drops at random
before the first layer, is not offered.
"""

import torch
from torch import Tensor
from transformers import LlavaOnevisionForConditionalGeneration

from .in_model_pruning import Answer, Pruning, answer_with_pruning
from .prompts import Inputs, num_layers_of, read_prompt
from .schedules import Stage, kept_tokens

PAPERS_LAYER = 2  # K
SHALLOW = 8  # with fewer layers, tokens are dropped after the first; otherwise useful ratios would be out of reach


def answer(
    model: LlavaOnevisionForConditionalGeneration,
    inputs: Inputs,
    retention_ratio: float,
    max_new_tokens: int = 4,
    *,
    video_features: Tensor | None = None,
    frame_adjustment: bool = False,
    layer: int | None = None,
) -> Answer:
    """Answer with FastV.

    Args:
        inputs, video_features: see `read_prompt`.
        retention_ratio: R, the average share of video tokens over the layers.
        frame_adjustment: keep the best k_t tokens of each frame, with VidCom²'s budgets, instead of the video's best.
        layer: K; by default 2, or 1 in a model with fewer than 8 layers.

    Raises:
        ValueError: if R is out of reach, as it is below K/L, or if the inputs do not fit.
    """
    prompt = read_prompt(model, inputs, video_features)
    drops = stages(retention_ratio, num_layers_of(model), prompt.num_video_tokens, layer)
    last_token = torch.ones_like(prompt.positions[:, :1])
    pruning = Pruning(drops, last_token, frame_adjustment=frame_adjustment)
    return answer_with_pruning(model, prompt, pruning, max_new_tokens)


def stages(retention_ratio: float, num_layers: int, num_tokens: int, layer: int | None = None) -> list[Stage]:
    """Return the stage after layer K, which keeps a share r such that K + (L - K)·r = R·L."""
    if layer is None:
        layer = PAPERS_LAYER if num_layers >= SHALLOW else 1
    return [Stage(layer, *kept_tokens(retention_ratio, num_layers, [layer], num_tokens))]
