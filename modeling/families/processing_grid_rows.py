"""Processors of videos with several rows of `video_grid_thw`: they also return how many rows each video has."""

from ..prompt.processing_short_prompts import VidCom2ProcessorMixin


class GridRowsProcessorMixin(VidCom2ProcessorMixin):
    """Returns `num_chunks_per_video`, without which two videos cannot be told apart. The stock class leaves it out."""

    @property
    def unused_input_names(self) -> list[str]:
        return [each for each in super().unused_input_names if each != "num_chunks_per_video"]
