"""The list of commands of `vidcom2`. Each command has a file of its own in this folder."""

import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from .bench import bench_command
from .chat import chat_command
from .check_family import check_family_command
from .console import (
    Command,
    Commands,
    ImportOption,
    forget_imports,
    import_for_command,
    print_line,
    takes_imports,
    versions,
)
from .convert import convert_command
from .count import count_command
from .demo import demo_command
from .env import env_command
from .eval import eval_command
from .explain import explain_command
from .publish import publish_command, verify_command
from .run import run_command
from .watch import watch_command

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,  # Rich would cut long names of options short in a narrow terminal
    pretty_exceptions_enable=False,
    help="Run, measure and publish video LLMs that drop most video tokens (VidCom² and other methods).",
)


def _print_versions(wanted: bool) -> None:
    if wanted:
        print_line(versions())
        raise typer.Exit


@app.callback()
def options_before_the_command(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print what is installed.", callback=_print_versions, is_eager=True),
    ] = False,
    modules: ImportOption = None,
) -> None:
    forget_imports()  # of an earlier command in this process
    import_for_command(modules or [])


COMMANDS = {
    "run": run_command,
    "chat": chat_command,
    "watch": watch_command,
    "count": count_command,
    "explain": explain_command,
    "demo": demo_command,
    "convert-llava-video": convert_command,
    "bench": bench_command,
    "eval": eval_command,
    "env": env_command,
    "publish": publish_command,
    "verify": verify_command,
    "check-family": check_family_command,
}
# What the help of a command shows without `--help-all`: its usual options, and examples. A command that is not here
# has few options, and shows all.
MODEL_AND_COMPRESSION = ("model", "num_frames", "retention_ratio", "compression_method")
HELP = {
    "run": (
        ("prompt", *MODEL_AND_COMPRESSION),
        ('vidcom2 run clip.mp4 --prompt "What happens?"', "vidcom2 run --videos FOLDER -o answers.jsonl"),
    ),
    "chat": (("stream", *MODEL_AND_COMPRESSION), ("vidcom2 chat clip.mp4", "vidcom2 chat --stream camera")),
    "watch": (("output", *MODEL_AND_COMPRESSION), ("vidcom2 watch clip.mp4", "vidcom2 chat clip.watched")),
    "count": (
        ("revision", *MODEL_AND_COMPRESSION),
        ("vidcom2 count clip.mp4", "vidcom2 count clip.mp4 --num-frames 128"),
    ),
    "explain": (
        ("output", *MODEL_AND_COMPRESSION),
        ("vidcom2 explain clip.mp4", "vidcom2 explain clip.mp4 --compare evs"),
    ),
    "demo": (
        ("port", *MODEL_AND_COMPRESSION),
        ("vidcom2 demo clip.mp4", "vidcom2 demo --model llava-hf/llava-onevision-qwen2-0.5b-ov-hf"),
    ),
    "bench": (
        ("quick", "model_size", "method", "retention_ratio", "num_frames"),
        ("vidcom2 bench --quick", "vidcom2 bench clip.mp4 --model-size qwen2-vl-2b --method vidcom2,random"),
    ),
    "eval": (
        ("data", "model", "methods", "ratios", "output"),
        (
            "vidcom2 eval --data questions.jsonl --check",
            "vidcom2 eval --data questions.jsonl --methods vidcom2,coverage",
        ),
    ),
    "publish": (
        ("repo", "base", "retention_ratio", "compression_method", "dry_run"),
        ("vidcom2 publish --base FOLDER --repo org/name --dry-run", "vidcom2 verify org/name"),
    ),
}
for name, command in COMMANDS.items():
    first_paragraph = (command.__doc__ or "").split("\n\n")[0]  # click would cut it to 45 characters
    context = {"obj": HELP.get(name, ((), ()))}  # where `Command` finds it
    app.command(name, cls=Command, short_help=first_paragraph, context_settings=context)(takes_imports(command))


def main() -> None:
    """Run the `vidcom2` command."""
    if isinstance(sys.stdout, TextIOWrapper):  # its encoding may lack characters that names of files have
        sys.stdout.reconfigure(errors="backslashreplace")
    if "--json" in sys.argv:  # before Transformers is imported, whose warnings would precede the JSON in a terminal
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    app()
