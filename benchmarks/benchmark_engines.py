"""Measure rows per second of `vidcom2 run` with each of its engines.

    PYTHONPATH=src:. python benchmarks/benchmark_engines.py --engine transformers=PYTHON --engine vllm=PYTHON \
        --engine ray=PYTHON --rounds 2 --json engines.json

Each engine runs in the environment of its own interpreter. The engines take turns, so that other work on the machine
affects all of them alike. What counts is the time from the first rows of an output to its last, so that importing and
loading, which a huge file pays once, are left out. `--small` takes a random model that is larger than the toy.
"""

import json
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.benchmark_many import needle_requests
from vidcom2.checkpoints import tiny_checkpoint
from vidcom2.families import FAMILIES
from vidcom2.records.provenance import birth_certificate, cpu_name

BATCH = 4
SMALL = {"hidden_size": 256, "image_size": 168, "num_layers": 4}
OPTIONS = {
    "transformers": ["--device", "cpu"],
    "vllm": ["--engine-args", '{"enforce_eager": true, "max_model_len": 2048, "kv_cache_memory_bytes": 67108864}'],
    "ray": ["--device", "cpu", "--ray-workers", "2", "--rows-per-part", str(BATCH)],
}


def written(output: Path) -> int:
    """Return how many rows an output has, which is a file or a folder of parts."""
    files = [output] if output.is_file() else output.glob("part-*")
    return sum(file.read_bytes().count(b"\n") for file in files)


def rows_per_second(command: list[str], output: Path) -> float:
    """Run a command, and return the rate at which its output grows after the first rows."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    counts: list[tuple[float, int]] = []
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, "-o", str(output)], env=environment, stdout=log, stderr=log)
        while process.poll() is None:
            now = written(output)
            if now and (not counts or now > counts[-1][1]):
                counts.append((time.perf_counter(), now))
            time.sleep(0.05)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{command} ended with {process.returncode}: {log.read()[-3000:].decode()}")
    (first, before), (last, after) = counts[0], counts[-1]
    return (after - before) / (last - first)


def main(
    engine: Annotated[list[str], typer.Option(help="An engine, and the interpreter that runs it: ray=PYTHON.")],
    videos: Annotated[int, typer.Option(min=8, help="Number of generated clips, one request each.")] = 48,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each engine.")] = 2,
    small: Annotated[bool, typer.Option("--small", help="A random model instead of the toy.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the figures and their origin.")] = None,
) -> None:
    """Run the engines in turns."""
    interpreters = dict(each.split("=", 1) for each in engine)
    model = tiny_checkpoint(FAMILIES["llava_onevision"], **SMALL) if small else nullcontext("toy:llava_onevision")
    found: dict[str, list[float]] = {name: [] for name in interpreters}
    with tempfile.TemporaryDirectory() as made, model as name_of_model:
        home = Path(made)
        lines = [{"id": str(i), **each} for i, each in enumerate(needle_requests(home, videos))]
        (home / "requests.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
        given = ["--model", name_of_model, "--requests", str(home / "requests.jsonl"), "--batch-size", str(BATCH)]
        given += [
            "--num-frames",
            "16",
            "--max-new-tokens",
            "16",
            "--compression-rounding",
            "exact",
            "--dtype",
            "float32",
        ]
        for turn in range(rounds):
            for name in interpreters if turn % 2 else reversed(interpreters):
                command = [interpreters[name], "-m", "vidcom2", "run", "--engine", name, *given, *OPTIONS[name]]
                found[name].append(rows_per_second(command, home / f"{name}{turn}.jsonl"))
                print(f"{name:14} {found[name][-1]:7.2f} rows/s", flush=True)
    if json_file is not None:
        certificate = birth_certificate(
            "a small random LLaVA-OneVision" if small else "a toy LLaVA-OneVision",
            "benchmarks/benchmark_engines.py",
            cpu=cpu_name(),
            cpu_cores=os.cpu_count(),
            load_average=os.getloadavg()[0],
            videos=videos,
            rounds=rounds,
        )
        rows = [
            {"engine": name, "rows_per_second": statistics.median(each), "turns": each} for name, each in found.items()
        ]
        json_file.write_text(json.dumps({"birth_certificate": certificate, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
