"""The check of where `vidcom2 explain` may write its drawing, made before a model is loaded."""

from importlib.util import find_spec
from pathlib import Path

from ..errors import OptionError, written_to

DRAWN_BY = "vidcom2 explain"  # this mark is in each of its drawings


def check_drawing(output: Path) -> None:
    """Check that `vidcom2 explain` can write its drawing to `output`; raise an OptionError if not."""
    if output.suffix not in (".png", ".html"):
        raise OptionError(f"`--output` is {str(output)!r}, but must end in .png or .html.")
    if not output.parent.is_dir():
        raise OptionError(f"`--output` is {str(output)!r}, but there is no folder {str(output.parent)!r}.")
    if output.is_dir():
        raise OptionError(f"`--output` is {str(output)!r}, but that is a folder. Name a file.")
    if output.exists() and not _is_drawing(output):
        raise OptionError(
            f"`--output` is {str(output)!r}, but that file is not a drawing of `vidcom2 explain`, and is not "
            "overwritten. Name another file, or remove it."
        )
    if find_spec("matplotlib") is None:
        raise OptionError("the drawing needs matplotlib, which is not installed. Run: pip install matplotlib")


def _is_drawing(path: Path) -> bool:
    """Return whether `vidcom2 explain` made the file, judged by the mark that is near the beginning of each."""
    with written_to(path), path.open("rb") as file:
        return DRAWN_BY.encode() in file.read(4096)
