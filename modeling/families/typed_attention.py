"""What families share whose language model lets the tokens of images and videos attend to later ones. It finds them by
the types of tokens, which it looks up by their place in the conversation.
"""

from typing import Any

from torch import Tensor, nn
from transformers import StaticCache

from ..hosting.in_transformers import CACHE, cached_length, with_cache_name
from ..prompt.calls import CHUNKS_FEATURES, name_of_tokens
from ..prompt.compressed_generation import VidCom2GenerationMixin
from ..prompt.prompt_compression import VidCom2ModelMixin


class TypedAttentionModelMixin(VidCom2ModelMixin):
    """Gives the parent's inner model the types of all tokens, the cached ones among them."""

    def _types(self, inputs: dict[str, Any]) -> Tensor | None:
        """Return the types that attention reads; None if it reads none."""
        return inputs.get("mm_token_type_ids")

    def with_token_types(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `forward` with the types of all tokens, the cached ones among them."""
        types, cache = self._types(inputs), inputs.get(CACHE)
        if types is None:
            return inputs
        new = inputs[name_of_tokens(inputs)]
        num_new = new.shape[1]
        check_types_on_cache(types[:, -num_new:], cache)
        return inputs | {"mm_token_type_ids": types_with_cached(types, cache, num_new)}


class TypedAttentionGenerationMixin(VidCom2GenerationMixin):
    """The part of the classes with a head that differs from the parents."""

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the inputs of a step. The types end with the prompt, and drafts behind it, of prompt lookup or of an
        assistant, are text."""
        inputs = super().prepare_inputs_for_generation(
            input_ids, next_sequence_length=next_sequence_length, inputs_embeds=inputs_embeds, **kwargs
        )
        types, new = inputs.get("mm_token_type_ids"), inputs.get("input_ids")
        if kwargs.get("is_first_iteration") and types is not None and new is not None:
            inputs["mm_token_type_ids"] = nn.functional.pad(types, (0, max(0, new.shape[1] - types.shape[1])))
        return inputs

    @classmethod
    def create_masks_for_generate(
        cls,
        config: Any,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        *args: Any,
        mm_token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the parent's masks. It looks types up by position, but `generate` passes those of the new tokens."""
        cache = args[0] if args else with_cache_name(kwargs).get(CACHE)
        types = types_with_cached(mm_token_type_ids, cache, inputs_embeds.shape[1])
        parent: Any = super()
        return parent.create_masks_for_generate(
            config, inputs_embeds, attention_mask, *args, mm_token_type_ids=types, **kwargs
        )


def types_with_cached(types: Tensor | None, cache: Any, num_new: int) -> Tensor | None:
    """Return the types (B, P + n) of the P cached tokens and the n new ones.

    Attention within an image or a frame looks types up by position. If those of the cached tokens are not at hand, they
    count as text: only a chunk of a prompt continues a frame of which a part is cached, and it has all types.

    Args:
        types: (B, P + n); or of another number of tokens, n or more, of which the last n are taken.

    Raises:
        ValueError: if they are of fewer tokens.
    """
    if types is None:
        return None
    num_cached = cached_length(cache)
    if types.shape[1] == num_cached + num_new:
        return types
    return nn.functional.pad(types_of_new(types, num_new), (num_cached, 0))


def types_of_new(types: Tensor, num_new: int) -> Tensor:
    """Return the types (B, n) of the n new tokens, from those of these or more tokens. Raise as `types_with_cached`."""
    if types.shape[1] < num_new:
        raise ValueError(
            f"`mm_token_type_ids` is {tuple(types.shape)}, but there are {num_new} new tokens. Pass the types of the "
            "new tokens or of the whole conversation, as the processor returns them, or none: then the tokens of a "
            "frame do not attend to later ones."
        )
    return types[:, -num_new:]


def check_types_on_cache(types: Any, cache: Any) -> None:
    """Check that tokens which attend to each other, by their types, do not follow the tokens of a static cache where
    Transformers' masks for it are not right.

    Raises:
        ValueError: if they do, on Transformers 5.19.
    """
    if not CHUNKS_FEATURES and isinstance(cache, StaticCache) and cache.get_seq_length() > 0 and types.any():
        raise ValueError(
            "On Transformers 5.19, images and videos cannot follow the tokens of a static cache, because the tokens of "
            "a frame would attend to others than their own. Pass a `DynamicCache`, or upgrade."
        )
