"""In steps of few tokens, and with little memory, what the engine keeps of a request never affects an answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import vllm
from engines import CASES_BY_NAME, KEPT, Served, count_encoded, engine

BUT_GEMMA = pytest.mark.only.with_args(lambda served: served != "gemma4")


@pytest.fixture(scope="module", params=["llava_onevision", "qwen2_5_vl", "qwen3_vl", "gemma4"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve in steps of 48 tokens, which most videos exceed, with room for the features of few videos."""
    case = CASES_BY_NAME[request.param]
    served = Served.saved(tmp_path_factory.mktemp(case.name), case, **KEPT)
    served.llm = engine(
        served.folder,
        case,
        max_num_batched_tokens=48,
        max_num_seqs=2,
        max_model_len=1536 if case.name == "gemma4" else 1024,
        enable_prefix_caching=False,
        async_scheduling=False,
    )
    yield served
    served.llm.llm_engine.engine_core.shutdown()


def test_a_prefill_whose_chunks_end_inside_videos_gives_the_same_answers(served: Served) -> None:
    requests = [served.request(f"Which {i}?", (20 + i, 30 + i), ratio=ratio) for i, ratio in enumerate((0.3, 0.7, 1.0))]
    outputs = served.outputs(*requests)
    assert min(len(output.prompt_token_ids) for output in outputs) > 48
    assert [list(output.outputs[0].token_ids) for output in outputs] == served.expected(*requests)


@BUT_GEMMA
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_request_aborted_during_prefill_leaves_nothing_behind(served: Served, steps: int) -> None:
    """Nothing stays in its place in the batch, which the next request takes, nor among the features of its video."""
    videos = (60, 61)
    aborted = served.request("Is this one aborted?", videos, ratio=1.0)
    greedy = vllm.SamplingParams(temperature=0, max_tokens=8)
    llm_engine = served.llm.llm_engine
    name = llm_engine.add_request(f"aborted-{steps}", aborted, greedy)
    for _ in range(steps):
        assert not any(output.finished for output in llm_engine.step())
    llm_engine.abort_request([name], internal=True)
    while llm_engine.has_unfinished_requests():
        llm_engine.step()
    others = [served.request("And now?", videos, ratio=0.5), aborted, served.request("What is it?", videos[:1])]
    assert served.answers(*others) == served.expected(*others)


@BUT_GEMMA
def test_evicted_features_are_computed_again_with_the_settings_of_their_request(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = count_encoded(monkeypatch)
    requests = [served.request("What is it?", (70,), ratio=ratio) for ratio in (0.3, 0.7)]
    expected = served.expected(*requests)
    assert served.answers(*requests) == expected
    assert sorted(each.retention_ratio for each in encoded) == [0.3, 0.7]
    for seed in range(100, 124):
        served.answers(served.request("Next?", (seed,), ratio=1.0))
    del encoded[:]
    assert served.answers(*requests[::-1]) == expected[::-1]
    assert sorted(each.retention_ratio for each in encoded) == [0.3, 0.7]


@BUT_GEMMA
def test_arguments_of_the_processor_work_beside_settings(served: Served) -> None:
    """They work with and without a ratio, for one video in one batch."""
    sampled = {"do_sample_frames": True, **({"fps": 0.6} if served.case.name == "qwen3_vl" else {"num_frames": 4})}
    requests = [
        served.request("What happens?", (90,), ratio=ratio, **arguments)
        for arguments in (sampled, {})
        for ratio in (None, 0.5, 1.0)
    ]
    answers = served.answers(*requests)
    assert answers == served.expected(*requests)
    assert len({tuple(each) for each in answers}) > 3


@pytest.mark.only.with_args(lambda served: served == "llava_onevision")  # the towers of others take any size
def test_frames_of_a_wrong_size_are_refused_and_the_next_request_is_answered(served: Served) -> None:
    """An error in the middle of a step would stop the server for everybody."""
    size = {"size": {"height": 56, "width": 56}}
    with pytest.raises(ValueError, match=r"`mm_processor_kwargs` .* 56 × 56 .* 84 × 84"):
        served.outputs(served.request(**size))
    request = served.request("And now?")
    assert served.answers(request) == served.expected(request)


def test_preempted_requests_are_computed_again_with_the_same_answers(tmp_path: Path) -> None:
    """The memory holds only 512 tokens. Qwen3-VL has positions of its own, and features for deeper layers."""
    case = CASES_BY_NAME["qwen3_vl"]
    served = Served.saved(tmp_path, case, **KEPT)
    memory = {"kv_cache_memory_bytes": 2**20, "max_model_len": 256, "max_num_batched_tokens": 300}
    served.llm = engine(tmp_path, case, enable_prefix_caching=False, disable_log_stats=False, **memory)
    requests = [served.request(f"Number {i}?", (i,), ratio=(0.25, 0.5, 1.0)[i % 3]) for i in range(12)]
    assert served.answers(*requests, new=40) == served.expected(*requests, new=40)
    assert sum(each.value for each in served.llm.get_metrics() if each.name == "vllm:num_preemptions") > 0


def test_integers_pass_through_bfloat16_bit_for_bit() -> None:
    """Converted to that type, 257 would be rounded to 256."""
    from vidcom2.vllm_plugin.compressed_videos import with_integers, without_integers

    shifts = torch.tensor([[0, 257, 70000], [2**20 + 1, 3, 511]])
    marked = with_integers(torch.ones(2, 4, dtype=torch.bfloat16), shifts)
    assert marked.dtype == torch.bfloat16
    (features, of_image), found = without_integers([marked, torch.ones(1, 4, dtype=torch.bfloat16)], 4, 3)
    assert found.tolist() == [*shifts.tolist(), [0, 0, 0]]
    assert features.shape == (2, 4) and of_image.shape == (1, 4)
