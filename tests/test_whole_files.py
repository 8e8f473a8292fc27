"""Files that this project writes appear whole, and never replace files that it did not write."""

import multiprocessing
from pathlib import Path

import pytest

from vidcom2.records import whole_files
from vidcom2.records.whole_files import TakenError, growing_file, growing_folder, write_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_many_times(path: Path, content: str) -> None:
    for _ in range(50):
        write_whole(path, content)


def test_processes_that_write_one_file_at_once_leave_it_whole(tmp_path: Path) -> None:
    contents = ["a" * 100_000, "b" * 90_000]
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=write_many_times, args=(tmp_path / "x.json", content)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert (tmp_path / "x.json").read_text() in contents and names(tmp_path) == ["x.json"]


def test_an_error_leaves_the_file_unchanged(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("before")
    (tmp_path / "x.json.part").write_text("a download of the user's")
    with pytest.raises(OSError, match="full"), growing_file(tmp_path / "x.json") as part:
        part.write_text("half of")
        raise OSError("full")
    assert (tmp_path / "x.json").read_text() == "before" and names(tmp_path) == ["x.json", "x.json.part"]


def test_a_link_stays_a_link_and_a_private_file_stays_private(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link.json").symlink_to("there/x.json")
    write_whole(tmp_path / "link.json", "first")
    (tmp_path / "there" / "x.json").chmod(0o600)
    write_whole(tmp_path / "link.json", "second")
    assert (tmp_path / "link.json").is_symlink() and names(tmp_path) == ["link.json", "there"]
    file = tmp_path / "there" / "x.json"
    assert file.read_text() == "second" and file.stat().st_mode & 0o777 == 0o600
    assert names(file.parent) == ["x.json"]


def test_only_one_of_two_processes_makes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        whole_files, "_remove_leftovers", lambda target: None
    )  # as if both had looked before either began
    refused = pytest.raises(TakenError, match="was made by another process in the meantime")
    with refused, growing_folder(tmp_path / "x") as first:
        (first / "content").write_text("the first's")
        with growing_folder(tmp_path / "x") as second:
            (second / "content").write_text("the second's")
    assert names(tmp_path) == ["x"] and (tmp_path / "x" / "content").read_text() == "the second's"
    assert names(tmp_path / "x") == ["content"]
