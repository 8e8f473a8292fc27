"""The peculiarities of LLaVA-NeXT-Video: a class token, and patches that are pooled before the projector."""

from typing import Any

import pytest
import torch
from conftest import Family
from models import MODELS
from torch import Tensor
from transformers import (
    CLIPVisionModel,
    LlamaConfig,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
    SiglipVisionConfig,
)

from vidcom2 import CompressionSettings, VidCom2LlavaNextVideoConfig, VidCom2LlavaNextVideoForConditionalGeneration
from vidcom2.modeling.prompt.prompt_compression import positions_made_for
from vidcom2.tiny.common import TINY_TOWER

CASE = next(case for case in MODELS if case.name == "llava_next_video")
CLOSE = {"rtol": 0, "atol": 1e-6}
# Each changes a field of the config that has its default in the tiny checkpoint.
VARIANTS = [{}, {"vision_feature_layer": [-2, -1]}, {"spatial_pool_mode": "max"}, {"spatial_pool_mode": "conv"}]


@pytest.fixture(scope="module", params=VARIANTS, ids=["default", "two_layers", "max", "conv"])
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    stock, processor = CASE.build(**CASE.build_arguments)
    for name, value in request.param.items():
        setattr(stock.config, name, value)
    stock = LlavaNextVideoForConditionalGeneration(stock.config).eval()
    folder = tmp_path_factory.mktemp("variant")
    stock.save_pretrained(folder)
    return Family(CASE, folder, stock, processor)


def states_of(tower: CLIPVisionModel, frames: Tensor, layers: int | list[int], **kwargs: Any) -> Tensor:
    """Return the tower's hidden states (F, patches, V) without its class token."""
    hidden = tower(frames, output_hidden_states=True, **kwargs).hidden_states
    return torch.cat([hidden[layer][:, 1:] for layer in ([layers] if isinstance(layers, int) else layers)], dim=-1)


@pytest.mark.parametrize("chunk", [None, 3])
@torch.no_grad()
def test_tokens_are_pooled_from_the_towers_states_without_the_class_token(variant: Family, chunk: int | None) -> None:
    model, mode = variant.model.model, variant.stock.config.spatial_pool_mode
    pixels = variant.one_video()["pixel_values_videos"]
    outputs, (video,) = model.encode_videos(
        pixel_values_videos=pixels, settings=CompressionSettings(vision_chunk_frames=chunk)
    )
    expected = states_of(variant.stock.model.vision_tower, pixels[0], variant.stock.config.vision_feature_layer)
    assert video.grid == (3, 3)
    for t, states in enumerate(expected):
        for token in range(9):
            top, left = 2 * (token // 3), 2 * (token % 3)
            block = torch.stack([states[6 * y + x] for y in (top, top + 1) for x in (left, left + 1)])
            if mode == "conv":
                convolution = model.vision_resampler.pool
                pooled = torch.einsum("ovn,nv->o", convolution.weight.flatten(2), block) + convolution.bias
            else:
                pooled = block.mean(dim=0) if mode == "average" else block.amax(dim=0)
            torch.testing.assert_close(model.multi_modal_projector(pooled), video.tokens[t, token], **CLOSE)
    assert torch.equal(video.tokens.flatten(0, 1), outputs.pooler_output[0])


@torch.no_grad()
def test_frames_of_another_size_have_their_own_grid(variant: Family) -> None:
    """Frames of 112 × 112 pixels have 8 × 8 patches, for a tower of 6 × 6."""
    pixels = torch.randn(1, 4, 3, 112, 112)
    _, (video,) = variant.model.model.encode_videos(
        pixel_values_videos=pixels, settings=CompressionSettings(), interpolate_pos_encoding=True
    )
    assert video.grid == (4, 4)
    whole = variant.stock.get_video_features(pixels, interpolate_pos_encoding=True).pooler_output[0]
    assert torch.equal(video.tokens.flatten(), whole.flatten())


@torch.no_grad()
def test_a_siglip_tower_can_compute_only_some_of_the_patches() -> None:
    stock, _ = CASE.build(**CASE.build_arguments)
    tower = SiglipVisionConfig(**TINY_TOWER, image_size=84, patch_size=14, vision_use_head=False)
    fields = stock.config.to_dict() | {"vision_config": tower.to_dict(), "vision_feature_select_strategy": "full"}
    del fields["model_type"]
    stock = LlavaNextVideoForConditionalGeneration(LlavaNextVideoConfig(**fields)).eval()
    ours = VidCom2LlavaNextVideoForConditionalGeneration(VidCom2LlavaNextVideoConfig(**fields)).eval()
    ours.load_state_dict(stock.state_dict())
    pixels = torch.randn(1, 1, 3, 84, 84) + 0.1 * torch.randn(1, 6, 3, 84, 84)  # frames without cuts
    whole = stock.get_video_features(pixels).pooler_output[0].flatten(0, -2)
    for tolerance, expected in ((0.0, True), (0.2, False)):
        encoding = {"vision_method": "skip_repeated", "vision_tolerance": tolerance}
        features = ours.get_video_features(pixels, retention_ratio=1.0, **encoding)
        assert torch.allclose(features.pooler_output[0], whole, rtol=0, atol=1e-6) == expected


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> VidCom2LlavaNextVideoForConditionalGeneration:
    stock, _ = CASE.build(**CASE.build_arguments)
    model = VidCom2LlavaNextVideoForConditionalGeneration(stock.config).eval()
    model.load_state_dict(stock.state_dict())
    return model


# 6 × 24 patches are as many as 12 × 12, and the parent would pool them as a square.
@pytest.mark.parametrize("size", [(84, 336), (98, 84)])
def test_frames_that_are_not_square_are_refused(model: Any, size: tuple[int, int]) -> None:
    pixels = torch.randn(1, 2, 3, *size)
    with pytest.raises(ValueError, match=rf"frames of {size[0]} × {size[1]} pixels.*cropping"):
        model.get_video_features(pixels, interpolate_pos_encoding=True)


def test_pooling_the_class_token_is_refused(model: Any) -> None:
    pixels = torch.randn(1, 2, 3, 84, 84)
    with pytest.raises(ValueError, match=r"'full', but the vision tower has a class token.*Pass 'default'"):
        model.get_video_features(pixels, vision_feature_select_strategy="full")


# -- how long a prompt may be -----------------------------------------------------------------------------------------


def scaled(**rope: Any) -> LlamaConfig:
    return LlamaConfig(max_position_embeddings=4096, rope_parameters={"rope_theta": 1e4, **rope})


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_type": "default"}, 4096),
        ({"rope_type": "linear", "factor": 2.5}, 10240),  # the 7B model, whose usual 32 frames take 4,608 tokens
        ({"rope_type": "dynamic", "factor": 2.0}, 8192),
        # With YaRN, `max_position_embeddings` already counts the scaled positions.
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
    ],
)
def test_scaled_rotary_positions_allow_longer_prompts(rope: dict[str, Any], expected: int) -> None:
    assert positions_made_for(scaled(**rope)) == expected
    assert positions_made_for(LlamaConfig.from_dict(scaled(**rope).to_dict())) == expected
