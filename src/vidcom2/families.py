"""The table of families: one row says all that the package, the Hub repos, the cards and the tests ask about a family.

Importing the table imports no model; the classes are imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, ProcessorMixin

    from .modeling.prompt.compressed_generation import VidCom2GenerationMixin


@dataclass(frozen=True)
class Published:
    """The paper's own figures on a family: on which model, and (what, value) rows."""

    model: str
    figures: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Family:
    """A family of video LLMs.

    Attributes:
        model_type: of its checkpoints and its config.
        name: as people call it.
        module: its files are `configuration_vidcom2_<module>.py` and `modeling_vidcom2_<module>.py`.
        classes: its classes are `<classes>Config` and `<classes>ForConditionalGeneration`.
        tiny: function that builds a tiny random checkpoint of the uncompressed model, as `module.function`.
        frame: what one scored frame is.
        square: whether the processor makes the vision tower's square of a frame, squeezed, or cut out of its middle.
        published: figures of the paper; None if it has none.
        settings: those that it has beside `CompressionSettings`, with what each accepts, the default first.
        processor: the project's own, as `module.Class`; None if Transformers has one.
        native: whether Transformers has a stock class that loads the same checkpoints.
    """

    model_type: str
    name: str
    module: str
    classes: str
    tiny: str
    frame: str
    square: bool = False
    published: Published | None = None
    settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    processor: str | None = None
    native: bool = True

    @property
    def config_class(self) -> type[PreTrainedConfig]:
        return _imported(f"configuration.configuration_vidcom2_{self.module}.{self.classes}Config")

    @property
    def model_class(self) -> type[VidCom2GenerationMixin]:
        """The generating class; `inner_class` of it is the one without a head."""
        if not self.native:
            import_module(".llava_video.classes", __package__)  # which makes it known to Transformers' Auto classes
        return _imported(f"modeling.families.modeling_vidcom2_{self.module}.{self.classes}ForConditionalGeneration")

    @property
    def uncompressed_class(self) -> type[PreTrainedModel]:
        """The class that it extends, with the same weights: Transformers' own, where it has one."""
        return self.model_class.__bases__[-1]

    @property
    def build_tiny(self) -> Callable[..., tuple[PreTrainedModel, ProcessorMixin]]:
        return _imported(self.tiny)


def _imported(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(f".{module}", __package__), attribute)


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family(
            model_type="llava_onevision",
            name="LLaVA-OneVision",
            module="llava_onevision",
            classes="VidCom2LlavaOnevision",
            tiny="tiny.checkpoints.tiny_llava_onevision",
            frame="a frame: 14 × 14 tokens",
            square=True,
            # Table 1 (average over its benchmarks) and Table 2.
            published=Published(
                "LLaVA-OneVision-7B",
                (
                    ("average quality kept at 25 % of the tokens", "99.6 %"),
                    ("average quality kept at 15 % of the tokens", "95.1 %"),
                    ("LLM generation time at 25 % (MVBench, A100)", "−70.8 %"),
                    ("whole model's time at 25 % (MVBench, A100)", "−43.0 %"),
                ),
            ),
        ),
        Family(
            model_type="vidcom2_llava_video",
            name="LLaVA-Video",
            module="llava_video",
            classes="VidCom2LlavaVideo",
            tiny="tiny.llava_video.tiny_llava_video",
            frame="a frame: 13 × 13 tokens, and a newline after each row",
            square=True,
            published=Published(
                "LLaVA-Video-7B",
                (
                    ("average quality kept at 25 % of the tokens", "93.6 %"),
                    ("average quality kept at 15 % of the tokens", "88.5 %"),
                ),
            ),
            settings={"compression_newlines": ("all", "occupied", "trailing")},
            processor="processing_llava_video.LlavaVideoProcessor",
            native=False,
        ),
        Family(
            model_type="llava_next_video",
            name="LLaVA-NeXT-Video",
            module="llava_next_video",
            classes="VidCom2LlavaNextVideo",
            tiny="tiny.checkpoints.tiny_llava_next_video",
            frame="a frame: 12 × 12 tokens of the square in its middle",
            square=True,
        ),
        Family(
            model_type="qwen2_vl",
            name="Qwen2-VL",
            module="qwen2_vl",
            classes="VidCom2Qwen2VL",
            tiny="tiny.checkpoints.tiny_qwen2_vl",
            frame="two frames together: a token for 28 × 28 pixels",
            # The paper's figure on Qwen2-VL.
            published=Published("Qwen2-VL", (("VideoMME (Long) kept at 25 % of the tokens", "101.2 %"),)),
        ),
        Family(
            model_type="qwen2_5_vl",
            name="Qwen2.5-VL",
            module="qwen2_5_vl",
            classes="VidCom2Qwen2_5_VL",
            tiny="tiny.checkpoints.tiny_qwen2_5_vl",
            frame="two frames together: a token for 28 × 28 pixels",
        ),
        Family(
            model_type="qwen3_vl",
            name="Qwen3-VL",
            module="qwen3_vl",
            classes="VidCom2Qwen3VL",
            tiny="tiny.checkpoints.tiny_qwen3_vl",
            frame="two frames together: a token for 32 × 32 pixels",
        ),
        Family(
            model_type="qwen3_vl_moe",
            name="Qwen3-VL-MoE",
            module="qwen3_vl_moe",
            classes="VidCom2Qwen3VLMoe",
            tiny="tiny.checkpoints.tiny_qwen3_vl_moe",
            frame="two frames together: a token for 32 × 32 pixels",
        ),
        Family(
            model_type="qwen3_5",
            name="Qwen3.5",
            module="qwen3_5",
            classes="VidCom2Qwen3_5",
            tiny="tiny.checkpoints.tiny_qwen3_5",
            frame="two frames together: a token for 32 × 32 pixels",
        ),
        Family(
            model_type="qwen3_5_moe",
            name="Qwen3.5-MoE",
            module="qwen3_5_moe",
            classes="VidCom2Qwen3_5Moe",
            tiny="tiny.checkpoints.tiny_qwen3_5_moe",
            frame="two frames together: a token for 32 × 32 pixels",
        ),
    )
}
NATIVE_FAMILIES: dict[str, Family] = {name: family for name, family in FAMILIES.items() if family.native}
