"""The table of families. One row says all that the package, the Hub repos, the cards and the tests ask about a family.

A family that differs from its stock classes by mixins and attributes alone has no files: `sources.py` writes its
modules from its row. Importing the table imports no model: a class is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, ProcessorMixin

    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin
    from ..modeling.prompt.processing_short_prompts import VidCom2ProcessorMixin


QWEN_MARKS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
QWEN_SHOWN = "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
GLM_MARKS = {
    "image_token_id": "<|image|>",
    "video_token_id": "<|video|>",
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}
GLM_SHOWN = "<|begin_of_image|><|image|><|end_of_image|>", "<|begin_of_video|><|video|><|end_of_video|>"
HALF_ROTATED = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}


@dataclass(frozen=True)
class Published:
    """The paper's own figures for a family: the model they were measured on, and (what, value) rows."""

    model: str
    figures: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Tiny:
    """A tiny checkpoint of a family: what the rules of `tiny/by_rules.py` do not give by the names of fields.

    Attributes:
        text, vision, fields: fields of the configs of the language model and the vision tower, and of the whole one.
        marks: the tokens that stand for, begin and end images and videos, by the config's fields.
        shown: how a chat template writes an image and a video.
        patch_size: pixels per side of a patch.
        pixels: the least and the most pixels of what the processor bounds; None if it bounds a frame's tokens.
    """

    text: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=lambda: QWEN_MARKS)
    shown: tuple[str, str] = QWEN_SHOWN
    patch_size: int = 16
    pixels: tuple[int, int] | None = None


# The mixins of inner models that rows name, as `module.Class` of `modeling/families`.
GRIDS = "qwen_videos.GridVideosMixin"  # videos as patches with a grid for each
MROPE_GRIDS = "qwen_videos.QwenVideoModelMixin"  # and M-RoPE positions
MROPE_SHARED_IDS = "glm_videos.GlmVideoModelMixin"  # and placeholders of videos that are those of images
SHARED_IDS = "glm_videos.SharedIdsMixin"  # such placeholders alone
GRID_ROWS = "grid_rows.GridRowsMixin"  # with several grids for a video
LINEAR_ATTENTION = "linear_attention.LinearAttentionMixin"
# Those of classes with a head.
POSITIONS_BY_ORDER = "plain_positions.PositionsByOrderMixin"
HEAD_OF_GRID_ROWS = "grid_rows.HeadOfGridRowsMixin"

DEEPSTACK = "`get_video_features` also returns the deepstack features of the kept tokens, for the first decoder layers."
ROUTED = "`aux_loss` and `router_logits` are over the short prompt."
LISTS_MEDIA = {"input_modalities": ("image", "video", "text")}  # for beams: older versions list text alone, or nothing
BEAMS = "beams and several sequences per prompt are right with images and videos, in Transformers 5.19 too."
PAIR_OF_28 = "two frames together: a token for 28 × 28 pixels"
PAIR_OF_32 = "two frames together: a token for 32 × 32 pixels"


