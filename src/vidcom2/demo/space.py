"""Serve the demo as a Space of the Hub, whose `app.py` calls `serve_space`. `vidcom2 publish --space` makes one."""

import importlib
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ..presets import NUM_FRAMES
from .serving import check_gradio, import_gradio, serve

GPU_SECONDS = 120  # how long one call may use a GPU that is lent


def serve_space(
    model: str, revision: str | None = None, num_frames: int = NUM_FRAMES, max_new_tokens: int = 128
) -> None:
    """Serve the demo until the Space ends.

    ZeroGPU lends a GPU to one call at a time. Encoding a clip is such a call, and answering a question is another.

    Args:
        model: a Hub id.
        revision: its commit, tag or branch.
        num_frames, max_new_tokens: the values that the page begins with.

    Raises:
        CheckpointError: if the model cannot be loaded.
    """
    check_gradio()
    on_device, device = lent_gpu()  # before PyTorch is imported, which `spaces` changes
    import_gradio()
    from ..loading.checkpoints import load_checkpoint
    from .answerer import Answerer
    from .demo_page import build_page

    answerer = Answerer(load_checkpoint(model, device=device, revision=revision), on_device)
    page = build_page(answerer, num_frames, max_new_tokens)
    print(f"Serving {model} at {serve(page)}", flush=True)
    page.block_thread()


def lent_gpu() -> tuple[Callable[..., Any], str]:
    """Return a wrapper for the functions that run the model, and the device to load the model to."""
    if find_spec("spaces") is None:
        return lambda function: function, "auto"
    gpu = importlib.import_module("spaces").GPU
    # On ZeroGPU, the process that loads the model has no GPU, but loads it to "cuda" as if it had one.
    return gpu(duration=GPU_SECONDS), "cuda" if os.environ.get("SPACES_ZERO_GPU") else "auto"
