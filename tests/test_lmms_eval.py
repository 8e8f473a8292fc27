"""VidCom² in lmms-eval: what its model class answers and refuses, its results on a card, and a whole run.

Without lmms-eval, stand-ins replace what the model class imports from it. The whole run needs the real one:
`pip install -e ".[lmms,test]"`, then `pytest -m slow tests/test_lmms_eval.py`.
"""

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from make_clips import write_clip
from test_cli import vidcom2

from vidcom2 import read_video
from vidcom2.asking.prompting import prepare_inputs
from vidcom2.errors import OptionError
from vidcom2.hub_upload.model_card import ResultsError, read_result
from vidcom2.live.live_video import LiveVideo
from vidcom2.loading.checkpoints import load_checkpoint
from vidcom2.records.fingerprints import digest, model_files

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests" / "data" / "lmms_eval_results.json"  # of a real run, without its machine's paths
NEEDS_LMMS_EVAL = pytest.mark.skipif(
    find_spec("lmms_eval") is None, reason='lmms-eval is not installed: pip install -e ".[lmms]"'
)


# Stand-ins for lmms-eval's classes
Request = namedtuple("Request", "args task_name doc_id", defaults=("a_task", 0))
Answered = namedtuple("Answered", "text token_counts", defaults=(None,))
Counts = namedtuple("Counts", "input_tokens output_tokens", defaults=(None, None))
Manifest = namedtuple("Manifest", "model_id simple_class_path", defaults=(None,))


class Base:
    def __init__(self) -> None:
        self.task_dict: dict[str, Any] = {}


STAND_INS = {
    "lmms_eval.api.instance": {"GenerationResult": Answered, "Instance": Request, "TokenCounts": Counts},
    "lmms_eval.api.model": {"lmms": Base},
    "lmms_eval.models.registry_v2": {"ModelManifest": Manifest},
}


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("lmms_eval") is None:
            for name, members in STAND_INS.items():
                stand_in = ModuleType(name)
                vars(stand_in).update(members)
                patch.setitem(sys.modules, name, stand_in)
        patch.delitem(sys.modules, "vidcom2.evaluation.lmms_eval_model", raising=False)
        patch.setenv("ACCELERATE_USE_CPU", "true")
        yield importlib.import_module("vidcom2.evaluation.lmms_eval_model")
        sys.modules.pop("vidcom2.evaluation.lmms_eval_model", None)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    of = tmp_path_factory.mktemp("clips")
    return [write_clip(of / f"{length}.mp4", [i / 5 for i in range(length)]) for length in (6, 9)]


class Task:
    """The part of a task that requests use: what a document shows, and the options of the command line."""

    def __init__(self, *shown: Any, args: Any = None) -> None:
        self.shown, self.args = [str(each) if isinstance(each, Path) else each for each in shown], args

    def doc_to_visual(self, document: int) -> list:
        return [self.shown[document]] if self.shown[document] is not None else None

    def requests(self, question: str, **of_task: Any) -> list[Request]:
        numbers = range(len(self.shown))
        return [Request((question, of_task, self.doc_to_visual, i, "a_task", "test"), doc_id=i) for i in numbers]


def made(module: ModuleType, folder: Path, **arguments: Any) -> Any:
    model = module.VidCom2ForLmmsEval(str(folder), device="cpu", num_frames=4, **arguments)
    model.task_dict = {"a_task": {"test": range(9)}}
    return model


# -- the model class --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_the_model_class_answers_as_generate_does_on_evenly_sampled_frames(
    module: ModuleType, folder: Path, clips: list[Path], ratio: float
) -> None:
    model = made(module, folder, retention_ratio=ratio)
    requests = Task(*clips).requests("What happens?", max_new_tokens=5, temperature=0, top_p=1.0, num_beams=1)
    checkpoint = load_checkpoint(str(folder), device="cpu", retention_ratio=ratio)
    for clip, result in zip(clips, model.generate_until(requests), strict=True):
        inputs = prepare_inputs(checkpoint.processor, "What happens?", read_video(clip, 4), checkpoint.model)
        output = checkpoint.model.generate(**inputs, max_new_tokens=5, do_sample=False)
        new = output[0, inputs["input_ids"].shape[1] :]
        assert result.text == checkpoint.processor.decode(new, skip_special_tokens=True).strip()
        full = inputs["input_ids"].shape[1]
        assert result.token_counts.output_tokens == len(new)
        assert result.token_counts.input_tokens == full if ratio == 1 else result.token_counts.input_tokens < full


