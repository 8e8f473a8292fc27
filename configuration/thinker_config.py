"""What the configs of the thinkers of Qwen's Omni models share."""

from types import ModuleType
from typing import Any, ClassVar

from .family_config import FamilyConfig


class ThinkerConfig(FamilyConfig):
    """A family's config that refuses a Transformers whose thinker has no inner model, which VidCom² extends.

    Attributes:
        inner_model: the name of Transformers' class.
        full_name: the name of the models, in words for the message.
    """

    inner_model: ClassVar[str]
    full_name: ClassVar[str]

    @staticmethod
    def stock_module() -> ModuleType:
        """Import the module of Transformers that has the models."""
        raise NotImplementedError

    def __post_init__(self, **kwargs: Any) -> None:
        if not hasattr(self.stock_module(), self.inner_model):
            import transformers

            raise ValueError(
                f"Transformers is {transformers.__version__}, whose {self.full_name} encodes videos in the class with "
                "the head, but VidCom² extends the inner model that Transformers 5.21 put there. Upgrade Transformers, "
                "or run the stock class without compression."
            )
        super().__post_init__(**kwargs)
