"""The files of `modeling/` and `configuration/` as a Hub repo holds them.

A Hub repo is one flat folder, so a line `from ..configuration.x import y` of the package is `from .x import y` there.
Nothing else differs. File names are therefore unique over all rooms.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from ..families.sources import written_modules, written_source
from ..repo_shape import import_closure

FROM_ANY_ROOM = re.compile(r"^(\s*)from \.+(?:\w+\.)*(?=\w+ import)", flags=re.MULTILINE)


ROOMS = ("modeling", "configuration")  # the folders that hold the shipped modules


@cache
def shipped_paths() -> dict[str, Path]:
    """Return module -> file for all of `modeling` and `configuration`, in the checkout or the installed package."""
    tops = (import_module(f"vidcom2.{name}").__path__[0] for name in ROOMS)
    files = [file for top in tops for file in sorted(Path(top).rglob("*.py")) if file.name != "__init__.py"]
    return {file.stem: file for file in files}


def source_of(module: str) -> str:
    """Return the flat source of a shipped module, from the checkout or the installed package."""
    if module in written_modules():
        source = written_source(module)
    elif module in shipped_paths():
        source = shipped_paths()[module].read_text(encoding="utf-8")
    else:
        raise FileNotFoundError(f"there is no shipped module {module!r}: the installation of vidcom2 is incomplete.")
    return FROM_ANY_ROOM.sub(r"\1from .", source)


def shipped_files(*modules: str, others: Mapping[str, str] = MappingProxyType({})) -> dict[str, bytes]:
    """Return file name -> content for these modules and all that they import, in the order of `import_closure`.

    Args:
        others: module -> source, of modules that are not those of the checkout.
    """

    def read(module: str) -> str:
        return others[module] if module in others else source_of(module)

    return {f"{module}.py": source.encode() for module, source in import_closure(modules, read).items()}
