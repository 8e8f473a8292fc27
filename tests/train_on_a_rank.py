"""What each of the two processes in tests/test_training.py runs. They import it, so it is a module of its own."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def train_on_a_rank(rank: int, model_class: Any, folder: Path, retention_ratio: float) -> None:
    """Train on `batch<rank>.pt` under DDP and under FSDP2, and write the loss.

    The first process also writes the gradients, which are the mean over both processes."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    batch = torch.load(folder / f"batch{rank}.pt", weights_only=True)
    for kind in ("DDP", "FSDP2"):
        model: Any = model_class.from_pretrained(folder / "model", retention_ratio=retention_ratio).train()
        if kind == "FSDP2":  # needs gradients of the same weights in each process, with the stock class too
            model.requires_grad_(False)
            model.get_decoder().requires_grad_(True)
            for layer in model.get_decoder().layers:
                fully_shard(layer)
            fully_shard(model)
        else:  # the tower takes no part in a batch without a video
            model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        loss = model(**batch).loss
        loss.backward()
        gradients = {
            name.removeprefix("module."): weight.grad.full_tensor() if kind == "FSDP2" else weight.grad
            for name, weight in model.named_parameters()
            if weight.grad is not None
        }
        torch.save((loss.detach(), gradients if rank == 0 else {}), folder / f"{kind}{rank}.pt")
    torch.distributed.barrier()  # A process that leaves while the other still talks to it may abort.
    torch.distributed.destroy_process_group()
