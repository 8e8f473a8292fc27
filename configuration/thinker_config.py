"""What the configs of the thinkers of Qwen's Omni models share. They refuse a Transformers whose thinker has no inner
model.
"""

from typing import Any, ClassVar

from .family_config import FamilyConfig


class ThinkerConfig(FamilyConfig):
    """A family's config that refuses a Transformers whose thinker has no inner model, which VidCom² extends.

    Attributes:
        full_name: the name of the models, in words for the message.
    """

    full_name: ClassVar[str]

    @staticmethod
    def has_inner_model() -> bool:
        """Whether Transformers has a class for the thinker without its head."""
        raise NotImplementedError

    def __post_init__(self, **kwargs: Any) -> None:
        if not self.has_inner_model():
            import transformers

            raise ValueError(
                f"Transformers is {transformers.__version__}, whose {self.full_name} encodes videos in the class with "
                "the head, but VidCom² extends the inner model that Transformers 5.21 put there. Upgrade Transformers, "
                "or run the stock class without compression."
            )
        super().__post_init__(**kwargs)
