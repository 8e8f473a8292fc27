"""A live video remembers a stream in bounded memory: all of it while there is room, and then what covers it best."""

import copy
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, only
from test_watched import logits

import vidcom2
from vidcom2.asking.prompting import OF_TEXTS, prepare_inputs
from vidcom2.configuration.compression_settings import NUM_KEPT
from vidcom2.errors import OptionError
from vidcom2.live import live_video
from vidcom2.live.live_video import LiveVideo
from vidcom2.live.stream_memory import MEMORY_METHODS, TIME_WEIGHT, ScoredFrame, StreamMemory, StreamTokens, coverage
from vidcom2.live.virtual_frames import virtual_frames

ONE = only(lambda family: family.name == "llava_onevision")
PAIRS = only(lambda family: family.name == "qwen3_vl")


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (24, 112, 112, 3)).astype(np.uint8)


def stream(family: Family, frames: np.ndarray, **arguments: Any) -> LiveVideo:
    return shown(LiveVideo(family.model, family.processor, **{"max_video_tokens": 10_000, **arguments}), frames)


def shown(live: LiveVideo, frames: np.ndarray, seconds: float = 0.5, first: int = 0) -> LiveVideo:
    """Show frames to a live video, so many seconds apart."""
    for place, frame in enumerate(frames, start=first):
        live.add(frame, place * seconds)
    return live


def small(family: Family, frames: np.ndarray, **arguments: Any) -> LiveVideo:
    """A stream of which about eight of the scored frames fit."""
    tokens = stream(family, frames[:1]).tokens_per_frame
    assert tokens is not None
    return stream(family, frames, **{"max_video_tokens": 8 * tokens, **arguments})


def test_a_stream_that_fits_is_answered_about_as_a_whole_video(family: Family, frames: np.ndarray) -> None:
    """Seven frames, so that in families that join two the last one waits for its second."""
    live, video = stream(family, frames[:7]), vidcom2.Video.from_frames(frames[:7], fps=2)
    fresh = prepare_inputs(family.processor, "Who?", video, family.model)
    inputs = live.watched().inputs("Who?")
    written = family.short_inputs("Who?", video, retention_ratio=1.0)
    assert all(torch.equal(inputs[name], written[name]) for name in (*OF_TEXTS, NUM_KEPT) if name in written)
    expected = logits(
        lambda _, **rest: family.model.generate(**fresh, do_sample=False, retention_ratio=1.0, **rest), "Who?"
    )
    torch.testing.assert_close(logits(live.ask, "Who?"), expected, rtol=0, atol=1e-5)


