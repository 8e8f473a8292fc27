"""The needle benchmark: its videos show what the questions ask about, and the toy trained on them answers."""

import hashlib
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.needle import dataset, streams, tables
from benchmarks.needle.architectures import ARCHITECTURES
from benchmarks.needle.candidates import SEEN_FEW
from benchmarks.needle.digits import digit_images
from benchmarks.needle.videos import (
    ALL_LEVELS,
    BACKGROUNDS,
    COLOURS,
    LEVELS,
    SIZE,
    Needle,
    make_needle,
    questions_about,
)
from benchmarks.pages import ROOT, filled, tables_in
from vidcom2 import ask, read_video
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.toys import PREFIX, TOY, TOYS
from vidcom2.video.reading import Video

SEEN = 45.0  # a pixel this close to a colour, in RGB, has that colour


@pytest.fixture(scope="module")
def toy() -> Checkpoint:
    return load_checkpoint(device="cpu")


def pixels_of(frames: np.ndarray, colour: str) -> np.ndarray:
    """Return (T, H, W) bool: which pixels have the colour."""
    return np.linalg.norm(frames.astype(float) - COLOURS[colour], axis=-1) < SEEN


@pytest.mark.parametrize("level", ["plain", "mixed"])
def test_a_seed_always_gives_the_same_video(level: str) -> None:
    first, again, other = (make_needle((1, seed), level, split="test") for seed in (3, 3, 4))
    assert np.array_equal(first.frames, again.frames) and questions_about(first) == questions_about(again)
    assert not np.array_equal(first.frames, other.frames)


def test_digits_of_the_test_set_are_not_in_the_training_set() -> None:
    seen, unseen = (
        {image.tobytes() for images in digit_images(split).values() for image in images} for split in ("train", "test")
    )
    assert len(unseen) > 450 and len(seen) > 1200 and not seen & unseen


@pytest.mark.parametrize("level", ["plain", "clutter", "mixed", "crowded", "camera", "cuts"])
@pytest.mark.parametrize("seed", range(2))
def test_the_answer_to_every_question_can_be_seen(level: str, seed: int) -> None:
    """The right answers are derived again from the pixels."""
    needle = make_needle((2, seed), level, split="test")
    truth = {(asked.kind, asked.question): asked.answer for asked in questions_about(needle)}
    shown = {}
    for colour in COLOURS:
        found = pixels_of(needle.frames, colour)
        if found.sum(axis=(1, 2)).max() >= 12:
            shown[colour] = found
    assert truth["count", "How many digits are there?"] == str(len(shown))
    starts = {colour: int(np.argmax(found.sum(axis=(1, 2)) >= 6)) for colour, found in shown.items()}
    if ("first", "Which colour comes first?") in truth:
        assert starts[truth["first", "Which colour comes first?"]] == min(starts.values())
    for colour, found in shown.items():
        which = "the digit" if len(shown) == 1 else f"the {colour} digit"
        rows, columns = np.nonzero(found.any(axis=0))
        down, right = (np.ptp(each) / 2 + each.min() > SIZE / 2 for each in (rows, columns))
        where = f"{'bottom' if down else 'top'} {'right' if right else 'left'}"
        assert truth.get(("where", f"Where is {which}?"), where) == where
        half = "first" if starts[colour] < needle.num_frames / 2 else "second"
        assert truth.get(("half", f"In which half is {which}?"), half) == half
    if len(shown) == 1:
        assert truth["colour", "Which colour is the digit?"] in shown


@pytest.mark.parametrize("level", ["plain", "cuts"])
@pytest.mark.parametrize("seed", range(4))
def test_questions_about_backgrounds_match_the_pixels(level: str, seed: int) -> None:
    needle = make_needle((3, seed), level, split="test")
    truth = {asked.kind: asked.answer for asked in questions_about(needle)}
    hues = np.array(list(BACKGROUNDS.values()), float)
    hues -= hues.mean(axis=1, keepdims=True)
    means = np.median(needle.frames.reshape(needle.num_frames, -1, 3), axis=1)
    means -= means.mean(axis=1, keepdims=True)
    names = [list(BACKGROUNDS)[int(np.argmax(hues @ mean / np.linalg.norm(hues, axis=1)))] for mean in means]
    if "background" in truth:
        assert truth["background"] == Counter(names).most_common(1)[0][0]
    if "scenes" in truth:
        assert truth["scenes"] == str(1 + sum(a != b for a, b in pairwise(names)))


def test_a_level_of_the_test_set_is_what_make_needle_makes_under_its_name() -> None:
    """A kind of stream may have the name of a level."""
    assert {name: ALL_LEVELS[name] for name in LEVELS} == LEVELS


@pytest.mark.parametrize("seed", range(4))
def test_a_burst_lies_in_one_frame(seed: int) -> None:
    needle = make_needle((2, seed), "burst", split="test")
    shown = [pixels_of(needle.frames, colour).sum(axis=(1, 2)) >= 12 for colour in COLOURS]
    shown = [frames for frames in shown if frames.any()]
    assert len(shown) == len(needle.events) and all(frames.sum() == 1 for frames in shown)
    assert len({int(np.argmax(frames)) for frames in shown}) == len(needle.scenes) == 1


def test_a_video_at_several_rates_is_asked_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fork of this process, which has threads, may wait for a lock that none of its own threads holds.
    monkeypatch.setattr(dataset, "ProcessPoolExecutor", ThreadPoolExecutor)
    path = dataset.write_dataset(tmp_path, 2, 8, levels=["still"], rates=(12, 30))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for fine, coarse in zip(lines[::2], lines[1::2], strict=True):
        assert (fine["crf"], coarse["crf"]) == (12, 30) and fine["question"] == coarse["question"]
        fine_file, coarse_file = tmp_path / fine["video"], tmp_path / coarse["video"]
        assert fine_file.stat().st_size > 2 * coarse_file.stat().st_size
        frames, others = (read_video(str(file), 8).frames.astype(float) for file in (fine_file, coarse_file))
        assert 0 < np.abs(frames - others).mean() < 10