@dataclass(frozen=True)
class Family:
    """A family of video LLMs.

    Attributes:
        model_type: the `model_type` of its checkpoints and its config.
        name: the name that people use.
        classes: the stem of its classes, which are `<classes>Config` and `<classes>ForConditionalGeneration`.
        tiny: what its tiny random checkpoint, of the uncompressed model, has beyond the rules for all; or the function
            that builds it, as `module.function`.
        frame: what one scored frame is.
        of: the stem of the stock model's classes, where it is not that of the config.
        checkpoints: the released ones, as README lists them. "" if none is known.
        stays: what else of a video stays, as `what_stays` says it; "" if that follows from the other fields.
        square: whether each frame becomes a square of `vision_config.image_size` pixels, squeezed or cropped.
        published: the paper's figures; None if the paper has none.
        settings: its settings beyond `CompressionSettings`, with the values that each accepts, the default first.
        stock_processors: the names of the processors that fit, the usual one first. Each writes a placeholder for
            every video token, and is the parent of one in `PROCESSORS`.
        runs_stock_prompts: whether the model shortens prompts of these. It cannot where they pass frames as images, or
            do not tell two videos apart.
        packages: optional packages that the processor or the model needs.
        native: whether Transformers has a stock class that loads the same checkpoints.
        part_of: the `model_type` of checkpoints that hold such a model and others; None if there are none.
        since: the first Transformers that has the classes which ours extend, and in which these take videos.
        numbers_tokens: whether positions are the order of the tokens, although the language model takes (t, h, w).
        spreads_times: whether vLLM assumes that frames are spread evenly over the whole video.
        stages: whether vLLM can run its decoder layers in pipeline stages.
        served_plainly: whether nothing speaks against vLLM's Transformers backend, without this package, but positions
            (t, h, w) or frames that stand apart.
        static_since: the first Transformers in which its stock class has the logits of a dynamic KV cache on a static
            one, too; None if there is none.
        mixins: of its inner model, as `module.Class`, before the stock class. A module that has no file is written
            from these and the fields below.
        head_mixins: of the class with the head, before `VidCom2GenerationMixin`.
        head_fields: attributes of the class with the head.
        changes, head_changes: what else the docstrings of the two classes say that they change.
        not_exported: those of the stock classes that `transformers` does not export.
    """

    model_type: str
    name: str
    classes: str
    tiny: str | Tiny
    frame: str
    of: str = ""
    checkpoints: str = ""
    stays: str = ""
    square: bool = False
    published: Published | None = None
    settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stock_processors: tuple[str, ...] = ()
    runs_stock_prompts: bool = True
    packages: tuple[str, ...] = ()
    native: bool = True
    part_of: str | None = None
    since: str = "5.19"
    numbers_tokens: bool = False
    spreads_times: bool = False
    stages: bool = True
    served_plainly: bool = True
    static_since: str | None = "5.19"
    mixins: tuple[str, ...] = ()
    head_mixins: tuple[str, ...] = ()
    head_fields: dict[str, Any] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    head_changes: tuple[str, ...] = ()
    not_exported: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The stem of its modules, which are `configuration_vidcom2_<module>.py` and `modeling_vidcom2_<module>.py`."""
        return self.model_type.removeprefix("vidcom2_")

    @property
    def stock(self) -> str:
        """The stem of the stock config's name, and of the stock model's if the row does not say otherwise."""
        return self.classes.removeprefix("VidCom2")

    @property
    def stock_model(self) -> str:
        """The stem of the stock model's classes."""
        return self.of or self.stock

    @property
    def frames_stand_apart(self) -> bool:
        """Whether each frame has its own group of placeholders, if the processor's module is written from a row."""
        return (row := PROCESSOR_ROWS.get(self.stock_processors[0])) is not None and row.frames_stand_apart

    @property
    def what_stays(self) -> str:
        """What stays of a video beside the tokens that a method chooses; "" if nothing does."""
        whose = "its" if self.frame.startswith("a frame") else "their"
        return self.stays or (f"{whose} time and marks stay" if self.frames_stand_apart else "")

    @property
    def runs_here(self) -> bool:
        """Whether the installed Transformers has the classes which ours extend."""
        return _transformers_has(self.since)

    @property
    def needs(self) -> str:
        """Why the family does not run here, as an error says it."""
        return (
            f"{self.name} needs Transformers {self.since} or newer, but {_transformers()} is installed. "
            "Run: pip install --upgrade transformers"
        )

    @property
    def class_names(self) -> tuple[str, str]:
        """The names of the two classes that the package exports."""
        return f"{self.classes}Config", f"{self.classes}ForConditionalGeneration"

    @property
    def config_class(self) -> type[PreTrainedConfig]:
        return self._imported(f"configuration.configuration_vidcom2_{self.module}.{self.classes}Config")

    @property
    def model_class(self) -> type[VidCom2GenerationMixin]:
        """The generating class. Its `inner_class` is the model without a head."""
        if not self.native:
            import_module("..llava_video.classes", __package__)  # registers it with Transformers' Auto classes
        model = f"modeling.families.modeling_vidcom2_{self.module}.{self.classes}ForConditionalGeneration"
        return self._imported(model)

    @property
    def uncompressed_class(self) -> type[PreTrainedModel]:
        """The class that `model_class` extends, with the same weights: Transformers' own, if it has one."""
        return self.model_class.__bases__[-1]

    @property
    def processor(self) -> str:
        """This project's usual processor, as `module.Class`."""
        return PROCESSORS[self.stock_processors[0]]

    @property
    def processor_class(self) -> type[VidCom2ProcessorMixin]:
        """This project's usual processor, which writes a placeholder for each video token that stays."""
        return self._imported(f"modeling.families.{self.processor}")

    @property
    def processor_names(self) -> tuple[str, ...]:
        """The names of the processors that fit, the usual stock one first."""
        return (*self.stock_processors, *(PROCESSORS[name].rpartition(".")[2] for name in self.stock_processors))

    def processor_like(self, processor: ProcessorMixin) -> type[VidCom2ProcessorMixin] | None:
        """Return this project's class that extends a processor's class; None if its class is a user's."""
        name = PROCESSORS.get(type(processor).__name__)
        return None if name is None else imported(f"modeling.families.{name}")

    @property
    def build_tiny(self) -> Callable[..., tuple[PreTrainedModel, ProcessorMixin]]:
        """The function that builds a tiny checkpoint. Raises an OptionError if a package for it is missing."""
        self.check_packages()
        if isinstance(self.tiny, Tiny):
            return partial(imported("tiny.by_rules.tiny_by_rules"), self)
        if not self.tiny:
            raise OptionError(f"{self.name} has no tiny checkpoint, since `vidcom2.host_family` hosts it.")
        return self._imported(self.tiny)

    def _imported(self, name: str) -> Any:
        """Import a class or a function of the family. Raises an OptionError if this Transformers has no such family."""
        try:
            return imported(name)
        except ImportError as error:
            if self.runs_here:
                raise
            raise OptionError(self.needs) from error

    def check_cache(self, kind: str | None) -> None:
        """Raise an OptionError if a kind of KV cache (`cache_implementation`) changes what the stock class computes."""
        if kind is None or "static" not in kind or (self.static_since and _transformers_has(self.static_since)):
            return
        upgrade = f", or upgrade Transformers to {self.static_since}" if self.static_since else ""
        raise OptionError(
            f"the KV cache (`cache_implementation`) would be {kind!r}, but the stock class of {self.name} gives other "
            f"logits on it than on a dynamic one. Take 'dynamic'{upgrade}. To have Transformers' answers nevertheless, "
            "set `model.generation_config.cache_implementation`."
        )

    def check_packages(self) -> None:
        """Raise an OptionError if an optional package is missing that the family needs."""
        missing = [package for package in self.packages if find_spec(package) is None]
        if missing:
            raise OptionError(
                f"{self.name} needs {' and '.join(missing)}, which is not installed. Run: pip install "
                f"{' '.join(missing)}"
            )


