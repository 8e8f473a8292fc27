"""The classes of families whose modules are written from rows of `table.py`, each imported on first use.

Type checkers read `classes.pyi`, which `python .ci/stubs.py` writes from the same rows.
"""

from typing import Any

from .table import FAMILIES


def __getattr__(name: str) -> Any:
    for family in FAMILIES.values():
        config, model = family.class_names
        if name in (config, model):
            model_class = family.model_class  # Importing it also registers it with Transformers' Auto classes.
            return family.config_class if name == config else model_class
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
