"""`"visionzip"` and `"holitom"` beside their authors' code, and by hand.

`test_segment_methods.py` compares them with plain loops, in all families, and has what such methods promise."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_compression import DeviceReads
from test_segment_methods import compressed, of_case

from vidcom2 import CompressionSettings
from vidcom2.modeling.methods import method_holitom
from vidcom2.modeling.methods.method_holitom import shares, static_segments

DATA = Path(__file__).parent / "data"
VISIONZIP = json.loads((DATA / "released_visionzip.json").read_text("utf-8"))["cases"]
HOLITOM = json.loads((DATA / "released_holitom.json").read_text("utf-8"))["cases"]

# -- beside the authors' code -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", VISIONZIP, ids=lambda case: f"seed{case['seed']}")
def test_visionzip_keeps_and_merges_what_the_released_code_does(case: dict[str, Any]) -> None:
    """Its contextual tokens are sums of two, and ours are their means."""
    tokens, attention = of_case(case)
    got = compressed(tokens, attention, case["per_frame"] / case["tokens_per_frame"], "visionzip")
    assert got.indices.tolist() == case["indices"] and got.merge is not None
    sums = got.kept(tokens.flatten(0, 1)).sum(dim=-1)
    is_mean = torch.zeros_like(sums, dtype=torch.bool).index_fill(0, got.merge.outputs[got.merge.weights == 0.5], True)
    assert not is_mean[torch.isin(got.indices, torch.tensor(case["dominant"]))].any() and is_mean.any()
    torch.testing.assert_close(torch.where(is_mean, 2 * sums, sums), torch.tensor(case["sums"]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", HOLITOM, ids=lambda case: f"seed{case['seed']}")
def test_holitom_keeps_and_merges_what_the_released_code_does(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own roundings of the shares, which keep some more."""
    tokens, attention = of_case(case)
    cosines = torch.cosine_similarity(tokens[1:], tokens[:-1], dim=-1)
    segments, static = static_segments(cosines > 0.8)
    assert [[segment.start, segment.stop - 1] for segment in segments] == case["segments"]
    firsts = static[[segment.start for segment in segments]]
    assert int(static.sum() - firsts.sum()) == case["reduced"]
    monkeypatch.setattr(method_holitom, "shares", lambda *_: (case["of_static"], case["of_dynamic"]))
    monkeypatch.setattr(method_holitom, "exact_total", lambda *_: len(case["indices"]))
    got = compressed(tokens, attention, case["ratio"], "holitom")
    assert got.indices.tolist() == case["indices"]
    sums = got.kept(tokens.flatten(0, 1)).sum(dim=-1)
    torch.testing.assert_close(sums, torch.tensor(case["sums"]), rtol=0, atol=1e-4)


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_visionzip_merges_into_evenly_spaced_targets_of_what_is_not_dominant() -> None:
    x, y = [4.0, 0.0], [0.0, 2.0]
    tokens = torch.tensor([[x, y, y, x, [3.0, 4.0], x, x, y]])
    attention = torch.tensor([[0.0, 0.0, 0.9, 0.0, 0.0, 0.8, 0.0, 0.0]])
    got = compressed(tokens, attention, 0.5, "visionzip")
    # 3 of 4 are dominant, the earlier of equal ones among them: 0, 2, 5. Of 1, 3, 4, 6, 7 the first is the target.
    assert got.indices.tolist() == [0, 1, 2, 5] and got.frame_budgets.tolist() == [4]
    mean = torch.tensor([(4 + 3 + 4 + 0) / 4, (0 + 4 + 0 + 2) / 4])
    expected = torch.stack([tokens[0, 0], (tokens[0, 1] + mean) / 2, tokens[0, 2], tokens[0, 5]])
    torch.testing.assert_close(got.kept(tokens[0]), expected)
    # 2 of 25 % of 12: 1 dominant, and 1 target. A frame with one token keeps a target, the mean of all.
    got = compressed(tokens, attention, 1 / 8, "visionzip")
    assert got.indices.tolist() == [0]


def test_holitom_cuts_a_video_so_that_most_tokens_are_saved() -> None:
    # Over three transitions, one token is like that before in all, another in the first two, a third in the last.
    alike = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 0, 1]]).bool()
    segments, static = static_segments(alike)
    # 3 frames with 2 static tokens save 4, and the whole video with 1 saves 3.
    assert segments == [slice(0, 3), slice(3, 4)]
    assert static.tolist() == [[True, True, False]] * 3 + [[False] * 3]
    alike[2] = True  # two segments of two frames save 5, the whole video 6
    assert static_segments(alike)[0] == [slice(0, 4)]
    assert static_segments(torch.zeros(3, 2).bool())[0] == [slice(t, t + 1) for t in range(4)]
    assert static_segments(torch.zeros(0, 2).bool())[0] == [slice(0, 1)]


def test_holitom_divides_the_budget_among_what_is_left_in_proportion() -> None:
    segments = [slice(0, 1), slice(1, 4)]
    # Of 4 frames of 10, 6 tokens of 3 frames are static: 10 + 6 + 3 · 4 = 28 are left.
    assert shares(segments, [0, 6], 10, 14) == ([0, 3], [5, 2, 2, 2])
    assert shares(segments, [0, 6], 10, 9) == ([0, 2], [3, 1, 1, 2])
    assert shares(segments, [0, 6], 10, 30) == ([0, 6], [10, 4, 4, 4])  # two less than the budget


def test_holitom_keeps_static_tokens_of_later_frames_where_the_budget_is_larger_than_what_is_left() -> None:
    frame = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    tokens = torch.stack([frame, frame + 0.1, frame + 0.2])
    attention = torch.tensor([[0.5, 0.4], [0.1, 0.3], [0.2, 0.1]])
    got = compressed(tokens, attention, 0.5, "holitom")  # 3 tokens, of 2 static ones
    assert got.indices.tolist() == [0, 1, 3] and got.frame_budgets.tolist() == [2, 1, 0]
    expected = torch.tensor([[1.1, 0.1], [0.1, 1.1], [0.1, 1.1]])
    torch.testing.assert_close(got.kept(tokens.flatten(0, 1)), expected)


def test_visionzip_reads_nothing_from_the_device() -> None:
    with DeviceReads() as reads:
        compressed(torch.randn(12, 9, 6), torch.rand(12, 9), 0.3, "visionzip")
    assert reads.count == 0


# -- in models ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["visionzip", "holitom", "fastvid", "flashvid"])
def test_a_vision_method_that_gives_no_attention_is_refused(method: str) -> None:
    reason = (
        rf"`vision_method` is 'skip_repeated', which gives no `tower_attention`, but `compression_method='{method}'"
    )
    with pytest.raises(ValueError, match=reason + r"` needs it\. Pass `vision_method='full'`, or choose another"):
        CompressionSettings(compression_method=method, vision_method="skip_repeated")
