"""Where a model runs, and in which dtype: the options that every way of loading a model shares.

Nothing here imports PyTorch, so that names are checked before anything slow starts. `devices.py` looks for the device.
"""

import ctypes
import re
import sys
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..checks import check_given
from ..errors import OptionError, brief, did_you_mean, how_to_install

DTYPES = ("auto", "float32", "bfloat16", "float16")
ATTENTION = ("sdpa", "eager", "flash_attention_2")
PREPARED_ON = ("auto", "cpu")
CACHES = ("dynamic", "static", "offloaded", "offloaded_static", "quantized")  # those of `generate`
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
DRIVERS = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}  # what a PyTorch that was built for CUDA loads
DEVICE = re.compile(r"(cpu|cuda|mps|xpu|npu|hpu|mlu|musa)(:\d+)?")  # devices that Transformers' models run on
NO_GPU = "`attn_implementation` is 'flash_attention_2', but FlashAttention2 needs a GPU. Try sdpa."


def _option(default: str | None, text: str, shown: str | None = None) -> Any:
    """Make a field with the help text of its command-line option, and the default that the help shows."""
    return field(default=default, metadata={"help": text, "shown": shown})


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How a named model is loaded. Every command has an option for each field, and every Python function that takes the
    name of a model has an argument.

    Attributes:
        device: `"auto"` means the accelerator if there is one.
        device_map: how accelerate spreads the model over devices, instead of `device`.
        dtype: `"auto"` means the checkpoint's own.
        attn_implementation: None means Transformers' choice.
        revision: commit, tag or branch of the model's Hub repo; None means its main branch.
        prepare_on: where the frames of videos are resized and normalized. `"auto"` means the accelerator that holds
            the vision tower, if there is one; `"cpu"`, whose pixels differ a little, is for whoever wants those.
        cache_implementation: the kind of KV cache that `generate` makes, as in Transformers' `GenerationConfig`. On an
            accelerator, Transformers compiles the steps on a `"static"` one. None means what the checkpoint says, which
            is mostly `"dynamic"`.
    """

    device: str = _option("auto", "`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`.", "auto")
    device_map: str | None = _option(
        None,
        "Let accelerate spread the model over devices instead: `auto`, `balanced`, `balanced_low_0` or `sequential`.",
    )
    dtype: str = _option("auto", "`auto` (the checkpoint's), `float32`, `bfloat16` or `float16`.", "auto")
    attn_implementation: str | None = _option(
        None, "`sdpa`, `eager` or `flash_attention_2` (extra `flash-attn`).", "Transformers'"
    )
    revision: str | None = _option(None, "Commit, tag or branch of the model's Hub repo.", "main")
    prepare_on: str = _option(
        "auto",
        "Where frames are resized and normalized: `auto`, beside the model's vision tower, or `cpu`. On a GPU, pixels "
        "differ a little from the CPU's.",
        "auto",
    )
    cache_implementation: str | None = _option(
        None,
        "The KV cache: `dynamic`, `static`, with which Transformers compiles decoding on a GPU, or another one of its.",
        "the checkpoint's",
    )

    @classmethod
    def popped_from(cls, arguments: dict[str, Any]) -> "Placement":
        """Remove the options of loading from the arguments of a Python function, and return them."""
        return cls(**{each.name: arguments.pop(each.name) for each in fields(cls) if each.name in arguments})

    @property
    def given(self) -> dict[str, str]:
        """The options that are set, and so not left to the checkpoint and the machine."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, "auto")}

    @property
    def of_answers(self) -> dict[str, str | None]:
        """The options that answers depend on, for a run's record. The model's identity has the revision."""
        where = {} if self.prepare_on == "auto" else {"prepare_on": self.prepare_on}  # as records from before have it
        cache = {} if self.cache_implementation is None else {"cache_implementation": self.cache_implementation}
        return {"dtype": self.dtype, "attn_implementation": self.attn_implementation, **where, **cache}

    def check(self, name: str | None) -> None:
        """Check the options alone; `devices.py` checks that this machine has the device.

        Args:
            name: the model's name; None for the toy.

        Raises:
            OptionError: on an unknown value, options that exclude each other, or a missing package.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "dtype" and not isinstance(value, str | None):
                raise OptionError(f"`{each.name}` is {brief(value)}, but must be a text.")
        check_given("revision", self.revision, "for the main branch")
        if name is None and self.revision is not None:
            raise OptionError(f"`revision` is {self.revision!r}, but no model is named. Name its Hub repo.")
        if self.dtype not in DTYPES:
            raise unknown_dtype(self.dtype)
        if self.device != "auto" and not DEVICE.fullmatch(self.device):
            raise OptionError(f"`device` is {self.device!r}, but must be auto, cpu, cuda, cuda:1, mps or the like.")
        self.check_preparing()
        self.check_cache()
        self._check_attention()
        if self.device_map is not None:
            self._check_device_map(self.device_map)

    def check_preparing(self) -> None:
        """Check where frames are to be prepared, which a call can choose for a loaded model too."""
        if self.prepare_on not in PREPARED_ON:
            raise OptionError(f"`prepare_on` is {brief(self.prepare_on)}, but must be one of {', '.join(PREPARED_ON)}.")

    def check_cache(self) -> None:
        """Check the kind of KV cache, which a call can choose for a loaded model too."""
        if self.cache_implementation is not None and self.cache_implementation not in CACHES:
            raise OptionError(
                f"`cache_implementation` is {brief(self.cache_implementation)}, but must be one of {', '.join(CACHES)}."
            )

    def set_cache(self, model: Any) -> None:
        """Let the generation config of a model ask for the kind of KV cache that is given, if one is."""
        if self.cache_implementation is not None:
            model.generation_config.cache_implementation = self.cache_implementation

    def _check_attention(self) -> None:
        if self.attn_implementation is not None and self.attn_implementation not in ATTENTION:
            raise OptionError(
                f"`attn_implementation` is {self.attn_implementation!r}, but must be one of {', '.join(ATTENTION)}."
                f"{did_you_mean(self.attn_implementation, ATTENTION)}"
            )
        self.check_attention_on(self.device)
        if self.attn_implementation == "flash_attention_2" and not (find_spec("flash_attn") or find_spec("kernels")):
            raise OptionError(
                f"FlashAttention2 is not installed. Take sdpa, or install it. {how_to_install('flash-attn')}"
            )

    def check_attention_on(self, device_type: str) -> None:
        """Check that the attention runs on a device, once `"auto"` is resolved. Raises an OptionError if not."""
        if self.attn_implementation == "flash_attention_2" and device_type == "cpu":
            raise OptionError(NO_GPU)

    def _check_device_map(self, device_map: str) -> None:
        if self.device != "auto":
            raise OptionError(f"`device` is {self.device!r} and `device_map` is {device_map!r}. Pass one of them.")
        if device_map not in DEVICE_MAPS and not DEVICE.fullmatch(device_map):
            accepted = ", ".join(DEVICE_MAPS)
            raise OptionError(f"`device_map` is {device_map!r}, but must be a device or one of {accepted}.")
        check_accelerate(device_map)


def no_device(name: str, option: str, reason: str) -> OptionError:
    """Return the error for a device that this machine does not have."""
    return OptionError(f"`{option}` is {name!r}, but this machine has no such device ({reason}). Try cpu.")


def check_machine(placement: Placement) -> None:
    """Refuse a device for which this machine lacks the system or the driver, in a moment. `devices.py` looks for the
    device itself, for which it imports PyTorch.

    Raises:
        OptionError: if the device cannot be there.
    """
    for option in ("device", "device_map"):
        name = getattr(placement, option)
        kind = str(name).partition(":")[0]
        if kind == "mps" and sys.platform != "darwin":
            raise no_device(name, option, "it is Apple's")
        if kind == "cuda" and (reason := _why_no_cuda()):
            raise no_device(name, option, reason)


def _why_no_cuda() -> str | None:
    """Return why PyTorch cannot find an NVIDIA GPU here; None where only PyTorch can tell."""
    found = find_spec("torch")
    version = Path(found.origin).with_name("version.py") if found is not None and found.origin else None
    if version is None or not version.is_file():
        return None
    # What it was built for: a version or None. Builds for AMD, of which `hip` has the version, name devices cuda too.
    built = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *(\S+)", version.read_text(), flags=re.MULTILINE))
    if built.get("hip") == "None" == built.get("cuda"):
        return "PyTorch is built without CUDA"
    if built.get("cuda", "None") != "None" and sys.platform in DRIVERS:
        try:
            ctypes.CDLL(DRIVERS[sys.platform])
        except OSError:
            return "NVIDIA's driver is not installed"
    return None


def unknown_dtype(dtype: object) -> OptionError:
    """Return the error for a dtype that models are not loaded in."""
    meant = did_you_mean(str(dtype).removeprefix("torch."), DTYPES, cutoff=0.5)  # "bf16" is half of "bfloat16"
    return OptionError(f"`dtype` is {brief(dtype)}, but must be one of {', '.join(DTYPES)}.{meant}")


def check_accelerate(device_map: object) -> None:
    """Check that the package is installed with which Transformers spreads a model. Raises an OptionError if not."""
    if find_spec("accelerate") is None:
        raise OptionError(f"`device_map` is {brief(device_map)}, which needs accelerate: pip install accelerate.")
