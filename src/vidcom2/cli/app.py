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
    rich_markup_mode=None,  # click's own help fits into any terminal
    pretty_exceptions_enable=False,
    help="Video LLMs that keep only the distinctive video tokens (VidCom²).",
)


def _print_versions(wanted: bool) -> None:
    if wanted:
        print_line(versions())
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
# What the help of a command shows without `--help-all`: its usual options, and examples.
SELECTION = ("model", "num_frames", "retention_ratio", "compression_method")
HELP = {
    "run": (
        ("prompt", *SELECTION),
        ('vidcom2 run clip.mp4 --prompt "What happens?"', "vidcom2 run --videos FOLDER -o answers.jsonl"),
    ),
    "chat": (("stream", *SELECTION), ("vidcom2 chat clip.mp4", "vidcom2 chat --stream camera")),
    "watch": (("output", *SELECTION), ("vidcom2 watch clip.mp4", "vidcom2 chat clip.watched")),
    "count": (("revision", *SELECTION), ("vidcom2 count clip.mp4", "vidcom2 count clip.mp4 --num-frames 128")),
    "explain": (("output", *SELECTION), ("vidcom2 explain clip.mp4", "vidcom2 explain clip.mp4 --compare evs")),
    "demo": (
        ("port", *SELECTION),
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
    whole_sentence = (command.__doc__ or "").split("\n\n")[0]  # which click would cut
    app.command(name, cls=Command, short_help=whole_sentence, context_settings={"obj": HELP.get(name, ((), ()))})(
        takes_imports(command)
    )


def main() -> None:
    """Run the `vidcom2` command."""
    if isinstance(sys.stdout, TextIOWrapper):  # names of files may have characters that it cannot write
        sys.stdout.reconfigure(errors="backslashreplace")
    if "--json" in sys.argv:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    app()


if __name__ == "__main__":
    main()
