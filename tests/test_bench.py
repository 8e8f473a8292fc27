"""`vidcom2 bench` measures each turn truly, summarizes the turns rightly, and loses nothing that was measured."""

import gc
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family
from make_clips import write_clip
from matplotlib.backends.backend_agg import FigureCanvasAgg
from models import video_places
from test_cli import SECONDS, mistake, shown_by, told_by, vidcom2

from benchmarks import bench_tables as pages_tables
from benchmarks.pages import ROOT, filled, tables_in
from vidcom2 import tiny_model
from vidcom2.asking import stopwatch, watched
from vidcom2.asking.candidates import AllTokens, Candidate, candidates_of
from vidcom2.asking.comparison import compare_answers
from vidcom2.asking.prompting import prepare_inputs
from vidcom2.errors import OptionError
from vidcom2.families.table import FAMILIES
from vidcom2.hub_upload.model_card import read_result
from vidcom2.loading.checkpoints import Checkpoint
from vidcom2.measuring import bench as bench_module
from vidcom2.measuring import bench_plot
from vidcom2.measuring.asking_again import ask_again, table_of_asking_again
from vidcom2.measuring.bench import OUT_OF_MEMORY, Series, bench, order
from vidcom2.measuring.bench_plot import draw_all
from vidcom2.measuring.bench_tables import ceilings, efficiency_table, stage_table
from vidcom2.measuring.figures import figures, fitted_exponent
from vidcom2.measuring.models import config_and_processor, fill, num_parameters, random_checkpoint
from vidcom2.measuring.results import new_file, read_results, write_results
from vidcom2.measuring.sizes import MODEL_SIZES, SMALL, ModelSize, size_named
from vidcom2.measuring.stages import STAGES, Task, Turn, answer, encode, peak_memory, reset_peak_memory
from vidcom2.video.reading import Video, read_video

EXACT = "vidcom2:compression_rounding=exact"
# In billions, by the checkpoints' pages on the Hub; where they give no number, as the sum of the parts' own pages.
PARAMETERS = {
    "llava-onevision-0.5b": 0.894,
    "llava-onevision-7b": 8.03,
    "llava-onevision-72b": 73.2,
    "llava-video-7b": 8.03,
    "llava-next-video-7b": 6.738 + 0.304 + 0.021,  # Llama 2 or Yi, CLIP-L/14-336, and the projector's two matrices
    "llava-next-video-34b": 34.389 + 0.304 + 0.059,
    "qwen2-vl-2b": 2.21,
    "qwen2-vl-7b": 8.29,
    "qwen2-vl-72b": 73.4,
    "qwen2.5-vl-3b": 3.75,
    "qwen2.5-vl-7b": 8.29,
    "qwen2.5-vl-32b": 33.5,
    "qwen2.5-vl-72b": 73.4,
    "qwen3-vl-2b": 2.13,
    "qwen3-vl-4b": 4.44,
    "qwen3-vl-8b": 8.77,
    "qwen3-vl-32b": 33.4,
    "qwen3-vl-30b-a3b": 31.1,
    "qwen3-vl-235b-a22b": 236.0,
    "qwen2.5-omni-7b": 8.29 + 0.637 + 0.005,  # Qwen2.5-VL, the encoder of Whisper large, and the matrix behind it
    "qwen3-omni-30b-a3b": 31.719205488,  # the tensors of its repo that are not the talker's
    "internvl3-8b": 7.613 + 0.304 + 0.028,  # Qwen2.5 with its own vocabulary, InternViT-300M, and the projector
    "videollama3-2b": 3.92 / 2,  # the size of its weights in bfloat16, in GB
    "videollama3-7b": 7.616 + 0.412 + 0.017,  # Qwen2.5, SigLIP-SO400M without its head and places, and the projector
    "smolvlm2-2.2b": 1.711 + 0.101 + 0.413 + 0.021,  # SmolLM2, its output matrix, SigLIP-SO400M, and the connector
    "qwen3.5-9b": 9.409813744,  # the defaults of Transformers' own config, as for the next two
    "qwen3.5-35b-a3b": 35.107181936,
    "glm-4.1v-9b": 10.292777472,
    "qwen3.6-35b-a3b": 35.107181936,  # the tensors of its repo, without the layer that predicts further tokens
}


