"""Count how often the host waits for the device: in `compress`, and in `forward` with and without compression.

    PYTHONPATH=src:. python -m benchmarks.count_device_reads --json reads.json

It needs CUDA, whose sync debug mode reports each wait. The model is small and has random weights, because the number of
waits does not depend on its size.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import vidcom2
from vidcom2.answering.prompting import prepare_inputs
from vidcom2.measuring.clip import make_video
from vidcom2.measuring.models import random_checkpoint
from vidcom2.measuring.sizes import SMALL, size_named
from vidcom2.records.provenance import birth_certificate

SHAPE = (32, 196, 896)
NUM_FRAMES = 32


@contextmanager
def counted_waits() -> Iterator[list[str]]:
    """Yield a list, which is filled at the end with the places, FILE:LINE, at which the host waited for the device."""
    places: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode("default")
        places += [f"{Path(each.filename).name}:{each.lineno}" for each in caught if "synchroniz" in str(each.message)]


@torch.no_grad()
def rows() -> Iterator[dict[str, Any]]:
    tokens = torch.randn(SHAPE, device="cuda")
    for settings in (
        {},
        {"compression_rounding": "exact"},
        {"compression_scoring": "released"},
        {"compression_method": "random"},
        {"compression_method": "uniform_frames"},
        {"compression_method": "dycoke"},
        {"compression_method": "evs"},
        {"compression_method": "vcast"},
    ):
        vidcom2.compress(tokens, 0.25, **settings)  # the first call sets things up, and does not count
        with counted_waits() as places:
            vidcom2.compress(tokens, 0.25, **settings)
        yield {
            "what": "compress",
            "settings": str(settings or "default"),
            "waits": len(places),
            "at": {"places": places},
        }

    checkpoint = random_checkpoint(SMALL, size_named(SMALL), torch.device("cuda"), torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        make_video(Path(folder, "video.mp4"), 320, 180, NUM_FRAMES)
        video = vidcom2.read_video(Path(folder, "video.mp4"), NUM_FRAMES)
    inputs = prepare_inputs(checkpoint.processor, "What happens?", video, checkpoint.model)
    for ratio in (1.0, 0.25):
        checkpoint.model(**inputs, retention_ratio=ratio, logits_to_keep=1)
        with counted_waits() as places:
            checkpoint.model(**inputs, retention_ratio=ratio, logits_to_keep=1)
        yield {"what": "forward", "settings": f"R = {ratio:g}", "waits": len(places), "at": {"places": places}}


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows and their origin.")] = None,
) -> None:
    """Count the host's waits for the device."""
    if not torch.cuda.is_available():
        print("This machine has no CUDA device, and only CUDA reports waits. Run it on a GPU.", file=sys.stderr)
        raise typer.Exit(2)
    found = []
    for row in rows():
        print(f"{row['what']:10} {row['settings']:45} {row['waits']:4}  {', '.join(row['at']['places'])}")
        found.append(row)
    if json_file is not None:
        certificate = birth_certificate(
            SMALL, "benchmarks/count_device_reads.py", device=torch.cuda.get_device_name(), shape=SHAPE
        )
        json_file.write_text(json.dumps({"birth_certificate": certificate, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
