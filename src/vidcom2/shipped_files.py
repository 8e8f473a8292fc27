"""Files of `modeling/` and `configuration/` as a Hub repo holds them.

A Hub repo is one flat folder: a line `from ..configuration.x import y` of the package is `from .x import y` there.
Nothing else differs.
"""

import re
from pathlib import Path

from .repo_shape import import_closure

ROOMS = ("modeling", "configuration")  # where shipped modules are; a module's name is in one of them
FROM_ANOTHER_ROOM = re.compile(rf"^(\s*)from \.\.(?:{'|'.join(ROOMS)})\.", flags=re.MULTILINE)


def source_of(module: str) -> str:
    """The flat source of a shipped module, from the checkout or the installed package."""
    for room in ROOMS:
        path = Path(__file__).parent / room / f"{module}.py"
        if path.is_file():
            return FROM_ANOTHER_ROOM.sub(r"\1from .", path.read_text(encoding="utf-8"))
    raise FileNotFoundError(f"there is no shipped module {module!r}: the installation of vidcom2 is incomplete.")


def shipped_files(*modules: str) -> dict[str, bytes]:
    """File name -> content, of these modules and all that they import, in alphabetical order."""
    return {f"{module}.py": source.encode() for module, source in import_closure(modules, source_of).items()}