@pytest.fixture(autouse=True)
def _collect_old_garbage() -> Iterator[None]:
    """Free old garbage once, since each turn collects garbage, which takes long after so many imports."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_clip(tmp_path_factory.mktemp("clip") / "clip.mp4", SECONDS))


@pytest.fixture
def checkpoint(family: Family) -> Checkpoint:
    return Checkpoint(family.case.name, family.model, family.processor)


@pytest.fixture(scope="module")
def small() -> Checkpoint:
    """Load one family, which is enough where nothing depends on the family."""
    size = MODEL_SIZES[SMALL]
    tiny = ModelSize(
        "llava_onevision",
        None,
        {**size.text, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        {**size.vision, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "image_size": 84}
        | {"num_attention_heads": 2},
        {"image_size": 84},
    )
    return random_checkpoint("tiny", tiny, torch.device("cpu"), torch.float32)


# -- a turn -----------------------------------------------------------------------------------------------------------


@contextmanager
def steps_of(model: Any) -> Iterator[list[dict[str, Any]]]:
    """Collect the arguments that the language model is called with."""
    calls: list[dict[str, Any]] = []
    hook = model.get_decoder().register_forward_pre_hook(lambda _, args, kwargs: calls.append(kwargs), with_kwargs=True)
    yield calls
    hook.remove()


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_turn_does_what_generate_does(checkpoint: Checkpoint, clip: str, batch_size: int) -> None:
    """The language model gets the same inputs, and answers the same, as in one call of `generate` with the pixels. The
    stages make up nearly all of the time; between them another process may get the core."""
    model: Any = checkpoint.model
    task = Task(clip, 8, batch_size, 5)
    methods = f"{EXACT},random,uniform_frames,vidcom2:compression_positions=original"
    for candidate in (AllTokens(), *candidates_of(methods, "0.3")):
        with steps_of(model) as measured:
            turn = answer(checkpoint, task, candidate, encode(checkpoint, task))
        inputs = prepare_inputs(checkpoint.processor, task.question, read_video(clip, 8), model, batch_size)
        with steps_of(model) as expected:
            out = model.generate(**inputs, **candidate.overrides, do_sample=False, max_new_tokens=5, min_new_tokens=5)
        assert turn.new_tokens == out[:, inputs["input_ids"].shape[1] :].tolist()
        for ours, theirs in zip(measured, expected, strict=True):
            assert torch.equal(ours["inputs_embeds"], theirs["inputs_embeds"])
            assert torch.equal(ours["position_ids"], theirs["position_ids"])
        assert len(turn.step_seconds) == len(measured) - 1 == 4
        assert turn.prompt_tokens == measured[0]["inputs_embeds"].shape[1]
        text = int((~video_places(model.config, inputs["input_ids"][0])).sum())
        assert turn.video_tokens == turn.prompt_tokens - text > 0
        assert tuple(turn.seconds) == tuple(STAGES) and sum(turn.step_seconds) == pytest.approx(turn.seconds["decode"])
        assert all(value > 0 for stage, value in turn.seconds.items() if stage != "compression")
    turns = [answer(checkpoint, task, candidate, encode(checkpoint, task)) for _ in range(3)]
    shares = [sum(each.seconds.values()) / each.end_to_end_seconds for each in turns]
    assert 0.8 < max(shares) <= 1  # of a turn between whose stages no other process got the core


def test_compiled_adds_rows_that_decode_on_a_static_cache_and_answer_the_same(small: Checkpoint, clip: str) -> None:
    """On a CPU Transformers compiles nothing, and the rows do not say so."""
    told = {"num_frames": [4], "max_new_tokens": 5, "repeats": 2}
    every = bench(small, candidates_of("random", "0.25"), clip, compiled=True, **told)
    assert [each.setup.steps for each in every] == ["eager", "eager", "static cache", "static cache"]
    for eager, static in zip(every[:2], every[2:], strict=True):
        for one, other in zip(eager.turns, static.turns, strict=True):
            assert (one.new_tokens, one.prompt_tokens) == (other.new_tokens, other.prompt_tokens)
            assert len(other.step_seconds) == 4 and all(other.step_seconds)
            assert 0.5 < sum(other.seconds.values()) / other.end_to_end_seconds <= 1
    rows = figures([each.as_json() for each in every])
    assert [row["saved"] is None for row in rows] == [True, False, True, False]  # each beside its own kind
    assert [cells[0] for cells in efficiency_table(rows)] == ["steps", *(each.setup.steps for each in every)]
    for row in rows:
        row.pop("steps")  # as in results from before
    assert [row["steps"] for row in figures(rows)] == ["eager"] * 4


def test_a_model_that_asks_for_a_static_cache_is_measured_on_one_and_with_compiled_also_on_a_dynamic_one(
    small: Checkpoint, clip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small.model.generation_config, "cache_implementation", "static")
    kinds: list[str | None] = []
    generate = type(small.model).generate

    def remembered(self: Any, **arguments: Any) -> Any:
        kinds.append(arguments.get("cache_implementation") or self.generation_config.cache_implementation)
        return generate(self, **arguments)

    monkeypatch.setattr(type(small.model), "generate", remembered)
    told = {"num_frames": [4], "max_new_tokens": 3, "repeats": 1}
    for compiled, steps in ((False, ["static cache"]), (True, ["eager", "static cache"])):
        kinds.clear()
        every = bench(small, [], clip, compiled=compiled, **told)
        assert [each.setup.steps for each in every] == steps
        assert kinds == [kind for step in steps for kind in [{"eager": "dynamic"}.get(step, "static")] * 2]
    kinds.clear()
    compared = compare_answers(small, read_video(clip, 4), "What?", max_new_tokens=3, repeats=1)
    assert compared.compressed.new_tokens == 3 and kinds == ["static"] * 4


@pytest.mark.parametrize("stage", ["vision", "prefill", "compression"])
def test_each_stage_is_timed_by_itself(
    small: Checkpoint, clip: str, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """A part that is slowed down by 50 ms shows in its own stage and in no other."""
    model: Any = small.model
    owner, name = {
        "vision": (model.model.vision_tower, "forward"),
        "prefill": (model.get_decoder().layers[0], "forward"),
        "compression": (model.model, "compressed_features"),
    }[stage]
    task, candidate = Task(clip, 8, 1, 2), candidates_of(EXACT, "0.25")[0]
    answer(small, task, candidate, encode(small, task))  # the first answer is slow anyway
    real, now = getattr(owner, name), [0.0]
    monkeypatch.setattr(owner, name, lambda *args, **given: (now.append(now[-1] + 1), real(*args, **given))[1])
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: now[-1]))
    seconds = answer(small, task, candidate, encode(small, task)).seconds
    also = {"decode"} if stage == "prefill" else set()  # its one step runs the same layer
    assert {name for name, value in seconds.items() if value} == {stage, *also}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux reports the peak")
def test_the_memory_peak_is_measured_and_reset() -> None:
    cpu = torch.device("cpu")
    assert reset_peak_memory(cpu)
    before = peak_memory(cpu)
    held = torch.ones(50_000_000)
    del held
    seen = peak_memory(cpu)
    assert reset_peak_memory(cpu)
    after = peak_memory(cpu)
    assert before is not None and seen is not None and after is not None
    assert seen - before > 190e6 and seen - after > 190e6


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_stages_add_up_and_the_peak_holds_the_weights(clip: str) -> None:
    made = random_checkpoint("x", MODEL_SIZES[SMALL], torch.device("cuda"), torch.bfloat16)
    task = Task(clip, 8, 1, 4)
    candidate = candidates_of(EXACT, "0.25")[0]
    for _ in range(2):  # the first turn loads kernels
        turn = answer(made, task, candidate, encode(made, task))
    assert sum(turn.seconds.values()) == pytest.approx(turn.end_to_end_seconds, rel=0.1, abs=5e-3)
    weights = sum(each.numel() * each.element_size() for each in made.model.parameters())
    assert turn.peak_bytes is not None and weights < turn.peak_bytes < weights + 4e9


# -- turns ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_order_of_turns_lets_each_contender_begin_equally_often(count: int) -> None:
    rounds = list(order(count, 2 * count))
    assert all(sorted(round_) == list(range(count)) for round_ in rounds)
    assert set(Counter(round_[0] for round_ in rounds).values()) == {2}
    if count > 2:  # no contender always follows the same one
        before = {i: {a for round_ in rounds for a, b in pairwise(round_) if b == i} for i in range(count)}
        assert all(len(names) > 1 for names in before.values())


def test_contenders_take_turns_after_a_warm_up_round(
    small: Checkpoint, clip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(bench_module, "answer", lambda *args: (asked.append(args[2].label), answer(*args))[1])
    candidates = candidates_of("random,vidcom2", "0.25")
    every = bench(small, candidates, clip, num_frames=[4], max_new_tokens=2, repeats=3)
    names = ["all tokens", "random 0.25", "vidcom2 0.25"]
    assert asked == [names[i] for round_ in order(3, 4) for i in round_]
    assert [len(series.turns) for series in every] == [3, 3, 3]  # the warm-up round does not count


def test_encode_once_shares_one_encoding_among_the_contenders(small: Checkpoint, clip: str) -> None:
    candidates, told = candidates_of("random,vidcom2", "0.25"), {"num_frames": [4], "max_new_tokens": 2, "repeats": 2}
    shared, each = (bench(small, candidates, clip, **told, encode_once=once) for once in (True, False))
    for i in range(2):
        assert len({series.turns[i].seconds["vision"] for series in shared}) == 1
        assert len({series.turns[i].seconds["vision"] for series in each}) == 3
    assert [s.turns[0].new_tokens for s in shared] == [s.turns[0].new_tokens for s in each]


def test_a_contender_that_fails_becomes_a_row(
    small: Checkpoint, clip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short_of_memory(checkpoint: Any, task: Task, candidate: Candidate, encoded: Any) -> Turn:
        if candidate.method == "evs" and task.num_frames == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return answer(checkpoint, task, candidate, encoded)

    monkeypatch.setattr(bench_module, "answer", short_of_memory)
    candidates = candidates_of("random,evs,dycoke", "0.15")
    every = bench(small, candidates, clip, num_frames=[4, 8], max_new_tokens=2, repeats=1)
    failed = {(s.candidate.method, s.setup.num_frames): s.failed for s in every}
    assert failed.pop(("evs", 8)) == OUT_OF_MEMORY
    for frames in (4, 8):
        assert "must be in [0.25, 1] for `compression_method='dycoke'`" in str(failed.pop(("dycoke", frames)))
    assert set(failed.values()) == {None}
    assert all(len(s.turns) == (s.failed is None) for s in every)
    rows = write(tmp_path / "r.json", every)
    shown = [dict(zip(efficiency_table(rows)[0], row)) for row in efficiency_table(rows)[1:]]
    assert [row["video tokens"] for row in shown if row["method"] == "dycoke"] == ["refused"] * 2
    of_evs = [row["video tokens"] for row in shown if row["method"] == "evs"]
    assert of_evs[0].isdigit() and of_evs[1] == "out of memory"
    assert len(stage_table(rows)) == 1 + 5
    assert json.loads((tmp_path / "r.json").read_text())["rows"][2]["figures"]["failed"] is None


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("where", ["candidate", "config"])
def test_a_vision_method_has_its_own_encoding(
    small: Checkpoint, clip: str, monkeypatch: pytest.MonkeyPatch, where: str, once: bool
) -> None:
    """All tokens are the stock model, also where the config has a vision method."""
    used: list[str] = []
    monkeypatch.setattr(
        bench_module, "answer", lambda *a: (used.append(a[3].videos.vision_settings["vision_method"]), answer(*a))[1]
    )
    if where == "config":
        monkeypatch.setattr(small.model.config, "vision_method", "skip_repeated")
    candidates = candidates_of("vidcom2" if where == "config" else "vidcom2:vision_method=skip_repeated", "0.25")
    whole, skipping = bench(small, candidates, clip, num_frames=[4], max_new_tokens=2, repeats=1, encode_once=once)
    assert whole.failed is None and len(whole.turns) == 1
    assert where == "candidate" or whole.as_json()["settings"] == {"vision_method": "full", "retention_ratio": 1.0}
    if once:
        assert not skipping.turns and "`vision_method` is 'skip_repeated'" in str(skipping.failed)
        assert "--encode-once" in str(skipping.failed)
    else:
        assert len(skipping.turns) == 1 and used == ["full", "skip_repeated", "skip_repeated", "full"]


def test_a_bug_is_raised_and_becomes_no_row(small: Checkpoint, clip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "answer", lambda *_: (_ for _ in ()).throw(ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        bench(small, [], clip, num_frames=[4], max_new_tokens=2, repeats=1)


def test_the_file_holds_what_was_measured_before_an_interruption(small: Checkpoint, clip: str, tmp_path: Path) -> None:
    path, saved = tmp_path / "r.json", []

    def save(every: list[Series]) -> None:
        write(path, every, complete=False)
        saved.append(len(every[0].turns))
        if saved[-1] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(small, [], clip, num_frames=[4], max_new_tokens=2, repeats=5, save=save)
    content, rows = read_results(path)
    assert saved == [0, 1, 2] and not content["complete"] and len(rows[0]["turns"]) == 2


# -- the models -------------------------------------------------------------------------------------------------------


def size_that_runs(name: str) -> ModelSize:
    if not FAMILIES[MODEL_SIZES[name].model_type].runs_here:
        pytest.skip("this Transformers lacks a class that the family extends")
    return size_named(name)


@pytest.mark.parametrize("name", PARAMETERS)
def test_sizes_equal_those_of_the_released_models(name: str) -> None:
    size = size_that_runs(name)
    config, _ = config_and_processor(size, {})
    assert num_parameters(config, size) / 1e9 == pytest.approx(PARAMETERS[name], rel=2e-3)


@pytest.mark.parametrize(
    ("name", "per_frame", "more"),
    [
        ("llava-onevision-7b", 196, 1),
        ("llava-video-7b", 182, 0),
        ("llava-next-video-7b", 144, 0),
        ("qwen2-vl-7b", 23 * 13 // 2, 1),
        ("qwen3-vl-8b", 20 * 11 // 2, 0),
        ("glm-4.1v-9b", 23 * 13 // 2, 1),
        ("qwen2.5-omni-7b", 23 * 13 // 2, 1),
        ("qwen3-omni-30b-a3b", 20 * 11 // 2, 0),
        ("videollama3-2b", 23 * 13, 0),
        ("internvl3-8b", 256, 0),
        ("smolvlm2-2.2b", 81, 0),
        (SMALL, 196, 1),
    ],
)
def test_prompts_have_the_real_number_of_tokens(name: str, per_frame: int, more: int) -> None:
    config, processor = config_and_processor(size_that_runs(name), {})
    video = Video(np.zeros((2, 360, 640, 3), dtype=np.uint8), np.arange(2), 2.0, 2)
    inputs = prepare_inputs(processor, "What?", video)
    assert int(video_places(config, inputs["input_ids"]).sum()) == 2 * per_frame + more


def test_random_weights_give_finite_logits_and_are_the_same_each_time() -> None:
    size, dtype = MODEL_SIZES[SMALL], torch.bfloat16
    made = random_checkpoint("x", size, torch.device("cpu"), dtype).model
    assert {each.dtype for each in made.parameters()} == {dtype}
    assert made.get_output_embeddings().weight is made.get_input_embeddings().weight
    with torch.no_grad():
        logits = made(input_ids=torch.arange(20)[None]).logits
        frames = torch.rand(1, 2, 3, 384, 384, dtype=dtype)
        tokens = made.get_video_features(frames, retention_ratio=1.0).pooler_output[0]
    assert logits.isfinite().all() and logits.std() > 0.01
    assert tokens.isfinite().all() and tokens.shape == (2 * 196 + 1, 512) and tokens.std() > 1e-4
    again = random_checkpoint("x", size, torch.device("cpu"), dtype).model
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), again.parameters(), strict=True))


def test_random_weights_leave_no_layer_without_a_part() -> None:
    """A scale of 0 would take the layer's output away. InternVL names its scales `lambda_1` and `lambda_2`."""
    tower: Any = FAMILIES["internvl"].build_tiny()[0].model.vision_tower
    fill(tower, seed=0)
    states = tower(pixel_values=torch.rand(1, 3, 196, 196), output_hidden_states=True).hidden_states
    assert all((after - before).abs().max() > 1e-3 for before, after in pairwise(states))


