"""The list of commands of `vidcom2`. Each command has a file of its own in this folder."""

import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from .bench import bench_command
from .chat import chat_command
from .console import Command, ImportOption, forget_imports, import_for_command, out, takes_imports, versions
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
    rich_markup_mode=None,  # click's own help fits into any terminal
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
    modules: ImportOption = None,
) -> None:
    forget_imports()
    import_for_command(modules or [])


COMMANDS = {
    "run": run_command,
    "chat": chat_command,
    "watch": watch_command,
    "explain": explain_command,
    "demo": demo_command,
    "convert-llava-video": convert_command,
    "bench": bench_command,
    "eval": eval_command,
    "env": env_command,
    "publish": publish_command,
    "verify": verify_command,
}
for name, command in COMMANDS.items():
    whole_sentence = (command.__doc__ or "").split("\n\n")[0]  # which click would cut
    app.command(name, cls=Command, short_help=whole_sentence)(takes_imports(command))


def main() -> None:
    """Run the `vidcom2` command."""
    if isinstance(sys.stdout, TextIOWrapper):  # names of files may have characters that it cannot write
        sys.stdout.reconfigure(errors="backslashreplace")
    if "--json" in sys.argv:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    app()


if __name__ == "__main__":
    main()
