"""What `--check` does: it looks at every row of a file, and at the videos that the rows name, without a model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.markup import escape

from ..bulk.requests import NAMES, VideoRequest
from ..checks import compressed_already, is_watched, local_path, path_of_watched
from ..configuration.compression_settings import SETTING_NAMES, CompressionSettings, left_out
from ..errors import ALIKE, OptionError, did_you_mean, reason_of, sentence
from ..judging.questions import KNOWN_KEYS, Question
from .console import exit_with, out, print_line, progress_bar

QUESTION_KEYS = KNOWN_KEYS
REQUEST_KEYS = ("id", "video", "prompt", "question", "choices", "fps", "times", *NAMES)


class Row(NamedTuple):
    """A row that is checked: what a report calls it, its video or pictures, why it cannot be asked, its keys, and the
    settings that the command and the row itself ask for."""

    name: str
    videos: Sequence[str]
    problem: str | None
    given: Mapping[str, Any]
    settings: Sequence[Mapping[str, Any]] = ()


def rows_of_requests(requests: Iterable[VideoRequest], settings: Mapping[str, Any]) -> list[Row]:
    """Return the rows of requests.

    Args:
        settings: those of the command.
    """
    named = ((each, each.video if isinstance(each.video, list) else [str(each.video)]) for each in requests)
    return [
        Row(f"request {each.id}", videos, each.problem, each.given, (settings, each.settings)) for each, videos in named
    ]


def rows_of_questions(lines: Iterable[tuple[int, Question | str]]) -> list[Row]:
    return [
        Row(f"line {number}", [], sentence(each), {})
        if isinstance(each, str)
        else Row(
            f"line {number}",
            [each.video],
            compressed_already(each.video) if is_watched(each.video) else None,
            each.given,
        )
        for number, each in lines
    ]


def check_rows(rows: Sequence[Row], keys: Sequence[str], what: str) -> None:
    """Print what is wrong with each row, keys that look misspelt, and how many rows can be asked.

    Args:
        keys: those that the command knows. Others are the user's own.
        what: what the rows are called, such as "requests".

    Raises:
        typer.Exit: with code 3 if a row cannot be asked.
    """
    videos = sorted({video for row in rows if row.problem is None for video in row.videos})
    with progress_bar() as progress:
        problems = {video: _problem_of(video) for video in progress.track(videos, description="Opening videos")}
    wrong: list[str] = []
    for row in rows:
        problem = row.problem or next(filter(None, map(problems.get, row.videos)), None)
        problem = problem or _asks_otherwise(row) or _contradicts(row)
        if problem is not None:
            wrong.append(f"{row.name}: {problem}")
            print_line(f"[red]{escape(row.name)}:[/] {escape(problem)}")
            continue
        for key in row.given.keys() - set(keys):
            hint = did_you_mean(key, keys, ALIKE)
            if hint:
                print_line(f"[yellow]{escape(row.name)}:[/] the key `{escape(key)}` has no meaning here.{escape(hint)}")
    urls = len({video for row in rows for video in row.videos if local_path(video) is None})
    not_fetched = f" Videos at {urls:,} URLs were not fetched." if urls else ""
    right = len(rows) - len(wrong)
    out.print(f"Checked: {right:,} of {len(rows):,} {what} can be asked.{not_fetched}", highlight=False)
    exit_with(wrong)


def _asks_otherwise(row: Row) -> str | None:
    """Return why a row cannot ask about a video that was watched with other settings; None if it can."""
    if len(row.videos) != 1 or not is_watched(row.videos[0]):
        return None
    from ..asking.watched import check_kept
    from ..asking.watched_file import read_header

    try:
        kept = CompressionSettings(**read_header(path_of_watched(row.videos[0]))["settings"])
        for asked in row.settings:
            check_kept(kept, asked)
    except OptionError as error:
        return reason_of(error, reading=True)
    return None


def _contradicts(row: Row) -> str | None:
    """Return why the settings of the command and of a row do not go together; None if they do, or if only the model's
    config names the method that must read them."""
    settings: dict[str, Any] = {}
    for asked in row.settings:
        settings |= left_out(settings, asked) | {name: asked[name] for name in SETTING_NAMES if name in asked}
    if "compression_method" not in settings:
        return None
    try:
        CompressionSettings(**settings)
    except ValueError as error:
        return reason_of(error, reading=True)
    return None


def _problem_of(video: str) -> str | None:
    """Open a video and return why it cannot be read: None if it can, or if it is a URL."""
    from ..video.reading import check_video

    try:
        if is_watched(video):
            from ..asking.watched_file import read_header

            read_header(path_of_watched(video))
        else:
            check_video(video)
    except Exception as error:
        return reason_of(error, reading=True)
    return None
