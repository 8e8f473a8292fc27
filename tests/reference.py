"""A compressed prompt built by hand and run through the stock model: what our classes are compared with."""

import torch
from conftest import Family
from torch import Tensor
from transformers import BatchFeature

from vidcom2 import compress


@torch.no_grad()
def compressed_embeddings(family: Family, inputs: BatchFeature, retention_ratio: float) -> tuple[Tensor, Tensor]:
    """Embeddings (1, L', dim) of one prompt without its dropped tokens, and the positions (L',) that remain.

    Uses the stock model's features and the published operator, a Python loop, and nothing of the model classes.
    """
    stock = family.stock
    input_ids = inputs["input_ids"][0]
    embeddings = stock.get_input_embeddings()(input_ids)
    features = {}  # placeholder position -> feature
    if inputs.get("pixel_values") is not None:
        image_arguments = {name: inputs[name] for name in ("pixel_values", "image_sizes", "batch_num_images")}
        images = torch.cat(list(stock.get_image_features(**image_arguments).pooler_output))
        positions = (input_ids == stock.config.image_token_id).nonzero().flatten().tolist()
        features.update(zip(positions, images, strict=True))

    dropped = set()
    video_positions = (input_ids == stock.config.video_token_id).nonzero().flatten().tolist()
    num_frames = inputs["pixel_values_videos"].shape[1]
    for video in stock.get_video_features(inputs["pixel_values_videos"]).pooler_output:
        scored = len(video) - family.case.structure_tokens
        kept = set(compress(video[:scored].reshape(num_frames, -1, video.shape[-1]), retention_ratio).indices.tolist())
        for i, feature in enumerate(video):
            position = video_positions.pop(0)
            features[position] = feature
            if i < scored and i not in kept:
                dropped.add(position)
    assert not video_positions
    attended = inputs["attention_mask"][0].tolist()
    remaining = [i for i in range(len(input_ids)) if i not in dropped and attended[i]]
    rows = [features.get(i, embeddings[i]) for i in remaining]
    return torch.stack(rows)[None], torch.tensor(remaining)


def new_tokens(family: Family, inputs: BatchFeature, retention_ratio: float, max_new_tokens: int, **kwargs) -> Tensor:
    """(rows, new) tokens that the stock model generates from the hand-made compressed prompt."""
    embeddings, _ = compressed_embeddings(family, inputs, retention_ratio)
    return family.stock.generate(inputs_embeds=embeddings, max_new_tokens=max_new_tokens, **kwargs)
