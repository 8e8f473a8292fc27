"""Qwen3.5, and MiniCPM-V whose language model it is, in bfloat16 with heads of 128, since vLLM's linear attention on
the CPU takes nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm
from engines import KEPT, ROWS, Case, Served, engine

from vidcom2.tiny import minicpmv as tiny_minicpmv
from vidcom2.tiny import qwen as tiny


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe", "minicpmv4_6"])
def test_first_tokens_are_as_likely_as_in_the_transformers_class(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    monkeypatch.setattr(tiny, "QWEN3_5_TEXT", tiny.QWEN3_5_TEXT | heads)
    case = Case(ROWS[name], {"patch_size": 14}, (4, 5), dtype="bfloat16", scale=1.5)
    if name == "minicpmv4_6":
        monkeypatch.setattr(tiny_minicpmv, "QWEN3_5_TEXT", tiny.QWEN3_5_TEXT)
        case = replace(case, build_arguments={"patch_size": 7, "max_slice_nums": 1})
    served = Served.saved(tmp_path, case, **KEPT)
    served.model.bfloat16()
    limits = {"limit_mm_per_prompt": {"video": 2, "image": 0}}  # the tower is needed all the same
    served.llm = engine(tmp_path, case, enable_prefix_caching=False, block_size=None, **limits)
    ratios = (1.0, 0.5, 0.25, 0.1)
    expected = {ratio: likelihoods(served, served.request(ratio=ratio)) for ratio in ratios}
    for ratio in ratios:
        found = first_token(served, served.request(ratio=ratio))
        distances = {
            each: max(abs(found[token] - other[token].item()) for token in found) for each, other in expected.items()
        }
        assert distances[ratio] < 0.5 * min(distances[other] for other in ratios if other != ratio), distances
    served.check_text_of_prompts()


def first_token(served: Served, request: dict[str, Any]) -> dict[int, float]:
    """Log-probabilities of the 20 likeliest."""
    (output,) = served.llm.generate(
        [request], vllm.SamplingParams(temperature=0, max_tokens=1, logprobs=20), use_tqdm=False
    )
    return {token: entry.logprob for token, entry in output.outputs[0].logprobs[0].items()}


def likelihoods(served: Served, request: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        output = served.model(**served.inputs(request), **request["mm_processor_kwargs"])
    return output.logits[0, -1].float().log_softmax(-1)
