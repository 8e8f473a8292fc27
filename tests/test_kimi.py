"""Kimi-K2.5 joins up to four frames of the file in a row of `video_grid_thw`, and a video has several rows."""

from typing import Any

import numpy as np
import pytest
import torch
from models import chat_prompt, make_video
from reference import kept_embeddings

import vidcom2
from vidcom2.families.table import FAMILIES
from vidcom2.loading.processors import restore
from vidcom2.tiny.kimi import tiny_kimi_k25

pytestmark = pytest.mark.skipif(not FAMILIES["kimi_k25"].runs_here, reason=FAMILIES["kimi_k25"].needs)
RATIO, TOKENS = 0.25, 12
NEW = {"max_new_tokens": 6, "do_sample": False}
UNKNOWN = r"`video_grid_thw` has \d+ rows, but neither it nor a stock processor's prompt says how many"


@pytest.fixture(scope="module")
def stock() -> Any:
    return tiny_kimi_k25(patch_size=10, frame_tokens=TOKENS, seed=1)


@pytest.fixture(scope="module")
def ours(stock: Any) -> Any:
    """The model and the processor, which writes short prompts."""
    model, processor = tiny_kimi_k25(patch_size=10, frame_tokens=TOKENS, seed=1)
    return vidcom2.apply(model, processor=processor, retention_ratio=RATIO), processor


def asked(processor: Any, *lengths: int, question: str = "What happens?") -> Any:
    prompt = chat_prompt(processor, question, videos=len(lengths))
    videos = [make_video(seed, length) for seed, length in enumerate(lengths)]
    return processor(text=[prompt], videos=videos, return_tensors="pt")


def by_hand(stock: Any, inputs: Any, rows_of_videos: list[int]) -> torch.Tensor:
    """Return the logits of the stock model's last token, fed with the tokens that `compress` keeps of its features."""
    model, ids = stock[0], inputs["input_ids"][0]
    rows = model.model.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"]).pooler_output
    assert [len(row) for row in rows] == [TOKENS] * sum(rows_of_videos)
    videos = torch.stack(list(rows)).split(rows_of_videos)
    embeddings, _ = kept_embeddings(model, ids, ids == model.config.video_token_id, videos, RATIO)
    return model.lm_head(model.model.language_model(inputs_embeds=embeddings).last_hidden_state)[0, -1]


@pytest.mark.parametrize("lengths", [(8,), (10,), (3,), (8, 8), (4, 13), (9, 4, 6)], ids=str)
@torch.no_grad()
def test_the_tokens_that_compress_keeps_of_the_stock_towers_rows_are_read(
    stock: Any, ours: Any, lengths: tuple[int, ...]
) -> None:
    inputs, (model, processor) = asked(stock[1], *lengths), ours
    rows = [-(-length // 4) for length in lengths]
    assert [int(t) for t, *_ in inputs["video_grid_thw"]] == [
        min(4, length - start) for length in lengths for start in range(0, length, 4)
    ]
    expected, short = by_hand(stock, inputs, rows), asked(processor, *lengths)
    assert short["num_chunks_per_video"].tolist() == rows
    told = dict(inputs) | {"num_chunks_per_video": torch.tensor(rows)}
    for prompt in (short, told, *([inputs] if sum(rows) == 1 else [])):  # one row is one video
        for chunk in (1, 2, 8):
            logits = model(**prompt, vision_chunk_frames=chunk).logits[0, -1]
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_a_stock_prompt_that_does_not_tell_whose_rows_are_whose_is_refused(stock: Any, ours: Any) -> None:
    """Two videos of two rows look like one of four. Which tokens stay is another choice."""
    (model, _), (of_stock, processor) = ours, stock
    for lengths in ((8, 8), (16,)):
        inputs = asked(processor, *lengths)
        videos = {name: inputs[name] for name in ("pixel_values_videos", "video_grid_thw")}
        for call, given in (
            (model, inputs),
            (model.model, inputs),
            (model.generate, inputs),
            (model.get_video_features, videos),
        ):
            with pytest.raises(ValueError, match=UNKNOWN):
                call(**given)
            with pytest.raises(ValueError, match=UNKNOWN):
                call(**given, retention_ratio=1.0, max_video_tokens=20)
        ids = model.generate(**inputs, **NEW, retention_ratio=1.0)
        assert torch.equal(ids, of_stock.generate(**inputs, **NEW))
        assert torch.equal(model(**inputs, retention_ratio=1.0).logits, of_stock(**inputs).logits)
        features = model.get_video_features(**videos, retention_ratio=1.0).pooler_output
        assert torch.equal(torch.cat(features), torch.cat(of_stock.get_video_features(**videos).pooler_output))
    one, two = (
        model(**asked(processor, 8, 8), num_chunks_per_video=torch.tensor(rows)).logits for rows in ([4], [2, 2])
    )
    assert not torch.allclose(one[0, -1], two[0, -1], atol=1e-3)


@pytest.mark.parametrize("rows", [[3], [1, 1, 1], [0, 4], [5, -1], []], ids=str)
def test_numbers_that_do_not_fit_the_grids_are_refused(stock: Any, ours: Any, rows: list[int]) -> None:
    with pytest.raises(ValueError, match=r"`num_chunks_per_video` is \[.*\], but `video_grid_thw` has 4 rows"):
        ours[0](**asked(stock[1], 8, 8), num_chunks_per_video=torch.tensor(rows, dtype=torch.int64))
    with pytest.raises(ValueError, match="`num_chunks_per_video` is a list, but must be a tensor"):
        ours[0](**asked(stock[1], 8, 8), num_chunks_per_video=rows)


def test_rows_of_two_sizes_are_not_one_video(ours: Any) -> None:
    model, processor = ours
    videos = [make_video(0, 8), make_video(1, 8)[..., :60]]
    inputs = processor(text=[chat_prompt(processor, "?", videos=2)], videos=videos, return_tensors="pt")
    assert inputs["num_chunks_per_video"].tolist() == [2, 2]
    model(**inputs)
    inputs["num_chunks_per_video"] = torch.tensor([1, 3])
    with pytest.raises(ValueError, match=r"The rows of a video have different sizes in `video_grid_thw`, \[\(6, 6\)"):
        model(**inputs)


@torch.no_grad()
def test_a_row_that_repeats_the_one_before_it_is_encoded_once(stock: Any, ours: Any) -> None:
    """The last row shows fewer frames, so it repeats none, though its frames do."""
    model, processor = ours
    four = make_video(0, 4)
    video = np.concatenate([four, four, make_video(1, 4), four, four, four[:2]])
    inputs = processor(text=[chat_prompt(processor, "?", videos=1)], videos=[video], return_tensors="pt")
    seen = []
    hook = model.model.vision_tower.register_forward_pre_hook(
        lambda _, args, kwargs: seen.extend(kwargs["grid_thw"][:, 0].tolist()), with_kwargs=True
    )
    logits = model(**inputs).logits[0, -1]
    hook.remove()
    assert seen == [4, 4, 4, 2]
    whole = stock[1](text=[chat_prompt(stock[1], "?", videos=1)], videos=[video], return_tensors="pt")
    torch.testing.assert_close(logits, by_hand(stock, whole, [6]), rtol=0, atol=1e-5)


def test_a_restored_processor_is_the_stock_one_again(stock: Any) -> None:
    _, processor = tiny_kimi_k25(patch_size=10, frame_tokens=TOKENS)
    vidcom2.apply(tiny_kimi_k25(patch_size=10)[0], processor=processor)
    restore(processor)
    assert asked(processor, 8).keys() == asked(stock[1], 8).keys()
