"""What the configs of all families share."""

from typing import TYPE_CHECKING, Any, ClassVar

from .compression_settings import CompressionSettings
from .registered_methods import METHODS as METHODS  # registers those that a repo brings along
from .saved_with_code import SavedWithCode

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    class ParentConfig(PreTrainedConfig):
        """What the parents' configs have in common."""

        @property
        def image_token_id(self) -> int: ...
        @property
        def video_token_id(self) -> int: ...
        @property
        def vision_config(self) -> Any: ...
        @property
        def text_config(self) -> Any: ...

else:
    ParentConfig = object


SIGLIP = "siglip_vision_model"


class FamilyConfig(CompressionSettings, SavedWithCode, ParentConfig):
    """Comes before the parent's config in the bases of a family's.

    Attributes:
        keys_to_ignore_at_inference: what `Trainer` leaves out of its predictions, so that they are the logits, with and
            without videos.
    """

    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "past_key_values",
        "image_hidden_states",
        "video_hidden_states",
        "rope_deltas",
        "prompt_positions",
    ]

    def __post_init__(self, **kwargs: Any) -> None:
        super(CompressionSettings, self).__post_init__(**kwargs)
        self.compression_settings()

    def compression_settings(self, **overrides: Any) -> CompressionSettings:
        """As the parent's.

        Raises:
            ValueError: also on a `vision_update_ratio` for a vision tower that cannot have it.
        """
        settings = super().compression_settings(**overrides)
        tower = self.vision_config.model_type
        if settings.vision_update_ratio != 1.0 and tower != SIGLIP:
            raise ValueError(
                f"`vision_update_ratio` is {settings.vision_update_ratio!r}, but the vision tower of a "
                f"{self.model_type!r} is of type {tower!r}, and only one of type {SIGLIP!r} can take over what it "
                "computed of another frame. Leave it at its default, 1.0."
            )
        return settings

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As the parent's. Of another type it would load a checkpoint behind a warning, and compute something else.

        Raises:
            ValueError: on the config of a checkpoint of another type, and on a setting that the method does not read
                or the vision tower cannot have.
        """
        got = config_dict.get("model_type")
        if got is not None and got != cls.model_type:
            remedy = "Load it with the class of its own family."
            if got in ("llava", "llava_qwen"):
                remedy = "If it is an original LLaVA-Video, convert it first: `vidcom2 convert-llava-video`."
            raise ValueError(
                f"The checkpoint is of type {got!r}, but {cls.__name__} is for {cls.model_type!r}. {remedy}"
            )
        loaded = super().from_dict(config_dict, **kwargs)
        (loaded[0] if isinstance(loaded, tuple) else loaded).compression_settings()
        return loaded

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As the parent's.

        Raises:
            ValueError: also on a setting that the method does not read or the vision tower cannot have, with which it
                would not load again.
        """
        self.compression_settings()
        super().save_pretrained(save_directory, *args, **kwargs)
