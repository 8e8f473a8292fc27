"""Long videos: many frames of tiny dimensions."""

import numpy as np
import torch

from vidcom2 import VidCom2Qwen2VLConfig, VidCom2Qwen2VLForConditionalGeneration, compress
from vidcom2.tiny.qwen import tiny_qwen2_vl

FRAMES = 768  # Qwen2-VL's upper bound at 2 frames a second


def test_768_frames_pass_through_qwen2_vl_and_have_one_length_whatever_they_show() -> None:
    stock, processor = tiny_qwen2_vl(pixels=(56 * 56, 56 * 84))
    config = VidCom2Qwen2VLConfig(**stock.config.to_dict())
    model = VidCom2Qwen2VLForConditionalGeneration(config).eval()
    model.load_state_dict(stock.state_dict())
    rng = np.random.default_rng(0)
    videos = [
        rng.integers(0, 256, (FRAMES, 3, 60, 80), dtype=np.uint8),
        np.repeat(rng.integers(0, 256, (1, 3, 60, 80), dtype=np.uint8), FRAMES, axis=0),
    ]
    lengths = set()
    for video in videos:
        prompt = "<|vision_start|><|video_pad|><|vision_end|>What happens?"
        inputs = processor(text=[prompt], videos=[[video]], do_sample_frames=False, return_tensors="pt")
        t, h, w = inputs["video_grid_thw"][0].tolist()
        with torch.no_grad():
            cache = model(**inputs, logits_to_keep=1).past_key_values
        length = cache.get_seq_length()
        kept = length - (inputs["input_ids"] != model.config.video_token_id).sum().item()
        assert t == FRAMES // 2 and kept == max(t, t * h * w // 4 // 4)
        lengths.add(length)
    assert len(lengths) == 1


def test_the_selections_memory_grows_linearly_with_the_frames() -> None:
    """The operator makes only blocks and (T, M) scores, and so no tensor larger than the tokens in float32."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(tensor, torch.Tensor):
                    self.numel = max(self.numel, tensor.numel())
            return result

    for rounding in ("ceil", "exact"):
        tokens = torch.randn(FRAMES, 36, 256, dtype=torch.bfloat16)
        with Largest() as largest:
            compress(tokens, compression_rounding=rounding)
        assert largest.numel <= tokens.numel()
