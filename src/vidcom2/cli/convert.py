"""`vidcom2 convert-llava-video` converts an original checkpoint. `llava_video/converter.py` does the work."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..errors import OptionError, written_to
from .console import one_line_errors, print_line, progress_of, status


def convert_command(
    source: Annotated[Path, typer.Argument(help="Folder of an original checkpoint, as `hf download` leaves it.")],
    destination: Annotated[Path, typer.Argument(help="Folder to create.")],
    spatial_pool_mode: Annotated[
        str, typer.Option(help="`average` (the paper's 182 tokens a frame), `max` or `bilinear` (210).")
    ] = "average",
) -> None:
    """Convert an original checkpoint of LLaVA-Video to this project's class.

    These are `lmms-lab/LLaVA-Video-7B-Qwen2` and 72B. Weights are copied shard by shard, so memory holds one shard at a
    time. The destination appears once it is complete.
    """
    with one_line_errors():
        with status("Importing Transformers ..."):
            from ..configuration.configuration_vidcom2_llava_video import SPATIAL_POOL_MODES
            from ..llava_video.converter import convert_llava_video
        if spatial_pool_mode not in SPATIAL_POOL_MODES:
            accepted = ", ".join(SPATIAL_POOL_MODES)
            raise OptionError(f"`--spatial-pool-mode` is {spatial_pool_mode!r}, but must be one of {accepted}.")
        with progress_of("Checking the source") as progress, written_to(destination):
            done = convert_llava_video(str(source), str(destination), spatial_pool_mode, progress)
    print_line(
        f"{done.num_tensors:,} tensors, {done.num_bytes / 1e9:.2f} GB of {done.dtype}, "
        f"spatial_pool_mode {done.spatial_pool_mode!r}: {escape(done.destination)}"
    )
    for note in done.notes:
        print_line(f"Note: {escape(note)}")
