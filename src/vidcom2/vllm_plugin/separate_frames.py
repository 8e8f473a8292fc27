"""Videos whose frames stand apart in the prompt, with text between them, such as their times."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.parallel_state import get_pp_group
from vllm.multimodal.inputs import MultiModalFieldConfig

from ..configuration.compression_settings import CompressionSettings
from ..modeling.methods.compression import VideoCompression
from .compressed_videos import CompressedVideosModel, CompressedVideosProcessor, with_integers
from .qwen2_vl import CompressedQwenVideosModel, tokens_of_grid

TEXT = "vidcom2_text"  # the field of a video that carries its text from the processor to the model
TOKENS = -1  # stands in that text where a frame has its tokens


class SeparateFramesProcessor(CompressedVideosProcessor):
    """The mixin for the processors of these families.

    When the prompt is made, it is not yet known how many tokens each frame keeps. The prompt therefore has all of them
    in the first frame until the model has seen the video. A family adds `texts_of_videos`.
    """

    def texts_of_videos(
        self, mm_items: Any, outputs: Mapping[str, Any], hf_kwargs: Mapping[str, object]
    ) -> Iterator[Sequence[int]]:
        """Yield for each video the ids of what stands in the prompt for it, with one placeholder for each frame.

        Args:
            mm_items: the request's images and videos, as vLLM has them.
            outputs: what vLLM's processor made of them.
            hf_kwargs: the request's `mm_processor_kwargs`.
        """
        raise NotImplementedError

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> Any:
        fields = super()._get_mm_fields_config(hf_inputs, hf_processor_mm_kwargs)
        return {**fields, TEXT: MultiModalFieldConfig.batched("video", keep_on_cpu=True)}

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        outputs = super()._apply_hf_processor_main(mm_items, hf_kwargs)
        if mm_items.get_all_counts().get("video", 0):
            # Some families give frames the placeholder of images.
            marks = {self.video_token_id, getattr(self.info.get_hf_config(), "image_token_id", None)}
            outputs[TEXT] = [
                torch.tensor([TOKENS if token in marks else token for token in text])
                for text in self.texts_of_videos(mm_items, outputs, hf_kwargs)
            ]
        return outputs

    def placeholders(self, video: Any, kept: int) -> Any:
        """Return the ids for a video whose kept tokens are all in its first frame."""
        t, _ = self.size_of(video)
        group = group_of_frames([kept] + [0] * (t - 1), video[TEXT].data.tolist())
        placeholder = self.video_token_id
        return [placeholder if token == TOKENS else token for token in group]


def group_of_frames(tokens_per_frame: list[int], text: Sequence[int]) -> list[int]:
    """Return a video's text with as many `TOKENS` for each frame as are given."""
    of_frames = iter(tokens_per_frame)
    group: list[int] = []
    for token in text:
        group += [TOKENS] * next(of_frames) if token == TOKENS else [token]
    return group


class SeparateFramesModel(CompressedVideosModel):
    """The mixin for the models of these families. The features of a video bring the text between its frames, so that
    both come where they belong. A family adds `scored_tokens`."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        # The features of a video hold embedded text, and vLLM shares them between requests with and without a LoRA
        # adapter. Without this entry it refuses adapters that change the embedding.
        language_model = self.get_language_model()
        embeddings = dict(getattr(language_model, "embedding_modules", {}))
        embeddings.pop("embed_tokens", None)
        language_model.embedding_modules = embeddings

    @property
    def features_width(self) -> int:
        """Channels of a feature, as the language model takes it."""
        return self.config.text_config.hidden_size

    def scored_tokens(self, features: Tensor, **kwargs: Any) -> tuple[Tensor, tuple[int, int]]:
        """Return a video's scored tokens (T, M, D), and the rows and columns of a frame's.

        Args:
            features: the parent's, of the video.
            **kwargs: those of `embed_multimodal` for this video.
        """
        raise NotImplementedError

    def compressed_video(self, features: Tensor, settings: CompressionSettings, **kwargs: Any) -> Tensor:
        """Return the kept tokens, those of each frame beside the embedded text around it."""
        tokens, grid = self.scored_tokens(features, **kwargs)
        compression = self.compression_of(tokens, grid, settings)
        group = torch.tensor(group_of_frames(compression.frame_budgets.tolist(), kwargs[TEXT][0].tolist()))
        ids, is_token = group.to(features.device), (group == TOKENS).to(features.device)
        whole = features.new_zeros(len(group), self.features_width)  # text has no features for deeper layers
        whole[is_token] = compression.kept(features)
        if not get_pp_group().is_first_rank:  # this stage has no embeddings, and encodes only to measure its memory
            return self.placed(whole, group, compression, grid)
        embedded = self.get_language_model().embed_input_ids(ids[~is_token]).to(whole)
        whole[~is_token, : embedded.shape[1]] = embedded
        return self.placed(whole, group, compression, grid)

    def placed(self, whole: Tensor, group: Tensor, compression: VideoCompression, grid: tuple[int, int]) -> Tensor:
        """Return a video's features with what else the model must know of their places. Here that is nothing.

        Args:
            whole: (n, dim) features of a video's text and kept tokens.
            group: (n,) the ids of the text, and `TOKENS`.
        """
        return whole


class SeparateMRopeFramesModel(SeparateFramesModel, CompressedQwenVideosModel):
    """The mixin for those of these families that have M-RoPE: Qwen3-VL, GLM and their like. A family adds
    `frame_marks`."""

    @property
    def frame_marks(self) -> tuple[int, int]:
        """The ids of the marks around the tokens of a frame."""
        raise NotImplementedError

    def extent_of_video(self, feature: Any, other_tokens: int) -> int:
        """Return how many positions a video takes. Each frame takes as many as its longer side has tokens."""
        t, grid = tokens_of_grid(feature.data["video_grid_thw"].data.tolist(), self.config)
        return other_tokens + t * max(grid)

    def scored_tokens(self, features: Tensor, video_grid_thw: Tensor, **kwargs: Any) -> tuple[Tensor, tuple[int, int]]:
        """Return the tokens without their features for deeper layers, which are not scored."""
        t, grid = tokens_of_grid(video_grid_thw[0].tolist(), self.config)
        return features[:, : self.config.text_config.hidden_size].unflatten(0, (t, -1)), grid

    def placed(self, whole: Tensor, group: Tensor, compression: VideoCompression, grid: tuple[int, int]) -> Tensor:
        """Return the features with their shifts."""
        return with_integers(whole, _shifts(group, compression.indices.cpu(), grid, self.frame_marks))


def _shifts(group: Tensor, indices: Tensor, grid: tuple[int, int], frame_marks: tuple[int, int]) -> Tensor:
    """Return (n, 3), how far each token of a video's group is from the position that it has in the prompt. There each
    token before the first placeholder has a position of its own, and all others have the first placeholder's."""
    (rows, columns), (begin, end) = grid, frame_marks
    is_token = group == TOKENS
    ended = (group == end).cumsum(0)  # the mark that ends a frame is positioned after it
    text_before = (~is_token).cumsum(0) - (~is_token).long()
    places = (text_before + ended * max(grid))[:, None].repeat(1, 3)
    of_frame = indices % (rows * columns)
    places[is_token, 1] += of_frame // columns
    places[is_token, 2] += of_frame % columns
    first = int((group == begin).nonzero()[0]) + 1
    places[:first] = first
    return places - first
