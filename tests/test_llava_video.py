"""LLaVA-Video: its arithmetic beside a plain restatement of the original, its newlines, and its processor."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llava_video_original import Sizes, image_tokens, video_tokens, write_original
from models import make_image, make_video
from PIL import Image
from reference import EXACT
from torch import Tensor
from transformers import AutoProcessor

from vidcom2 import compress
from vidcom2.configuration.configuration_vidcom2_llava_video import (
    COMPRESSION_NEWLINES,
    SPATIAL_POOL_MODES,
    VidCom2LlavaVideoConfig,
    tokens_per_frame,
)
from vidcom2.llava_video.classes import LlavaVideoProcessor, VidCom2LlavaVideoForConditionalGeneration
from vidcom2.llava_video.converter import convert_llava_video
from vidcom2.loading.processors import of_whole_prompts
from vidcom2.modeling.families.modeling_vidcom2_llava_video import LlavaVideoForConditionalGeneration

SIZES = Sizes()  # 7 x 7 patches are pooled to 3 x 3, or with "bilinear" to 4 x 4
SIDES = {"average": 3, "max": 3, "bilinear": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convert a checkpoint, and return its folder."""
    root = tmp_path_factory.mktemp("llava_video")
    write_original(root / "original", SIZES)
    convert_llava_video(str(root / "original"), str(root / "converted"))
    return root / "converted"


@pytest.fixture(scope="module")
def weights(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return write_original(tmp_path_factory.mktemp("again") / "original", SIZES)


def of_whole_prompts_in(folder: Path, **arguments: Any) -> Any:
    """Return the processor in a folder, which writes a placeholder for every token."""
    return of_whole_prompts(AutoProcessor.from_pretrained(folder, **arguments))


@pytest.fixture(scope="module")
def processor(folder: Path) -> LlavaVideoProcessor:
    return of_whole_prompts_in(folder, add_time_instruction=False)


def load(folder: Path, **kwargs: Any) -> VidCom2LlavaVideoForConditionalGeneration:
    return VidCom2LlavaVideoForConditionalGeneration.from_pretrained(folder, **kwargs).eval()


@pytest.fixture(scope="module")
def model(folder: Path) -> VidCom2LlavaVideoForConditionalGeneration:
    return load(folder, retention_ratio=0.25)


def prompt_of(processor: LlavaVideoProcessor, videos: int = 1, images: int = 0, question: str = "What?") -> str:
    content = [{"type": "image"}] * images + [{"type": "video"}] * videos + [{"type": "text", "text": question}]
    return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)


def one_video(processor: LlavaVideoProcessor, num_frames: int = 4, **kwargs: Any) -> dict[str, Tensor]:
    video = make_video(0, num_frames, unique_frame=2)
    return processor(text=[prompt_of(processor)], videos=[video], return_tensors="pt", **kwargs)


# -- the original's arithmetic ----------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("mode", SPATIAL_POOL_MODES)
def test_the_tokens_that_enter_the_language_model_equal_the_originals(
    folder: Path, weights: dict[str, Tensor], mode: str
) -> None:
    model = load(folder, retention_ratio=1.0, spatial_pool_mode=mode)
    processor = of_whole_prompts_in(folder, spatial_pool_mode=mode, add_time_instruction=False)
    inputs = one_video(processor, num_frames=3)
    entered = []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: entered.append(kwargs["inputs_embeds"]), with_kwargs=True
    )
    try:
        model(**inputs)
    finally:
        hook.remove()
    expected = video_tokens(weights, SIZES, inputs["pixel_values_videos"][0], mode)
    assert len(expected) == 3 * SIDES[mode] * (SIDES[mode] + 1)
    is_video = inputs["input_ids"][0] == model.config.video_token_id
    torch.testing.assert_close(entered[0][0, is_video].double(), expected, rtol=0, atol=1e-4)
    text = torch.stack([weights["model.embed_tokens.weight"][i] for i in inputs["input_ids"][0, ~is_video]])
    assert torch.equal(entered[0][0, ~is_video], text)


