"""What one more plain family costs: at most 25 lines in two files, from which all else follows."""

import ast
import difflib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vidcom2.families.table import FAMILIES, PROCESSOR_ROWS, Family, Tiny

ROOT = Path(__file__).parents[1]
TABLE, TESTED = "src/vidcom2/families/table.py", "tests/models.py"  # the only files that people write
PLAIN = [family for family in FAMILIES.values() if isinstance(family.tiny, Tiny)]
SAMPLE = FAMILIES["glmga"]  # Nothing beside its rows names it, so a tree without these is one that lacks the family.
MOST_LINES = 25
PAGES = ("docs/families.md", "docs/limits.md", "docs/serving.md")


def rows_of(name: str, processors: tuple[str, ...], root: Path = ROOT) -> Iterator[tuple[str, range]]:
    """Yield where the rows of a family stand: a file, and the lines of a row in it, counted from 0."""
    for path in (TABLE, TESTED):
        for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and name in [_text(each.value) for each in node.keywords[:1]]:
                yield path, range(node.lineno - 1, node.end_lineno or 0)
            for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
                if key is not None and _text(key) in processors and isinstance(value, ast.Call):
                    yield path, range(key.lineno - 1, value.end_lineno or 0)


def _text(node: ast.AST) -> object:
    return node.value if isinstance(node, ast.Constant) else None


@pytest.mark.parametrize("family", PLAIN, ids=lambda family: family.model_type)
def test_the_rows_of_a_plain_family_are_short(family: Family) -> None:
    found = list(rows_of(family.model_type, family.stock_processors))
    own = {name for name in family.stock_processors if name in PROCESSOR_ROWS}
    assert [path for path, _ in found] == [*[TABLE] * (1 + len(own)), TESTED]
    assert sum(len(lines) for _, lines in found) <= MOST_LINES


@pytest.mark.slow  # It writes all that follows from rows four times, and tests the family in a process of its own.
def test_two_rows_add_a_family_to_the_tree(tmp_path: Path) -> None:
    """A tree that lacks the sample becomes, by its rows and the command that writes what follows from rows, this very
    tree again; and there a test of all families runs over it."""
    left_out = shutil.ignore_patterns("__pycache__", ".*_cache", "results", "*.mp4")
    for name in ("src", "modeling", "configuration", "hub_upload", "docs", "tests", ".ci"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=left_out)
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(tmp_path / each) for each in ("src", "tests", "."))}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    rows: dict[str, list[str]] = {}
    for path, lines in rows_of(SAMPLE.model_type, (), tmp_path):
        text = (tmp_path / path).read_text(encoding="utf-8").splitlines(keepends=True)
        rows[path] = [*text]
        del text[lines.start : lines.stop]
        (tmp_path / path).write_text("".join(text), encoding="utf-8")
    assert rows.keys() == {TABLE, TESTED}
    run(".ci/stubs.py")
    run(".ci/pages.py", "--write")
    names = (SAMPLE.model_type, SAMPLE.name, SAMPLE.stock)
    for path in (path for path in tmp_path.rglob("*") if path.suffix in (".py", ".pyi", ".md") and path.is_file()):
        if path.name != Path(__file__).name:
            assert not [name for name in names if name in path.read_text(encoding="utf-8")], path

    added = 0
    for path, whole in rows.items():
        before = (tmp_path / path).read_text(encoding="utf-8").splitlines(keepends=True)
        added += sum(line.startswith("+ ") for line in difflib.ndiff(before, whole))
        (tmp_path / path).write_text("".join(whole), encoding="utf-8")
    assert added <= MOST_LINES
    run(".ci/stubs.py")
    run(".ci/pages.py", "--write")
    for path in ("src/vidcom2/__init__.pyi", "src/vidcom2/families/classes.pyi", "README.md", *PAGES):
        assert (tmp_path / path).read_bytes() == (ROOT / path).read_bytes(), path
    of_all = "tests/test_short_prompts.py"
    said = run(
        "-m", "pytest", "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", of_all, "-k", f"{SAMPLE.model_type}-greedy"
    )
    assert "100%" in said
