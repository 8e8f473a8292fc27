"""The checks of `vidcom2 verify`: a script that runs in a process of its own, in which `vidcom2` cannot be imported.

It uses a repo as its users do, only through Transformers, and prints one line of JSON for each check.
"""

import gc
import inspect
import json
import math
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
import transformers
from huggingface_hub import ModelCard
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, pipeline
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # pyright: ignore[reportPrivateImportUsage]
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.utils.hub import HF_MODULES_CACHE

# One file says what a repo looks like, and others what methods keep. None is imported from `vidcom2`. They
# are read by their paths: if their folders were on Python's path, a repo's code could import the package's other
# modules, and would seem complete without its own files.
ABOVE = Path(__file__).parents[1]  # the package, or the top of a checkout in which links are missing
SHAPE = next(file for top in (ABOVE, ABOVE / "src" / "vidcom2") if (file := top / "repo_shape.py").is_file())
shape = SimpleNamespace(**runpy.run_path(str(SHAPE)))
# Name of each method of this project -> whether it keeps frame budgets, which may be rounded.
METHODS = {
    file.stem.removeprefix("method_"): "frame_budgets(" in file.read_text(encoding="utf-8")
    for file in (ABOVE / "modeling" / "methods").glob("method_*.py")
}

# How the names of settings begin. A vision tower's own fields begin otherwise.
PREFIXES = ("compression_", "retention_", "max_video_", "vision_method", "vision_chunk_", "vision_tolerance")
PIPELINE_TASKS = ("image-text-to-text", "any-to-any", shape.PIPELINE_TASK)
QUESTION = "What happens in the video?"
NUM_FRAMES = 8


class Failed(BaseException):
    """Raised by a check that fails, through any `except Exception` of Transformers. The message says what was found and
    what was expected."""


class Skipped(Exception):
    """Raised by a check that does not apply. The message says why."""


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


def video() -> np.ndarray:
    """Return (NUM_FRAMES, 3, height, width) uint8, a still scene of noise with a moving square, and one other frame."""
    rng = np.random.default_rng(0)
    frames = np.repeat(rng.integers(0, 256, (1, 3, 112, 140)), NUM_FRAMES, axis=0).astype(np.uint8)
    for i, frame in enumerate(frames):
        frame[:, 20:60, 10 * i : 10 * i + 40] = 255
    frames[5] = rng.integers(0, 256, frames[5].shape)
    return frames


