"""What `vidcom2` exports. Type checkers read it, and so does `__init__.py`, which imports each name on first use."""

from .answer import ask
from .configuration.compression_settings import register_compression_method
from .configuration.configuration_vidcom2_llava_onevision import VidCom2LlavaOnevisionConfig
from .configuration.configuration_vidcom2_qwen2_5_vl import VidCom2Qwen2_5_VLConfig
from .configuration.configuration_vidcom2_qwen2_vl import VidCom2Qwen2VLConfig
from .llava_video import LlavaVideoProcessor, VidCom2LlavaVideoConfig, VidCom2LlavaVideoForConditionalGeneration
from .modeling.compression import compress
from .modeling.modeling_vidcom2_llava_onevision import VidCom2LlavaOnevisionForConditionalGeneration
from .modeling.modeling_vidcom2_qwen2_5_vl import VidCom2Qwen2_5_VLForConditionalGeneration
from .modeling.modeling_vidcom2_qwen2_vl import VidCom2Qwen2VLForConditionalGeneration
from .modeling.prompt_positions import labels_at
from .modeling.video_compression import VideoCompression
from .video import Video, read_video

__all__ = [
    "LlavaVideoProcessor",
    "VidCom2LlavaOnevisionConfig",
    "VidCom2LlavaOnevisionForConditionalGeneration",
    "VidCom2LlavaVideoConfig",
    "VidCom2LlavaVideoForConditionalGeneration",
    "VidCom2Qwen2VLConfig",
    "VidCom2Qwen2VLForConditionalGeneration",
    "VidCom2Qwen2_5_VLConfig",
    "VidCom2Qwen2_5_VLForConditionalGeneration",
    "Video",
    "VideoCompression",
    "ask",
    "compress",
    "labels_at",
    "read_video",
    "register_compression_method",
]
__version__: str
