"""The plugin in vLLM itself, in an environment of its own: `benchmarks/vllm_environment.sh` makes it and runs this.

Greedy tokens in float32 are compared with those of the Transformers class, from the same repo.
"""

import base64
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_clips import write_clip

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the tests look at the engine in this process
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from transformers import ProcessorMixin  # noqa: E402
from transformers.utils import logging  # noqa: E402

from vidcom2 import VidCom2LlavaOnevisionForConditionalGeneration  # noqa: E402
from vidcom2.tiny import tiny_llava_onevision  # noqa: E402

logging.disable_progress_bar()
FRAMES, PER_FRAME, NEW = 8, 9, 8
RATIO = 0.25


def save_repo(folder: Path, **settings: Any) -> ProcessorMixin:
    """A repo as `publish` makes it, whose random weights answer differently to different videos."""
    stock, processor = tiny_llava_onevision(image_size=84, hidden_size=256)  # vLLM's attention needs heads of 64
    with torch.no_grad():
        for parameter in stock.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    stock.save_pretrained(folder)
    VidCom2LlavaOnevisionForConditionalGeneration.from_pretrained(folder, **settings).save_pretrained(folder)
    processor.save_pretrained(folder)
    return processor


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repo")


@pytest.fixture(scope="module")
def processor(folder: Path) -> ProcessorMixin:
    return save_repo(folder, retention_ratio=RATIO, compression_rounding="exact")


@pytest.fixture(scope="module")
def model(folder: Path, processor: ProcessorMixin) -> torch.nn.Module:
    return VidCom2LlavaOnevisionForConditionalGeneration.from_pretrained(folder).eval()


def engine(folder: Path, **arguments: Any) -> Any:
    settings = {"dtype": "float32", "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 16}
    limits = {"limit_mm_per_prompt": {"video": 2, "image": 2}}
    return vllm.LLM(model=str(folder), trust_remote_code=True, **settings, **limits, **arguments)


@pytest.fixture(scope="module")
def llm(folder: Path, processor: ProcessorMixin) -> Iterator[Any]:
    yield engine(folder)


def video(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (FRAMES, 84, 84, 3), dtype=np.uint8)


def image(seed: int) -> np.ndarray:
    return np.random.default_rng(100 + seed).integers(0, 256, (84, 84, 3), dtype=np.uint8)


def prompt(processor: Any, text: str, videos: int = 1, images: int = 0) -> str:
    content = [{"type": "image"}] * images + [{"type": "video"}] * videos + [{"type": "text", "text": text}]
    return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)


def request(
    processor: Any,
    text: str = "What happens?",
    videos: tuple[int, ...] = (0,),
    images: tuple[int, ...] = (),
    ratio: float | None = None,
) -> dict[str, Any]:
    """For vLLM, and below for the Transformers class."""
    from PIL import Image

    media: dict[str, Any] = {}
    if videos:
        media["video"] = [video(seed) for seed in videos]
    if images:
        media["image"] = [Image.fromarray(image(seed)) for seed in images]
    arguments = {} if ratio is None else {"mm_processor_kwargs": {"retention_ratio": ratio}}
    text = prompt(processor, text, len(videos), len(images))
    return {"prompt": text, **({"multi_modal_data": media} if media else {}), **arguments}


def answers(llm: Any, *requests: dict[str, Any]) -> list[Any]:
    greedy = vllm.SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    return llm.generate(list(requests), greedy, use_tqdm=False)


def tokens(output: Any) -> list[int]:
    return list(output.outputs[0].token_ids)


@pytest.fixture(scope="module")
def by_transformers(model: Any, processor: Any) -> Callable[[dict[str, Any]], list[int]]:
    def answer(request: dict[str, Any]) -> list[int]:
        media = request.get("multi_modal_data", {})
        named = {f"{name}s": value for name, value in media.items()}
        inputs = processor(text=[request["prompt"]], **named, return_tensors="pt")
        out = model.generate(
            **inputs, **request.get("mm_processor_kwargs", {}), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False
        )
        return out[0, inputs["input_ids"].shape[1] :].tolist()

    return answer


