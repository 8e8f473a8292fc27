"""Placeholders that videos share with images, between the marks of a video, as in GLM's families."""

import torch
from conftest import Family, only
from models import RETENTION_RATIO, make_image, make_video
from reference import new_tokens
from test_generate import MODES, defaults, make_prompt, run

from vidcom2.modeling.prompt.calls import CHUNKS_FEATURES

pytestmark = only(lambda family: family.shares_ids)


def test_the_end_mark_of_a_video_in_a_text_moves_no_placeholder(family: Family) -> None:
    inputs = family.one_video("What does <|end_of_video|> mean?")
    before = family.inputs(
        family.prompt("<|end_of_video|> and", videos=0) + family.prompt("?", videos=1), videos=[make_video(0)]
    )
    turns = family.inputs(family.prompt("Is it <|end_of_video|>?", videos=1) * 2, videos=[make_video(0), make_video(1)])
    mark = family.model.config.video_end_token_id
    for prompt, marks, videos in ((inputs, 2, 1), (before, 2, 1), (turns, 4, 2)):
        assert int((prompt["input_ids"] == mark).sum()) == marks
        is_video = family.model.model.kinds(prompt["input_ids"]) == 2
        assert torch.equal(is_video, prompt["input_ids"] == family.model.config.image_token_id)
        assert int(is_video.sum()) == videos * family.case.video_tokens(8)
        family.model.generate(**prompt, max_new_tokens=1)


def test_the_marks_of_a_video_tell_its_placeholders_from_those_of_images(family: Family) -> None:
    """The processor agrees, in a padded batch with images before, between and behind videos. In the ids that the model
    runs, a chunk without marks tells them apart too."""
    image, video = "<|begin_of_image|><|image|><|end_of_image|>", "<|begin_of_video|><|video|><|end_of_video|>"
    inputs = family.inputs(
        f"{image}{video}{image}{video}{image}?",
        f"{video}?",
        videos=[make_video(seed) for seed in range(3)],
        images=[make_image(seed) for seed in range(3)],
    )
    model, ids, types = family.model.model, inputs["input_ids"], inputs["mm_token_type_ids"]
    assert (model.kinds(ids).clamp(min=0) == types).all() and {1, 2} <= set(types.flatten().tolist())
    distinct = model.distinct_ids(ids, model.kinds(ids))
    assert torch.equal(distinct == model.config.image_token_id, types == 1)
    assert torch.equal(distinct == model.config.video_token_id, types == 2)
    for start in range(0, ids.shape[1], 7):
        chunk = slice(start, start + 7)
        assert (model.kinds(distinct[:, chunk]).clamp(min=0) == types[:, chunk]).all()
    assert torch.equal(model.distinct_ids(distinct, model.kinds(distinct)), distinct)


def test_features_are_found_where_transformers_repeats_or_splits_them(family: Family) -> None:
    """The stock class loses those of videos there."""
    for mode in ("beams_returned", *(["chunked_prefill"] if CHUNKS_FEATURES else [])):
        for kind in ("one_video", "two_videos"):
            inputs, settings = make_prompt(family, kind), defaults(family.stock) | MODES[mode]
            settings.pop("prefill_chunk_size", None)  # the stock class cannot split embeddings
            ours = run(family.model, inputs, **MODES[mode])[:, inputs["input_ids"].shape[1] :]
            assert torch.equal(ours, new_tokens(family, inputs, RETENTION_RATIO, 6, **settings))