@torch.no_grad()
@pytest.mark.parametrize(
    "height, width, tiles",
    [(60, 90, 2), (98, 98, 2), (300, 40, 5), (50, 400, 6), (588, 588, 37), (400, 590, 31)],
    ids=["small", "one tile", "tall", "wide", "shrunk", "shrunk and unpadded"],
)
def test_the_tokens_of_an_image_equal_the_originals(
    folder: Path,
    model: VidCom2LlavaVideoForConditionalGeneration,
    processor: LlavaVideoProcessor,
    weights: dict[str, Tensor],
    height: int,
    width: int,
    tiles: int,
) -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, height, width), dtype=np.uint8)
    inputs = processor(text=[prompt_of(processor, 0, 1)], images=[image], return_tensors="pt")
    assert inputs["pixel_values"].shape[1] == tiles
    arguments = {name: inputs[name] for name in ("pixel_values", "image_sizes", "batch_num_images")}
    (tokens,) = model.get_image_features(**arguments).pooler_output
    pinpoints = model.config.image_grid_pinpoints
    expected = image_tokens(weights, SIZES, inputs["pixel_values"][0], height, width, pinpoints)
    torch.testing.assert_close(tokens.double(), expected, rtol=0, atol=1e-4)
    assert (inputs["input_ids"] == model.config.image_token_id).sum() == len(tokens)


@torch.no_grad()
def test_the_tokens_of_one_of_several_images_equal_the_originals(
    model: VidCom2LlavaVideoForConditionalGeneration, processor: LlavaVideoProcessor, weights: dict[str, Tensor]
) -> None:
    images = [make_image(0), make_image(1)]
    inputs = processor(text=[prompt_of(processor, 0, 2)], images=[images], return_tensors="pt")
    arguments = {name: inputs[name] for name in ("pixel_values", "image_sizes", "batch_num_images")}
    for tokens, tiles in zip(model.get_image_features(**arguments).pooler_output, inputs["pixel_values"], strict=True):
        expected = image_tokens(weights, SIZES, tiles[:1], 70, 90, [])
        torch.testing.assert_close(tokens.double(), expected, rtol=0, atol=1e-4)


def test_frames_are_resized_to_squares_and_scaled_as_the_original_does(processor: LlavaVideoProcessor) -> None:
    video = make_video(0, 2)
    pixels = one_video(processor, num_frames=2)["pixel_values_videos"][0]
    video = make_video(0, 2, unique_frame=2)
    for frame, seen in zip(video, pixels, strict=True):
        resized = Image.fromarray(frame.transpose(1, 2, 0)).resize((98, 98), Image.Resampling.BICUBIC)
        expected = (torch.from_numpy(np.array(resized)).permute(2, 0, 1) / 255 - 0.5) / 0.5
        assert (seen - expected).abs().max() <= 2 / 255 + 1e-6  # one step of uint8, since both round while resizing


def test_the_released_grid_has_the_papers_token_counts() -> None:
    config = VidCom2LlavaVideoConfig()
    assert config.patches_per_side == 27
    assert {mode: 64 * tokens_per_frame(27, mode) for mode in SPATIAL_POOL_MODES} == {
        "average": 64 * 182,
        "max": 64 * 182,
        "bilinear": 64 * 210,
    }
    assert (config.vision_config.num_hidden_layers, config.vision_feature_layer) == (26, -1)


# -- newlines ---------------------------------------------------------------------------------------------------------


def rows_by_hand(kept: set[int], num_frames: int, side: int, newlines: str) -> list[int]:
    """Return the placeholders of the kept tokens and newlines, in the order of their features, row by row."""
    order = []
    for frame in range(num_frames):
        after = []
        for row in range(side):
            first = frame * side * (side + 1) + row * (side + 1)
            columns = [c for c in range(side) if frame * side**2 + row * side + c in kept]
            order += [first + c for c in columns]
            if newlines == "trailing":
                after.append(first + side)
            elif newlines == "all" or columns:
                order.append(first + side)
        order += after
    return order


