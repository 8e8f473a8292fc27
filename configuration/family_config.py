"""What the configs of all families share: the settings of VidCom² as further fields of the parent's config. They are
checked when a config is made, loaded or saved. A table of Transformers by which pipelines find models is filled, too.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from transformers.models.auto import modeling_auto

from ..modeling.registered_methods import METHODS as METHODS  # so that the tables know which methods are here
from .compression_settings import SETTING_NAMES, VISION_METHODS, CompressionSettings, left_out
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
    """What a family's config adds to the parent's config. It comes before the parent's in the family's bases.

    Attributes:
        keys_to_ignore_at_inference: the outputs that `Trainer` leaves out of its predictions. What remains is the
            logits, for prompts with and without videos.
        video_processor_fields, tokenizer_fields: what parts of the processor must say, where released checkpoints do
            not, so that its output has all that the model needs.
    """

    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "cache",
        "past_key_values",
        "image_outputs",
        "video_outputs",
        "audio_outputs",
        "image_hidden_states",
        "video_hidden_states",
        "rope_deltas",
    ]
    video_processor_fields: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    tokenizer_fields: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __post_init__(self, **kwargs: Any) -> None:
        super(CompressionSettings, self).__post_init__(**kwargs)
        self.compression_settings()

    def compression_settings(self, **overrides: Any) -> CompressionSettings:
        """Return the settings alone; see `CompressionSettings.compression_settings`.

        Raises:
            ValueError: also on a `vision_method` that cannot run this family's vision tower.
        """
        settings = super().compression_settings(**overrides)
        method, vision = VISION_METHODS[settings.vision_method], self.vision_config
        tower = None if vision is None else vision.model_type  # Gemma 4's default has no tower.
        if not method.fits(tower):
            fitting = " or ".join(repr(other.name) for other in VISION_METHODS.values() if other.fits(tower))
            raise ValueError(
                f"`vision_method` is {method.name!r}, but the vision tower of this {self.model_type!r} is of type "
                f"{tower!r}, and the method needs one of type {' or '.join(map(repr, method.towers or ()))}. Set it to "
                f"{fitting}."
            )
        return settings

    @classmethod
    def complete_processor(cls, processor: Any) -> None:
        """Let a processor return in every call what the model needs. Most do so by themselves."""
        for name, value in cls.video_processor_fields.items():
            setattr(processor.video_processor, name, value)
        if cls.tokenizer_fields:
            processor.tokenizer.init_kwargs |= cls.tokenizer_fields

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a config of what `config.json` says, with the settings in `kwargs` in place of its own. If they choose
        another method, settings in the file that it does not read are left out.

        Raises:
            ValueError: on the config of a checkpoint of another type, which the parent would load behind a warning and
                compute something else with; on a setting that the method does not read, and on a vision method that
                cannot run the vision tower.
        """
        got = config_dict.get("model_type")
        if got is not None and got != cls.model_type:
            remedy = "Load it with the class of its own family."
            if got in ("llava", "llava_qwen"):
                remedy = "If it is an original LLaVA-Video, convert it first: `vidcom2 convert-llava-video`."
            raise ValueError(
                f"The checkpoint is of type {got!r}, but {cls.__name__} is for {cls.model_type!r}. {remedy}"
            )
        given = {name: kwargs[name] for name in SETTING_NAMES if name in kwargs}  # the file's may be unknown here
        loaded = super().from_dict(config_dict | left_out(config_dict, kwargs) | given, **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        config.compression_settings(**{name: getattr(config, name) for name in given})
        return loaded

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write `config.json`.

        Raises:
            ValueError: on settings with which it would not load again, since a method does not read one of them or
                cannot run the vision tower.
        """
        self.compression_settings()
        super().save_pretrained(save_directory, *args, **kwargs)


def register_as_video_model(model_type: str, class_name: str) -> None:
    """Enter a model class into Transformers' tables of classes that take videos.

    Pipelines and `transformers serve` look there to see whether a model takes videos. A further table tells `Trainer`
    whether label smoothing has to shift the labels.
    """
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.setdefault(model_type, class_name)
    # The entry is a tuple, which pipelines look into and `transformers serve` does not. The server assumes that every
    # class it finds here can hear, and then fails on videos without sound.
    multimodal = cast("dict[str, str | tuple[str, ...]]", modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)
    multimodal.setdefault(model_type, (class_name,))
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(model_type, class_name)
