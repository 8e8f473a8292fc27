"""Where measured figures come from: what a result file says, and `vidcom2 publish --results` asks for."""

import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]  # of a checkout; of an installed wheel it is no git repository


def birth_certificate(model: str, command: str, **more: Any) -> dict[str, Any]:
    """The date, this machine's software, and the code's commit.

    Args:
        model: name of the model that was measured.
        command: that measured it.
        **more: such as the device, from `run.environment`.
    """
    return {
        "model": model,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "vidcom2": version("vidcom2"),
        "vidcom2_commit": commit(),
        "vidcom2_dirty": is_dirty(),
        **more,
    }


def commit() -> str:
    """Of the checkout that this code is in; of an installed wheel, its version."""
    return git("rev-parse", "HEAD") or f"of release {version('vidcom2')}"


def is_dirty() -> bool:
    """Whether files that git knows were changed since the commit."""
    return bool(git("status", "--porcelain", "--untracked-files=no"))


def cpu_name() -> str:
    """The name that Linux knows the processor by; `platform.processor()` is often only its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def git(*arguments: str) -> str | None:
    if not (ROOT / ".git").exists():
        return None
    try:
        # A look at the status would otherwise write to the index, and could meet another git there.
        ran = subprocess.run(
            ["git", "--no-optional-locks", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:  # there is no git
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None