@cache
def _transformers() -> str:
    """Return the installed version. Finding it takes some milliseconds, and each family asks."""
    return version("transformers")


def _transformers_has(needed: str) -> bool:
    """Return whether the installed version is this one, as in `"5.23"`, or a newer one."""
    installed, least = (tuple(map(int, each.split(".")[:2])) for each in (_transformers(), needed))
    return installed >= least


def imported(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(f"..{module}", __package__), attribute)


@dataclass(frozen=True)
class ProcessorRow:
    """How this project's processor differs from a stock one, if by a mixin and attributes alone.

    Attributes:
        of: what it is the processor of, as people say.
        module: the stem of its module, which is `processing_vidcom2_<module>.py`.
        frames_stand_apart: whether each frame has its own group of placeholders, behind its time. So say the models.
        placeholder: the attribute that holds the text of a placeholder, if not that of videos.
        mixin: as `module.Class`, from the top of `modeling`.
    """

    of: str
    module: str
    frames_stand_apart: bool = False
    placeholder: str | None = None
    mixin: str = "prompt.processing_short_prompts.VidCom2ProcessorMixin"

    def processor(self, stock: str) -> str:
        """Return this project's processor, as `module.Class`, from the name of the stock one."""
        return f"processing_vidcom2_{self.module}.VidCom2{stock}"