class Repo:
    """A folder with the files of a Hub repo."""

    def __init__(self, folder: str, device: str):
        self.name, self.device = folder, device
        self.files = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())

    def path(self, file: str) -> Path:
        why = f"there is no {file} in the repo."
        if file.endswith(".py"):
            why += (
                " Was it saved by the stock class, which leaves the code behind? Load it with the VidCom2 class of the "
                "`vidcom2` package and save it again."
            )
        require(file in self.files, why)
        return Path(self.name, file)

    def json(self, file: str) -> dict[str, Any]:
        return json.loads(self.path(file).read_text(encoding="utf-8"))

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return self.json(shape.CONFIG)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of VidCom² in config.json."""
        return {name: value for name, value in self.config.items() if name.startswith(PREFIXES)}

    def require_code(self, modules: list[str]) -> None:
        """Require that these modules and all that they import are in the repo."""
        shape.import_closure(modules, lambda name: self.path(f"{name}.py").read_text(encoding="utf-8"))

    @property
    def code(self) -> list[str]:
        """The Python files of the repo. A card lists the same."""
        return [file for file in self.files if file.endswith(".py")]

    @cached_property
    def own_code(self) -> set[bytes]:
        """The content of the Python files that may run: the repo's, and the empty ones that make folders packages."""
        return {b"", *(self.path(file).read_bytes() for file in self.code)}

    def audit(self, event: str, args: Any) -> None:
        """Stop Python files that files of the repo made Transformers fetch from elsewhere, before they run."""
        file = args[0].co_filename if event == "exec" else ""
        if file.startswith(HF_MODULES_CACHE) and Path(file).read_bytes() not in self.own_code:
            raise Failed(f"the repo asks for {Path(file).name}, which is no file of it, and was not run.")

    @property
    def is_native(self) -> bool:
        return self.config["model_type"] in CONFIG_MAPPING_NAMES

    @property
    def class_name(self) -> str:
        named = self.config.get("auto_map", {}).get("AutoModelForImageTextToText", "")
        require(bool(named), "config.json names no AutoModelForImageTextToText in `auto_map`.")
        return named.rpartition(".")[2]

    def load(self, auto_class: Any, trust: bool = True, folder: str | None = None) -> Any:
        """Load the model with an Auto class, and require that every key is in its place."""
        model, info = auto_class.from_pretrained(
            folder or self.name, trust_remote_code=trust, output_loading_info=True, dtype="auto"
        )
        wrong = {kind: sorted(map(str, keys))[:3] for kind, keys in info.items() if keys}
        require(not wrong, f"{type(model).__name__} loads with wrong keys, such as {wrong}.")
        return model.to(self.device).eval()

    @cached_property
    def model(self) -> Any:
        return self.load(AutoModelForImageTextToText)

    @cached_property
    def processor(self) -> Any:
        return AutoProcessor.from_pretrained(self.name, trust_remote_code=True)

    @property
    def writes_short(self) -> bool:
        """Whether the repo's processor writes a placeholder for each token that stays. Older repos have none, and where
        only the model can say how many stay, it is a stock one or writes all."""
        return hasattr(self.processor, "retention_ratio") and not getattr(self.processor, "writes_all", False)

    @cached_property
    def inputs(self) -> Any:
        """A prompt with a placeholder for every token of the video, which the model shortens."""
        inputs = self.written(**{"retention_ratio": 1.0, "max_video_tokens": 2**62} if self.writes_short else {})
        inputs.pop("num_kept_video_tokens", None)
        return inputs

    def written(self, **settings: Any) -> Any:
        """Return what the repo's processor writes."""
        content = [{"type": "video"}, {"type": "text", "text": QUESTION}]
        prompt = self.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        inputs = self.processor(
            text=[prompt], videos=[[video()]], do_sample_frames=False, return_tensors="pt", **settings
        )
        inputs = inputs.to(self.device)
        inputs["pixel_values_videos"] = inputs["pixel_values_videos"].to(self.model.dtype)
        return inputs

    def features(self) -> Any:
        names = inspect.signature(self.model.get_video_features).parameters
        with torch.no_grad():
            return self.model.get_video_features(**{name: self.inputs[name] for name in names if name in self.inputs})

    @cached_property
    def video_tokens(self) -> int:
        # The prompt has no image, so placeholders with the id of images are a video's too, as in GLM's families.
        config = self.model.config
        placeholders = {config.image_token_id, config.video_token_id}
        return sum(int((self.inputs["input_ids"] == token).sum()) for token in placeholders)

    @cached_property
    def short_length(self) -> int:
        """Length of the compressed prompt: its text, and the features of `get_video_features`, structure included."""
        return self.inputs["input_ids"].shape[1] - self.video_tokens + sum(map(len, self.features().pooler_output))

    def drop_model(self) -> None:
        """Free the model, so that only one is in memory at a time. The next use of `model` loads it again."""
        self.__dict__.pop("model", None)
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()


@contextmanager
def prefill_lengths(model: Any) -> Iterator[list[int]]:
    """Record the lengths of the prompts that reach the language model."""
    lengths: list[int] = []

    def record(module: Any, args: Any, kwargs: Any) -> None:
        if kwargs["inputs_embeds"].shape[1] > 1:
            lengths.append(kwargs["inputs_embeds"].shape[1])

    hook = model.get_decoder().register_forward_pre_hook(record, with_kwargs=True)
    try:
        yield lengths
    finally:
        hook.remove()


# ---------------------------------------------------------------------------------------------------------------------
# Checks. Each returns what it found, or raises. Its docstring says what should be true.
# ---------------------------------------------------------------------------------------------------------------------


