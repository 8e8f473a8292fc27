"""Methods to compare VidCom² with, for the stock `LlavaOnevisionForConditionalGeneration` of Transformers.

FastV, PyramidDrop and SparseVLM drop video tokens inside the language model; `downscale` shows it smaller frames.
MUSTDrop, FiCoCo and FasterVLM are left out, because they rank tokens by the attention of a [CLS] token, which SigLIP
does not have (VidCom² paper, Section 1 and Appendix "Baseline Details").

All take the same arguments and return an `Answer`:

    answer = BASELINES["fastv"](model, inputs, retention_ratio=0.25, max_new_tokens=4)
    answer.token_ids  # (B, n)
    answer.retention_ratio  # the average share of video tokens that the layers actually held

`retention_ratio` is the VidCom² paper's "equivalent retention ratio" (Section 4.1): the share of video tokens kept,
averaged over all layers of the language model.
"""

from collections.abc import Callable

from . import downscale, fastv, pyramiddrop, sparsevlm
from .in_model_pruning import Answer

__all__ = ["BASELINES", "Answer"]

BASELINES: dict[str, Callable[..., Answer]] = {
    "fastv": fastv.answer,
    "pyramiddrop": pyramiddrop.answer,
    "sparsevlm": sparsevlm.answer,
    "downscale": downscale.answer,
}
