"""Saying where measured figures come from. Result files hold this, and `vidcom2 publish --results` requires it."""

import dataclasses
import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..checks import local_path
from ..errors import option_name
from ..own_version import own_version

ROOT = Path(__file__).resolve().parents[3]  # top of a checkout; for an installed wheel, no git repository


def birth_certificate(model: str, command: str, **more: Any) -> dict[str, Any]:
    """Return the date, the versions of this machine's software, and the code's commit.

    Args:
        model: the name of the model that was measured.
        command: the command that measured it.
        **more: further entries, such as the device, from `comparison.environment`.
    """
    return {
        "model": model,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "vidcom2": own_version(),
        "vidcom2_commit": commit(),
        "vidcom2_dirty": is_dirty(),
        **more,
    }


def commit() -> str:
    """Return the commit of the checkout that this code is in. For an installed wheel, name its version."""
    return git("rev-parse", "HEAD") or f"of release {own_version()}"


def commit_of_run() -> str:
    """Return the commit of the code, as a run's record notes it."""
    return commit() + " with uncommitted changes" * is_dirty()


def is_dirty() -> bool:
    """Tell whether files that git tracks were changed since the commit."""
    return bool(git("status", "--porcelain", "--untracked-files=no"))


def cpu_name() -> str:
    """Return Linux's name of the processor. `platform.processor()` often gives only the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def git(*arguments: str) -> str | None:
    """Return the output of a git command in this checkout; None if there is no checkout or git fails."""
    if not (ROOT / ".git").exists():
        return None
    try:
        # Without this option `git status` writes to the index, and could collide with another git command.
        ran = subprocess.run(
            ["git", "--no-optional-locks", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:  # git is not installed
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None


def without_folder(name: str | Path) -> str:
    """Return what a file or a folder is called without the folder that it is in, which is nobody else's business. The
    name of anything else, such as a Hub id, is returned as it is."""
    path = local_path(str(name))
    return Path(path).resolve().name if path is not None and Path(path).exists() else str(name)


def command_line(
    options: Any,
    command: str,
    without: Sequence[str] = (),
    imports: Sequence[str] = (),
    commit: str | None = None,
    **shown: Any,
) -> str:
    """Return a command with the options that are not at their defaults, for its result file or its card. It can be run
    again in the folder that holds the files which it names.

    Args:
        options: the options of the command: a dataclass with `settings` and maybe a `placement`.
        without: fields that make no difference to the results.
        imports: the modules of `--import`, which `options` does not hold.
        commit: what `--revision` names, whatever was typed, since a branch moves: the commit of the Hub repo that the
            model was loaded from. None for a folder.
        **shown: what to write instead of the values of some fields.
    """
    without = ("settings", "placement", *without)
    others = {each.name: each.default for each in dataclasses.fields(options) if each.name not in without}
    given = {name: getattr(options, name) for name, default in others.items() if getattr(options, name) != default}
    given |= {name: value for name, value in shown.items() if name in given}
    placed = options.placement.given if hasattr(options, "placement") else {}
    placed |= {} if commit is None else {"revision": commit}
    words = ["vidcom2", *(word for each in imports for word in ("--import", each)), command]
    for name, value in {**given, **placed, **options.settings}.items():
        values = value if isinstance(value, list) else [value]
        typed = option_name(f"no-{name}" if value is False else name)
        words += [typed] if isinstance(value, bool) else [word for each in values for word in (typed, str(each))]
    return shlex.join(words)
