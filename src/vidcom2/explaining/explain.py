"""Drawing which tokens of a video are kept, in one call: `vidcom2.explain`."""

import html
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transformers import PreTrainedModel, ProcessorMixin

from ..asking.arguments import DEMO_WARNING, check_model, checkpoint_of, replaced_by
from ..checks import check_settings
from ..loading.placement import Placement
from ..presets import NUM_FRAMES
from ..records.whole_files import write_whole
from ..video.reading import Video, read_video
from .drawing import draw_png
from .drawing_file import check_drawing
from .explanation import Explanation, compare
from .explanation_page import data_url, page_html


@dataclass(frozen=True, eq=False, repr=False)
class Figure:
    """A drawing of which tokens of a video are kept. It shows itself in a notebook.

    Attributes:
        ways: the numbers behind it, for each way to compress the video.
    """

    ways: tuple[Explanation, ...]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the figure to a file: a picture if the name ends in .png, a page in one file if it ends in .html.

        A page shows several ways beside each other. A picture shows one.

        Raises:
            ValueError: on a name with another end, a folder that does not exist, a file that is no such drawing, and
                on a picture of several ways.
        """
        file = Path(path)
        check_drawing(file, len(self.ways), "path")
        write_whole(file, draw_png(self.ways[0]) if file.suffix == ".png" else page_html(self.ways))

    def __repr__(self) -> str:
        return "\n".join(f"{way.title}, {way.video_frames} frames" for way in self.ways)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a picture of each way, below each other."""
        return "\n".join(
            f'<img style="max-width: 100%" alt="{html.escape(way.title)}" src="{data_url(draw_png(way), "png")}">'
            for way in self.ways
        )


def explain(
    video: str | PathLike[str] | Video,
    model: str | PreTrainedModel | None = None,
    *,
    processor: ProcessorMixin | None = None,
    num_frames: int = NUM_FRAMES,
    compare_with: Sequence[Mapping[str, Any]] = (),
    **arguments: Any,
) -> Figure:
    """Draw which tokens of a video a model keeps, and why. Only the vision encoder runs.

    Args:
        video: a path, an http(s) or file URL, or a `Video`, such as the `video` of an answer.
        model: a Hub id or a folder, or a loaded VidCom² model. None means the bundled toy model.
        processor: the processor of a loaded model.
        num_frames: how many frames of a file are sampled, evenly in time. All frames of a `Video` are used.
        compare_with: other settings to draw beside these, such as `[{"compression_method": "evs"}]`.
        **arguments: how to load a model that is named, by the fields of `Placement` (`device="cpu"`, `dtype`,
            `attn_implementation`, `device_map`, `revision`) and where its frames are prepared (`prepare_on`);
            and settings of VidCom² (`retention_ratio=0.15`), the checkpoint's own where not given.

    Raises:
        VideoError: if the video cannot be read.
        CheckpointError: if the model cannot be loaded.
        ValueError: on an argument that is outside its accepted set, or that the method does not read.
    """
    placement, settings = Placement.popped_from(arguments), arguments
    for each in (settings, *compare_with):
        check_settings(dict(each))
    found = check_model(model, processor, placement, settings)
    name = clip_name(video) if isinstance(video, str | PathLike) else None
    if not isinstance(video, Video):
        video = read_video(video, num_frames)
    if model is None:
        warnings.warn(DEMO_WARNING, UserWarning, stacklevel=2)
    checkpoint, settings = checkpoint_of(found, processor, settings, placement.prepare_on)
    others = (replaced_by(each, settings, checkpoint.model.config) for each in compare_with)
    return Figure(compare(checkpoint, video, [settings, *others], name))


def clip_name(video: str | PathLike[str]) -> str:
    """Return the name of a video's file, given its path or URL."""
    return Path(urlsplit(fspath(video)).path).name
