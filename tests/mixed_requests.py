"""Requests about a few clips that differ in all that a request may say, for tests that compare engines."""

from pathlib import Path
from typing import Any

import numpy as np
from make_clips import write_clip
from transformers import AutoProcessor

OWN: list[dict[str, Any]] = [
    {},
    {"retention_ratio": 0.5, "chat_template_kwargs": {"mood": "angry"}},
    {"retention_ratio": 1.0},
    {"compression_method": "evs", "max_new_tokens": 2},
    {"compression_method": "uniform_frames", "retention_ratio": 0.5},
    {"compression_scoring": "released", "num_frames": 4},
    {"compression_method": "vcast", "retention_ratio": 0.4},
    {"compression_window": 3, "retention_ratio": 0.1, "mine": [1, None, "é"]},
    {"compression_method": "random", "num_frames": 3},
]
BAD: list[dict[str, Any]] = [
    {"video": "missing.mp4"},
    {"video": "undecodable.mp4"},
    {"retention_ratio": 2.0},
    {"prompt": " "},
    {"prompt": "What is in <image> or <|image_pad|>?"},
    {"compression_method": "random", "compression_scoring": "released"},
]


def read_mood(folder: Path) -> None:
    """Let the chat template of a saved checkpoint read what some of the requests give it."""
    processor = AutoProcessor.from_pretrained(folder)
    processor.chat_template = "{% if mood %}{{ mood }}: {% endif %}" + processor.chat_template
    processor.save_pretrained(folder)


def mixed_requests(folder: Path, count: int = 64) -> list[dict[str, Any]]:
    """Write four clips into a folder, and return requests about them, of which those in `BAD` cannot be answered."""
    (folder / "undecodable.mp4").write_bytes(b"This is no video." * 100)
    for i in range(4):
        picture = np.random.default_rng(i).integers(0, 256, (64, 96, 3), dtype=np.uint8)
        write_clip(folder / f"{i}.mp4", np.arange(5 + i) / 5, picture=lambda n, p=picture: np.roll(p, 9 * n, axis=1))
    own = [OWN[i % len(OWN)] for i in range(count - len(BAD))] + BAD
    return [
        {"id": f"r{i}", "video": f"{i % 4}.mp4", "prompt": "What happens" + " now" * (i % 6) + "?", **more}
        for i, more in enumerate(own)
    ]