def test_a_model_that_cannot_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vidcom2.measuring.models.free_bytes", lambda _: 20_000_000_000)
    with pytest.raises(OptionError, match=r"'llava-onevision-72b', whose weights take 146.* but cpu has 20.0 GB free"):
        name = "llava-onevision-72b"
        random_checkpoint(name, size_named(name), torch.device("cpu"), torch.bfloat16)


# -- figures ----------------------------------------------------------------------------------------------------------


def turn(prefill: float, compression: float = 0.0, peak: int | None = 10, **seconds: float) -> dict[str, Any]:
    stages = dict.fromkeys(STAGES, 1.0) | {"prefill": prefill, "compression": compression} | seconds
    return {
        "seconds": stages,
        "step_seconds": [0.1, 0.2, 0.7],
        "end_to_end_seconds": sum(stages.values()),
        "prompt_tokens": 20,
        "video_tokens": 12,
        "kept_share": 0.25,
        "peak_bytes": peak,
    }


def series(method: str, *turns: dict[str, Any], ratio: float = 0.25, frames: int = 8) -> dict[str, Any]:
    settings = {"compression_method": method.split(":")[0], "retention_ratio": ratio}
    return {
        "num_frames": frames,
        "batch_size": 2,
        "attn_implementation": "sdpa",
        "method": method,
        "retention_ratio": ratio,
        "settings": {} if method == "all tokens" else settings,
        "turns": list(turns),
        "failed": None,
    }


