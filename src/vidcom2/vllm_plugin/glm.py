"""GLM-4V, GLM-4V-MoE and GLM-4.6V with VidCom² in vLLM."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformers.video_utils import VideoMetadata
from vllm.model_executor.models.glm4_1v import Glm4vForConditionalGeneration, Glm4vMoeForConditionalGeneration

from .compressed_videos import with_processor, without_settings
from .qwen2_vl import CompressedQwenVideosProcessor
from .separate_frames import SeparateFramesProcessor, SeparateMRopeFramesModel


class CompressedGlmVideosProcessor(SeparateFramesProcessor, CompressedQwenVideosProcessor):
    """The mixin for GLM. Placeholders have the id of videos, not that of images as in Transformers, which tells the two
    apart."""

    def texts_of_videos(
        self, mm_items: Any, outputs: Mapping[str, Any], hf_kwargs: Mapping[str, object]
    ) -> Iterator[Sequence[int]]:
        """Yield for each pair of frames its tokens between two marks, and its time. vLLM does not hand the times on."""
        processor = self.info.get_hf_processor(**without_settings(hf_kwargs))
        for (_, metadata), (t, _, _) in zip(mm_items["video"], outputs["video_grid_thw"], strict=True):
            yield self._text_of_video(processor, metadata, int(t), hf_kwargs)

    def _text_of_video(
        self, processor: Any, metadata: Mapping[str, Any], num_pairs: int, hf_kwargs: Mapping[str, object]
    ) -> list[int]:
        """Return the ids of the marks and times of a video's pairs of frames, as the family's processor writes them.
        A pair has the time of its first frame, and the last time stands for those that are missing."""
        frames = metadata["frames_indices"]
        if metadata.get("do_sample_frames", True):
            described = VideoMetadata(**{name: value for name, value in metadata.items() if name != "do_sample_frames"})
            frames = processor.video_processor.sample_frames(described, fps=hf_kwargs.get("fps"))
        fps = metadata.get("fps") or 24  # as Transformers takes for a missing one
        times = [frame / fps for frame in frames][::2][:num_pairs]
        times += times[-1:] * (num_pairs - len(times))
        config = self.info.get_hf_config()
        text = "".join(processor.replace_frame_token_id(time, num_image_tokens=1) for time in times)
        ids = self.info.get_tokenizer().encode(text, add_special_tokens=False)
        return [config.video_start_token_id, *ids, config.video_end_token_id]


class CompressedGlmVideosModel(SeparateMRopeFramesModel):
    """The mixin for GLM: the time of a pair of frames stands behind its marks, which are those of an image."""

    @property
    def frame_marks(self) -> tuple[int, int]:
        """The ids of the marks around the tokens of a frame."""
        return self.config.image_start_token_id, self.config.image_end_token_id


@with_processor(CompressedGlmVideosProcessor)
class VidCom2Glm4vForVllm(CompressedGlmVideosModel, Glm4vForConditionalGeneration):
    """vLLM's GLM-4V with only the kept tokens of each video."""


class VidCom2Glm46VForVllm(VidCom2Glm4vForVllm):
    """GLM-4.6V, which differs from GLM-4V in its processor. vLLM has no name for its language model, which is GLM-4."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        vllm_config.model_config.hf_config.text_config.architectures = ["Glm4ForCausalLM"]
        super().__init__(vllm_config=vllm_config, prefix=prefix)


@with_processor(CompressedGlmVideosProcessor)
class VidCom2Glm4vMoeForVllm(CompressedGlmVideosModel, Glm4vMoeForConditionalGeneration):
    """vLLM's GLM-4V-MoE with only the kept tokens of each video."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        text = vllm_config.model_config.hf_config.text_config
        # vLLM needs these fields, which Transformers' config may lack. Its class does as they say here.
        for name, value in {"head_dim": text.hidden_size // text.num_attention_heads, "use_qk_norm": False}.items():
            setattr(text, name, getattr(text, name, value))
        super().__init__(vllm_config=vllm_config, prefix=prefix)
