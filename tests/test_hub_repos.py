"""Repos are published to a Hub on loopback, and a user with an empty cache runs them by name.

The user's process cannot import `vidcom2`, and talks to the Hub over HTTP with the client's default settings.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import constants
from loopback_hub import LoopbackHub, Request
from models import CASES_THAT_LOAD, ModelCase, make_video
from packaging import version
from safetensors.torch import load_file, save_file
from test_cli import mistake, shown_by, vidcom2
from transformers import AutoProcessor, ProcessorMixin

from vidcom2.loading.processors import of_whole_prompts, shorten
from vidcom2.shipping.shipped_code import LICENSE, code_of
from vidcom2.toys import DEMO_VIDEO

LITTLE_MOVED = ("glm5_next", "nemotron_h_omni")  # by their videos, with weights as in other families
RATIO, NEW_RATIO, CALL_RATIO = 0.5, 0.25, 0.1  # of tag v1, of main, of a single call
QUESTION = "What happens?"

USER_START = """
import sys
sys.modules["vidcom2"] = None
import json
import numpy as np
import torch
from transformers import AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM, AutoProcessor, pipeline

task = json.loads(sys.argv[1])
video = np.load(task["video"])
content = [{"type": "video", "video": video}, {"type": "text", "text": task["question"]}]
chat = [{"role": "user", "content": content}]
greedy = {"max_new_tokens": 8, "do_sample": False}
trust = {"trust_remote_code": True}

def inputs_of(processor, **settings):
    placeholders = [{"role": "user", "content": [{"type": "video"}, content[1]]}]
    prompt = processor.apply_chat_template(placeholders, add_generation_prompt=True)
    return processor(text=[prompt], videos=[[video]], do_sample_frames=False, return_tensors="pt", **settings)

def new_tokens(model, inputs, **kwargs):
    return model.generate(**inputs, **greedy, **kwargs)[0, inputs["input_ids"].shape[1]:].tolist()
"""

USER = (
    USER_START
    + """
report = {}
bases = {name: repo["base"] for name, repo in task["repos"].items() if repo["native"]}
stock = {name: AutoModelForImageTextToText.from_pretrained(base) for name, base in bases.items()}
stock_inputs = {name: inputs_of(AutoProcessor.from_pretrained(base)) for name, base in bases.items()}
before = {name: new_tokens(model, stock_inputs[name]) for name, model in stock.items()}

models = {}
for name, repo in task["repos"].items():
    name_on_hub, found = repo["repo"], {}
    processor = AutoProcessor.from_pretrained(name_on_hub, **trust)
    inputs = inputs_of(processor)
    models[name] = AutoModel.from_pretrained(name_on_hub, **trust)
    tuned = AutoModelForImageTextToText.from_pretrained(name_on_hub, retention_ratio=task["call_ratio"], **trust)
    pinned = AutoModelForMultimodalLM.from_pretrained(name_on_hub, revision="v1", **trust)
    found["classes"] = [type(model).__name__ for model in (models[name], tuned, pinned)]
    found["ratios"] = [model.config.retention_ratio for model in (models[name], tuned, pinned)]
    settings = {"retention_ratio": task["call_ratio"]}
    of_tuned = inputs_of(AutoProcessor.from_pretrained(name_on_hub, **settings, **trust))
    of_pinned = inputs_of(AutoProcessor.from_pretrained(name_on_hub, revision="v1", **trust))
    found["tokens"] = [new_tokens(models[name], inputs), new_tokens(tuned, of_tuned), new_tokens(pinned, of_pinned)]
    found["for one call"] = new_tokens(models[name], inputs_of(processor, **settings))

    by_tag = pipeline(model=name_on_hub, **trust)
    found["task"] = by_tag.task
    found["answers"] = [by_tag(videos=video, text=task["question"], generate_kwargs=greedy)[0]["generated_text"]]
    as_chat = {"text": chat, "generate_kwargs": greedy, "return_full_text": False} | repo["chat arguments"]
    for kind in repo["chat pipelines"]:
        found["answers"].append(pipeline(kind, model=name_on_hub, **trust)(**as_chat)[0]["generated_text"])
    pipe = pipeline("image-text-to-text", model=name_on_hub, model_kwargs=settings, **trust)
    at_ratio = as_chat | {"processor_kwargs": as_chat.get("processor_kwargs", {}) | settings}
    found["answer at call ratio"] = pipe(**at_ratio)[0]["generated_text"]
    try:
        untrusted = AutoModelForImageTextToText.from_pretrained(name_on_hub, trust_remote_code=False)
        of_stock = inputs_of(AutoProcessor.from_pretrained(name_on_hub, trust_remote_code=False))
        found["untrusted"] = [type(untrusted).__module__.split(".")[0], new_tokens(untrusted, of_stock)]
    except ValueError as error:
        found["untrusted"] = "refused" if "trust_remote_code" in str(error) else str(error)
    report[name] = found

