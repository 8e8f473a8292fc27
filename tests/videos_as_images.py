"""Families whose processors pass the frames of videos as images, or do not say which frames are one video's: what they
write before a frame, read as text, and the stock class with an argument for videos, so that the same tests run over it.
"""

import functools
import re
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import (
    BatchFeature,
    InternVLForConditionalGeneration,
    InternVLModel,
    Kimi_K25ForConditionalGeneration,
    Kimi_K25Model,
    MiniCPMV4_6ForConditionalGeneration,
    MiniCPMV4_6Model,
    PerceptionLMForConditionalGeneration,
    PerceptionLMModel,
    PreTrainedConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMModel,
)
from transformers.utils.generic import ModelOutput

from vidcom2.tiny.minicpmv import MINICPMV_MARKS
from vidcom2.tiny.smolvlm import SMOLVLM_TOKENS
from vidcom2.tiny.tokens import QWEN2_TOKENS

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())  # the text of each token of a tiny tokenizer but the special ones
SPACE, LINE, OTHER, PLACEHOLDER = "Ġ", "Ċ", "<>", "#"
GLOBAL = "@"  # the token that opens an image of SmolVLM's that is no tile of a larger one
FRAMES = {  # The first group is what a video's first frame has.
    "internvl": rf"Frame(1(?=:))?\d*:{SPACE}[{OTHER}](#+)[{OTHER}]",
    "nemotron_h_omni": rf"[Ff]rame{SPACE}(1(?!\\d))?[^#]*?:{SPACE}[{OTHER}](#+)[{OTHER}]",
    "smolvlm": rf"(video\.{LINE})?{LINE}Frame{SPACE}from{SPACE}\d+:\d+:[{OTHER}]{GLOBAL}(#+)[{OTHER}]",
}


def frames_in(config: PreTrainedConfig, input_ids: Tensor) -> list[tuple[bool, range]]:
    """Return for each frame in a prompt (L,) whether it is a video's first one, and its places."""
    opening = len(LETTERS) + SMOLVLM_TOKENS.index("<global-img>") if config.model_type == "smolvlm" else None
    text = "".join(
        PLACEHOLDER
        if token in (config.image_token_id, -1)
        else GLOBAL
        if token == opening
        else LETTERS[token]
        if token < len(LETTERS)
        else OTHER[0]
        for token in input_ids.tolist()
    ).replace("#<#", "#>#")
    frames = [(found[1] is not None, range(*found.span(2))) for found in re.finditer(FRAMES[config.model_type], text)]
    if config.model_type == "nemotron_h_omni":
        return frames
    return [(is_first, places) for is_first, places in frames if len(places) == tokens_of_a_tile(config)]


