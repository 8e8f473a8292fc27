"""Which settings an engine takes, where it takes them from, and which stop it at its start."""

import importlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import CASES_BY_NAME, KEPT, Served, engine, save_repo, save_stock_repo

from vidcom2.configuration.compression_settings import COMPRESSION_METHODS, CompressionMethod, CompressionSettings
from vidcom2.modeling.methods.compression import VideoTokens, compress_with
from vidcom2.vllm_plugin import SERVED
from vidcom2.vllm_plugin.settings import RequestBounds, check_engine_can_keep, kept_tokens, settings_of_request

LLAVA, QWEN = CASES_BY_NAME["llava_onevision"], CASES_BY_NAME["qwen2_5_vl"]


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("llava")
    return Served.saved(folder, LLAVA, **KEPT)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("qwen")
    return Served.saved(folder, QWEN, **KEPT)


def changed(served: Served, **settings: Any) -> Any:
    """Load the Transformers class with other settings."""
    return served.case.row.model_class.from_pretrained(served.folder, **settings).eval()


def test_overrides_change_the_settings_of_a_repo_of_another_method(tmp_path: Path) -> None:
    settings = {"retention_ratio": 0.34, "compression_scoring": "released"}
    served = Served.saved(tmp_path, LLAVA, compression_method="vcast")
    llm, model = engine(tmp_path, LLAVA, hf_overrides=settings), changed(served, **settings)
    check_answer(served, llm, model, kept=round(0.34 * LLAVA.scored_tokens))


def test_a_repo_of_another_method_and_with_other_newlines_is_served(tmp_path: Path) -> None:
    case = CASES_BY_NAME["llava_video"]
    settings = {"compression_method": "dycoke", "compression_newlines": "trailing", "spatial_pool_mode": "average"}
    served = Served.saved(tmp_path, case, retention_ratio=0.34, **settings)
    check_answer(served, engine(tmp_path, case), served.model, kept=int(0.34 * case.scored_tokens))


def check_answer(served: Served, llm: Any, model: Any, kept: int) -> None:
    """Check an answer, and how many tokens of the video its prompt has."""
    request = served.request()
    (output,) = served.outputs(request, llm=llm)
    assert [list(output.outputs[0].token_ids)] == served.expected(request, model=model)
    whole = served.inputs(request)["input_ids"].shape[1]
    assert len(output.prompt_token_ids) == whole - served.case.scored_tokens + kept


def test_vllms_own_pruning_rate_is_one_minus_the_ratio(qwen: Served) -> None:
    request, llm = qwen.request(), engine(qwen.folder, QWEN, video_pruning_rate=0.9)
    assert qwen.answers(request, llm=llm) == qwen.expected(request, model=changed(qwen, retention_ratio=0.1))
    half = qwen.request(ratio=0.5)
    assert qwen.answers(half, llm=llm) == qwen.expected(half)
    for rate in (0.9, 0.0):
        settings = processor_of(qwen, {}, video_pruning_rate=rate).request_settings({})
        assert settings.retention_ratio == round(1 - rate, 9)


BY_SIZES = ("uniform_frames", "dycoke", "evs", "vcast", "coverage")


def test_every_method_of_the_table_is_served() -> None:
    """The tests of answers serve those that this test accepts. A new row of the table needs no line in the plugin, but
    one here, so that somebody has asked whether it is served."""
    assert sorted(COMPRESSION_METHODS) == sorted(("vidcom2", "random", *BY_SIZES))
    for name in COMPRESSION_METHODS:
        settings = CompressionSettings(compression_method=name)
        check_engine_can_keep(settings, has_mrope=True)
        video = VideoTokens(torch.randn(8, 20, 16), (4, 5))
        assert kept_tokens(settings, 8, (4, 5)) == len(compress_with(settings, video).indices)


def test_only_the_servers_operator_can_choose_a_registered_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that keeps another number of tokens than was counted would stop the server for everybody."""
    monkeypatch.setitem(COMPRESSION_METHODS, "mine", CompressionMethod(name="mine", function=lambda *given: None))
    mine, engines = {"compression_method": "mine"}, CompressionSettings()
    with pytest.raises(ValueError, match=r"`compression_method` is 'mine' in a request, .* `--hf-overrides`"):
        settings_of_request(engines, mine, has_mrope=False)
    assert settings_of_request(CompressionSettings(**mine), {}, has_mrope=False).compression_method == "mine"


def test_a_request_is_held_to_the_bounds_of_the_operator() -> None:
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


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_a_stock_repo_is_served_by_vllms_own_class(tmp_path: Path) -> None:
    stock = {}
    for name in ("llava_onevision", "qwen2_5_vl"):
        stock[name] = type(save_stock_repo(tmp_path / name, CASES_BY_NAME[name])[0]).__name__
    result = run(f"""
