"""What type checkers tell users of the package. `.ci/run wheel` checks this file beside the installed wheel.

A line with an `ignore` is a mistake that a checker must find: if it does not, the `ignore` itself is reported.
"""
# pyright: standard, reportUnnecessaryTypeIgnoreComment=true, reportUnusedExpression=false
# ruff: noqa: B018

from typing import assert_type

import torch

import vidcom2
from vidcom2 import (
    Answer,
    CompressionSettings,
    LlavaVideoProcessor,
    VidCom2Qwen2_5_VLConfig,
    VideoCompression,
    VideoTokens,
    compress,
    read_video,
    register_compression_method,
)
from vidcom2 import VidCom2LlavaOnevisionForConditionalGeneration as OneVision

tokens = torch.rand(8, 49, 64)
model = OneVision.from_pretrained("checkpoint", retention_ratio=0.25)


@register_compression_method("first")
def first(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    return compress(video, settings.retention_ratio)


assert_type(compress(tokens, 0.25, compression_rounding="exact"), VideoCompression)
assert_type(compress(tokens).indices, torch.Tensor)
assert_type(first(VideoTokens(tokens), CompressionSettings()), VideoCompression)
assert_type(read_video("clip.mp4", num_frames=32), vidcom2.Video)
assert_type(vidcom2.Video.from_frames(tokens, fps=2), vidcom2.Video)
assert_type(vidcom2.ask("clip.mp4", "What happens?"), Answer)
assert_type(vidcom2.ask("clip.mp4", ["What happens?", "Who is it?"]), list[Answer])
assert_type(vidcom2.ask("clip.mp4", [{"role": "user", "content": "What happens?"}]), Answer)
assert_type(vidcom2.watch("clip.mp4", model).ask("What happens?"), Answer)
assert_type(vidcom2.apply(model, retention_ratio=0.15), OneVision)
assert_type(model, OneVision)
assert_type(model.to("cuda").eval(), OneVision)
assert_type(model.config.retention_ratio, float)
assert_type(model.get_video_features(pixel_values_videos=tokens).video_compressions[0], VideoCompression)
assert_type(VidCom2Qwen2_5_VLConfig.from_pretrained("checkpoint"), VidCom2Qwen2_5_VLConfig)
assert_type(LlavaVideoProcessor.from_pretrained("checkpoint"), LlavaVideoProcessor)
assert_type(vidcom2.__version__, str)

compress(tokens, compression_rounding=3)  # pyright: ignore[reportArgumentType]
compress(tokens, rounding="exact")  # pyright: ignore[reportCallIssue]
compress(tokens).kept_tokens  # pyright: ignore[reportAttributeAccessIssue]
read_video("clip.mp4", frames=32)  # pyright: ignore[reportCallIssue]
CompressionSettings(retention_ratio="a quarter")  # pyright: ignore[reportArgumentType]
register_compression_method("other")(read_video)  # pyright: ignore[reportArgumentType]
vidcom2.compres  # pyright: ignore[reportAttributeAccessIssue]
vidcom2.ask("clip.mp4", "What happens?") + 1  # pyright: ignore[reportOperatorIssue]
