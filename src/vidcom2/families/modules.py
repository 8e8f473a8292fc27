"""Imports the modules that `sources.py` writes as if their files lay in `modeling/` and `configuration/`."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

from .sources import written_modules, written_source

PACKAGE = __name__.rpartition(".families.")[0]


class WrittenModuleLoader(SourceLoader):
    """Runs a module's source. `inspect` and tracebacks show this source, too."""

    def get_filename(self, fullname: str) -> str:
        return str(Path(__file__).parents[1].joinpath(*fullname.split(".")[1:]).with_suffix(".py"))

    def get_data(self, path: str) -> bytes:
        return written_source(Path(path).stem).encode()


class WrittenModuleFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        room, _, module = fullname.removeprefix(f"{PACKAGE}.").rpartition(".")
        if "_vidcom2_" not in module or written_modules().get(module) != room:
            return None
        return spec_from_loader(fullname, WrittenModuleLoader())


sys.meta_path.append(WrittenModuleFinder())
