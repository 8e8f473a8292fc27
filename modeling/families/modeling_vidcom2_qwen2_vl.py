"""Qwen2-VL with VidCom²: what differs from the parent classes."""

from transformers import Qwen2VLForConditionalGeneration, Qwen2VLModel

from ...configuration.configuration_vidcom2_qwen2_vl import VidCom2Qwen2VLConfig
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .qwen_videos import QwenVideoModelMixin, VidCom2QwenCausalLMOutputWithPast


class VidCom2Qwen2VLModel(QwenVideoModelMixin, Qwen2VLModel):
    """Qwen2-VL without its head, with the language model on the compressed prompt.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` leaves the dropped tokens out of the prompt.
        - M-RoPE positions are computed on the full prompt, and every survivor keeps its own (t, h, w).
    """

    config: VidCom2Qwen2VLConfig


class VidCom2Qwen2VLForConditionalGeneration(VidCom2GenerationMixin, Qwen2VLForConditionalGeneration):
    """Qwen2-VL that keeps only the distinctive tokens of each video. Same weights, same processor.

    Modifications:
        - the inner `model` is a `VidCom2Qwen2VLModel`.
        - `forward` and `generate` work on the compressed prompt, and take the settings of a call.

    Prompts without video, and `retention_ratio=1.0`, take the parent's path, with positions that are the
    conversation's own, also while other chats run on the same model.
    """

    config: VidCom2Qwen2VLConfig
    inner_class = VidCom2Qwen2VLModel
    output_class = VidCom2QwenCausalLMOutputWithPast
