"""Published repos answer in vLLM's Transformers backend with Transformers alone, in families with plain positions."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engines import CASES_BY_NAME, PIXELS, RATIO, ROWS, Case, save_stock_repo
from models import chat_prompt, save_as_on_the_hub
from transformers import ProcessorMixin

from vidcom2.hub_upload.base_checkpoint import local_base
from vidcom2.hub_upload.model_card import CardOptions
from vidcom2.hub_upload.staging import complete, stage

PLAIN = {
    **{name: CASES_BY_NAME[name] for name in ("llava_onevision", "llava_video", "llava_next_video")},
    # which the plugin does not serve
    "exaone4_5": Case(ROWS["exaone4_5"], PIXELS, (4, 5)),
    "perception_lm": Case(ROWS["perception_lm"], {"image_size": 84}, (3, 3)),
}
REFUSED = {"compression_positions": "original", "vision_method": "skip_repeated"}
STAND_APART = Case(ROWS["video_llama_3"], {**PIXELS, "patch_size": 14}, (4, 5))
SCRIPT = Path(__file__).with_name("without_the_plugin.py")
# Videos, images and settings of a request.
KINDS: list[tuple[int, int, dict[str, Any]]] = [
    (1, 0, {}),
    (2, 0, {"retention_ratio": 0.1}),
    (1, 1, {"retention_ratio": 0.5}),
    (2, 1, {}),
    (1, 0, {"retention_ratio": 0.5}),
    (1, 0, {"max_video_tokens": 12}),
    (0, 1, {}),
    (0, 0, {}),
]


def publish(folder: Path, case: Case) -> tuple[Path, ProcessorMixin]:
    """Make a repo of a base whose weights have the names of the checkpoints on the Hub."""
    base, repo = folder / "base", folder / "repo"
    stock, processor = save_stock_repo(base, case)
    if case.row.legacy_prefixes:
        save_as_on_the_hub(case.row, stock, base)
    complete(stage(local_base(base), repo, {"retention_ratio": RATIO}, CardOptions("org/name", "vidcom2 publish")))
    return repo, processor


def asked(case: Case, repo: Path, processor: ProcessorMixin, number: int) -> dict[str, Any]:
    """Return what `without_the_plugin.py` needs to answer so many requests."""
    inner = case.row.model_class.inner_class
    requests = []
    for i in range(number):
        videos, images, settings = KINDS[i % len(KINDS)]
        prompt = chat_prompt(processor, f"What is number {i}?", videos, images)
        seeds = {"videos": list(range(i, i + videos)), "images": [i] * images}
        requests.append({"prompt": prompt, "settings": settings, **seeds})
    return {
        "folder": str(repo),
        "overrides": {"auto_map": {"AutoModel": f"{inner.__module__.rpartition('.')[2]}.{inner.__name__}"}},
        "limits": {"video": 2, "image": 1},
        "requests": requests,
    }


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return what the process without this package found out about each repo."""
    folder = tmp_path_factory.mktemp("published")
    cases = {}
    for name, case in PLAIN.items():
        cases[name] = asked(case, *publish(folder / name, case), number=16)
    for case in (CASES_BY_NAME["qwen2_vl"], STAND_APART):
        cases[case.name] = asked(case, *publish(folder / case.name, case), number=1)
    plain = cases["llava_onevision"]
    # The processor of the second counts on frames of 10 × 10 tokens.
    for name, field, value in (("stock processor", "auto_map", {}), ("wrong count", "num_image_tokens", 400)):
        repo = shutil.copytree(plain["folder"], folder / name, symlinks=True)
        fields = json.loads((repo / "processor_config.json").read_text())
        (repo / "processor_config.json").write_text(json.dumps(fields | {field: value}))
        cases[name] = {**plain, "folder": str(repo), "requests": plain["requests"][:1]}
    for setting, value in REFUSED.items():
        overrides = {**plain["overrides"], setting: value}
        cases[setting] = {**plain, "overrides": overrides, "requests": plain["requests"][:1]}
    (folder / "asked.json").write_text(json.dumps(cases))

    hidden = folder / "hidden"  # hides the installed package
    (hidden / "vidcom2").mkdir(parents=True)
    (hidden / "vidcom2" / "__init__.py").write_text('raise ImportError("vidcom2 cannot be imported in this test")')
    env = {**os.environ, "PYTHONPATH": str(hidden), "VLLM_PLUGINS": "", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    command = [sys.executable, str(SCRIPT), str(folder / "asked.json"), str(folder / "answered.json"), *PLAIN]
    ran = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads((folder / "answered.json").read_text())


@pytest.mark.parametrize("name", PLAIN)
def test_answers_and_lengths_of_prompts_are_those_of_generate(answers: dict[str, dict[str, Any]], name: str) -> None:
    assert answers[name].get("error") is None
    served, expected = answers[name]["served"], answers[name]["expected"]
    assert served == expected
    assert len({tuple(answer) for _, answer in expected}) > 6


@pytest.mark.parametrize("name", PLAIN)
def test_each_request_gets_the_ratio_that_it_asks_for(answers: dict[str, dict[str, Any]], name: str) -> None:
    case = PLAIN[name]
    lengths = [length for length, _ in answers[name]["served"]]
    half, fewer = lengths[4] - lengths[0], lengths[0] - lengths[5]
    assert half == case.kept(0.5) - case.kept(None)
    assert fewer == case.kept(None) - 12


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("wrong count", "`num_kept_video_tokens` is [200], but there are 1 videos of [72] tokens"),
        ("stock processor", "vllm passes no `num_kept_video_tokens`, so a stock processor wrote the prompt"),
        ("qwen2_vl", "VidCom2Qwen2VLModel cannot run in the Transformers backend of vllm"),
        ("video_llama_3", "VidCom2VideoLlama3Model cannot run in the Transformers backend of vllm"),
        ("compression_positions", "`compression_positions` is 'original', but the Transformers backend of vllm"),
        ("vision_method", "`vision_method` is 'skip_repeated', but"),  # which the repo does not even hold
    ],
)
def test_what_would_be_wrong_is_refused(answers: dict[str, dict[str, Any]], name: str, error: str) -> None:
    assert error in answers[name]["error"]
