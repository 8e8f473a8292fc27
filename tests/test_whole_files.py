"""Files that this project writes appear whole, and never replace files that it did not write."""

import multiprocessing
from pathlib import Path

import pytest

from vidcom2.errors import OptionError
from vidcom2.records.whole_files import growing_file, growing_folder, write_whole


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


def test_only_one_of_two_processes_makes_a_folder(tmp_path: Path) -> None:
    with growing_folder(tmp_path / "x") as folder:
        with (
            pytest.raises(OptionError, match="is being made by another process"),
            growing_folder(tmp_path / "x") as second,
        ):
            (second / "content").write_text("the second's")
        (folder / "content").write_text("the first's")
    assert names(tmp_path) == ["x"] and (tmp_path / "x" / "content").read_text() == "the first's"


def test_a_folder_that_exists_stays_and_what_a_killed_process_left_beside_it_goes(tmp_path: Path) -> None:
    for name in ("x", ".x.vidcom2-incomplete"):
        (tmp_path / name).mkdir()
    (tmp_path / ".x.lock").touch()
    (tmp_path / "x" / "content").write_text("theirs")
    with pytest.raises(OptionError, match="exists already"), growing_folder(tmp_path / "x"):
        pass
    assert names(tmp_path) == ["x"] and (tmp_path / "x" / "content").read_text() == "theirs"


def test_the_next_process_removes_what_a_killed_one_left_and_nothing_else_of_that_name(tmp_path: Path) -> None:
    left = tmp_path / ".x.vidcom2-incomplete"
    left.mkdir()
    (left / "half").write_text("of it")
    refused = pytest.raises(OptionError, match=r"incomplete' exists, and no lock beside it says.*Move it away")
    with refused, growing_folder(tmp_path / "x"):
        pass
    assert names(left) == ["half"]
    (tmp_path / ".x.lock").touch()  # which a killed process leaves too
    with growing_folder(tmp_path / "x") as folder:
        (folder / "content").write_text("whole")
    assert names(tmp_path) == ["x"] and names(tmp_path / "x") == ["content"]
