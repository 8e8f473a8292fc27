"""Finding the device that a model runs on. Only PyTorch is imported, so that a missing device is reported at once."""

import torch

from .placement import DEVICE, Placement, no_device


def device_of(placement: Placement) -> torch.device | None:
    """Return the device that a model is loaded to; None if a `device_map` places it.

    Raises:
        OptionError: if this machine has no such device, or the attention does not run on it.
    """
    if placement.device_map is not None:
        if DEVICE.fullmatch(placement.device_map):
            torch_device(placement.device_map, "device_map")
        return None
    device = torch_device(placement.device)
    placement.check_attention_on(device.type)  # only now is it known what "auto" stands for
    return device


def torch_device(name: str, option: str = "device") -> torch.device:
    """Return the named device; `"auto"` means the accelerator if there is one, and otherwise the CPU.

    Args:
        option: the name of the option that it was given as, for the error.

    Raises:
        OptionError: if there is no such device on this machine.
    """
    if name == "auto":
        return (torch.accelerator.is_available() and torch.accelerator.current_accelerator()) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ModuleNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise no_device(name, option, reason) from error
    return device