def check_files(repo: Repo) -> str:
    """All files that the settings name are there, and the weights are safetensors and not pickled."""
    refusal = shape.refused_pickles(repo.files)
    require(not refusal, refusal)
    named = list(repo.config.get("auto_map", {}).values())
    named += [task["impl"] for task in repo.config.get("custom_pipelines", {}).values()]
    require(bool(named), "config.json has no `auto_map`, and without it the stock model loads, uncompressed.")
    of_processor = repo.json(shape.PROCESSOR) if shape.PROCESSOR in repo.files else {}
    named += of_processor.get("auto_map", {}).values()
    repo.require_code([value.rpartition("--")[2].split(".")[0] for value in named])
    weights = shape.weight_files(repo.files, repo.json)
    missing = sorted(weights - {*repo.files})
    require(not missing, f"the weights {missing} are not in the repo.")
    return f"{len(repo.code)} files of code, {len(weights)} of weights, no pickle"


def check_config(repo: Repo) -> str:
    """config.json leads to the VidCom² classes, and its settings are in their accepted sets."""
    config = AutoConfig.from_pretrained(repo.name, trust_remote_code=True)
    require(type(config).__name__.startswith("VidCom2"), f"AutoConfig gives a {type(config).__name__}.")
    architectures = repo.config.get("architectures")
    require(
        architectures == [repo.class_name],
        f"`architectures` is {architectures}, but must be {[repo.class_name]}: with a stock name, a pipeline that "
        "cannot load the custom class silently uses the stock class.",
    )
    read = {name: getattr(config, name, None) for name in repo.settings}
    require(read == repo.settings, f"the settings are {read}, but config.json has {repo.settings}.")
    return f"{type(config).__name__}, retention_ratio {config.retention_ratio}"


def check_card(repo: Repo) -> str:
    """The files are byte for byte those that the card lists."""
    if shape.CARD not in repo.files:
        raise Skipped("there is no model card")
    card = ModelCard.load(repo.path(shape.CARD), ignore_metadata_errors=False)
    listed = shape.listed_files(card.text)
    if not listed:
        raise Skipped("the card lists no files")
    missing = [file for file in listed if file not in repo.files]
    require(not missing, f"the card lists {', '.join(missing)}, but the repo does not hold them.")
    changed = [file for file, sha in listed.items() if sha != shape.sha256_of(repo.path(file))]
    require(not changed, f"{changed} do not have the sha256 that the card lists: they changed after it was made.")
    unlisted = [file for file in repo.code if file not in listed]
    require(not unlisted, f"{unlisted} are code that the card does not list.")
    return f"{len(listed)} files as listed"


def check_untrusted_load(repo: Repo) -> str:
    """Without trust_remote_code the stock model loads, or loading is refused if there is no stock model."""
    try:
        model = repo.load(AutoModelForImageTextToText, trust=False)
    except ValueError as error:
        require(not repo.is_native, f"the stock class does not load: {error}")
        require("trust_remote_code" in str(error), f"the refusal does not name `trust_remote_code`: {error}")
        return "refused, and says that trust_remote_code=True is needed"
    require(repo.is_native, f"{type(model).__name__} loads, though Transformers has no class for these weights.")
    stock = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[repo.config["model_type"]]
    require(type(model).__name__ == stock, f"{type(model).__name__} loads, not {stock}.")
    require(type(model).__module__.startswith("transformers."), f"remote code runs: {type(model).__module__}.")
    return f"the stock {stock}, uncompressed"


def check_auto_class(name: str, repo: Repo) -> str:
    """An Auto class with trust_remote_code gives the VidCom² class, with all weights and no others."""
    repo.drop_model()
    repo.model = repo.load(getattr(transformers, name))
    found = type(repo.model).__name__
    require(found == repo.class_name, f"{name} gives a {found}, not {repo.class_name}.")
    return f"{found}, no missing or unexpected keys"