REQUESTS: dict[str, dict[str, Any]] = {
    "one video": {},
    "two videos": {"videos": (0, 1)},
    "image and video": {"images": (0,)},
    "image": {"videos": (), "images": (1,)},
    "text": {"videos": ()},
    "half of a video": {"ratio": 0.5},
    "a whole video": {"ratio": 1.0},
    "a tenth of two": {"videos": (2, 3), "ratio": 0.1},
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_greedy_tokens_are_those_of_the_transformers_class(
    llm: Any, processor: Any, by_transformers: Callable, kind: str
) -> None:
    asked = request(processor, **REQUESTS[kind])
    (output,) = answers(llm, asked)
    assert tokens(output) == by_transformers(asked)


def test_the_prompt_has_as_many_tokens_as_are_left(llm: Any, processor: Any) -> None:
    text = len(processor.tokenizer(prompt(processor, "What happens?")).input_ids) - 1
    for ratio in (None, 0.1, 0.25, 0.5, 1.0):
        (output,) = answers(llm, request(processor, ratio=ratio))
        kept = max(FRAMES, int((ratio or RATIO) * FRAMES * PER_FRAME))
        assert len(output.prompt_token_ids) == text + kept + 1


def test_sixteen_mixed_requests_at_once_equal_one_by_one(llm: Any, processor: Any, by_transformers: Callable) -> None:
    kinds = list(REQUESTS.values()) * 2
    mixed = [request(processor, text=f"What is number {i}?", **kind) for i, kind in enumerate(kinds)]
    together = [tokens(output) for output in answers(llm, *mixed)]
    assert together == [tokens(answers(llm, each)[0]) for each in mixed]
    assert together == [by_transformers(each) for each in mixed]
    assert len({tuple(each) for each in together}) > 8


def test_a_video_asked_again_is_encoded_once_and_for_another_ratio_anew(
    llm: Any, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vidcom2.vllm_plugin.llava_onevision import VidCom2LlavaOnevisionForVllm

    encoded = []
    whole = VidCom2LlavaOnevisionForVllm._process_video_pixels

    def count(self: Any, inputs: Any) -> Any:
        encoded.append(len(inputs["pixel_values_videos"]))
        return whole(self, inputs)

    monkeypatch.setattr(VidCom2LlavaOnevisionForVllm, "_process_video_pixels", count)
    first = [tokens(answers(llm, request(processor, "First?", (11,), ratio=ratio))[0]) for ratio in (0.3, 0.6)]
    assert encoded == [1, 1]
    second = [tokens(answers(llm, request(processor, "First?", (11,), ratio=ratio))[0]) for ratio in (0.3, 0.6)]
    other = answers(llm, request(processor, "And the second question?", (11,), ratio=0.3))
    assert encoded == [1, 1] and second == first and first[0] != first[1] and tokens(other[0])


def test_a_bad_ratio_of_a_request_is_refused_and_the_next_is_answered(
    llm: Any, processor: Any, by_transformers: Callable
) -> None:
    for ratio in (0, 1.5, "much"):
        with pytest.raises(Exception, match="`retention_ratio` is"):
            answers(llm, request(processor, ratio=ratio))
    asked = request(processor)
    assert tokens(answers(llm, asked)[0]) == by_transformers(asked)


# -- engines of their own: those before are not of use any more -------------------------------------------------------


def test_without_prefix_caching_the_tokens_are_the_same(
    folder: Path, processor: Any, by_transformers: Callable
) -> None:
    plain = engine(folder, enable_prefix_caching=False, mm_processor_cache_gb=0)
    for kind in ("one video", "a tenth of two"):
        asked = request(processor, **REQUESTS[kind])
        assert [tokens(output) for output in answers(plain, asked, asked)] == [by_transformers(asked)] * 2


def test_overrides_change_the_repos_settings(folder: Path, model: Any, processor: Any) -> None:
    settings = {"retention_ratio": 0.15, "compression_scoring": "released"}
    changed, asked = engine(folder, hf_overrides=settings), request(processor)
    inputs = processor(text=[asked["prompt"]], videos=asked["multi_modal_data"]["video"], return_tensors="pt")
    other = VidCom2LlavaOnevisionForConditionalGeneration.from_pretrained(folder, **settings).eval()
    greedy = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    expected = other.generate(**inputs, **greedy)[0, inputs["input_ids"].shape[1] :].tolist()
    assert tokens(answers(changed, asked)[0]) == expected


@pytest.mark.parametrize("method", ["uniform_frames", "dycoke", "evs", "random"])
def test_other_methods_are_served(tmp_path: Path, method: str) -> None:
    rounding = {"compression_rounding": "exact"} if method == "random" else {}
    processor = save_repo(tmp_path, compression_method=method, retention_ratio=0.34, **rounding)
    (output,) = answers(engine(tmp_path), request(processor))
    text = len(processor.tokenizer(prompt(processor, "What happens?")).input_ids) - 1
    assert len(output.prompt_token_ids) == text + int(0.34 * FRAMES * PER_FRAME) + 1
    inputs = processor(text=[request(processor)["prompt"]], videos=[video(0)], return_tensors="pt")
    model = VidCom2LlavaOnevisionForConditionalGeneration.from_pretrained(tmp_path).eval()
    greedy = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    assert tokens(output) == model.generate(**inputs, **greedy)[0, inputs["input_ids"].shape[1] :].tolist()


def test_a_stock_repo_is_served_by_vllms_own_class(tmp_path: Path) -> None:
    stock, processor = tiny_llava_onevision(image_size=84, hidden_size=256)
    stock.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    script = f"""
import os
from vllm import ModelRegistry
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.model_executor.models.llava_onevision import LlavaOnevisionForConditionalGeneration as Own
found, _ = ModelRegistry.resolve_model_cls(["LlavaOnevisionForConditionalGeneration"], __import__("vllm").EngineArgs(
    model={str(tmp_path)!r}, max_model_len=1024).create_model_config())
assert found is Own, found
print("vLLM's own")
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "vLLM's own" in result.stdout, result.stderr[-3000:]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"compression_rounding": "ceil"}, "`compression_rounding` is 'ceil', with which .* Set it to \"exact\""),
        ({"compression_positions": "original"}, "`compression_positions` is 'original', but vLLM"),
        ({"vision_update_ratio": 0.5}, "`vision_update_ratio` is 0.5, but vLLM's"),
        ({"retention_ratio": 1.5}, "`retention_ratio` is 1.5"),
    ],
)
def test_settings_that_the_engine_cannot_keep_stop_it_at_the_start(
    folder: Path, processor: Any, settings: dict[str, Any], reason: str
) -> None:
    script = f"from vllm import LLM; LLM(model={str(folder)!r}, trust_remote_code=True, hf_overrides={settings!r})"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode != 0 and re.search(reason, result.stderr), result.stderr[-3000:]


# -- the server -------------------------------------------------------------------------------------------------------


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    sent = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(sent, timeout=120) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        return {"error": error.code, "reason": error.read().decode()}


@pytest.fixture(scope="module")
def server(folder: Path, processor: ProcessorMixin) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # What `vllm serve` runs; the command itself asks for a distribution called vllm, and here it is vllm-cpu.
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(folder),
        "--trust-remote-code",
    ]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024"]
    command += ["--trust-request-mm-kwargs"]  # a ratio with each request
    log = folder.with_name("server.log")
    with log.open("w") as written:
        process = subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT)
    try:
        for _ in range(240):
            time.sleep(0.5)
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                continue
        else:
            raise AssertionError(log.read_text()[-3000:])
        yield f"http://127.0.0.1:{port}/v1/chat/completions"
    finally:
        process.terminate()
        process.wait(30)


def test_the_server_takes_a_ratio_with_each_request(server: str, processor: Any, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", [i / 2 for i in range(FRAMES)])
    address = "data:video/mp4;base64," + base64.b64encode(clip.read_bytes()).decode()
    content = [{"type": "video_url", "video_url": {"url": address}}, {"type": "text", "text": "What happens?"}]
    text = len(processor.tokenizer(prompt(processor, "What happens?")).input_ids) - 1
    name = served_model(server)
    answered = []
    for ratio in (None, 0.5, 1.0):
        body = {"model": name, "messages": [{"role": "user", "content": content}], "max_tokens": NEW, "temperature": 0}
        if ratio is not None:
            body["mm_processor_kwargs"] = {"retention_ratio": ratio}
        reply = post(server, body)
        kept = int((ratio or RATIO) * FRAMES * PER_FRAME)
        assert "error" not in reply, reply
        assert reply["usage"]["prompt_tokens"] == text + kept + 1
        answered.append(reply["choices"][0]["message"]["content"])
    assert len(set(answered)) > 1
    refused = post(server, body | {"mm_processor_kwargs": {"retention_ratio": 2}})
    assert refused["error"] == 400 and "`retention_ratio` is 2" in refused["reason"]


def served_model(server: str) -> str:
    with urllib.request.urlopen(server.replace("chat/completions", "models"), timeout=30) as response:
        return json.load(response)["data"][0]["id"]
