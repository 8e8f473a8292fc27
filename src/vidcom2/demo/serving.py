"""Serving the page. Nothing leaves the machine: Gradio's telemetry is off, and its fonts are the system's."""

import os
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import OptionError
from ..tiny.toy import TOY_FOLDER

if TYPE_CHECKING:
    import gradio as gr

MOST_BYTES = "500mb"  # of a file that is uploaded
FONTS = ("system-ui", "sans-serif")
MONO_FONTS = ("ui-monospace", "monospace")
# Gradio says of a file that the browser cannot play that it cannot be played. The page says itself whether the model
# can read it, which is another matter.
WITHOUT_PLAYERS_ERROR = """() => new MutationObserver(() => {
  for (const toast of document.querySelectorAll('[data-testid="toast-body"]'))
    if (toast.innerText.includes("Video not playable")) toast.style.display = "none";
}).observe(document.body, { childList: true, subtree: true })"""


def check_gradio() -> None:
    """That Gradio is installed. Raises an OptionError if not."""
    if find_spec("gradio") is None:
        raise OptionError('the demo needs Gradio, which is not installed: pip install "vidcom2[demo]".')


def check_address(host: str, port: int) -> None:
    """That the page can be served there. Raises an OptionError if not."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise OptionError(
            f"`--host` is {host!r} and `--port` is {port}, but the page cannot be served there: "
            f"{error.strerror or error}. Take another port."
        ) from None


def import_gradio() -> Any:
    """Gradio without its telemetry, which it asks for when it is imported."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio

    return gradio


def serve(page: "gr.Blocks", **address: Any) -> str:
    """Start the page, and return at once.

    Args:
        address: `server_name` and `server_port`, if the surroundings do not say them.

    Returns:
        The page's address on this machine.
    """
    gradio = import_gradio()
    from .page import CSS

    # Gradio's own shades of these are too pale to read.
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
        ssr_mode=False,  # which needs Node
        footer_links=[],
        enable_monitoring=False,
        max_file_size=MOST_BYTES,
        allowed_paths=[str(TOY_FOLDER)],
        theme=theme,
        css_paths=CSS,
        js=WITHOUT_PLAYERS_ERROR,
    )
    return local