def write(path: Path, every: list[Series] | list[dict[str, Any]], complete: bool = True, **more: str) -> list[dict]:
    certificate = {"model": "org/model", "date": "2026-01-01", "command": "vidcom2 bench", "device": "a machine"}
    certificate |= {"torch": "2.15", "transformers": "5.23", "vidcom2_commit": "abc", "dtype": "float32", "video": "v"}
    rows = [each.as_json() if isinstance(each, Series) else each for each in every]
    return write_results(path, "A title", certificate | more, rows, complete)


def made_up() -> list[dict[str, Any]]:
    return [
        series("all tokens", turn(9.0, peak=40), turn(11.0, peak=50), turn(30.0, peak=60), ratio=1.0),
        series("random", turn(2.0), turn(3.0), turn(4.0)),
        series("vidcom2:compression_scoring=released", turn(2.0, 0.5), turn(3.0, 0.5), turn(4.0, 0.5)),
    ]


def test_figures_are_sums_and_savings_as_in_the_paper() -> None:
    whole, by_chance, ours = figures(made_up())
    assert whole["seconds"]["prefill"] == 11 and whole["seconds_range"]["prefill"] == [9, 30]
    assert whole["seconds"]["llm_generation"] == 11 + 1
    assert whole["seconds"]["model_generation"] == 11 + 1 + 1 + 1  # decoding, tower, prompt
    assert whole["seconds"]["end_to_end"] == 11 + 1 + 1 + 1 + 1 + 1
    assert whole["seconds"]["decode_step"] == pytest.approx(0.2)
    assert whole["peak_bytes"] == 50 and whole["saved"] is None
    # The rounds have 3 / 10, 4 / 12 and 5 / 31, and with tower, prompt and compression 5.5 / 12, 6.5 / 14 and 7.5 / 33.
    assert by_chance["saved"]["llm_generation"] == pytest.approx(1 - 3 / 10)
    assert by_chance["saved_range"]["llm_generation"] == pytest.approx((1 - 4 / 12, 1 - 5 / 31))
    assert ours["saved"]["model_generation"] == pytest.approx(1 - 5.5 / 12)
    assert ours["compression_share"] == pytest.approx(0.5 / 4)
    assert ours["saved_over_random"]["model_generation"] == pytest.approx(-0.5 / 12)
    assert by_chance["saved_over_random"] is None
    assert ours["samples_per_second"] == pytest.approx(2 / ours["seconds"]["end_to_end"])


