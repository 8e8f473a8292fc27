"""What the configs of the thinkers of Qwen's Omni models share. They refuse a Transformers that is too old for them."""

from typing import Any, ClassVar

import transformers

from .family_config import FamilyConfig


class ThinkerConfig(FamilyConfig):
    """A family's config that refuses a Transformers without the inner model and the hooks of the processor that VidCom²
    extends.

    Attributes:
        full_name: the name of the models, in words for the message.
    """

    full_name: ClassVar[str]

    def __post_init__(self, **kwargs: Any) -> None:
        if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 23):
            raise ValueError(
                f"Transformers is {transformers.__version__}, but VidCom² needs 5.23 for {self.full_name}, whose "
                "processor has a hook for the placeholders of videos only since then. Upgrade Transformers, or run the "
                "stock class without compression."
            )
        super().__post_init__(**kwargs)
