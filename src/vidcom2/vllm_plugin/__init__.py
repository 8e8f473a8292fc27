"""VidCom² inside vLLM: what its entry point `vllm.general_plugins` calls in each of its processes."""

MODELS = {
    "VidCom2LlavaOnevisionForConditionalGeneration": "llava_onevision:VidCom2LlavaOnevisionForVllm",
}


def register() -> None:
    """Tell vLLM which classes serve this project's repos. Stock ones name other architectures, and stay as they are."""
    from vllm import ModelRegistry  # pyright: ignore[reportMissingImports]  (an optional dependency)

    for architecture, model_class in MODELS.items():
        if architecture not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(architecture, f"{__name__}.{model_class}")
