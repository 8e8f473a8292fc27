"""What a package index shows, what a wheel installs, and what the package exports."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml

import vidcom2
from vidcom2.families import FAMILIES

CLASSES = ("Config", "ForConditionalGeneration")
ROOT = Path(__file__).parents[1]
PAPER = "https://arxiv.org/abs/2505.14454"
RELATIVE_LINK = re.compile(r"\]\((?!https?://|#)([^)]+)\)")


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as file:
        yield file


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return message_from_bytes(wheel.read(next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))))


def description(metadata: Message) -> str:
    return metadata.get_payload(decode=True).decode()


def test_a_wheel_installs_one_complete_package(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"vidcom2"}
    folders = ("src/vidcom2", "modeling", "configuration", "hub_upload")
    tracked = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked:  # a source distribution has no git history
        tracked = [str(p.relative_to(ROOT)) for f in folders for p in (ROOT / f).rglob("*") if p.suffix == ".py"]
    links = {f"src/{name}" for name in ("vidcom2/modeling", "vidcom2/configuration", "vidcom2/hub_upload")}
    packaged = {"vidcom2/" + name.removeprefix("src/vidcom2/") for name in set(tracked) - links}
    assert (
        packaged <= set(names)
        and len(names) == len(set(names))
        and "vidcom2/py.typed" in names
        and "vidcom2/explaining/page.html" in names
    )


def test_the_source_distribution_holds_all_that_readers_and_the_build_need(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    texts = {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "pyproject.toml"}
    assert texts <= names and "tests/test_packaging.py" in names and "modeling/methods/compression.py" in names


def test_the_index_page_names_the_authors_and_links_only_to_existing_pages(metadata: Message) -> None:
    assert metadata["Author"] == "The vidcom2 authors" and metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    links = dict(value.split(", ") for value in metadata.get_all("Project-URL"))
    assert set(links.values()) == {PAPER, "https://github.com/xuyang-liu16/VidCom2"}


def test_the_readme_on_an_index_has_no_link_into_the_repository(metadata: Message) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert RELATIVE_LINK.findall(readme) and not RELATIVE_LINK.findall(description(metadata))
    assert "| choose | which method and ratio, methods, settings |" in description(metadata)  # the link's text stays
    outside = re.findall(r"\]\((https?://[^)]+)\)", readme)
    assert outside and all(f"]({link})" in description(metadata) for link in outside)


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub, and the site, make of a page's headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", each)).lower().replace(" ", "-") for each in headings}


def test_every_relative_link_leads_to_a_page_and_a_heading() -> None:
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", path.read_text(encoding="utf-8")):
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            assert target.exists(), (path, link)
            assert not anchor or anchor in anchors(target), (path, link)


def test_a_plain_install_can_draw_pngs_and_the_former_extra_still_resolves(metadata: Message) -> None:
    core = [need for need in metadata.get_all("Requires-Dist") if "extra ==" not in need]
    assert any(need.startswith("matplotlib") for need in core)
    assert "explain" in metadata.get_all("Provides-Extra")


def test_the_version_equals_the_distributions(wheel: zipfile.ZipFile, metadata: Message, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)  # as an installer does, since the checkout's metadata may come from an older install
    code = "import vidcom2; print(vidcom2.__file__); print(vidcom2.__version__)"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.split()
    assert Path(shown[0]).is_relative_to(tmp_path) and shown[1] == metadata["Version"]
    assert vidcom2.__version__ and "__version__" in dir(vidcom2)
    assert (ROOT / "pyproject.toml").read_text(encoding="utf-8").count(f'"{metadata["Version"]}"') == 1


def test_the_command_is_installed(wheel: zipfile.ZipFile) -> None:
    text = wheel.read(next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))).decode()
    name, _, value = text.splitlines()[1].partition(" = ")
    assert name == "vidcom2" and callable(EntryPoint(name, value, "console_scripts").load())


# -- what `vidcom2` exports -------------------------------------------------------------------------------------------


def test_importing_the_package_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, vidcom2; assert vidcom2.__all__; print({'torch', 'transformers', 'av'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


@pytest.mark.parametrize("name", vidcom2.__all__)
def test_every_exported_name_is_that_of_its_object(name: str) -> None:
    exported = getattr(vidcom2, name)
    assert getattr(exported, "__name__", name) == name and name in dir(vidcom2)


def test_every_name_of_the_contract_is_exported() -> None:
    promised = {
        "VideoCompression",
        "compress",
        "ask",
        "read_video",
        "Video",
        "labels_at",
        "register_compression_method",
        "register_score_method",
    }
    assert promised <= set(vidcom2.__all__)


def test_editors_see_the_names_that_are_exported() -> None:
    tree = ast.parse((ROOT / "src" / "vidcom2" / "__init__.pyi").read_text(encoding="utf-8"))
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    written = next(node.value for node in tree.body if isinstance(node, ast.Assign))
    assert sorted(ast.literal_eval(written)) == sorted(imported) and set(vidcom2.__all__) == imported


def test_the_classes_of_every_family_are_exported_and_no_others() -> None:
    of_table = {f"{family.classes}{kind}" for family in FAMILIES.values() for kind in CLASSES}
    assert {name for name in vidcom2.__all__ if name.startswith("VidCom2")} == of_table
    for family in FAMILIES.values():
        assert [getattr(vidcom2, f"{family.classes}{kind}") for kind in CLASSES] == [
            family.config_class,
            family.model_class,
        ]


def test_an_unknown_name_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No vidcom2 attribute compres"):
        _ = vidcom2.compres


# -- project files ----------------------------------------------------------------------------------------------------


def test_the_citation_names_the_paper_that_is_linked() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0" and citation["authors"] and citation["message"] and citation["title"]
    paper = citation["preferred-citation"]
    assert paper["title"].startswith("Video Compression Commander: Plug-and-Play Inference Acceleration")
    assert [author["family-names"] for author in paper["authors"]] == ["Liu", "Wang", "Ma", "Zhang"]
    assert paper["identifiers"][0]["value"] == "arXiv:" + PAPER.rpartition("/")[2]


def test_the_changelog_starts_with_the_current_version(metadata: Message) -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert versions[0] == metadata["Version"]


def test_plain_pytest_leaves_out_slow_tests(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        "import pytest\n@pytest.mark.slow\ndef test_slow(): pass\ndef test_quick(): pass\n", encoding="utf-8"
    )
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # importing plugins would take seconds
    pytest_here = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "xdist", "-n0"]
    for arguments, outcome in (([], "1 passed, 1 deselected"), (["-m", "slow or not slow"], "2 passed")):
        command = [*pytest_here, *arguments, str(tmp_path)]
        assert outcome in subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment).stdout


@pytest.mark.slow
def test_a_checkout_without_links_can_be_imported(tmp_path: Path) -> None:
    """On Windows, git replaces each link by a file with the path that it leads to."""
    names = ("modeling", "configuration", "hub_upload")
    package = tmp_path / "src" / "vidcom2"
    shutil.copytree(ROOT / "src" / "vidcom2", package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in names:
        (package / name).unlink()
        (package / name).write_text(f"../../{name}")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import vidcom2; [getattr(vidcom2, name) for name in vidcom2.__all__]; from vidcom2.hub_upload import staging; "
        "from vidcom2.shipping import shipped_files; "
        "print(vidcom2.__file__, len(shipped_files.shipped_paths()) > 10)"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout.split() == [str(package / "__init__.py"), "True"], done.stderr
