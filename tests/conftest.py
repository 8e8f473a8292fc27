import copy
import importlib
import inspect
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may depend on the network

import pytest
import torch
from filelock import FileLock
from models import (
    EACH_MODEL,
    MODELS,
    RETENTION_RATIO,
    ModelCase,
    chat_prompt,
    make_image,
    make_video,
    save_tiny,
    video_places,
)
from transformers import AutoProcessor, BatchFeature, PreTrainedModel, ProcessorMixin
from videos_as_images import by_prompt, joined_pixels, split_pixels

from vidcom2.asking.prompting import OF_THE_TOWER, at_least_a_pair, prompt_text
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS, NUM_KEPT, VISION_METHODS
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.loading.processors import restore, shorten
from vidcom2.video.reading import Video

torch.set_num_threads(1)  # also without xdist: two threads may add in another order, and tests compare bits


# -- which cases there are, and when they run --------------------------------------------------------------------------


def only(exists: Callable[..., bool]) -> pytest.MarkDecorator:
    """Leave out the cases of a test, or of a module's tests, for which `exists` is not true.

    The arguments of `exists` are parameters of the test, by name; `family` is a row of the table. A test that lacks one
    of them keeps all its cases. A test's mark replaces its module's.
    """
    return pytest.mark.only.with_args(exists)


def by_default(runs: Callable[..., bool]) -> pytest.MarkDecorator:
    """Leave to `pytest -m product` the cases for which `runs`, a function as in `only`, is not true."""
    return pytest.mark.by_default.with_args(runs)


# Marks a test of what one place decides for all families, so that the representatives stand for the others.
of_representatives = by_default(lambda family: family.representative)


def _is_marked(item: pytest.Item, name: str) -> bool:
    """Tell whether a case is one of those that a mark of this name chooses. Without such a mark, all are."""
    if (mark := item.get_closest_marker(name)) is None:
        return True
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    names = inspect.signature(mark.args[0]).parameters.keys()
    return not names <= parameters.keys() or mark.args[0](**{name: parameters[name] for name in names})


def _row(item: pytest.Item) -> ModelCase | None:
    """Return the family that a case is about."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((value for value in parameters if isinstance(value, ModelCase)), None)


# Test files about the code around the models, which hardly differs between families.
AROUND_THE_MODELS = {
    *("applying", "ask", "bench", "chat", "chat_templates", "cli", "compile", "demo", "evaluation", "explain"),
    *("frames", "letters", "load", "many", "pipelines", "publish", "run", "serve", "shipped_code", "shipped_methods"),
    *("threads", "training", "verify"),
}


# All tests of so many changed families run. Where more changed, as by shared code, the part chooses which.
MOST_CHANGED = 2


def _stand_in(rows: Sequence[ModelCase], combination: str) -> ModelCase:
    """Return the family that runs a test's combination of other parameters for all of these families.

    The choice is random and stays: a new test moves nothing, and a new family takes over some combinations of others.
    """
    return max(rows, key=lambda row: crc32(f"{combination} {row.name}".encode()))


def _kind(row: ModelCase) -> object:
    """Return what a family's model shares with others: this project's mixins, and how frames enter its prompt."""
    if not row.loads_here:
        return row.name
    classes = (row.model_class, row.model_class.inner_class)
    mixins = [base for each in classes for base in each.__mro__[1:] if base.__module__.startswith("vidcom2.")]
    return tuple(mixins), row.frames_stand_apart, row.deepstack


@cache
def _kinds() -> dict[str, object]:
    """Return each family's kind. It imports the model classes, so only tests that have a family wait for it."""
    return {row.name: _kind(row) for row in MODELS}


COVERED = "the families of a kind that has a representative"


