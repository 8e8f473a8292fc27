"""VidCom²: video LLMs that keep only the distinctive video tokens. See README.md.

`__init__.pyi` lists what the package exports, for people, editors and type checkers alike. Each name is imported when
first used, so that `vidcom2.compress` needs only torch, and `vidcom2 --help` not even that.
"""

import importlib
import warnings
from collections.abc import Collection
from os import PathLike
from pathlib import Path
from typing import Any

import lazy_loader

# Three rooms lie at the top of a checkout, and links lead there. Git on Windows makes no links, so the top is added.
if not (Path(__file__).parent / "modeling").is_dir():
    __path__.append(str(Path(__file__).resolve().parents[2]))

_exported, _, _names = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module(f"{__name__}.own_version").own_version()
    if name in _absent:
        raise ImportError(_absent[name])  # `from vidcom2 import name` would hide the reason of an AttributeError
    try:
        return _exported(name)
    except AttributeError as error:
        hint = importlib.import_module(f"{__name__}.errors").did_you_mean(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}") from error
    except ImportError as error:
        if _problem is not None:
            raise ImportError(_problem) from error
        raise


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _write_code(saved: object, folder: str | PathLike[str]) -> None:
    importlib.import_module(f"{__name__}.shipping.shipped_code").write_code(saved, folder)


def _check_repo(saved: object, repo: str, token: object, revision: str | None) -> Collection[str]:
    return importlib.import_module(f"{__name__}.shipping.shipped_code").check_repo(saved, repo, token, revision)


# These modules are cheap to import: they import only the standard library.
importlib.import_module(f"{__name__}.families.modules")  # so that the modules of families without files can be imported
importlib.import_module(f"{__name__}.modeling.registered_methods")  # so that the names of all methods are known
_problem = importlib.import_module(f"{__name__}.errors").transformers_problem()
if _problem is not None:
    warnings.warn(_problem, stacklevel=2)
_absent = importlib.import_module(f"{__name__}.families.table").absent_classes() if _problem is None else {}
__all__ = [name for name in _names if name not in _absent]
_saved_with_code = importlib.import_module(f"{__name__}.configuration.saved_with_code").SavedWithCode
_saved_with_code.write_code, _saved_with_code.check_repo = staticmethod(_write_code), staticmethod(_check_repo)
