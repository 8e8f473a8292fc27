"""Stands for the families that the plugin does not serve. Getting a class from here says why, once vLLM is asked to
serve one."""

_OLD_TRANSFORMERS = "vidcom2 needs a newer Transformers for this family than this vLLM takes"
REASONS = {
    "VidCom2Qwen2_5OmniThinkerForConditionalGeneration": _OLD_TRANSFORMERS,
    "VidCom2Qwen3OmniMoeThinkerForConditionalGeneration": _OLD_TRANSFORMERS,
    "VidCom2Cosmos3EdgeForConditionalGeneration": _OLD_TRANSFORMERS,
    "VidCom2SmolVLMForConditionalGeneration": "vLLM's class for this family takes images alone",
    "VidCom2VideoLlama3ForConditionalGeneration": "vLLM has no class for this family",
    "VidCom2Gemma4UnifiedForConditionalGeneration": (
        "the tokens of a frame attend to each other, and vLLM fixes which ones do so before it has seen the video"
    ),
}


def __getattr__(name: str) -> type:
    """Refuse a class.

    Raises:
        ImportError: with the reason.
    """
    if name not in REASONS:
        raise AttributeError(name)
    raise ImportError(
        f"vidcom2 does not serve {name} in vLLM, because {REASONS[name]}. Serve the repo with `transformers serve`, or "
        "the stock checkpoint without compression."
    )