# By the stock processor's name.
PROCESSOR_ROWS: dict[str, ProcessorRow] = {
    "Qwen2VLProcessor": ProcessorRow("Qwen2-VL", "qwen2_vl"),
    "Qwen2_5_VLProcessor": ProcessorRow("Qwen2.5-VL", "qwen2_5_vl"),
    "Exaone4_5_Processor": ProcessorRow("EXAONE 4.5", "exaone4_5"),
    "Qwen3VLProcessor": ProcessorRow("Qwen3-VL", "qwen3_vl", frames_stand_apart=True),
    "Lfm3VlProcessor": ProcessorRow("LFM3-VL", "lfm3_vl", frames_stand_apart=True),
    "CohereCompassProcessor": ProcessorRow("Cohere Compass", "cohere_compass", frames_stand_apart=True),
    "HyperCLOVAXVisionV2Processor": ProcessorRow("HyperCLOVA X", "hyperclovax_vision_v2"),
    "Kimi_K25Processor": ProcessorRow(
        "Kimi-K2.5", "kimi_k25", frames_stand_apart=True, mixin="families.processing_grid_rows.GridRowsProcessorMixin"
    ),
    "Cosmos3EdgeProcessor": ProcessorRow("Cosmos 3 Edge", "cosmos3_edge", frames_stand_apart=True),
    "Glm4vProcessor": ProcessorRow("GLM-4V", "glm4v", frames_stand_apart=True, placeholder="image_token"),
    "Glm46VProcessor": ProcessorRow("GLM-4.6V", "glm46v", frames_stand_apart=True, placeholder="image_token"),
    "Glm5NextProcessor": ProcessorRow("GLM-5-Next", "glm5_next", frames_stand_apart=True, placeholder="image_token"),
    "Gemma4Processor": ProcessorRow("Gemma 4", "gemma4", frames_stand_apart=True),
    "Gemma4UnifiedProcessor": ProcessorRow("Gemma 4 Unified", "gemma4_unified", frames_stand_apart=True),
}

# Stock processor -> this project's, which extends it, as `module.Class`.
PROCESSORS: dict[str, str] = {
    f"{name}Processor": f"processing_{module}.VidCom2{name}Processor"
    for name, module in (
        ("LlavaOnevision", "vidcom2_llava_onevision"),
        ("LlavaNextVideo", "vidcom2_llava_next_video"),
        ("PerceptionLM", "vidcom2_perception_lm"),
        ("Qwen2_5Omni", "qwen_sound"),
        ("Qwen3OmniMoe", "qwen_sound"),
        ("InternVL", "frame_images"),
        ("SmolVLM", "frame_images"),
        ("VideoLlama3", "vidcom2_video_llama_3"),
        ("MiniCPMV4_6", "vidcom2_minicpmv4_6"),
        ("Molmo2", "vidcom2_molmo2"),
        ("NemotronH_Omni_Reasoning_V3", "vidcom2_nemotron_h_omni"),
    )
} | {"UncompressedLlavaVideoProcessor": "processing_llava_video.LlavaVideoProcessor"}
PROCESSORS |= {stock: row.processor(stock) for stock, row in PROCESSOR_ROWS.items()}

