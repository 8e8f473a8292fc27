"""Answering a batch with settings of VidCom², as a method does that answers by itself (`Candidate.answer`)."""

from typing import Any

import torch
from torch import Tensor

from vidcom2 import CompressionSettings
from vidcom2.asking.generation import Batch, generate_answers, joined, keep_tokens


def compressed_answers(
    model: Any, batch: Batch, settings: CompressionSettings, max_new_tokens: int
) -> tuple[Tensor, Tensor]:
    """Return the ids of the new tokens (B, n), and the share of the scored tokens that was kept (B,).

    Raises:
        ValueError: on settings that the method refuses for one of the videos, or the model for the batch.
    """
    of_each = [keep_tokens(model, video, settings) for video in batch.videos]
    inputs, features = batch.inputs(model, of_each), joined(of_each)
    new = generate_answers(model, inputs, features, settings.compression_positions, max_new_tokens=max_new_tokens)
    shares = [len(each.indices) / each.num_tokens for each in features.video_compressions or ()]
    return new, torch.tensor(shares, dtype=torch.float64)
