"""`vidcom2 plan`: its counts are compared with what models really compute, cache and allocate."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from vidcom2 import Video
from vidcom2.answering.prompting import prepare_inputs, video_arguments
from vidcom2.cli.app import app
from vidcom2.cli.console import out
from vidcom2.errors import OptionError
from vidcom2.families import FAMILIES
from vidcom2.measuring.models import config_and_processor, num_parameters
from vidcom2.measuring.sizes import MODEL_SIZES
from vidcom2.planning.gpus import Gpu
from vidcom2.planning.plan import Load, plan, prompt_tokens
from vidcom2.planning.sizes import ModelCosts, VideoSize, model_costs, video_size

FRAMES, WIDTH, HEIGHT = 6, 112, 112
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
REFUSED = {
    "gemma4": "'gemma4', whose layers with a sliding window",
    "gemma4_unified": "'gemma4_unified', whose layers with a sliding window",
    "minicpmv4_6": "'minicpmv4_6', whose vision tower joins patches between two",
}
COUNTED = [name for name, family in FAMILIES.items() if name not in REFUSED and family.runs_here]
DENSE = [name for name in COUNTED if "qwen3_5" not in name]  # the others have linear attention, whose work is left out


def tiny(model_type: str) -> tuple[Any, Any, Any]:
    """Return a tiny VidCom² model, what its processor makes of noise, and the processor."""
    stock, processor = FAMILIES[model_type].build_tiny()
    config = FAMILIES[model_type].config_class(**{**stock.config.to_dict(), "compression_rounding": "exact"})
    model = FAMILIES[model_type].model_class._from_config(config, attn_implementation="eager").eval()
    model.set_experts_implementation("eager")  # PyTorch does not count grouped matrix products
    frames = torch.randint(0, 256, (FRAMES, HEIGHT, WIDTH, 3), dtype=torch.uint8).numpy()
    return model, prepare_inputs(processor, "What happens?", Video.from_frames(frames, fps=1.0), model), processor


def flops(call: Any) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("model_type", DENSE)
def test_operations_are_those_that_pytorch_counts(model_type: str) -> None:
    model, inputs, processor = tiny(model_type)
    costs, video = model_costs(model.config), video_size(model.config, processor, FRAMES, WIDTH, HEIGHT)
    counted = flops(lambda: model.get_video_features(**video_arguments(model, inputs), retention_ratio=1.0))
    assert costs.tower_flops(video) == pytest.approx(counted, rel=0.05)
    tokens = 50
    embeddings = torch.zeros(1, tokens, model.config.get_text_config().hidden_size)
    states = flops(lambda: model.get_decoder()(inputs_embeds=embeddings))
    head = flops(lambda: model.lm_head(embeddings[:, -1:]))
    unmasked = 2 * costs.attention_width * tokens**2  # what a causal attention leaves out, and eager attention does not
    assert costs.prefill_flops(tokens) + unmasked == pytest.approx(states + head, rel=0.03)


@pytest.mark.parametrize("model_type", REFUSED)
def test_models_that_would_be_counted_wrongly_are_refused(model_type: str) -> None:
    with pytest.raises(OptionError, match=REFUSED[model_type]):
        model_costs(FAMILIES[model_type].build_tiny()[0].config)


@pytest.mark.parametrize("model_type", COUNTED)
def test_cached_numbers_are_those_in_the_models_cache(model_type: str) -> None:
    model, inputs, processor = tiny(model_type)
    cache = model(**inputs, use_cache=True, retention_ratio=0.25).past_key_values
    costs, video = model_costs(model.config), video_size(model.config, processor, FRAMES, WIDTH, HEIGHT)
    text = int((~model.model.is_video(inputs["input_ids"])).sum())
    tokens = prompt_tokens(replace(video, text=0), Load(text_tokens=text), 0.25)
    keys = [layer.keys for layer in cache.layers if getattr(layer, "keys", None) is not None]
    values = [layer.values for layer in cache.layers if getattr(layer, "keys", None) is not None]
    assert tokens == keys[0].shape[2]
    assert costs.cached * tokens == sum(each.numel() for each in (*keys, *values))
    states = [layer.recurrent_states for layer in cache.layers if hasattr(layer, "recurrent_states")]
    assert costs.state == sum(each.numel() for of_layer in states for each in of_layer.values())


@pytest.mark.parametrize("name", ["llava-onevision-7b", "qwen3-vl-30b-a3b", "qwen3.5-4b"])
def test_weights_are_those_of_the_released_model(name: str) -> None:
    config, _ = config_and_processor(MODEL_SIZES[name], {})
    costs = model_costs(config)
    assert costs.weights == num_parameters(config, MODEL_SIZES[name])
    billions = {"llava-onevision-7b": 7.6, "qwen3-vl-30b-a3b": 3.3, "qwen3.5-4b": 4.2}[
        name
    ]  # that a token passes through
    assert (costs.layer_weights + costs.head_weights) / 1e9 == pytest.approx(billions, rel=0.1)


@pytest.mark.parametrize("row", json.loads((RESULTS / "memory_7b.json").read_text())["rows"][:3])
def test_activations_are_those_that_were_counted_tensor_by_tensor(row: dict[str, Any]) -> None:
    config, processor = config_and_processor(MODEL_SIZES["llava-onevision-7b"], {})
    costs, video = model_costs(config), video_size(config, processor, row["frames"], 64, 64)
    assert 2 * costs.tower_activations * video.patches / 2**30 == pytest.approx(row["tower_at_once_gib"], rel=0.02)
    for ratio, counted in row["prefill_gib"].items():
        tokens = prompt_tokens(replace(video, text=0), Load(text_tokens=40), float(ratio))
        assert 2 * (costs.activations + costs.cached) * tokens / 2**30 == pytest.approx(counted, rel=0.02)


# Round numbers, so that a plan can be checked by hand: 10 GB of weights, 1 MB of KV cache for each token.
COSTS = ModelCosts(
    weights=5_000_000_000,
    head_weights=0,
    dense_weights=4_000_000_000,
    expert_weights=0,
    expert_share=1.0,
    attention_width=0,
    cached=500_000,
    state=0,
    heads=(32, 8),
    activations=0,
    tower_weights=1_000_000,
    token_weights=0,
    tower_attention=(0, (0, 0)),
    tower_activations=0,
)
VIDEO = VideoSize(10_000, 1_000, 0, num_frames=10, tokens_per_frame=100, structure=0, text=0)
GPU = Gpu("round", 100e9, 100e12, 1e12)


def test_a_plan_is_the_sum_of_its_parts() -> None:
    load = Load(text_tokens=50, new_tokens=100, concurrency=10, videos_per_minute=100)
    found = plan(COSTS, VIDEO, load, GPU, 0.25)
    assert found.prompt_tokens == 250 + 50
    assert found.request_bytes == 400 * 1_000_000  # the prompt and the answer
    assert (found.together, found.at_once) == (1, 200)  # (90 GB - 10 GB) / 0.4 GB
    first = (2 * 1e6 * 10_000 + 2 * 4e9 * 300) / (0.4 * 100e12)
    step = (8e9 + 10 * 0.4e9) / (0.6 * 1e12)
    per_minute = 60 / (first + 100 * step / 10)
    assert found.first_token_seconds == pytest.approx(first)
    assert found.videos_per_minute == pytest.approx(per_minute)
    assert found.needed == -(-100 // per_minute)


def test_a_budget_bounds_what_videos_keep_but_not_the_comparison_with_all_tokens() -> None:
    kept = [prompt_tokens(VIDEO, Load(text_tokens=0, max_video_tokens=200), ratio) for ratio in (1.0, 0.25, 0.15)]
    assert kept == [1000, 200, 150]


def test_a_model_too_large_for_one_gpu_is_shared_or_said_to_be_too_large() -> None:
    load = Load(text_tokens=50, new_tokens=100, videos_per_minute=1)
    assert plan(COSTS, VIDEO, load, Gpu("small", 8e9, 1e12, 1e12), 0.25).together == 2
    shared = plan(COSTS, VIDEO, load, Gpu("smaller", 1e9, 1e12, 1e12), 0.25)
    assert (shared.together, shared.videos_per_minute, shared.needed) == (None, None, None)


def test_a_model_is_shared_where_that_takes_fewer_gpus_in_all() -> None:
    """One GPU has room for one request at a time. Two together run them all at once."""
    gpu, load = Gpu("tight", 11.6e9, 100e12, 1e12), Load(text_tokens=50, new_tokens=100, videos_per_minute=100)
    found = plan(COSTS, VIDEO, load, gpu, 0.25)
    assert 0.9 * gpu.memory - 10e9 < 2 * found.request_bytes  # one would do
    assert found.together == 2 and found.needed is not None and found.videos_per_minute is not None
    alone = 60 / (2 * 4e9 * 300 / 40e12 + 100 * (8e9 + 0.4e9) / 0.6e12)
    assert found.needed < 100 / alone


def test_heads_of_keys_and_values_are_kept_on_several_gpus_if_there_are_too_few() -> None:
    few = replace(COSTS, heads=(32, 1))
    load = Load(text_tokens=50, new_tokens=100)
    gpu = Gpu("small", 6.5e9, 100e12, 1e12)  # two hold the weights
    shared, doubled = (plan(each, VIDEO, load, gpu, 0.25) for each in (COSTS, few))
    assert shared.request_bytes == 400_000_000
    assert doubled.together is not None and doubled.request_bytes == 400_000_000 * doubled.together
    assert plan(replace(COSTS, heads=(7, 7)), VIDEO, load, gpu, 0.25).together is None  # 7 heads cannot be shared


@pytest.mark.parametrize("name", ["qwen3-vl-8b", "llava-onevision-7b"])
def test_the_times_of_frames_are_counted_as_the_processor_writes_them(name: str) -> None:
    config, processor = config_and_processor(MODEL_SIZES[name], {})
    found = video_size(config, processor, 16, 640, 360)
    # "<0.5 seconds>" and the two marks around the tokens of a pair, a digit more from 10 seconds on, and the two marks
    # around the video. LLaVA's processor writes nothing.
    assert found.text == {"qwen3-vl-8b": 8 * 8 + 3 + 2, "llava-onevision-7b": 0}[name]


def test_experts_are_read_once_however_many_sequences_choose_them() -> None:
    costs = model_costs(config_and_processor(MODEL_SIZES["qwen3-vl-30b-a3b"], {})[0])
    assert costs.read_weights(1) == pytest.approx(costs.layer_weights + costs.head_weights)
    everything = costs.head_weights + costs.dense_weights + costs.expert_weights
    assert costs.read_weights(8) < 8 * costs.layer_weights
    assert costs.read_weights(1000) == pytest.approx(everything)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", *arguments])


def test_the_command_prints_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 200)  # a narrow table breaks headings
    asked = ("--model", "toy:qwen3_vl", "--gpu", "l4", "--videos-per-minute", "60", "--num-frames", "8")
    found = json.loads(run(*asked, "--json").stdout)
    assert [each["retention_ratio"] for each in found["plans"]] == [1.0, 0.25, 0.15]
    assert found["plans"][0]["needed"] == 1
    printed = run(*asked).stdout
    assert "NVIDIA L4" in printed and "not measured" in printed and "GPUs for 60 a minute" in printed
    assert f"{found['plans'][1]['prompt_tokens']:,}" in printed and "positions" not in printed


def test_in_80_columns_each_plan_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 80)
    asked = ("--model-size", "qwen3-vl-8b", "--videos-per-minute", "30")
    plans = json.loads(run(*asked, "--json").stdout)["plans"]
    lines = [line for line in run(*asked).stdout.splitlines() if line.startswith(("NVIDIA", "AMD"))]
    assert len(lines) == len(plans) and all(len(line) <= 80 for line in lines)
    for line, each in zip(lines, plans, strict=True):
        assert line.startswith(each["gpu"]) and f" {each['prompt_tokens']:,} " in line


def test_the_command_says_which_prompts_are_too_long_for_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 200)
    asked = ("--model", "toy:llava_onevision", "--gpu", "l4", "--num-frames", "200")  # made for 4,096 positions
    printed = run(*asked).stdout
    assert "4,096 positions" in printed and "at R = 100 %. Take fewer frames" in printed
    bounded = run(*asked, "--retention-ratio", "0.9", "--max-video-tokens", "300")
    assert "at R = 100 %. Take fewer frames" in bounded.stdout and "at most 300 tokens" in bounded.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("name one model", "--model-size qwen3-vl-8b")),
        (("--model-size", "qwen3-vl-8b", "--model", "org/name"), ("name one model",)),
        (("--model-size", "qwen3-vl-9b"), ("qwen3-vl-9b", "Did you mean 'qwen3-vl-8b'")),
        (("--model-size", "qwen3-vl-8b", "--gpu", "h10"), ("h10", "h100", "l40s")),
        (("--model-size", "qwen3-vl-8b", "--retention-ratio", "1.5"), ("--retention-ratio", "1.5", "(0, 1]")),
        (("--model-size", "qwen3-vl-8b", "--videos-per-minute", "0"), ("--videos-per-minute", "0", "more than 0")),
        (("--model-size", "qwen3-vl-8b", "--max-video-tokens", "15"), ("--max-video-tokens", "15", "16 or more")),
        (("--model-size", "qwen3-vl-8b", "--video-size", "640"), ("--video-size", "640x360")),
    ],
)
def test_bad_options_get_one_line(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr
