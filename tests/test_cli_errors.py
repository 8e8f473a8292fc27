"""How the command line reports users' mistakes, broken files, an unreachable Hub, and its own bugs."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from loopback_hub import LoopbackHub
from safetensors.torch import load_file, save_file
from test_cli import FAST, mistake, vidcom2
from transformers import AutoConfig, AutoTokenizer

from vidcom2 import load
from vidcom2.demo import serving
from vidcom2.errors import FIRST_TOO_NEW, OLDEST_TRANSFORMERS, transformers_problem
from vidcom2.explaining import drawing_file
from vidcom2.families import table as families
from vidcom2.families.table import FAMILIES
from vidcom2.loading import placement
from vidcom2.loading.checkpoints import CheckpointError
from vidcom2.loading.finding_checkpoints import resolve
from vidcom2.loading.placement import Placement
from vidcom2.toys import TOY


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """Copy a checkpoint that a test may break."""
    return Path(shutil.copytree(folder, tmp_path / "model"))


# -- before anything takes long ---------------------------------------------------------------------------------------

FAST_MISTAKES = [
    (["run", "--video", ""], "`--video` is '': empty. Is a shell variable unset?"),
    (["run", "--model", ""], "cannot load the model ''"),
    (["run", "--prompt", " "], "`--prompt` is ' '"),
    (["explain", "-o", "a.png", "--video", ""], "`--video` is ''"),
    (["explain", "-o", "a.png", "--model", ""], "cannot load the model ''"),
    (["run", "--model", "org/model", "--revision", ""], "`--revision` is ''"),
    (["run", "--compression-newlines", "all"], "`--compression-newlines` is not a setting of the model 'a toy LLaVA"),
    (["run", "--video", "missing.mp4"], "there is no video file 'missing.mp4'"),
    (["run", "--video", "."], "'.' is a folder"),
    (["run", "--retention-ratio", "0"], "`--retention-ratio` is 0.0"),
    (["run", "--retention-ratio", "nan"], "`--retention-ratio` is nan"),
    (["run", "--retention-ratio", "25%"], "`--retention-ratio` is '25%', but must be a number in (0, 1]"),
    (["bench", "--retention-ratio", "25", "-o", "out"], "`--retention-ratio` has '25'"),
    (["run", "--import", "nowhere"], "`--import nowhere` failed"),
    (["run", "--compression-rounding", "up"], "`--compression-rounding` is 'up', but must be one of 'exact'"),
    (["explain", "-o", "a.png", "--compression-window", "0"], "`--compression-window` is 0"),
    (["run", "--dtype", "int8"], "`--dtype` is 'int8', but must be one of auto, float32"),
    (["run", "--device", "toaster"], "`--device` is 'toaster', but must be auto, cpu, cuda"),
    (["run", "--device-map", "toaster"], "`--device-map` is 'toaster', but must be a device or one of auto, balanced"),
    (["run", "--device", "cpu", "--device-map", "auto"], "Pass one of them"),
    (["run", "--attn-implementation", "fast"], "`--attn-implementation` is 'fast', but must be one of sdpa, eager"),
    (["run", "--attn-implementation", "flash_attention_2", "--device", "cpu"], "FlashAttention2 needs a GPU"),
    (["run", "--revision", "v1"], "`--revision` is 'v1', but no model is named"),
    (["run", "--revision", "v1", "--model", "."], "`--revision` is 'v1', but the model '.' is a folder"),
    (["run", "--model", "."], "the folder has no config.json"),
    (["run", "--model", "llava-vide"], "there is no such folder, and a Hub id has its organisation in front"),
    (["run", "--model", "./llava-vide"], "there is no such folder, and it is no Hub id"),
    (["run", "--model", "org/llava-vide"], "the Hub is not asked, since HF_HUB_OFFLINE"),
    (["explain", "-o", "out.txt"], "`--output` is 'out.txt', but must end in .png or .html"),
    (["explain", "-o", "no/such/folder/out.png"], "there is no folder 'no/such/folder'"),
    (["demo", "https://host/clip.mp4"], "is a video on the web. Download it"),
    (["demo", "clip.watched"], "is a watched video, whose frames are gone"),
    (["demo", "missing.mp4"], "there is no video file 'missing.mp4'"),
]
NO_VIDEO = [
    (["run", "--video", "text.mp4"], "'text.mp4'"),
    (["run", "--video", "empty.mp4"], "'empty.mp4' is empty"),
    (["explain", "-o", "a.png", "--video", "text.mp4"], "'text.mp4'"),
    (["demo", "text.mp4"], "text.mp4'"),
]
NO_DEVICE = [
    (["run", "--device-map", "cuda:77"], "`--device-map` is 'cuda:77', but this machine has no such device"),
    *(
        ([*command, "--device", "cuda:77"], "`--device` is 'cuda:77', but this machine has no such device")
        for command in (
            ["run"],
            ["run", "--compression-method", "evs"],
            ["run", "--requests", "questions.jsonl", "-o", "answers.jsonl"],
            ["explain", "-o", "a.png"],
            ["eval", "--data", "questions.jsonl", "-o", "out"],
            ["bench", "-o", "bench"],
            ["verify", "."],
            ["demo"],
        )
    ),
    (["run", "--device", "mps"], "`--device` is 'mps', but this machine has no such device"),
]
ON_A_GPU = torch.cuda.is_available() or sys.platform == "darwin"  # where only PyTorch can tell which devices there are
IN_A_FRESH_PROCESS = """
import json, sys
from typer.testing import CliRunner
from vidcom2.cli.app import app
results = []
for arguments in [["--help"], ["--version"], *json.loads(sys.argv[1])]:
    done = CliRunner().invoke(app, arguments)
    heavy = sorted({"torch", "transformers", "av", "matplotlib"} & set(sys.modules))
    results.append([heavy, done.exit_code, done.stdout, done.stderr])