def test_a_video_can_be_played_to_a_live_video(module: ModuleType, folder: Path, clips: list[Path]) -> None:
    model = made(module, folder, live_fps=4.0, max_video_tokens=60)
    requests = Task(clips[0]).requests("What happens?", max_new_tokens=5)
    (result,) = model.generate_until(requests)
    live = LiveVideo(model.model, model.processor, max_video_tokens=60)
    video = read_video(clips[0], 1000)
    shown = {int(second * 4): number for number, second in reversed([*enumerate(video.seconds.tolist())])}
    for number in sorted(shown.values()):  # the first frame of each quarter of a second
        live.add(video.frames[number], float(video.seconds[number]))
    answer = live.ask("What happens?", max_new_tokens=5)
    assert result.text == answer.strip() and result.token_counts.input_tokens == answer.prompt_tokens
    assert live.num_frames > 2


@pytest.mark.parametrize(
    ("of_task", "arguments"),
    [
        ({}, {"max_new_tokens": 128, "do_sample": False}),
        ({"max_new_tokens": 16, "temperature": 0.0, "top_p": 1.0}, {"max_new_tokens": 16, "do_sample": False}),
        ({"do_sample": True, "temperature": 0, "until": ["."]}, {"max_new_tokens": 128, "do_sample": False}),
        ({"do_sample": False, "temperature": 0.7}, {"max_new_tokens": 128, "do_sample": False}),
        ({"temperature": 0.7}, {"max_new_tokens": 128, "temperature": 0.7, "do_sample": True}),
        ({"do_sample": True, "top_p": None}, {"max_new_tokens": 128, "do_sample": True}),
    ],
)
def test_a_task_generates_greedily_unless_it_samples(module: ModuleType, of_task: dict, arguments: dict) -> None:
    assert module.generation_arguments(of_task) == arguments


