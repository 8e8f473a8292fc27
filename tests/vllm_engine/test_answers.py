"""One engine for each family: its answers, and the settings of requests, are those of the Transformers class.

The answers are greedy float32 tokens. The settings of a request, in `mm_processor_kwargs`, act or are refused.
"""

from typing import Any

import numpy as np
import pytest
import torch
from engines import METADATA, RATIO, WIDTH, Served, count_encoded, image, requests_of, video


def only(*names: str) -> pytest.MarkDecorator:
    """Leave out a test's cases of other families, as `only` of tests/conftest.py does."""
    return pytest.mark.only.with_args(lambda repo: repo.name in names)


A_FEW = only("llava_onevision", "qwen2_5_vl", "qwen3_vl")

# -- answers ----------------------------------------------------------------------------------------------------------


def test_the_prompt_has_no_tokens_beyond_those_that_stay(served: Served) -> None:
    case = served.case
    whole = served.inputs(served.request())["input_ids"].shape[1]
    for ratio in (None, 0.1, 0.25, 0.5, 1.0):
        (output,) = served.outputs(served.request(ratio=ratio), new=1)
        assert len(output.prompt_token_ids) == whole - case.scored_tokens + case.kept(ratio)


def test_the_text_of_a_prompt_is_that_of_transformers(served: Served) -> None:
    served.check_text_of_prompts()


def test_sixteen_mixed_requests_at_once_and_one_by_one_get_the_answers_of_transformers(served: Served) -> None:
    kinds = list(requests_of(served.case).values())
    mixed = [served.request(text=f"What is number {i}?", **kinds[i % len(kinds)]) for i in range(16)]
    together = served.answers(*mixed)
    assert together == served.expected(*mixed)
    assert together == [served.answers(each)[0] for each in mixed]
    assert len({tuple(each) for each in together}) > 4


def test_a_second_question_reuses_the_cached_video(served: Served) -> None:
    """The prompts share a prefix that ends behind the video, so its tokens are not computed again."""
    for ratio in (RATIO, 0.6):
        first, second = (served.request(text, (7,), ratio=ratio) for text in ("What is it?", "What is it not, then?"))
        assert served.answers(first) == served.expected(first)
        (output,) = served.outputs(second)
        if served.case.scored_tokens * ratio > 40:
            assert output.num_cached_tokens > 0
        assert [list(output.outputs[0].token_ids)] == served.expected(second)


def test_frames_of_other_sizes_are_refused_before_the_engine_sees_them(served: Served) -> None:
    """In the middle of a step, the error would stop the engine for everybody."""
    request = served.request()
    if served.case.name == "internvl":
        request["mm_processor_kwargs"] = {"do_resize": False}
        reason = "makes frames of 112 × 140 pixels, but the model's vision tower takes 84 × 84"
    elif served.case.name == "gemma4":
        frames = [image(0), image(1).resize((WIDTH, WIDTH))]
        request["multi_modal_data"] = {"video": [(frames, {**METADATA, "frames_indices": [0, 1]})]}
        reason = "The frames of a video have different sizes"
    else:
        pytest.skip("its tower takes any size, or test_kept_state.py asks it")
    with pytest.raises(Exception, match=reason):
        served.answers(request)
    assert served.answers(served.request()) == served.expected(served.request())


@only("qwen2_vl", "qwen2_5_vl")
def test_text_behind_a_long_video_has_the_positions_of_the_original_code(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text follows the largest position of t, h and w. Transformers 5.19 to 5.24 leaves t out, so its answers
    differ once a video has more positions in time than rows and columns."""
    num_frames = 12 if served.case.name == "qwen2_vl" else 10
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


# -- settings of a request --------------------------------------------------------------------------------------------

HONOURED: list[dict[str, Any]] = [
    {},
    {"compression_method": "evs"},
    {"compression_method": "vcast", "compression_scoring": "released"},
    {"compression_method": "uniform_frames", "retention_ratio": 0.5},
    {"compression_method": "random"},
    {"compression_method": "coverage"},
    {"compression_method": "dycoke", "retention_ratio": 0.5},
    {"compression_scoring": "released"},
    {"compression_frame_score": "max", "compression_temperature": 0.5},
    {"compression_window": 3, "retention_ratio": 0.4},
    {"compression_frame_weight": -1, "compression_video_weight": 0.5},
    {"compression_rounding": "exact", "compression_scoring": None},
    {"retention_ratio": 1.0, "max_video_tokens": 30},
    {"max_video_tokens": 10},
    {"compression_method": "vcast", "max_video_tokens": 12},
    {"max_video_tokens": 1000},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"retention_ratio": "much"}, "`retention_ratio` is 'much'"),
    ({"compression_rounding": "ceil"}, "`compression_rounding` is 'ceil'"),
    ({"compression_method": "nobodys"}, "`compression_method` is 'nobodys'"),
    ({"compression_method": "dycoke", "retention_ratio": 0.1}, "`retention_ratio"),
    ({"compression_method": "evs", "compression_window": 3}, "`compression_window` is 3"),
    ({"compression_temperature": 0}, "`compression_temperature` is 0"),
    ({"max_video_tokens": 2}, "`max_video_tokens` is 2"),
    ({"max_video_token": 20}, "Did you mean `max_video_tokens`"),
    ({"vision_method": "skip_repeated"}, "`vision_method` is 'skip_repeated'"),
    ({"vision_chunk_frames": 8}, "`vision_chunk_frames` is 8"),
    ({"compression_newlines": "trailing"}, "`compression_newlines` is 'trailing'"),
    ({"video_pruning_rate": 0.5}, "`video_pruning_rate` .* Did you mean `retention_ratio`"),
    ({"compression_level": 3}, "`compression_level`"),
    ({"videos_kwargs": {"retention_ratio": 0.5}}, "`retention_ratio` .*`videos_kwargs`"),
]


@A_FEW
def test_a_requests_settings_give_the_tokens_of_the_transformers_class(served: Served) -> None:
    """The requests are about one video, whose caches hold an entry for each; together and one by one they agree."""
    requests = [served.request("What happens?", (4,), **settings) for settings in HONOURED]
    expected = served.expected(*requests)
    together = served.answers(*requests)
    assert together == expected
    assert [served.answers(each)[0] for each in reversed(requests)] == expected[::-1]
    assert len({tuple(each) for each in expected}) > 5


@A_FEW
def test_a_video_is_encoded_once_for_all_requests_with_the_same_settings(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = count_encoded(monkeypatch)
    same = [{}, {"compression_method": "vidcom2"}, {"retention_ratio": None}, {"compression_window": None}]
    for settings in [*same, {"compression_method": "evs"}, {"compression_method": "evs", "retention_ratio": 0.25}]:
        served.outputs(served.request("What is it?", (12,), **settings))
    assert [each.compression_method for each in encoded] == ["vidcom2", "evs"]


@A_FEW
def test_settings_that_requests_may_not_change_are_refused_and_the_next_request_is_answered(served: Served) -> None:
    for settings, reason in REFUSED:
        with pytest.raises(ValueError, match=reason) as refused:
            served.outputs(served.request(**settings))
        assert "\n" not in str(refused.value)
    request = served.request(text="And now?")
    assert served.answers(request) == served.expected(request)


@A_FEW
def test_original_positions_are_served_with_mrope_and_refused_without(served: Served) -> None:
    request = served.request(compression_positions="original")
    if served.case.row.mrope:
        assert served.answers(request) == served.expected(request)
    else:
        with pytest.raises(ValueError, match="`compression_positions` is 'original'"):
            served.outputs(request)
