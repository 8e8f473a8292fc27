"""What all families share in vLLM: each video brings a ratio, and has as many placeholders as tokens of it stay."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.processing import PromptReplacement, PromptUpdate

from ..modeling.compression import compress_with
from ..modeling.video_compression import VideoCompression, VideoTokens
from .settings import RATIO, engine_settings, kept_tokens, ratio_of, with_ratio

# What vLLM's own classes, further back in the bases, bring along.
VllmProcessor: Any = object
VllmModel: Any = object


class CompressedVideosProcessor(VllmProcessor):
    """Comes before vLLM's processor in the bases of a family's. A family adds `size_of`, and `placeholders` if a video
    has more of them than kept tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = engine_settings(self.info.get_hf_config())

    def size_of(self, video: Any) -> tuple[int, tuple[int, int]]:
        """Frames, and rows and columns of a frame's scored tokens, of what vLLM's processor made of a video."""
        raise NotImplementedError

    def placeholders(self, video: Any, kept: int) -> Any:
        """What stands in the prompt for a video of which so many tokens stay."""
        return [self.info.get_hf_config().video_token_id] * kept

    def settings_of_features(self) -> dict[str, Any]:
        """On which the features of a video depend."""
        return self.settings.as_dict()

    def get_dummy_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, for the most that a request can ask for: all tokens."""
        inputs = super().get_dummy_inputs(*args, **kwargs)
        inputs.hf_processor_mm_kwargs = {**inputs.hf_processor_mm_kwargs, RATIO: 1.0}
        return inputs

    def _get_mm_hashes(self, inputs: Any) -> Any:
        """As the parent's, which know of a request's ratio but not of the repo's settings: caches of vLLM may live
        longer than an engine, and belong to several."""
        hashes = dict(super()._get_mm_hashes(inputs))
        if "video" in hashes:
            algorithm, settings = self.info.ctx.get_mm_config().mm_hasher_algorithm, self.settings_of_features()
            hashes["video"] = [
                MultiModalHasher.hash_kwargs(algorithm, video=each, settings=settings) for each in hashes["video"]
            ]
        return hashes

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> Any:
        fields = super()._get_mm_fields_config(hf_inputs, hf_processor_mm_kwargs)
        return {**fields, RATIO: MultiModalFieldConfig.batched("video", keep_on_cpu=True)}

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        ratio = ratio_of(self.settings, hf_kwargs)
        outputs = super()._apply_hf_processor_main(mm_items, _without_ratio(hf_kwargs))
        num_videos = mm_items.get_all_counts().get("video", 0)
        if num_videos:
            outputs[RATIO] = torch.full((num_videos,), ratio, dtype=torch.float64)
        return outputs

    def _get_prompt_updates(
        self, mm_items: Any, hf_processor_mm_kwargs: Mapping[str, object], out_mm_kwargs: Any
    ) -> Sequence[PromptUpdate]:
        def placeholders(item: int) -> Any:
            video = out_mm_kwargs["video"][item]
            num_frames, grid = self.size_of(video)
            settings = with_ratio(self.settings, video[RATIO].data.item())
            return self.placeholders(video, kept_tokens(settings, num_frames, grid))

        return [
            PromptReplacement(modality="video", target=update.target, replacement=placeholders)
            if update.modality == "video"
            else update
            for update in super()._get_prompt_updates(mm_items, _without_ratio(hf_processor_mm_kwargs), out_mm_kwargs)
        ]


def _without_ratio(processor_kwargs: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in processor_kwargs.items() if name != RATIO}


class CompressedVideosModel(VllmModel):
    """Comes before vLLM's model in the bases of a family's. A family adds `one_by_one` and `compressed_video`."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.settings = engine_settings(vllm_config.model_config.hf_config)

    def embed_multimodal(self, **kwargs: Any) -> Any:
        """As the parent's, of the kept tokens of each video. vLLM asks for one modality at a time.

        The tower has one video at a time: vLLM's budget for it counts tokens that are left, not frames.
        """
        ratios = kwargs.pop(RATIO, None)
        if ratios is None:
            return super().embed_multimodal(**kwargs)
        kept = []
        for video, ratio in zip(self.one_by_one(**kwargs), torch.as_tensor(ratios).flatten().tolist(), strict=True):
            (features,) = super().embed_multimodal(**video)
            kept.append(self.compressed_video(features, ratio, **video))
        return tuple(kept)

    def one_by_one(self, **kwargs: Any) -> Iterator[dict[str, Any]]:
        """The arguments of `embed_multimodal` for some videos -> those for each of them."""
        raise NotImplementedError

    def compressed_video(self, features: Tensor, ratio: float, **kwargs: Any) -> Tensor:
        """The parent's features of a video -> what takes the place of its placeholders."""
        raise NotImplementedError

    def compression_of(self, tokens: Tensor, grid: tuple[int, int], ratio: float) -> VideoCompression:
        """Of the scored tokens (T, M, D), as many as the processor has told vLLM.

        Raises:
            ValueError: if the method keeps another number.
        """
        settings = with_ratio(self.settings, ratio)
        compression = compress_with(settings, VideoTokens(tokens, grid))
        expected = kept_tokens(settings, len(tokens), grid)
        if len(compression.indices) != expected:
            raise ValueError(
                f"`compression_method={settings.compression_method!r}` keeps {len(compression.indices)} of "
                f"{compression.num_tokens} tokens at a ratio of {ratio}, but {expected} of a video that shows nothing, "
                "and vLLM counts before it has seen a video. Choose a method that keeps the same number of any."
            )
        return compression
