"""The table of compression methods: their names, and what each reads. What they compute is in `modeling/`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

READ_BY_EVERY_METHOD = (
    "compression_method",
    "retention_ratio",
    "compression_positions",
    "vision_chunk_frames",
    "vision_update_ratio",
)
NEEDS = ("grid", "tower_states")


@dataclass(frozen=True)
class CompressionMethod:
    """A row of the table.

    Attributes:
        name: value of the setting `compression_method`.
        settings: the settings that it reads, beside those of `READ_BY_EVERY_METHOD`. Others must be at their default.
        needs: fields of `VideoTokens` that must be there: `"grid"`, `"tower_states"`.
        function: (VideoTokens, CompressionSettings) -> VideoCompression of a registered method; None for this project's
            own, which `modeling/compression.py` lists.
    """

    name: str
    settings: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    function: Callable[..., Any] | None = None

    def reads(self, setting: str) -> bool:
        return setting in READ_BY_EVERY_METHOD or setting in self.settings


# This project's own methods, and what `register_compression_method` adds.
COMPRESSION_METHODS: dict[str, CompressionMethod] = {
    method.name: method
    for method in (
        CompressionMethod(
            "vidcom2",
            settings=(
                "compression_scoring",
                "compression_rounding",
                "compression_temperature",
                "compression_frame_score",
                "compression_window",
                "compression_frame_weight",
                "compression_video_weight",
            ),
        ),
        CompressionMethod("random", settings=("compression_rounding",)),
        # These keep R·T·M tokens to the token, so that there is nothing for `compression_rounding` to say.
        CompressionMethod("uniform_frames"),
        CompressionMethod("dycoke"),
        CompressionMethod("evs"),
    )
}
