"""Count what a GPU is asked in each stage of an answer: kernels, and how often the host waits for it. No GPU is needed.

    PYTHONPATH=src python -m benchmarks.device_counts [FAMILY ...] [--json counts.json]

A device that is not there stands in for the GPU. Its tensors hold what they would hold there, the CPU computes it, and
what a GPU refuses, such as operands on different devices, is refused. Each of the tiny models answers with a token
about one video, at 25 % and in its stock class with all tokens. The counts do not depend on the machine, nor on how
wide a model is, but on how many layers it has.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from traceback import walk_stack
from typing import Annotated, Any, ClassVar, cast
from unittest.mock import patch

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from transformers.utils import logging

import vidcom2
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS, NUM_KEPT
from vidcom2.families.table import FAMILIES
from vidcom2.modeling.encoding import video_features


class _Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


# PyTorch's place for devices of others
backend_registration._setup_privateuseone_for_python_backend("counted", backend_module=_Backend())
DEVICE = torch.device("counted:0")
ROOT = Path(__file__).resolve().parents[1]
# Operations that only look at memory in another way, or reserve some.
FREE = {
    *(
        "view",
        "_unsafe_view",
        "expand",
        "transpose",
        "t",
        "permute",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "detach",
    ),
    *("alias", "as_strided", "split", "split_with_sizes", "chunk", "unbind", "unfold", "diagonal", "reshape"),
    *("empty", "empty_like", "new_empty", "empty_strided", "lift_fresh", "_reshape_alias", "view_as_real", "set_"),
}
# Operations after which the host must know a value, such as the size of a result.
WAITING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique_dim", "_unique2"),
    *("unique_consecutive", "repeat_interleave"),
}
INDEXING = ("index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put")
MIXING = (*INDEXING, "copy_", "_to_copy")  # operations on tensors of both sides


class OnDevice(Tensor):
    """A tensor on the device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        made.held = held
        return made

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.held})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("A tensor on a device cannot be converted to NumPy.")

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{function} runs on the device outside `Device`.")


def _reserved(size: Any, stride: Any, dtype: Any = None, **_: Any) -> Tensor:
    return OnDevice(torch.empty_strided(size, stride, dtype=dtype))


def _copied(source: Tensor, target: OnDevice, non_blocking: bool = False) -> Tensor:
    for device in Device.counting:
        device.asked = device.asked + Asked(1)
        device.wait()
    target.held.copy_(source)
    return target


def _scalar(value: OnDevice) -> Any:
    for device in Device.counting:
        device.wait()
    return value.held.item()


# `torch.tensor(numbers, device=...)` and `new_tensor` come past all modes.
_library = torch.library.Library("aten", "IMPL")
_library.impl("empty_strided", _reserved, "PrivateUse1")
_library.impl("_copy_from", _copied, "PrivateUse1")
_library.impl("_local_scalar_dense", _scalar, "PrivateUse1")


@dataclass
class Asked:
    """What the device was asked.

    Attributes:
        launches: how many kernels were launched, and copies to the device begun.
        waits: how often the host waited, by the line of this project that led there, or of the stock class's.
    """

    launches: int = 0
    waits: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "Asked") -> "Asked":
        return Asked(self.launches + other.launches, self.waits + other.waits)

    def __sub__(self, before: "Asked") -> "Asked":
        return Asked(self.launches - before.launches, self.waits - before.waits)

    @property
    def own_waits(self) -> dict[str, int]:
        """The waits that this project's lines led to."""
        return {line: number for line, number in self.waits.items() if not line.startswith(("stock ", "elsewhere"))}


