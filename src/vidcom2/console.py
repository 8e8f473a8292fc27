"""What the commands share: where they print, how they report mistakes and progress, and the clip that comes along."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

DEMO_VIDEO = files("vidcom2") / "assets" / "demo.mp4"

out = Console()
err = Console(stderr=True)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """A mistake of the user ends in one line and exit code 2; anything else keeps its traceback."""
    try:
        yield
    except (ValueError, ImportError, OSError) as error:
        message = " ".join(str(error).split())
        err.print("[bold red]Error:[/]", escape(message), highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


def progress_bar() -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=err, transient=True)