def _share_out(items: list[pytest.Item]) -> None:
    """Mark as `product` the cases of a test that another family stands for.

    Representatives run every combination of the test's other parameters. Of the other families, one runs each
    combination. In tests about the models, one family of each kind runs the first combination, and one of all those
    that are of a representative's kind. In the others, one representative runs each combination by default, and the
    others are `slow`.
    """
    test = f"{items[0].path.name} {items[0].originalname}"
    around_the_models = items[0].path.stem.removeprefix("test_") in AROUND_THE_MODELS
    columns = set()  # per parameter, the index of each case's value; parameters that vary together count once
    for name in items[0].callspec.params.keys() - {"family", "case", "asking"}:
        values = list(dict.fromkeys(id(item.callspec.params[name]) for item in items))
        columns.add(tuple(values.index(id(item.callspec.params[name])) for item in items))
    places = list(zip(*sorted(columns))) if columns else [()] * len(items)
    combinations: dict[tuple, dict[str, pytest.Item]] = defaultdict(dict)
    first: dict[str, tuple] = {}
    for item, place in zip(items, places):
        row = _row(item)
        combinations[place][row.name] = item
        first[row.name] = min(first.get(row.name, place), place, key=sum)
    for place, cases in combinations.items():
        rows = [_row(item) for item in cases.values()]
        covered = {_kinds()[row.name] for row in rows if row.representative}
        for is_slow in (False, True):
            others = [row for row in rows if row.slow == is_slow and not row.representative]
            kinds: dict[object, list[ModelCase]] = defaultdict(list)
            for row in others:
                kinds[COVERED if _kinds()[row.name] in covered else _kinds()[row.name]].append(row)
            running = {_stand_in(others, f"{test} {place}").name} if others else set()
            if not around_the_models:
                running |= {
                    _stand_in(each, f"{test} {place}").name
                    for alike in kinds.values()
                    if (each := [row for row in alike if place == first[row.name]])
                }
            for row in others:
                if row.name not in running:
                    cases[row.name].add_marker("product")
        representatives = [row for row in rows if row.representative]
        for row in representatives if around_the_models else ():
            if row is not _stand_in(representatives, f"{test} {place}"):
                cases[row.name].add_marker("slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", type=_part, help="such as 2/5: run the second fifth of the tests, chosen at random once")
    parser.addoption("--changed", type=Path, help="and all of the families whose files this file names, a path a line")


def _part(given: str) -> tuple[int, int]:
    number, _, parts = given.partition("/")
    return int(number) - 1, int(parts)


def _changed_families(changed: Path) -> set[str]:
    """Return the families one of whose own files is among the paths in a file."""
    names = {Path(line).stem for line in changed.read_text("utf-8").splitlines()}
    found = set()
    for case in (each for each in MODELS if each.loads_here):
        model_class, processor_class = case.model_class, case.family.processor_class
        classes = (case.config_class, model_class, model_class.inner_class, processor_class)
        modules = {base.__module__ for each in classes for base in each.__mro__}
        modules.add(getattr(case.build, "func", case.build).__module__)
        own = {each.rpartition(".")[2] for each in modules if re.search(r"\.(families|configuration|tiny)\.", each)}
        if names & (own - {"compression_settings", "family_config", "saved_with_code", "common", "tokens"}):
            found.add(case.name)
    return found


@pytest.hookimpl(tryfirst=True)  # before `-m` is read
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if _is_marked(item, "only")]
    tests = defaultdict(list)
    for item in items:
        if _row(item) is not None:  # Both kinds of prompts are shared out as if each had a test of its own.
            tests[item.path, item.originalname, item.callspec.params.get("asking")].append(item)
    for cases in tests.values():
        _share_out(cases)
    for item in items:
        if not _is_marked(item, "by_default"):
            item.add_marker("product")
        if item.get_closest_marker("product"):
            item.add_marker("slow")
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
    if config.option.part is not None:
        number, parts = config.option.part
        changed = _changed_families(config.option.changed) if config.option.changed else set()
        changed = set(sorted(changed, key=lambda name: crc32(f"{number} {name}".encode()))[:MOST_CHANGED])
        items[:] = [
            item
            for item in items
            if crc32(item.nodeid.encode()) % parts == number or ((row := _row(item)) and row.name in changed)
        ]


# -- families ---------------------------------------------------------------------------------------------------------


