"""VidCom² for a loaded stock model, whose class stays as it is: `model.generate(..., custom_generate="org/name")`.

A Hub repo holds this file as `custom_generate/generate.py`.
"""

from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from ..configuration.compression_settings import SETTING_NAMES, with_settings
from .families.modeling_vidcom2_cosmos3_edge import VidCom2Cosmos3EdgeForConditionalGeneration
from .families.modeling_vidcom2_cosmos3_omni import VidCom2Cosmos3OmniForConditionalGeneration
from .families.modeling_vidcom2_gemma4 import VidCom2Gemma4ForConditionalGeneration
from .families.modeling_vidcom2_gemma4_unified import VidCom2Gemma4UnifiedForConditionalGeneration
from .families.modeling_vidcom2_glm4v import VidCom2Glm4vForConditionalGeneration
from .families.modeling_vidcom2_glm4v_moe import VidCom2Glm4vMoeForConditionalGeneration
from .families.modeling_vidcom2_glm46v import VidCom2Glm46VForConditionalGeneration
from .families.modeling_vidcom2_internvl import VidCom2InternVLForConditionalGeneration
from .families.modeling_vidcom2_llava_next_video import VidCom2LlavaNextVideoForConditionalGeneration
from .families.modeling_vidcom2_llava_onevision import VidCom2LlavaOnevisionForConditionalGeneration
from .families.modeling_vidcom2_minicpmv4_6 import VidCom2MiniCPMV4_6ForConditionalGeneration
from .families.modeling_vidcom2_qwen2_5_omni_thinker import VidCom2Qwen2_5OmniThinkerForConditionalGeneration
from .families.modeling_vidcom2_qwen2_5_vl import VidCom2Qwen2_5_VLForConditionalGeneration
from .families.modeling_vidcom2_qwen2_vl import VidCom2Qwen2VLForConditionalGeneration
from .families.modeling_vidcom2_qwen3_5 import VidCom2Qwen3_5ForConditionalGeneration
from .families.modeling_vidcom2_qwen3_5_moe import VidCom2Qwen3_5MoeForConditionalGeneration
from .families.modeling_vidcom2_qwen3_omni_moe_thinker import VidCom2Qwen3OmniMoeThinkerForConditionalGeneration
from .families.modeling_vidcom2_qwen3_vl import VidCom2Qwen3VLForConditionalGeneration
from .families.modeling_vidcom2_qwen3_vl_moe import VidCom2Qwen3VLMoeForConditionalGeneration
from .families.modeling_vidcom2_smolvlm import VidCom2SmolVLMForConditionalGeneration
from .families.modeling_vidcom2_video_llama_3 import VidCom2VideoLlama3ForConditionalGeneration
from .prompt.compressed_generation import VidCom2GenerationMixin

Model = TypeVar("Model", bound=PreTrainedModel)

MODEL_CLASSES: dict[str, type[VidCom2GenerationMixin]] = {
    cls.config_class.model_type: cls
    for cls in (
        VidCom2LlavaOnevisionForConditionalGeneration,
        VidCom2LlavaNextVideoForConditionalGeneration,
        VidCom2Qwen2VLForConditionalGeneration,
        VidCom2Qwen2_5_VLForConditionalGeneration,
        VidCom2Qwen2_5OmniThinkerForConditionalGeneration,
        VidCom2Qwen3VLForConditionalGeneration,
        VidCom2Qwen3VLMoeForConditionalGeneration,
        VidCom2Qwen3OmniMoeThinkerForConditionalGeneration,
        VidCom2Qwen3_5ForConditionalGeneration,
        VidCom2Qwen3_5MoeForConditionalGeneration,
        VidCom2Glm4vForConditionalGeneration,
        VidCom2Glm4vMoeForConditionalGeneration,
        VidCom2Glm46VForConditionalGeneration,
        VidCom2Cosmos3OmniForConditionalGeneration,
        VidCom2Cosmos3EdgeForConditionalGeneration,
        VidCom2InternVLForConditionalGeneration,
        VidCom2SmolVLMForConditionalGeneration,
        VidCom2Gemma4ForConditionalGeneration,
        VidCom2Gemma4UnifiedForConditionalGeneration,
        VidCom2VideoLlama3ForConditionalGeneration,
        VidCom2MiniCPMV4_6ForConditionalGeneration,
    )
}
# Attributes by which others replace a model's methods, and which the view must not take over. Accelerate, when it
# spreads a model over devices, and `model.compile()` put calls of the stock `forward` there, and Transformers puts the
# custom `generate` of a repo that has one.
REPLACED_METHODS = {"forward", "_old_forward", "_hf_hook", "_compiled_call_impl", "generate"}
# Transformers loads the code with these, as in `generate(..., custom_generate=..., revision=...)`, and passes them on.
LOADING_ARGUMENTS = {"revision", "code_revision", "token", "cache_dir", "force_download", "local_files_only", "proxies"}


def generate(model: PreTrainedModel, **kwargs: Any) -> ModelOutput | torch.Tensor:
    """Run `model.generate` on the compressed prompt; it returns the same tokens as the VidCom² class.

    Args:
        model: a model of one of the stock classes behind `MODEL_CLASSES`. It is not changed.
        **kwargs: arguments of `generate`, and the settings of VidCom²: `retention_ratio` (default 0.25),
            `compression_scoring` and so on.

    Raises:
        ValueError: if VidCom² does not know the model, or a setting is outside its accepted set.
    """
    kwargs = {name: value for name, value in kwargs.items() if name not in LOADING_ARGUMENTS}
    settings = {name: kwargs.pop(name) for name in SETTING_NAMES if kwargs.get(name) is not None}
    return vidcom2_view(model, settings).generate(**kwargs)


def vidcom2_view(model: PreTrainedModel, settings: dict[str, Any]) -> VidCom2GenerationMixin:
    """Return a model of the VidCom² class that shares all modules and weights with a stock one.

    Raises:
        ValueError: if VidCom² does not know the model, or a setting is outside its accepted set.
    """
    model_type = model.config.model_type
    model_class = MODEL_CLASSES.get(model_type)
    if model_class is None or not _computes_as(model, model_class.__bases__[-1]):
        raise ValueError(
            f"`model` is a {type(model).__name__} of type {model_type!r}, but VidCom² generates for the stock classes "
            f"of {', '.join(map(repr, MODEL_CLASSES))}. Load a checkpoint of one of these without `trust_remote_code`."
        )
    config = with_settings(model.config, model_class.config_class, settings)
    view = _sharing(model, model_class, config)
    view._modules["model"] = _sharing(model.model, model_class.inner_class, config)
    return view


def _sharing(module: nn.Module, view_class: type[Model], config: Any) -> Model:
    """Return a model of another class with the same modules and weights."""
    view = view_class.__new__(view_class)
    view.__dict__.update({name: value for name, value in vars(module).items() if name not in REPLACED_METHODS})
    view.__dict__["_modules"] = dict(module._modules)
    view.__dict__["config"] = config
    return view


def _computes_as(model: PreTrainedModel, stock_class: type) -> bool:
    """Whether `model` is of the stock class, or of a subclass that overrides nothing that the view would ignore."""
    methods = ("forward", "generate", "get_video_features", "prepare_inputs_for_generation")
    return isinstance(model, stock_class) and all(
        getattr(type(model), name, None) is getattr(stock_class, name, None) for name in methods
    )
