"""VidCom² inside vLLM. Each of vLLM's processes calls `register` through the entry point `vllm.general_plugins`."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from .compat import REASONS, why_not
from .served import SERVED

MODELS = SERVED | {name: f"compat:{name}" for name in REASONS}  # all families


def register() -> None:
    """Tell vLLM which classes serve this project's repos. Stock repos name other architectures and are not affected.

    In a version of vLLM that the plugin does not support, the repos are refused with the versions that it supports.
    """
    import vllm
    from vllm import ModelRegistry

    if why_not(vllm.__version__) is not None:
        for architecture in MODELS:
            ModelRegistry.register_model(architecture, f"{__name__}.compat:{architecture}")
        return
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    from .settings import SettingsAtStart

    for architecture, model_class in MODELS.items():
        MODELS_CONFIG_MAP[architecture] = SettingsAtStart
        if architecture not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(architecture, f"{__name__}.{model_class}")
