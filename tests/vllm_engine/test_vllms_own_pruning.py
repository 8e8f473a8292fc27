"""vLLM's own pruning of videos beside ours. These are the lines of the table in docs/serving.md that can be run."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import CASES_BY_NAME, ROWS, Case, Served, engine, save_stock_repo
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration
from vllm.multimodal.video_prune import evs, vidcom2

from vidcom2 import compress
from vidcom2.tiny import qwen as tiny

OURS = {
    "vidcom2": {"compression_scoring": "released", "compression_rounding": "exact"},
    "evs": {"compression_method": "evs"},
}
THEIRS = {"vidcom2": vidcom2, "evs": evs}


def features(size: tuple[int, int, int], seed: int) -> torch.Tensor:
    """Return (T, M, D) features whose frames differ from their mean by different amounts, as those of a video do."""
    generator = torch.Generator().manual_seed(seed)
    num_frames, _, dim = size
    frames = torch.randn(num_frames, 1, dim, generator=generator) * torch.rand(num_frames, 1, 1, generator=generator)
    return torch.randn(1, 1, dim, generator=generator) + frames + torch.randn(size, generator=generator)


def kept_by_vllm(method: str, tokens: torch.Tensor, ratio: float) -> set[int]:
    num_frames, tokens_per_frame, _ = tokens.shape
    grid = (num_frames, 1, tokens_per_frame)
    mask = THEIRS[method].compute_retention_mask(tokens.flatten(0, 1), grid, spatial_merge_size=1, q=1 - ratio)
    return set(mask.nonzero()[:, 0].tolist())


def kept_by_us(method: str, tokens: torch.Tensor, ratio: float) -> set[int]:
    return set(compress(tokens, ratio, **OURS[method]).indices.tolist())


@pytest.mark.parametrize("size", [(8, 49, 896), (32, 196, 256)], ids=str)
@pytest.mark.parametrize(("method", "shared"), [("vidcom2", 0.94), ("evs", 1.0)])
def test_vllms_functions_keep_as_many_tokens_and_almost_the_same(
    method: str, shared: float, size: tuple[int, int, int]
) -> None:
    """Theirs rounds each frame's budget, and makes up for the difference with single tokens, wherever they are. Ours
    scales the budgets of all frames by one factor before it rounds them. EVS has no budgets."""
    for seed in range(3):
        tokens = features(size, seed)
        for ratio in (0.1, 0.25, 0.5):
            theirs, ours = kept_by_vllm(method, tokens, ratio), kept_by_us(method, tokens, ratio)
            assert len(theirs) == len(ours)
            assert len(theirs & ours) >= shared * len(ours)


def test_our_selection_takes_less_time_than_vllms() -> None:
    """On an idle machine with two cores it takes about a ninth. They run in turns, since the machine may be shared."""
    tokens = features((32, 196, 1792), seed=0)

    def seconds(keep: Callable[..., Any]) -> float:
        start = time.perf_counter()
        keep("vidcom2", tokens, 0.25)
        return time.perf_counter() - start

    rounds = [(seconds(kept_by_us), seconds(kept_by_vllm)) for _ in range(6)][1:]
    ratio = statistics.median(theirs / ours for ours, theirs in rounds)
    print(f"vLLM's function takes {ratio:.1f} times as long as ours")
    assert ratio > 1.5


@pytest.mark.parametrize("marked", [False, True])
def test_vllm_places_pruned_videos_of_qwen3_vl_too_early_where_a_mark_precedes_them(marked: bool) -> None:
    """Since Transformers 5.10 the marks around a video's placeholder stay in the prompt, around the frames' own marks.
    vLLM takes the first for that of the first frame. If this fails, docs/serving.md says something that is no longer
    so."""
    start, end, video, text = 90, 91, 92, 5
    frame, places = [text, text, start, video, video, end], [0, 1, 2, 3, 3, 4]
    ids = [text] * 10 + [start] * marked + frame * 2 + [end] * marked + [text] * 4
    group = torch.tensor(frame * 2)
    relative = torch.tensor(places + [5 + place for place in places])
    features = torch.stack([relative] * 4 + [group == start, group == video], dim=1).float()  # one channel, and five
    _, positions, _ = Qwen3VLForConditionalGeneration._recompute_mrope_positions(
        ids,
        [features],
        torch.arange(len(ids)).repeat(3, 1),
        num_computed_tokens=0,
        vision_start_token_id=start,
        image_token_id=99,
        video_token_id=video,
    )
    first = 10 + marked
    found = positions[0, first : first + len(group)].tolist()
    assert (found == (first + relative).tolist()) is not marked


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        # The runner for CPUs does not know that the model prunes, and leaves the positions on the features.
        ("qwen3_vl", "split_sizes to sum exactly to 773"),
        # Its class reads what only Qwen3-VL's sets, on any device.
        ("qwen3_5", "has no attribute 'video_pruning_method'"),
    ],
)
def test_vllms_own_pruning_fails_at_the_first_video(
    tmp_path: Path, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, vLLM has mended it: then docs/serving.md says something that is no longer so."""
    arguments: dict[str, Any] = {"video_pruning_rate": 0.75, "video_pruning_method": "vidcom2"}
    if name == "qwen3_5":  # as in test_qwen3_5.py
        heads = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
        monkeypatch.setattr(tiny, "QWEN3_5_TEXT", tiny.QWEN3_5_TEXT | heads)
        case = Case(ROWS[name], {"patch_size": 14}, (4, 5), dtype="bfloat16", scale=1.5)
        arguments |= {"enable_prefix_caching": False, "block_size": None}
    else:
        case = CASES_BY_NAME[name]
    _, processor = save_stock_repo(tmp_path, case)
    served = Served(case, tmp_path, processor, engine(tmp_path, case, **arguments))
    with pytest.raises((RuntimeError, AttributeError), match=reason):
        served.answers(served.request())
    served.llm.llm_engine.engine_core.shutdown()
