"""Processors of videos with several rows of `video_grid_thw`: they also return how many rows each video has."""

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class GridRowsProcessorMixin(VidCom2ProcessorMixin):
    """Returns `num_chunks_per_video`, which the stock class leaves out, since only it tells two videos apart."""

    @property
    def unused_input_names(self) -> list[str]:
        return [each for each in super().unused_input_names if each != "num_chunks_per_video"]