# All of them are in one process now, and none has changed another.
for name, model in models.items():
    inputs = inputs_of(AutoProcessor.from_pretrained(task["repos"][name]["repo"], **trust))
    report[name]["tokens at the end"] = new_tokens(model, inputs)
for name, model in stock.items():
    report[name]["stock"] = [before[name], new_tokens(model, stock_inputs[name])]
print(json.dumps(report))
"""
)


@dataclass
class World:
    """A Hub with stock checkpoints, and a user in another process."""

    hub: LoopbackHub
    folder: Path
    processors: dict[str, ProcessorMixin] = field(default_factory=dict)

    def base(self, case: ModelCase) -> Path:
        """Return the folder of a family's stock checkpoint, and make it and its repo on the Hub where they lack."""
        folder = self.folder / f"base-{case.name}"
        if not folder.exists():
            stock, self.processors[case.name] = case.build(**case.build_arguments)
            with torch.no_grad():
                for parameter in stock.parameters():
                    if parameter.ndim > 1:
                        # Otherwise random weights give nearly the same answer to any video.
                        parameter.mul_(5 if case.takes_one_kind else 3 if case.name in LITTLE_MOVED else 2)
            for part in (stock, self.processors[case.name]):
                part.save_pretrained(folder)
            self.hub.seed(f"org/{case.name}-base", folder)
        return folder

    def user(self, script: str, token: str | None = None, **task: Any) -> dict[str, Any]:
        video = self.folder / "video.npy"
        if not video.exists():
            np.save(video, make_video(0))
        task |= {"video": str(video), "question": QUESTION, "call_ratio": CALL_RATIO}
        return json.loads(self.run(script, json.dumps(task), token=token).splitlines()[-1])

    def run(self, script: str, *arguments: str, token: str | None = None) -> str:
        home = self.folder / f"user-{len(list(self.folder.glob('user-*')))}"
        result = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            timeout=500,
            cwd=self.folder,
            env=self.hub.environment(home, token) | {"OMP_NUM_THREADS": "1"},
        )
        assert result.returncode == 0, result.stderr[-4000:]
        return result.stdout

    def run_card_snippets(self, repos: list[str]) -> None:
        """Run the Python of these cards as it is, with a video file and only PyAV to read it. Each block must print an
        answer."""
        cards = [self.hub.read(repo, "README.md").decode() for repo in repos]
        blocks = [block.split("```")[0] for card in cards for block in card.split("```python\n")[1:]]
        start = "import sys; sys.modules |= dict.fromkeys(['vidcom2', 'torchcodec'])"
        (self.folder / "clip.mp4").write_bytes(DEMO_VIDEO.read_bytes())
        out = self.run("\nprint('<end>')\n".join([start, *blocks, ""]))
        # `print` ends a line after the answer and after "<end>". Random weights may answer with line breaks alone.
        answers = [answer.removeprefix("\n").removesuffix("\n") for answer in out.split("<end>")[1:-1]]
        assert len(answers) == len(blocks) == 2 * len(CASES_THAT_LOAD) and all(answers), out

    def inputs(self, case: ModelCase, is_ours: bool) -> Any:
        processor = of_whole_prompts(self.processors[case.name])
        if is_ours and not case.family.runs_stock_prompts:  # whose stock prompts are refused
            shorten(processor, case.config_class(compression_rounding="ceil"))
        content = [{"type": "video"}, {"type": "text", "text": QUESTION}]
        prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        return processor(text=[prompt], videos=[[make_video(0)]], do_sample_frames=False, return_tensors="pt")

    def expected(self, case: ModelCase, **settings: Any) -> list[int]:
        """Return the new tokens of the package's class, or of the stock class if there are no settings."""
        inputs = self.inputs(case, bool(settings))
        load = case.model_class.from_pretrained if settings else case.stock_from
        model = load(self.base(case), **settings)
        out = model.generate(**inputs, max_new_tokens=8, do_sample=False)
        return out[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.fixture(scope="module")
def one_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with LoopbackHub(folder / "hub") as hub, hub.online(folder / "home"), pytest.MonkeyPatch.context() as patch:
        for name, value in {"HF_TOKEN": "hf_test", "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}.items():
            patch.setenv(name, value)
        yield World(hub, folder)


@pytest.fixture
def world(one_world: World) -> World:
    one_world.hub.mend()
    one_world.hub.requests.clear()
    return one_world


def chat_pipelines(case: ModelCase) -> list[str]:
    """Return the tasks of pipelines that take a chat. On Transformers 5.19, `"any-to-any"` asks for librosa if a model
    hears."""
    lacks_librosa = "audio" in case.model_class.input_modalities and find_spec("librosa") is None
    if lacks_librosa and version.parse(transformers.__version__) < version.parse("5.20"):
        return ["image-text-to-text"]
    return ["image-text-to-text", "any-to-any"]


BASE = ("--base", "org/qwen2_vl-base")
QWEN2_VL = next(case for case in CASES_THAT_LOAD if case.name == "qwen2_vl")


def written(world: World) -> list[Request]:
    """Return the requests that could have changed something on the Hub."""
    return [request for request in world.hub.requests if request.method not in ("GET", "HEAD")]


@pytest.mark.slow
def test_a_user_with_an_empty_cache_can_run_every_published_repo_by_name(world: World) -> None:
    for case in CASES_THAT_LOAD:
        world.base(case)
        names = ("publish", "--base", f"org/{case.name}-base", "--repo", f"org/{case.name}", "--no-verify")
        shown_by(*names, "--retention-ratio", RATIO, "--tag", "v1")
        shown_by(*names, "--retention-ratio", NEW_RATIO, "--compression-frame-score", "max")

    repos = {
        case.name: {
            "repo": f"org/{case.name}",
            "base": f"org/{case.name}-base",
            "native": case.native,
            "chat pipelines": chat_pipelines(case),
            "chat arguments": {"processor_kwargs": {"do_sample_frames": False}} if case.takes_one_kind else {},
        }
        for case in CASES_THAT_LOAD
    }
    world.run_card_snippets([f"org/{case.name}" for case in CASES_THAT_LOAD])
    report = world.user(USER, repos=repos)
    for case in CASES_THAT_LOAD:
        found = report[case.name]
        ratios, newer = [NEW_RATIO, CALL_RATIO, RATIO], {"compression_frame_score": "max"}
        tokens = [world.expected(case, retention_ratio=ratio, **newer) for ratio in ratios[:2]]
        tokens.append(world.expected(case, retention_ratio=RATIO))
        stock = world.expected(case)
        assert len({str(row) for row in [*tokens, stock]}) >= 3, "the ratios make no difference"
        assert found["classes"] == [case.model_class.__name__] * 3
        assert found["ratios"] == ratios
        assert found["tokens"] == tokens
        assert found["tokens at the end"] == tokens[0]
        assert found["for one call"] == tokens[1]
        assert found["task"] == "video-text-to-text"
        # In pipelines, MiniCPM-V's processor moves the space around an answer.
        first, second = (
            world.processors[case.name].decode(row, skip_special_tokens=True).strip() for row in tokens[:2]
        )
        answers = [each.strip() for each in found["answers"]]
        assert answers == [first] * (1 + len(chat_pipelines(case)))
        assert found["answer at call ratio"].strip() == second
        assert found["untrusted"] == (["transformers", stock] if case.native else "refused")
        if case.native:
            assert found["stock"] == [stock, stock]
    assert "hf_test" not in world.hub.log_text()


@pytest.mark.slow
def test_verify_takes_a_repo_by_name_and_revision(world: World) -> None:
    case, repo = CASES_THAT_LOAD[2], "org/verified"
    world.base(case)
    names = ("publish", "--base", f"org/{case.name}-base", "--repo", repo)
    out = shown_by(*names, "--tag", "v1", "--compression-method", "random")
    assert "Verification of what was staged" in out and "Published" in out and "tagged v1" in out
    commit = world.hub.head(repo)
    world.hub.commit(repo, {"compression.py": b"raise SystemError"}, "spoilt")
    out = shown_by("verify", repo, "--revision", "v1")
    assert out.count("passed") == 15 and commit[:20] in out, out
    assert vidcom2("verify", repo, "--revision", "v2")[0] == 2


@pytest.mark.slow
def test_dry_runs_and_failed_verifications_send_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    base = Path(shutil.copytree(world.base(CASES_THAT_LOAD[0]), tmp_path / "base"))
    names = ("publish", "--base", base, "--repo", "org/dry", "--base-model", "org/known")
    out = shown_by(*names, "--dry-run", "--no-verify")
    staged = tmp_path / "dry-staged"
    for path in staged.iterdir():
        assert any(line.startswith("add") and line.split()[-1] == path.name for line in out.splitlines()), path
    assert "model.safetensors" in out and "nothing was sent" in out
    assert "base_model: org/known" in (staged / "README.md").read_text()
    assert not written(world) and "It loads as it is" in out
    assert CASES_THAT_LOAD[0].model_class.from_pretrained(staged).config.retention_ratio == 0.25

    tensors = load_file(base / "model.safetensors")
    lm_head = tensors.pop("language_model.lm_head.weight")
    for weights, reason in (
        (tensors | {"lm_head.weight": lm_head, "surplus": torch.ones(2)}, "surplus"),
        (tensors, "lm_head"),
    ):
        save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
        code, out, error = vidcom2(*names)
        assert code == 1 and reason in out and "failed" in out, out + error
    assert not written(world)


@pytest.mark.parametrize("fault", ["offline", "no network", "a proxy's 503"])
def test_a_dry_run_needs_no_network(fault: str, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = world.base(QWEN2_VL)
    monkeypatch.chdir(tmp_path)
    if fault == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif fault == "no network":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    else:
        world.hub.fail("GET", "/api/", status=503, times=100)
    names = ("publish", "--base", base, "--repo", "org/dry", "--no-verify")
    code, out, error = vidcom2(*names, "--dry-run")
    assert code == 0 and "nothing was sent" in out and "the operations are those of a new repo" in error, error
    reason = {"offline": "HF_HUB_OFFLINE", "no network": "cannot be reached", "a proxy's 503": "answered 503"}[fault]
    assert reason in error
    assert (tmp_path / "dry-staged" / "config.json").is_file()
    assert reason in mistake(*names)
    assert reason in mistake(*names, "--dry-run", *BASE, "--output", "other") and not (tmp_path / "other").exists()


@pytest.mark.parametrize("via", ["push_to_hub", "save_pretrained", "save_pretrained, by position"])
def test_pushing_never_overwrites_a_file_of_others(via: str, world: World, tmp_path: Path) -> None:
    config = CASES_THAT_LOAD[0].config_class(retention_ratio=0.4)
    mine, repo = b"mine = 1\n", f"ada/pushed-by-{via.split()[-1]}"

    def push(repo: str) -> None:
        if via == "push_to_hub":
            config.push_to_hub(repo)
        elif via == "save_pretrained":
            config.save_pretrained(str(tmp_path), push_to_hub=True, repo_id=repo)
        else:
            config.save_pretrained(str(tmp_path), True, repo_id=repo)

    world.hub.create(repo)
    world.hub.commit(repo, {"compression.py": mine}, "mine")
    before = world.hub.head(repo)
    for name in (repo, repo.partition("/")[2]):
        refused = rf"'{repo}' holds 'compression\.py', which this .* Nothing was written there\."
        with pytest.raises(ValueError, match=refused):
            push(name)
    assert world.hub.head(repo) == before and world.hub.read(repo, "compression.py") == mine
    if via == "push_to_hub":
        with pytest.raises(ValueError, match=r"holds 'compression\.py'"):
            config.push_to_hub(repo, revision="a-new-branch")  # which begins as the main one
    world.hub.commit(repo, {"compression.py": None}, "moved away")
    for _ in range(2):
        push(repo)
    push(f"{repo}-anew")
    assert world.hub.files(f"{repo}-anew").keys() >= {"config.json", *code_of(CASES_THAT_LOAD[0].model_class)}

    # First as an older version would have pushed it, then as its user changed it.
    fields = json.loads(world.hub.read(repo, "config.json"))
    fields["vidcom2_code_sha256"]["compression.py"] = hashlib.sha256(b"older").hexdigest()
    world.hub.commit(repo, {"config.json": json.dumps(fields).encode(), "compression.py": b"older"}, "older")
    push(repo)
    assert world.hub.read(repo, "compression.py") != b"older"
    world.hub.commit(repo, {"compression.py": b"changed"}, "mine")
    with pytest.raises(ValueError, match=r"holds 'compression\.py'"):
        push(repo)


def test_a_push_of_a_folder_sends_the_code_that_was_there_before(world: World, tmp_path: Path) -> None:
    """Transformers sends only what is newer than the start of the save, and the code is written before it."""
    case = CASES_THAT_LOAD[0]
    model = case.model_class.from_pretrained(world.base(case))
    processor = AutoProcessor.from_pretrained(world.base(case))
    shorten(processor, model.config)
    for saved, code in (
        (model, code_of(case.model_class)),
        (processor, {f"processing_vidcom2_{case.name}.py", "processing_short_prompts.py"}),
    ):
        folder, repo = str(tmp_path / type(saved).__name__), f"ada/{type(saved).__name__}"
        saved.save_pretrained(folder)
        saved.save_pretrained(folder, push_to_hub=True, repo_id=repo)
        assert world.hub.files(repo).keys() >= set(code)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("publish", "--repo", "org/x"), "pass `--base` and `--repo`"),
        (("publish", *BASE, "--repo", "x"), "its name must include a user or organisation"),
        (("publish", *BASE, "--repo", "org/x", "--tag", "v1", "--pr"), "`--tag` tags a commit of the repo"),
        (("publish", *BASE, "--repo", "org/qwen2_vl-base", "--force"), "are both 'org/qwen2_vl-base'"),
        (("publish", *BASE, "--repo", "org/x", "--base-model", "org/y"), "is for a base in a folder"),
        (("publish", "--base", ".", "--repo", "org/x", "--revision", "v1"), "is a folder, which has none"),
        (("publish", "--base", "a/b/c", "--repo", "org/x"), "'a/b/c' is no name of a Hub repo"),
        (("verify", "org/nothing"), "there is no folder 'org/nothing', and the Hub has no such repo"),
        (("verify", "org/qwen2_vl-base"), "the repo 'org/qwen2_vl-base' is not a VidCom² repo"),
        (("verify", "org/offline"), "the Hub is not asked, since HF_HUB_OFFLINE"),
    ],
)
def test_mistakes_are_told_before_anything_takes_long(
    arguments: tuple, reason: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.base(QWEN2_VL)
    world.hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", arguments[1] == "org/offline")
    assert reason in mistake(*arguments)
    assert not written(world)


TUNER = (
    USER_START
    + """
from peft import LoraConfig, PeftModel, get_peft_model

repo, mine = task["repo"], task["mine"]
processor = AutoProcessor.from_pretrained(repo, **trust)
model = AutoModelForImageTextToText.from_pretrained(repo, retention_ratio=0.5, **trust)
inputs = inputs_of(processor)
labels = inputs["input_ids"].masked_fill(inputs["input_ids"] == model.config.video_token_id, -100)

torch.manual_seed(0)
adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.05)
losses = []
for _ in range(5):
    loss = adapted(**inputs, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
adapted.eval()
adapted.push_to_hub(f"{mine}-adapter")
tokens = new_tokens(adapted, inputs)
base = AutoModelForImageTextToText.from_pretrained(repo, retention_ratio=0.5, **trust)
untuned = new_tokens(base, inputs)
again = new_tokens(PeftModel.from_pretrained(base, f"{mine}-adapter").eval(), inputs)
merged = adapted.merge_and_unload()
merged.push_to_hub(mine)
processor.push_to_hub(mine)
tokens_of = {"tokens": tokens, "untuned": untuned, "again": again, "merged": new_tokens(merged, inputs)}
print(json.dumps({"losses": losses} | tokens_of))
"""
)

READER = (
    USER_START
    + """
repo = task["mine"]
model, info = AutoModel.from_pretrained(repo, output_loading_info=True, **trust)
pipe = pipeline("video-text-to-text", model=repo, **trust)
answer = pipe(videos=video, text=task["question"], generate_kwargs=greedy)[0]["generated_text"]
tokens = new_tokens(model, inputs_of(AutoProcessor.from_pretrained(repo, **trust)))
keys = [str(key) for keys in info.values() for key in keys]
loaded = {"class": type(model).__name__, "ratio": model.config.retention_ratio, "keys": keys}
print(json.dumps(loaded | {"tokens": tokens, "answer": answer}))
"""
)


@pytest.mark.slow
def test_a_tuned_model_is_pushed_with_its_code_and_settings(world: World) -> None:
    pytest.importorskip("peft")
    case = CASES_THAT_LOAD[1]  # a family that also has its own processor
    repo, mine = "org/to-be-tuned", "ada/tuned"
    world.base(case)
    shown_by("publish", "--base", f"org/{case.name}-base", "--repo", repo, "--no-verify")
    tuned = world.user(TUNER, "hf_test", repo=repo, mine=mine)
    assert tuned["losses"][-1] < tuned["losses"][0]
    assert tuned["tokens"] == tuned["again"] == tuned["merged"] != tuned["untuned"]
    assert world.hub.files(f"{mine}-adapter").keys() >= {"adapter_config.json", "adapter_model.safetensors"}
    assert world.hub.files(mine).keys() >= world.hub.files(repo).keys() - {"how_it_works.png", LICENSE}

    read = world.user(READER, mine=mine)
    assert (read["class"], read["ratio"], read["keys"]) == (case.model_class.__name__, 0.5, [])
    assert read["tokens"] == tuned["tokens"]
    assert read["answer"] == world.processors[case.name].decode(tuned["tokens"], skip_special_tokens=True)
