"""The names that `vidcom2` exports. Type checkers read this file, and `__init__.py` imports each name on first use."""

from .asking.answer import Answer
from .asking.ask import ask, load_watched, watch
from .asking.counting import TokenCount, count_tokens
from .asking.watched import Watched
from .bulk.many import answer_many
from .bulk.requests import AnsweredRequest
from .configuration.compression_settings import CompressionSettings
from .conventions.hosting import host_family
from .explaining.explain import explain
from .families.classes import (
    VidCom2CohereCompassConfig,
    VidCom2CohereCompassForConditionalGeneration,
    VidCom2Cosmos3OmniConfig,
    VidCom2Cosmos3OmniForConditionalGeneration,
    VidCom2Exaone4_5_Config,
    VidCom2Exaone4_5_ForConditionalGeneration,
    VidCom2Glm4vConfig,
    VidCom2Glm4vForConditionalGeneration,
    VidCom2Glm4vMoeConfig,
    VidCom2Glm4vMoeForConditionalGeneration,
    VidCom2Glm5NextConfig,
    VidCom2Glm5NextForConditionalGeneration,
    VidCom2Glm46VConfig,
    VidCom2Glm46VForConditionalGeneration,
    VidCom2GlmgaConfig,
    VidCom2GlmgaForConditionalGeneration,
    VidCom2HyperCLOVAXVisionV2Config,
    VidCom2HyperCLOVAXVisionV2ForConditionalGeneration,
    VidCom2Kimi_K25Config,
    VidCom2Kimi_K25ForConditionalGeneration,
    VidCom2Lfm3VlConfig,
    VidCom2Lfm3VlForConditionalGeneration,
    VidCom2Qwen2_5_VLConfig,
    VidCom2Qwen2_5_VLForConditionalGeneration,
    VidCom2Qwen3_5Config,
    VidCom2Qwen3_5ForConditionalGeneration,
    VidCom2Qwen3_5MoeConfig,
    VidCom2Qwen3_5MoeForConditionalGeneration,
    VidCom2Qwen3VLConfig,
    VidCom2Qwen3VLForConditionalGeneration,
    VidCom2Qwen3VLMoeConfig,
    VidCom2Qwen3VLMoeForConditionalGeneration,
    VidCom2Qwen4ExpConfig,
    VidCom2Qwen4ExpForConditionalGeneration,
)
from .live.live_video import LiveVideo
from .live.stream_memory import StreamTokens, register_memory_method
from .llava_video.classes import LlavaVideoProcessor, VidCom2LlavaVideoConfig, VidCom2LlavaVideoForConditionalGeneration
from .loading.applying import apply, remove
from .loading.checkpoints import load, tiny_model
from .modeling.compress import compress
from .modeling.encoding.users_vision_methods import register_vision_method
from .modeling.families.modeling_vidcom2_cosmos3_edge import (
    VidCom2Cosmos3EdgeConfig,
    VidCom2Cosmos3EdgeForConditionalGeneration,
)
from .modeling.families.modeling_vidcom2_gemma4 import VidCom2Gemma4Config, VidCom2Gemma4ForConditionalGeneration
from .modeling.families.modeling_vidcom2_gemma4_unified import (
    VidCom2Gemma4UnifiedConfig,
    VidCom2Gemma4UnifiedForConditionalGeneration,
)
from .modeling.families.modeling_vidcom2_internvl import VidCom2InternVLConfig, VidCom2InternVLForConditionalGeneration
from .modeling.families.modeling_vidcom2_llava_next_video import (
    VidCom2LlavaNextVideoConfig,
    VidCom2LlavaNextVideoForConditionalGeneration,
)
from .modeling.families.modeling_vidcom2_llava_onevision import (
    VidCom2LlavaOnevisionConfig,
    VidCom2LlavaOnevisionForConditionalGeneration,
)
from .modeling.families.modeling_vidcom2_minicpmv4_6 import (
    VidCom2MiniCPMV4_6Config,
    VidCom2MiniCPMV4_6ForConditionalGeneration,
)
from .modeling.families.modeling_vidcom2_molmo2 import VidCom2Molmo2Config, VidCom2Molmo2ForConditionalGeneration
from .modeling.families.modeling_vidcom2_nemotron_h_omni import (
    VidCom2NemotronHOmniConfig,
    VidCom2NemotronHOmniForConditionalGeneration,
)
from .modeling.families.modeling_vidcom2_perception_lm import (
    VidCom2PerceptionLMConfig,
    VidCom2PerceptionLMForConditionalGeneration,
)
from .modeling.families.modeling_vidcom2_qwen2_5_omni_thinker import (
    VidCom2Qwen2_5OmniThinkerConfig,
    VidCom2Qwen2_5OmniThinkerForConditionalGeneration,
)
from .modeling.families.modeling_vidcom2_qwen2_vl import VidCom2Qwen2VLConfig, VidCom2Qwen2VLForConditionalGeneration
from .modeling.families.modeling_vidcom2_qwen3_omni_moe_thinker import (
    VidCom2Qwen3OmniMoeThinkerConfig,
    VidCom2Qwen3OmniMoeThinkerForConditionalGeneration,
)
from .modeling.families.modeling_vidcom2_smolvlm import VidCom2SmolVLMConfig, VidCom2SmolVLMForConditionalGeneration
from .modeling.families.modeling_vidcom2_video_llama_3 import (
    VidCom2VideoLlama3Config,
    VidCom2VideoLlama3ForConditionalGeneration,
)
from .modeling.methods.compression import VideoCompression, VideoTokens, exact_total, most_unique_tokens
from .modeling.methods.method_vidcom2 import frame_budgets
from .modeling.methods.users_methods import TokenMerge, register_compression_method, register_score_method
from .presets import PAPER, RECOMMENDED
from .video.reading import Video, read_video

