"""Prompts compressed by hand and run through the stock model, with which our classes are compared."""

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from conftest import Family
from models import video_places
from torch import Tensor, nn
from transformers import BatchFeature, PreTrainedModel
from transformers.utils.generic import ModelOutput

from vidcom2 import CompressionSettings, VideoCompression, VideoTokens, compress

EXACT = {"compression_rounding": "exact"}  # how models round by default, while `compress` rounds up


def kept_features(compression: VideoCompression, tokens: Tensor) -> list[Tensor]:
    """Return the kept ones of the (T·M, dim) tokens, or their merged means."""
    if compression.merge is None:
        return [tokens[index] for index in compression.indices.tolist()]
    means = [torch.zeros_like(tokens[0]) for _ in compression.indices]
    for output, token, weight in zip(*compression.merge, strict=True):
        means[int(output)] = means[int(output)] + weight * tokens[int(token)]
    return means


@torch.no_grad()
def kept_embeddings(
    stock: Any, input_ids: Tensor, is_video: Tensor, videos: Sequence[Tensor], retention_ratio: float = 0.25
) -> tuple[Tensor, Tensor]:
    """Return the embeddings (1, L', dim) of a prompt without the tokens that `compress` drops, and which remain, (L,).

    Args:
        is_video: which of the `input_ids` (L,) stand for a video's tokens.
        videos: the stock model's features (T, M, dim) of each video.
    """
    kept = []
    for video in videos:
        indices = compress(video, retention_ratio, **EXACT).indices
        kept.append(torch.zeros(video.shape[0] * video.shape[1], dtype=torch.bool).index_fill(0, indices, True))
    embeddings = stock.get_input_embeddings()(input_ids.masked_fill(is_video, 0))
    embeddings = embeddings.masked_scatter(is_video[:, None], torch.cat([video.flatten(0, 1) for video in videos]))
    remaining = torch.ones(len(input_ids), dtype=torch.bool).masked_scatter(is_video, torch.cat(kept))
    return embeddings[remaining][None], remaining


@torch.no_grad()
def compressed_embeddings(
    family: Family,
    inputs: BatchFeature,
    retention_ratio: float,
    kept_by: Callable[..., Any] | None = None,
    **settings: str,
) -> tuple[Tensor, Tensor]:
    """Return the embeddings (1, L', dim) of one prompt without its dropped tokens, and the positions (L',) that remain.

    This is a Python loop over the stock model's features and the published operator. It uses nothing of our classes but
    the grids and what methods may ask of the tower.

    Args:
        kept_by: replaces the published operator. It takes tokens (T, M, dim) and a ratio, and returns an object whose
            `indices` are those of the kept tokens.
    """
    stock = family.stock
    input_ids = inputs["input_ids"][0]
    embeddings = stock.get_input_embeddings()(input_ids)
    is_video = video_places(stock.config, input_ids)
    features = {}  # placeholder position -> feature
    deepstack = {}  # placeholder position -> what the first decoder layers add to it
    if inputs.get("pixel_values") is not None:
        encoded = stock.get_image_features(**family.images_of(inputs))
        positions = ((input_ids == stock.config.image_token_id) & ~is_video).nonzero().flatten().tolist()
        features.update(zip(positions, torch.cat(list(encoded.pooler_output)), strict=True))
        deepstack.update(zip(positions, deepstack_rows(encoded)))

    if inputs.get("input_features") is not None:
        heard = stock.get_audio_features(inputs["input_features"], inputs["feature_attention_mask"]).last_hidden_state
        positions = (input_ids == stock.config.audio_token_id).nonzero().flatten().tolist()
        features.update(zip(positions, heard, strict=True))

    dropped = set()
    video_positions = is_video.nonzero().flatten().tolist()
    encoded = stock.model.get_video_features(**family.videos_of(inputs))
    deepstack.update(zip(video_positions, deepstack_rows(encoded)))
    for number, video in enumerate(family.parents_features(inputs)):
        is_scored = family.case.is_scored(len(video))
        scored = is_scored.nonzero().flatten()
        frames = VideoTokens(video[is_scored].reshape(-1, family.case.tokens_per_frame, video.shape[-1]))
        if settings:
            _, seen = family.model.model.encode_videos(settings=CompressionSettings(), **family.videos_of(inputs))
            frames = replace(seen[number], tokens=frames.tokens)
        compression = compress(frames, retention_ratio, **EXACT | settings)
        if kept_by is not None:
            indices = torch.as_tensor(kept_by(frames.tokens, retention_ratio).indices)
            compression = VideoCompression(indices, compression.frame_budgets)
        stays = ~is_scored
        stays[scored[compression.indices]] = True
        merged = dict(
            zip(
                scored[compression.indices].tolist(),
                kept_features(compression, frames.tokens.flatten(0, 1)),
                strict=True,
            )
        )
        places = [video_positions[i] for i in scored.tolist()]
        if deepstack and compression.merge is not None:  # what the decoder layers add is merged as well
            layers = torch.stack([deepstack[place] for place in places])
            kept = [places[i] for i in compression.indices.tolist()]
            deepstack.update(zip(kept, kept_features(compression, layers), strict=True))
        for i, feature in enumerate(video):
            position = video_positions.pop(0)
            features[position] = merged.get(i, feature)
            if not stays[i]:
                dropped.add(position)
    assert not video_positions
    attended = inputs["attention_mask"][0].tolist()
    remaining = [i for i in range(len(input_ids)) if i not in dropped and attended[i]]
    if family.case.adds_features:
        features = {i: embeddings[i] + feature for i, feature in features.items()}
    rows = torch.stack([features.get(i, embeddings[i]) for i in remaining])[None]
    if deepstack:
        deepstack_of(stock).remember(rows, {row: deepstack[i] for row, i in enumerate(remaining) if i in deepstack})
    return rows, torch.tensor(remaining)


