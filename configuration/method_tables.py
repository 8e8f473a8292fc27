"""The tables of methods: which there are, and what each reads.

The functions enter their rows when the methods' files are imported (`registered_methods.py`), so that the tables can be
read without torch. A compression method chooses the tokens that stay. A vision method says how the vision tower encodes
a video's frames.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# How many tokens K of a video's T·M a compression method keeps at a retention ratio R.
BY_BUDGETS = "budgets"  # the sum of `frame_budgets`, which follows `compression_rounding`
BY_SIZES = "sizes"  # R·T·M, rounded, but at least one, or one for each frame, or a whole frame

# Settings that only some methods of a kind read. All others are for every method to read.
OF_SOME_COMPRESSION_METHODS = (
    "compression_scoring",
    "compression_rounding",
    "compression_temperature",
    "compression_frame_score",
    "compression_window",
    "compression_frame_weight",
    "compression_video_weight",
)
OF_SOME_VISION_METHODS = ("vision_tolerance",)


@dataclass(frozen=True, kw_only=True)
class Method:
    """What the rows of both tables have in common.

    Attributes:
        name: the value of the setting that chooses it.
        settings: the settings that it reads, of those that only some methods read. Others must be at their default.
        file: the shipped file that registers its function, for a method of this project; None for a user's.
        function: what it computes. None until its file is imported, and so in a Hub repo that does not hold the file.
    """

    name: str
    settings: tuple[str, ...] = ()
    file: str | None = None
    function: Callable[..., Any] | None = None


@dataclass(frozen=True, kw_only=True)
class CompressionMethod(Method):
    """A row of the table of compression methods, whose functions turn `VideoTokens` and `CompressionSettings` into a
    `VideoCompression`.

    Attributes:
        kept: how many tokens it keeps, `BY_BUDGETS` or `BY_SIZES`; None if that is not known.
        compiles: whether `torch.compile` may take it into its graph, if its K follows from the sizes.
    """

    kept: str | None = None
    compiles: bool = False

    def reads(self, setting: str) -> bool:
        """Whether a value of this setting makes a difference, as far as it is for compression methods to say."""
        return setting in self.settings or setting not in OF_SOME_COMPRESSION_METHODS

    def keeps_by_sizes(self, rounding: str) -> bool:
        """Whether K follows from the sizes and the ratio alone, whatever a video shows. It does unless frame budgets
        are rounded. A user's method is believed here, and checked where it matters."""
        return rounding == "exact" or not self.reads("compression_rounding")


@dataclass(frozen=True, kw_only=True)
class VisionMethod(Method):
    """A row of the table of vision methods, whose functions say how the tower runs on a part of a video's patches, or
    return None where it runs as a whole. `"full"`, the parent's own computation, has no function."""

    def reads(self, setting: str) -> bool:
        """Whether a value of this setting makes a difference, as far as it is for vision methods to say."""
        return setting in self.settings or setting not in OF_SOME_VISION_METHODS

    def fits(self, tower: str | None) -> bool:
        """Whether it can run a vision tower of this `model_type`. None: there is no tower."""
        return self.name == "full" or tower in GROUPED_TOWERS


COMPRESSION_METHODS = {
    method.name: method
    for method in (
        CompressionMethod(
            name="vidcom2",
            file="method_vidcom2",
            settings=OF_SOME_COMPRESSION_METHODS,
            kept=BY_BUDGETS,
            compiles=True,
        ),
        # A graph cannot make a random generator.
        CompressionMethod(name="random", file="method_random", settings=("compression_rounding",), kept=BY_BUDGETS),
        # The others keep R·T·M tokens, so there is nothing for `compression_rounding` to decide.
        CompressionMethod(name="uniform_frames", file="method_uniform_frames", kept=BY_SIZES, compiles=True),
        CompressionMethod(name="dycoke", file="method_dycoke", kept=BY_SIZES, compiles=True),
        CompressionMethod(name="evs", file="method_evs", kept=BY_SIZES, compiles=True),
        CompressionMethod(name="coverage", file="method_coverage", kept=BY_SIZES),  # as a graph: thousands of steps
        CompressionMethod(
            name="vcast", file="method_vcast", settings=("compression_scoring",), kept=BY_SIZES, compiles=True
        ),
    )
}

# The towers of which groups of patches can be left out. They look at one frame at a time, and tell places by what is
# added to each patch or rotates it. So a patch needs no neighbours to be encoded.
GROUPED_TOWERS = (
    "siglip_vision_model",
    "clip_vision_model",
    "qwen2_vl_vision",
    "qwen2_5_vl_vision",  # by whole windows of its window attention
    "qwen2_5_omni_vision_encoder",  # as Qwen2.5-VL's
    "qwen3_vl_vision",
    "qwen3_vl_moe_vision",
    "qwen3_omni_moe_vision_encoder",
    "qwen3_5_vision",
    "qwen3_5_moe_vision",
    "glm4v_vision",
    "glm4v_moe_vision",
)
VISION_METHODS = {
    method.name: method
    for method in (
        VisionMethod(name="full"),
        VisionMethod(name="skip_repeated", file="vision_skip_repeated", settings=("vision_tolerance",)),
    )
}
# The settings that choose a row of a table.
TABLES: dict[str, dict[str, Any]] = {"compression_method": COMPRESSION_METHODS, "vision_method": VISION_METHODS}


def function_of(setting: str, name: str) -> Any:
    """Return the function of the method that a setting chooses; None for `vision_method="full"`.

    Raises:
        ValueError: if it is not here, since a Hub repo holds only the methods that its config names.
    """
    method = TABLES[setting][name]
    if method.file is not None and method.function is None:
        held = " and ".join(repr(each.name) for each in TABLES[setting].values() if each.file is None or each.function)
        raise ValueError(
            f"`{setting}` is {name!r}, but this repo holds only {held}. Install the package `vidcom2` from a checkout "
            f"(`pip install .`) and load the model with `vidcom2.load`, or publish the repo with `--methods {name}`."
        )
    return method.function
