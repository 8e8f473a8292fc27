"""The snippets of README and docs run on tiny stand-ins for checkpoints and videos. `.ci/pages.py` checks the rest."""

import json
import re
import shlex
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_cli import vidcom2

from vidcom2 import load
from vidcom2.families import FAMILIES
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


def test_the_notebook_runs_with_the_toy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    cells = json.loads(page("docs/quick_start.ipynb"))["cells"]
    namespace: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            exec(compile("".join(cell["source"]), f"quick_start.ipynb, {cell['id']}", "exec"), namespace)
    answers = dict(re.findall(r"^(.+?):? +(\d)$", capsys.readouterr().out, flags=re.MULTILINE))
    assert answers.pop("uniform_frames") != "2"
    assert {"all tokens", "a quarter of the tokens", "vidcom2"} <= {name for name in answers if answers[name] == "2"}


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