def test_the_share_of_a_part_bounds_what_saving_in_it_can_give() -> None:
    found = ceilings(figures([*made_up(), series("all tokens", turn(1.0), ratio=1.0, frames=2)]))
    assert found is not None  # 12 of 16 seconds of the larger video, and 1 of 16
    assert "language model takes 75% of the time, and the vision tower 6%" in found
    assert "at most 4× as fast" in found and "at most 1.07×" in found and "both at most 5.33×" in found
    assert ceilings(figures(made_up()[1:])) is None


def test_figures_compare_only_the_same_setup_and_ratio_and_need_a_run_on_all_tokens() -> None:
    other = [
        series("all tokens", turn(100.0), ratio=1.0, frames=16),
        series("vidcom2", turn(50.0), frames=16),
        series("random", turn(1.0), ratio=0.5, frames=16),
    ]
    rows = figures([*made_up(), *other])
    assert rows[4]["saved"]["llm_generation"] == pytest.approx(1 - 51 / 101)
    assert rows[4]["saved_over_random"] is None
    every = made_up()
    every[0] |= {"turns": [], "failed": OUT_OF_MEMORY}
    rows = figures(every)
    assert [row["saved"] for row in rows] == [None] * 3
    cells = efficiency_table(rows)
    assert cells[1][2] == OUT_OF_MEMORY and cells[2][3] == "4.00"