def test_questions_without_a_clear_answer_are_not_asked() -> None:
    needle = make_needle((2, 0), "plain")
    tie = Needle("plain", needle.frames, needle.events, [("sand", 0), ("moss", 8)], None, None)
    assert "background" not in {asked.kind for asked in questions_about(tie)}
    apart = Needle("plain", needle.frames, needle.events, [("sand", 0), ("moss", 4)], None, None)
    assert {asked.kind: asked.answer for asked in questions_about(apart)}["background"] == "moss"


# -- the toy ----------------------------------------------------------------------------------------------------------


def answered(toy: Checkpoint, needle: Needle, question: str, **settings: Any) -> str:
    video = Video(needle.frames, np.arange(needle.num_frames), 4.0, needle.num_frames)
    answer = ask(video, question, toy.model, processor=toy.processor, max_new_tokens=4, **settings)
    return answer.strip()


@pytest.mark.slow
@pytest.mark.parametrize("name", TOYS)
def test_a_toy_answers_as_often_rightly_as_its_provenance_says(name: str) -> None:
    """The videos differ from those of the provenance, and `ask` replaces logits."""
    toy = load_checkpoint(f"{PREFIX}{name}", device="cpu")
    stated = json.loads((TOYS[name].folder / "provenance.json").read_text())["accuracy with all tokens"]["16"]
    levels = list(LEVELS)
    right: dict[str, list[bool]] = {}
    for number in range(12):
        needle = make_needle((8, number), levels[number % len(levels)], split="test")
        for asked in questions_about(needle):
            hit = answered(toy, needle, asked.question, retention_ratio=1.0) == asked.answer
            kind = asked.kind if asked.kind in stated else asked.kind.removeprefix("named ")
            right.setdefault(kind, []).append(hit)
    for kind, hits in right.items():
        expected, spread = len(hits) * stated[kind], 4 * (len(hits) * stated[kind] * (1 - stated[kind])) ** 0.5
        assert sum(hits) >= expected - spread - 2, (kind, sum(hits), len(hits), stated[kind])


@pytest.mark.parametrize("name", SEEN_FEW)
def test_a_toy_that_went_on_learning_has_the_tower_of_the_toy_that_its_provenance_names(name: str) -> None:
    after, before = TOYS[name].folder, TOYS[str(TOYS[name].trained_from)].folder
    stated = json.loads((after / "provenance.json").read_text())["sha256 of the weights before"]
    assert stated == hashlib.sha256((before / "model.safetensors").read_bytes()).hexdigest()
    how, models = ARCHITECTURES[before.name], [load_checkpoint(str(folder)).model for folder in (after, before)]
    towers, languages = ([part(model).state_dict() for model in models] for part in (how.tower, how.language))
    assert all(torch.equal(weights, towers[1][name]) for name, weights in towers[0].items())
    assert not any(torch.equal(weights, languages[1][name]) for name, weights in languages[0].items())


@pytest.mark.parametrize("clip", TOY.clips, ids=lambda clip: clip.path.stem)
def test_the_sample_clips_get_the_answers_that_the_demo_claims(toy: Checkpoint, clip: Any) -> None:
    video = read_video(str(clip.path), 16)

    def answer(**settings: Any) -> str:
        made = ask(video, clip.question, toy.model, processor=toy.processor, max_new_tokens=4, **settings)
        return made.strip()

    assert answer(retention_ratio=1.0) == answer(retention_ratio=0.25) == clip.answer
    assert answer(retention_ratio=0.25, compression_method="uniform_frames") != clip.answer


# -- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_is_asked_about_with_each_memory() -> None:
    """Ours knows what was shown at any time, and the last frames alone only what is shown now."""
    checkpoint = load_checkpoint(retention_ratio=1.0)
    row = streams.row_of(checkpoint, TOY.name, "cuts", 128, seed=0, number=0)
    assert {when for when, *_ in row["asked"]} == set(streams.WHEN)
    assert row["tokens"][streams.OURS] == streams.BUDGET and row["tokens"][streams.LAST_FOUR] == 100
    assert all(tokens <= streams.BUDGET for tokens in row["tokens"].values())
    found = {each["memory"]: each for each in streams.figures([row]) if each["kind"] == "usual"}
    past = [found[streams.LAST_FOUR][when] for when in ("recent", "middle", "far")]
    assert sum(each["difference"] for each in past) > 1.5
    assert found[streams.OURS]["now"]["accuracy"] == 1.0


# -- the tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOYS)
def test_all_results_are_of_the_model_that_ships_and_of_a_commit(name: str) -> None:
    weights = hashlib.sha256((TOYS[name].folder / "model.safetensors").read_bytes()).hexdigest()
    results = sorted((tables.RESULTS / name).glob("*.json"))
    assert results
    for path in results:
        certificate = json.loads(path.read_text())["birth_certificate"]
        assert certificate["model_sha256"] == weights, path.name
        assert certificate["vidcom2_dirty"] is False, path.name


@pytest.mark.parametrize("page", tables.PAGES)
def test_the_tables_in_the_pages_equal_the_result_files(page: str) -> None:
    text = (ROOT / page).read_text()
    assert tables_in(text, "needle") and filled(text, "needle", tables.blocks()) == text
