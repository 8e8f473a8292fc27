"""Qwen3-VL-MoE with VidCom² in vLLM. This file holds what differs from Qwen3-VL."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from collections.abc import Iterable, Iterator

from torch import Tensor
from vllm.model_executor.models.qwen3_vl import Qwen3VLDummyInputsBuilder
from vllm.model_executor.models.qwen3_vl_moe import Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeProcessingInfo
from vllm.multimodal import MULTIMODAL_REGISTRY

from .qwen3_vl import CompressedQwen3VideosModel, VidCom2Qwen3VLProcessorForVllm


@MULTIMODAL_REGISTRY.register_processor(
    VidCom2Qwen3VLProcessorForVllm, info=Qwen3VLMoeProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class VidCom2Qwen3VLMoeForVllm(CompressedQwen3VideosModel, Qwen3VLMoeForConditionalGeneration):
    """vLLM's Qwen3-VL-MoE with only the kept tokens of each video. It reads experts both as Transformers 5 saves them
    and as the released checkpoints have them."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the weights as the parent does.

        Raises:
            ValueError: if the widths of the model do not tell whether the weights of experts are transposed.
        """
        return super().load_weights(self._as_released(weights))

    def _as_released(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Transpose experts saved by Transformers 5, because vLLM expects their axes as in the released checkpoints."""
        text = self.config.text_config
        widths = {"gate_up_proj": 2 * text.moe_intermediate_size, "down_proj": text.moe_intermediate_size}
        axis_of_hidden = {"gate_up_proj": -1, "down_proj": -2}  # in Transformers 5
        for name, weight in weights:
            kind = name.rpartition(".mlp.experts.")[2]
            if kind in widths:
                if widths[kind] == text.hidden_size:
                    raise ValueError(
                        f"`{name}` has shape {tuple(weight.shape)}, which does not tell whether it is transposed, "
                        "because `hidden_size` equals the experts' own width. Serve this model with Transformers."
                    )
                if weight.shape[axis_of_hidden[kind]] == text.hidden_size:
                    weight = weight.mT
            yield name, weight
