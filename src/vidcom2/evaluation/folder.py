"""The output folder of `vidcom2 eval`, and the run that it belongs to. Nothing here imports PyTorch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import OptionError, written_to
from ..records.run_record import AnswerFile

ANSWERS, RESULTS, TABLE, PLOT = "answers.jsonl", "results.json", "results.md", "results.png"
LOCK = f"{ANSWERS}.lock"
# Arguments of an evaluation to which another run may add: what it compares, and the files that methods are in.
GROWS = ("candidates", "imported")


@contextmanager
def locked_folder(folder: Path, arguments: Mapping[str, Any]) -> Iterator[AnswerFile]:
    """Make the folder, and yield the file of its answers. Other runs are kept out during the block.

    Args:
        arguments: all that answers depend on, in values that JSON can represent.

    Raises:
        OptionError: if it holds another run's answers or other files, or if a run writes there.
    """
    file = AnswerFile(folder / ANSWERS, GROWS)
    others = [path for path in folder.iterdir() if path.name != LOCK] if folder.is_dir() else []
    if folder.is_file() or (others and not file.record.is_file()):
        raise OptionError(f"{str(folder)!r} exists, but is no run of `vidcom2 eval`. Name another --output.")
    file.check(arguments)
    with written_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with file.locked():
        yield file
