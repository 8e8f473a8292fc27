"""VidCom²: video LLMs that keep only the distinctive video tokens. See README.md.

What the package exports is in `__init__.pyi`, for people, editors and type checkers alike. It is imported on first use:
`vidcom2.compress` needs torch alone, and `vidcom2 --help` not even that.
"""

import importlib
import importlib.metadata
from os import PathLike
from pathlib import Path
from typing import Any

import lazy_loader

if not (Path(__file__).parent / "modeling").is_dir():
    raise ImportError(
        "this checkout of vidcom2 has no links to its folders `modeling`, `configuration` and `hub_upload`. On Windows "
        "clone it with `git clone -c core.symlinks=true`, or install it without `-e`."
    )

_exported, _names, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version(__name__)
    return _exported(name)


def __dir__() -> list[str]:
    return [*_names(), "__version__"]


def _write_code(saved: object, folder: str | PathLike[str]) -> None:
    importlib.import_module(f"{__name__}.shipped_code").write_code(saved, folder)


def _check_repo(saved: object, repo: str, token: object, revision: str | None) -> None:
    importlib.import_module(f"{__name__}.shipped_code").check_repo(saved, repo, token, revision)


# Cheap to import: the standard library alone.
_saved_with_code = importlib.import_module(f"{__name__}.configuration.saved_with_code").SavedWithCode
_saved_with_code.write_code, _saved_with_code.check_repo = staticmethod(_write_code), staticmethod(_check_repo)
