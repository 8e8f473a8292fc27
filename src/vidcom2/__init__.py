"""VidCom²: video LLMs that keep only the distinctive video tokens. See README.md.

What the package exports is in `__init__.pyi`, for people, editors and type checkers alike. It is imported on first use:
`vidcom2.compress` needs torch alone, and `vidcom2 --help` not even that.
"""

import importlib
import importlib.metadata
import warnings
from os import PathLike
from pathlib import Path
from typing import Any

import lazy_loader

# In a checkout three rooms lie at its top, where links lead. Git on Windows makes no links: there they are looked for.
if not (Path(__file__).parent / "modeling").is_dir():
    __path__.append(str(Path(__file__).resolve().parents[2]))

_exported, _names, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version(__name__)
    try:
        return _exported(name)
    except ImportError as error:
        if _problem is not None:
            raise ImportError(_problem) from error
        raise


def __dir__() -> list[str]:
    return [*_names(), "__version__"]


def _write_code(saved: object, folder: str | PathLike[str]) -> None:
    importlib.import_module(f"{__name__}.shipping.shipped_code").write_code(saved, folder)


def _check_repo(saved: object, repo: str, token: object, revision: str | None) -> None:
    importlib.import_module(f"{__name__}.shipping.shipped_code").check_repo(saved, repo, token, revision)


# Cheap to import: the standard library alone.
_problem = importlib.import_module(f"{__name__}.errors").transformers_problem()
if _problem is not None:
    warnings.warn(_problem, stacklevel=2)
_saved_with_code = importlib.import_module(f"{__name__}.configuration.saved_with_code").SavedWithCode
_saved_with_code.write_code, _saved_with_code.check_repo = staticmethod(_write_code), staticmethod(_check_repo)
