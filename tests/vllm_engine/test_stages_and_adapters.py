"""Pipeline stages and LoRA adapters, which are vLLM's own, give the answers of one process and of merged weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vllm
from engines import CASES_BY_NAME, KEPT, NEW, Served, engine
from peft import LoraConfig, get_peft_model
from vllm.lora.request import LoRARequest
from vllm.model_executor.layers.fused_moe import layer

# On a CPU, vLLM makes the buffers of later stages only when it compiles.
TWO_STAGES: dict[str, Any] = {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp", "enforce_eager": False}
TWO_STAGES["compilation_config"] = {"mode": 1, "backend": "eager"}


def test_two_pipeline_stages_give_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of 96 tokens end inside videos. Qwen3-VL needs all that stages exchange: the second one has positions,
    but no features of videos. LLaVA's families have no positions of their own."""
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # a fork would inherit threads that wait for nobody
    case = CASES_BY_NAME["qwen3_vl"]
    case = replace(case, build_arguments={**case.build_arguments, "num_layers": 4})
    served = Served.saved(tmp_path, case, **KEPT)
    llm = engine(tmp_path, case, max_num_batched_tokens=96, max_num_seqs=4, **TWO_STAGES)
    asked: list[dict[str, Any]] = [
        {},
        {"videos": (0, 1)},
        {"images": (0,)},
        {"ratio": 1.0},
        {"ratio": 0.5},
        {"videos": ()},
    ]
    requests = [served.request(f"What is number {i}?", **each) for i, each in enumerate(asked)]
    answers = served.answers(*requests, llm=llm)
    llm.llm_engine.engine_core.shutdown()
    assert answers == served.expected(*requests)
    assert len({tuple(each) for each in answers}) > 3


@pytest.mark.parametrize("name", ["llava_video", "qwen3_vl", "qwen3_vl_moe"])
def test_requests_with_and_without_an_adapter_share_a_batch(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are asked about the same videos, so that what vLLM keeps of one would show in the other."""
    case = CASES_BY_NAME[name]
    only: dict[str, Any] = {}
    if name == "qwen3_vl_moe":
        # With adapters, vLLM computes experts by kernels of Triton, which a CPU has not. Here experts have no adapters,
        # so that they may be computed as without.
        only = {"lora_target_modules": ["q_proj", "v_proj", "o_proj"]}
        monkeypatch.setattr(layer, "FusedMoEConfig", without_adapters(layer.FusedMoEConfig))
    served = Served.saved(tmp_path / "repo", case, **KEPT)
    adapted = save_adapter(served, tmp_path / "adapter", r".*language_model.*\.(q|v|o|gate|up|down)_proj")
    # On a CPU, vLLM gives a request without an adapter that of the last place, which therefore stays empty.
    llm = engine(served.folder, case, enable_lora=True, max_lora_rank=8, max_loras=2, **only)
    adapter = LoRARequest("adapter", 1, str(tmp_path / "adapter"))
    asked: list[dict[str, Any]] = [{}, {"videos": (1,), "ratio": 0.5}, {"images": (0,)}, {"ratio": 1.0}, {"videos": ()}]
    requests = [served.request(**each) for each in asked]
    greedy = vllm.SamplingParams(temperature=0, max_tokens=NEW, min_tokens=NEW)
    adapters = [None] * len(requests) + [adapter] * len(requests)
    outputs = llm.generate(requests * 2, greedy, lora_request=adapters, use_tqdm=False)
    plain, other = served.expected(*requests), served.expected(*requests, model=adapted)
    assert [list(output.outputs[0].token_ids) for output in outputs] == plain + other
    assert all(a != b for a, b in zip(plain, other)) and len({tuple(each) for each in other}) > 3
    if name == "qwen3_vl":
        save_adapter(served, tmp_path / "embedding", r".*language_model\.embed_tokens")
        with pytest.raises(ValueError, match=r"expected target modules in .* but received .*embed_tokens"):
            llm.llm_engine.add_lora(LoRARequest("embedding", 2, str(tmp_path / "embedding")))
    llm.llm_engine.engine_core.shutdown()


def without_adapters(config_class: Any) -> Any:
    return lambda **arguments: config_class(**{**arguments, "is_lora_enabled": False})


def save_adapter(served: Served, folder: Path, modules: str) -> Any:
    """Save a random adapter as PEFT does, and return the Transformers model with the adapter merged."""
    model = served.case.row.model_class.from_pretrained(served.folder).eval()
    adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=4, target_modules=modules, init_lora_weights=False))
    adapted.save_pretrained(folder)
    return adapted.merge_and_unload()
