"""The OpenAI server over HTTP, with a model that two workers share."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import CASES_BY_NAME, FRAMES, KEPT, NEW, RATIO, Served
from make_clips import write_clip

from benchmarks.vllm_server import vllm_server

MOST = 500  # what these servers accept as `max_video_tokens`; the clip has fewer tokens


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    sent = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(sent, timeout=120) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        return {"error": error.code, "reason": error.read().decode()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Served]]:
    folder = tmp_path_factory.mktemp("repo")
    served = Served.saved(folder, CASES_BY_NAME["qwen2_5_vl"], **KEPT)
    memory = ("--kv-cache-memory-bytes", str(2**26), "--max-model-len", "1024")
    # Two workers on a machine with one memory node must be told their cores.
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    bounds = ("--hf-overrides", json.dumps({"request_min_ratio": 0.05, "request_max_video_tokens": MOST}))
    flags = ("--tensor-parallel-size", "2", *memory, *bounds, "--dtype", "float32", "--enforce-eager")
    with vllm_server(folder, *flags, environment=environment) as address:
        yield f"{address}/v1/", served


def test_the_server_takes_settings_with_each_request(server: tuple[str, Served], tmp_path: Path) -> None:
    url, served = server
    clip = write_clip(tmp_path / "clip.mp4", [i / 2 for i in range(FRAMES)])
    address = "data:video/mp4;base64," + base64.b64encode(clip.read_bytes()).decode()
    content = [{"type": "video_url", "video_url": {"url": address}}, {"type": "text", "text": "What happens?"}]
    text = len(served.processor.tokenizer(served.prompt("What happens?")).input_ids) - 1
    with urllib.request.urlopen(url + "models", timeout=30) as response:
        name = json.load(response)["data"][0]["id"]
    counts, answered = [], []

    def first_token(reply: dict[str, Any]) -> float:
        return reply["choices"][0]["logprobs"]["content"][0]["logprob"]

    body = {"model": name, "messages": [{"role": "user", "content": content}], "temperature": 0}
    body |= {"max_tokens": NEW, "min_tokens": NEW, "return_token_ids": True, "logprobs": True}

    def ask(**settings: Any) -> dict[str, Any]:
        return post(url + "chat/completions", body | ({"mm_processor_kwargs": settings} if settings else {}))

    for settings in ({}, {"retention_ratio": 0.5}, {"retention_ratio": 1.0}):
        reply = ask(**settings)
        assert "error" not in reply, reply
        counts.append(reply["usage"]["prompt_tokens"] - text - served.case.row.structure_tokens)
        answered.append(tuple(reply["choices"][0]["token_ids"]))
    assert counts == [int(counts[2] * RATIO), counts[2] // 2, counts[2]]
    assert len(set(answered)) > 1
    halves = [ask(compression_method=method, retention_ratio=0.5) for method in ("vidcom2", "evs", "uniform_frames")]
    assert {each["usage"]["prompt_tokens"] for each in halves} == {reply["usage"]["prompt_tokens"] - counts[2] // 2}
    assert len({first_token(each) for each in halves}) == 3
    budget = ask(retention_ratio=1.0, max_video_tokens=20)["usage"]["prompt_tokens"]
    assert reply["usage"]["prompt_tokens"] - budget == counts[2] - 20
    for settings, reason in (
        ({"retention_ratio": 2}, "`retention_ratio` is 2"),
        ({"retention_ratio": 0.04}, "`retention_ratio` is 0.04"),
        ({"max_video_tokens": MOST + 1}, "`max_video_tokens` is 501"),
        ({"compression_rounding": "ceil"}, "`compression_rounding` is 'ceil'"),
        ({"retention_rate": 0.5}, "`retention_rate`"),
    ):
        refused = ask(**settings)
        assert refused["error"] == 400 and reason in refused["reason"]
    assert tuple(ask()["choices"][0]["token_ids"]) == answered[0]


def test_a_text_prompt_gets_the_answer_of_the_transformers_class(server: tuple[str, Served]) -> None:
    """The prompt is text alone, because frames can only be sent through a lossy codec."""
    url, served = server
    with urllib.request.urlopen(url + "models", timeout=30) as response:
        name = json.load(response)["data"][0]["id"]
    request = served.request(videos=())
    body = {"model": name, "prompt": request["prompt"], "max_tokens": NEW, "temperature": 0, "min_tokens": NEW}
    reply = post(url + "completions", body | {"return_token_ids": True})
    assert reply["choices"][0]["token_ids"] == served.expected(request)[0]
