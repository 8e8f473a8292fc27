"""Each device, precision and attention kernel answers as float32 with plain attention on the CPU does."""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from conftest import Family
from models import RETENTION_RATIO
from test_generate import batch_of_two, run, skip_without_flash_attention
from torch import Tensor

from vidcom2 import compress
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS
from vidcom2.errors import OptionError
from vidcom2.loading import placement
from vidcom2.loading.placement import Placement, check_machine

# The method keeps the same tokens whatever their values, so rounding alone tells two answers apart.
SETTINGS = {"retention_ratio": RETENTION_RATIO, "compression_method": "random"}
ON_A_GPU = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
KERNELS = [
    pytest.param("cpu", torch.bfloat16, "sdpa", id="cpu-bfloat16-sdpa"),
    pytest.param("cuda", torch.float32, "sdpa", id="cuda-float32-sdpa", marks=ON_A_GPU),
    pytest.param("cuda", torch.bfloat16, "sdpa", id="cuda-bfloat16-sdpa", marks=ON_A_GPU),
    pytest.param("cuda", torch.bfloat16, "flash_attention_2", id="cuda-bfloat16-flash", marks=ON_A_GPU),
]
# The greatest difference of two logits, beside the spread of all. Without a mask it is 0.3 to 1.6.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.15}
LEAST_PRECISE = ("gemma4", "gemma4_unified")  # whose embeddings are multiplied by a large factor


@pytest.mark.slow
@pytest.mark.parametrize(("device", "dtype", "attention"), KERNELS)
def test_every_kernel_answers_as_float32_on_the_cpu(
    family: Family, device: str, dtype: torch.dtype, attention: str
) -> None:
    if attention == "flash_attention_2":
        skip_without_flash_attention(family)
    both, _ = batch_of_two(family)

    def answer(model: Any, inputs: Any) -> tuple[Tensor, Tensor]:
        out = run(model, inputs, max_new_tokens=2, min_new_tokens=2, return_dict_in_generate=True, output_logits=True)
        return out.logits[0].float().cpu(), torch.tensor(out.past_key_values.get_seq_length())

    expected, length = answer(family.load(**SETTINGS, attn_implementation="eager"), both)
    model = family.load(**SETTINGS, attn_implementation=attention, dtype=dtype).to(device)
    got, of_kernel = answer(model, both.to(device, dtype))
    assert torch.equal(of_kernel, length)
    tolerance = TOLERANCES[dtype] * (2 if family.case.name in LEAST_PRECISE else 1)
    assert (got - expected).abs().max() < tolerance * expected.std()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", COMPRESSION_METHODS)
def test_every_method_keeps_the_same_tokens_on_a_gpu(method: str) -> None:
    tokens = torch.randn(16, 36, 64, generator=torch.Generator().manual_seed(0))
    here, there = (compress(each, 0.25, compression_method=method) for each in (tokens, tokens.cuda()))
    assert there.indices.is_cuda and torch.equal(there.indices.cpu(), here.indices)


BUILDS = {  # what PyTorch was built for -> what its version.py has
    "cuda": "cuda: Optional[str] = '13.2'\nhip: Optional[str] = None\n",
    "amd": "cuda: Optional[str] = None\nhip: Optional[str] = '7.1'\n",
    "cpu": "cuda: Optional[str] = None\nhip: Optional[str] = None\n",
    "something else": "__version__ = '2.15'\n",
}


@pytest.mark.parametrize(
    ("build", "has_driver", "refusal"),
    [
        ("cuda", False, "NVIDIA's driver is not installed"),
        ("cuda", True, None),
        ("amd", False, None),
        ("cpu", True, "PyTorch is built without CUDA"),
        ("something else", False, None),
    ],
)
def test_a_gpu_is_refused_without_pytorch_only_where_pytorch_would_refuse_it_too(
    build: str, has_driver: bool, refusal: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(BUILDS[build])
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(placement, "find_spec", lambda name: found)
    monkeypatch.setattr(placement.sys, "platform", "linux")
    loads = mock.Mock(side_effect=None if has_driver else OSError("libcuda.so.1: cannot open shared object file"))
    monkeypatch.setattr(placement.ctypes, "CDLL", loads)
    for option in ("device", "device_map"):
        with (
            nullcontext() if refusal is None else pytest.raises(OptionError, match=f"`{option}` is 'cuda:1'.*{refusal}")
        ):
            check_machine(Placement(**{option: "cuda:1"}))
    for name in ("auto", "cpu", "xpu"):
        check_machine(Placement(device=name))
    with pytest.raises(OptionError, match="it is Apple's"):
        check_machine(Placement(device="mps"))


@pytest.mark.skipif(sys.platform == "darwin", reason="has devices of another kind")
def test_what_is_told_of_a_gpu_without_pytorch_agrees_with_pytorch() -> None:
    refused = False
    try:
        check_machine(Placement(device="cuda"))
    except OptionError:
        refused = True
    assert refused != torch.cuda.is_available()
