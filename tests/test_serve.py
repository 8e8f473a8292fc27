"""`transformers serve`, in a separate process, answers chats about videos with the code that lies beside the weights.

A recorder in the server's process writes down what really reaches the language model. The answers and the `usage` of
the response alone would not tell a compressed prompt from a full one.
"""

import json
import os
import re
import shutil
import string
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from conftest import Family, change_json
from ffmpeg_libraries import ffmpeg_environment, write_clip
from models import CASES_THAT_LOAD, RETENTION_RATIO, ModelCase
from transformers.utils.import_utils import is_serve_available

from vidcom2.loading.processors import of_whole_prompts, shorten

pytestmark = [
    pytest.mark.slow,  # a server starts in a quarter of a minute
    pytest.mark.skipif(not is_serve_available(), reason="needs `pip install transformers[serving]`"),
]
pytest.importorskip("torchcodec", reason="`transformers serve` decodes videos with torchcodec")

FILE_FRAMES, FPS, NUM_FRAMES, NEW_TOKENS = 16, 8, 8, 12
QUESTION = "What happens?"
START_SECONDS, ANSWER_SECONDS = 120, 120

# Python imports a module of this name at its start.
RECORDER = """
import json, os, sys
from torch.nn.modules.module import register_module_forward_pre_hook

def record(module, arguments):
    name = type(module).__name__
    if name.endswith("ForConditionalGeneration"):
        record.code = type(module).__module__
    elif name.endswith(("DecoderLayer", "NemotronHBlock")) and arguments[0].shape[1] > 1:
        names = ("linear_attn", "conv", "self_attn", "mixer")
        mixer = next(getattr(module, name) for name in names if hasattr(module, name))
        if getattr(mixer, "layer_idx", 1) > 0:
            return
        entry = {"length": arguments[0].shape[1], "code": record.code, "package": "vidcom2" in sys.modules}
        with open(os.environ["PREFILL_RECORD"], "a") as file:
            print(json.dumps(entry), file=file)

register_module_forward_pre_hook(record)
"""

DECODE = """
import sys, numpy
from torchcodec.decoders import VideoDecoder
numpy.save(sys.argv[2], VideoDecoder(sys.argv[1])[:].numpy())
"""


# -- the video --------------------------------------------------------------------------------------------------------


@dataclass
class Clip:
    """A video file, and what torchcodec decodes from it."""

    path: Path
    frames: np.ndarray  # (num_frames, 3, height, width) uint8


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    try:
        return dict(os.environ) | ffmpeg_environment(tmp_path_factory.mktemp("ffmpeg") / "lib")
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def clip(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Clip:
    folder = tmp_path_factory.mktemp("clip")
    path, decoded = folder / "clip.mp4", folder / "decoded.npy"
    write_clip(path, FILE_FRAMES, FPS)
    command = [sys.executable, "-c", DECODE, str(path), str(decoded)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_SECONDS)
    assert result.returncode == 0, result.stderr[-3000:]

    return Clip(path, np.load(decoded))


# -- the models -------------------------------------------------------------------------------------------------------


def published_folder(case: ModelCase, folder: Path) -> Family:
    """Make a tiny repo like those on the Hub: weights, processor, and beside them the code that `auto_map` names."""
    stock, processor = case.build(**case.build_arguments)
    with torch.no_grad():
        for parameter in stock.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2)  # otherwise random weights give nearly the same answer to any video
    stock.save_pretrained(folder)
    model = case.model_class.from_pretrained(folder, retention_ratio=RETENTION_RATIO)
    model.save_pretrained(folder)
    if getattr(processor.video_processor, "fps", None) is not None:
        # The server asks for 32 frames. Qwen3-VL's processor refuses that beside its own rate, in the stock class too.
        # docs/limits.md says what to set.
        processor.video_processor.fps = None
    shorten(processor, model.config)
    processor.save_pretrained(folder)
    return Family(case, folder, stock, processor)


EACH_SERVED = [
    pytest.param(case, id=case.name)
    for case in CASES_THAT_LOAD
    # GLM's processors sample frames by a rate that checkpoints bring, and the tiny ones do not. The tiny InternVL gives
    # one answer to all, if it may say letters alone.
    if not case.keeps_sizes and not case.frames_are_images
]