def test_an_answer_ends_at_the_tasks_first_stop_string(module: ModuleType) -> None:
    assert module.until_stop("\n\nB\n\nfor it barks", ["\n\n"]) == "B"
    assert module.until_stop("B. Or C; or D", [";", "."]) == "B"
    assert module.until_stop(" B; or C ", ";") == "B" and module.until_stop(" B\n\nC ", []) == "B\n\nC"
    assert module.until_stop("B", None) == "B"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"batch_size": 4}, "`--batch_size` is 4"),
        ({"num_frames": "many"}, "`num_frames` is 'many'"),
        ({"live_fps": 0}, "`live_fps` is 0"),
        ({"live_fps": 1.0, "retention_ratio": 0.5}, "`retention_ratio` has no meaning for a live video"),
        ({"retention_ratio": 2}, "`retention_ratio` is 2"),
        ({"max_pixels": 99}, "'max_pixels'"),
        ({"import_module": "missing_methods"}, "`--import missing_methods` failed"),
    ],
)
def test_bad_model_arguments_are_refused(module: ModuleType, folder: Path, arguments: dict, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        module.VidCom2ForLmmsEval(str(folder), **arguments)


def test_each_process_uses_the_device_it_is_given(
    module: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Accelerator:
        process_index, num_processes, device = 1, 2, "cpu"

    monkeypatch.setattr(module, "Accelerator", Accelerator)
    with pytest.raises(OptionError, match="`device` is 'cpu'"):
        made(module, folder)
    model = module.VidCom2ForLmmsEval(str(folder))
    assert (model._rank, model._world_size, str(model.model.device)) == (1, 2, "cpu")


def test_unsupported_tasks_are_refused_before_anything_is_answered(
    module: ModuleType, folder: Path, clips: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(module, folder)
    monkeypatch.setattr(module, "ask", None)  # calling it would fail
    for shown, reason in (
        (3.5, r"the task 'a_task' shows \['float'\]"),
        (None, "the task 'a_task' shows None"),
        ("missing.mp4", "there is no video file 'missing.mp4'"),
    ):
        with pytest.raises(OptionError, match=reason):
            model.generate_until(Task(clips[0], shown).requests("What?"))
    for name in ("custom_generate", "trust_remote_code", "chat_template_kwargs", "past_key_values", "measure"):
        with pytest.raises(OptionError, match=f"the task has the option '{name}', but tasks may set only do_sample"):
            model.generate_until(Task(clips[0]).requests("What?", **{name: "a/b"}))
    with pytest.raises(OptionError, match="'a_task' ranks choices by their likelihood"):
        model.loglikelihood([Request(())])
    with pytest.raises(OptionError, match="'a_task' asks in several rounds"):
        model.generate_until_multi_round([Request(())])


def test_a_video_that_cannot_be_read_ends_all_processes(module: ModuleType, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(SystemExit, match=r"task 'a_task', document 0: cannot read the video .*broken\.mp4"):
        made(module, folder).generate_until(Task(tmp_path / "broken.mp4").requests("What?"))


def test_the_results_file_records_where_its_figures_are_from(
    module: ModuleType, folder: Path, clips: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command calls files by their names, and names the commit of a Hub repo."""
    monkeypatch.setattr(module, "version", lambda name: "9.9")
    methods, task = tmp_path / f"methods_{tmp_path.name}.py", tmp_path / "tasks" / "own.yaml"
    methods.write_text("")
    task.parent.mkdir()
    task.write_text("")
    commit, cached = "1" * 40, tmp_path / "hub" / "models--org--tiny"
    shutil.copytree(folder, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cached.parent))
    monkeypatch.chdir(folder)
    more = {"retention_ratio": 0.5, "import_module": str(methods)}

    def recorded(pretrained: str, **arguments: Any) -> dict[str, Any]:
        model = made(module, Path(pretrained), **more, **arguments)
        typed = {"pretrained": pretrained, **more, **arguments}
        options = argparse.Namespace(
            model_args=",".join(f"{name}={value}" for name, value in typed.items()),
            tasks=f"mvbench,{task}",
            gen_kwargs="",
            limit=2.0,
        )
        model.generate_until(Task(clips[0], args=options).requests("What?", max_new_tokens=1))
        written = json.dumps(options.birth_certificate)  # as lmms-eval writes it
        assert str(tmp_path) not in written and str(folder) not in written
        return json.loads(written)

    rest = f"retention_ratio=0.5,import_module={methods.name}"
    for pretrained, named in (
        (str(folder), f"pretrained=tiny-model,{rest}"),
        (".", f"pretrained=tiny-model,{rest}"),
        ("toy:qwen3_vl", f"pretrained=toy:qwen3_vl,{rest}"),
        ("org/tiny", f"pretrained=org/tiny,{rest},revision={commit}"),
    ):
        command = f"lmms-eval --model vidcom2 --model_args {named} --tasks mvbench,own.yaml --limit 2"
        assert recorded(pretrained)["command"] == command
    assert recorded("org/tiny", revision="main")["command"] == command  # the branch moves
    certificate = recorded(str(folder))
    assert certificate["model"] == "tiny-model" and certificate["model_commit"] is None
    assert certificate["model_files"] == digest(model_files(folder))
    assert certificate["lmms_eval"] == "9.9" and certificate["model_settings"]["retention_ratio"] == 0.5
    assert 0.5 <= certificate["kept_share"] < 0.6 and certificate["processes"] == 1 and certificate["torch"]


# -- its results on a card --------------------------------------------------------------------------------------------


def test_publish_reads_the_results_of_lmms_eval_that_state_their_provenance(tmp_path: Path) -> None:
    content = json.loads(RESULTS.read_text())
    result = read_result(RESULTS, ["tiny"])
    accuracy = content["results"]["vidcom2_questions"]["accuracy,none"]
    assert result.table.splitlines() == [
        "| task | metric | value | questions |",
        "|---|---|---|---|",
        f"| vidcom2_questions | accuracy | {accuracy:.4g} | 79 |",
    ]
    assert result.title == "lmms-eval 0.7.3: vidcom2 at retention_ratio 0.25, 16 frames"
    assert "`lmms-eval --model vidcom2 --model_args pretrained=tiny," in result.provenance
    with pytest.raises(ResultsError, match=r"'tiny', .* org/other"):
        read_result(RESULTS, ["org/other"])
    del content["config"]["resolved_cli_args"]["birth_certificate"]
    (tmp_path / "r.json").write_text(json.dumps(content))
    with pytest.raises(ResultsError, match="does not say its model, date, command"):
        read_result(tmp_path / "r.json", ["tiny"])


@pytest.mark.parametrize(("ratio", "how"), [(1.0, "all tokens"), (0.25, "vidcom2 at retention_ratio 0.25")])
def test_the_title_of_results_of_lmms_eval_names_another_tower_than_the_stock_models(
    ratio: float, how: str, tmp_path: Path
) -> None:
    content = json.loads(RESULTS.read_text())
    settings = content["config"]["resolved_cli_args"]["birth_certificate"]["model_settings"]
    settings |= {"retention_ratio": ratio, "vision_method": "skip_repeated", "vision_tolerance": 0.02}
    (tmp_path / "r.json").write_text(json.dumps(content))
    title = read_result(tmp_path / "r.json", ["tiny"]).title
    assert title == f"lmms-eval 0.7.3: {how}, vision_method skip_repeated, 16 frames"


def test_figures_of_lmms_eval_are_shown_unchanged(tmp_path: Path) -> None:
    content = json.loads(RESULTS.read_text())
    content["config"]["resolved_cli_args"]["birth_certificate"]["model_settings"]["retention_ratio"] = 1.0
    content["results"] = {
        "videomme": {"alias": "videomme", "videomme_perception_score,none": 58.25, "x_stderr_clt,none": 0.01},
        "egoschema": {"submission,none": None, "submission_stderr,none": "N/A"},
        "mvbench_a": {"mvbench_accuracy,strict": 1.0},
    }
    content["n-samples"] = {task: {"original": 9, "effective": 7} for task in content["results"]}
    (tmp_path / "r.json").write_text(json.dumps(content))
    result = read_result(tmp_path / "r.json", ["tiny"])
    assert result.title == "lmms-eval 0.7.3: all tokens, 16 frames"
    assert result.table.splitlines()[2:] == [
        "| videomme | videomme_perception_score | 58.25 | 7 |",
        "| mvbench_a | mvbench_accuracy,strict | 1 | 7 |",
    ]


# -- all of it --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@NEEDS_LMMS_EVAL
def test_two_processes_of_lmms_eval_give_the_answers_and_the_accuracy_of_vidcom2_eval(
    folder: Path, clips: list[Path], tmp_path: Path
) -> None:
    lines = [{"video": str(clip), "question": f"What {what}?"} for clip in clips for what in ("is this", "happens")]
    checkpoint = load_checkpoint(str(folder), device="cpu", retention_ratio=0.25)
    for line, of_model in zip(lines, (True, False, True, False), strict=True):
        line["answer"] = "nothing"
        if of_model:  # otherwise a random model would never be right
            inputs = prepare_inputs(
                checkpoint.processor, line["question"], read_video(line["video"], 4), checkpoint.model
            )
            output = checkpoint.model.generate(**inputs, max_new_tokens=32, do_sample=False)
            line["answer"] = checkpoint.processor.decode(
                output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True
            )
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)))

    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "lmms_eval"]
    command += ["--model", "vidcom2", "--model_args", f"pretrained={folder},num_frames=4,retention_ratio=0.25"]
    command += ["--include_path", str(ROOT / "benchmarks/needle/lmms_eval_task"), "--tasks", "vidcom2_questions"]
    command += ["--output_path", str(tmp_path / "out"), "--log_samples"]
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "hf")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found = list((tmp_path / "out").rglob("*_results.json"))
    assert ran.returncode == 0 and len(found) == 1, ran.stdout + ran.stderr

    data = ("--data", tmp_path / "questions.jsonl", "--output", tmp_path / "eval")
    compared = ("--methods", "vidcom2", "--ratios", "0.25", "--num-frames", 4, "--device", "cpu")
    assert vidcom2("eval", "--model", folder, *data, *compared)[0] == 0
    rows = [json.loads(line) for line in (tmp_path / "eval" / "answers.jsonl").read_text().splitlines()]
    label = next(label for label in rows[0]["answers"] if label != "all tokens")
    (samples,) = (tmp_path / "out").rglob("*_samples_*.jsonl")
    texts = {each["doc_id"]: each["filtered_resps"] for each in map(json.loads, samples.read_text().splitlines())}
    assert texts == {i: row["answers"][label]["text"].strip() for i, row in enumerate(rows)}
    results = json.loads(found[0].read_text())
    assert results["results"]["vidcom2_questions"]["accuracy,none"] == 0.5
    assert sum(row["answers"][label]["correct"] for row in rows) == 2
    assert results["config"]["resolved_cli_args"]["birth_certificate"]["processes"] == 2
    assert "| vidcom2_questions | accuracy | 0.5 | 4 |" in read_result(found[0], ["tiny-model"]).table
