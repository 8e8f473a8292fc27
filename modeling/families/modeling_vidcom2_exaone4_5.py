"""EXAONE 4.5 with VidCom²: only what differs from the parent classes.

Videos are Qwen's, as in `qwen_videos.py`. Positions are the order of the tokens.
"""

from transformers import Exaone4_5_ForConditionalGeneration, Exaone4_5_Model, GenerationMixin

from ...configuration.configuration_vidcom2_exaone4_5 import VidCom2Exaone4_5_Config
from ..prompt.compressed_generation import VidCom2GenerationMixin
from .qwen_videos import GridVideosMixin


class VidCom2Exaone4_5_Model(GridVideosMixin, Exaone4_5_Model):
    """EXAONE 4.5 without its head. The language model runs on short prompts.

    Modifications:
        - `get_video_features` returns the kept tokens of each video.
        - `forward` leaves dropped tokens out of a stock prompt.
    """

    config: VidCom2Exaone4_5_Config


class VidCom2Exaone4_5_ForConditionalGeneration(VidCom2GenerationMixin, Exaone4_5_ForConditionalGeneration):
    """EXAONE 4.5 that keeps only the distinctive tokens of each video. The weights stay the same.

    Modifications:
        - the inner `model` is a `VidCom2Exaone4_5_Model`.
        - `forward` and `generate` run short prompts, shorten stock ones, and take settings for one call.
        - `generate` numbers tokens without padding on the left, as other models do. The parent counts padding, and
          drops all other positions. Attention is the same, since it depends on distances alone.

    Prompts without video, and calls with `retention_ratio=1.0`, take the parent's path.
    """

    config: VidCom2Exaone4_5_Config
    inner_class = VidCom2Exaone4_5_Model
    input_modalities = ("image", "video", "text")  # The parent says so from Transformers 5.21 on.
    prepare_inputs_for_generation = vars(GenerationMixin)["prepare_inputs_for_generation"]