from importlib import import_module
from vllm import EngineArgs, ModelRegistry
from vllm.plugins import load_general_plugins
load_general_plugins()
for name, architecture in {stock}.items():
    own = getattr(import_module(f"vllm.model_executor.models.{{name}}"), architecture)
    config = EngineArgs(model=f"{tmp_path}/{{name}}", max_model_len=1024).create_model_config()
    found, _ = ModelRegistry.resolve_model_cls([architecture], config)
    assert found is own, found
print("vLLM's own")
""")
    assert "vLLM's own" in result.stdout, result.stderr[-3000:]


def test_in_another_version_of_vllm_repos_of_ours_are_refused_and_stock_repos_served(
    llava: Served, tmp_path: Path
) -> None:
    """A file that Python imports at its start changes the version, also in the processes that vLLM starts."""
    (tmp_path / "sitecustomize.py").write_text("import vllm\nvllm.__version__ = '0.34.0'\n")
    stock = tmp_path / "stock"
    save_stock_repo(stock, LLAVA)
    result = run(
        f"""
from vllm import EngineArgs
for repo in ({str(stock)!r}, {str(llava.folder)!r}):
    config = EngineArgs(model=repo, trust_remote_code=True, max_model_len=1024).create_model_config()
    print("class", config.architecture)
""",
        PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path[1:]]),
    )
    assert "class LlavaOnevisionForConditionalGeneration" in result.stdout, result.stderr[-3000:]
    assert "class VidCom2" not in result.stdout and result.returncode != 0
    said = result.stdout + result.stderr
    assert "vLLM's version is 0.34.0" in said and 'pip install "vllm>=0.32,<0.34"' in said


def refusal(served: Served, **arguments: Any) -> str:
    """Return what the server says at its start, before it loads anything."""
    from vllm import EngineArgs

    with pytest.raises(ValueError) as refused:
        EngineArgs(model=str(served.folder), **{"trust_remote_code": True, **arguments}).create_engine_config()
    return str(refused.value)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"compression_rounding": "ceil"}, "`compression_rounding` is 'ceil'"),
        ({"compression_positions": "original"}, "`compression_positions` is 'original'"),
        ({"vision_method": "skip_repeated"}, "`vision_method` is 'skip_repeated'"),
        ({"retention_ratio": 1.5}, "`retention_ratio` is 1.5"),
        ({"compression_method": "nobodys"}, "`compression_method` is 'nobodys'"),
        ({"request_max_ratio": 2}, "`request_max_ratio`"),
        ({"request_max_video_tokens": 0}, "`request_max_video_tokens`"),
        ({"request_min_ratio": 0.5, "request_max_ratio": 0.4}, "`request_min_ratio` is 0.5"),
        ({"request_max_tokens": 9}, "`request_max_tokens`"),
        ({"request_max_ratio": 0.2}, "`retention_ratio` is 0.25"),
        ({"request_max_video_tokens": 9, "max_video_tokens": 10}, "`max_video_tokens` is 10"),
    ],
)
def test_settings_that_the_engine_cannot_honour_stop_it_at_the_start(
    llava: Served, settings: dict[str, Any], reason: str
) -> None:
    assert re.search(reason, refusal(llava, hf_overrides=settings))


def test_flags_that_contradict_the_repo_or_each_other_are_refused(llava: Served, qwen: Served) -> None:
    two_ratios = refusal(llava, hf_overrides={"retention_ratio": 0.3}, video_pruning_rate=0.5)
    assert "ratio of 0.5" in two_ratios and "0.3" in two_ratios
    other_method = {"hf_overrides": {"compression_method": "evs"}, "trust_remote_code": False}  # not in the repo's code
    arguments = {"video_pruning_rate": 0.5, "video_pruning_method": "vidcom2"}
    assert "Leave the flag out" in refusal(qwen, **other_method, **arguments)
    assert "--hf-overrides" in refusal(llava, mm_processor_kwargs={"retention_ratio": 0.5})
    assert "Did you mean `retention_ratio`" in refusal(llava, mm_processor_kwargs={"retention_rate": 0.5})
    of_tower = {"enable_lora": True, "enable_tower_connector_lora": True}
    assert "`--enable-tower-connector-lora` is set" in refusal(llava, **of_tower)
    assert "`--enable-dbo` or" in refusal(qwen, ubatch_size=2)
    drafter = {"method": "draft_model", "model": str(qwen.folder), "num_speculative_tokens": 2}
    assert "method is 'draft_model'" in refusal(qwen, speculative_config=drafter)


@pytest.mark.parametrize(
    ("name", "build", "settings", "arguments", "reason"),
    [
        ("llava_video", {}, {"compression_newlines": "occupied"}, {}, "`compression_newlines` is 'occupied'"),
        ("gemma4", {"text": {"use_bidirectional_attention": "vision"}}, {}, {}, "use_bidirectional_attention"),
        ("gemma4", {}, {}, {"pipeline_parallel_size": 2}, "`--pipeline-parallel-size` is 2"),
    ],
)
def test_models_that_the_engine_cannot_answer_for_are_refused(
    tmp_path: Path, name: str, build: dict[str, Any], settings: dict[str, Any], arguments: dict[str, Any], reason: str
) -> None:
    case = CASES_BY_NAME[name]
    save_repo(tmp_path, replace(case, build_arguments=case.build_arguments | build), **KEPT, **settings)
    with pytest.raises(Exception, match=reason):
        engine(tmp_path, case, **arguments)


@pytest.mark.parametrize("where", SERVED.values())
def test_no_cuda_graph_of_a_tower_bypasses_the_compression(where: str) -> None:
    from vllm.model_executor.models.interfaces import supports_encoder_cudagraph

    from vidcom2.vllm_plugin.compressed_videos import WithoutTowerGraphs

    module, _, name = where.partition(":")
    model = getattr(importlib.import_module(f"vidcom2.vllm_plugin.{module}"), name)
    assert not supports_encoder_cudagraph(model) or issubclass(model, WithoutTowerGraphs)


def processor_of(served: Served, settings: dict[str, Any], **more: Any) -> Any:
    """Return vLLM's processor of videos, in an engine with these settings."""
    from vllm import EngineArgs
    from vllm.multimodal import MULTIMODAL_REGISTRY

    arguments = {"trust_remote_code": True, "max_model_len": 1024, "hf_overrides": settings, **more}
    config = EngineArgs(model=str(served.folder), **arguments).create_engine_config()
    return MULTIMODAL_REGISTRY.create_processor(config.model_config)