def test_fitted_exponents_equal_those_of_the_made_up_times() -> None:
    x = [8.0, 16.0, 32.0, 64.0]
    assert fitted_exponent(x, [3.0 * each**1.7 for each in x]) == pytest.approx((1.7, 3.0))
    assert fitted_exponent([8.0, 16.0, 8.0], [1.0, 2.0, 1.0]) is None


def test_the_table_shows_the_figures() -> None:
    headings, whole, by_chance, ours = efficiency_table(figures(made_up()))
    shown = dict(zip(headings, ours))
    assert shown["method"] == "vidcom2 (released)" and shown["R, %"] == "25" and shown["video tokens"] == "12"
    space = "\N{NO-BREAK SPACE}"
    assert shown["LLM generation, s"] == f"4.00 (−70.0{space}% [−83.9,{space}−66.7])"
    assert shown["compression, % of LLM"] == "12.5" and shown["to random, points"] == "−4.2"
    assert dict(zip(headings, whole))["LLM generation, s"] == "12.0" and by_chance[7] == "–"
    both = [*made_up(), *(each | {"num_frames": 16} for each in made_up())]
    assert efficiency_table(figures(both))[0][0] == "frames" and efficiency_table(figures(both))[4][0] == "16"


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_result_file_never_gets_a_name_that_is_taken(tmp_path: Path) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    paths = [new_file(tmp_path / "out", "org/model-7b", now) for _ in range(3)]
    assert [path.name for path in paths] == [f"org-model-7b-20260102T030405Z{more}.json" for more in ("", "-2", "-3")]


def test_a_model_card_takes_the_result_file(tmp_path: Path) -> None:
    write(tmp_path / "r.json", made_up())
    result = read_result(tmp_path / "r.json", ["org/model"])
    assert result.title == "A title" and "`vidcom2 bench` on a machine" in result.provenance
    lines = result.table.splitlines()
    assert lines[0].startswith("| method | R, % | video tokens | LLM generation, s |") and len(lines) == 2 + 3
    assert "| vidcom2 (released) | 25 | 12 | 4.00 (−70.0" in lines[4] and "turns" not in result.table
    assert result.notes.startswith("Times are medians of 3 rounds.")
    assert "In brackets is the change from all tokens in the same round: its median [least, most]." in result.notes


@pytest.mark.parametrize("content", ["", '{"rows": [{}]}', '{"birth_certificate": {"device": "x"}, "rows": [1]}'])
def test_a_file_that_is_no_result_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(OptionError, match="is not a result file of `vidcom2 bench`"):
        read_results(tmp_path / "r.json")


def test_plots_show_the_methods_that_were_measured(tmp_path: Path) -> None:
    plots = draw_all(figures(made_up()), "t", tmp_path / "a.json")
    assert [path.name for path in plots] == ["a-stages.png", "a-ratios.png"]
    assert all(path.stat().st_size > 5000 for path in plots)
    failed = [each | {"turns": [], "failed": "no"} for each in made_up()]
    assert draw_all(figures(failed), "t", tmp_path / "c.json") == []