def test_a_longer_stream_keeps_its_last_frames_whole_within_the_budget(family: Family, frames: np.ndarray) -> None:
    frames = frames[: 10 * family.case.files_frames_per_frame]
    live = small(family, frames)
    watched = live.watched()
    kept = watched.features.video_compressions[0]
    assert len(kept.indices) == live.max_video_tokens
    assert bool((kept.indices.diff() > 0).all())
    groups = -(-4 // live.frames_together)
    assert kept.frame_budgets[-groups:].tolist() == [live.tokens_per_frame] * groups
    alone = stream(family, frames[-groups * live.frames_together :]).watched().features
    levels = [(watched.features.pooler_output, alone.pooler_output)]
    levels += zip(watched.features.deepstack_features or (), alone.deepstack_features or ())
    for (of_stream,), (of_last,) in levels:
        assert torch.equal(of_stream[-len(of_last) :], of_last)
    assert live.ask("Who?", max_new_tokens=2).video_tokens == len(watched.features.pooler_output[0])


@PAIRS
def test_what_is_remembered_depends_on_no_later_frame(family: Family, frames: np.ndarray) -> None:
    live = small(family, frames[:19])
    then = live.watched()
    places = then.features.video_compressions[0].indices % live.tokens_per_frame
    whole = stream(family, frames[:19]).watched().features.pooler_output[0].unflatten(0, (-1, live.tokens_per_frame))
    for place, token in zip(places.tolist(), then.features.pooler_output[0]):  # each is one of those at its place
        assert bool((whole[:, place] == token).all(dim=1).any())
    before = then.features.pooler_output[0].clone()
    shown(live, frames[19:], first=19)
    again = small(family, frames[:19]).watched()
    assert torch.equal(before, then.features.pooler_output[0]) and torch.equal(before, again.features.pooler_output[0])
    assert then.prepared.written == again.prepared.written != live.watched().prepared.written
    assert not torch.equal(live.watched().features.pooler_output[0][-1], before[-1])


def test_coverage_drops_what_the_rest_stands_for() -> None:
    """Compared with loops in float64 that look at each pair anew."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(40, 6, generator=generator), dim=1)
    frames, mean = torch.arange(8).repeat_interleave(5), directions.mean(dim=0) / 2
    tokens = StreamTokens(
        directions, directions, frames, torch.arange(5).repeat(8), directions[:, 0], 11, 5, mean, mean
    )
    variety = 1 - float(mean.double().square().sum())

    def distance(one: int, other: int) -> float:
        unlike = (1 - float(directions[one].double() @ directions[other].double())) / variety
        return unlike + TIME_WEIGHT * abs(int(frames[one]) - int(frames[other])) / 11

    left = list(range(40))
    while len(left) > 12:
        _, *pair = min((distance(a, b), a, b) for a in left for b in left if a < b)
        rest = {one: min(distance(one, each) for each in left if each not in pair) for one in pair}
        left.remove(min(pair, key=rest.__getitem__))
    assert coverage(tokens, 12).tolist() == left


def test_virtual_frames_hold_each_place_once_and_close_when_one_is_taken() -> None:
    frames = torch.tensor([0, 0, 1, 1, 2, 5, 5, 6])
    places = torch.tensor([1, 3, 0, 2, 2, 3, 4, 4])
    assert virtual_frames(frames, places).tolist() == [0, 0, 0, 0, 1, 1, 1, 2]


@PAIRS
def test_the_prompt_says_when_the_first_token_of_each_virtual_frame_was_shown(
    family: Family, frames: np.ndarray
) -> None:
    live = small(family, frames, recent_frames=2)
    memory, written = live._memory, live.watched().prepared.written
    numbers = virtual_frames(memory.frames, memory.places)
    firsts = [int((numbers == number).nonzero()[0]) for number in range(int(numbers[-1]) + 1)]
    times = [int(memory.frames[first]) + 0.25 for first in firsts] + [11.25]  # of pairs that are a second apart
    assert [float(part.split("<")[-1]) for part in written.split(" seconds>")[:-1]] == [
        pytest.approx(each, abs=0.051) for each in times
    ]


@only(lambda family: family.name != "nemotron_h_omni")  # whose processor fails on tensors without values
def test_a_question_needs_no_frames_in_memory(
    family: Family, frames: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processor writes the prompt from tensors without values."""
    live, of_videos, devices = stream(family, frames[:4]), type(family.processor.video_processor), []
    preprocess = of_videos.preprocess

    def seen(processor: Any, videos: Any, **arguments: Any) -> Any:
        devices.append(str(getattr(videos[0], "device", "an array")))
        return preprocess(processor, videos, **arguments)

    monkeypatch.setattr(of_videos, "preprocess", seen)
    live.watched()
    assert {*devices} == {"meta"}


@ONE
def test_a_live_video_can_be_saved_and_asked_later(family: Family, frames: np.ndarray, tmp_path: Path) -> None:
    watched = small(family, frames).watched()
    watched.save(tmp_path / "live.watched")
    loaded = vidcom2.load_watched(tmp_path / "live.watched", family.model, processor=family.processor)
    assert loaded.ask(["Who?", "?"]) == watched.ask(["Who?", "?"])


def test_users_add_memories_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vidcom2.live.stream_memory.MEMORY_METHODS", dict(MEMORY_METHODS))

    @vidcom2.register_memory_method("newest")
    def newest(tokens: StreamTokens, number: int) -> torch.Tensor:
        return torch.arange(len(tokens.frames) - number, len(tokens.frames))

    memory = StreamMemory(newest, 5)
    for second in range(4):
        features = torch.full((3, 2), float(second + 1))
        memory.add(ScoredFrame((features, -features), (float(second),)))
    assert memory.features[0][:, 0].tolist() == [3, 3, 4, 4, 4] and memory.features[1][0, 0] == -3
    assert memory.seconds[:, 0].tolist() == [2, 2, 3, 3, 3] and memory.places.tolist() == [1, 2, 0, 1, 2]
    with pytest.raises(OptionError, match="'newest' is taken"):
        vidcom2.register_memory_method("newest")(lambda tokens, number: tokens.frames)
    bad = [[3, 1], [1, 1], [], [-1, 2], [2, 8], [0, 1, 2, 3, 4, 5], [1.0, 2.0], [[1, 2]], [True] * 5 + [False] * 3]
    for places in [*map(torch.tensor, bad), torch.tensor([1, 2], dtype=torch.int32), [1, 2], np.array([1, 2]), 3, None]:
        memory.method = lambda tokens, number, places=places: places
        with pytest.raises(OptionError, match=r"returned .*, but must return 1 to 5 places from 0 to 7: int64, \(K,\)"):
            memory.add(ScoredFrame((features, features), (9.0,)))
        assert len(memory.features[0]) == len(memory.frames) == 5 and memory.num_frames == 4  # as before


def test_a_memory_method_cannot_write_into_the_memory() -> None:
    def scribbles(tokens: StreamTokens, number: int) -> torch.Tensor:
        for each in vars(tokens).values():
            if isinstance(each, torch.Tensor):
                each.numpy()[:] = 7
        return torch.arange(number)

    for max_tokens in (5, 2):  # the first frame fits, or does not
        memories = [StreamMemory(method, max_tokens) for method in (scribbles, lambda tokens, n: torch.arange(n))]
        for second in range(3):
            for memory in memories:
                memory.add(ScoredFrame((torch.arange(6.0).view(3, 2) + second,), (float(second),)))
        written, untouched = ({**vars(each), "features": each.features[0]} for each in memories)
        assert all(
            torch.equal(torch.as_tensor(written[name]), torch.as_tensor(untouched[name]))
            for name in written.keys() - {"method"}
        )


@PAIRS
@pytest.mark.parametrize(
    "error", [RuntimeError("no room"), KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
def test_a_frame_is_taken_in_whole_or_not_at_all(family: Family, frames: np.ndarray, error: BaseException) -> None:
    """The memory method fails when the first frame leaves those that stay whole. The same frame is added again."""
    live, expected = small(family, frames[:15]), small(family, frames)
    before, method, failed = live.watched(), live._memory.method, []

    def fails(tokens: StreamTokens, number: int) -> torch.Tensor:
        if len(failed) < 3:
            failed.append(tokens)
            raise error
        return method(tokens, number)

    live._memory.method = fails
    for place, frame in enumerate(frames[15:], start=15):
        while live.num_frames == place:
            before = live.watched()
            try:
                live.add(frame, place / 2)
            except type(error):
                assert live.num_frames == place and live.watched() is before
    assert len(failed) == 3
    for one, other in zip(live._remembered().features.pooler_output, expected.watched().features.pooler_output):
        assert torch.equal(one, other)


@only(lambda family: family.name in ("llava_onevision", "qwen3_vl"))
def test_frames_of_two_threads_come_one_after_the_other(
    family: Family, frames: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second thread adds its frame while the first one's is encoded."""
    expected, live = stream(family, frames[:4]).watched(), stream(family, frames[:1])
    threads: list[threading.Thread] = []

    def slowly(*args: Any) -> Any:
        if not threads:
            threads.append(threading.Thread(target=lambda: live.add(frames[2], 1.0)))
            threads[0].start()
            threads[0].join(0.5)  # without a lock it is through by then
        return encode(*args)

    encode = live_video.run_tower
    monkeypatch.setattr(live_video, "run_tower", slowly)
    live.add(frames[1], 0.5)
    threads[0].join()
    live.add(frames[3], 1.5)
    assert live.num_frames == 4 and live.watched().prepared.written == expected.prepared.written
    assert torch.equal(live.watched().features.pooler_output[0], expected.features.pooler_output[0])


def test_large_frames_are_scaled_so_that_the_past_has_room(frames: np.ndarray) -> None:
    model, processor = vidcom2.tiny_model("qwen2_5_vl")
    processor.video_processor.size = {"shortest_edge": 28 * 28, "longest_edge": 10**6}
    large = frames[:9].repeat(3, axis=1).repeat(4, axis=2)
    live = shown(LiveVideo(model, processor, max_video_tokens=200), large, seconds=1)
    assert live.tokens_per_frame is not None and 35 <= live.tokens_per_frame <= 50
    assert live.ask("Who?", max_new_tokens=1).new_tokens == 1


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "a weight": lambda model, _: next(model.model.vision_tower.parameters()).add_(0.1),
    "the dtype": lambda model, _: model.bfloat16(),
    "a setting": lambda model, _: setattr(model.config, "vision_method", "skip_repeated"),
    "the config": lambda model, _: setattr(model.config, "spatial_pool_mode", "max"),
    "the processor's numbers": lambda _, processor: processor.video_processor.image_mean.reverse(),
    "the processor's size": lambda _, processor: setattr(
        processor.video_processor, "size", {"height": 56, "width": 56}
    ),
}


@only(lambda family: family.name == "llava_video")
@pytest.mark.parametrize("change", CHANGES)
def test_a_stream_ends_where_the_model_or_its_processor_changes(
    family: Family, frames: np.ndarray, change: str
) -> None:
    """Features from before and after would stand in one prompt. The language model may be trained meanwhile."""
    model, processor = family.load(), copy.deepcopy(family.processor)
    processor.video_processor.image_mean = [0.1, 0.2, 0.3]
    live = shown(LiveVideo(model, processor, max_video_tokens=10_000), frames[:3])
    with torch.no_grad():
        model.model.language_model.norm.weight.mul_(2)
    live.add(frames[3], 1.5)
    live.watched()
    with torch.no_grad():
        CHANGES[change](model, processor)
    for use in (lambda: live.add(frames[4], 2.0), live.watched, lambda: live.ask("Who?")):
        with pytest.raises(OptionError, match=r"has changed since the stream began.*Undo that, or begin a new"):
            use()
    assert live.num_frames == 4


@ONE
def test_a_live_video_has_the_budget_of_the_models_config(family: Family) -> None:
    model = family.load(max_video_tokens=300)
    assert LiveVideo(model, family.processor).max_video_tokens == 300
    assert LiveVideo(model, family.processor, max_video_tokens=200).max_video_tokens == 200
    assert LiveVideo(family.model, family.processor).max_video_tokens == live_video.MAX_VIDEO_TOKENS


def test_more_frames_make_none_smaller_in_the_prompt_or_in_that_of_a_file(frames: np.ndarray, tmp_path: Path) -> None:
    """VideoLLaMA3's processor bounds the pixels of a whole video, and would scale many frames down."""
    model, processor = vidcom2.tiny_model("video_llama_3")
    processor.video_processor.size = {"shortest_edge": 28 * 28, "longest_edge": 4 * 112 * 112}
    live = shown(LiveVideo(model, processor, max_video_tokens=10_000), frames[:9], seconds=1)
    watched = live.watched()
    assert watched.ask("Who?", max_new_tokens=1).full_video_tokens == 9 * live.tokens_per_frame == 9 * 16
    watched.save(tmp_path / "live.watched")
    loaded = vidcom2.load_watched(tmp_path / "live.watched", model, processor=processor)
    assert loaded.prepared.written == watched.prepared.written


@ONE
def test_what_a_live_video_cannot_take_is_refused_and_changes_nothing(
    family: Family, frames: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = small(family, frames[:3])
    before, answer = live.watched(), live.ask("Who?")
    bad: list[tuple[Any, Any, str]] = [
        (frames[3], 1.0, r"`seconds` is 1.0, but the last frame was shown at 1.0"),
        (frames[3], math.nan, "`seconds` is nan"),
        (frames[3], "2", "`seconds` is '2'"),
        (frames[3], -1, "`seconds` is -1"),
        (frames[3], 1.7e9, r"`seconds` is 1700000000.0.*from the start of the stream.*`time\.time\(\)`, subtract"),
        (frames[3, :100], 2.0, r"shape \(100, 112, 3\), but the stream began with \(112, 112, 3\)"),
        (frames[3:5], 2.0, r"shape \(1, 2, 112, 112, 3\)"),
        (frames[3] / 1.0, 2.0, "floats from 0 to 1"),
    ]
    for frame, seconds, message in bad:
        with pytest.raises(vidcom2.video.reading.VideoError, match=message):
            live.add(frame, seconds)
    projector = family.model.model.multi_modal_projector
    with monkeypatch.context() as patch:
        patch.setattr(projector, "forward", lambda states: projector.__class__.forward(projector, states) * math.inf)
        with pytest.raises(vidcom2.video.reading.VideoError, match="the frame at 2 s are not finite"):
            live.add(frames[3], 2.0)
    assert live.num_frames == 3 and live.watched() is before and live.ask("Who?") == answer
    live.add(frames[3], 2.0)
    assert live.num_frames == 4

    model, processor = family.model, family.processor
    with pytest.raises(OptionError, match="no frame yet"):
        LiveVideo(model, processor).ask("Who?")
    with pytest.raises(OptionError, match="`max_video_tokens` is 30, but the last 4 frames alone have"):
        LiveVideo(model, processor, max_video_tokens=30).add(frames[0], 0)
    with pytest.raises(OptionError, match="Did you mean 'coverage'"):
        LiveVideo(model, processor, memory_method="coverge")
    with pytest.raises(OptionError, match="`recent_frames` is 0"):
        LiveVideo(model, processor, recent_frames=0)
    with pytest.raises(OptionError, match=r"`retention_ratio` is 0\.5, but the video was watched"):
        live.ask("Who?", retention_ratio=0.5)
    with monkeypatch.context() as patch, pytest.raises(OptionError, match=r"`vision_method` of the model.*apply"):
        patch.setattr(model.config, "vision_method", "skip_repeated")
        LiveVideo(model, processor)