def cache_key(served: Served, settings: dict[str, Any], **of_request: Any) -> str:
    """Return the cache key of a video, in an engine with these settings."""
    from vllm.multimodal.processing import ProcessorInputs

    processor = processor_of(served, settings)
    items = processor.info.parse_mm_data({"video": served.request()["multi_modal_data"]["video"]})
    asked = ProcessorInputs(prompt=[], mm_data_items=items, hf_processor_mm_kwargs=of_request)
    return processor._get_mm_hashes(asked)["video"][0]


def test_vllms_dummy_inputs_are_the_most_that_a_request_can_ask_for(llava: Served) -> None:
    """By them vLLM tells how much memory videos take. Each frame needs a token, even beyond the budget."""

    def placeholders(**settings: Any) -> int:
        inputs = processor_of(llava, settings).get_dummy_mm_inputs({"video": 1})
        return sum(item.get_num_embeds() for item in inputs["mm_placeholders"]["video"]) - 1  # the newline

    all_tokens = placeholders(max_video_tokens=10)  # which requests may raise
    frames = all_tokens // 9
    assert all_tokens == 9 * frames and frames > 10
    assert placeholders(request_max_ratio=0.5) == round(all_tokens / 2)
    assert placeholders(request_max_video_tokens=2 * frames) == 2 * frames
    assert placeholders(request_max_video_tokens=10) == frames
    assert processor_of(llava, {"request_max_video_tokens": 10}).request_settings({}).max_video_tokens == 10


def test_different_settings_never_share_a_cache_entry(llava: Served, tmp_path: Path) -> None:
    """Several engines may share one cache, which knows the repo by its name alone. A request's own settings replace the
    engine's, so two engines may mean the same features."""
    all_settings = ({}, {"retention_ratio": 0.4}, {"compression_scoring": "released"})
    of_requests: tuple[dict[str, Any], ...] = ({}, {"retention_ratio": 0.5})
    assert cache_key(llava, {}, max_video_tokens=20) != cache_key(llava, {})
    keys = [cache_key(llava, settings, **each) for settings in all_settings for each in of_requests]
    assert keys[1] == keys[3]  # half of the tokens, whatever the engine's ratio
    assert len(set(keys)) == 5
    assert keys[0] == cache_key(llava, {}) == cache_key(llava, {}, **KEPT)
    case = CASES_BY_NAME["llava_video"]
    video = Served.saved(tmp_path, case)
    assert cache_key(video, {}) != cache_key(video, {"compression_newlines": "trailing"})
