"""What the configs of all families share."""

from typing import Any, ClassVar

from .compression_settings import CompressionSettings
from .registered_methods import METHODS as METHODS  # registers those that a repo brings along
from .saved_with_code import SavedWithCode


class FamilyConfig(CompressionSettings, SavedWithCode):
    """Comes before the parent's config in the bases of a family's.

    Attributes:
        checkpoint_types: the `model_type`s of checkpoints that the family's class can load. Transformers would load
            others behind a warning, and compute something else.
        keys_to_ignore_at_inference: what `Trainer` leaves out of its predictions, so that they are the logits, with and
            without videos.
    """

    checkpoint_types: ClassVar[tuple[str, ...]]
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "past_key_values",
        "image_hidden_states",
        "video_hidden_states",
        "rope_deltas",
        "prompt_positions",
    ]

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As the parent's.

        Raises:
            ValueError: on the config of a checkpoint of another type.
        """
        accepted = {*cls.checkpoint_types, cls.model_type}
        got = config_dict.get("model_type")
        if got is not None and got not in accepted:
            remedy = "Load it with the class of its own family."
            if got in ("llava", "llava_qwen"):
                remedy = "If it is an original LLaVA-Video, convert it first: `vidcom2 convert-llava-video`."
            types = ", ".join(map(repr, sorted(accepted)))
            raise ValueError(f"The checkpoint is of type {got!r}, but {cls.__name__} is for {types}. {remedy}")
        return super().from_dict(config_dict, **kwargs)