@dataclass
class Family:
    """A row of the table with its tiny checkpoint, loaded in the stock class and in ours."""

    case: ModelCase
    folder: Path
    stock: PreTrainedModel
    processor: ProcessorMixin
    is_short: bool = False  # whether the processor is this project's, whose prompts are short from the start

    @cached_property
    def model(self) -> PreTrainedModel:
        return self.load(retention_ratio=RETENTION_RATIO)

    @cached_property
    def uncompressing(self) -> PreTrainedModel:
        return self.load(retention_ratio=1.0)

    def load(self, **kwargs: Any) -> PreTrainedModel:
        return self.case.model_class.from_pretrained(self.folder, **kwargs).eval()

    def load_stock(self, **kwargs: Any) -> PreTrainedModel:
        return load_stock(self.case, self.folder, **kwargs)

    def untouched_stock(self) -> PreTrainedModel:
        """Return the stock model in Transformers' own class."""
        return self.stock if self.case.compared_class is None else self.case.stock_from(self.folder).eval()

    @cached_property
    def writing_short(self) -> "Family":
        """The family with this project's processor, which writes a placeholder for each video token that stays."""
        processor = AutoProcessor.from_pretrained(self.folder)
        shorten(processor, self.model.config)
        return replace(self, processor=processor, is_short=True)

    @property
    def of_whole_frames(self) -> dict[str, Any]:
        """Arguments with which the stock processor offers all tokens of whole frames, as the package has it do."""
        settings = {"use_token_compression": False, "max_slice_nums": 1}
        known = {name: value for name, value in settings.items() if hasattr(self.processor.video_processor, name)}
        return {"videos_kwargs": known} if known else {}

    def stock_inputs(self, text: str, video: Video) -> dict[str, Any]:
        """Return what the stock processor writes about a video that is read already, as this project's models take it,
        and with all tokens of whole frames."""
        takes_fps = "video_second_per_grid" in self.case.video_inputs
        inputs = self.processor(
            text=[text],
            videos=[[video.frames]],
            video_metadata=[video.metadata],
            do_sample_frames=False,
            return_tensors="pt",
            **({"fps": len(video.frames) / video.duration} if takes_fps else {}),
            **self.of_whole_frames,
        )
        return as_taken(self.model, inputs)

    def short_inputs(self, question: Any, video: Video, **settings: Any) -> dict[str, Any]:
        """Return what this project's processor writes about a video that is read already, without its pixels."""
        processor: Any = self.writing_short.processor
        frames, metadata = at_least_a_pair(processor, video)
        made = processor(
            text=[prompt_text(processor, question)],
            videos=[[frames]],
            video_metadata=[metadata],
            do_sample_frames=False,
            return_tensors="pt",
            **settings,
            **self.of_whole_frames,
        )
        return {name: value for name, value in made.items() if name not in OF_THE_TOWER}

    def prompt(self, question: str, videos: int = 0, images: int = 0) -> str:
        return chat_prompt(self.processor, question, videos, images)

    def inputs(
        self, *prompts: str, videos: list | None = None, images: list | None = None, **arguments: Any
    ) -> BatchFeature:
        media: dict[str, Any] = {name: value for name, value in (("videos", videos), ("images", images)) if value}
        inputs = self.processed(list(prompts), media, **arguments)
        return inputs if self.case.compared_class is None or self.is_short else split_pixels(self.stock.config, inputs)

    def processed(self, prompts: list[str], media: dict[str, list], **arguments: Any) -> BatchFeature:
        """Return what the processor makes of prompts and their media, with the pixels of all media.

        SmolVLM's leaves out the pixels of images beside videos, so here they are put where the prompt shows them.
        """
        if self.case.media_by_prompt:
            tokens = {"images": self.processor.image_token, "videos": self.processor.video_token}
            media = {kind: by_prompt(prompts, tokens[kind], media[kind]) for kind in media}
        side = self.processor.tokenizer.padding_side  # of which MiniCPM-V's processor has an idea of its own
        arguments = {"padding": True, "padding_side": side, "return_tensors": "pt"} | arguments
        processor: Any = copy.copy(self.processor)
        if self.case.one_video_a_prompt:  # though the model takes more
            processor.validate_inputs = lambda **_: None
        if self.case.one_kind_a_call and len(media) > 1:
            pytest.skip("images and videos in one call are refused, as tests/test_nemotron.py checks")
        if self.case.one_prompt_a_call and len(prompts) > 1 and "videos" in media:
            return joined_prompts(processor, prompts, media, **arguments)
        inputs = processor(text=prompts, **media, **arguments)
        if self.case.takes_one_kind and not self.is_short and len(media) > 1:
            images = self.processor.image_processor(media["images"], return_tensors="pt")
            inputs |= joined_pixels(self.stock.config, inputs, images["pixel_values"], inputs["pixel_values"])
        return inputs

    def for_stock(self, inputs: Any) -> dict[str, Any]:
        """Return the inputs as Transformers' own class takes them."""
        return dict(inputs) if self.case.compared_class is None else self.stock._joined(dict(inputs))

    def videos_of(self, inputs: Any) -> dict[str, Any]:
        """Return the arguments that describe the videos of a prompt."""
        if not self.is_short:
            return {name: inputs[name] for name in self.case.video_inputs}
        names = (*self.case.video_inputs, *self.model.model.video_arguments, NUM_KEPT)
        return {name: inputs[name] for name in names if name in inputs}

    def images_of(self, inputs: Any) -> dict[str, Any]:
        return {name: inputs[name] for name in self.case.image_inputs}

    def parents_features(self, inputs: Any) -> list[torch.Tensor]:
        """Return the stock model's features of each video, (placeholders, dim)."""
        features = self.stock.model.get_video_features(**self.videos_of(inputs)).pooler_output
        return [video.flatten(0, -2) for video in features]  # before 5.21, LLaVA-NeXT-Video's have frames

    def one_video(self, question: str = "What happens?", seed: int = 0, num_frames: int = 8) -> BatchFeature:
        return self.inputs(self.prompt(question, videos=1), videos=[make_video(seed, num_frames)])

    def processed_video(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return what `one_video` does, as the processor passes it, which every class takes."""
        return self.for_stock(self.one_video(*args, **kwargs))


def as_taken(model: Any, inputs: Any) -> dict[str, Any]:
    """Return what a stock processor returned as a model takes it: ours refuses frames among images, and those of which
    it is not known whose they are."""
    if not any(hasattr(type(each), "features_of_tiles") or _tells_rows(each) for each in model.modules()):
        return dict(inputs)
    return dict(split_pixels(model.config, BatchFeature(dict(inputs))))


def _tells_rows(module: Any) -> bool:
    return "num_chunks_per_video" in getattr(type(module), "video_arguments", ())


def joined_prompts(processor: Any, prompts: list[str], media: dict[str, list], **arguments: Any) -> BatchFeature:
    """Return what a processor makes of each prompt, padded and joined."""
    tokens = {"images": processor.image_token, "videos": processor.video_token}
    of_prompts = {kind: by_prompt(prompts, tokens[kind], media[kind]) for kind in media}
    made = []
    for number, prompt in enumerate(prompts):
        own = {kind: each[number] for kind, each in of_prompts.items() if each[number]}
        made.append(processor(text=[prompt], **own, **arguments))
    texts = [{name: each[name][0].tolist() for name in ("input_ids", "attention_mask")} for each in made]
    padded = processor.tokenizer.pad(texts, return_tensors="pt", padding_side=arguments["padding_side"])
    names = dict.fromkeys(name for each in made for name in each if name not in padded)
    return BatchFeature(
        dict(padded) | {name: torch.cat([each[name] for each in made if name in each]) for name in names}
    )


def load_stock(case: ModelCase, folder: Path, **kwargs: Any) -> PreTrainedModel:
    """Return the stock model, in the class with which ours is compared."""
    stock = case.stock_from(folder, **kwargs).eval()
    if case.compared_class is not None:
        stock.__class__, stock.model.__class__ = case.compared_class, case.compared_class.inner_class
    return stock


def build_family(case: ModelCase, tmp_path_factory: pytest.TempPathFactory) -> Family:
    """Build the family's checkpoint once for all workers, in the first that asks for it."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / case.name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            for part in case.build(**case.build_arguments):
                part.save_pretrained(unfinished)
            unfinished.rename(folder)
    stock = load_stock(case, folder)
    assert case.grouped == VISION_METHODS["skip_repeated"].fits(stock.config.vision_config.model_type)
    assert case.deepstack == hasattr(getattr(stock.model, "visual", None), "deepstack_merger_list")
    processor = AutoProcessor.from_pretrained(folder)
    restore(processor)  # LLaVA-Video's, which Transformers does not have
    return Family(case, folder, stock, processor)


@pytest.fixture(scope="session", params=EACH_MODEL)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return build_family(request.param, tmp_path_factory)


@pytest.fixture(params=["stock", "short"])
def asking(request: pytest.FixtureRequest, family: Family) -> Family:
    """Return the family with either processor: the stock one, whose prompts have a placeholder for every token, and
    this project's, whose prompts have one for each token that stays."""
    return family if request.param == "stock" else family.writing_short


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny stock LLaVA-OneVision, where one family is enough. Tests must not change it."""
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny-model")


@pytest.fixture(scope="session")
def checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(str(folder), device="cpu")


@pytest.fixture
def short_length(family: Family) -> Callable[..., int]:
    """Return a function that counts a compressed prompt's tokens, from `get_video_features` and the tokenizer alone."""

    def length(inputs: BatchFeature, row: int = 0, **kwargs: Any) -> int:
        features = family.model.get_video_features(**family.videos_of(inputs), **kwargs)
        assert len(inputs["input_ids"]) == 1
        is_video = video_places(family.model.config, inputs["input_ids"])
        return int((~is_video).sum()) + sum(map(len, features.pooler_output))

    return length


def change_json(file: Path, **fields: Any) -> None:
    """Set fields of a JSON file, such as a checkpoint's config.json. A file that is not there gets these alone."""
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps(content | fields), encoding="utf-8")


def use_method(name: str) -> str:
    """Register a method of `methods_of_users/`, even if another test has registered it before."""
    importlib.reload(importlib.import_module(f"methods_of_users.{name}"))
    return name


@pytest.fixture
def methods_restored() -> Iterator[None]:
    """Forget after a test the methods that it registers."""
    before = [(table, dict(table)) for table in (COMPRESSION_METHODS, VISION_METHODS)]
    yield
    for table, rows in before:
        table.rows = rows


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """Make a process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _shared_models_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that no test saved a model that others share: Transformers and this package note in its config what they
    saved."""
    yield
    family = getattr(request.node, "funcargs", {}).get("family")
    if not isinstance(family, Family) or "auto_map" in (family.folder / "config.json").read_text(encoding="utf-8"):
        return
    for name in ("model", "uncompressing"):
        model = vars(family).get(name)
        assert not hasattr(getattr(model, "config", None), "auto_map"), f"save `family.load()`, not `family.{name}`"


__all__ = ["make_image", "make_video"]
