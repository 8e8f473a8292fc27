"""Tiny repos of each family, vLLM engines that serve them, and requests for both vLLM and Transformers."""

import copy
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the tests look at the engine in this process

import numpy as np
import pytest
import torch
import vllm
from models import MODELS, ModelCase, chat_prompt
from PIL import Image
from transformers import PreTrainedModel, ProcessorMixin
from transformers.utils import logging

from vidcom2.configuration.compression_settings import SETTING_NAMES, CompressionSettings
from vidcom2.loading.processors import restore, shorten

logging.disable_progress_bar()
FRAMES, HEIGHT, WIDTH, NEW = 8, 112, 140, 8
RATIO = 0.25
LARGEST = 16 * HEIGHT * WIDTH  # pixels of an image, or in some families of a whole video
METADATA = {"fps": 1.25, "total_num_frames": FRAMES, "frames_indices": list(range(FRAMES)), "duration": FRAMES / 1.25}


@dataclass(frozen=True)
class Case:
    """A row of `tests/models.py` as it is served, with heads of 64 for vLLM's attention.

    Attributes:
        build_arguments, grid: replace the row's.
        most_videos: how many videos a prompt may have.
        scale: multiplies all weights, so that different videos get different answers.
    """

    row: ModelCase
    build_arguments: dict[str, Any]
    grid: tuple[int, int]
    most_videos: int = 2
    dtype: str = "float32"
    scale: float = 3.0

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def scored_tokens(self) -> int:
        """Number of scored tokens of one video."""
        return self.row.scored_frames(FRAMES) * self.grid[0] * self.grid[1]

    def kept(self, ratio: float | None) -> int:
        return max(self.row.scored_frames(FRAMES), int((RATIO if ratio is None else ratio) * self.scored_tokens))


ROWS = {row.name: row for row in MODELS}
PIXELS = {"pixels": (HEIGHT * WIDTH, HEIGHT * WIDTH)}
CASES = [
    Case(ROWS["llava_onevision"], {"image_size": 84}, (3, 3)),
    Case(ROWS["llava_video"], {"image_size": 98}, (3, 3)),
    Case(ROWS["llava_next_video"], {"image_size": 84}, (3, 3)),
    Case(ROWS["qwen2_vl"], PIXELS, (4, 5)),
    Case(ROWS["qwen2_5_vl"], {**PIXELS, "tokens_per_second": 1}, (4, 5)),
    Case(ROWS["qwen3_vl"], {"patch_size": 14}, (4, 5)),
    Case(ROWS["qwen3_vl_moe"], {"patch_size": 14}, (4, 5)),
    Case(ROWS["glm4v"], {"patch_size": 14}, (4, 5), most_videos=1),
    Case(ROWS["internvl"], {"image_size": 84}, (3, 3)),
    # vLLM takes 0 for the padding's id, which it is in the released models.
    Case(
        ROWS["gemma4"],
        {"patch_size": 4, "sliding_window": 8192, "text": {"pad_token_id": 0}},
        (7, 9),
        scale=1.5,
    ),
]
CASES_BY_NAME = {case.name: case for case in CASES}
# Served with their weights in the layout of the Hub, in which `publish` copies them. The tests of other settings serve
# weights as Transformers saves them.
ON_THE_HUB = ("llava_onevision", "llava_next_video", "qwen2_vl", "qwen2_5_vl", "qwen3_vl_moe")


KEPT = {"retention_ratio": RATIO}


def save_repo(folder: Path, case: Case, **settings: Any) -> ProcessorMixin:
    """Save a repo as `publish` makes it, with this project's processor, and return one that writes all placeholders."""
    _, processor = save_stock_repo(folder, case)
    model = case.row.model_class.from_pretrained(folder, **settings)
    model.save_pretrained(folder)
    own = copy.copy(processor)
    shorten(own, model.config)
    own.save_pretrained(folder)
    if case.row.frames_are_images:  # whose stock prompts are refused
        processor = own
        processor.writes_all = True
    return processor


def save_stock_repo(folder: Path, case: Case) -> tuple[PreTrainedModel, ProcessorMixin]:
    stock, processor = case.row.build(hidden_size=256, **case.build_arguments)
    restore(processor)  # LLaVA-Video's is this project's already
    with torch.no_grad():
        for parameter in stock.parameters():
            if parameter.ndim > 1:
                parameter.mul_(case.scale)
    if hasattr(processor, "add_time_instruction"):
        processor.add_time_instruction = False  # vLLM leaves it to the caller
    for each in (processor.image_processor, processor.video_processor):
        if "longest_edge" in (each.size or {}):  # vLLM starts with the largest possible picture
            each.size = {"shortest_edge": min(each.size["shortest_edge"], HEIGHT * WIDTH), "longest_edge": LARGEST}
    if case.row.padded_frames:  # as in the released models: what follows such a token differs between the engines
        names = ("image", "video", "audio")
        stock.generation_config.suppress_tokens = [getattr(stock.config, f"{name}_token_id") for name in names]
    stock.save_pretrained(folder)
    processor.save_pretrained(folder)
    return stock, processor