@pytest.fixture(scope="module", params=EACH_SERVED)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return published_folder(request.param, tmp_path_factory.mktemp(f"published-{request.param.name}"))


def other_tokens_than_letters(family: Family) -> list[int]:
    """Return tokens without letters. Bytes that are no text look different in a stream and in one piece."""
    tokenizer = family.processor.tokenizer
    letters = set(tokenizer.convert_tokens_to_ids(list(string.ascii_letters)))
    return [token for token in range(len(tokenizer)) if token not in letters]


@dataclass
class Expected:
    """The results of the package's own class for the same frames, in this process."""

    answer: str
    uncompressed_answer: str
    full_length: int
    short_length: int


@pytest.fixture(scope="module")
def expected(published: Family, clip: Clip) -> Expected:
    asked: dict[str, Any] = {
        "text": [published.prompt(QUESTION, videos=1)],
        "videos": [clip.frames],
        "video_metadata": [{"fps": float(FPS), "total_num_frames": FILE_FRAMES, "duration": FILE_FRAMES / FPS}],
        "num_frames": NUM_FRAMES,
        "do_sample_frames": True,
        "return_tensors": "pt",
    }
    inputs, whole = published.processor(**asked), of_whole_prompts(published.processor)(**asked)
    full_length, short_length = (each["input_ids"].shape[1] for each in (whole, inputs))
    bias = {(token,): -100.0 for token in other_tokens_than_letters(published)}

    def answer(model: torch.nn.Module, inputs: Any) -> str:
        tokens = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False, sequence_bias=bias)
        return published.processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    answers = answer(published.model, inputs), answer(published.uncompressing, whole)
    return Expected(*answers, full_length, short_length)


# -- the server -------------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """A running `transformers serve`."""

    url: str
    record: Path
    log: Path
    read: int = field(default=0, init=False)

    def request(self, family: Family, video: str | Path, **fields: Any) -> dict[str, Any]:
        """Make a chat about a video in the OpenAI format, to be answered greedily and in letters."""
        content = [
            {"type": "video_url", "video_url": {"url": str(video)}},
            {"type": "text", "text": QUESTION},
        ]
        return {
            "model": str(family.folder),
            "messages": [{"role": "user", "content": content}],
            "chat_template_kwargs": {"num_frames": NUM_FRAMES},
            "temperature": 0,
            "max_tokens": NEW_TOKENS,
            "logit_bias": {str(token): -100.0 for token in other_tokens_than_letters(family)},
        } | fields

    def answer(self, family: Family, video: str | Path) -> dict[str, Any]:
        """Ask for the response in one piece."""
        with httpx.Client(trust_env=False, timeout=ANSWER_SECONDS) as client:
            response = client.post(f"{self.url}/v1/chat/completions", json=self.request(family, video))
        assert response.status_code == 200, self.trouble(response.text)
        return response.json()

    def stream(self, family: Family, video: str | Path) -> list[dict[str, Any]]:
        """Ask for a streamed response, and return its chunks."""
        request = self.request(family, video, stream=True)
        with (
            httpx.Client(trust_env=False, timeout=ANSWER_SECONDS) as client,
            client.stream("POST", f"{self.url}/v1/chat/completions", json=request) as response,
        ):
            lines = [line for line in response.iter_lines() if line]
        assert response.status_code == 200, self.trouble("\n".join(lines))
        assert response.headers["content-type"].startswith("text/event-stream")
        assert all(line.startswith("data: ") for line in lines)
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    def trouble(self, response: str) -> str:
        """Describe a failed request. The server logs the error only after it has responded."""
        time.sleep(1)
        return f"{response}\n{self.log.read_text()[-4000:]}"

    def prefills(self) -> list[dict[str, Any]]:
        """Return the prompts that reached the language model since the last call, and whose code ran them."""
        lines = self.record.read_text().splitlines()
        new, self.read = lines[self.read :], len(lines)
        return [json.loads(line) for line in new]


