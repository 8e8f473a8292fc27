"""Asking a question about a video, in one call."""

from transformers import BatchFeature, ProcessorMixin

from .video import Video


def prepare_inputs(processor: ProcessorMixin, prompt: str, video: Video) -> BatchFeature:
    """The chat prompt with its placeholders, and the pixels, as the checkpoint's own processor makes them."""
    content = [{"type": "video"}, {"type": "text", "text": prompt}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return processor(text=[text], videos=[video.frames], do_sample_frames=False, return_tensors="pt")