def tokens_of_a_tile(config: Any) -> int:
    if config.model_type == "internvl":
        return config.image_seq_length
    return (config.vision_config.image_size // config.vision_config.patch_size // config.scale_factor) ** 2


def frame_places(config: PreTrainedConfig, input_ids: Tensor) -> Tensor:
    """Return which tokens of a prompt (L,) stand for a frame's: bool."""
    places = torch.zeros(len(input_ids), dtype=torch.bool)
    for _, frame in frames_in(config, input_ids):
        places[list(frame)] = True
    return places


def rows_of(config: PreTrainedConfig, input_ids: Tensor) -> list[bool]:
    """Return for each tile of `pixel_values` whether it is a frame."""
    rows = []
    for prompt in input_ids:
        frames = frame_places(config, prompt).tolist()
        placeholders = [is_frame for token, is_frame in zip(prompt, frames) if token in (config.image_token_id, -1)]
        rows += placeholders[:: tokens_of_a_tile(config)]
    return rows


def tiles_in(pixels: Tensor | None) -> list[Tensor]:
    """Return the tiles of `pixel_values`, without those that pad a prompt's."""
    if pixels is None:
        return []
    return [tile for tile in pixels.flatten(0, -4) if tile.any()]


def as_pixels(config: PreTrainedConfig, tiles: list[Tensor]) -> dict[str, Tensor]:
    """Return the arguments by which the stock class takes some tiles."""
    pixels = torch.stack(tiles)
    if config.model_type == "internvl":
        return {"pixel_values": pixels}
    return {"pixel_values": pixels[None], "pixel_attention_mask": torch.ones_like(pixels[None, :, 0], dtype=torch.long)}


def joined_pixels(config: PreTrainedConfig, inputs: Any, images: Tensor | None, frames: Tensor) -> dict[str, Tensor]:
    """Return the arguments for the pixels of images and frames, in the order of the prompt."""
    by_kind = {True: tiles_in(frames), False: tiles_in(images)}
    tiles = [by_kind[is_frame].pop(0) for is_frame in rows_of(config, inputs["input_ids"])]
    assert not any(by_kind.values())
    return as_pixels(config, tiles)


def with_numbers_of_frames(config: Any, inputs: BatchFeature) -> BatchFeature:
    """Add how many frames each video of MiniCPM-V 4.6's has. Here each has one tile, and is numbered by the processor:
    its frames stand between `<image_id>` and text that is no mark."""
    if "pixel_values_videos" in inputs:
        number = len(LETTERS) + [*QWEN2_TOKENS, *MINICPMV_MARKS.values()].index("</image_id>")
        letters = {config.video_token_id: "v", number: "n"}
        text = "".join(letters.get(token, ".") for token in inputs["input_ids"].flatten().tolist())
        videos = [len(re.findall("v+", video)) for video in re.findall(r"n((?:\.v+\.)+)", text)]
        inputs["num_frames_per_video"] = torch.tensor(videos)
    return inputs


def with_numbers_of_rows(inputs: BatchFeature) -> BatchFeature:
    """Add how many rows of the grid each video of Kimi-K2.5's has. A row stands behind its time, and in the tests a
    video begins where time goes back."""
    if "pixel_values_videos" in inputs:
        videos: list[int] = []
        for prompt in inputs["input_ids"].tolist():
            last = None
            text = "".join(LETTERS[token] if token < len(LETTERS) else OTHER[0] for token in prompt)
            for time in re.findall(rf"(\d\d:\d\d:\d\d\.\d{{3}}){OTHER[0]}video{OTHER[0]}", text):
                videos, last = [*videos[:-1], videos[-1] + 1] if last and time > last else [*videos, 1], time
        inputs["num_chunks_per_video"] = torch.tensor(videos)
    return inputs


def split_pixels(config: PreTrainedConfig, inputs: BatchFeature) -> BatchFeature:
    """Take the frames of videos out of `pixel_values`, into `pixel_values_videos` and `num_frames`, and tell which
    tokens are theirs, as this project's processor does."""
    if config.model_type == "minicpmv4_6":
        return with_numbers_of_frames(config, inputs)
    if config.model_type == "kimi_k25":
        return with_numbers_of_rows(inputs)
    if config.model_type in ("perception_lm", "nemotron_h_omni"):  # whose processors pass videos by themselves
        return inputs
    firsts = [is_first for prompt in inputs["input_ids"] for is_first, _ in frames_in(config, prompt)]
    if "pixel_values" not in inputs or not firsts:
        return inputs
    by_kind: dict[bool, list[Tensor]] = {True: [], False: []}
    for pixels, is_frame in zip(tiles_in(inputs["pixel_values"]), rows_of(config, inputs["input_ids"]), strict=True):
        by_kind[is_frame].append(pixels)
    lengths: list[int] = []
    for is_first in firsts:
        lengths = [*lengths, 1] if is_first else [*lengths[:-1], lengths[-1] + 1]
    for name in as_pixels(config, by_kind[True]):
        inputs.pop(name, None)
    if by_kind[False]:
        inputs |= as_pixels(config, by_kind[False])
    inputs["pixel_values_videos"], inputs["num_frames"] = torch.stack(by_kind[True]), torch.tensor(lengths)
    inputs["mm_token_type_ids"] = frame_types(config, inputs["input_ids"])
    return inputs


def frame_types(config: PreTrainedConfig, input_ids: Tensor) -> Tensor:
    """Return the types of tokens: 2 for frames, 1 for images, 0 for all others."""
    is_frame = torch.stack([frame_places(config, prompt) for prompt in input_ids])
    return (input_ids == config.image_token_id).long().masked_fill(is_frame, 2)


def by_prompt(prompts: list[str], token: str, media: list) -> list[list]:
    """Return the media of each prompt, which show the token in their places."""
    left = iter(media)
    return [[next(left) for _ in range(prompt.count(token))] for prompt in prompts]


class TakesVideos:
    """Puts `pixel_values_videos` back among `pixel_values`."""

    def get_video_features(self: Any, pixel_values_videos: Tensor, num_frames: Tensor, **kwargs: Any) -> ModelOutput:
        outputs = self.get_image_features(**as_pixels(self.config, list(pixel_values_videos)), **kwargs)
        tokens = torch.cat([each.flatten(0, -2) for each in outputs.pooler_output])
        outputs.pooler_output = tokens.split((num_frames * tokens_of_a_tile(self.config)).tolist())
        return outputs

    def _joined(self: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        names = ("pixel_values_videos", "num_frames", "mm_token_type_ids")
        frames, *_ = (kwargs.pop(name, None) for name in names)
        if frames is None:
            return kwargs
        return kwargs | joined_pixels(self.config, kwargs, kwargs.get("pixel_values"), frames)


class TellsVideosApart:
    """Joins the parent's features of frames to those of videos, and leaves out how many frames a video has."""

    def _joined(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in kwargs.items()
            if name not in ("num_frames_per_video", "num_patches_per_frame", "num_chunks_per_video")
        }


class SplitsVideos(TellsVideosApart):
    """Joins the features of each video's frames."""

    @functools.wraps(MiniCPMV4_6Model.get_video_features)
    def get_video_features(self: Any, *args: Any, num_frames_per_video: Any = None, **kwargs: Any) -> ModelOutput:
        outputs = super().get_video_features(*args, **self._joined(kwargs))
        if num_frames_per_video is not None:
            frames = torch.cat(list(outputs.pooler_output)).unflatten(0, (len(outputs.pooler_output), -1))
            outputs.pooler_output = [each.flatten(0, 1) for each in frames.split(num_frames_per_video.tolist())]
        return outputs


class JoinsRows(TellsVideosApart):
    """Joins the features of each video's rows."""

    @functools.wraps(Kimi_K25Model.get_video_features)
    def get_video_features(self: Any, *args: Any, num_chunks_per_video: Any = None, **kwargs: Any) -> ModelOutput:
        outputs = super().get_video_features(*args, **self._joined(kwargs))
        if num_chunks_per_video is not None:
            rows = list(outputs.pooler_output)
            outputs.pooler_output = [
                torch.cat([rows.pop(0) for _ in range(number)]) for number in num_chunks_per_video.tolist()
            ]
        return outputs


def taking_videos(mixin: type, stock_class: type, inner_class: type | None = None) -> type:
    """Return a stock class that takes the arguments of videos; one with a head, if its inner class is given."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> ModelOutput:
        return stock_class.forward(self, *args, **self._joined(kwargs))

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        return stock_class.generate(self, *args, **self._joined(kwargs))

    members: dict[str, Any] = {"forward": functools.wraps(stock_class.forward)(forward)}
    if inner_class is not None:
        members |= {"generate": generate, "inner_class": inner_class}
    return type(f"{stock_class.__name__}WithVideos", (mixin, stock_class), members)


InternVLWithVideos, SmolVLMWithVideos, MiniCPMV4_6WithVideos, KimiK25WithVideos = (
    taking_videos(of_head, stock_class, taking_videos(of_inner, inner_class))
    for of_head, stock_class, of_inner, inner_class in (
        (TakesVideos, InternVLForConditionalGeneration, TakesVideos, InternVLModel),
        (TakesVideos, SmolVLMForConditionalGeneration, TakesVideos, SmolVLMModel),
        (TellsVideosApart, MiniCPMV4_6ForConditionalGeneration, SplitsVideos, MiniCPMV4_6Model),
        (TellsVideosApart, Kimi_K25ForConditionalGeneration, JoinsRows, Kimi_K25Model),
    )
)


class PerceptionLMWithVideosModel(PerceptionLMModel):
    def get_video_features(self: Any, pixel_values_videos: Tensor, **kwargs: Any) -> ModelOutput:
        outputs = self.get_image_features(pixel_values_videos, **kwargs)
        videos = outputs.pooler_output.chunk(len(pixel_values_videos))
        outputs.pooler_output = torch.stack([torch.cat(list(frames)) for frames in videos])
        return outputs


class PerceptionLMWithVideos(TellsVideosApart, PerceptionLMForConditionalGeneration):
    inner_class = PerceptionLMWithVideosModel

    def get_image_features(self: Any, *args: Any, **kwargs: Any) -> ModelOutput:
        return self.model.get_image_features(*args, **kwargs)


class NemotronInOneClass(TellsVideosApart, getattr(transformers, "NemotronH_Omni_Reasoning_V3", object)):  # since 5.24
    @property
    def model(self) -> Any:
        return self


NemotronInOneClass.inner_class = NemotronInOneClass  # pyright: ignore[reportAttributeAccessIssue]