class Device(TorchDispatchMode):
    """Counts what the device is asked."""

    counting: ClassVar[list["Device"]] = []

    def __init__(self) -> None:
        super().__init__()
        self.asked = Asked()

    def __enter__(self) -> "Device":
        self.counting.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.counting.remove(self)
        super().__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = function.name().split("::")[1].split(".")[0], dict(kwargs or {})
        given, _ = tree_flatten((args, kwargs))
        there = {id(each.held): each for each in given if isinstance(each, OnDevice)}
        here = [each for each in given if isinstance(each, Tensor) and not isinstance(each, OnDevice)]
        goes_to = kwargs.get("device")
        ends_there = bool(there) if goes_to is None else goes_to.type == DEVICE.type
        if not there and not ends_there:
            return function(*args, **kwargs)
        self.asked = self.asked + Asked(int(name not in FREE))
        if self._must_wait(name, args, kwargs, bool(there), bool(here), ends_there):
            self.wait()
        if there and name not in MIXING:
            strangers = [each for each in here if each.ndim]
            assert not strangers, f"{name} of tensors on two devices: {strangers[0].shape}"
        if goes_to is not None:
            kwargs["device"] = torch.device("cpu")
        args, kwargs = tree_map(lambda each: each.held if isinstance(each, OnDevice) else each, (args, kwargs))
        if name == "histc":  # The CPU has none of whole numbers.
            args = (args[0].float(), *args[1:])
        found = function(*args, **kwargs)
        if name == "_to_copy" and found is args[0]:
            found = found.clone()
        if not ends_there:
            return found

        def wrapped(each: Any) -> Any:
            if not isinstance(each, Tensor):
                return each
            return there[id(each)] if id(each) in there else OnDevice(each)  # What was changed in place stays itself.

        return tree_map(wrapped, found)

    def _must_wait(
        self, name: str, args: Any, kwargs: dict[str, Any], has_there: bool, has_here: bool, ends_there: bool
    ) -> bool:
        """Return whether the host waits for the device, or for a copy to it."""
        if name == "_to_copy":
            return has_there != ends_there and not (ends_there and kwargs.get("non_blocking"))
        if name == "copy_":
            is_there = [isinstance(each, OnDevice) for each in args[:2]]
            return is_there[0] != is_there[1] and not (is_there[0] and (*args, False)[2])
        if name in INDEXING:  # A mask has a number of entries that must be known, and other indices may be here.
            indices = [each for each in args[1] if isinstance(each, Tensor)]
            masks = [each for each in indices if each.dtype in (torch.bool, torch.uint8)]
            return bool(masks) or not all(isinstance(each, OnDevice) for each in indices)
        return has_there and name in WAITING

    def wait(self) -> None:
        """Count a wait, for the innermost line of this project's or of Transformers' models and `generate`."""
        stock = "elsewhere"
        for frame, line in walk_stack(None):
            file = Path(frame.f_code.co_filename)
            is_own = ROOT in file.resolve().parents and "site-packages" not in file.parts  # an environment may be there
            if is_own and file.name != Path(__file__).name:
                self.asked = self.asked + Asked(0, Counter([f"{file.name}:{line}"]))
                return
            if "transformers" in file.parts:
                stock = f"stock {file.name}:{line}"
                break
        self.asked = self.asked + Asked(0, Counter([stock]))


def on_the_device(model: nn.Module) -> nn.Module:
    """Move a model's weights to the device."""
    for module in model.modules():
        for of_module in (module._parameters, module._buffers):
            of_module.update({name: moved(each) for name, each in of_module.items()})
    return model


def moved(value: Any) -> Any:
    """Return a tensor on the device; anything else as it is."""
    return OnDevice(value.detach()) if isinstance(value, Tensor) else value


# ---------------------------------------------------------------------------------------------------------------------
# The stages of an answer
# ---------------------------------------------------------------------------------------------------------------------

STAGES = ("before the tower", "tower", "selection", "between", "prefill", "step")
TOWERS = ("visual", "vision_tower", "vision_model", "embed_vision")
LANGUAGE_MODELS = ("language_model", "text_model")


def _part(model: nn.Module, names: tuple[str, ...]) -> nn.Module:
    return next(each for name, each in model.named_modules() if name.split(".")[-1] in names)


@contextmanager
def _selection_apart(device: Device, found: list[Asked]) -> Iterator[None]:
    """Add to `found` what each selection of tokens asks."""
    select = video_features.compress_with

    def counted(*args: Any) -> Any:
        before = device.asked
        compression = select(*args)
        found.append(device.asked - before)
        return compression

    with patch.object(video_features, "compress_with", counted):
        yield


def count_stages(model: Any, inputs: dict[str, Any]) -> tuple[dict[str, Asked], Tensor]:
    """Return what each stage asks until the second token of the answer, and these tokens.

    Args:
        model: is on the device.
        inputs: on the device, for `generate`.

    Returns:
        The counts of each of `STAGES`, in which the selection of tokens is not counted between tower and language
        model.
    """
    at: dict[str, Asked] = {}
    selections: list[Asked] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: at.update({name: device.asked}) if name == "encoded" or name not in at else None

    inner = getattr(model, "model", model)  # Nemotron's own class is one
    tower, language_model = _part(inner, TOWERS), _part(inner, LANGUAGE_MODELS)
    hooks = [
        tower.register_forward_pre_hook(note("begun")),
        tower.register_forward_hook(note("encoded")),
        language_model.register_forward_pre_hook(note("prefills")),
        language_model.register_forward_hook(note("prefilled")),
    ]
    greedy = {"do_sample": False, "eos_token_id": None}
    with torch.no_grad(), Device() as device, _selection_apart(device, selections):
        first = model.generate(**inputs, max_new_tokens=1, min_new_tokens=1, **greedy)
    ended = device.asked
    for hook in hooks:
        hook.remove()
    with torch.no_grad(), Device() as device:
        tokens = model.generate(**inputs, max_new_tokens=2, min_new_tokens=2, **greedy)
    assert torch.equal(tokens.held[:, :-1], first.held)
    selection = sum(selections, Asked())
    counts = (
        at["begun"],
        at["encoded"] - at["begun"],
        selection,
        at["prefills"] - at["encoded"] - selection,
        ended - at["prefills"],
        device.asked - ended,
    )
    return dict(zip(STAGES, counts, strict=True)), tokens.held


