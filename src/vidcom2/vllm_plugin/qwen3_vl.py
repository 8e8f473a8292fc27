"""Qwen3-VL, Qwen3-VL-MoE, Qwen3.5, Qwen3.5-MoE and Cosmos 3 with VidCom² in vLLM. `separate_frames.py` does the work.

Their prompts have the same layout: for each pair of frames its time, a start mark, the tokens, and an end mark.
"""
# vLLM is not installed where pyright runs.
# pyright: reportMissingImports=false

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor
from vllm.model_executor.models.cosmos3 import Cosmos3ForConditionalGeneration
from vllm.model_executor.models.qwen3_5 import Qwen3_5ForConditionalGeneration, Qwen3_5MoeForConditionalGeneration
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration
from vllm.model_executor.models.qwen3_vl_moe import Qwen3VLMoeForConditionalGeneration

from .compressed_videos import with_processor
from .qwen2_vl import CompressedQwenVideosProcessor
from .separate_frames import SeparateFramesProcessor, SeparateMRopeFramesModel


class CompressedQwen3VideosProcessor(SeparateFramesProcessor, CompressedQwenVideosProcessor):
    """The processor's mixin for families with this layout."""

    def texts_of_videos(
        self, mm_items: Any, outputs: Mapping[str, Any], hf_kwargs: Mapping[str, object]
    ) -> Iterator[Sequence[int]]:
        """Yield the text of each video: its pairs of frames with a single placeholder each, between the marks."""
        config = self.info.get_hf_config()
        for timestamps in outputs["timestamps"]:
            with_one_each = self.get_video_repl(
                tokens_per_frame=[1] * len(timestamps),
                timestamps=timestamps,
                tokenizer=self.info.get_tokenizer(),
                vision_start_token_id=config.vision_start_token_id,
                vision_end_token_id=config.vision_end_token_id,
                video_token_id=config.video_token_id,
            )
            yield with_one_each.full


class CompressedQwen3VideosModel(SeparateMRopeFramesModel):
    """The model's mixin for families with this layout."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        multimodal = vllm_config.model_config.multimodal_config
        # vLLM makes its table of rotary positions longer than the prompt only while its own pruning looks switched on.
        # Any rate does so. What the user set was read when the settings were checked.
        multimodal.video_pruning_rate = 0.5
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        multimodal.video_pruning_rate = None

    @property
    def features_width(self) -> int:
        """Channels of a feature without its shift (see `MRopeVideosModel`), with those of DeepStack's layers."""
        return self.visual_dim + self.multiscale_dim

    @property
    def frame_marks(self) -> tuple[int, int]:
        """The ids of the marks around the tokens of a frame."""
        return self.config.vision_start_token_id, self.config.vision_end_token_id


@with_processor(CompressedQwen3VideosProcessor)
class VidCom2Qwen3VLForVllm(CompressedQwen3VideosModel, Qwen3VLForConditionalGeneration):
    """vLLM's Qwen3-VL with only the kept tokens of each video."""


@with_processor(CompressedQwen3VideosProcessor)
class VidCom2Qwen3_5ForVllm(CompressedQwen3VideosModel, Qwen3_5ForConditionalGeneration):
    """vLLM's Qwen3.5 with only the kept tokens of each video."""


@with_processor(CompressedQwen3VideosProcessor)
class VidCom2Qwen3_5MoeForVllm(CompressedQwen3VideosModel, Qwen3_5MoeForConditionalGeneration):
    """vLLM's Qwen3.5-MoE with only the kept tokens of each video."""


@with_processor(CompressedQwen3VideosProcessor)
class VidCom2Cosmos3OmniForVllm(CompressedQwen3VideosModel, Cosmos3ForConditionalGeneration):
    """vLLM's Cosmos 3 with only the kept tokens of each video. It loads released checkpoints, whose files lie in
    subfolders and have names of their own, and those saved by Transformers, with Qwen3-VL's names in the top folder."""

    allow_patterns_overrides: ClassVar = ["*.safetensors", *Cosmos3ForConditionalGeneration.allow_patterns_overrides]
    hf_to_vllm_mapper = (
        Qwen3VLForConditionalGeneration.hf_to_vllm_mapper | Cosmos3ForConditionalGeneration.hf_to_vllm_mapper
    )


@with_processor(CompressedQwen3VideosProcessor)
class VidCom2Qwen3VLMoeForVllm(CompressedQwen3VideosModel, Qwen3VLMoeForConditionalGeneration):
    """vLLM's Qwen3-VL-MoE with only the kept tokens of each video. It reads experts both as Transformers 5 saves them
    and as the released checkpoints have them."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the weights as the parent does.

        Raises:
            ValueError: if both axes of the experts' weights have the same size, so that a transposed one looks alike.
        """
        return super().load_weights(self._as_released(weights))

    def _as_released(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Transpose experts saved by Transformers 5, (E, 2I, H) and (E, H, I), because vLLM expects the released
        checkpoints' (E, H, 2I) and (E, I, H)."""
        text = self.config.text_config
        widths = {"gate_up_proj": 2 * text.moe_intermediate_size, "down_proj": text.moe_intermediate_size}
        axis_of_hidden = {"gate_up_proj": -1, "down_proj": -2}  # in Transformers 5
        for name, weight in weights:
            kind = name.rpartition(".mlp.experts.")[2]
            if kind in widths:
                if widths[kind] == text.hidden_size:
                    raise ValueError(
                        f"`{name}` has shape {tuple(weight.shape)}, which does not tell whether it is transposed, "
                        "because its two axes have the same size. Serve this model with Transformers."
                    )
                if weight.shape[axis_of_hidden[kind]] == text.hidden_size:
                    weight = weight.mT
            yield name, weight
