"""Tells type checkers what the mixins use of the parent classes, which follow them among the bases of a family's class.

At run time these classes are `object`, and a mixin's `super()` finds the family's parent.
"""

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Cache, PreTrainedModel

    from ...configuration.family_config import FamilyConfig

    Model = TypeVar("Model", bound="ParentModel")

    class ParentModel(PreTrainedModel):
        """A video LLM with or without a head."""

        config: FamilyConfig
        config_class: type[FamilyConfig]

        def forward(self, **inputs: Any) -> Any: ...
        def get_image_features(self, **inputs: Any) -> Any: ...
        def get_video_features(self, **inputs: Any) -> Any: ...

        # By Transformers' own annotations, `model.to("cuda")` is an error: they are those of `Module.to`, with `self`.
        def to(self: Model, *args: Any, **kwargs: Any) -> Model: ...
        def cuda(self: Model, *args: Any, **kwargs: Any) -> Model: ...

    class ParentLlavaModel(ParentModel):
        """A video LLM of LLaVA's, without a head."""

        vision_tower: Any
        image_newline: Tensor

    class ParentQwenModel(ParentModel):
        """A video LLM of Qwen's, without a head."""

        visual: Any

        def get_rope_index(self, input_ids: Tensor | None = None, **inputs: Any) -> tuple[Tensor, Tensor]: ...

    class ParentGlmModel(ParentQwenModel):
        """A video LLM of GLM's, without a head."""

        def get_placeholder_mask(self, *args: Any, **features: Any) -> tuple[Tensor, Tensor]: ...

    class ParentFramesModel(ParentModel):
        """A video LLM without a head, to which frames are images."""

        def is_video(self, input_ids: Tensor) -> Tensor: ...
        def arguments_of_tiles(self, tiles: dict[str, Tensor]) -> dict[str, Tensor]: ...
        def features_of_tiles(self, tokens: Tensor) -> Tensor: ...
        def _encode(self, encoder: Any, inputs: dict[str, Any], **settings: Any) -> Any: ...

    class ParentModelWithHead(ParentModel):
        """A video LLM with a head."""

        def generate(self, **arguments: Any) -> Any: ...
        def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...
        def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None: ...
        def _prefill(self, *args: Any, **kwargs: Any) -> Any: ...
        def _expand_inputs_for_generation(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]: ...
        def _prepare_cache_for_generation(self, *args: Any, **kwargs: Any) -> None: ...
        def _get_logits_processor(self, *args: Any, **kwargs: Any) -> Any: ...
        def _get_candidate_generator(self, *args: Any, **kwargs: Any) -> Any: ...

    class ParentCache(Cache):
        """A KV cache of any kind."""

        def get_conv_state(self, *args: Any, **kwargs: Any) -> Any: ...  # not in Transformers 5.19

else:
    ParentModel = ParentLlavaModel = ParentQwenModel = ParentGlmModel = ParentFramesModel = object
    ParentModelWithHead = ParentCache = object
