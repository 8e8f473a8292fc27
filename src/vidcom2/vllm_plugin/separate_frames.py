"""Videos whose frames stand apart in the prompt, with their times between them: those of Qwen3-VL and GLM."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..configuration.compression_settings import CompressionSettings
from .qwen_vl import CompressedQwenVideosModel, tokens_of_grid


class SeparateFramesModel(CompressedQwenVideosModel):
    """The mixin for the families in which each frame has a group of placeholders of its own, beside its time.

    When the prompt is made, it is not yet known how many tokens each frame keeps. The prompt therefore has all of them
    in the first frame, and the features bring the text between frames, so that both come where they belong.

    A family adds `frame_marks` and `group_of_video`.
    """

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        # The features of a video hold embedded text, and vLLM shares them between requests with and without a LoRA
        # adapter. Without this entry it refuses adapters that change the embedding.
        language_model = self.get_language_model()
        embeddings = dict(getattr(language_model, "embedding_modules", {}))
        embeddings.pop("embed_tokens", None)
        language_model.embedding_modules = embeddings

    @property
    def frame_marks(self) -> tuple[int, int]:
        """The ids of the marks around the tokens of a frame."""
        raise NotImplementedError

    def group_of_video(self, tokens_per_frame: list[int], **kwargs: Any) -> Sequence[int]:
        """Return the ids of a video's text and tokens. The keyword arguments are those of `embed_multimodal` for this
        video."""
        raise NotImplementedError

    def extent_of_video(self, feature: Any, other_tokens: int) -> int:
        """Return how many positions a video takes. Each frame takes as many as its longer side has tokens."""
        t, grid = tokens_of_grid(feature.data["video_grid_thw"].data.tolist(), self.config)
        return other_tokens + t * max(grid)

    def compressed_video(
        self, features: Tensor, settings: CompressionSettings, video_grid_thw: Tensor, **kwargs: Any
    ) -> Tensor:
        """Return the kept tokens, those of each frame beside the embedded text of its time."""
        t, grid = tokens_of_grid(video_grid_thw[0].tolist(), self.config)
        width = self.config.text_config.hidden_size
        tokens = features[:, :width].unflatten(0, (t, -1))  # features for deeper layers are not scored
        compression = self.compression_of(tokens, grid, settings)
        group = torch.tensor(self.group_of_video(compression.frame_budgets.tolist(), **kwargs))
        is_token = group == self.config.video_token_id
        shifts = _shifts(group, is_token, compression.indices.cpu(), grid, self.frame_marks)
        group, is_token = group.to(features.device), is_token.to(features.device)
        whole = features.new_zeros(len(group), self.features_width)  # text has no features for deeper layers
        whole[is_token] = compression.kept(features)
        whole[~is_token, :width] = self.get_language_model().embed_input_ids(group[~is_token]).to(whole)
        return self.with_shifts(whole, shifts)


def _shifts(
    group: Tensor, is_token: Tensor, indices: Tensor, grid: tuple[int, int], frame_marks: tuple[int, int]
) -> Tensor:
    """Return (n, 3), how far each token of a video's group is from the position that it has in the prompt. There each
    token before the first placeholder has a position of its own, and all others have the first placeholder's."""
    rows, columns = grid
    begin, end = frame_marks
    ended = (group == end).cumsum(0)  # the mark that ends a frame is positioned after it
    text_before = (~is_token).cumsum(0) - (~is_token).long()
    places = (text_before + ended * max(grid))[:, None].repeat(1, 3)
    of_frame = indices % (rows * columns)
    places[is_token, 1] += of_frame // columns
    places[is_token, 2] += of_frame % columns
    first = int((group == begin).nonzero()[0]) + 1
    places[:first] = first
    return places - first
