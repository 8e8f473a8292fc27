"""The table of compression methods: their names, and what each reads. What they compute is in `modeling/methods/`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

READ_BY_EVERY_METHOD = (
    "compression_method",
    "retention_ratio",
    "max_video_tokens",
    "compression_positions",
    "vision_method",
    "vision_chunk_frames",
    "vision_tolerance",  # the vision method says whether it does
)
# Of these fields of `VideoTokens`, a method names those that it looks at. The tower gives what is its own on request.
TOWER_NEEDS = ("tower_states", "tower_attention")
NEEDS = ("grid", *TOWER_NEEDS)


# How many tokens K of a video's T·M a method keeps at a retention ratio R.
BY_BUDGETS = "budgets"  # the sum of `frame_budgets`, which follows `compression_rounding`
BY_SIZES = "sizes"  # R·T·M, rounded, but at least one, or one for each frame, or a whole frame


@dataclass(frozen=True)
class CompressionMethod:
    """A row of the table. It says all that the rest of the code asks about a method.

    Attributes:
        name: value of the setting `compression_method`.
        function: (VideoTokens, CompressionSettings) -> VideoCompression. For this project's own methods it is the name
            "file.function" in `modeling/methods/`, so that the table can be read without torch.
        settings: the settings that it reads, besides those of `READ_BY_EVERY_METHOD`. Others must be at their default.
        needs: the fields of `VideoTokens` that it cannot do without, of `NEEDS`.
        kept: how many tokens it keeps, `BY_BUDGETS` or `BY_SIZES`; None if that is not known.
        compiles: whether `torch.compile` may take it into its graph, if its K follows from the sizes.
        bench: which variants of it `vidcom2 bench` compares by default, as `--method` names them.
    """

    name: str
    function: str | Callable[..., Any]
    settings: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    kept: str | None = None
    compiles: bool = False
    bench: tuple[str, ...] = ()

    @property
    def is_own(self) -> bool:
        """Whether it belongs to this project, rather than to a user who registered it."""
        return isinstance(self.function, str)

    @property
    def needs_of_tower(self) -> tuple[str, ...]:
        """Those of its needs that only a vision tower can give."""
        return tuple(need for need in TOWER_NEEDS if need in self.needs)

    def reads(self, setting: str) -> bool:
        return setting in READ_BY_EVERY_METHOD or setting in self.settings

    def keeps_by_sizes(self, rounding: str) -> bool:
        """Whether K follows from the sizes and the ratio alone, whatever a video shows. It does unless frame budgets
        are rounded. A user's method is believed here, and checked where it matters."""
        return rounding == "exact" or not self.reads("compression_rounding")


# This project's own methods, and what users register.
COMPRESSION_METHODS: dict[str, CompressionMethod] = {
    method.name: method
    for method in (
        CompressionMethod(
            "vidcom2",
            "method_vidcom2.vidcom2",
            settings=(
                "compression_scoring",
                "compression_rounding",
                "compression_temperature",
                "compression_frame_score",
                "compression_window",
                "compression_frame_weight",
                "compression_video_weight",
            ),
            kept=BY_BUDGETS,
            compiles=True,
            bench=("vidcom2", "vidcom2:compression_scoring=released"),
        ),
        CompressionMethod(
            "random",
            "method_random.random_tokens",
            settings=("compression_rounding",),
            kept=BY_BUDGETS,
            compiles=False,  # a graph cannot make a random generator
            bench=("random",),
        ),
        # These keep R·T·M tokens, so there is nothing for `compression_rounding` to decide.
        CompressionMethod(
            "uniform_frames",
            "method_uniform_frames.uniform_frames",
            kept=BY_SIZES,
            compiles=True,
            bench=("uniform_frames",),
        ),
        CompressionMethod("dycoke", "method_dycoke.dycoke", kept=BY_SIZES, compiles=True, bench=("dycoke",)),
        CompressionMethod("evs", "method_evs.evs", kept=BY_SIZES, compiles=True, bench=("evs",)),
        # Its loop over rounds would be a graph of thousands of steps.
        CompressionMethod("coverage", "method_coverage.coverage", kept=BY_SIZES, bench=("coverage",)),
        CompressionMethod(
            "vcast",
            "method_vcast.vcast",
            settings=("compression_scoring",),
            kept=BY_SIZES,
            compiles=True,
            bench=("vcast",),
        ),
        # All of these but VisionZip cut the video where its content says, and read the device for that.
        CompressionMethod(
            "fastvid",
            "method_fastvid.fastvid",
            needs=("grid", "tower_attention"),
            kept=BY_SIZES,
            bench=("fastvid",),
        ),
        CompressionMethod(
            "flashvid",
            "method_flashvid.flashvid",
            needs=("grid", "tower_attention"),
            kept=BY_SIZES,
            bench=("flashvid",),
        ),
        CompressionMethod(
            "visionzip",
            "method_visionzip.visionzip",
            needs=("grid", "tower_attention"),
            kept=BY_SIZES,
            compiles=True,
            bench=("visionzip",),
        ),
        CompressionMethod(
            "holitom",
            "method_holitom.holitom",
            needs=("grid", "tower_attention"),
            kept=BY_SIZES,
            bench=("holitom",),
        ),
    )
}
