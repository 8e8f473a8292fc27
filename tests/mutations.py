"""Break the code in one place after another, and say which breakages the default tests notice.

    python tests/mutations.py                      # all mutations, one after another; takes hours on one core
    python tests/mutations.py cache_is_not_reset   # the mutations of these names
    python tests/mutations.py --list

tests/mutations.diff holds them, file by file: a name with the test files that should notice, what is then no longer
true, the text that is replaced, and its replacement. Each mutation is made in a copy of the tree in a temporary folder.
Its test files run there until the first failure. The exit code is 0 if all mutations were caught. A mutation whose text
is no longer in its file is neither caught nor missed: find out what replaced that text. `test_mutations.py` fails then.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALL_PASSED = 0  # exit code of pytest
SECONDS_OF_A_RUN = 3600


@dataclass(frozen=True)
class Mutation:
    """Replaces `old` by `new` in `file`, so that `breaks` is no longer true. The files `tests` should notice."""

    name: str
    file: str
    tests: list[str]
    breaks: str
    old: str
    new: str

    def count(self, tree: Path) -> int:
        """Return how often the text that it replaces stands in its file. It can be made if that is once."""
        file = tree / self.file
        return file.read_text(encoding="utf-8").count(self.old) if file.is_file() else 0


def read_mutations() -> list[Mutation]:
    """Read mutations.diff. A line without a mark says what a mutation breaks."""
    found = []
    for part in re.split("^--- ", (ROOT / "tests/mutations.diff").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        file, *mutations = part.split("\n@@ ")
        for mutation in mutations:
            heading, *lines = mutation.rstrip("\n").split("\n")
            name, tests = heading.split(": ")
            breaks, old, new = ("\n".join(line[1:] for line in lines if line[0] == mark) for mark in " -+")
            found.append(Mutation(name, file, tests.split(), breaks, old, new))
    return found


MUTATIONS = read_mutations()


def copy_of_the_tree(folder: Path) -> Path:
    """Copy the files that git tracks or would track. Links stay links."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def outcome(mutation: Mutation, marks: str, workers: str) -> tuple[str, str]:
    """Run one mutation. Return a word for how it ended, and the test that noticed or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as temporary:
        tree = copy_of_the_tree(Path(temporary).resolve())
        file = tree / mutation.file
        if (count := mutation.count(tree)) != 1:
            return "NOT FOUND", f"{count} times in {mutation.file}: {mutation.old!r}"
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)])}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        where = [sys.executable, "-c", "import vidcom2; print(vidcom2.__file__)"]
        imported = subprocess.run(where, cwd=tree, env=environment, capture_output=True, text=True)
        if not imported.stdout.startswith(str(tree)):
            return "BROKEN", f"Python does not import the copy: {imported.stdout or imported.stderr[-300:]}"
        tests = [f"tests/test_{name}.py" for name in mutation.tests]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", marks, "--tb=no", "-p", "no:cacheprovider", "-n"]
        run = partial(subprocess.run, cwd=tree, env=environment, capture_output=True, text=True)
        try:
            ran = run([*command, workers, *tests], timeout=SECONDS_OF_A_RUN)
        except subprocess.TimeoutExpired:
            return "caught", f"the tests did not end within {SECONDS_OF_A_RUN} s"
        if ran.returncode == ALL_PASSED:
            return "MISSED", mutation.breaks
        noticed = [line.removeprefix("FAILED ") for line in ran.stdout.splitlines() if line.startswith("FAILED ")]
        if not noticed:
            return "BROKEN", (ran.stdout + ran.stderr)[-500:]
        test = noticed[0].split(" - ")[0]
        file.write_text(text, encoding="utf-8")
        if run([*command, "0", test]).returncode != ALL_PASSED:
            return "BROKEN", f"{test} does not pass without the mutation either"
        return "caught", test


def main() -> int:
    by_name = {mutation.name: mutation for mutation in MUTATIONS}
    assert len(by_name) == len(MUTATIONS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutations to run; all if none is named")
    parser.add_argument("--list", action="store_true", help="list the mutations, and whether their text is found")
    parser.add_argument("-m", default="not slow", help="which tests to run, as pytest's -m")
    parser.add_argument("-n", default="0", help="number of workers, as pytest-xdist's -n")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - by_name.keys():
        parser.error(f"{', '.join(sorted(unknown))}: no such mutation. --list names them.")
    mutations = [by_name[name] for name in arguments.names] or MUTATIONS
    if arguments.list:
        for mutation in mutations:
            count = mutation.count(ROOT)
            print(f"{mutation.name:50} {mutation.file} {'' if count == 1 else f'NOT FOUND ({count} times)'}")
        return 0
    counts: dict[str, int] = {}
    for mutation in mutations:
        start = time.monotonic()
        what, detail = outcome(mutation, arguments.m, arguments.n)
        counts[what] = counts.get(what, 0) + 1
        print(f"{what:9} {mutation.name:50} {time.monotonic() - start:5.0f} s  {detail}", flush=True)
    print(", ".join(f"{number} {what.lower()}" for what, number in sorted(counts.items())))
    return 0 if counts.keys() == {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main())
