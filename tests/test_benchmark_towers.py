"""The benchmark of the vision towers: its clips show what their names say, and its figures are those of the classes."""

import numpy as np

from benchmarks.benchmark_towers import CONTENDERS, measure, with_few_layers
from benchmarks.clips import CLIPS, decoded, encoded_clip
from vidcom2.measuring.sizes import ModelSize, size_named

SMALL = size_named("llava-onevision-small")


def test_clips_repeat_as_much_as_their_names_say() -> None:
    """Counted in squares of 28 pixels that change by less than noise from one frame to the next."""
    shares = {}
    for kind in CLIPS:
        frames = np.stack(decoded(encoded_clip(kind, 8, 224, 18))).astype(float) / 127.5
        squares = frames.reshape(8, 8, 28, 8, 28, 3)
        changes = np.sqrt(((squares[1:] - squares[:-1]) ** 2).mean(axis=(2, 4, 5)))
        shares[kind] = (changes < 0.05).mean()
    assert shares["lecture"] > 0.8 and shares["fixed camera"] > 0.5
    assert shares["cuts"] < 0.8 and shares["handheld"] < 0.1


def test_towers_keep_their_width_and_lose_layers() -> None:
    size = with_few_layers(size_named("qwen2.5-vl-7b"), 2)
    assert size.vision["depth"] == 2 and size.vision["fullatt_block_indexes"] == [1]
    assert size.vision["hidden_size"] == 1280 and size.text["hidden_size"] == 3584


def test_a_row_has_the_share_that_is_computed_and_the_error(monkeypatch) -> None:
    def small(_: str) -> ModelSize:
        return SMALL

    monkeypatch.setattr("benchmarks.benchmark_towers.size_named", small)
    rows = measure("small", [("lecture", 23)], num_frames=4, side=64, layers=1, repeats=1, device="cpu")
    assert [row.settings for row in rows] == CONTENDERS
    full, exact, *_ = rows
    assert (full.computed, full.error, full.speedup) == (None, 0.0, (1.0, 1.0, 1.0))
    tolerant = next(row for row in rows if row.settings.get("vision_tolerance") == 0.05)
    assert exact.computed is not None and tolerant.computed is not None
    assert 0.25 < tolerant.computed < exact.computed <= 1.0 and tolerant.error > 0