def test_no_point_of_a_plot_is_clipped_and_legends_tell_growth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(bench_plot, "save_png", lambda figure, path, methods: drawn.update({path.stem: figure}))
    every = [
        series(method, turn(4.0 * frames, peak=1000 + frames), ratio=ratio, frames=frames)
        for frames in (8, 16, 32)
        for method, ratio in (("all tokens", 1.0), ("vidcom2", 0.25), ("vidcom2", 0.1))
    ]
    assert len(draw_all(figures(every), "t", tmp_path / "a.json")) == 3
    for name in ("a-frames", "a-ratios"):
        figure = drawn[name]
        FigureCanvasAgg(figure).draw()
        for axes in figure.axes:
            panel = axes.get_window_extent()
            for line in axes.lines:
                places, radius = line.get_transform().transform(line.get_xydata()), figure.dpi / 72 * 5 / 2
                assert (places - radius >= panel.min).all() and (places + radius <= panel.max).all()
    prefill, _, memory = (
        [text.get_text() for text in axes.get_legend().get_texts()] for axes in drawn["a-frames"].axes
    )
    ways = ["all tokens", "vidcom2 25 %", "vidcom2 10 %"]
    assert prefill == [f"{way}: 2.00× for twice the frames" for way in ways] and memory == ways


# -- asking again -----------------------------------------------------------------------------------------------------


def test_only_a_question_asked_anew_encodes_again(
    small: Checkpoint, clip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, ordinary = [], watched.run_tower
    monkeypatch.setattr(watched, "run_tower", lambda *given: encoded.append(given) or ordinary(*given))
    compressed, compress = [], watched.keep_tokens
    monkeypatch.setattr(watched, "keep_tokens", lambda *given: compressed.append(given[2]) or compress(*given))
    (candidate,) = candidates_of("vidcom2", "0.2", ("--method", "--retention-ratio"))
    rows = ask_again(small, candidate, clip, num_frames=4, max_new_tokens=2, repeats=2)
    assert {each.retention_ratio for each in compressed} == {0.2}
    assert [row["way"] for row in rows] == ["anew", "features", "KV cache"]
    assert all((row["method"], row["retention_ratio"], row["frames"]) == ("vidcom2", 0.2, 4) for row in rows)
    assert all(len(row["each"]) == 2 for row in rows)
    assert rows[0]["once"] == 0 < rows[1]["once"] and rows[2]["once"] > 0
    assert len(encoded) == 3 + (2 + 1)  # a warm-up, and once for each of the others; then in each turn of the first


def test_the_table_of_asking_again_counts_what_is_spent_once() -> None:
    cells = table_of_asking_again(
        [
            {"way": "anew", "once": 0.0, "each": [3.0, 4.0, 9.0]},
            {"way": "features", "once": 5.0, "each": [1.0]},
            {"way": "KV cache", "once": 6.0, "each": [0.5]},
        ]
    )
    assert cells[1:] == [
        ["anew", "–", "4.00 (1.0×)", "40.0 (1.0×)"],
        ["from the features", "5.00", "1.00 (4.0×)", "15.0 (2.7×)"],
        ["from the KV cache", "6.00", "0.500 (8.0×)", "11.0 (3.6×)"],
    ]


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_measures_a_checkpoint(family: Family, clip: str, tmp_path: Path) -> None:
    (content,) = told_by(
        *("bench", "--model", family.folder, "--video", clip, "--num-frames", 8, "--repeats", 2, "--max-new-tokens", 3),
        *("--method", "random,vidcom2", "--method", "dycoke", "--retention-ratio", 0.25, "-o", tmp_path),
        *("--max-video-tokens", 100_000),
    )
    assert content["title"] == f"Time of {family.folder.name}, at most 100,000 tokens"
    (path,) = tmp_path.glob("*.json")
    assert content == json.loads(path.read_text()) and content["complete"]
    certificate = content["birth_certificate"]
    assert certificate["model"] == family.folder.name and certificate["video"] == "clip.mp4"
    assert certificate["weights"] == "the checkpoint's" and str(tmp_path) not in path.read_text()
    assert str(family.folder) not in path.read_text()
    found = {row["method"]: row["figures"] for row in content["rows"]}
    inputs = prepare_inputs(family.processor, "What happens?", read_video(clip, 8), family.model)
    whole = int(video_places(family.model.config, inputs["input_ids"]).sum())
    assert found["all tokens"]["turns"][0]["video_tokens"] == whole
    kept = [found[method]["turns"][0]["video_tokens"] for method in ("random", "vidcom2")]
    assert all(whole / 5 < each < whole for each in kept)
    assert kept[0] == kept[1]  # since the rounding is exact
    for method in ("random", "vidcom2"):
        assert found[method]["settings"]["compression_rounding"] == "exact"
        assert len(found[method]["turns"]) == 2
    read_result(path, [family.folder.name])


@pytest.mark.slow
def test_quick_prints_its_tables(tmp_path: Path) -> None:
    quick = ("bench", "--quick", "--num-frames", 2, "--repeats", 1, "-o", tmp_path)
    shown = shown_by(*quick, "--ask-again")
    for words in ("from the KV cache", "llava-onevision-small, random weights", "vidcom2"):
        assert words in shown
    (path,) = tmp_path.glob("*.json")
    before = path.read_bytes()
    shown = " ".join(shown_by("bench", "--plot-only", path).split())
    assert "2 frames, batches of 1" in shown and "its median [least, most]." in shown
    assert path.read_bytes() == before
    shown_by(*quick)
    assert len(list(tmp_path.glob("*.json"))) == 2 and path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model-size", "gpt"], "`--model-size` is 'gpt'"),
        (["--model-size", SMALL, "--model", "x/y"], "Pass one of them"),
        (["--method", "nothing"], "`--method` is 'nothing'"),
        (["--method", "random", "--method", "random"], "`--method` has 'random' twice"),
        (["--retention-ratio", "1.5"], "`--retention-ratio` has '1.5'"),
        (["--num-frames", "8", "--num-frames", "8"], "`--num-frames` has 8 twice"),
        (["--attn-implementation", "magic"], "`--attn-implementation` is 'magic'"),
        (["--video-size", "64"], "`--video-size` is '64'"),
        (["--video", "nowhere.mp4"], "'nowhere.mp4'"),
        (["--plot-only", "nowhere.json"], "is not a result file of `vidcom2 bench`"),
        (["--compression-temperature", "0.1", "--method", "random"], "none of random reads it"),
        (["--vision-method", "skip_repeated", "--encode-once"], "share the encoding of the stock model. Leave"),
        (["--compression-newlines", "all", "--quick"], "`--compression-newlines` is not a setting of"),
    ],
)
def test_mistakes_are_reported_in_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    code, _, error = vidcom2("bench", *arguments, "-o", tmp_path / "out")
    assert code == 2 and message in " ".join(error.replace("│", " ").split())
    assert not list(tmp_path.glob("out/*"))


