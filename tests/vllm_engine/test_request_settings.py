"""Settings of one request, in `mm_processor_kwargs`, act as in the Transformers class or are refused."""

from collections.abc import Iterator
from typing import Any

import pytest
from engines import CASES_BY_NAME, KEPT, Served, count_encoded, engine

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


@pytest.fixture(scope="module", params=["llava_onevision", "qwen2_5_vl", "qwen3_vl"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    case = CASES_BY_NAME[request.param]
    served = Served.saved(tmp_path_factory.mktemp(case.name), case, **KEPT)
    served.llm = engine(served.folder, case)
    yield served
    served.llm.llm_engine.engine_core.shutdown()


def test_a_requests_settings_give_the_tokens_of_the_transformers_class(served: Served) -> None:
    """The requests are about one video, whose caches hold an entry for each; together and one by one they agree."""
    requests = [served.request("What happens?", (4,), **settings) for settings in HONOURED]
    expected = served.expected(*requests)
    together = served.answers(*requests)
    assert together == expected
    assert [served.answers(each)[0] for each in reversed(requests)] == expected[::-1]
    assert len({tuple(each) for each in expected}) > 5


def test_a_video_is_encoded_once_for_all_requests_with_the_same_settings(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = count_encoded(monkeypatch)
    same = [{}, {"compression_method": "vidcom2"}, {"retention_ratio": None}, {"compression_window": None}]
    for settings in [*same, {"compression_method": "evs"}, {"compression_method": "evs", "retention_ratio": 0.25}]:
        served.outputs(served.request("What is it?", (12,), **settings))
    assert [each.compression_method for each in encoded] == ["vidcom2", "evs"]


@pytest.mark.parametrize(("settings", "reason"), REFUSED, ids=lambda each: "" if isinstance(each, str) else str(each))
def test_a_setting_that_requests_may_not_change_is_refused_and_the_next_request_is_answered(
    served: Served, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        served.outputs(served.request(**settings))
    assert "\n" not in str(refused.value)
    request = served.request(text="And now?")
    assert served.answers(request) == served.expected(request)


def test_only_the_servers_operator_can_choose_a_registered_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that keeps another number of tokens than was counted would stop the server for everybody."""
    from vidcom2.configuration.compression_settings import COMPRESSION_METHODS, CompressionMethod, CompressionSettings
    from vidcom2.vllm_plugin.settings import settings_of_request

    monkeypatch.setitem(COMPRESSION_METHODS, "mine", CompressionMethod(name="mine", function=lambda *given: None))
    mine, engines = {"compression_method": "mine"}, CompressionSettings()
    with pytest.raises(ValueError, match=r"`compression_method` is 'mine' in a request, .* `--hf-overrides`"):
        settings_of_request(engines, mine, has_mrope=False)
    assert settings_of_request(CompressionSettings(**mine), {}, has_mrope=False).compression_method == "mine"


def test_a_request_is_held_to_the_bounds_of_the_operator() -> None:
    from vidcom2.configuration.compression_settings import CompressionSettings
    from vidcom2.vllm_plugin.settings import RequestBounds, settings_of_request

    engines = CompressionSettings(max_video_tokens=40)
    bounds = RequestBounds(min_ratio=0.1, max_ratio=0.5, max_video_tokens=40)

    def settings(**asked: Any) -> CompressionSettings:
        return settings_of_request(engines, asked, has_mrope=False, bounds=bounds)

    for asked in ({"retention_ratio": 0.1}, {"retention_ratio": 0.5, "max_video_tokens": 40}, {"max_video_tokens": 3}):
        assert settings(**asked).as_dict() == {**engines.as_dict(), **asked}
    for asked, reason in (
        ({"retention_ratio": 0.51}, r"`retention_ratio` is 0\.51 .* 0\.1 to 0\.5"),
        ({"retention_ratio": 0.09}, r"`retention_ratio` is 0\.09"),
        ({"max_video_tokens": 41}, "`max_video_tokens` is 41 .* at most 40"),
        ({"retention_ratio": 1.0, "max_video_tokens": 9}, "`retention_ratio` is 1.0 in a request"),
    ):
        with pytest.raises(ValueError, match=reason):
            settings(**asked)


def test_original_positions_are_served_with_mrope_and_refused_without(served: Served) -> None:
    request = served.request(compression_positions="original")
    if served.case.row.mrope:
        assert served.answers(request) == served.expected(request)
    else:
        with pytest.raises(ValueError, match="`compression_positions` is 'original'"):
            served.outputs(request)
