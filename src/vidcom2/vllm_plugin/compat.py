"""What the plugin does not serve: other versions of vLLM, and some families. vLLM imports a model's class once it is
asked to serve the model. So a repo of ours is refused here, and all other models are served as without the plugin."""

from ..families.table import FAMILIES
from .served import SERVED

# Each supported minor version, and how it was checked. The plugin builds on classes that vLLM changes, so others are
# refused. docs/serving.md says the same, with what each asks for. No code of the plugin depends on the version.
SUPPORTED = {
    "0.32": "the tests of the plugin run on it, on a CPU",
    "0.33": "its sources have all that the plugin uses, with the same code around it; it has no build for a CPU",
}
WINDOW = "vllm>=0.32,<0.34"  # the extra `vllm` in pyproject.toml

_OLD_TRANSFORMERS = "vidcom2 needs a newer Transformers for this family than this vLLM takes"
_WITHOUT_THE_PLUGIN = (
    "the plugin has no class for this family; docs/serving.md says how vLLM serves it without the plugin"
)
_REASONS = {
    "VidCom2Qwen2_5OmniThinkerForConditionalGeneration": _OLD_TRANSFORMERS,
    "VidCom2Qwen3OmniMoeThinkerForConditionalGeneration": _OLD_TRANSFORMERS,
    "VidCom2Cosmos3EdgeForConditionalGeneration": _OLD_TRANSFORMERS,
    "VidCom2Exaone4_5_ForConditionalGeneration": _WITHOUT_THE_PLUGIN,
    "VidCom2PerceptionLMForConditionalGeneration": _WITHOUT_THE_PLUGIN,
    "VidCom2SmolVLMForConditionalGeneration": "vLLM's class for this family takes images alone",
    "VidCom2VideoLlama3ForConditionalGeneration": "vLLM has no class for this family",
    "VidCom2Gemma4UnifiedForConditionalGeneration": (
        "the tokens of a frame attend to each other, and vLLM fixes which ones do so before it has seen the video"
    ),
}
_NAMES = [family.class_names[1] for family in FAMILIES.values()]
REASONS = {  # of all families that are not served
    name: _REASONS.get(name, "the plugin has no class for this family") for name in _NAMES if name not in SERVED
}


def why_not(version: str) -> str | None:
    """Return what to say of a version of vLLM that the plugin does not support, and None for one that it does."""
    if ".".join(version.split(".")[:2]) in SUPPORTED:
        return None
    return (
        f"vLLM's version is {version}, but vidcom2 serves its repos only in vLLM {' and '.join(SUPPORTED)}, because it "
        f'builds on classes that other versions lack or change. Run `pip install "{WINDOW}"`, best in an environment '
        "of its own, or serve the repo with `transformers serve`."
    )


def __getattr__(name: str) -> type:
    """Refuse the class of a model that vLLM is asked to serve.

    Raises:
        ImportError: with the reason.
    """
    if not name.startswith("VidCom2"):
        raise AttributeError(name)
    if name in REASONS:
        raise ImportError(
            f"vidcom2 does not serve {name} in vLLM, because {REASONS[name]}. Serve the repo with `transformers "
            "serve`, or the stock checkpoint without compression."
        )
    import vllm  # pyright: ignore[reportMissingImports]  (vLLM has an environment of its own)

    raise ImportError(why_not(vllm.__version__))