print(json.dumps(results))
"""


def test_a_mistake_is_reported_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    """Only files of videos need PyAV. The mistakes come in this order, since what is imported stays."""
    needed = [(FAST_MISTAKES, []), (NO_DEVICE, ["torch"] * ON_A_GPU), (NO_VIDEO, ["av", *["torch"] * ON_A_GPU])]
    mistakes = [(*mistake, heavy) for each, heavy in needed for mistake in each]
    files = {"text.mp4": "no video", "empty.mp4": "", "questions.jsonl": '{"video": "a.mp4", "question": "What?"}'}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS, json.dumps([arguments for arguments, *_ in mistakes])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (*_, help_code, help_text, _), (*_, version_code, version_text, _), *results = json.loads(done.stdout)
    assert help_code == 0 and "explain" in help_text and "--install-completion" in help_text
    assert version_code == 0 and f"torch {torch.__version__.split('+')[0]}" in version_text
    for (arguments, message, needs), (heavy, code, shown, error) in zip(mistakes, results, strict=True):
        assert set(heavy) <= set(needs), (arguments, heavy)
        runs_many = "--requests" in arguments or ("questions.jsonl" in arguments and "torch" in needs)
        told = "The model is a toy" in shown if runs_many else not shown
        assert code == 2 and told, (arguments, shown, error)
        error = error.removeprefix("Loading the toy ...\n") if "torch" in needs else error
        assert error.count("\n") == 1 and error.startswith("Error: ") and message in error, (arguments, error)
    written = {path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert written == files.keys()


MISSPELT = [
    (["run", "--video", "http://127.0.0.1:9/v.mp4"], "cannot download"),
    (["run", "--against", "dycok"], "`--against` is 'dycok', but must be one of .* Did you mean 'dycoke'"),
    (["run", "--compression-method", "Uniform-Frames"], "`--compression-method` is .* Did you mean 'uniform_frames'"),
    (["eval", "--data", "q.jsonl", "--methods", "vidcom"], "`--methods` is 'vidcom', .* Did you mean 'vidcom2'"),
    (["bench", "--method", "randm"], "`--method` is 'randm', but must be one of .* Did you mean 'random'"),
    (["bench", "--method", "vidcom2:compression_score=mean"], "'compression_score' is not a setting .*'compression_sc"),
    (["bench", "--model-size", "qwen2vl-7b"], "`--model-size` is 'qwen2vl-7b', .* Did you mean 'qwen2-vl-7b'"),
    (["run", "--against", "zzz"], "`--against` is 'zzz', but must be one of (?!.*(mean|default))"),
    (["run", "--retention-ratio", "25"], "`--retention-ratio` is .* Did you mean 0.25?"),
    (["eval", "--data", "q.jsonl", "--ratios", "25%"], "`--ratios` has '25%', .* Did you mean 0.25?"),
    (["run", "--dtype", "bf16"], "`--dtype` is 'bf16', .* Did you mean 'bfloat16'"),
]


def test_a_misspelling_is_answered_with_what_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If anything is like it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.jsonl").write_text('{"video": "a.mp4", "question": "What?"}')
    for arguments, message in MISSPELT:
        assert re.search(message, mistake(*arguments)), arguments


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("matplotlib", ["explain", "-o", "a.png"]),
        ("accelerate", ["run", "--device-map", "auto"]),
        ("flash-attn", ["run", "--attn-implementation", "flash_attention_2"]),
        ("Gradio", ["demo"]),
    ],
)
def test_a_missing_package_is_named_with_its_command(
    package: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (drawing_file, placement, serving):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    error = mistake(*arguments)
    assert package in error and "pip install" in error


@pytest.fixture(scope="module")
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smolvlm")
    for part in FAMILIES["smolvlm"].build_tiny():
        part.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--model", "MODEL"],
        ["run", "--model", "MODEL", "--requests", "QUESTIONS", "-o", "OUT"],
        ["eval", "--model", "MODEL", "--data", "QUESTIONS", "-o", "OUT"],
        ["bench", "--model-size", "smolvlm2-2.2b", "-o", "OUT"],
        ["demo", "--model", "MODEL"],
        ["publish", "--base", "MODEL", "--repo", "org/repo", "--dry-run", "-o", "OUT"],
        ["verify", "MODEL"],
    ],
    ids=" ".join,
)
def test_a_package_that_a_family_needs_is_asked_for_by_name_before_anything_else(
    arguments: list[str], smolvlm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "find_spec", lambda name: None)
    monkeypatch.setattr("vidcom2.video.reading.read_video", lambda *_, **__: pytest.fail("a video was read"))
    monkeypatch.setattr("vidcom2.hub_upload.base_checkpoint.sha256_of", lambda *_: pytest.fail("a file was hashed"))
    if arguments[0] == "verify":
        smolvlm = Path(shutil.copytree(smolvlm, tmp_path / "repo"))
        (smolvlm / "modeling_vidcom2_smolvlm.py").write_text("")
    row = {"question": "What?", "answer": "3"} if arguments[0] == "eval" else {"prompt": "What?"}
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"video": str(TOY.clips[0].path), **row}))
    given = {"MODEL": smolvlm, "QUESTIONS": questions, "OUT": tmp_path / "out"}
    error = mistake(*(given.get(each, each) for each in arguments))
    assert "SmolVLM needs num2words, which is not installed. Run: pip install num2words" in error


def test_a_missing_package_is_asked_for_in_python(smolvlm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "find_spec", lambda name: None)
    monkeypatch.setattr(placement, "find_spec", lambda name: None)
    for call, package in (
        (lambda: load(smolvlm), "num2words"),
        (lambda: FAMILIES["smolvlm"].build_tiny, "num2words"),
        (lambda: load(smolvlm, device_map="auto"), "accelerate"),
    ):
        with pytest.raises(ValueError, match=f"pip install {package}"):
            call()


# -- versions ---------------------------------------------------------------------------------------------------------

WITH_TRANSFORMERS = """
import importlib.metadata, json, sys, warnings
from typer.testing import CliRunner
real, told = importlib.metadata.version, []
for version in sys.argv[1:]:
    importlib.metadata.version = lambda name: version if name == "transformers" else real(name)
    for name in [name for name in sys.modules if name.startswith("vidcom2")]:
        del sys.modules[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import vidcom2
    from vidcom2.cli.app import app
    run, heavy = CliRunner().invoke(app, ["run"]), sorted({"torch", "transformers"} & set(sys.modules))
    told.append([[str(each.message) for each in caught], heavy, run.exit_code, run.stdout, run.stderr])
print(json.dumps([told, CliRunner().invoke(app, ["env"]).stdout]))
"""


def test_a_transformers_that_is_too_old_or_too_new_says_so_on_import() -> None:
    versions = {"5.18.9": "old", "6.0.0": "new"}
    command = [sys.executable, "-c", WITH_TRANSFORMERS, *versions]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told, environment = json.loads(done.stdout)
    for (version, how), found in zip(versions.items(), told, strict=True):
        said = f'Transformers {version} is too {how} for this vidcom2. Run: pip install "transformers>=5.19,<6"'
        assert found == [[said], [], 2, "", f"Error: {said}\n"]
    assert said in environment


def test_the_supported_versions_are_those_of_the_project() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    oldest, too_new = (".".join(map(str, each)) for each in (OLDEST_TRANSFORMERS, FIRST_TOO_NEW))
    assert f'"transformers>={oldest},<{too_new}"' in project and transformers_problem() is None


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_model_of_another_family_is_refused_by_its_type(tmp_path: Path) -> None:
    AutoConfig.for_model("gpt2").save_pretrained(tmp_path)
    error = mistake("run", "--model", tmp_path, *FAST)
    assert "'gpt2'" in error and "'llava_onevision'" in error


def cut(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


Harm = Callable[[Path], object]


def edited(text_config: dict[str, object] | None = None, **fields: object) -> Harm:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | fields
        config["text_config"] |= text_config or {}
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def replaced(file: str, text: str) -> Harm:
    return lambda folder: (folder / file).write_text(text)


def drop_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights[next(name for name in weights if name.endswith("layers.1.mlp.up_proj.weight"))]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def code_of_a_tokenizer(folder: Path) -> None:
    """Let the tokenizer be of a class whose code lies in the folder. The code must not run."""
    content = json.loads((folder / "tokenizer_config.json").read_text())
    code = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(content | code))
    (folder / "mine.py").write_text("raise SystemExit(7)")


def add_a_token(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["assistant"])
    tokenizer.save_pretrained(folder)


OTHER_SHAPES = r"6 of its weights are not of the shape that its config.json says \(.*, \.\.\.\)"
NO_QUANTIZATION = "its config: `quantization_config` is .*'magic'.*, which this Transformers does not know"
IN_THE_REPO = "its processor: a class of it is code in the repo, which is not run"
NO_TEMPLATE = "chat template cannot be used: .*does not have a chat template. Set `processor.chat_template`"
BROKEN: list[tuple[Harm, str]] = [
    (lambda folder: cut(folder / "model.safetensors", 0.5), "its weights: .*Is the file complete"),
    (replaced("model.safetensors", POINTER), "its model.safetensors is only a pointer of Git LFS. Run `git lfs pull`"),
    (drop_a_weight, r"1 of its weights are missing \(\S*layers.1.mlp.up_proj.weight\)"),
    (edited({"intermediate_size": 80}), OTHER_SHAPES),
    (edited({"hidden_size": "many"}), "its config: .*'hidden_size'"),
    (lambda folder: cut(folder / "config.json", 0.5), "its config: .*config.json is not valid"),
    (edited(retention_ratio=7), r"its config: `retention_ratio` is 7, but must be a number in \(0, 1\]"),
    (edited(quantization_config={"quant_method": "magic"}), NO_QUANTIZATION),
    (edited(model_type=["llava_onevision"]), "its config: it names no `model_type`"),
    (replaced("generation_config.json", "{"), "its generation config: .*double quotes"),
    (lambda folder: (folder / "processor_config.json").unlink(), "its processor: "),
    (lambda folder: cut(folder / "tokenizer.json", 0.5), "its processor: "),
    (code_of_a_tokenizer, IN_THE_REPO),
    (add_a_token, "a prompt has the token .*, but the model has embeddings of .* if it was extended"),
    (edited(video_token_id=3, video_token_index=3), r"a prompt has no placeholder of a video \(3 or"),
    (lambda folder: (folder / "chat_template.jinja").unlink(), NO_TEMPLATE),
    (replaced("chat_template.jinja", "{% for message in %}"), "chat template cannot be used: Expected an expression"),
    (replaced("chat_template.jinja", "{{ messages[0]['role'] }}"), "chat template leaves videos out. Set"),
]


@pytest.mark.parametrize(("harm", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_a_broken_checkpoint_is_reported_by_the_part_that_is_broken(harm: Harm, message: str, copied: Path) -> None:
    harm(copied)
    error = mistake("run", "--model", copied, *FAST)
    assert re.search(message, error), error
    assert str(copied) in error or "chat template" in error or "a prompt has" in error


def test_an_impossible_conversion_is_reported_in_one_line(tmp_path: Path) -> None:
    to = ["convert-llava-video", tmp_path / "source", tmp_path / "destination"]
    assert "`--spatial-pool-mode` is 'middle'" in mistake(*to, "--spatial-pool-mode", "middle")
    assert "there is no folder" in mistake(*to)


def test_a_full_disk_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vidcom2.explaining.explain.page_html", full)
    error = mistake("explain", "--num-frames", 2, "-o", tmp_path / "out.html")
    assert "out.html" in error and "No space left on device" in error


# -- memory and bugs --------------------------------------------------------------------------------------------------


def test_running_out_of_memory_is_reported_with_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    for allocate in (torch.empty, np.empty):
        monkeypatch.setattr("vidcom2.asking.comparison.prepare_video", lambda *_, call=allocate, **__: call(10**15))
        error = mistake("run", *FAST)
        assert error.startswith("Error: out of memory")
        for remedy in ("--num-frames", "--no-baseline", "--dtype bfloat16", "--device-map auto"):
            assert remedy in error


BUGS = {
    "ValueError": lambda *_, **__: int("x"),
    "OSError": lambda *_, **__: Path("/no/such/file").read_text(),
    "KeyError": lambda *_, **__: {}["x"],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_shows_its_traceback_and_how_to_report_it(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vidcom2.asking.comparison.prepare_video", BUGS[bug])
    code, shown, error = vidcom2("run", *FAST)
    assert code == 1 and not shown
    assert "Traceback (most recent call last)" in error and "in run_command" in error
    last = error.splitlines()[-1]
    assert last.startswith("Error: This is a bug in vidcom2. Please report it")
    assert f"torch {torch.__version__.split('+')[0]}" in last


# -- the Hub ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[LoopbackHub]:
    with LoopbackHub(tmp_path_factory.mktemp("hub")) as hub:
        hub.seed("org/model", folder)
        hub.create("org/empty")
        yield hub


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("org/nothing", None, "the Hub has no such repo"),
        ("org/model", "v9", "no commit, tag or branch 'v9'"),
        ("org/empty", None, "has no config.json"),
    ],
)
def test_a_name_is_asked_for_once_on_the_hub(
    name: str, revision: str | None, message: str, hub: LoopbackHub, tmp_path: Path
) -> None:
    hub.requests.clear()
    with hub.online(tmp_path / "home"), pytest.raises(CheckpointError, match=message):
        resolve(name, Placement(revision=revision), {})
    assert len([request for request in hub.requests if name in request.path]) == 1


def test_the_name_of_a_repo_on_the_hub_is_left_to_transformers(hub: LoopbackHub, tmp_path: Path) -> None:
    with hub.online(tmp_path / "home"):
        for revision in (None, hub.head("org/model")):
            assert resolve("org/model", Placement(revision=revision), {}).source.path == "org/model"


def test_an_unreachable_hub_is_told_at_once(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub.online(tmp_path / "home", waiting=True):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"waits {seconds} s"))
        with pytest.raises(CheckpointError, match="the Hub cannot be reached"):
            resolve("org/model", Placement(), {})


@pytest.mark.slow
def test_the_revision_that_was_asked_for_is_loaded(hub: LoopbackHub, tmp_path: Path) -> None:
    first = hub.head("org/model")
    hub.commit("org/model", {"config.json": b"{}"})  # the newest revision cannot be loaded
    command = [sys.executable, "-m", "vidcom2", "run", "--model", "org/model", "--json", *FAST]
    environment = hub.environment(tmp_path / "home")
    for revision, code in (([], 2), (["--revision", first], 0)):
        done = subprocess.run([*command, *revision], capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["model"] == "org/model"


@pytest.mark.parametrize("name", ["nosuch", "my model"])
@pytest.mark.parametrize("command", [["verify"], ["publish", "--repo", "org/x", "--base"]])
def test_a_mistyped_folder_is_no_repo_on_the_hub(
    command: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.__init__", lambda *args, **kwargs: pytest.fail("the Hub was asked"))
    code, _, error = vidcom2(*command, name)
    assert code == 2 and f"cannot load the model {name!r}: there is no such folder" in " ".join(error.split())