def engine(folder: Path, case: Case, **arguments: Any) -> Any:
    settings = {"dtype": case.dtype, "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 16, "block_size": 32}
    settings |= {"kv_cache_memory_bytes": 2**26}
    limits = {"video": case.most_videos, "image": 2}
    settings |= {"limit_mm_per_prompt": limits}
    return vllm.LLM(model=str(folder), trust_remote_code=True, **{**settings, **arguments})


def video(seed: int, num_frames: int = FRAMES) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (num_frames, HEIGHT, WIDTH, 3), dtype=np.uint8)


def image(seed: int) -> Image.Image:
    pixels = np.random.default_rng(100 + seed).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@dataclass
class Served:
    """A family's repo, its engine, and the Transformers class with the same weights."""

    case: Case
    folder: Path
    processor: Any
    llm: Any = None

    @classmethod
    def saved(cls, folder: Path, case: Case, **settings: Any) -> "Served":
        return cls(case, folder, save_repo(folder, case, **settings))

    @cached_property
    def model(self) -> Any:
        return self.case.row.model_class.from_pretrained(self.folder).eval()

    def prompt(self, text: str, videos: int = 1, images: int = 0) -> str:
        return chat_prompt(self.processor, text, videos, images)

    def request(
        self,
        text: str = "What happens?",
        videos: tuple[int, ...] = (0,),
        images: tuple[int, ...] = (),
        ratio: float | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        media: dict[str, Any] = {}
        if videos:
            media["video"] = [(video(seed), {**METADATA, "do_sample_frames": False}) for seed in videos]
        if images:
            media["image"] = [image(seed) for seed in images]
        settings |= {} if ratio is None else {"retention_ratio": ratio}
        arguments = {"mm_processor_kwargs": settings} if settings else {}
        prompt = self.prompt(text, len(videos), len(images))
        return {"prompt": prompt, **({"multi_modal_data": media} if media else {}), **arguments}

    def answers(self, *requests: dict[str, Any], llm: Any = None, new: int = NEW) -> list[list[int]]:
        return [list(output.outputs[0].token_ids) for output in self.outputs(*requests, llm=llm, new=new)]

    def outputs(self, *requests: dict[str, Any], llm: Any = None, new: int = NEW) -> list[Any]:
        greedy = vllm.SamplingParams(temperature=0, max_tokens=new, min_tokens=new)  # never stops earlier
        return (llm or self.llm).generate(list(requests), greedy, use_tqdm=False)

    def inputs(self, request: dict[str, Any]) -> Any:
        media = request.get("multi_modal_data", {})
        named: dict[str, Any] = {"images": media["image"]} if "image" in media else {}
        if "video" in media:
            named["videos"] = [frames for frames, _ in media["video"]]
            described = [{k: v for k, v in each.items() if k != "do_sample_frames"} for _, each in media["video"]]
            own = {k: v for k, v in request.get("mm_processor_kwargs", {}).items() if k not in SETTING_NAMES}
            named["videos_kwargs"] = {"video_metadata": described, "do_sample_frames": False} | own
        return self.processor(text=[request["prompt"]], return_tensors="pt", **named)

    def text_of(self, prompt: list[int]) -> list[int]:
        """Return a prompt's ids without the placeholders of images and videos."""
        names = {"image_token", "video_token", "context_image_token"}
        tokens = {getattr(each, name, None) for name in names for each in (self.processor, self.processor.tokenizer)}
        ids = {self.processor.tokenizer.get_vocab()[token] for token in tokens if token}
        return [token for token in prompt if token not in ids]

    def check_text_of_prompts(self) -> None:
        """Check that the text of a prompt is that of Transformers. The second time, vLLM's cache has the videos, in
        another order."""
        videos = tuple(range(self.case.most_videos))
        for order in (videos, videos[::-1]):
            request = self.request(videos=order)
            (output,) = self.outputs(request)
            (expected,) = self.inputs(request)["input_ids"].tolist()
            assert self.text_of(output.prompt_token_ids) == self.text_of(expected)

    def expected(self, *requests: dict[str, Any], model: Any = None, new: int = NEW) -> list[list[int]]:
        """Return the greedy tokens of the Transformers class."""
        return [self._expected(request, model or self.model, new) for request in requests]

    def _expected(self, request: dict[str, Any], model: Any, new: int) -> list[int]:
        inputs = self.inputs(request)
        settings = {k: v for k, v in request.get("mm_processor_kwargs", {}).items() if k in SETTING_NAMES}
        out = model.generate(**inputs, **settings, max_new_tokens=new, min_new_tokens=new, do_sample=False)
        return out[0, inputs["input_ids"].shape[1] :].tolist()


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


def requests_of(case: Case) -> dict[str, dict[str, Any]]:
    return {kind: asked for kind, asked in REQUESTS.items() if len(asked.get("videos", (0,))) <= case.most_videos}


def count_encoded(monkeypatch: pytest.MonkeyPatch) -> list[CompressionSettings]:
    """Return a list that collects the settings of the videos that are compressed from now on."""
    from vidcom2.vllm_plugin.compressed_videos import CompressedVideosModel

    encoded: list[CompressionSettings] = []
    whole = CompressedVideosModel.compression_of

    def count(self: Any, tokens: Any, grid: Any, settings: CompressionSettings, *layout: Any) -> Any:
        encoded.append(settings)
        return whole(self, tokens, grid, settings, *layout)

    monkeypatch.setattr(CompressedVideosModel, "compression_of", count)
    return encoded
