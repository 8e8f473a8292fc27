"""What `--check` does: it looks at every row of a file, and at the videos that the rows name, without a model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.markup import escape

from ..answering.questions import KNOWN_KEYS, Question
from ..answering.requests import NAMES, VideoRequest
from ..checks import is_watched, local_path, path_of_watched
from ..errors import ALIKE, OptionError, did_you_mean, one_line, sentence
from .console import SOME_ERRORS, out, print_line, progress_bar

QUESTION_KEYS = KNOWN_KEYS
REQUEST_KEYS = ("id", "video", "prompt", "question", "choices", "fps", "times", *NAMES)


@dataclass(frozen=True)
class Row:
    """A row that is checked.

    Attributes:
        name: what a report calls it.
        videos: the name of its video, or the names of its pictures.
        problem: why it cannot be asked; None if nothing is known against it.
        given: its keys and values, as in the file.
    """

    name: str
    videos: Sequence[str]
    problem: str | None
    given: Mapping[str, Any]


def rows_of_requests(requests: Iterable[VideoRequest]) -> list[Row]:
    return [
        Row(
            f"request {each.id}",
            each.video if isinstance(each.video, list) else [str(each.video)],
            each.problem,
            each.given,
        )
        for each in requests
    ]


def rows_of_questions(lines: Iterable[tuple[int, Question | str]]) -> list[Row]:
    return [
        Row(f"line {number}", [], sentence(each), {})
        if isinstance(each, str)
        else Row(f"line {number}", [each.video], None, each.given)
        for number, each in lines
    ]


def check_rows(rows: Sequence[Row], keys: Sequence[str], what: str) -> None:
    """Print what is wrong with each row, keys that look misspelt, and how many rows can be asked.

    Args:
        keys: those that the command knows. Others are the user's own.
        what: the rows are called, such as "requests".

    Raises:
        typer.Exit: with code 3 if a row cannot be asked.
    """
    videos = _problems_of_videos({video for row in rows if row.problem is None for video in row.videos})
    wrong = 0
    for row in rows:
        problem = row.problem or next((videos[video] for video in row.videos if video in videos), None)
        if problem is not None:
            wrong += 1
            print_line(f"[red]{escape(row.name)}:[/] {escape(problem)}")
            continue
        for key in row.given.keys() - set(keys):
            hint = did_you_mean(key, keys, ALIKE)
            if hint:
                print_line(f"[yellow]{escape(row.name)}:[/] the key `{escape(key)}` has no meaning here.{escape(hint)}")
    urls = len({video for row in rows for video in row.videos if local_path(video) is None})
    not_fetched = f" Videos at {urls:,} URLs were not fetched." if urls else ""
    out.print(f"Checked: {len(rows) - wrong:,} of {len(rows):,} {what} can be asked.{not_fetched}", highlight=False)
    if wrong:
        raise typer.Exit(SOME_ERRORS)


def _problems_of_videos(videos: Iterable[str]) -> dict[str, str]:
    """Open each video once. Returns why it cannot be read, of those that cannot."""
    from ..video.reading import VideoError, check_video

    problems = {}
    names = sorted(videos)
    with progress_bar() as progress:
        for video in progress.track(names, description="Opening videos"):
            try:
                if is_watched(video):
                    from ..answering.watched_file import read_header

                    read_header(path_of_watched(video))
                else:
                    check_video(video)
            except (VideoError, OptionError) as error:
                problems[video] = one_line(error)
    return problems