# By use: those that most people run, those of the paper, and the others.
FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family(
            model_type="qwen3_5",
            name="Qwen3.5",
            classes="VidCom2Qwen3_5",
            checkpoints="`Qwen/Qwen3.5-{0.8B,4B,9B,27B}`, `Qwen/Qwen3.{6,8}-27B`",
            tiny="tiny.qwen.tiny_qwen3_5",
            stock_processors=("Qwen3VLProcessor",),
            frame=PAIR_OF_32,
            mixins=(LINEAR_ATTENTION, MROPE_GRIDS),
            head_fields=LISTS_MEDIA,
            head_changes=(BEAMS,),
        ),
        Family(
            model_type="qwen3_vl",
            name="Qwen3-VL",
            classes="VidCom2Qwen3VL",
            checkpoints="`Qwen/Qwen3-VL-{2B,4B,8B,32B}-{Instruct,Thinking}`, `nvidia/Cosmos-Reason2-2B`",
            tiny="tiny.qwen.tiny_qwen3_vl",
            stock_processors=("Qwen3VLProcessor",),
            frame=PAIR_OF_32,
            mixins=(MROPE_GRIDS,),
            changes=(DEEPSTACK,),
        ),
        Family(
            model_type="qwen2_5_vl",
            name="Qwen2.5-VL",
            classes="VidCom2Qwen2_5_VL",
            checkpoints="`Qwen/Qwen2.5-VL-{3B,7B,32B,72B}-Instruct`",
            tiny="tiny.qwen.tiny_qwen2_5_vl",
            spreads_times=True,
            stock_processors=("Qwen2_5_VLProcessor",),
            frame=PAIR_OF_28,
            mixins=(MROPE_GRIDS,),
            changes=("t follows the time in `second_per_grid_ts`.",),
        ),
        Family(
            model_type="nemotron_h_omni",
            name="Nemotron 3 Omni",
            classes="VidCom2NemotronHOmni",
            checkpoints="`nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16`",
            tiny="tiny.nemotron.tiny_nemotron_h_omni",
            stock_processors=("NemotronH_Omni_Reasoning_V3Processor",),
            frame=PAIR_OF_32,
            stays="their times and marks stay, and so does sound",
            since="5.24",
        ),
        Family(
            model_type="kimi_k25",
            name="Kimi-K2.5",
            classes="VidCom2Kimi_K25",
            checkpoints="`moonshotai/Kimi-K2.{5,6}`",
            tiny="tiny.kimi.tiny_kimi_k25",
            stock_processors=("Kimi_K25Processor",),
            runs_stock_prompts=False,
            frame="four frames together: a token for 28 × 28 pixels",
            since="5.24",  # The stock class of older ones fails on a row of several frames.
            mixins=(GRID_ROWS,),
            head_mixins=(HEAD_OF_GRID_ROWS,),
        ),
        Family(
            model_type="gemma4",
            name="Gemma 4",
            classes="VidCom2Gemma4",
            checkpoints="`google/gemma-4-{E2B,E4B,26B-A4B,31B}-it`",
            tiny="tiny.gemma4.tiny_gemma4",
            static_since="5.23",  # before, the 26B's and 31B's logits differ
            stages=False,  # Later ones would need the keys and embeddings of earlier ones, which vLLM does not pass on.
            stock_processors=("Gemma4Processor",),
            frame="a frame: a token for 48 × 48 pixels after scaling, up to 70 tokens",
        ),
        Family(
            model_type="llava_onevision",
            name="LLaVA-OneVision",
            classes="VidCom2LlavaOnevision",
            checkpoints="`llava-hf/llava-onevision-qwen2-{0.5b,7b,72b}-ov-hf`",
            tiny="tiny.llava.tiny_llava_onevision",
            stock_processors=("LlavaOnevisionProcessor",),
            frame="a frame: 14 × 14 tokens",
            stays="one newline per video stays",
            square=True,
            # From the paper's Table 1 (average over its benchmarks) and Table 2.
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
            classes="VidCom2LlavaVideo",
            checkpoints="`lmms-lab/LLaVA-Video-{7B,72B}-Qwen2`, converted",
            tiny="tiny.llava_video.tiny_llava_video",
            frame="a frame: 13 × 13 tokens, and a newline after each row",
            stays="newlines stay",
            square=True,
            published=Published(
                "LLaVA-Video-7B",
                (
                    ("average quality kept at 25 % of the tokens", "93.6 %"),
                    ("average quality kept at 15 % of the tokens", "88.5 %"),
                ),
            ),
            settings={"compression_newlines": ("all", "occupied", "trailing")},
            stock_processors=("UncompressedLlavaVideoProcessor",),
            native=False,
        ),
        Family(
            model_type="qwen2_vl",
            name="Qwen2-VL",
            classes="VidCom2Qwen2VL",
            checkpoints="`Qwen/Qwen2-VL-{2B,7B,72B}-Instruct`",
            tiny="tiny.qwen.tiny_qwen2_vl",
            stock_processors=("Qwen2VLProcessor",),
            frame=PAIR_OF_28,
            # The paper's figure on Qwen2-VL.
            published=Published("Qwen2-VL", (("VideoMME (Long) kept at 25 % of the tokens", "101.2 %"),)),
            mixins=(MROPE_GRIDS,),
        ),
        Family(
            model_type="llava_next_video",
            name="LLaVA-NeXT-Video",
            classes="VidCom2LlavaNextVideo",
            checkpoints="`llava-hf/LLaVA-NeXT-Video-{7B,34B}-hf`",
            tiny="tiny.llava.tiny_llava_next_video",
            stock_processors=("LlavaNextVideoProcessor",),
            frame="a frame: 12 × 12 tokens of the square in its middle",
            square=True,
        ),
        Family(
            model_type="perception_lm",
            name="PerceptionLM",
            classes="VidCom2PerceptionLM",
            checkpoints="`facebook/Perception-LM-{1B,3B,8B}`",
            tiny="tiny.perception_lm.tiny_perception_lm",
            stock_processors=("PerceptionLMProcessor",),
            packages=("timm",),
            frame="a frame: 16 × 16 tokens",
        ),
        Family(
            model_type="exaone4_5",
            name="EXAONE 4.5",
            classes="VidCom2Exaone4_5_",
            checkpoints="`LGAI-EXAONE/EXAONE-4.5-33B`",
            tiny="tiny.qwen.tiny_exaone4_5",
            stock_processors=("Exaone4_5_Processor",),
            frame=PAIR_OF_28,
            mixins=(GRIDS,),
            head_mixins=(POSITIONS_BY_ORDER,),
            head_fields=LISTS_MEDIA,
        ),
        Family(
            model_type="qwen2_5_omni_thinker",
            name="Qwen2.5-Omni",
            classes="VidCom2Qwen2_5OmniThinker",
            checkpoints="`Qwen/Qwen2.5-Omni-{3B,7B}`",
            tiny="tiny.qwen.tiny_qwen2_5_omni_thinker",
            stock_processors=("Qwen2_5OmniProcessor",),
            frame=PAIR_OF_28,
            stays="sound stays",
            part_of="qwen2_5_omni",
            since="5.23",
        ),
        Family(
            model_type="qwen3_vl_moe",
            name="Qwen3-VL-MoE",
            classes="VidCom2Qwen3VLMoe",
            checkpoints="`Qwen/Qwen3-VL-{30B-A3B,235B-A22B}-{Instruct,Thinking}`",
            tiny="tiny.qwen.tiny_qwen3_vl_moe",
            stock_processors=("Qwen3VLProcessor",),
            frame=PAIR_OF_32,
            mixins=(MROPE_GRIDS,),
            changes=(DEEPSTACK,),
            head_changes=(ROUTED,),
        ),
        Family(
            model_type="qwen3_omni_moe_thinker",
            name="Qwen3-Omni",
            classes="VidCom2Qwen3OmniMoeThinker",
            checkpoints="`Qwen/Qwen3-Omni-30B-A3B-{Instruct,Thinking,Captioner}`",
            tiny="tiny.qwen.tiny_qwen3_omni_moe_thinker",
            stock_processors=("Qwen3OmniMoeProcessor",),
            frame=PAIR_OF_32,
            stays="sound stays",
            part_of="qwen3_omni_moe",
            since="5.23",
        ),
        Family(
            model_type="qwen3_5_moe",
            name="Qwen3.5-MoE",
            classes="VidCom2Qwen3_5Moe",
            checkpoints="`Qwen/Qwen3.5-{35B-A3B,122B-A10B,397B-A17B}`, `Qwen/Qwen3.6-35B-A3B`",
            tiny="tiny.qwen.tiny_qwen3_5_moe",
            stock_processors=("Qwen3VLProcessor",),
            frame=PAIR_OF_32,
            mixins=(LINEAR_ATTENTION, MROPE_GRIDS),
            head_fields=LISTS_MEDIA,
            head_changes=(BEAMS, ROUTED),
        ),
        Family(
            model_type="qwen4_exp",
            name="Qwen4-Exp",
            classes="VidCom2Qwen4Exp",
            checkpoints="`Qwen/Qwen4-Exp`",
            tiny=Tiny(
                text={
                    "head_dim": 32,
                    "partial_rotary_factor": 0.25,
                    "layer_types": ["linear_attention", "indexed_attention"],
                }
            ),
            stock_processors=("Qwen3VLProcessor",),
            frame=PAIR_OF_32,
            since="5.21",  # before, its indexer's positions do not follow the rows of a KV cache
            mixins=(LINEAR_ATTENTION, MROPE_GRIDS),
            head_changes=(ROUTED,),
        ),
        Family(
            model_type="lfm3_vl",
            name="LFM3-VL",
            classes="VidCom2Lfm3Vl",
            checkpoints="`LiquidAI/LFM3-VL-2B`",
            tiny=Tiny(
                text={"layer_types": ["conv", "full_attention", "sliding_attention"]},
                vision={"layer_types": ["conv", "full_attention"]},
            ),
            stock_processors=("Lfm3VlProcessor",),
            frame=PAIR_OF_32,
            since="5.23",
            mixins=(LINEAR_ATTENTION, GRIDS),
        ),
        Family(
            model_type="cohere_compass",
            name="Cohere Compass",
            classes="VidCom2CohereCompass",
            checkpoints="`CohereLabs/North-Micro-Vision-Instruct`",
            tiny=Tiny(
                text={"layer_types": ["sliding_attention", "full_attention"], "logit_scale": 0.5},
                vision={"deepstack_visual_indexes": [0, 1], "initializer_range": 0.08},
                marks={field: token.upper() for field, token in QWEN_MARKS.items()},
                shown=("<|IMAGE_PAD|>", "<|VIDEO_PAD|>"),  # The processor writes the marks around them.
            ),
            stock_processors=("CohereCompassProcessor",),
            frame=PAIR_OF_32,
            since="5.21",  # before, its rotary positions are others than those of newer versions
            mixins=(MROPE_GRIDS,),
            changes=(DEEPSTACK,),
        ),
        Family(
            model_type="hyperclovax_vision_v2",
            name="HyperCLOVA X",
            classes="VidCom2HyperCLOVAXVisionV2",
            checkpoints="`naver-hyperclovax/HyperCLOVAX-SEED-Think-32B`",
            tiny=Tiny(
                vision={"window_size": 56, "fullatt_block_indexes": [1]},
                patch_size=14,
                pixels=(196 * 196, 196 * 280),
            ),
            stock_processors=("HyperCLOVAXVisionV2Processor",),
            frame=PAIR_OF_28,
            served_plainly=False,  # nobody tried
            mixins=(GRIDS,),
            head_mixins=(POSITIONS_BY_ORDER,),
        ),
        Family(
            model_type="glm4v",
            name="GLM-4V",
            classes="VidCom2Glm4v",
            checkpoints="`zai-org/GLM-4.1V-9B-{Base,Thinking}`",
            tiny="tiny.glm.tiny_glm4v",
            stock_processors=("Glm4vProcessor", "Glm46VProcessor"),
            frame=PAIR_OF_28,
            mixins=(MROPE_SHARED_IDS,),
        ),
        Family(
            model_type="glm4v_moe",
            name="GLM-4V-MoE",
            classes="VidCom2Glm4vMoe",
            checkpoints="`zai-org/GLM-4.5V`",
            tiny="tiny.glm.tiny_glm4v_moe",
            stock_processors=("Glm4vProcessor", "Glm46VProcessor"),
            frame=PAIR_OF_28,
            mixins=(MROPE_SHARED_IDS,),
            head_changes=(ROUTED,),
        ),
        Family(
            model_type="glm46v",
            name="GLM-4.6V",
            classes="VidCom2Glm46V",
            tiny="tiny.glm.tiny_glm46v",
            stock_processors=("Glm46VProcessor", "Glm4vProcessor"),
            frame=PAIR_OF_28,
            mixins=(MROPE_SHARED_IDS,),
        ),
        Family(
            model_type="glmga",
            name="GLM-GA",
            classes="VidCom2Glmga",
            of="Glm46V",
            tiny=Tiny(
                text={"num_attention_heads": 2, "num_key_value_heads": 1, "rope_parameters": HALF_ROTATED},
                marks=GLM_MARKS,
                shown=GLM_SHOWN,
            ),
            stock_processors=("Glm46VProcessor",),
            frame=PAIR_OF_28,
            mixins=(MROPE_SHARED_IDS,),
        ),
        Family(
            model_type="glm5_next",
            name="GLM-5-Next",
            classes="VidCom2Glm5Next",
            checkpoints="`zai-org/GLM-5.3-Flash`",
            tiny="tiny.glm.tiny_glm5_next",
            stock_processors=("Glm5NextProcessor",),
            frame=PAIR_OF_28,
            mixins=(LINEAR_ATTENTION, SHARED_IDS, GRIDS),
            head_fields=LISTS_MEDIA,
            head_changes=(BEAMS, ROUTED),
        ),
        Family(
            model_type="cosmos3_omni",
            name="Cosmos 3",
            classes="VidCom2Cosmos3Omni",
            checkpoints="`nvidia/Cosmos3-Nano`",
            tiny="tiny.qwen.tiny_cosmos3_omni",
            stock_processors=("Qwen3VLProcessor",),
            frame=PAIR_OF_32,
            mixins=(MROPE_GRIDS,),
            changes=(DEEPSTACK,),
            not_exported=("Cosmos3OmniModel",),
        ),
        Family(
            model_type="cosmos3_edge",
            name="Cosmos 3 Edge",
            classes="VidCom2Cosmos3Edge",
            checkpoints="`nvidia/Cosmos3-Edge`",
            tiny="tiny.cosmos3_edge.tiny_cosmos3_edge",
            stock_processors=("Cosmos3EdgeProcessor",),
            frame="a frame: a token for 32 × 32 pixels",
            since="5.23",
        ),
        Family(
            model_type="internvl",
            name="InternVL",
            classes="VidCom2InternVL",
            checkpoints="`OpenGVLab/InternVL3-{1B,8B}-hf`",
            tiny="tiny.internvl.tiny_internvl",
            stock_processors=("InternVLProcessor",),
            runs_stock_prompts=False,
            frame="a frame: 16 × 16 tokens",
            stays="its number and marks stay",
            square=True,
        ),
        Family(
            model_type="smolvlm",
            name="SmolVLM",
            classes="VidCom2SmolVLM",
            checkpoints="`HuggingFaceTB/SmolVLM2-{256M-Video,500M-Video,2.2B}-Instruct`",
            tiny="tiny.smolvlm.tiny_smolvlm",
            stock_processors=("SmolVLMProcessor",),
            runs_stock_prompts=False,
            packages=("num2words",),
            frame="a frame: 9 × 9 or 8 × 8 tokens",
            stays="its time and marks stay",
            square=True,
        ),
        Family(
            model_type="gemma4_unified",
            name="Gemma 4 Unified",
            classes="VidCom2Gemma4Unified",
            checkpoints="`google/gemma-4-12B-it`",
            tiny="tiny.gemma4.tiny_gemma4_unified",
            static_since=None,
            stock_processors=("Gemma4UnifiedProcessor",),
            frame="a frame: a token for 48 × 48 pixels after scaling, up to 70 tokens",
        ),
        Family(
            model_type="video_llama_3",
            name="VideoLLaMA3",
            classes="VidCom2VideoLlama3",
            checkpoints="`lkhl/VideoLLaMA3-{2B,7B}-Image-HF`",
            tiny="tiny.video_llama_3.tiny_video_llama_3",
            stock_processors=("VideoLlama3Processor",),
            frame="a frame: a token for 28 × 28 pixels",
            stays="its time stays",
        ),
        Family(
            model_type="minicpmv4_6",
            name="MiniCPM-V 4.6",
            classes="VidCom2MiniCPMV4_6",
            checkpoints="`openbmb/MiniCPM-V-4.6`",
            tiny="tiny.minicpmv.tiny_minicpmv4_6",
            numbers_tokens=True,
            stock_processors=("MiniCPMV4_6Processor",),
            frame="a frame: a token for 56 × 56 pixels after scaling, some 64 tokens, and those of its slices",
            stays="marks stay",
        ),
        Family(
            model_type="molmo2",
            name="Molmo2",
            classes="VidCom2Molmo2",
            checkpoints="`allenai/Molmo2-{4B,8B,O-7B}`",
            tiny="tiny.molmo2.tiny_molmo2",
            stock_processors=("Molmo2Processor",),
            frame="a frame: 9 × 9 tokens",
            stays="its time and marks stay",
            since="5.20",
        ),
    )
}


def absent_classes() -> dict[str, str]:
    """Return the names of the exported classes that this Transformers cannot run, and why."""
    absent = [family for family in FAMILIES.values() if not family.runs_here]
    return {name: family.needs for family in absent for name in family.class_names}


def no_class_for(what: str, model_type: object) -> str:
    """Return the error for a model that is of no family, as sentences.

    Args:
        what: which model it is.
        model_type: the `model_type` of its config.
    """
    part = next((name for name, family in FAMILIES.items() if family.part_of == model_type), None)
    if part is not None:
        return (
            f"{what} is of type {model_type!r}, of which VidCom² has a class only for the part of type {part!r}: "
            "`vidcom2.load` takes that from a whole checkpoint, and `vidcom2.apply` takes `model.thinker`."
        )
    meant = did_you_mean(model_type, FAMILIES)  # comes before the long list
    return (
        f"{what} is of type {model_type!r}{f'.{meant}' if meant else ', but'} VidCom² has classes for "
        f"{', '.join(map(repr, FAMILIES))}. Take a checkpoint of such a type, in the format of Transformers and with a "
        "vision tower, or run this one without compression. `vidcom2 check-family` says whether VidCom² could host it, "
        "and `vidcom2.host_family` does."
    )
