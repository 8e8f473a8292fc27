"""Where `vidcom2 explain` may write its drawing, checked before a model is loaded."""

from importlib.util import find_spec
from pathlib import Path

from ..errors import OptionError, written_to

DRAWN_BY = "vidcom2 explain"  # what its drawings say of themselves


def check_drawing(output: Path) -> None:
    """That `vidcom2 explain` can write its drawing there."""
    if output.suffix not in (".png", ".html"):
        raise OptionError(f"`--output` is {str(output)!r}, but must end in .png or .html.")
    if not output.parent.is_dir():
        raise OptionError(f"`--output` is {str(output)!r}, but there is no folder {str(output.parent)!r}.")
    if output.is_dir():
        raise OptionError(f"`--output` is {str(output)!r}, but that is a folder. Name a file.")
    if output.exists() and not _is_drawing(output):
        raise OptionError(
            f"`--output` is {str(output)!r}, but that file is no drawing of `vidcom2 explain`, and is not overwritten. "
            "Name another, or remove it."
        )
    if find_spec("matplotlib") is None:
        raise OptionError("the drawing needs matplotlib, which is not installed: pip install matplotlib.")


def _is_drawing(path: Path) -> bool:
    """Whether `vidcom2 explain` made the file, by what it writes near the beginning of each."""
    with written_to(path), path.open("rb") as file:
        return DRAWN_BY.encode() in file.read(4096)
