"""What the configs of all families share."""

from typing import TYPE_CHECKING, Any, ClassVar

from .compression_settings import CompressionSettings, check_all_read
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
        CompressionSettings.__post_init__(self)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As the parent's. Of another type it would load a checkpoint behind a warning, and compute something else.

        Raises:
            ValueError: on the config of a checkpoint of another type, and on a setting that the method does not read.
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
        check_all_read(CompressionSettings.as_dict(loaded[0] if isinstance(loaded, tuple) else loaded))
        return loaded

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As the parent's.

        Raises:
            ValueError: also on a setting that the method does not read, with which it would not load again.
        """
        check_all_read(CompressionSettings.as_dict(self))
        super().save_pretrained(save_directory, *args, **kwargs)
