"""Running as one of several processes of `torchrun` or `accelerate launch`."""

import os
from dataclasses import dataclass, replace
from datetime import timedelta

from ..errors import OptionError
from ..placement import Placement

LONGEST_WAIT = timedelta(days=30)  # for the slowest process; if one dies, the launcher ends them all


@dataclass(frozen=True)
class Process:
    """One of `count` processes of a run.

    Attributes:
        rank: its number among all processes.
        local_rank: its number among the processes of this machine, and the index of its own device.
        count: how many processes there are.
    """

    rank: int = 0
    local_rank: int = 0
    count: int = 1

    @classmethod
    def this(cls) -> "Process":
        """Read the variables that PyTorch's launchers set. Raises an OptionError if `LOCAL_RANK` is missing."""
        if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", 1)) == 1:
            return cls()
        if "LOCAL_RANK" not in os.environ:
            raise OptionError("`RANK` is set, but `LOCAL_RANK` is not. Start with torchrun or accelerate launch.")
        return cls(*(int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")))

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def check_placement(self, placement: Placement) -> None:
        """Check that the processes would not all share one device. Raises an OptionError if they would."""
        if self.count > 1 and (placement.device_map is not None or ":" in placement.device):
            name = "device" if placement.device_map is None else "device_map"
            raise OptionError(
                f"`{name}` is {getattr(placement, name)!r}, but each of the {self.count} processes has a device of its "
                "own. Leave it out."
            )

    def placed(self, placement: Placement) -> Placement:
        """Return the placement on this process's own device among those that are asked for."""
        import torch

        device = placement.device
        if self.count == 1 or device == "cpu":
            return placement
        if device == "auto":
            accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
            device = "cpu" if accelerator is None else accelerator.type
        return replace(placement, device=device if device == "cpu" else f"{device}:{self.local_rank}")

    def wait_for_others(self) -> None:
        """Return when all processes have called this."""
        if self.count == 1:
            return
        from torch import distributed

        if not distributed.is_initialized():
            distributed.init_process_group("gloo", timeout=LONGEST_WAIT)
        distributed.barrier()