__all__ = [
    "PAPER",
    "RECOMMENDED",
    "Answer",
    "AnsweredRequest",
    "CompressionSettings",
    "LiveVideo",
    "LlavaVideoProcessor",
    "StreamTokens",
    "TokenCount",
    "TokenMerge",
    "VidCom2CohereCompassConfig",
    "VidCom2CohereCompassForConditionalGeneration",
    "VidCom2Cosmos3EdgeConfig",
    "VidCom2Cosmos3EdgeForConditionalGeneration",
    "VidCom2Cosmos3OmniConfig",
    "VidCom2Cosmos3OmniForConditionalGeneration",
    "VidCom2Exaone4_5_Config",
    "VidCom2Exaone4_5_ForConditionalGeneration",
    "VidCom2Gemma4Config",
    "VidCom2Gemma4ForConditionalGeneration",
    "VidCom2Gemma4UnifiedConfig",
    "VidCom2Gemma4UnifiedForConditionalGeneration",
    "VidCom2Glm4vConfig",
    "VidCom2Glm4vForConditionalGeneration",
    "VidCom2Glm4vMoeConfig",
    "VidCom2Glm4vMoeForConditionalGeneration",
    "VidCom2Glm5NextConfig",
    "VidCom2Glm5NextForConditionalGeneration",
    "VidCom2Glm46VConfig",
    "VidCom2Glm46VForConditionalGeneration",
    "VidCom2GlmgaConfig",
    "VidCom2GlmgaForConditionalGeneration",
    "VidCom2HyperCLOVAXVisionV2Config",
    "VidCom2HyperCLOVAXVisionV2ForConditionalGeneration",
    "VidCom2InternVLConfig",
    "VidCom2InternVLForConditionalGeneration",
    "VidCom2Kimi_K25Config",
    "VidCom2Kimi_K25ForConditionalGeneration",
    "VidCom2Lfm3VlConfig",
    "VidCom2Lfm3VlForConditionalGeneration",
    "VidCom2LlavaNextVideoConfig",
    "VidCom2LlavaNextVideoForConditionalGeneration",
    "VidCom2LlavaOnevisionConfig",
    "VidCom2LlavaOnevisionForConditionalGeneration",
    "VidCom2LlavaVideoConfig",
    "VidCom2LlavaVideoForConditionalGeneration",
    "VidCom2MiniCPMV4_6Config",
    "VidCom2MiniCPMV4_6ForConditionalGeneration",
    "VidCom2Molmo2Config",
    "VidCom2Molmo2ForConditionalGeneration",
    "VidCom2NemotronHOmniConfig",
    "VidCom2NemotronHOmniForConditionalGeneration",
    "VidCom2PerceptionLMConfig",
    "VidCom2PerceptionLMForConditionalGeneration",
    "VidCom2Qwen2VLConfig",
    "VidCom2Qwen2VLForConditionalGeneration",
    "VidCom2Qwen2_5OmniThinkerConfig",
    "VidCom2Qwen2_5OmniThinkerForConditionalGeneration",
    "VidCom2Qwen2_5_VLConfig",
    "VidCom2Qwen2_5_VLForConditionalGeneration",
    "VidCom2Qwen3OmniMoeThinkerConfig",
    "VidCom2Qwen3OmniMoeThinkerForConditionalGeneration",
    "VidCom2Qwen3VLConfig",
    "VidCom2Qwen3VLForConditionalGeneration",
    "VidCom2Qwen3VLMoeConfig",
    "VidCom2Qwen3VLMoeForConditionalGeneration",
    "VidCom2Qwen3_5Config",
    "VidCom2Qwen3_5ForConditionalGeneration",
    "VidCom2Qwen3_5MoeConfig",
    "VidCom2Qwen3_5MoeForConditionalGeneration",
    "VidCom2Qwen4ExpConfig",
    "VidCom2Qwen4ExpForConditionalGeneration",
    "VidCom2SmolVLMConfig",
    "VidCom2SmolVLMForConditionalGeneration",
    "VidCom2VideoLlama3Config",
    "VidCom2VideoLlama3ForConditionalGeneration",
    "Video",
    "VideoCompression",
    "VideoTokens",
    "Watched",
    "answer_many",
    "apply",
    "ask",
    "compress",
    "count_tokens",
    "exact_total",
    "explain",
    "frame_budgets",
    "host_family",
    "load",
    "load_watched",
    "most_unique_tokens",
    "read_video",
    "register_compression_method",
    "register_memory_method",
    "register_score_method",
    "register_vision_method",
    "remove",
    "tiny_model",
    "watch",
]
__version__: str
