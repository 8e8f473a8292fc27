"""A device that every machine has, for tests of what runs where: its tensors compute on the CPU, and say they do not.

It refuses what an accelerator would refuse: operations of tensors on two devices, and reading one with NumPy. Tensors
come to it, and are made on it, within `with StandIn():`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as tree
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

STAND_IN = torch.device("cuda:0")  # a name of a device that PyTorch was built for


class OnStandIn(Tensor):
    """A tensor on the stand-in, with its values in a tensor on the CPU."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> "OnStandIn":
        """Wrap values of the CPU."""
        made: Any = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]  (no annotation)
            cls, values.shape, strides=values.stride(), dtype=values.dtype, device=STAND_IN
        )
        made.values = values
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OnStandIn({self.values!r})"

    def tolist(self) -> Any:
        return self.values.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _FromNumbers(TorchFunctionMode):
    """Lets `torch.tensor` make tensors on the stand-in, for which PyTorch would ask the device itself for memory."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func is torch.tensor and str(given.get("device")).startswith(STAND_IN.type):
            return func(*args, **given | {"device": "cpu"}).to(STAND_IN)
        return func(*args, **given)


class StandIn(TorchDispatchMode):
    """Makes tensors on the stand-in, and copies them there and back.

    Attributes:
        moved: the dtype of each tensor that was copied from the CPU to the stand-in.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[torch.dtype] = []
        # PyTorch would look for a driver at the first mention of the device.
        self._driver = mock.patch("torch.cuda._lazy_init", lambda: None)
        self._from_numbers = _FromNumbers()

    def __enter__(self) -> Any:
        torch._C._ensureCUDADeviceGuardSet()  # pyright: ignore[reportAttributeAccessIssue]  (no annotation)
        self._driver.start()
        self._from_numbers.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._from_numbers.__exit__(*error)
        self._driver.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, self.moved.append)


def _run(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], moved: Callable[[torch.dtype], None] = lambda _: None
) -> Any:
    tensors = [each for each in tree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    were_on_it = [isinstance(each, OnStandIn) for each in tensors]
    copies, aten = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default), torch.ops.aten
    may_mix = copies or func is aten.index.Tensor  # by indices on the CPU
    if any(were_on_it) and not may_mix and any(t.ndim for t, on_it in zip(tensors, were_on_it) if not on_it):
        raise RuntimeError(f"{func}: expected all tensors to be on the same device")
    target = kwargs.get("device")
    is_on_it = any(were_on_it) if target is None else torch.device(target).type == STAND_IN.type
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
        if copies and is_on_it and not any(were_on_it):
            moved(tensors[0].dtype)
    args, kwargs = tree.tree_map_only(OnStandIn, lambda each: each.values, (args, dict(kwargs)))
    made = func(*args, **kwargs)
    return tree.tree_map_only(Tensor, OnStandIn, made) if is_on_it else made
