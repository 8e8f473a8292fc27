"""The record of a run, which notes beside the answers what they depend on, so that only the same run continues them,
and a lock that keeps other runs out meanwhile.

Nothing here imports PyTorch.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import OptionError, brief, written_to
from ..own_version import own_version
from .fingerprints import video_changed, video_stamp, without_content
from .jsonl import answered_rows, as_line
from .whole_files import locked, write_whole

DIFFERENCES_SHOWN = 3
IMPORTED_FILE = "imported."  # how the flat name of a file begins that `--import` imported


def versions_of_answers() -> dict[str, str]:
    """Return the versions of the packages that answers depend on."""
    return {"vidcom2": own_version()} | {name: version(name) for name in ("torch", "transformers")}


class RequestStamp(NamedTuple):
    """Identifies the request that was answered.

    Attributes:
        given: a digest of the request as it was given.
        video_file: the `video_stamp` of its file; of an answer, with a digest of the content.
        video: the path of the file, or the list of those of its pictures; None for an answer.
    """

    given: str
    video_file: str | None
    video: Any = None


def stamp_of(given: Any, video: object) -> RequestStamp:
    """Return the stamp of a request as it was given, about this video."""
    file = video_stamp(video)
    return RequestStamp(request_digest(given), file, None if file is None else video)


def request_digest(given: Any) -> str:
    return hashlib.blake2b(json.dumps(given, sort_keys=True).encode(), digest_size=16).hexdigest()


def stamps_in(rows: Iterable[Mapping[str, Any]]) -> dict[str, RequestStamp]:
    """Return by id what the answers in these rows are to."""
    return {row["id"]: RequestStamp(request_digest(row["given"]), row.get("video_file")) for row in rows}


class RunOutput:
    """What holds the answers of a run, with the record of that run. Subclasses say where both are.

    Attributes:
        name: its name, for errors.
        grows: names of arguments that are dicts whose entries each stand for themselves: a later run may have others,
            but no entry may change.
    """

    name: str
    grows: tuple[str, ...] = ()

    def check(self, arguments: Mapping[str, Any]) -> list[str]:
        """Check that a run with these arguments may start or continue here.

        Args:
            arguments: all that the answers depend on, in values that JSON can represent.

        Returns:
            The commits of the code that has written answers here; none if there is nothing to continue.

        Raises:
            OptionError: if another run's answers are here, or what no run wrote.
        """
        return self._compared(arguments)[1]

    def claim(self, arguments: Mapping[str, Any], commit: str, command: str | None = None) -> list[str]:
        """Do what `check` does, and note that the run starts or continues here, with the code of this commit and by
        this command. Returns the commits of the code that has written here, this one included."""
        before, commits, commands = self._compared(arguments)
        grown = {name: {**(before.get(name) or {}), **arguments[name]} for name in self.grows if name in arguments}
        commits = list(dict.fromkeys([*commits, commit]))
        record = {"arguments": {**arguments, **grown}, "commits": commits}
        if command is not None:
            record["commands"] = list(dict.fromkeys([*commands, command]))
        self._write_record(json.dumps(record, indent=2) + "\n")
        return commits

    def _compared(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
        """Return the arguments, the commits and the commands of the run that wrote here. Raises what `check` raises."""
        text = self._record()
        if text is None:
            return {}, [], []
        try:
            content = json.loads(text)
            before, commits = dict(content["arguments"]), list(content["commits"])
            commands = list(content.get("commands", ()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise OptionError(
                f"the record of {self.name!r} is not what vidcom2 wrote. Name another --output."
            ) from error
        before = {**before, **{name: self._of_answers(name, before.get(name) or {}) for name in self.grows}}
        self._check_same(before, arguments)
        return before, commits, commands

    def _of_answers(self, name: str, entries: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the entries of an argument that answers here are of."""
        raise NotImplementedError

    def check_answers(
        self, answered: Mapping[str, RequestStamp], asked: Iterable[tuple[str, RequestStamp]], what: str = "request"
    ) -> list[str]:
        """Return the ids of the answers here to what is not asked now. `answered` is what this output returns.

        Raises:
            OptionError: on an id that is asked twice, and on an answer to something else than what is asked.
        """
        seen: set[str] = set()
        for name, now in asked:
            if name in seen:
                raise OptionError(f"two {what}s have the id {name!r}. Give each its own.")
            seen.add(name)
            before = answered.get(name, now)
            if before.given != now.given:
                raise OptionError(
                    f"{self.name!r} has the answer to another {what} of id {name!r}. More may be added at the end. For "
                    "others name another --output."
                )
            if video_changed(before.video_file, now.video_file, now.video):
                raise OptionError(
                    f"{self.name!r} has the answer about another video of {what} {name!r}: its file was "
                    f"{without_content(str(before.video_file))}, and is {now.video_file}. Name another --output."
                )
        return [name for name in answered if name not in seen]

    def _check_same(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for name in self.grows:
            entries, others = before.get(name) or {}, now.get(name) or {}
            before = {**before, name: {key: value for key, value in entries.items() if key in others}}
            now = {**now, name: {key: value for key, value in others.items() if key in entries}}
        before, now = _flat(before), _flat(now)
        differing = [name for name in dict.fromkeys((*now, *before)) if before.get(name) != now.get(name)]
        if differing:
            shown = [_difference(name, before.get(name), now.get(name)) for name in differing]
            more = f", and {len(shown) - DIFFERENCES_SHOWN} more" if len(shown) > DIFFERENCES_SHOWN else ""
            raise OptionError(
                f"{self.name!r} holds the answers of another run: {', '.join(shown[:DIFFERENCES_SHOWN])}{more}. Name "
                "another --output, or continue with the same model and arguments."
            )

    def locked(self) -> AbstractContextManager[None]:
        """Keep other runs from writing here during the block. Raises an OptionError if one is writing now."""
        raise NotImplementedError

    def _record(self) -> str | None:
        """Return the text of the record; None if no run was here. Raises an OptionError on what no run wrote."""
        raise NotImplementedError

    def _write_record(self, text: str) -> None:
        raise NotImplementedError


class AnswerFile(RunOutput):
    """A JSONL file with a row for each answer. `<its name>.run.json` beside it is the record of its run.

    Args:
        path: where the file is, or will be.
        grows: as in `RunOutput`.
    """

    def __init__(self, path: Path, grows: tuple[str, ...] = ()) -> None:
        self.grows = grows
        self.path, self.name = Path(os.path.realpath(path)), str(path)  # lock and record are beside the file of a link
        self.record = self.path.with_suffix(".run.json")

    def locked(self) -> AbstractContextManager[None]:
        return locked_output(self.path)

    def answered(self) -> dict[str, RequestStamp]:
        """Return by id what was answered. Raises an OptionError on lines that no run wrote."""
        return stamps_in(answered_rows(self.path).values())

    def rows_to_continue(self) -> dict[str, dict[str, Any]]:
        """Return the rows of answers by id, and remove the others from the file, whose requests will be asked again:
        rows of errors, and a half-written last line that an interruption left. Raises what `answered` raises."""
        rows = answered_rows(self.path)
        if self.path.is_file():
            with written_to(self.path):
                write_whole(self.path, "".join(map(as_line, rows.values())))
        return rows

    def drop_replaced(self) -> None:
        """Remove rows of answers whose question has a later one, with further answers."""
        with written_to(self.path):
            lines = self.path.read_text(encoding="utf-8").split("\n")[:-1]
            rows = [json.loads(line) for line in lines]
            last = {row["id"]: number for number, row in enumerate(rows) if "error" not in row}
            kept = [row for number, row in enumerate(rows) if "error" in row or last[row["id"]] == number]
            write_whole(self.path, "".join(map(as_line, kept)))

    def _of_answers(self, name: str, entries: Mapping[str, Any]) -> Mapping[str, Any]:
        found = {label for row in answered_rows(self.path).values() for label in row["answers"]}
        return {label: entry for label, entry in entries.items() if label in found}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows, and force them to disk. An interruption can only cut the last line short."""
        with written_to(self.path), self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write("".join(map(as_line, rows)))
            file.flush()
            os.fsync(file.fileno())

    def _record(self) -> str | None:
        if self.record.is_file():
            if not self.path.exists() or not self.path.stat().st_size:  # a run that answered nothing does not count
                return None
            return self.record.read_text(encoding="utf-8", errors="replace")
        if self.path.exists():
            raise OptionError(
                f"{self.name!r} exists, but is no output of vidcom2 (no {self.record.name} beside it). Name another "
                "--output."
            )
        return None

    def _write_record(self, text: str) -> None:
        with written_to(self.record):
            write_whole(self.record, text)


@contextmanager
def locked_output(output: Path) -> Iterator[None]:
    """Keep other runs from writing a file of answers during the block. An empty file `<name>.lock` stays beside it.

    Raises:
        OptionError: if another run is writing the file, or if a file of the lock's name exists that is no lock.
    """
    path = output.with_name(f"{output.name}.lock")
    with ExitStack() as stack:
        with written_to(output):
            if path.exists() and path.stat().st_size:  # some versions of FileLock would empty it
                raise OptionError(f"{str(path)!r} exists, but is no lock of vidcom2. Name another --output.")
            writing = f"another run is writing {str(output)!r}. Wait until it ends, or name another --output."
            stack.enter_context(locked(path, writing, stays=True))
        yield


def _difference(name: str, before: Any, now: Any) -> str:
    """Return how an argument differs from that of the run before, in words. What code is known by says nothing to a
    reader."""
    label, _, file = name.removeprefix("candidates.").partition(".files.")
    if file:
        if None in (before, now):
            return f"{label!r} {'is' if before is None else 'was'} in {file!r}"
        return f"{file!r}, which {label!r} is in, has changed since these answers"
    if None not in (before, now):
        if name.startswith(IMPORTED_FILE):
            return f"{name.removeprefix(IMPORTED_FILE)!r} has changed since these answers"
        if name.startswith("candidates.") and name.endswith(".code"):
            return f"the code of {label.removesuffix('.code')!r} has changed since these answers"
    return f"`{name}` was {brief(before)} and is {brief(now)}"


def _flat(arguments: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts: each value is keyed by its dotted name."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found