def check_processor(repo: Repo) -> str:
    """AutoProcessor gives a processor whose placeholders fit the model."""
    require(
        hasattr(repo.processor, "video_processor"),
        f"AutoProcessor gives a {type(repo.processor).__name__}, which is only a part of a processor. Does "
        "Transformers know the `processor_class` that the repo's files name?",
    )
    require(repo.video_tokens > 0, "a chat with a video has no video tokens.")
    return f"{type(repo.processor).__name__}, {repo.video_tokens} video tokens for {NUM_FRAMES} frames"


def bounds(method: str, rounding: str, ratio: float, frames: int, per_frame: int) -> tuple[float, float]:
    """Return the least and the most tokens of a video that a method may keep."""
    if method not in METHODS:  # It came with the repo.
        return 1, math.ceil(ratio * frames * per_frame) + frames
    if rounding == "exact" or not METHODS[method]:
        total = ratio * frames * per_frame
        return total - 1, max(total + 1, frames, per_frame)
    # Frame t is granted r_t = R · (1 + σ_t - 1/T) of its tokens (Eq. 6), but at most all. If that limit cannot bind,
    # the grants add up to R of the video. Otherwise each is at least R · (1 - 1/T). Rounding costs up to half a token.
    whole = 1 if ratio * (2 - 1 / frames) <= 1 else 1 - 1 / frames
    return (ratio * whole * per_frame - 0.5) * frames, (ratio * per_frame + 1) * frames


def check_generate(repo: Repo) -> str:
    """`generate` prefills the compressed prompt and returns the full one."""
    input_ids, ratio = repo.inputs["input_ids"], repo.config["retention_ratio"]
    budget = repo.config.get("max_video_tokens") or math.inf
    # In a call, None would stand for the repo's budget.
    all_tokens = {"retention_ratio": 1.0} | ({} if budget == math.inf else {"max_video_tokens": 2**62})
    with prefill_lengths(repo.model) as lengths:
        out = repo.model.generate(**repo.inputs, max_new_tokens=3, do_sample=False)
        repo.model.generate(**repo.inputs, max_new_tokens=1, do_sample=False, **all_tokens)
    full = input_ids.shape[1]
    require(
        lengths == [repo.short_length, full],
        f"{lengths} tokens were prefilled at ratios of {ratio} and 1.0, but {[repo.short_length, full]} were expected.",
    )
    compression = repo.features().video_compressions[0]
    kept, frames, per_frame = len(compression.indices), len(compression.frame_budgets), compression.tokens_per_frame
    config = repo.model.config
    least, most = bounds(config.compression_method, config.compression_rounding, ratio, frames, per_frame)
    require(
        min(least, budget) <= kept <= min(most, budget),
        f"{kept} of {frames * per_frame} video tokens are kept, but the ratio is {ratio} and the budget {budget}.",
    )
    require(
        torch.equal(out[:, :full], input_ids) and out.shape[1] > full, "the output does not begin with the full prompt."
    )
    return f"{full} prompt tokens, {repo.short_length} prefilled"


def check_short_prompt(repo: Repo) -> str:
    """The processor writes a prompt for the tokens that stay, which is answered as the whole one."""
    if not repo.writes_short:
        raise Skipped("the repo's processor writes whole prompts, which the model shortens")
    inputs = repo.written()
    length = inputs["input_ids"].shape[1]
    require(length == repo.short_length, f"the prompt has {length} tokens, but {repo.short_length} stay.")
    of_call = {"max_new_tokens": 3, "do_sample": False}
    short, whole = (repo.model.generate(**each, **of_call) for each in (inputs, repo.inputs))
    new = whole[:, repo.inputs["input_ids"].shape[1] :]
    require(torch.equal(short[:, length:], new), "it is answered otherwise than the whole prompt.")
    return f"{length} prompt tokens, answered as the {repo.inputs['input_ids'].shape[1]} of the whole prompt"