@pytest.fixture(scope="module")
def server(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    log, record, recorder = folder / "log.txt", folder / "record.jsonl", folder / "recorder"
    record.touch()
    recorder.mkdir()
    (recorder / "sitecustomize.py").write_text(RECORDER)
    own = {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "home"),
        "HF_MODULES_CACHE": str(folder / "modules"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": str(recorder),
        "PREFILL_RECORD": str(record),
    }
    command = [sys.executable, str(Path(sysconfig.get_path("scripts")) / "transformers"), "serve"]
    options = ["--trust-remote-code", "--host", "127.0.0.1", "--port", "0", "--device", "cpu"]
    with log.open("w") as output:
        process = subprocess.Popen(
            command + options, env=environment | own, cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield Server(_url_when_ready(process, log), record, log)
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _url_when_ready(process: subprocess.Popen, log: Path) -> str:
    """Wait until the server answers at its port."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if match := re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text()):
            with httpx.Client(trust_env=False) as client:
                assert client.get(f"{match[1]}/health", timeout=ANSWER_SECONDS).json() == {"status": "ok"}
            return match[1]
        time.sleep(0.1)
    pytest.fail(f"`transformers serve` ended ({process.poll()}) or is not ready:\n{log.read_text()[-4000:]}")


# -- the answers ------------------------------------------------------------------------------------------------------


def test_a_chat_about_a_video_file_is_compressed_and_answered_by_the_code_beside_the_weights(
    server: Server, published: Family, clip: Clip, expected: Expected
) -> None:
    server.prefills()
    response = server.answer(published, clip.path)
    (choice,) = response["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.answer}
    assert choice["finish_reason"] == "length"
    assert expected.answer != expected.uncompressed_answer or published.case.in_one_class  # the tiny Nemotron's
    assert response["usage"] == {
        "prompt_tokens": expected.short_length,
        "completion_tokens": NEW_TOKENS,
        "total_tokens": expected.short_length + NEW_TOKENS,
    }
    (prefill,) = server.prefills()
    dropped = expected.full_length - expected.short_length
    num_frames = FILE_FRAMES // FPS if published.case.name == "minicpmv4_6" else NUM_FRAMES  # It takes one a second.
    assert prefill["length"] == expected.short_length and dropped > published.case.video_tokens(num_frames) / 4
    assert re.fullmatch(rf"transformers_modules\..*\.modeling_vidcom2_{published.case.name}", prefill["code"])
    assert not prefill["package"]  # the installed package is not imported


def test_a_streamed_answer_has_the_same_text(server: Server, published: Family, clip: Clip, expected: Expected) -> None:
    server.prefills()
    chunks = server.stream(published, clip.path)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    texts = [delta["content"] for delta in deltas if "content" in delta]
    assert "".join(texts) == expected.answer and len(texts) > 1
    assert deltas[0] == {"role": "assistant"}
    assert [choice["finish_reason"] for choice in chunks[-1]["choices"]] == ["length"]
    assert chunks[-1]["usage"]["prompt_tokens"] == expected.short_length
    assert chunks[-1]["usage"]["completion_tokens"] == NEW_TOKENS
    assert [prefill["length"] for prefill in server.prefills()] == [expected.short_length]


def test_the_ratio_decides_how_much_is_kept(
    server: Server, published: Family, clip: Clip, expected: Expected, tmp_path: Path
) -> None:
    folder = shutil.copytree(published.folder, tmp_path / "uncompressing")
    for name in ("config.json", "processor_config.json"):
        change_json(folder / name, retention_ratio=1.0)
    server.prefills()
    response = server.answer(Family(published.case, folder, published.stock, published.processor), clip.path)
    assert response["choices"][0]["message"]["content"] == expected.uncompressed_answer
    assert [prefill["length"] for prefill in server.prefills()] == [expected.full_length]


def test_a_video_without_sound_is_answered(server: Server, published: Family, tmp_path: Path) -> None:
    """The stock classes fail here, since the server takes them for models that hear."""
    write_clip(tmp_path / "silent.mp4", FILE_FRAMES, FPS, audio=False)
    server.prefills()
    response = server.answer(published, tmp_path / "silent.mp4")
    assert len(response["choices"][0]["message"]["content"]) == NEW_TOKENS
    assert len(server.prefills()) == 1
