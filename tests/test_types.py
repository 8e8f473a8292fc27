"""A type checker accepts the installed package and the snippets of README and the docs."""

import json
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from test_readme import BY_HAND, DOCS, ROOT, blocks, page

from vidcom2.families import FAMILIES

# Files of families whose parents the installed Transformers does not have.
NOT_HERE = [f"modeling_vidcom2_{name}" for name, family in FAMILIES.items() if not family.runs_here]
CHECKER = shutil.which("basedpyright", path=str(Path(sys.executable).parent)) or shutil.which("basedpyright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHECKER is None, reason="needs basedpyright, which `pip install -e '.[test]'` installs"),
]

USED = """
import torch
import vidcom2
from vidcom2 import CompressionSettings, LlavaVideoProcessor, VideoCompression, VideoTokens, compress, read_video
from vidcom2 import VidCom2LlavaOnevisionForConditionalGeneration as OneVision
from vidcom2 import VidCom2Qwen2_5_VLConfig, register_compression_method

tokens = torch.rand(8, 49, 64)
model = OneVision.from_pretrained("checkpoint", retention_ratio=0.25)

@register_compression_method("first")
def first(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    return compress(video, settings.retention_ratio)
"""
TOLD = {
    "compress(tokens, 0.25, compression_rounding='exact')": "VideoCompression",
    "compress(tokens).indices": "Tensor",
    "first": "(video: VideoTokens, settings: CompressionSettings) -> VideoCompression",
    "read_video('clip.mp4', num_frames=32)": "Video",
    "vidcom2.ask('clip.mp4', 'What happens?')": "Answer",
    "vidcom2.ask('clip.mp4', ['What happens?', 'Who is it?'])": "list[Answer]",
    "vidcom2.ask('clip.mp4', [{'role': 'user', 'content': 'What happens?'}])": "Answer",
    "vidcom2.Video.from_frames(tokens, fps=2)": "Video",
    "vidcom2.apply(model, retention_ratio=0.15)": "VidCom2LlavaOnevisionForConditionalGeneration",
    "vidcom2.__version__": "str",
    "model": "VidCom2LlavaOnevisionForConditionalGeneration",
    "model.to('cuda').eval()": "VidCom2LlavaOnevisionForConditionalGeneration",
    "model.config.retention_ratio": "float",
    "model.get_video_features(pixel_values_videos=tokens).video_compressions[0]": "VideoCompression",
    "model.generate(max_new_tokens=64, retention_ratio=0.15)": "ModelOutput | Tensor",
    "VidCom2Qwen2_5_VLConfig.from_pretrained('checkpoint')": "VidCom2Qwen2_5_VLConfig",
    "LlavaVideoProcessor.from_pretrained('checkpoint')": "LlavaVideoProcessor",
}
WRONG = {
    "compress(tokens, compression_rounding=3)": "reportArgumentType",
    "compress(tokens, rounding='exact')": "reportCallIssue",
    "compress(tokens).kept_tokens": "reportAttributeAccessIssue",
    "read_video('clip.mp4').frames": "reportCallIssue",
    "CompressionSettings(retention_ratio='a quarter')": "reportArgumentType",
    "register_compression_method('other')(read_video)": "reportArgumentType",
    "vidcom2.compres": "reportAttributeAccessIssue",
    "vidcom2.ask('clip.mp4', 'What happens?') + 1": "reportOperatorIssue",
}


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` folder of an environment with the wheel and everything else that this one has."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    packages = next(folder.glob("lib/python*/site-packages"))
    for path in map(Path, sys.path):
        if path.name in ("site-packages", "dist-packages"):
            for entry in path.iterdir():  # without *.pth, since one of them may lead to a checkout
                if entry.suffix != ".pth" and "vidcom2" not in entry.name and not (packages / entry.name).exists():
                    (packages / entry.name).symlink_to(entry)
    shutil.unpack_archive(next(built.glob("*.whl")), packages, "zip")
    return folder / "bin"


def checked(folder: Path, environment: Path, *options: str) -> dict[str, Any]:
    """Return basedpyright's report on a folder."""
    command = [CHECKER, "--outputjson", "--pythonpath", environment / "python", *options]
    path = {"PATH": f"{environment}:/usr/bin:/bin"}  # `--verifytypes` looks for a `python`
    done = subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr or done.stdout
    return json.loads(done.stdout)


def write_snippets(folder: Path) -> int:
    """Write a file for each of README's snippets and for each page of the docs. Return their number."""
    by_hand = blocks("python", page(BY_HAND))
    pages = {name: [by_hand[0], *blocks("python", page(name))] for name in DOCS}  # they continue that snippet
    files = [*blocks("python"), *by_hand, *("\n".join(snippets) for snippets in pages.values())]
    for i, code in enumerate(files):
        (folder / f"snippets_{i}.py").write_text(code, encoding="utf-8")
    return len(files)


def test_users_code_is_accepted_with_the_right_types_and_mistakes_are_found(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard", "reportUnusedExpression": false}')
    count = write_snippets(tmp_path)
    lines = [*USED.splitlines(), *(f"reveal_type({use})" for use in TOLD), *WRONG]
    (tmp_path / "use.py").write_text("\n".join(lines), encoding="utf-8")
    report = checked(tmp_path, installed)
    told, wrong, other = {}, {}, []
    for each in report["generalDiagnostics"]:
        path, line = Path(each["file"]), each["range"]["start"]["line"]
        use = lines[line] if path.name == "use.py" else ""
        if each["severity"] == "information":
            told[use.removeprefix("reveal_type(")[:-1]] = re.search(r'" is "(.*)"$', each["message"])[1]
        elif use in WRONG:
            wrong[use] = each["rule"]
        else:
            other.append(f"{path.name}: {path.read_text().splitlines()[line]}: {each['message']}")
    assert other == [] and report["summary"]["filesAnalyzed"] == count + 1
    assert told == TOLD and wrong == WRONG


def test_the_package_passes_the_type_checker(built: Path, installed: Path, tmp_path: Path) -> None:
    package = tmp_path / "src" / "vidcom2"
    shutil.unpack_archive(next(built.glob("*.whl")), package.parent, "zip")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    report = checked(tmp_path, installed)
    assert report["summary"]["filesAnalyzed"] == len(list(package.rglob("*.py*")))
    said = [
        f"{Path(each['file']).relative_to(package)}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
        if not any(name in each["file"] for name in NOT_HERE)
    ]
    assert said == []


def test_no_type_of_the_package_is_unknown(installed: Path, tmp_path: Path) -> None:
    report = checked(tmp_path, installed, "--verifytypes", "vidcom2", "--ignoreexternal")["typeCompleteness"]
    assert Path(report["packageRootDirectory"]).is_relative_to(installed.parent) and report["pyTypedPath"]
    unknown = [s for s in report["symbols"] if s["isExported"] and not (s["isTypeKnown"] or s["isTypeAmbiguous"])]
    names = [symbol["name"] for symbol in unknown]
    # They build on lmms-eval, vLLM, Ray and PyArrow, optional dependencies that are not installed here.
    others = (".lmms_eval_model.", ".vllm_plugin.", ".many_in_vllm.", ".many_on_ray.", ".answer_parts.", *NOT_HERE)
    assert len(report["symbols"]) > 500 and [name for name in names if not any(other in name for other in others)] == []
