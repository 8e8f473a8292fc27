"""The demo as a Space of the Hub: its `app.py` calls `serve_space`. Write one with `vidcom2 publish --space`."""

import importlib
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from .serving import check_gradio, import_gradio, serve

GPU_SECONDS = 120  # that one question may take of a GPU that is lent


def serve_space(model: str, revision: str | None = None, num_frames: int = 16, max_new_tokens: int = 128) -> None:
    """Serve the demo until the Space ends.

    On ZeroGPU, whose GPU is lent to one call at a time, encoding a clip and answering a question are such calls.

    Args:
        model: a Hub id.
        revision: its commit, tag or branch.
        num_frames, max_new_tokens: what the page shows at first.

    Raises:
        CheckpointError: if the model cannot be loaded.
    """
    check_gradio()
    on_device, device = lent_gpu()  # before PyTorch is imported, which `spaces` changes
    import_gradio()
    from ..checkpoints import load_checkpoint
    from .answerer import Answerer
    from .page import build_page

    answerer = Answerer(load_checkpoint(model, device=device, revision=revision), on_device)
    page = build_page(answerer, num_frames, max_new_tokens)
    print(f"Serving {model} at {serve(page)}", flush=True)
    page.block_thread()


def lent_gpu() -> tuple[Callable[..., Any], str]:
    """How a function is called that runs the model, and the device that the model is loaded to."""
    if find_spec("spaces") is None:
        return lambda function: function, "auto"
    gpu = importlib.import_module("spaces").GPU
    # Where a GPU is lent, the process that loads the model has none, but loads it as if it had.
    return gpu(duration=GPU_SECONDS), "cuda" if os.environ.get("SPACES_ZERO_GPU") else "auto"
