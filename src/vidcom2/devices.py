"""Which device a model runs on. Only PyTorch is imported, so that a missing device is reported at once."""

import torch

from .options import DEVICE, OptionError


def check_device(device: str, device_map: str | None) -> None:
    """That this machine has the device that a command was given.

    Args:
        device_map: as of `load_checkpoint`; where it is given, it counts.

    Raises:
        OptionError: if there is no such device.
    """
    if device_map is None:
        torch_device(device)
    elif DEVICE.fullmatch(device_map):
        torch_device(device_map, "device_map")


def torch_device(name: str, option: str = "device") -> torch.device:
    """The named device, or with "auto" the accelerator if there is one.

    Args:
        option: that it was given as, for the error.

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
        raise OptionError(
            f"`{option}` is {name!r}, but this machine has no such device ({reason}). Try cpu."
        ) from error
    return device
