"""The GPUs that plans are made for, as their makers' data sheets give them. This file does not import PyTorch."""

from dataclasses import dataclass

from ..errors import OptionError, did_you_mean


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        memory: bytes.
        flops: dense operations per second in bfloat16, without sparsity.
        bandwidth: bytes per second that it reads from its memory.
    """

    name: str
    memory: float
    flops: float
    bandwidth: float


def _gpu(name: str, gigabytes: float, teraflops: float, gigabytes_per_second: float) -> Gpu:
    return Gpu(name, gigabytes * 1e9, teraflops * 1e12, gigabytes_per_second * 1e9)


GPUS: dict[str, Gpu] = {
    "l4": _gpu("NVIDIA L4", 24, 121, 300),
    "a10": _gpu("NVIDIA A10", 24, 125, 600),
    "rtx-4090": _gpu("NVIDIA RTX 4090", 24, 165, 1008),
    "l40s": _gpu("NVIDIA L40S", 48, 362, 864),
    "a100": _gpu("NVIDIA A100 80GB", 80, 312, 2039),
    "h100": _gpu("NVIDIA H100 SXM", 80, 989, 3350),
    "h200": _gpu("NVIDIA H200", 141, 989, 4800),
    "mi300x": _gpu("AMD MI300X", 192, 1307, 5300),
}


def gpu_named(name: str) -> Gpu:
    """Return the GPU of this name. Raises an OptionError if the table has none."""
    if name not in GPUS:
        raise OptionError(f"`--gpu` is {name!r}, but must be one of {', '.join(GPUS)}.{did_you_mean(name, GPUS)}")
    return GPUS[name]