def inputs_of(processor: Any) -> dict[str, Any]:
    """Return what a processor makes of a question about eight frames of noise."""
    frames = torch.randint(0, 256, (8, 112, 112, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    metadata = {"fps": 2.0, "total_num_frames": 8, "duration": 4.0, "frames_indices": list(range(8))}
    chat = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What happens?"}]}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True)
    return dict(
        processor(
            text=[text],
            videos=[[frames.numpy()]],
            video_metadata=[[metadata]],
            do_sample_frames=False,
            return_tensors="pt",
        )
    )


def counts_of(name: str) -> dict[str, dict[str, Asked]]:
    """Return what each stage of an answer of a family's asks, in this project's class and in the stock one."""
    family = FAMILIES[name]
    model, processor = vidcom2.tiny_model(name, retention_ratio=0.25)
    inputs = inputs_of(processor)
    expected: Any = model.generate(**inputs, max_new_tokens=2, min_new_tokens=2, do_sample=False, eos_token_id=None)
    ours, tokens = count_stages(on_the_device(model), {key: moved(each) for key, each in inputs.items()})
    assert torch.equal(tokens, expected)

    whole, processor = vidcom2.tiny_model(name, retention_ratio=1.0)
    stock: Any = family.uncompressed_class(whole.config).eval()
    stock.load_state_dict(whole.state_dict())
    inputs = inputs_of(processor)
    expected: Any = whole.generate(**inputs, max_new_tokens=2, min_new_tokens=2, do_sample=False, eos_token_id=None)
    if hasattr(whole.model, "arguments_of_tiles"):  # Its videos are images.
        inputs |= whole.model.arguments_of_tiles({"pixel_values": inputs.pop("pixel_values_videos")})
        del inputs["mm_token_type_ids"]
    for key in {NUM_KEPT, *whole.model.video_arguments} & set(inputs):
        del inputs[key]
    of_stock, tokens = count_stages(on_the_device(stock), {key: moved(each) for key, each in inputs.items()})
    assert torch.equal(tokens, expected)
    return {"ours": ours, "stock": of_stock}


def counts_of_methods() -> dict[str, Asked]:
    """Return what each method asks for 32 frames of 196 tokens at 25 %, with each scoring that it reads. How wide the
    tokens are does not matter."""
    video = torch.randn(32, 196, 64, generator=torch.Generator().manual_seed(0))
    counts = {}
    for name, method in COMPRESSION_METHODS.items():
        scorings = ("paper", "released") if "compression_scoring" in method.settings else (None,)
        for scoring in scorings:
            given = {} if scoring in (None, "paper") else {"compression_scoring": scoring}
            settings: dict[str, Any] = {"compression_method": name, "retention_ratio": 0.25, **given}
            expected = vidcom2.compress(vidcom2.VideoTokens(video, (14, 14)), **settings)
            with torch.no_grad(), Device() as device:
                found = vidcom2.compress(vidcom2.VideoTokens(moved(video), (14, 14)), **settings)
            assert torch.equal(cast(Any, found.indices).held, expected.indices)
            counts[" ".join((name, *given.values()))] = device.asked
    return counts


def _as_json(asked: Asked) -> dict[str, Any]:
    return {"launches": asked.launches, "waits": asked.waits.total(), "own_waits": asked.own_waits}


def main(
    families: Annotated[list[str] | None, typer.Argument(help="whose stages are counted; all by default")] = None,
    methods: Annotated[bool, typer.Option("--methods", help="count what each method asks, and no families")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="where to write the counts")] = None,
) -> None:
    """Count what a GPU is asked in each stage of an answer, and by each method."""
    logging.set_verbosity_error()
    out, table, result = Console(), Table(), {}
    if methods or not families:
        result["methods"] = {name: _as_json(asked) for name, asked in counts_of_methods().items()}
    if not methods:
        result["families"] = {
            name: {whose: {stage: _as_json(each) for stage, each in stages.items()} for whose, stages in counts.items()}
            for name, counts in ((name, counts_of(name)) for name in families or FAMILIES)
        }
    result["versions"] = {package: version(package) for package in ("torch", "transformers")}
    for column in ("", *STAGES):
        table.add_column(column, justify="left" if not column else "right")
    for name, counts in result.get("families", {}).items():
        for whose, stages in counts.items():
            table.add_row(f"{name}, {whose}", *(f"{each['launches']} / {each['waits']}" for each in stages.values()))
    for name, each in result.get("methods", {}).items():
        table.add_row(f"compression_method={name}", "", "", f"{each['launches']} / {each['waits']}")
    out.print(table, "kernels launched / waits of the host")
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
