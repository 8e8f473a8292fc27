"""What Qwen4-Exp and HyperCLOVA X have beyond other families with Qwen's videos."""

from typing import Any

import pytest
import torch
from models import make_video
from reference import kept_embeddings
from torch import Tensor

import vidcom2
from vidcom2.families.table import FAMILIES
from vidcom2.loading.processors import restore, shorten


@pytest.mark.skipif(not FAMILIES["qwen4_exp"].runs_here, reason="this Transformers has no Qwen4-Exp")
@torch.no_grad()
def test_qwen4_exp_embeds_runs_of_the_tokens_that_stay() -> None:
    """The stock language model, fed with the embeddings and the ids of the short prompt, gives the same logits."""
    runs = {"ple_layer_ids": [1], "ngram_vocab_size_base": 200, "heads_per_ngram": 2, "split_ngram_parts": 2}
    stock, processor = FAMILIES["qwen4_exp"].build_tiny(text=runs, patch_size=10, frame_tokens=12)
    restore(processor)
    text = "<|vision_start|><|video_pad|><|vision_end|> What happens?"
    whole = processor(text=[text], videos=[make_video(0)], return_tensors="pt")
    features = stock.model.get_video_features(whole["pixel_values_videos"], whole["video_grid_thw"]).pooler_output[0]
    frames = int(whole["video_grid_thw"][0, 0])
    ids = whole["input_ids"][0]
    is_video = ids == stock.config.video_token_id
    embeddings, stays = kept_embeddings(stock, ids, is_video, [features.unflatten(0, (frames, -1))])
    positions, _ = stock.model.get_rope_index(
        ids[None],
        mm_token_type_ids=is_video.int()[None] * 2,
        video_grid_thw=whole["video_grid_thw"],
        attention_mask=torch.ones_like(ids)[None],
    )

    def states(of_runs: Tensor, **kwargs: Any) -> Tensor:
        given = {"inputs_embeds": embeddings, "ple_input_ids": of_runs[None], "use_cache": False}
        return stock.model.language_model(**given, **kwargs).last_hidden_state

    length = int(stays.sum())
    places = torch.cat([torch.arange(length)[None, None], positions[..., stays]])
    mask = torch.ones(1, length, dtype=torch.int64)
    by_hand = stock.lm_head(states(ids[stays], position_ids=places, attention_mask=mask))
    model: Any = vidcom2.apply(stock, retention_ratio=0.25, compression_rounding="exact")
    shorten(processor, model.config)
    short = processor(text=[text], videos=[make_video(0)], return_tensors="pt")
    assert short["input_ids"].shape[1] == length < len(ids)
    # The question has a token a letter. Before it, the caller's frames stand elsewhere among the rows.
    question = slice(-len(" What happens?"), None)
    torch.testing.assert_close(model(**short).logits[:, question], by_hand[:, question], rtol=0, atol=1e-5)
    assert not torch.allclose(states(ids[stays].roll(1)), states(ids[stays])), "the runs make no difference"


def test_hyperclova_x_writes_how_long_its_videos_are() -> None:
    """The stock processor keeps the durations of a call on itself, between reading the videos and writing the text."""
    stock, processor = FAMILIES["hyperclovax_vision_v2"].build_tiny(pixels=(84 * 84, 84 * 112))
    restore(processor)
    part = "<|video_pad|> lasts <|video_duration|> seconds. "

    def written(*lengths: int) -> str:
        videos = [make_video(0, length) for length in lengths]
        inputs = processor(text=[part * len(lengths)], videos=videos, return_tensors="pt", do_sample_frames=False)
        return processor.decode(inputs["input_ids"][0])

    expected = [written(8, 12), written(10)]
    assert "0.33 seconds" in expected[0] and "0.5 seconds" in expected[0]  # at the 24 frames a second that it assumes
    shorten(processor, vidcom2.apply(stock, retention_ratio=0.25).config)
    found = [written(8, 12), written(10)]
    assert [text.replace("<|video_pad|>", "") for text in found] == [
        text.replace("<|video_pad|>", "") for text in expected
    ]
    assert [text.count("<|video_pad|>") * 4 for text in found] == [text.count("<|video_pad|>") for text in expected]