def check_pipeline(task: str, repo: Repo) -> str:
    """A pipeline with trust_remote_code compresses and answers."""
    expected, full, dtype = repo.short_length, repo.inputs["input_ids"].shape[1], repo.model.dtype
    repo.drop_model()
    make: Any = pipeline  # it has an overload for each literal task, but none for a variable
    pipe = make(task, model=repo.name, trust_remote_code=True, device=repo.device, dtype=dtype)
    found = type(pipe.model).__name__
    require(found == repo.class_name, f"the pipeline runs a {found}, not {repo.class_name}.")
    content = [{"type": "video", "video": video()}, {"type": "text", "text": QUESTION}]
    with prefill_lengths(pipe.model) as lengths:
        result = pipe(
            text=[{"role": "user", "content": content}],
            max_new_tokens=3,
            return_full_text=False,
            processor_kwargs={"do_sample_frames": False},
        )
    answer = result[0]["generated_text"]
    require(isinstance(answer, str), f"the answer is {answer!r}, not text.")
    require(lengths == [expected], f"{lengths} of {full} tokens were prefilled, not {expected}.")
    return f"answers, with {lengths[0]} tokens prefilled"


def save_model(model: Any, folder: str) -> None:
    """Save the model with `save_pretrained`. Raises Skipped if Transformers cannot save its quantized weights."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and not quantizer.is_serializable():
        raise Skipped("Transformers does not save weights that are quantized so, not even with the stock class")
    try:
        model.save_pretrained(folder)
    except NotImplementedError:
        if quantizer is None:
            raise
        # Transformers cannot give some quantized weights, such as torchao's, the layout of the files that it read.
        model.save_pretrained(folder, save_original_format=False)


def check_save(repo: Repo) -> str:
    """`save_pretrained` writes a folder that loads again with its code and settings, and gives the same tokens."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(repo.model, folder)
        repo.processor.save_pretrained(folder)
        call = dict(repo.inputs) | {"max_new_tokens": 3, "do_sample": False}
        first = repo.model.generate(**call)
        repo.drop_model()
        model = repo.load(AutoModelForImageTextToText, folder=folder)
        require(type(model).__name__ == repo.class_name, f"a {type(model).__name__} loads, not {repo.class_name}.")
        saved = {name: getattr(model.config, name) for name in repo.settings}
        require(saved == repo.settings, f"the settings are {saved} after saving, but were {repo.settings} before.")
        require(torch.equal(first, model.generate(**call)), "the saved model gives another answer.")
        lost = [task["impl"] for task in repo.config.get("custom_pipelines", {}).values()]
        lost = [impl for impl in lost if not Path(folder, f"{impl.split('.')[0]}.py").is_file()]
        require(not lost, f"the code of {lost} is not saved.")
    return "loads again, same tokens"


CHECKS: dict[str, Callable[[Repo], str]] = {
    "files": check_files,
    "config": check_config,
    "card": check_card,
    "without trust": check_untrusted_load,
    **{name: partial(check_auto_class, name) for name in shape.AUTO_MODEL_CLASSES},
    "AutoProcessor": check_processor,
    "generate": check_generate,
    "short prompt": check_short_prompt,
    **{f"pipeline {task}": partial(check_pipeline, task) for task in PIPELINE_TASKS},
    "save and load": check_save,
}


def run(repo: Repo) -> None:
    """Run all checks, even those after a failure, and print their results as they come."""
    sys.addaudithook(repo.audit)
    for name, check in CHECKS.items():
        try:
            status, detail = "passed", check(repo)
        except Skipped as reason:
            status, detail = "skipped", str(reason)
        except Failed as failure:
            status, detail = "failed", str(failure)
        except Exception as error:  # a broken repo may raise anything, and that is the result
            status, detail = "failed", f"{type(error).__name__}: {error}"
        result = {"name": name, "status": status, "detail": " ".join(detail.split())}
        print(json.dumps(result), flush=True)
    print(shape.FINISHED, flush=True)


if __name__ == "__main__":
    sys.modules["vidcom2"] = cast(Any, None)  # from here on `import vidcom2` fails, even if it is installed
    run(Repo(*sys.argv[1:]))