@pytest.mark.parametrize("mode", SPATIAL_POOL_MODES)
@pytest.mark.parametrize("newlines", COMPRESSION_NEWLINES)
def test_newlines_are_kept_where_the_setting_says(
    folder: Path, processor: LlavaVideoProcessor, newlines: str, mode: str
) -> None:
    model = load(folder, retention_ratio=0.25, compression_newlines=newlines, spatial_pool_mode=mode)
    videos = one_video(processor)["pixel_values_videos"]
    (full,) = model.model.parent_video_features(pixel_values_videos=videos).pooler_output
    features = model.get_video_features(videos)
    side = SIDES[mode]

    tokens = torch.stack([t for i, t in enumerate(full) if (i + 1) % (side + 1)])  # every (side + 1)-th is a newline
    expected = compress(tokens.reshape(4, side**2, -1), 0.25, **EXACT)
    assert torch.equal(features.video_compressions[0].indices, expected.indices)
    order = rows_by_hand(set(expected.indices.tolist()), 4, side, newlines)
    assert torch.equal(features.pooler_output[0], full[order])
    count = {"all": 4 * side, "trailing": 4 * side, "occupied": len({i // side for i in expected.indices.tolist()})}
    assert len(order) == len(expected.indices) + count[newlines]
    assert count["occupied"] < 4 * side, "no row is empty, so the modes do not differ"


def prompt_by_hand(
    model: VidCom2LlavaVideoForConditionalGeneration, inputs: dict[str, Tensor], newlines: str
) -> tuple[Tensor, list[int]]:
    """Compress a prompt with one video by hand. Return its embeddings (1, L', dim) and the remaining positions."""
    ids = inputs["input_ids"][0]
    (full,) = model.model.parent_video_features(pixel_values_videos=inputs["pixel_values_videos"]).pooler_output
    tokens = torch.stack([t for i, t in enumerate(full) if (i + 1) % 4])
    kept = compress(tokens.reshape(4, 9, -1), 0.25, **EXACT).indices.tolist()
    order = rows_by_hand(set(kept), 4, 3, newlines)
    places = (ids == model.config.video_token_id).nonzero().flatten().tolist()
    embeddings = model.get_input_embeddings()(ids)
    before, after = list(range(places[0])), list(range(places[-1] + 1, len(ids)))
    rows = [*(embeddings[i] for i in before), *(full[i] for i in order), *(embeddings[i] for i in after)]
    return torch.stack(rows)[None], [*before, *sorted(places[i] for i in order), *after]


@torch.no_grad()
@pytest.mark.parametrize("newlines", COMPRESSION_NEWLINES)
def test_forward_and_generate_equal_those_of_the_prompt_compressed_by_hand(
    folder: Path, processor: LlavaVideoProcessor, newlines: str
) -> None:
    model = load(folder, retention_ratio=0.25, compression_newlines=newlines)
    parent = LlavaVideoForConditionalGeneration.from_pretrained(folder).eval()
    inputs = one_video(processor)
    embeddings, remaining = prompt_by_hand(model, inputs, newlines)
    theirs = parent(inputs_embeds=embeddings)
    ours = model(**inputs)
    torch.testing.assert_close(ours.logits[:, remaining], theirs.logits, rtol=0, atol=1e-4)
    kwargs = {"max_new_tokens": 5, "do_sample": False, "repetition_penalty": 1.0}
    for beams in (1, 2):
        theirs = parent.generate(inputs_embeds=embeddings, num_beams=beams, **kwargs)
        ours = model.generate(**inputs, num_beams=beams, return_dict_in_generate=True, **kwargs)
        new = ours.sequences[:, inputs["input_ids"].shape[1] :]
        assert torch.equal(new, theirs)
        assert ours.past_key_values.get_seq_length() == embeddings.shape[1] + new.shape[1] - 1


@pytest.mark.parametrize("ratio", [0.25, 1.0])
def test_a_processor_with_another_pooling_mode_is_refused(
    folder: Path, model: VidCom2LlavaVideoForConditionalGeneration, ratio: float
) -> None:
    other = of_whole_prompts_in(folder, spatial_pool_mode="bilinear", add_time_instruction=False)
    with pytest.raises(ValueError, match=r"placeholders|do not match"):
        model(**one_video(other), retention_ratio=ratio)


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [{"spatial_pool_mode": "mean"}, {"compression_newlines": 1}], ids=str)
def test_a_bad_setting_is_refused_wherever_it_is_set(folder: Path, setting: dict, tmp_path: Path) -> None:
    ((name, value),) = setting.items()
    config = VidCom2LlavaVideoConfig()
    before = getattr(config, name)
    (tmp_path / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | setting))
    calls = [
        lambda: VidCom2LlavaVideoConfig(**setting),
        lambda: setattr(config, name, value),
        lambda: load(folder, **setting),
        lambda: VidCom2LlavaVideoConfig.from_pretrained(tmp_path),
    ]
    if name == "spatial_pool_mode":
        calls.append(lambda: AutoProcessor.from_pretrained(folder, **setting))
    for call in calls:
        with pytest.raises(ValueError, match=f"`{name}` is {value!r}, but must be one of"):
            call()
    assert getattr(config, name) == before


# -- processor --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", SPATIAL_POOL_MODES)
@pytest.mark.parametrize("num_frames", [1, 2, 7])
def test_a_video_becomes_one_placeholder_per_token_and_newline(folder: Path, num_frames: int, mode: str) -> None:
    processor = of_whole_prompts_in(folder, spatial_pool_mode=mode, add_time_instruction=False)
    inputs = one_video(processor, num_frames)
    expected = num_frames * SIDES[mode] * (SIDES[mode] + 1)
    assert (inputs["input_ids"] == processor.video_token_id).sum() == expected
    counts = processor._get_num_multimodal_tokens(video_sizes=[(num_frames, 60, 80)], image_sizes=[(70, 90)])
    assert counts.num_video_tokens == [expected] and len(counts.num_image_tokens) == 1
    types = processor(
        text=["<video>?"], videos=[make_video(0, num_frames)], return_mm_token_type_ids=True, return_tensors="pt"
    )["mm_token_type_ids"]
    assert (types == 2).sum() == expected and types[0, -1] == 0


METADATA = {"total_num_frames": 40, "fps": 8.0, "frames_indices": [0, 13, 26, 39]}
INSTRUCTION = (
    "The video lasts for 5.00 seconds, and 4 frames are uniformly sampled from it. These frames are located at "
    "0.00s,1.62s,3.25s,4.88s.Please answer the following questions related to this video."
)


def text_of(processor: LlavaVideoProcessor, inputs: dict[str, Tensor], row: int = 0) -> str:
    return processor.decode(inputs["input_ids"][row]).replace("<video>", "")


def test_the_time_instruction_stands_between_the_video_and_the_question(folder: Path) -> None:
    processor = of_whole_prompts_in(folder)
    assert processor.add_time_instruction  # as in the source's config
    inputs = one_video(processor, video_metadata=[METADATA])
    assert f"<|im_start|>user\n\n{INSTRUCTION}\nWhat?<|im_end|>" in text_of(processor, inputs)
    assert "video_metadata" not in inputs
    off = one_video(processor, video_metadata=[METADATA], add_time_instruction=False)
    assert "<|im_start|>user\n\nWhat?<|im_end|>" in text_of(processor, off)
    every_frame = one_video(processor, video_metadata=[{"total_num_frames": 4, "fps": 2.0}])
    assert "at 0.00s,0.50s,1.00s,1.50s.Please" in text_of(processor, every_frame)


@pytest.mark.parametrize(
    "metadata",
    [None, {"total_num_frames": 4}, {"total_num_frames": 40, "fps": 8.0}, METADATA | {"frames_indices": [0, 1]}],
    ids=["none", "no fps", "no indices", "other indices"],
)
def test_unknown_times_are_refused_when_asked_for_and_left_out_otherwise(folder: Path, metadata: dict | None) -> None:
    processor = of_whole_prompts_in(folder)
    kwargs = {} if metadata is None else {"video_metadata": [metadata]}
    assert "seconds" not in text_of(processor, one_video(processor, **kwargs))
    with pytest.raises(ValueError, match=r"`video_metadata` with `fps`.*Pass them, or `add_time_instruction=False`"):
        one_video(processor, add_time_instruction=True, **kwargs)


def test_the_time_instruction_names_the_times_of_the_sampled_frames_of_each_video(
    processor: LlavaVideoProcessor,
) -> None:
    inputs = processor(
        text=["<video><video>a", "<video>b"],
        videos=[make_video(seed, 40) for seed in range(3)],
        video_metadata=[{"total_num_frames": 40, "fps": fps} for fps in (4.0, 8.0, 16.0)],
        num_frames=4,
        do_sample_frames=True,
        add_time_instruction=True,
        padding=True,
        return_tensors="pt",
    )
    assert inputs["pixel_values_videos"].shape[1] == 4
    first, second = (text_of(processor, inputs, row) for row in range(2))
    of_first = [first.index(f"at {times}.Please") for times in ("0.00s,2.50s,5.00s,7.50s", "0.00s,1.25s,2.50s,3.75s")]
    assert of_first[0] < of_first[1] and "at 0.00s,0.62s,1.25s,1.88s.Please" in second


def test_the_chat_template_tokenizes_decoded_videos_and_images(processor: LlavaVideoProcessor) -> None:
    def chat(seed: int) -> list[dict[str, Any]]:
        image = Image.fromarray(make_image(seed).transpose(1, 2, 0))
        content = [{"type": "video", "video": make_video(seed, 3)}, {"type": "image", "image": image}]
        return [{"role": "user", "content": [*content, {"type": "text", "text": "What?"}]}]

    metadata = [{"total_num_frames": 3, "fps": 1.0}] * 2
    inputs = processor.apply_chat_template(
        [chat(0), chat(1)],
        tokenize=True,
        return_dict=True,
        add_generation_prompt=True,
        return_tensors="pt",
        processor_kwargs={"padding": True, "video_metadata": metadata, "add_time_instruction": True},
    )
    assert inputs["pixel_values_videos"].shape[:2] == (2, 3)
    assert (inputs["input_ids"] == processor.video_token_id).sum(dim=1).tolist() == [36, 36]
    text = text_of(processor, inputs)
    assert text.startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<image>")
    assert text.endswith("related to this video.\nWhat?<|im_end|>\n<|im_start|>assistant\n")
    with_system = [{"role": "system", "content": "Be brief."}, *chat(0)]
    assert "helpful" not in processor.apply_chat_template(with_system)


def test_the_processor_survives_saving(folder: Path, tmp_path: Path) -> None:
    processor = AutoProcessor.from_pretrained(folder, spatial_pool_mode="bilinear", add_time_instruction=False)
    processor.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "processor_config.json").read_text())
    assert saved["auto_map"] == {"AutoProcessor": "processing_llava_video.LlavaVideoProcessor"}
    again = AutoProcessor.from_pretrained(tmp_path)
    assert type(again) is LlavaVideoProcessor
    assert (again.spatial_pool_mode, again.add_time_instruction) == ("bilinear", False)
    before, after = (one_video(p) for p in (processor, again))
    assert all(torch.equal(before[name], after[name]) for name in before)
