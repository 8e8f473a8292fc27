"""Check that README and the docs say what the code and the result files say: `python .ci/pages.py`.

`python .ci/pages.py --write` writes the tables that follow from code alone, between `<!-- code: NAME -->` and
`<!-- end -->`. The tables of figures come from `benchmarks/bench_tables.py` and `benchmarks/needle/tables.py`.
"""

import ast
import itertools
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

import transformers
import yaml

from vidcom2.cli.app import COMMANDS
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS, SETTING_NAMES
from vidcom2.families.table import FAMILIES, PROCESSORS, Family
from vidcom2.modeling.encoding.vision_skip_repeated import GROUPED_TOWERS
from vidcom2.modeling.prompt.calls import TABLES
from vidcom2.shipping.shipped_code import code_of
from vidcom2.vllm_plugin.compat import REASONS

ROOT = Path(__file__).parents[1]
MADE_FOR_EACH_CLASS = {"forward", "get_video_features", "of_parent"}  # made by `__init_subclass__`
# The most files and lines of Python that a repo may hold, so that a careful person can read it before trusting it.
LIMITS = {"qwen2_vl": (20, 5393), "llava_onevision": (20, 5307), "vidcom2_llava_video": (20, 5621)}


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(name: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table after a heading of a page."""
    section = page(name).split(f"## {heading}\n")[1]
    lines = itertools.dropwhile(lambda line: not line.startswith("|"), section.splitlines())
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table][2:]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, *rows)).replace("\n", f"\n|{'---|' * len(heads)}\n", 1)


def _by_reason(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Join the names that have the same reason."""
    names: dict[str, list[str]] = {}
    for name, reason in pairs:
        names.setdefault(reason, []).append(name)
    return ((", ".join(joined), reason) for reason, joined in names.items())


def _skips(family: Family) -> bool:
    return getattr(family.config_class().vision_config, "model_type", None) in GROUPED_TOWERS


def made_from_code() -> dict[str, str]:
    """Return name -> table for all blocks that follow from code."""
    families = FAMILIES.values()
    skipping, others = ([each for each in families if _skips(each) == is_so] for is_so in (True, False))
    needs = [
        (since, *(", ".join(each.name for each in of if each.since == since) for of in (skipping, others)))
        for since in sorted({family.since for family in families})
    ]
    refused = ((family.name, REASONS[name]) for family in families if (name := family.class_names[1]) in REASONS)
    return {
        "refusals": _table(("asked for", "instead"), _by_reason((row.asked, row.instead) for row in sum(TABLES, ()))),
        "families": _table(("Transformers", "with `skip_repeated`", "without it"), needs),
        "frames": _table(
            ("families", "a scored frame is"),
            _by_reason((each.name, "; ".join(filter(None, (each.frame, each.what_stays)))) for each in families),
        ),
        "vllm": _table(("refused", "because"), _by_reason(refused)),
    }


def with_tables(text: str) -> str:
    """Return a page with the tables that follow from code."""
    made = made_from_code()
    block = re.compile(r"(<!-- code: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return block.sub(lambda found: f"{found[1]}{made[found[2]]}\n{found[3]}", text)


def check_tables_from_code() -> None:
    for name in ("docs/families.md", "docs/limits.md", "docs/serving.md"):
        text = page(name)
        assert "<!-- code: " in text and with_tables(text) == text, f"{name}: run python .ci/pages.py --write"


def check_families_methods_and_settings() -> None:
    of_name = {family.name: family for family in FAMILIES.values()}
    for name, family in of_name.items():  # the classes are called as README says; Transformers has no LLaVA-Video
        parent = f"{family.stock_model}ForConditionalGeneration"
        if name == "Nemotron 3 Omni":  # whose class is called otherwise
            parent = "NemotronH_Omni_Reasoning_V3"
        assert name == "LLaVA-Video" or hasattr(transformers, parent), parent
    methods = [f'`"{name}"`' for name in COMPRESSION_METHODS]
    listed = [row[0] for row in rows("docs/methods.md", "At a glance")]
    assert sorted(listed) == sorted([*methods, "yours"])
    assert [*re.findall(r"^## (`.+`)$", page("docs/methods.md"), flags=re.MULTILINE), "yours"] == listed
    assert not [
        name
        for name in COMPRESSION_METHODS
        if f"[`{name}`](modeling/methods/method_{name}.py)" not in page("README.md")
    ]
    settings = page("docs/settings.md").split("| field | default |")[1]
    assert not [name for name in SETTING_NAMES if f"`{name}`" not in settings]


def processor_class(name: str) -> type:
    module, _, of_module = name.partition(".")
    return getattr(import_module(f"vidcom2.modeling.families.{module}"), of_module)


def check_hooks() -> None:
    text = page("docs/hooks.md")
    shown = {name for names in re.findall(r"members: \[(.+)\]", text) for name in names.split(", ")}
    shown |= set(re.findall(r"`(\w+)`", text.split("\n## ")[0])) - {"forward", "get_video_features"}

    def said_by(cls: type) -> set[str]:
        names = {*vars(cls), *vars(cls).get("__annotations__", {})}
        return {name for name in names if not name.startswith("_")} - MADE_FOR_EACH_CLASS

    overridden, of_mixins = set(), set()
    classes = [family.model_class for family in FAMILIES.values()]
    processors = [processor_class(name) for name in PROCESSORS.values()]
    for whole in (*classes, *(each.inner_class for each in classes), *processors):
        above: set[str] = set()
        for cls in reversed([cls for cls in whole.__mro__ if cls.__module__.startswith("vidcom2.modeling.")]):
            overridden |= said_by(cls) & above
            if cls.__name__.endswith("Mixin"):
                above |= said_by(cls)
        of_mixins |= above
    assert overridden <= shown <= of_mixins | {"config"}, (overridden - shown, shown - of_mixins)


def check_example_of_a_row() -> None:
    shown = re.findall(r"```python\n(Family.+?)\n```", page("docs/add_a_family.md"), flags=re.DOTALL)[0]
    assert f"{textwrap.indent(shown, ' ' * 8)},\n" in page("src/vidcom2/families/table.py")


def check_repos() -> None:
    for model_type, (files, lines) in LIMITS.items():
        code = code_of(FAMILIES[model_type].model_class)
        found = len(code), sum(len(content.splitlines()) for content in code.values())
        assert found[0] <= files and found[1] <= lines, (model_type, found)
    for path in (path for room in ("modeling", "configuration") for path in (ROOT / room).rglob("*.py")):
        text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
        is_said = len(re.findall(r"[.:](?= |$)", text)) >= 2 or path.stem == "__init__"
        assert is_said, f"{path} does not say in two sentences what it is for"


def check_figures() -> None:
    measured = page("docs/benchmarks.md") + page("benchmarks/results/needle/README.md")  # the tables of all results
    for name in ("docs/choosing.md", "docs/methods.md"):
        figures = re.findall(r"(\d+\.\d)(?= %| and \d+\.\d %)", page(name))
        assert figures, name
        for figure in figures:
            assert re.search(rf"(?<![\d.]){figure}\b", measured), (name, figure)
    text = page("docs/benchmarks.md").replace("\n", " ")
    speeds = json.loads(page("benchmarks/results/compress_cpu.json"))["rows"]
    for scoring in ("paper", "released"):
        times = [row["speedup"] for row in speeds if "speedup" in row and row["scoring"] == scoring]
        assert f"{min(times):.1f}–{max(times):.1f}×" in text, scoring


def check_output_of_run() -> None:
    command = [sys.executable, "-m", "vidcom2", "run", "--max-new-tokens", "1", "--json"]
    run = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    blocks = re.findall(r"```text\n(.*?)```", page("docs/quick_start.md"), flags=re.DOTALL)
    shown = next(block for block in blocks if "prompt tokens" in block)
    for name in ("prompt_tokens", "video_tokens"):
        full, short = run["uncompressed"][name], run["compressed"][name]
        row = rf"{name.replace('_', ' ')} +{full:,} +{short:,} +{run['other'][name]:,} +{full / short:.2f}×"
        assert re.search(row, shown), (row, shown)
    for i, second, u, k in re.findall(r"(\d+) +([\d.]+) +(-?[\d.]+) +(\d+) +█", shown):
        assert abs(run["frame_seconds"][int(i)] - float(second)) < 0.006, (i, second)
        assert abs(run["frame_uniqueness"][int(i)] - float(u)) < 1e-3, (i, u)
        assert run["frame_budgets"][int(i)] == int(k), (i, k)


def check_published_accuracies() -> None:
    """Each report stands once, with its source, and its percentage fits its averages, which papers round."""
    reports = json.loads(page("benchmarks/published.json"))["rows"]
    said = ("method", "model", "ratio", "kept_percent", "benchmarks", "reported_by", "source", "source_url")
    keys = [tuple(row[name] for name in ("method", "model", "frames", "ratio", "reported_by")) for row in reports]
    assert len(set(keys)) == len(keys) > 100
    for row in reports:
        assert row.keys() - {"note"} == {*said, "frames", "average", "full_average"}, row
        assert all(row[name] for name in said), row
        if row["average"] is not None:
            assert abs(100 * row["average"] / row["full_average"] - row["kept_percent"]) < 100 * 0.1 / 50, row


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub, and the site, make of a page's headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", each)).lower().replace(" ", "-") for each in headings}


def check_links() -> None:
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", path.read_text(encoding="utf-8")):
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            assert target.exists() and (not anchor or anchor in anchors(target)), (path, link)


def check_commands_and_navigation() -> None:
    named = re.findall(r"^\| (`[\w-]+`(?:, `[\w-]+`)*) \|", page("docs/command_line.md"), flags=re.MULTILINE)
    shown = {name for cell in named for name in re.findall(r"`([\w-]+)`", cell)}
    assert shown >= COMMANDS.keys(), COMMANDS.keys() - shown
    navigation = page("mkdocs.yml").split("\nnav:\n")[1]
    assert not [each.name for each in (ROOT / "docs").glob("*.md") if f": {each.name}\n" not in navigation]


def check_readme_and_changelog() -> None:
    text = re.sub(r"<!-- families -->\n.*?<!-- end -->\n", "", page("README.md"), flags=re.DOTALL)
    assert len(text.split()) <= 808  # beside the list of families
    for badge, said in (("Python", r'requires-python = ">=([\d.]+)"'), ("Transformers", r'"transformers>=([\d.]+)')):
        assert f"![{badge} {re.findall(said, page('pyproject.toml'))[0]}+]" in page("README.md"), badge
    (version,) = re.findall(r'^version = "(.+)"$', page("pyproject.toml"), flags=re.MULTILINE)
    assert re.search(r"^## (\S+)", page("CHANGELOG.md"), flags=re.MULTILINE)[1] == version  # type: ignore[index]
    assert f'version: "{version}"' in page("CITATION.cff").splitlines()


def check_issue_forms() -> None:
    """Each form is one that GitHub shows, and names only files and commands that exist."""
    for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.stem == "config":
            continue
        assert form.keys() == {"name", "description", "body"}, path
        asked = [part for part in form["body"] if part["type"] != "markdown"]
        ids = [part["id"] for part in asked]
        assert asked and len(set(ids)) == len(ids), path
        for part in form["body"]:
            assert part["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}, (path, part)
            assert part["attributes"].keys() & {"label", "value"}, (path, part)
            assert ("options" in part["attributes"]) == (part["type"] in {"dropdown", "checkboxes"}), (path, part)
        text = path.read_text(encoding="utf-8")
        for named in re.findall(r"(?:docs/)?[\w]+\.md", text):
            assert (ROOT / named).exists(), (path, named)
        assert set(re.findall(r"`vidcom2 ([\w-]+)", text)) <= COMMANDS.keys(), path


if __name__ == "__main__":
    if "--write" in sys.argv:
        for path in (ROOT / "docs").glob("*.md"):
            path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
        sys.exit()
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
            print(f"{name.removeprefix('check_').replace('_', ' ')}: as the pages say")