def deepstack_rows(encoded: ModelOutput) -> list[Tensor]:
    """Return (layers, dim) for each placeholder: what the first decoder layers add to it. Empty if they add nothing."""
    layers = encoded.get("deepstack_features") or []
    return list(torch.stack([torch.cat(list(layer)) for layer in layers], dim=1)) if layers else []


@functools.cache
def deepstack_of(stock: PreTrainedModel) -> "Deepstack":
    return Deepstack(stock)


class Deepstack:
    """Add deepstack features to the prompt that was compressed last.

    The stock language model reads that prompt as embeddings, which carry no such features."""

    def __init__(self, stock: PreTrainedModel):
        self.prompt: Tensor | None = None
        stock.get_decoder().register_forward_pre_hook(self._add, with_kwargs=True)

    def remember(self, embeddings: Tensor, of_rows: dict[int, Tensor]) -> None:
        """Remember (layers, dim) for each row in `of_rows` of the embeddings (1, L', dim)."""
        self.prompt, self.of_rows = embeddings[0], of_rows

    def _add(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        given = kwargs.get("inputs_embeds")
        if self.prompt is None or given is None or given.shape[1] < len(self.prompt):
            return None
        if not torch.equal(given[0, : len(self.prompt)], self.prompt):
            return None
        where = torch.zeros(given.shape[:2], dtype=torch.bool)
        where[:, list(self.of_rows)] = True  # a row for each beam
        layers = torch.stack(list(self.of_rows.values()), dim=1)
        added = [layer.repeat(len(given), 1) for layer in layers]
        return args, kwargs | {"visual_pos_masks": where, "deepstack_visual_embeds": added}


def reading_embeddings(stock: PreTrainedModel) -> PreTrainedModel:
    """Return a stock model whose `generate` takes embeddings. Gemma 4's takes none, though its `forward` does."""
    theirs = type(stock).prepare_inputs_for_generation
    if "inputs_embeds" in inspect.signature(theirs).parameters:
        return stock

    def prepare(self: Any, input_ids: Tensor, inputs_embeds: Tensor | None = None, **kwargs: Any) -> dict[str, Any]:
        return theirs(self, input_ids, inputs_embeds=inputs_embeds, **kwargs)

    view = copy.copy(stock)
    view.__class__ = type("ReadingEmbeddings", (type(stock),), {"prepare_inputs_for_generation": prepare})
    return view


@torch.no_grad()
def layer_embeddings(stock: PreTrainedModel, input_ids: Tensor) -> dict[str, Tensor]:
    """Return what each layer of Gemma 4 adds to these tokens (L,), as an argument. A pad token stands for images and
    videos there."""
    if not getattr(stock.config.text_config, "hidden_size_per_layer_input", 0):
        return {}
    is_media = (input_ids == stock.config.image_token_id) | (input_ids == stock.config.video_token_id)
    ids = input_ids.masked_fill(is_media, stock.config.text_config.pad_token_id)
    return {"per_layer_inputs": stock.get_decoder().get_per_layer_inputs(ids[None])}


@torch.no_grad()
def position_arguments(family: Family, inputs: BatchFeature, remaining: Tensor) -> dict[str, Tensor]:
    """Return what the stock model needs beside the embeddings of the remaining tokens: M-RoPE positions, and what its
    layers read from the ids. It is nothing where positions are mere order and only the first layer reads ids."""
    if of_layers := layer_embeddings(family.stock, inputs["input_ids"][0, remaining]):
        return of_layers
    if family.case.adds_features:
        return {"mm_token_type_ids": inputs["mm_token_type_ids"][:, remaining]}
    full = family.case.full_positions(family.stock, inputs)
    if full is None:
        return {}
    return {"position_ids": torch.cat([torch.arange(len(remaining)).view(1, 1, -1), full[:, :, remaining]])}


def new_tokens(
    family: Family,
    inputs: BatchFeature,
    retention_ratio: float,
    max_new_tokens: int,
    settings: dict[str, str] | None = None,
    **kwargs,
) -> Tensor:
    """Return the (rows, new) tokens that the stock model generates from the prompt compressed by hand."""
    embeddings, remaining = compressed_embeddings(family, inputs, retention_ratio, **settings or {})
    kwargs |= position_arguments(family, inputs, remaining)
    return reading_embeddings(family.stock).generate(inputs_embeds=embeddings, max_new_tokens=max_new_tokens, **kwargs)


@contextmanager
def language_model_lengths(model: Any) -> Iterator[list[int]]:
    """Collect how many tokens each call of the language model sees."""
    lengths: list[int] = []

    def look(module: Any, args: Any, kwargs: Any) -> None:
        lengths.append(kwargs["inputs_embeds"].shape[1])

    hook = model.get_decoder().register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield lengths
    finally:
        hook.remove()
