"""Qwen2.5-Omni's thinker with VidCom²: only what differs from the parent classes.

What the family shares with others is in `qwen_sound.py`.
"""

from typing import TYPE_CHECKING

from transformers import Qwen2_5_VLModel, Qwen2_5OmniThinkerForConditionalGeneration
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as stock

from ...configuration.configuration_vidcom2_qwen2_5_omni_thinker import VidCom2Qwen2_5OmniThinkerConfig
from .qwen_sound import QwenSoundGenerationMixin, QwenSoundModelMixin

if TYPE_CHECKING:
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniThinkerModel
else:  # Transformers 5.19 and 5.20 have no such class. There the config refuses to be made, so nothing runs the other.
    Qwen2_5OmniThinkerModel = getattr(stock, "Qwen2_5OmniThinkerModel", Qwen2_5_VLModel)


class VidCom2Qwen2_5OmniThinkerModel(QwenSoundModelMixin, Qwen2_5OmniThinkerModel):
    """Qwen2.5-Omni's thinker without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` leaves dropped tokens out of a stock prompt. Images and sound stay whole, also the sound of a video
          whose seconds alternate with those of its frames (`use_audio_in_video`).
        - M-RoPE positions are computed on the full prompt, and every kept token keeps its own (t, h, w), where t
          follows the time in `video_second_per_grid`.
    """

    config: VidCom2Qwen2_5OmniThinkerConfig


class VidCom2Qwen2_5OmniThinkerForConditionalGeneration(
    QwenSoundGenerationMixin, Qwen2_5OmniThinkerForConditionalGeneration
):
    """Qwen2.5-Omni's thinker that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2Qwen2_5OmniThinkerModel`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.
        - beams and several sequences are right with several sounds in a prompt.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path. Their positions are the
    conversation's own, even while other chats run on the same model.
    """

    config: VidCom2Qwen2_5OmniThinkerConfig
    inner_class = VidCom2Qwen2_5OmniThinkerModel
