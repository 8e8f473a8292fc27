"""The list of commands of `vidcom2`. Each command has a file of its own in this folder."""

import os
import sys
from typing import Annotated

import typer

from .bench import bench_command
from .chat import chat_command
from .console import Command, import_for_command, one_line_errors, out, versions
from .convert import convert_command
from .demo import demo_command
from .env import env_command
from .eval import eval_command
from .explain import explain_command
from .publish import publish_command, verify_command
from .run import run_command
from .watch import watch_command

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Video LLMs that keep only the distinctive video tokens (VidCom²).",
)


def _print_versions(wanted: bool) -> None:
    if wanted:
        out.print(versions(), highlight=False, soft_wrap=True)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print what is installed.", callback=_print_versions, is_eager=True),
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            help="A Python module or file of yours that registers compression methods. Repeatable.",
            metavar="MODULE",
            show_default=False,
        ),
    ] = None,
) -> None:
    with one_line_errors():
        import_for_command(modules or [])


app.command("run", cls=Command)(run_command)
app.command("chat", cls=Command)(chat_command)
app.command("watch", cls=Command)(watch_command)
app.command("explain", cls=Command)(explain_command)
app.command("demo", cls=Command)(demo_command)
app.command("convert-llava-video", cls=Command)(convert_command)
app.command("bench", cls=Command)(bench_command)
app.command("eval", cls=Command)(eval_command)
app.command("env", cls=Command)(env_command)
app.command("publish", cls=Command)(publish_command)
app.command("verify", cls=Command)(verify_command)


def main() -> None:
    """Run the `vidcom2` command."""
    if "--json" in sys.argv:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    app()


if __name__ == "__main__":
    main()
