"""Answers requests with published repos, in Transformers and in vLLM's Transformers backend.

`test_without_the_plugin.py` runs this file in a process that cannot import `vidcom2`. Its arguments are a JSON file
with {name: {"folder", "overrides", "limits", "requests"}}; the file to write, which will hold for each name the number
of prompt tokens and the greedy answer of each request, or an error; and the names of the repos that also answer in
Transformers.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import vllm
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

FRAMES, HEIGHT, WIDTH, NEW = 8, 112, 140, 8


def pixels(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*shape, HEIGHT, WIDTH, 3), dtype=np.uint8)


def media(request: dict[str, Any], image: str, video: str) -> dict[str, Any]:
    found = {
        image: [Image.fromarray(pixels(100 + seed)) for seed in request["images"]],
        video: [pixels(seed, FRAMES) for seed in request["videos"]],
    }
    return {name: each for name, each in found.items() if each}


def in_transformers(folder: str, requests: list[dict[str, Any]]) -> list[Any]:
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=True).eval()
    answers = []
    for request in requests:
        given = media(request, "images", "videos") | request["settings"]
        inputs = processor(text=[request["prompt"]], return_tensors="pt", **given)
        with torch.no_grad():
            output = model.generate(**inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
        length = inputs["input_ids"].shape[1]
        answers.append([length, output[0, length:].tolist()])
    return answers


def in_vllm(
    folder: str, requests: list[dict[str, Any]], limits: dict[str, int], overrides: dict[str, Any]
) -> list[Any]:
    llm = vllm.LLM(
        model=folder,
        model_impl="transformers",
        trust_remote_code=True,
        hf_overrides=overrides,
        limit_mm_per_prompt=limits,
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=16,
        block_size=32,
        kv_cache_memory_bytes=2**26,
    )
    given = [
        {
            "prompt": request["prompt"],
            "multi_modal_data": media(request, "image", "video"),
            "mm_processor_kwargs": request["settings"],
        }
        for request in requests
    ]
    greedy = vllm.SamplingParams(temperature=0, max_tokens=NEW, min_tokens=NEW)
    outputs = llm.generate(given, greedy, use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()
    return [[len(output.prompt_token_ids), list(output.outputs[0].token_ids)] for output in outputs]


def main(asked: str, answered: str, *compared: str) -> None:
    cases = json.loads(Path(asked).read_text())
    # vLLM changes classes of Transformers, so these answers come first.
    found = {name: {"expected": in_transformers(cases[name]["folder"], cases[name]["requests"])} for name in compared}
    for name, case in cases.items():
        answers = found.setdefault(name, {})
        try:
            answers["served"] = in_vllm(**case)
        except Exception as error:
            answers["error"] = f"{type(error).__name__}: {error}"
        gc.collect()
    assert "vidcom2" not in sys.modules
    Path(answered).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
