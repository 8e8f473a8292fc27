"""The README's snippets run, on tiny stand-ins for the checkpoint and the video."""

import json
import re
import shlex
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_cli import vidcom2

from vidcom2.cli import DEMO_VIDEO
from vidcom2.tiny import tiny_llava_onevision, tiny_qwen2_vl
from vidcom2.tiny_llava_video import tiny_llava_video

README = (Path(__file__).parents[1] / "README.md").read_text()
CHECKPOINTS = {  # what is named in the README, and what stands in for it
    r"llava-hf/llava-onevision-qwen2-[\d.]+b-ov-hf": partial(tiny_llava_onevision, image_size=84),
    r"Qwen/Qwen2-VL-\d+B-Instruct": partial(tiny_qwen2_vl, pixels=(84 * 84, 84 * 112)),
    r'(?<=")llava-video(?=")': partial(tiny_llava_video, image_size=98),
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name, build in CHECKPOINTS.items():
        folders[name] = tmp_path_factory.mktemp("checkpoint")
        for part in build():
            part.save_pretrained(folders[name])
    return folders


def stand_in(code: str, checkpoints: dict[str, Path], folder: Path) -> str:
    code = code.replace("-o clip.png", f"-o {folder}/clip.png").replace("clip.mp4", str(DEMO_VIDEO))
    for name, checkpoint in checkpoints.items():
        code = re.sub(name, str(checkpoint), code)
    return code.replace("torch.randn(32, 196, 3584)", "torch.randn(32, 196, 64)")


def test_the_python_snippets_run_in_their_order(
    checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    namespace: dict = {}
    for i, block in enumerate(blocks("python")):
        exec(compile(stand_in(block, checkpoints, tmp_path), f"README.md, snippet {i}", "exec"), namespace)
    assert namespace["model"].config.retention_ratio == 0.25
    assert namespace["answer"][0]["generated_text"] is not None
    assert namespace["output"].logits.shape[1] < namespace["inputs"]["input_ids"].shape[1]
    prediction = SimpleNamespace(predictions=np.array([[1, 2, 3]]), label_ids=np.array([[-100, 1, 5]]))
    assert namespace["compute_metrics"](prediction) == {"accuracy": 0.5}
    assert " rows: tensor(" in capsys.readouterr().out


def test_the_commands_run(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    commands = [line.split(" # ")[0] for block in blocks("bash") for line in block.splitlines()]
    commands = [line for line in commands if line.startswith("vidcom2 ")]
    assert len(commands) >= 2
    for command in commands:
        code, _, error = vidcom2(*shlex.split(stand_in(command, checkpoints, tmp_path))[1:])
        assert code == 0, error


def test_the_shown_figures_are_those_of_the_demo() -> None:
    run = json.loads(vidcom2("run", "--max-new-tokens", 1, "--json")[1])
    shown = next(block for block in blocks("text") if "prompt tokens" in block)
    for name in ("prompt_tokens", "video_tokens"):
        full, short = run["uncompressed"][name], run["compressed"][name]
        row = rf"{name.replace('_', ' ')} +{full:,} +{short:,} +{full / short:.2f}×"
        assert re.search(row, shown), (row, shown)
    for i, second, u, k in re.findall(r"(\d+) +([\d.]+) +(-?[\d.]+) +(\d+) +█", shown):
        assert run["frame_seconds"][int(i)] == pytest.approx(float(second), abs=0.006)
        assert run["frame_uniqueness"][int(i)] == pytest.approx(float(u), abs=1e-3)
        assert run["frame_budgets"][int(i)] == int(k)


def test_the_figures_of_the_selections_speed_are_those_of_the_result_files() -> None:
    for case in ("compress_cpu", "compress_cpu_busy"):
        file = Path(__file__).parents[1] / "benchmarks" / "results" / f"{case}.json"
        for scoring in ("paper", "released"):
            times = [row["speedup"] for row in json.loads(file.read_text())["rows"] if row["scoring"] == scoring]
            assert f"{min(times):.1f}–{max(times):.1f}×" in README.replace("\n", " "), (case, scoring)