def test_an_encoding_of_the_models_own_is_not_shared_with_the_stock_model(tmp_path: Path) -> None:
    for part in tiny_model("qwen3_vl", vision_method="skip_repeated"):
        part.save_pretrained(tmp_path / "tiny")
    told = mistake("bench", "--model", tmp_path / "tiny", "--encode-once", "-o", tmp_path / "out")
    assert "`vision_method` is 'skip_repeated', but with `--encode-once` all contenders share" in told


# -- the pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages_tables.PAGES)
def test_the_tables_in_the_pages_equal_the_result_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert tables_in(text, "bench") and filled(text, "bench", pages_tables.blocks()) == text


def test_what_was_read_from_the_run_on_the_h200_fits_together() -> None:
    """Its raw files are lost, so only arithmetic can tell a slip: savings follow from pairs, and where LLM generation
    was not read, from the prefill, the time of a step, and how many tokens were generated."""
    content = json.loads(pages_tables.H200.read_text())
    step = content["birth_certificate"]["milliseconds_a_step"] / 1000
    checked = 0
    for row in content["rows"]:
        if row["prefill"] is None:
            continue
        before, after = row["prefill"]
        assert before / after == pytest.approx(row["prefill_times"], rel=0.02)
        for name, saved in row["saved"].items():
            if row[name] is not None:
                change = 1 - row[name][1] / row[name][0]
                assert change == pytest.approx(saved, abs=0.02), (row["model"], name)  # a median of rounds
                checked += 1
        decode = step * (row["new_tokens"] - 1)
        llm = (after + decode) / (before + decode)
        assert 1 - llm == pytest.approx(row["saved"]["llm_generation"], abs=0.03), row["model"]
    assert checked == 3


def test_the_savings_in_the_result_files_are_medians_over_their_rounds() -> None:
    """Plain arithmetic checks each file that the pages show."""
    rounds = dict.fromkeys(pages_tables.FILES.values(), 3) | dict.fromkeys(pages_tables.LECTURES.values(), 1)
    for path, least in rounds.items():
        content, rows = read_results(path)
        assert not content["birth_certificate"]["vidcom2_dirty"]
        assert all(len(row["turns"]) >= least for row in rows)
        whole: Any = None
        for row in rows:
            generation = [turn["seconds"]["prefill"] + turn["seconds"]["decode"] for turn in row["turns"]]
            if row["method"] == "all tokens":
                whole = generation
            elif row["saved"]:
                each = [1 - own / of_all for own, of_all in zip(generation, whole, strict=True)]
                assert row["saved"]["llm_generation"] == pytest.approx(median(each))
