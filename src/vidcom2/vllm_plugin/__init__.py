"""VidCom² inside vLLM. Each of vLLM's processes calls `register` through the entry point `vllm.general_plugins`."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from .unsupported_family import REASONS

SERVED = {
    "VidCom2LlavaOnevisionForConditionalGeneration": "llava_onevision:VidCom2LlavaOnevisionForVllm",
    "VidCom2LlavaVideoForConditionalGeneration": "llava_video:VidCom2LlavaVideoForVllm",
    "VidCom2LlavaNextVideoForConditionalGeneration": "llava_next_video:VidCom2LlavaNextVideoForVllm",
    "VidCom2Qwen2VLForConditionalGeneration": "qwen_vl:VidCom2Qwen2VLForVllm",
    "VidCom2Qwen2_5_VLForConditionalGeneration": "qwen_vl:VidCom2Qwen2_5_VLForVllm",
    "VidCom2Qwen3VLForConditionalGeneration": "qwen3_vl:VidCom2Qwen3VLForVllm",
    "VidCom2Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe:VidCom2Qwen3VLMoeForVllm",
    "VidCom2Qwen3_5ForConditionalGeneration": "qwen3_5:VidCom2Qwen3_5ForVllm",
    "VidCom2Qwen3_5MoeForConditionalGeneration": "qwen3_5:VidCom2Qwen3_5MoeForVllm",
    "VidCom2Glm4vForConditionalGeneration": "glm:VidCom2Glm4vForVllm",
    "VidCom2Glm4vMoeForConditionalGeneration": "glm:VidCom2Glm4vMoeForVllm",
    "VidCom2Glm46VForConditionalGeneration": "glm:VidCom2Glm46VForVllm",
    "VidCom2Cosmos3OmniForConditionalGeneration": "cosmos3:VidCom2Cosmos3OmniForVllm",
    "VidCom2InternVLForConditionalGeneration": "internvl:VidCom2InternVLForVllm",
    "VidCom2Gemma4ForConditionalGeneration": "gemma4:VidCom2Gemma4ForVllm",
    "VidCom2MiniCPMV4_6ForConditionalGeneration": "minicpmv:VidCom2MiniCPMVForVllm",
}
MODELS = SERVED | {name: f"unsupported_family:{name}" for name in REASONS}  # all families


def register() -> None:
    """Tell vLLM which classes serve this project's repos. Stock repos name other architectures and are not affected.

    In a version of vLLM that the plugin does not support, the repos are refused with the versions that it supports.
    """
    import vllm
    from vllm import ModelRegistry

    from .compat import why_not

    if why_not(vllm.__version__) is not None:
        for architecture in MODELS:
            ModelRegistry.register_model(architecture, f"{__name__}.unsupported_version:Model")
        return
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    from .settings import SettingsAtStart

    for architecture, model_class in MODELS.items():
        MODELS_CONFIG_MAP[architecture] = SettingsAtStart
        if architecture not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(architecture, f"{__name__}.{model_class}")
