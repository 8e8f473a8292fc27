"""`vidcom2.ask` and `prepare_inputs` do in one call what the steps by hand do."""

import copy
import dataclasses
import json
import math
import pickle
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, change_json, only
from make_clips import write_clip
from models import video_places
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

import vidcom2
from vidcom2.asking.ask import Answer
from vidcom2.asking.conversation import Conversation
from vidcom2.asking.prompting import prepare_inputs
from vidcom2.errors import OptionError
from vidcom2.loading.processors import placeholder_of
from vidcom2.modeling.families.processing_llava_video import time_instruction
from vidcom2.video.reading import Video, read_video

QUESTION = "What happens?"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a clip of 12 frames with gaps of 0.1 to 1.2 seconds."""
    return write_clip(tmp_path_factory.mktemp("ask") / "clip.mp4", [i * (i + 1) / 20 for i in range(12)])


@pytest.fixture(scope="module")
def video(clip: Path) -> Video:
    return read_video(clip, 6)


def by_hand(model: PreTrainedModel, family: Family, video: Video, **arguments: Any) -> tuple[str, int, int]:
    """Return the answer's text, its number of tokens, and the prompt's number of tokens in the KV cache."""
    inputs = family.stock_inputs(family.prompt(QUESTION, videos=1), video)
    arguments = {"max_new_tokens": 6, "do_sample": False, **arguments}
    out = model.generate(**inputs, **arguments, return_dict_in_generate=True)
    new = out.sequences[0, inputs["input_ids"].shape[1] :]
    # The last token is never fed back, so it is not in the cache.
    in_cache = out.past_key_values.get_seq_length() - (len(new) - 1)
    return family.processor.decode(new, skip_special_tokens=True), len(new), in_cache


def ask(video: Any, family: Family, model: Any = None, **arguments: Any) -> Answer:
    model = family.model if model is None else model
    processor = None if isinstance(model, str) else family.processor
    return vidcom2.ask(video, QUESTION, model, processor=processor, **{"max_new_tokens": 6, **arguments})


# -- the answer -------------------------------------------------------------------------------------------------------


FRAMES = np.random.default_rng(0).integers(0, 256, (4, 60, 80, 3)).astype(np.uint8)


@only(lambda family: family.name in ("llava_onevision", "qwen2_vl", "internvl"))
def test_a_chat_template_where_it_was_before_processors_had_one_is_read(family: Family, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(family.folder, tmp_path / "older"))
    template = family.processor.chat_template
    (folder / "chat_template.jinja").unlink()
    change_json(folder / "tokenizer_config.json", chat_template=template)
    model, processor = vidcom2.load(folder, device="cpu")
    assert processor.chat_template == template
    assert vidcom2.ask(FRAMES, "What?", model, processor=processor, fps=2, max_new_tokens=1).new_tokens == 1


@only(lambda family: family.name in ("llava_onevision", "qwen2_vl", "internvl"))
def test_fields_of_the_checkpoints_generation_config_that_ask_cannot_return_are_left_out(family: Family) -> None:
    """The number of answers is one, and stop strings find their tokenizer."""
    model = family.load()
    expected = vidcom2.ask(FRAMES, "What?", model, processor=family.processor, fps=2, max_new_tokens=3)
    model.generation_config.do_sample, model.generation_config.num_return_sequences = True, 2
    model.generation_config.stop_strings = ["a text that never comes"]
    model.generation_config.return_dict_in_generate = True
    answer = vidcom2.ask(FRAMES, "What?", model, processor=family.processor, fps=2, max_new_tokens=3)
    assert answer == expected


def test_ask_answers_as_the_steps_by_hand_do(family: Family, video: Video) -> None:
    answer = ask(video, family)
    text, new_tokens, in_cache = by_hand(family.model, family, video)
    assert answer == text
    assert (answer.new_tokens, answer.prompt_tokens) == (new_tokens, in_cache)
    assert answer.video is video and answer.measured is None
    assert answer.full_prompt_tokens - answer.full_video_tokens == answer.prompt_tokens - answer.video_tokens

    inputs = family.inputs(
        family.prompt("", videos=1), videos=[video.frames], do_sample_frames=False, **family.of_whole_frames
    )
    full = family.case.video_tokens(6)
    if "video_grid_thw" in inputs and family.case.frames_stand_apart:  # their processor does not resize small frames
        full = math.prod(inputs["video_grid_thw"][0]) // 4
    if "num_chunks_per_video" in inputs:  # Kimi-K2.5's averages the frames of a row
        full = sum(h * w for _, h, w in inputs["video_grid_thw"].tolist()) // 4
    if "video_second_per_grid" in inputs:  # Qwen2.5-Omni's makes them so large, and keeps their shape
        full = math.prod(inputs["video_grid_thw"][0]) // 4
    if "video_position_ids" in inputs:  # Gemma 4's makes them as large as 70 tokens allow, and keeps their shape
        patches = int((torch.as_tensor(inputs["video_position_ids"]) >= 0).all(dim=-1).sum())
        full = patches // family.model.model.patches_per_side**2
    if "target_sizes_videos" in inputs:  # MiniCPM-V's makes them as large as its resolution, and keeps their shape
        full = sum(rows * columns // 16 for rows, columns in inputs["target_sizes_videos"].tolist())
    assert answer.full_video_tokens == full > answer.video_tokens
    features = family.model.get_video_features(**family.videos_of(inputs))
    assert torch.equal(answer.compression.indices, features.video_compressions[0].indices)
    assert answer.video_tokens == len(features.pooler_output[0])


@only(lambda family: family.name == "llava_onevision")
def test_an_answer_is_its_text(family: Family, video: Video) -> None:
    answer = ask(video, family)
    text = by_hand(family.model, family, video)[0]
    assert answer == text and answer[:2] in answer and len(answer) == len(text) and answer + "." == text + "."
    assert json.loads(json.dumps({"answer": answer})) == {"answer": text} and f"{answer:>99}" == f"{text:>99}"
    assert type(str(answer)) is str  # which lets go of the video
    for again in (copy.deepcopy(answer), pickle.loads(pickle.dumps(answer))):
        assert (again, again.new_tokens, again.question) == (text, answer.new_tokens, QUESTION)
        assert torch.equal(again.compression.indices, answer.compression.indices)


def test_a_video_of_one_frame_is_answered(family: Family, video: Video) -> None:
    """A family that joins two frames counts the frame twice."""
    one = dataclasses.replace(video, frames=video.frames[:1], frames_indices=video.frames_indices[:1])
    twice = dataclasses.replace(video, frames=video.frames[[0, 0]], frames_indices=video.frames_indices[[0, 0]])
    answer = ask(one, family)
    joins = family.case.frames_stand_apart and family.case.scored_frames(2) == 1
    repeats = (
        joins and "num_chunks_per_video" not in family.case.video_inputs
    )  # Kimi-K2.5's averages as many as there are
    shown = twice if repeats else one  # Qwen2-VL's processor repeats the frame itself
    assert (answer, answer.new_tokens, answer.prompt_tokens) == by_hand(family.model, family, shown)


@only(lambda family: any("second_per_grid" in name for name in family.video_inputs))
@pytest.mark.parametrize("by", ["ask", "run"])
def test_frame_times_reach_the_positions_in_full_precision(family: Family, by: str) -> None:
    """The model has bfloat16 weights, a type in which 201, 202 and 203 are only two numbers."""
    from vidcom2.asking.comparison import compare_answers
    from vidcom2.loading.checkpoints import Checkpoint

    # 24 frames of a 33.5 s clip with a variable rate, at places in milliseconds.
    places = np.sort(np.random.default_rng(0).choice(33_000, 24, replace=False))
    video = Video(np.zeros((24, 60, 80, 3), dtype=np.uint8), places, fps=1000.0, total_num_frames=33_500)
    model = family.load(retention_ratio=1.0).to(torch.bfloat16)
    seen = []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["position_ids"]), with_kwargs=True
    )
    if by == "ask":
        ask(video, family, model, max_new_tokens=1)
    else:
        compare_answers(Checkpoint("tiny", model, family.processor), video, QUESTION, 1, repeats=1)
    hook.remove()
    inputs = prepare_inputs(family.processor, QUESTION, video)
    is_video = video_places(model.config, inputs["input_ids"][0])
    temporal = seen[0][1, 0, is_video].unique()
    seconds = 2 * 33.5 / 24  # per two frames: as in the original code, the video's length over its frames
    config = model.config
    per_second = getattr(config, "position_id_per_seconds", None) or config.vision_config.tokens_per_second
    expected = [t * seconds * per_second for t in range(12)]
    if family.case.name != "qwen3_omni_moe_thinker":  # whose positions may lie between whole numbers
        expected = [int(position) for position in expected]
    assert (temporal - temporal[0]).tolist() == pytest.approx(expected, rel=1e-5)
    assert all(torch.equal(positions, seen[0]) for positions in seen)


def test_without_compression_ask_answers_as_the_stock_class_does(family: Family, video: Video) -> None:
    answer = ask(video, family, family.uncompressing)
    assert (answer, answer.new_tokens, answer.prompt_tokens) == by_hand(family.stock, family, video)
    assert answer.prompt_tokens == answer.full_prompt_tokens


def test_ask_loads_a_named_checkpoint_with_the_given_settings(family: Family, clip: Path, video: Video) -> None:
    settings = {"retention_ratio": 0.6, "compression_frame_score": "max"}
    answer = ask(clip, family, str(family.folder), num_frames=6, device="cpu", **settings)
    text, _, in_cache = by_hand(family.load(**settings), family, video)
    assert (answer, answer.prompt_tokens) == (text, in_cache)
    assert answer.model == str(family.folder)
    kept = int(0.6 * answer.compression.num_tokens + 1e-6)
    assert len(answer.compression.indices) == kept
    assert answer.video.seconds.tolist() == video.seconds.tolist()


def test_settings_given_with_a_loaded_model_hold_for_one_call(family: Family, video: Video) -> None:
    settings = {"retention_ratio": 0.6, "compression_frame_score": "max"}
    answer = ask(video, family, **settings)
    assert (answer, answer.new_tokens, answer.prompt_tokens) == by_hand(family.load(**settings), family, video)
    assert ask(video, family).prompt_tokens < answer.prompt_tokens


def test_arguments_of_generate_are_passed_on(family: Family, video: Video) -> None:
    class Streamed(BaseStreamer):
        tokens = 0

        def put(self, value: torch.Tensor) -> None:
            self.tokens += value.numel()

        def end(self) -> None:
            pass

    streamer = Streamed()
    tokens = [family.processor.decode([i]) for i in range(len(family.processor.tokenizer))]
    plain = ask(video, family)  # of letters, or of others too
    of_letters = [token.isascii() and token.isalpha() for token in tokens]
    suppressed = [i for i, is_of_letters in enumerate(of_letters) if is_of_letters is plain.isalpha()]
    arguments = {"min_new_tokens": 3, "suppress_tokens": suppressed}
    answer = ask(video, family, streamer=streamer, **arguments)
    assert answer == by_hand(family.model, family, video, **arguments)[0]
    assert answer.isalpha() is not plain.isalpha()
    assert streamer.tokens == answer.prompt_tokens + answer.new_tokens


def test_measure_reports_the_figures_of_both_answers(family: Family, video: Video) -> None:
    answer = ask(video, family, measure=True)
    compressed, full = answer.measured.compressed, answer.measured.uncompressed
    assert (compressed.prompt_tokens, compressed.video_tokens) == (answer.prompt_tokens, answer.video_tokens)
    assert (full.prompt_tokens, full.video_tokens) == (answer.full_prompt_tokens, answer.full_video_tokens)
    assert compressed.answer == answer and compressed.prefill_seconds > 0


def test_without_a_model_the_toy_answers_and_says_so(clip: Path) -> None:
    with pytest.warns(UserWarning, match="the bundled toy model answers: it knows the videos of its benchmark"):
        answer = vidcom2.ask(clip, QUESTION, num_frames=2, max_new_tokens=2, device="cpu", stop_strings="never")
    assert answer.new_tokens == 2 and "toy" in answer.model


def test_importing_the_module_ask_does_not_hide_the_function_ask() -> None:
    import vidcom2.asking.ask

    assert vidcom2.ask is vidcom2.asking.ask.ask


def test_a_setting_that_belongs_to_the_model_is_refused_with_a_loaded_model(family: Family, video: Video) -> None:
    given = {"processor": family.processor, "compression_newlines": "all"}
    for asked in (
        lambda: vidcom2.ask(video, QUESTION, family.model, **given),
        lambda: vidcom2.answer_many([{"video": video, "prompt": QUESTION}], family.model, **given),
    ):
        with pytest.raises(ValueError, match="`compression_newlines` is 'all' in one call"):
            asked()


# -- the times --------------------------------------------------------------------------------------------------------


def minutes(seconds: np.ndarray) -> str:
    return f"{int(seconds[0]) // 60:02}:{int(seconds[0]) % 60:02}"


# How a stock processor writes when the frames of a token are shown: a pattern, and the text for their seconds.
WRITTEN_TIMES: dict[str, tuple[str, Callable[[np.ndarray], str]]] = {
    "Glm4v": (r"<\|end_of_image\|>(\d+)", lambda seconds: f"{int(seconds[0])}"),
    **dict.fromkeys(("Glm46V", "Glm5Next"), (r">([0-9.]+) seconds", lambda seconds: f"{seconds[0]:.1f}")),
    **dict.fromkeys(("Gemma4", "Gemma4Unified"), (r"(\d\d:\d\d) <", minutes)),
    "VideoLlama3": (r"Time ([0-9.]+)s:", lambda seconds: f"{seconds[0]:.1f}"),
    "Molmo2": (r"([0-9.]+) <frame_start>", lambda seconds: f"{seconds[0]:.1f}"),
    "SmolVLM": (r"Frame from (\d\d:\d\d):", minutes),
    "Kimi_K25": (r"00:00:(\d\d\.\d{3})<", lambda seconds: f"{int(seconds[0]):02d}.{int(seconds[0] % 1 * 1000):03d}"),
    "NemotronH_Omni_Reasoning_V3": (
        r"Frame \d+ sampled at ([0-9.]+) seconds",
        lambda seconds: f"{seconds[0]:.2f}",
    ),
}
LIKE_QWEN3_VL = (r"<([0-9.]+) seconds>", lambda seconds: f"{seconds.mean():.1f}")  # all others that tell it


@only(lambda family: not family.adds_features)  # whose placeholder no attribute names
def test_what_a_processor_of_an_unknown_class_writes_is_found_in_its_text(family: Family, video: Video) -> None:
    text = family.processor.decode(prepare_inputs(family.processor, QUESTION, video)["input_ids"][0])
    theirs = SimpleNamespace(video_token=family.processor.video_token, image_token=family.processor.image_token)
    assert placeholder_of(theirs, text) == placeholder_of(family.processor, text)
    assert placeholder_of(theirs, text) in text


def test_frame_times_reach_every_processor(family: Family, video: Video) -> None:
    case = family.case
    inputs = prepare_inputs(family.processor, QUESTION, video)
    text = family.processor.decode(inputs["input_ids"][0])
    told = time_instruction(video.seconds, video.duration)
    assert (told in text) is (case.name == "llava_video")
    if not case.frames_are_images:
        shown = family.processor.video_processor(
            video.frames, video_metadata=[video.metadata], do_sample_frames=False, return_metadata=True
        )
        assert shown["video_metadata"][0].timestamps == video.seconds.tolist()
    without = family.processor(
        text=[family.prompt(QUESTION, videos=1)], videos=[[video.frames]], do_sample_frames=False, return_tensors="pt"
    )
    # Where frames are images, the family's processor here has already told the two apart.
    shown_pixels, pixels = (each.get("pixel_values_videos", each.get("pixel_values")) for each in (inputs, without))
    assert torch.equal(shown_pixels.flatten(), pixels.flatten())
    processor = case.family.stock_processors[0].removesuffix("Processor")
    written_times = WRITTEN_TIMES.get(processor, LIKE_QWEN3_VL if case.frames_stand_apart else None)
    tells = case.name == "llava_video" or written_times is not None
    assert torch.equal(inputs["input_ids"], without["input_ids"]) is not tells
    if written_times is not None:
        pattern, written = written_times
        of_tokens = video.seconds.reshape(-1, case.files_frames_per_frame)
        assert re.findall(pattern, text) == [written(seconds) for seconds in of_tokens]


def test_the_time_instruction_states_true_seconds_at_a_variable_frame_rate(video: Video) -> None:
    told = time_instruction(video.seconds, video.duration)
    frames = [0, 5, 7, 8, 10, 11]  # the frames nearest to 0, 1.32, 2.64, ... of 6.6 seconds
    assert ",".join(f"{i * (i + 1) / 20:.2f}s" for i in frames) in told


# -- refused ----------------------------------------------------------------------------------------------------------

MISSING = "no-such-clip.mp4"  # never opened, since the mistakes are refused before the video is read


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"retention_ratio": 1.5}, "`retention_ratio` is 1.5"),
        ({"compression_rounding": "up"}, "`compression_rounding` is 'up'"),
        ({"compresion_rounding": "exact"}, "'compresion_rounding' is neither an argument .* settings are: retention_"),
        ({"max_tokens": 3}, "'max_tokens' is neither"),
        ({"num_return_sequences": 2}, "`num_return_sequences` is not .* returns one answer"),
        ({"generation_config": GenerationConfig()}, "`generation_config` is not an argument of `ask`, whose own"),
        ({"question": " "}, "`question` is ' '"),
        ({"question": 3}, "`question` is 3, but must be text"),
        ({"num_frames": "4"}, "`num_frames` is '4', but must be a whole number"),
        ({"max_new_tokens": 4.5}, "`max_new_tokens` is 4.5, but must be a whole number"),
        ({"video": 3}, "`video` is 3, but must be a path, an http"),
        ({"model": "no/such/folder"}, "no such folder"),
        ({"dtype": "float8"}, "`dtype` is 'float8', but must be one of"),
        ({"processor": "given"}, "`processor` goes with a model that is loaded"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_mistake_is_refused_before_the_video_is_read(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vidcom2.ask(**{"video": MISSING, "question": QUESTION, **arguments})


@only(lambda family: family.name == "llava_onevision")
def test_none_is_refused_for_a_setting_of_which_a_loaded_model_has_another_value(family: Family, video: Video) -> None:
    model = family.load(compression_window=2)
    with pytest.raises(OptionError, match=r"`compression_window` is None, .* own value, 2\. Set `model.config"):
        vidcom2.ask(video, QUESTION, model, processor=family.processor, compression_window=None)


@only(lambda family: family.name == "llava_onevision")
def test_logits_that_are_not_numbers_are_no_answer(family: Family, video: Video) -> None:
    """As of a model in float16 whose values are beyond its range. `generate` would answer with token 0."""
    model: Any = family.load()
    model.get_output_embeddings().weight.data[5] = torch.nan
    watched = vidcom2.watch(video, model, processor=family.processor)
    ways = [
        *(partial(ask, video, family, model, **given) for given in ({}, {"retention_ratio": 1.0}, {"measure": True})),
        *(partial(watched.ask, QUESTION, **given) for given in ({"num_beams": 2}, {"prompt_lookup_num_tokens": 2})),
        partial(watched.prefill().ask, QUESTION),
        partial(Conversation(watched, max_new_tokens=4).ask, QUESTION),
    ]
    for way in ways:
        with pytest.raises(ValueError, match=r"logits are not numbers \(NaN\).*bfloat16"):
            way()
    requests = [{"video": "any", "prompt": QUESTION}]
    (refused,) = vidcom2.answer_many(requests, model, processor=family.processor, read=lambda *_: video)
    assert "logits are not numbers" in refused.error


def test_a_loaded_model_needs_its_processor_and_takes_no_loading_arguments(family: Family) -> None:
    with pytest.raises(OptionError, match="`processor` is None, but a loaded model needs its own"):
        vidcom2.ask(MISSING, QUESTION, family.model)
    for given in ({"device": "cpu"}, {"dtype": "float32"}, {"revision": "main"}):
        with pytest.raises(OptionError, match=f"`{next(iter(given))}` is .* but the model is loaded already"):
            ask(MISSING, family, **given)
    with pytest.raises(OptionError, match="`measure=True` measures the model with its own settings"):
        ask(MISSING, family, measure=True, retention_ratio=0.5)


@only(lambda family: family.native)
def test_ask_refuses_a_stock_model(family: Family) -> None:
    with pytest.raises(OptionError, match=f"`model` is a {type(family.stock).__name__}, which compresses nothing"):
        ask(MISSING, family, family.stock)
