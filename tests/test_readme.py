"""The snippets of README and docs run on tiny stand-ins for checkpoints and videos. `.ci/pages.py` checks the rest."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from test_cli import vidcom2

from vidcom2 import load
from vidcom2.families.table import FAMILIES
from vidcom2.tiny.glm import tiny_glm4v
from vidcom2.tiny.llava import tiny_llava_onevision
from vidcom2.tiny.llava_video import tiny_llava_video
from vidcom2.tiny.qwen import tiny_qwen2_5_omni_thinker, tiny_qwen3_vl
from vidcom2.toys import DEMO_VIDEO

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BY_HAND = "docs/families.md"  # each snippet starts from nothing; the pages below continue the first one
DOCS = [f"docs/{name}.md" for name in ("using", "training", "write_a_method", "quick_start", "hub_repos", "live")]
CHECKPOINTS = {  # a name in the README -> the tiny checkpoint that replaces it
    r"llava-hf/llava-onevision-qwen2-[\d.]+b-ov-hf": partial(tiny_llava_onevision, image_size=84),
    r"Qwen/Qwen3-VL-\d+B-Instruct": partial(tiny_qwen3_vl, patch_size=10, frame_tokens=12),
    r"Qwen/Qwen2.5-Omni-7B": partial(tiny_qwen2_5_omni_thinker, patch_size=46),
    r"zai-org/GLM-4.1V-9B-Thinking": partial(tiny_glm4v, patch_size=10),
    r'(?<=")llava-video(?=")': partial(tiny_llava_video, image_size=98),
}


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name, build in CHECKPOINTS.items():
        folders[name] = tmp_path_factory.mktemp("checkpoint")
        for part in build():
            part.save_pretrained(folders[name])
    return folders


def stand_in(code: str, checkpoints: dict[str, Path], folder: Path) -> str:
    code = code.replace("bench --quick", f"bench --quick --num-frames 2 --repeats 1 -o {folder}/bench")
    code = code.replace("clip.watched", f"{folder}/clip.watched").replace('"clip.html"', repr(f"{folder}/clip.html"))
    code = code.replace("-o clip.png", f"-o {folder}/clip.png").replace("clip.mp4", str(DEMO_VIDEO))
    for name, checkpoint in checkpoints.items():
        code = re.sub(name, str(checkpoint), code)
    return code.replace("torch.randn(32, 196, 3584)", "torch.randn(32, 196, 64)")


@pytest.mark.usefixtures("methods_restored")
def test_the_python_snippets_run(checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    onevision = next(folder for name, folder in checkpoints.items() if "onevision" in name)
    repo = tmp_path / "repo"  # the repo that `vidcom2 publish` would have made from it
    for part in load(str(onevision), retention_ratio=0.5):
        part.save_pretrained(repo)

    def run(code: str, where: str) -> None:
        code = stand_in(code, checkpoints, tmp_path).replace('"org/llava-ov-vidcom2"', repr(str(repo)))
        exec(compile(code, where, "exec"), namespace)

    by_hand: list[dict] = []
    for text in ("README.md", BY_HAND):
        for i, block in enumerate(blocks("python", page(text))):
            namespace: dict = {}
            if "omni" in block and not FAMILIES["qwen2_5_omni_thinker"].runs_here:
                continue
            run(block, f"{text}, snippet {i}")
            by_hand += [namespace] * (text == BY_HAND)
            assert capsys.readouterr().out, (text, i)
    assert (
        len(by_hand) == 2 + FAMILIES["qwen2_5_omni_thinker"].runs_here
        and by_hand[0]["model"].config.retention_ratio == 0.25
    )
    for text in DOCS:
        namespace = dict(by_hand[0])
        assert blocks("python", page(text)), text
        for i, block in enumerate(blocks("python", page(text))):
            run(block, f"{text}, snippet {i}")
        if text == "docs/hub_repos.md":
            assert namespace["model"].config.retention_ratio == 0.5
        if text == "docs/using.md":
            assert namespace["answer"][0]["generated_text"] is not None
        if text == "docs/training.md":
            assert namespace["output"].logits.shape[1] == namespace["short"]["input_ids"].shape[1]
            assert namespace["short"]["input_ids"].shape[1] < namespace["inputs"]["input_ids"].shape[1]
            prediction = SimpleNamespace(predictions=np.array([[1, 2, 3]]), label_ids=np.array([[-100, 1, 5]]))
            assert namespace["compute_metrics"](prediction) == {"accuracy": 0.5}
            assert " rows of logits, and [" in capsys.readouterr().out


def test_the_first_snippet_answers_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (toy,) = re.findall(r'`"(toy:\w+)"` says of \[', README)
    (clip,) = re.findall(r"\[its clip\]\((\S+)\)", README)
    code = blocks("python")[0]
    assert len(code.splitlines()) < 15
    code, models = re.subn(r"Qwen/Qwen3-VL-2B-Instruct", toy, code)
    code, clips = re.subn(r"clip\.mp4", str(ROOT / clip), code)
    assert (models, clips) == (1, 2)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == blocks("text")[0]


def test_the_readme_says_of_vcast_what_its_table_shows() -> None:
    """Ahead of `vidcom2` at a quarter, on both toys."""
    heads, _, *rows = ([each.strip() for each in line.split("|")[1:-1]] for line in README.splitlines() if "|" in line)
    assert "ahead of `vidcom2` at a quarter" in README
    table = {row[0]: row for row in rows}
    heads = next(row for row in rows if row[0].startswith("right answers"))
    quarter = [i for i, head in enumerate(heads) if head.endswith("25%")]
    assert len(quarter) == 2
    for i in quarter:
        vcast, vidcom = (float(table[name][i].split("/")[0]) for name in ("V-CAST", "VidCom²"))
        assert vcast > vidcom, heads[i]


@pytest.fixture
def run_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[[str], str]:
    """Runs a notebook as on a machine without a GPU, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def run(name: str) -> str:
        namespace: dict = {}
        for cell in json.loads(page(name))["cells"]:
            if cell["cell_type"] == "code":
                assert not cell["outputs"] and cell["execution_count"] is None
                exec(compile("".join(cell["source"]), f"{name}, {cell['id']}", "exec"), namespace)
        return capsys.readouterr().out

    return run


