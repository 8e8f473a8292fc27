"""MiniCPM-V 4.6 beyond what all families share: frames whose video only the prompt tells, slices, and downsampling."""

from typing import Any

import pytest
import torch
import transformers
from models import make_image, make_video
from packaging import version
from reference import kept_embeddings
from torch import Tensor
from transformers import BatchFeature

import vidcom2
from vidcom2.tiny.minicpmv import tiny_minicpmv4_6

VIDEO, IMAGE = "<|video_pad|>", "<|image_pad|>"
SIZES = {"whole": 70, "in slices": 40}  # of the square that a frame of 60 × 80 pixels is scaled to
NUMBERS = ("num_frames_per_video", "num_patches_per_frame")
IS_OLD = version.parse(transformers.__version__) < version.parse("5.21")


def videos_of_lengths(lengths: tuple[int, ...]) -> list[Any]:
    if IS_OLD and len(set(lengths)) > 1:
        pytest.skip("the processor of that time takes only videos of one length together")
    return [make_video(seed, length) for seed, length in enumerate(lengths)]


class Pair:
    """The same tiny model, stock and ours."""

    def __init__(self, scale_resolution: int):
        self.stock, self.processor = (
            part for part in tiny_minicpmv4_6(patch_size=5, scale_resolution=scale_resolution)
        )
        self.model: Any = vidcom2.apply(
            tiny_minicpmv4_6(patch_size=5, scale_resolution=scale_resolution)[0], retention_ratio=0.25
        )

    def inputs(self, *prompts: str, lengths: tuple[int, ...] = (), **arguments: Any) -> BatchFeature:
        videos = videos_of_lengths(lengths)
        images = [make_image(seed) for seed in range("".join(prompts).count(IMAGE))]
        media: dict[str, Any] = {"videos": videos or None, "images": images or None}
        return self.processor(text=list(prompts), padding=True, return_tensors="pt", **media, **arguments)

    def numbers(self, *lengths: int) -> list[list[int]]:
        """Return the frames of each video and the tiles of each frame, as the video processor alone counts them."""
        videos = videos_of_lengths(lengths)
        counted = self.processor.video_processor(videos, return_tensors="pt")
        return [torch.as_tensor(counted[name]).tolist() for name in NUMBERS]


