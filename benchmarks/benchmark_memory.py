"""Count the peak memory of LLaVA-OneVision at its released sizes, over frames and retention ratios, without a GPU.

    python benchmarks/benchmark_memory.py --json memory.json

PyTorch runs the model on fake tensors: every operation of the CUDA path is dispatched, with its real shapes and dtypes,
but nothing is computed. The bytes of all tensors that exist at the same time are counted, with an attention that
allocates only its output, as FlashAttention does. The memory that kernels use inside, and that the allocator wastes, is
not counted, so a GPU needs somewhat more. `vidcom2 bench` measures that.

The tower's part is what encoding and compressing need in addition to the model and the pixels. The language model's
part is what the prefill of one prompt needs in addition to the model, including its KV cache.
"""

import json
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    LlavaOnevisionConfig,
    Qwen2Config,
    SiglipVisionConfig,
)
from transformers.initialization import no_init_weights
from transformers.masking_utils import flash_attention_mask

from vidcom2 import VidCom2LlavaOnevisionForConditionalGeneration
from vidcom2.configuration.compression_settings import CompressionSettings
from vidcom2.modeling.encoding import video_features
from vidcom2.modeling.hosting.in_transformers import CACHE
from vidcom2.modeling.methods.compression import exact_total
from vidcom2.records.provenance import birth_certificate

TOKENS_PER_FRAME, SIDE = 196, 384
TEXT_TOKENS = 40  # for a chat template and a short question
DTYPE, DEVICE = torch.bfloat16, "cuda"
GIB = 2**30
TEXT_CONFIGS = {
    "0.5b": Qwen2Config(
        vocab_size=152_000,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
    ),
    "7b": Qwen2Config(
        vocab_size=152_000,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
    ),
}


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that operations have made and that still exist.

    Attributes:
        live: the bytes that exist now.
        peak: the most bytes that existed at one time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.live = 0
        self.seen: dict[int, weakref.finalize] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        given = {id(each.untyped_storage()) for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)}
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor):
                self.count(tensor.untyped_storage(), given)
        return result

    def count(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        if id(storage) in self.seen or id(storage) in given:  # the result is a view, or was written in place
            return
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        self.seen[id(storage)] = weakref.finalize(storage, self.freed, id(storage), storage.nbytes())

    def freed(self, which: int, num_bytes: int) -> None:
        del self.seen[which]
        self.live -= num_bytes


def output_alone(module: Any, query: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """Stand for an attention that allocates as FlashAttention does: queries (B, heads, L, d) -> (B, L, heads, d)."""
    return torch.empty_like(query.transpose(1, 2)), None


def llava_onevision(size: str) -> VidCom2LlavaOnevisionForConditionalGeneration:
    """Build the released architecture from fake tensors."""
    config = LlavaOnevisionConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=1152,
            intermediate_size=4304,
            num_attention_heads=16,
            num_hidden_layers=26,
            patch_size=14,
            image_size=SIDE,
            vision_use_head=False,
        ).to_dict(),
        text_config=TEXT_CONFIGS[size].to_dict(),
        image_token_id=151_646,
        video_token_id=151_647,
        vision_feature_layer=-1,
    )
    AttentionInterface.register("output_alone", output_alone)
    AttentionMaskInterface.register("output_alone", flash_attention_mask)
    config._attn_implementation = "output_alone"
    default = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        with torch.device(DEVICE), no_init_weights():
            return VidCom2LlavaOnevisionForConditionalGeneration(config).eval()
    finally:
        torch.set_default_dtype(default)


def tower_peak(model: Any, frames: int, chunk_frames: int | None) -> int:
    """Return the bytes needed in addition to the model and the pixels, including those of the kept tokens."""
    pixels = torch.empty(1, frames, 3, SIDE, SIDE, device=DEVICE, dtype=DTYPE)
    model.config.vision_chunk_frames = chunk_frames
    with LiveBytes() as counted:
        model.model.get_video_features(pixels, compression_rounding="exact")
    return counted.peak


def prefill_peak(model: Any, frames: int, retention_ratio: float) -> int:
    """Return the bytes needed in addition to the model: activations, and the KV cache of a prompt with one video."""
    video_tokens = exact_total(frames, TOKENS_PER_FRAME, retention_ratio) + 1  # with the newline
    length = TEXT_TOKENS + video_tokens
    with LiveBytes() as counted:
        embeddings = torch.empty(1, length, model.config.text_config.hidden_size, device=DEVICE, dtype=DTYPE)
        cache = DynamicCache(config=model.config.text_config)
        states = model.model.language_model(inputs_embeds=embeddings, **{CACHE: cache}).last_hidden_state
        model.lm_head(states[:, -1:])
    return counted.peak


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Run on fake tensors. Nothing is computed, so no frame can be found to repeat another; each counts as new."""
    ask = video_features.repeats_the_one_before
    video_features.repeats_the_one_before = lambda frames: [False] * len(frames)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            yield
    finally:
        video_features.repeats_the_one_before = ask


def measure(size: str, frames: Sequence[int], ratios: Sequence[float]) -> list[dict[str, Any]]:
    """Return a row for each number of frames."""
    chunk_frames = CompressionSettings().vision_chunk_frames
    rows = []
    with fake_tensors():
        model = llava_onevision(size)
        weights = sum(parameter.nbytes for parameter in model.parameters())
        for number in frames:
            rows.append(
                {
                    "frames": number,
                    "weights_gib": weights / GIB,
                    "tower_at_once_gib": tower_peak(model, number, None) / GIB,
                    f"tower_{chunk_frames}_frames_gib": tower_peak(model, number, chunk_frames) / GIB,
                    "prefill_gib": {str(ratio): prefill_peak(model, number, ratio) / GIB for ratio in (1.0, *ratios)},
                }
            )
    return rows


def main(
    size: Annotated[str, typer.Option(help=f"Size of the language model: {', '.join(TEXT_CONFIGS)}.")] = "7b",
    frames: Annotated[list[int] | None, typer.Option(help="Frames of the video. May be repeated.")] = None,
    ratio: Annotated[list[float] | None, typer.Option(help="Retention ratio besides 1.0. May be repeated.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the figures and their origin.")] = None,
) -> None:
    """Count the memory, and print a table."""
    rows = measure(size, frames or [32, 64, 128, 256, 512, 1024], ratio or [0.25, 0.15])
    if json_file is not None:
        command = f"benchmarks/benchmark_memory.py --size {size}"
        certificate = birth_certificate(
            f"LLaVA-OneVision {size}", command, device="fake CUDA tensors", dtype=str(DTYPE)
        )
        json_file.write_text(json.dumps({"birth_certificate": certificate, "rows": rows}, indent=1) + "\n")
    table = Table(title=f"GiB of live tensors, LLaVA-OneVision {size}, without {rows[0]['weights_gib']:.2f} of weights")
    for name in ("frames", *(name for name in rows[0] if name.startswith("tower"))):
        table.add_column(name.removesuffix("_gib").replace("_", " "), justify="right")
    for ratio_name in rows[0]["prefill_gib"]:
        table.add_column(f"prefill, R = {ratio_name}", justify="right")
    for row in rows:
        towers = [value for name, value in row.items() if name.startswith("tower")]
        table.add_row(f"{row['frames']:,}", *(f"{value:.2f}" for value in (*towers, *row["prefill_gib"].values())))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
