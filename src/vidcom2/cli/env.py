"""`vidcom2 env` prints what is installed, for bug reports."""

import json
import platform
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..errors import transformers_problem
from ..families.table import FAMILIES
from ..own_version import own_version
from .console import one_line_errors, out, print_line

SCHEMA = 1
REQUIRED = ("vidcom2", "torch", "torchvision", "transformers", "huggingface_hub", "safetensors", "av", "matplotlib")
# What each optional package is for.
OPTIONAL = {
    "accelerate": "--device-map",
    "flash-attn": "--attn-implementation flash_attention_2",
    "vllm": "serving, docs/serving.md",
    "lmms-eval": "the official benchmarks, docs/evaluation.md",
    "peft": "training adapters",
    "torchcodec": "decoding by Transformers' own video processors",
    "gradio": "the demo in a browser, docs/demo.md",
} | {package: family.name for family in FAMILIES.values() for package in family.packages}


def environment_report() -> dict[str, Any]:
    """Return what `vidcom2 env --json` prints. Packages that are missing are None."""
    return {
        "schema": SCHEMA,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "packages": {name: _version(name) for name in REQUIRED},
        "optional": {name: _version(name) for name in OPTIONAL},
        "device": _device(),
        "decoder": _decoder(),
        "problem": transformers_problem(),
    }


def env_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, and nothing else.")] = False,
) -> None:
    """Print versions, device and decoder, and which optional packages are missing. Put this into a bug report."""
    with one_line_errors():
        report = environment_report()
    if as_json:
        print(json.dumps(report, indent=2))
        return
    for name, value in {
        "Python": report["python"],
        "platform": report["platform"],
        **report["packages"],
        **{name: version for name, version in report["optional"].items() if version is not None},
        "device": report["device"],
        "decoder": report["decoder"],
    }.items():
        print_line(f"{name:16}{escape(value or 'missing')}")
    missing = [name for name, version in report["optional"].items() if version is None]
    if missing:
        out.print("\nOptional packages that are not installed, and what needs them:", highlight=False)
        for name in missing:
            print_line(f"{name:16}{OPTIONAL[name]}", style="dim")
    if report["problem"] is not None:
        print_line(f"\n[bold red]Problem:[/] {escape(report['problem'])}")


def _version(package: str) -> str | None:
    try:
        return own_version() if package == "vidcom2" else metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _device() -> str:
    """Return the device that `--device auto` stands for, or why that is unknown."""
    try:
        import torch

        from ..loading.devices import torch_device

        device = torch_device("auto")
        return f"cuda: {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)
    except Exception as error:  # a report of what is broken must not break
        return f"unknown: {type(error).__name__}: {error}"


def _decoder() -> str:
    try:
        import av

        return f"FFmpeg {av.ffmpeg_version_info}, by PyAV"
    except Exception as error:  # as above
        return f"unknown: {type(error).__name__}: {error}"
