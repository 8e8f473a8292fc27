"""The check of where a figure may be written. The command makes it before a model is loaded."""

from importlib.util import find_spec
from pathlib import Path

from ..errors import OptionError, written_to

DRAWN_BY = "vidcom2 explain"  # this mark is in each of its drawings


def check_drawing(output: Path, ways: int = 1, named: str = "--output") -> None:
    """Check that a figure can be written to `output`; raise an OptionError if not.

    Args:
        ways: how many ways to compress the video the figure shows.
        named: what the caller calls `output`.
    """
    given = f"`{named}` is {str(output)!r}"
    if output.suffix not in (".png", ".html"):
        raise OptionError(f"{given}, but must end in .png or .html.")
    if not output.parent.is_dir():
        raise OptionError(f"{given}, but there is no folder {str(output.parent)!r}.")
    if output.is_dir():
        raise OptionError(f"{given}, but that is a folder. Name a file.")
    if ways > 1 and output.suffix != ".html":
        raise OptionError(f"{given}, but only a page compares several ways. Name a file that ends in .html.")
    if output.exists() and not _is_drawing(output):
        raise OptionError(
            f"{given}, but that file is not a drawing of `vidcom2 explain`, and is not overwritten. Name another "
            "file, or remove it."
        )
    if find_spec("matplotlib") is None:
        raise OptionError("the drawing needs matplotlib, which is not installed. Run: pip install matplotlib")


def _is_drawing(path: Path) -> bool:
    """Return whether `vidcom2 explain` made the file, judged by the mark that is near the beginning of each."""
    with written_to(path), path.open("rb") as file:
        return DRAWN_BY.encode() in file.read(4096)
