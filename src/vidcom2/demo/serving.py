"""Serve the page. Nothing leaves the machine: Gradio's telemetry is off, and the fonts are the system's."""

import os
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, how_to_install
from ..toys import ASSETS

if TYPE_CHECKING:
    import gradio as gr

MOST_BYTES = "500mb"  # the largest file that may be uploaded
FONTS = ("system-ui", "sans-serif")
MONO_FONTS = ("ui-monospace", "monospace")
# Hide Gradio's message that the browser cannot play a file. The model may still be able to read the file, and the page
# itself says whether it can.
WITHOUT_PLAYERS_ERROR = """() => new MutationObserver(() => {
  for (const toast of document.querySelectorAll('[data-testid="toast-body"]'))
    if (toast.innerText.includes("Video not playable")) toast.style.display = "none";
}).observe(document.body, { childList: true, subtree: true })"""


def check_gradio() -> None:
    """Check that Gradio is installed. Raises an OptionError if it is not."""
    if find_spec("gradio") is None:
        raise OptionError(f"the demo needs Gradio, which is not installed. {how_to_install('demo')}")


def check_address(host: str, port: int) -> None:
    """Check that the page can be served at this address. Raises an OptionError if it cannot."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise OptionError(
            f"`--host` is {host!r} and `--port` is {port}, but the page cannot be served there: "
            f"{error.strerror or error}. Take another port."
        ) from None


def import_gradio() -> Any:
    """Import Gradio without its telemetry. It reads the setting for that when it is imported."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio

    return gradio


def serve(page: "gr.Blocks", clip: str | None = None, **address: Any) -> str:
    """Start serving the page, and return at once.

    Args:
        clip: a file outside of the package that the page shows. No other file of its folder is served.
        address: `server_name` and `server_port`. A Space leaves them out, because its environment says them.

    Returns:
        The page's address on this machine.
    """
    gradio = import_gradio()
    from .demo_page import CSS

    # Gradio's own shades of these colours are too pale to read.
    theme = gradio.themes.Default(primary_hue="cyan", neutral_hue="slate", font=FONTS, font_mono=MONO_FONTS).set(
        body_text_color_subdued="*neutral_600",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_800",
        slider_color="*primary_700",
        slider_color_dark="*primary_500",
    )
    _, local, _ = page.launch(
        **address,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        ssr_mode=False,  # rendering on the server needs Node
        footer_links=[],
        enable_monitoring=False,
        max_file_size=MOST_BYTES,
        allowed_paths=[str(ASSETS), *([] if clip is None else [clip])],
        theme=theme,
        css_paths=CSS,
        js=WITHOUT_PLAYERS_ERROR,
    )
    return local