@pytest.fixture(scope="module", params=SIZES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(SIZES[request.param])


@pytest.fixture(scope="module")
def sliced() -> Pair:
    return Pair(SIZES["in slices"])


@pytest.mark.parametrize(
    ("prompts", "lengths", "arguments"),
    [
        ([f"{VIDEO}{VIDEO}?"], (2, 3), {}),
        ([f"{IMAGE}{VIDEO}{IMAGE}\n{VIDEO}{IMAGE}"], (1, 3), {}),
        ([f"{VIDEO}a much longer one{VIDEO}", f"{VIDEO}?"], (1, 1, 2), {}),
        ([f"{VIDEO}\n{VIDEO} and{VIDEO}"], (2, 1, 1), {"use_image_id": False}),
        ([f"{VIDEO}{IMAGE}{VIDEO}"], (2, 2), {"use_image_id": False}),
    ],
)
def test_the_prompt_tells_which_frames_belong_to_which_video(
    pair: Pair, prompts: list[str], lengths: tuple[int, ...], arguments: dict[str, Any]
) -> None:
    if "use_image_id" in arguments and IS_OLD:
        arguments = {"images_kwargs": arguments}  # where the processors of that time read it
    inputs = pair.inputs(*prompts, lengths=lengths, **arguments)
    found = pair.model.model.with_videos(dict(inputs), pair.model.config.compression_settings())
    assert [found[name].tolist() for name in NUMBERS] == pair.numbers(*lengths)


def by_hand(pair: Pair, inputs: BatchFeature, *lengths: int) -> tuple[Tensor, int]:
    """Return the stock model's last logits after a prompt without the tokens that the method drops, and its length."""
    tiles = torch.stack(list(pair.stock.model.get_video_features(**videos_of(inputs)).pooler_output))
    frames = tiles.unflatten(0, (sum(lengths), -1)).flatten(1, 2)
    ids = inputs["input_ids"][0]
    is_video = ids == pair.stock.config.video_token_id
    embeddings, _ = kept_embeddings(pair.stock, ids, is_video, frames.split(list(lengths)))
    return pair.stock(inputs_embeds=embeddings).logits[0, -1], embeddings.shape[1]


def videos_of(inputs: BatchFeature) -> dict[str, Tensor]:
    return {name: inputs[name] for name in ("pixel_values_videos", "target_sizes_videos")}


@torch.no_grad()
def test_answers_are_those_of_a_prompt_compressed_by_hand(pair: Pair) -> None:
    inputs = pair.inputs(f"{VIDEO}Then{VIDEO}What?", lengths=(5, 4))
    expected, length = by_hand(pair, inputs, 5, 4)
    outputs = pair.model(**inputs, use_cache=True)
    torch.testing.assert_close(outputs.logits[0, -1], expected, rtol=0, atol=1e-5)
    assert outputs.past_key_values.get_seq_length() == length
    beams = {"max_new_tokens": 3, "num_beams": 2, "do_sample": False}
    full = pair.model.generate(**inputs, **beams, retention_ratio=1.0)
    assert torch.equal(full, pair.stock.generate(**inputs, **beams))
    twice = pair.processor(text=[f"{VIDEO}Then{VIDEO}?"], videos=[make_video(0, 4)] * 2, return_tensors="pt")
    one = pair.inputs(VIDEO, lengths=(4,))["pixel_values_videos"]  # rows, as Transformers' pipelines join them
    joined = pair.model(**twice | {"pixel_values_videos": torch.cat([one, one])}).logits
    assert torch.equal(joined, pair.model(**twice).logits)


@torch.no_grad()
def test_frames_with_slices_are_encoded_a_few_at_a_time(sliced: Pair) -> None:
    inputs = dict(zip(NUMBERS, map(torch.tensor, sliced.numbers(5, 4)), strict=True))
    inputs |= videos_of(sliced.inputs(f"{VIDEO}{VIDEO}", lengths=(5, 4)))
    whole, parts = (sliced.model.get_video_features(**inputs, vision_chunk_frames=chunk) for chunk in (None, 2))
    for ours, theirs in zip(parts.pooler_output, whole.pooler_output, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_asking_about_large_frames_makes_no_slices(sliced: Pair) -> None:
    frames = make_video(0, 4).transpose(0, 2, 3, 1)
    answer = vidcom2.ask(frames, "?", fps=1.0, model=sliced.model, processor=sliced.processor)
    whole = {"videos_kwargs": {"max_slice_nums": 1}}
    sizes = sliced.inputs(f"{VIDEO}?", lengths=(4,), **whole)["target_sizes_videos"].tolist()
    assert len(sizes) == 4 < len(sliced.inputs(f"{VIDEO}?", lengths=(4,))["target_sizes_videos"])
    assert answer.full_video_tokens == sum(rows * columns // 16 for rows, columns in sizes)


@pytest.mark.skipif(IS_OLD, reason="its processor makes no sizes for 4x")
@torch.no_grad()
def test_the_other_downsample_mode_has_four_times_as_many_tokens() -> None:
    pair = Pair(SIZES["whole"])
    inputs = pair.inputs(f"{VIDEO}What?", lengths=(4,), downsample_mode="4x")
    numbers = {"num_frames_per_video": torch.tensor([4])}
    settings = {"retention_ratio": 0.5, "downsample_mode": "4x"}
    features = pair.model.get_video_features(**videos_of(inputs), **numbers, **settings)
    assert len(features.pooler_output[0]) == 4 * 48 // 2
    assert features.video_compressions[0].grid == (6, 8)
    cache = pair.model(**inputs, **settings, use_cache=True).past_key_values
    assert cache.get_seq_length() == inputs["input_ids"].shape[1] - 4 * 48 // 2


def test_two_videos_with_nothing_between_them_count_as_one() -> None:
    """docs/limits.md says so."""
    from vidcom2.modeling.families.packed_frames import videos_in

    begin, end, video = 1, 2, 3
    assert videos_in([begin, video, end, begin, video, end], video) == [[1, 1]]
    assert videos_in([begin, video, end, 9, begin, video, end], video) == [[1], [1]]


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole() -> Pair:
    return Pair(SIZES["whole"])


def test_frames_of_different_sizes_are_refused(whole: Pair) -> None:
    inputs = whole.inputs(f"{VIDEO}{VIDEO}?", lengths=(2, 2))
    rows, columns = inputs["target_sizes_videos"][-1].tolist()
    inputs["target_sizes_videos"][-1] = torch.tensor([columns, rows])
    with pytest.raises(ValueError, match=r"frames of video 1 have tiles of different sizes.*`stack_frames=1`"):
        whole.model(**inputs)
    assert whole.model(**inputs, retention_ratio=1.0).logits.isfinite().all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_frames_per_video": [3]}, r"`num_frames_per_video` is \[3\]"),
        ({"num_frames_per_video": [4, 0]}, r"is \[4, 0\]"),
        ({"num_patches_per_frame": [1, 1, 1]}, "Pass them as the processor made them"),
        ({"target_sizes_videos": None}, "`target_sizes_videos` is None"),
        ({"target_sizes_videos": [[12, 16]] * 3}, "has 3 tiles"),
        ({"target_sizes_videos": [[6, 32]] * 4}, "6 × 32 patches, but 4 must divide both"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(whole: Pair, changed: dict[str, Any], message: str) -> None:
    inputs = videos_of(whole.inputs(f"{VIDEO}?", lengths=(4,)))
    given = {name: value if value is None else torch.tensor(value) for name, value in changed.items()}
    with pytest.raises(ValueError, match=message):
        whole.model.get_video_features(**inputs | given)


def test_a_truncated_prompt_is_refused(pair: Pair) -> None:
    inputs = dict(pair.inputs(f"{VIDEO}?", lengths=(4,)))
    for name in ("input_ids", "attention_mask"):
        inputs[name] = inputs[name][:, :20]
    with pytest.raises(ValueError, match=r"frames and slices of videos .* but `target_sizes_videos` has .* truncate"):
        pair.model(**inputs)
