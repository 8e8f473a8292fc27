"""Which version of this package runs, also from a copy of the checkout that is on Python's path and not installed."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"  # of a checkout; a wheel has none


def own_version() -> str:
    """Return the version of this package, from its metadata or, where it is not installed, from its project file.

    Raises:
        PackageNotFoundError: if there is neither.
    """
    try:
        return version("vidcom2")
    except PackageNotFoundError:
        text = PROJECT.read_text("utf-8") if PROJECT.exists() else ""
        found = re.search('^version = "(.+)"$', text, re.MULTILINE)
        if found is None or 'name = "vidcom2"' not in text.splitlines():  # It may be that of a project around this one.
            raise
        return found[1]