def test_the_notebook_runs_with_the_toy(run_notebook: Callable[[str], str]) -> None:
    answers = dict(re.findall(r"^(.+?):? +(\d)$", run_notebook("docs/quick_start.ipynb"), flags=re.MULTILINE))
    assert answers.pop("uniform_frames") != "2"
    assert {"all tokens", "a quarter of the tokens", "vidcom2"} <= {name for name in answers if answers[name] == "2"}


@pytest.mark.usefixtures("methods_restored")
def test_the_notebook_of_an_own_method_runs_with_the_toy(run_notebook: Callable[[str], str]) -> None:
    shown = run_notebook("docs/own_method.ipynb")
    # 98 of 8 × 49 tokens: the first frame, what changed in frame 5 and, since it changed back, in frame 6.
    (budgets,) = re.findall(r"kept of each frame: (\[.*\])", shown)
    assert json.loads(budgets)[0] == 49 and sum(json.loads(budgets)[5:7]) == 49
    right = dict(re.findall(r"^(\w+) +(\d) of 3 right$", shown, flags=re.MULTILINE))
    assert right.keys() == {"vidcom2", "changed", "random"} and right["vidcom2"] == "3"


def test_notebooks_install_only_where_the_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the newest wheel beside them, and say what to do if there is none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    commands: list[list[str]] = []
    monkeypatch.setattr("subprocess.run", lambda command, check: commands.append(command))
    for name in ("docs/quick_start.ipynb", "docs/own_method.ipynb"):
        install = next(
            "".join(cell["source"]) for cell in json.loads(page(name))["cells"] if cell["cell_type"] == "code"
        )
        with pytest.raises(SystemExit, match="Upload the wheel"):
            exec(install, {})
        (tmp_path / "vidcom2-0.1.0-py3-none-any.whl").touch()
        exec(install, {})
        assert commands.pop()[-1] == "vidcom2-0.1.0-py3-none-any.whl" and not commands
        (tmp_path / "vidcom2-0.1.0-py3-none-any.whl").unlink()


@pytest.mark.usefixtures("methods_restored")
def test_the_skill_runs_with_the_toy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DEMO_VIDEO, tmp_path / "clip.mp4")
    text = page("SKILL.md")
    assert len(text.splitlines()) <= 80
    front = yaml.safe_load(text.split("---\n")[1])
    assert front.keys() == {"name", "description"} and len(front["description"]) <= 1024
    namespace: dict = {}
    ran = 0
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        if language == "python":
            code, _ = re.subn("Qwen/Qwen3-VL-2B-Instruct", "toy:qwen3_vl", block)
            exec(compile(code, "SKILL.md", "exec"), namespace)
            ran += 1
            continue
        for command in block.splitlines():
            code, _, error = vidcom2(*shlex.split(command)[1:])
            assert code == 0, (command, error)
            ran += 1
    assert ran == 8
    assert "2 50 200\n" in capsys.readouterr().out  # the answer, and how many tokens it took
    (row,) = map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())
    assert row["answer"] == "2"
    assert list((tmp_path / "evaluation").iterdir())


@pytest.mark.slow
def test_the_commands_run(checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pages = [page(f"docs/{name}.md") for name in ("evaluation", "using", "command_line")]
    for name, text in zip(("questions", "requests"), pages):
        (tmp_path / f"{name}.jsonl").write_text(stand_in(blocks("json", text)[0], checkpoints, tmp_path))
    (tmp_path / "clips").mkdir()
    shutil.copy(DEMO_VIDEO, tmp_path / "clips")
    commands = [
        line.split(" # ")[0]
        for text in (README, *pages)
        for block in blocks("bash", text)
        for line in block.splitlines()
    ]
    commands = [line for line in commands if line.startswith("vidcom2 ")]
    assert len(commands) >= 5
    for command in commands:
        code, _, error = vidcom2(*shlex.split(stand_in(command, checkpoints, tmp_path))[1:])
        assert code == 0, error
    for block in blocks("python", pages[0]):  # it asks the questions of that page
        exec(compile(stand_in(block, checkpoints, tmp_path), "docs/evaluation.md", "exec"), {})
