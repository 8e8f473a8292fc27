"""M-RoPE positions in vLLM, which has a video's tokens before it knows which of them stay."""

from typing import Any

import numpy as np
import pytest
import torch
from engines import CASES_BY_NAME, KEPT, METADATA, Served, engine, video


def served_by(folder: Any, name: str, **arguments: Any) -> Served:
    case = CASES_BY_NAME[name]
    served = Served.saved(folder, case, **KEPT)
    served.llm = engine(folder, case, **arguments)
    return served


@pytest.mark.parametrize("name", ["llava_video", "qwen2_vl", "qwen3_vl", "gemma4"])
def test_a_prefill_whose_chunks_end_inside_videos_gives_the_same_answers(tmp_path: Any, name: str) -> None:
    memory = {"max_num_batched_tokens": 48, "max_num_seqs": 2, "max_model_len": 1536}
    served = served_by(tmp_path, name, enable_prefix_caching=False, **memory)
    requests = [served.request(f"Which {i}?", (20 + i, 30 + i), ratio=ratio) for i, ratio in enumerate((0.3, 0.7, 1.0))]
    assert min(len(output.prompt_token_ids) for output in served.outputs(*requests)) > 48
    assert served.answers(*requests) == served.expected(*requests)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl"])
def test_preempted_requests_are_computed_again_with_the_same_answers(tmp_path: Any, name: str) -> None:
    """The memory holds only 512 tokens."""
    memory = {"kv_cache_memory_bytes": 2**20, "max_model_len": 256, "max_num_batched_tokens": 300}
    served = served_by(tmp_path, name, enable_prefix_caching=False, disable_log_stats=False, **memory)
    requests = [served.request(f"Number {i}?", (i,), ratio=(0.25, 0.5, 1.0)[i % 3]) for i in range(12)]
    assert served.answers(*requests, new=40) == served.expected(*requests, new=40)
    assert sum(each.value for each in served.llm.get_metrics() if each.name == "vllm:num_preemptions") > 0


@pytest.mark.parametrize(("name", "num_frames"), [("qwen2_vl", 12), ("qwen2_5_vl", 10)])
def test_text_behind_a_long_video_has_the_positions_of_the_original_code(
    tmp_path: Any, name: str, num_frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text follows the largest position of t, h and w. Transformers 5.19 to 5.24 leaves t out, so its answers
    differ once a video has more positions in time than rows and columns."""
    served = served_by(tmp_path, name)
    request = served.request(videos=())
    metadata = METADATA | {"total_num_frames": num_frames, "frames_indices": list(range(num_frames))}
    request["prompt"] = served.prompt("What happens in this long video?")
    request["multi_modal_data"] = {"video": [(video(5, num_frames), metadata | {"do_sample_frames": False})]}
    (answer,) = served.answers(request)
    assert answer != served.expected(request)[0]
    monkeypatch.setattr(served.model.model, "get_rope_index", original_positions(served, request))
    assert [answer] == served.expected(request)


def original_positions(served: Served, request: dict[str, Any]) -> Any:
    """Return a `get_rope_index` by the original code's rule, in loops, for prompts with the request's video."""
    inputs = served.inputs(request)
    t, h, w = (inputs["video_grid_thw"][0] // torch.tensor([1, 2, 2])).tolist()
    seconds = inputs["second_per_grid_ts"][0] if "second_per_grid_ts" in inputs else 1

    def get_rope_index(input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        row = input_ids[0].tolist()
        start = row.index(served.model.config.video_token_id)
        places = [[i] * 3 for i in range(start)]
        for i in range(t * h * w):
            places.append([start + int(i // (h * w) * seconds), start + i // w % h, start + i % w])
        behind = max(map(max, places)) + 1
        places += [[behind + i] * 3 for i in range(len(row) - len(places))]
        positions = torch.from_numpy(np.array(places)).T[:, None]
        return positions, positions.max()[None, None] + 1 - len(row)

    return get_rope_index


def test_integers_pass_through_bfloat16_bit_for_bit() -> None:
    """Converted to that type, 257 would be rounded to 256."""
    from vidcom2.vllm_plugin.compressed_videos import with_integers, without_integers

    shifts = torch.tensor([[0, 257, 70000], [2**20 + 1, 3, 511]])
    marked = with_integers(torch.ones(2, 4, dtype=torch.bfloat16), shifts)
    assert marked.dtype == torch.bfloat16
    (features, of_image), found = without_integers([marked, torch.ones(1, 4, dtype=torch.bfloat16)], 4, 3)
    assert found.tolist() == [*shifts.tolist(), [0, 0, 0]]
    assert features.shape == (2, 4) and of_image.shape == (1, 4)
