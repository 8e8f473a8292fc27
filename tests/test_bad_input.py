"""Bad input is refused with one ValueError that names the thing, the value, what is accepted and the remedy."""

import copy
import inspect
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Family, by_default, of_representatives, only
from models import RETENTION_RATIO, make_image, make_video, placeholder_id, typed, video_places
from reference import reading_embeddings
from test_generate import make_prompt, run
from torch import Tensor

from benchmarks.pages import ROOT
from vidcom2 import VidCom2LlavaOnevisionForConditionalGeneration
from vidcom2.modeling.prompt.calls import TABLES
from vidcom2.tiny.llava import tiny_llava_onevision


# tests/test_compression_settings.py has all bad values of each setting.
@of_representatives
@pytest.mark.parametrize(
    ("name", "value"), [("retention_ratio", 1.5), ("retention_ratio", "x"), ("compression_window", 0)]
)
def test_a_bad_setting_is_refused_wherever_it_is_set_and_in_every_call(
    family: Family, name: str, value: Any, tmp_path: Path
) -> None:
    setting, match = {name: value}, rf"`{name}` is {value!r}, but must be .*The default is"
    config = family.case.config_class()
    before = getattr(config, name)
    folder = shutil.copytree(family.folder, tmp_path / "edited")
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | setting))
    inputs, text = family.one_video(), family.inputs(family.prompt("Hello."))
    for call in (
        lambda: family.case.config_class(**setting),
        lambda: setattr(config, name, value),
        lambda: family.case.model_class.from_pretrained(family.folder, **setting),
        lambda: family.case.model_class.from_pretrained(folder),
        lambda: family.model.get_video_features(**family.videos_of(inputs), **setting),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    assert getattr(config, name) == before
    assert_all_refuse(family, inputs, match, **setting)
    assert_all_refuse(family, text, match, **setting)


def assert_all_refuse(family: Family, inputs: Any, match: str, **settings: Any) -> None:
    for call in (family.model, family.model.generate, family.model.model):
        with pytest.raises(ValueError, match=match):
            call(**inputs, **settings)


@of_representatives
@pytest.mark.parametrize("made", [Tensor.tolist, Tensor.numpy, list], ids=["list", "ndarray", "list of tensors"])
def test_inputs_that_are_no_tensors_are_refused_by_name(family: Family, made: Callable) -> None:
    inputs = dict(family.one_video())
    for name in ("pixel_values_videos", "video_grid_thw", "input_ids", "attention_mask"):
        if name not in inputs:
            continue
        bad = inputs | {name: made(inputs[name])}
        got = type(bad[name]).__name__
        assert_all_refuse(family, bad, rf"`{name}` is a {got}, but must be a tensor\. .*return_tensors=\"pt\"")
        with pytest.raises(ValueError, match=f"`{name}` is a {got}"):
            family.model(**bad, retention_ratio=1.0)
        if name in family.case.video_inputs:
            with pytest.raises(ValueError, match=f"`{name}` is a {got}"):
                family.model.get_video_features(**family.videos_of(bad))


DESCRIPTIONS = ("grid_thw", "merge_sizes", "target_sizes_videos", "num_frames_per_video", "position_ids")


@by_default(lambda family: family.representative or family.name in ("gemma4", "minicpmv4_6", "video_llama_3"))
@pytest.mark.parametrize(
    "spoilt",
    [lambda value: value.flatten()[0], lambda value: value[None], lambda value: value.float(), Tensor.numpy],
    ids=["a number", "one axis more", "floats", "no tensor"],
)
def test_sizes_of_videos_in_another_form_are_refused_by_name(family: Family, spoilt: Callable) -> None:
    inputs = dict(family.one_video())
    names = [name for name in family.case.video_inputs if name.endswith(DESCRIPTIONS)]
    for name in ["input_ids", *names]:
        with pytest.raises(ValueError, match=rf"`{name}` is .*but must (have \d axes.*whole numbers|be a tensor)\."):
            family.model(**inputs | {name: spoilt(inputs[name])})
    for name in ("input_ids", *names[:1]):
        with pytest.raises(ValueError, match=rf"`{name}` is "):
            family.model.generate(**inputs | {name: spoilt(inputs[name])}, max_new_tokens=1)


@by_default(lambda family: family.representative or family.takes_one_kind)  # which has a mask of pixels, too
def test_pixels_of_images_that_are_no_tensor_are_refused_beside_videos(family: Family) -> None:
    inputs = family.for_stock(make_prompt(family, "image_and_video"))
    for name in inputs.keys() & {"pixel_values", "pixel_attention_mask"}:
        for made in (Tensor.tolist, Tensor.numpy):
            assert_all_refuse(family, inputs | {name: made(inputs[name])}, rf"`{name}` is a .*but must be a tensor\.")


def test_pixels_of_another_form_than_the_processors_are_refused(family: Family) -> None:
    inputs = dict(family.one_video())
    pixels = inputs["pixel_values_videos"]
    too_few = inputs | {"pixel_values_videos": pixels[..., :-1]}
    assert_all_refuse(family, too_few, "`pixel_values_videos` ha(s|ve) |`pixel_values_videos` holds ")
    empty = inputs | {"pixel_values_videos": pixels[:, :0]}
    assert_all_refuse(family, empty, r"(?s)`pixel_values_videos` has shape \(\d+, 0.*at least one frame")


def of_two_prompts(family: Family) -> dict[str, Any]:
    prompts = [family.prompt("One.", videos=1), family.prompt("Two.", videos=1)]
    return dict(family.inputs(*prompts, videos=[make_video(0), make_video(1)]))


def with_a_placeholder_of_another_prompt(family: Family) -> dict[str, Any]:
    """Move a placeholder to the other prompt, so that the total stays right."""
    inputs = of_two_prompts(family)
    first, second = (video_places(family.model.config, ids).nonzero().flatten() for ids in inputs["input_ids"])
    inputs["input_ids"][0, first[0]] = 0
    inputs["input_ids"][1, second[0] - 1] = placeholder_id(family.model.config)
    if "mm_token_type_ids" in inputs:
        types = inputs["mm_token_type_ids"]
        types[0, first[0]], types[1, second[0] - 1] = 0, 2
    return inputs


def hiding_the_second(family: Family) -> dict[str, Any]:
    inputs = of_two_prompts(family)
    inputs["attention_mask"][1] = 0
    return inputs


def with_features(family: Family, ratio: float, pixels: bool = False) -> dict[str, Any]:
    """Return a prompt with features that were encoded with a ratio, and perhaps their pixels."""
    inputs = dict(family.one_video())
    encoded = family.model.get_video_features(**family.videos_of(inputs), retention_ratio=ratio)
    if not pixels:
        del inputs["pixel_values_videos"]
    return inputs | {"mm_encoder_outputs": {"video": encoded}}


ENCODED_BEFORE = "`retention_ratio` is .* was encoded before it"
# What is passed, and words of the refusal.
REFUSED: dict[str, tuple[Callable[[Family], dict[str, Any]], str]] = {
    "a video without placeholders": (
        lambda family: dict(family.inputs(family.prompt("Hello."))) | family.videos_of(family.one_video()),
        "placeholders",
    ),
    "a placeholder of another prompt": (with_a_placeholder_of_another_prompt, "video placeholders"),
    "a mask that hides a video": (hiding_the_second, r"`attention_mask` hides \d+ placeholders of videos"),
    "a mask of another shape": (
        lambda family: dict(family.one_video()) | {"attention_mask": torch.ones(1, 7)},
        r"`attention_mask` .*7",
    ),
    "positions": (
        lambda family: dict(family.one_video()) | {"position_ids": torch.arange(300)[None]},
        "`position_ids` cannot be given",
    ),
    "pixels beside their features": (lambda family: with_features(family, RETENTION_RATIO, pixels=True), "Pass one"),
    "another ratio than that of features": (
        lambda family: with_features(family, RETENTION_RATIO) | {"retention_ratio": 1.0},
        ENCODED_BEFORE,
    ),
    "a ratio beside whole features": (
        lambda family: with_features(family, 1.0) | {"retention_ratio": RETENTION_RATIO},
        ENCODED_BEFORE,
    ),
    "a rounding of another total than a short prompt's": (
        lambda family: dict(family.writing_short.one_video()) | {"compression_rounding": "ceil"},
        "so the total is fixed.*stock processor",
    ),
}


@of_representatives
@pytest.mark.parametrize(("given", "match"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_a_video_is_refused_in_every_call(
    family: Family, given: Callable[[Family], dict[str, Any]], match: str
) -> None:
    assert_all_refuse(family, given(family), match)


def test_placeholders_that_do_not_match_the_frames_are_refused(family: Family) -> None:
    inputs = dict(family.one_video())
    per_video = family.case.video_tokens(8)
    first = int(video_places(family.model.config, inputs["input_ids"][0]).nonzero()[0])
    for name in inputs.keys() & {"input_ids", "attention_mask", "mm_token_type_ids"}:
        inputs[name] = torch.cat([inputs[name][:, :first], inputs[name][:, first + 1 :]], dim=1)
    assert_all_refuse(family, inputs, rf"\[{per_video - 1}\] video placeholders.* videos of \[{per_video}\].*processor")


@by_default(lambda family, asking: family.representative or asking == "stock")
def test_placeholders_whose_video_is_not_passed_are_refused(asking: Family) -> None:
    """The stock classes read them as text. TRL's GRPO trainer asks for log-probabilities so."""
    inputs, text = asking.one_video(), asking.inputs("So?")
    match = r"The prompts have \[\d+\] placeholders of videos, but no video is passed"
    for missing in (["pixel_values_videos"], [*asking.videos_of(inputs)], [*asking.case.video_inputs]):
        of_call = {name: value for name, value in inputs.items() if name not in missing}
        for settings in ({}, {"retention_ratio": 1.0}):
            assert_all_refuse(asking, of_call, match, **settings)
    cache = asking.model(**text, use_cache=True).past_key_values
    types = {name: value for name, value in inputs.items() if name == "mm_token_type_ids"}  # Ids alone may not tell.
    with pytest.raises(ValueError, match=match):
        asking.model(inputs["input_ids"], past_key_values=cache, **types)
    whole = torch.cat([text["input_ids"], inputs["input_ids"]], dim=1)
    with pytest.raises(ValueError, match=match):
        run(asking.model, {"input_ids": whole}, past_key_values=cache, **types)


# What reads ids in a way of its own is tested beside the representatives.
@only(lambda family: not (family.frames_are_images or (family.hears and not family.padded_frames)))
@by_default(lambda family: family.representative or family.adds_features or family.shares_ids or family.padded_frames)
def test_embeddings_run_beside_videos_as_their_ids_do(family: Family) -> None:
    inputs = family.one_video()
    embeddings = family.model.get_input_embeddings()(inputs["input_ids"])
    videos = {"inputs_embeds": embeddings} | family.videos_of(inputs) | typed(family, inputs)
    ids = family.model(**inputs).logits
    torch.testing.assert_close(family.model(**videos).logits, ids, rtol=0, atol=1e-5)
    new = run(family.model, videos)
    assert torch.equal(new, run(family.model, inputs)[:, -new.shape[1] :])
    text = family.model.get_input_embeddings()(family.inputs(family.prompt("Hello."))["input_ids"])
    ours, theirs = (
        model.generate(inputs_embeds=text, max_new_tokens=4, do_sample=False)
        for model in (family.model, reading_embeddings(family.stock))
    )
    assert torch.equal(ours, theirs)


@only(lambda family: family.frames_are_images or (family.hears and not family.padded_frames))
def test_embeddings_beside_videos_are_refused_where_ids_tell_what_is_what(family: Family) -> None:
    inputs = family.one_video()
    embeddings = {"inputs_embeds": family.model.get_input_embeddings()(inputs["input_ids"])}
    assert_all_refuse(family, embeddings | family.videos_of(inputs), "`inputs_embeds` cannot be passed .*`input_ids`")


@only(lambda family: not family.frames_stand_apart)
def test_a_video_may_have_one_frame(family: Family) -> None:
    inputs = family.one_video(num_frames=1)
    features = family.model.get_video_features(**family.videos_of(inputs))
    tokens = family.case.tokens_per_frame
    assert features.video_compressions[0].frame_budgets.tolist() == [tokens // 4]
    out = family.model.generate(**inputs, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert out.shape[1] == inputs["input_ids"].shape[1] + 3


@pytest.mark.parametrize("side", [28, 70, 98])
def test_frames_of_one_token_and_odd_patch_grids_work(tmp_path: Path, side: int) -> None:
    """2 × 2, 5 × 5 and 7 × 7 patches are pooled to 1, 3 × 3 and 4 × 4. The only token of a frame stays."""
    stock, processor = tiny_llava_onevision(image_size=side)
    stock.save_pretrained(tmp_path)
    model = VidCom2LlavaOnevisionForConditionalGeneration.from_pretrained(tmp_path, retention_ratio=RETENTION_RATIO)
    inputs = processor(text="<video>hi", videos=[make_video(0)], return_tensors="pt")
    pooled = -(-(side // 14) // 2)
    features = model.get_video_features(inputs["pixel_values_videos"])
    assert features.video_compressions[0].token_uniqueness.shape == (8, pooled**2)
    greedy = {"max_new_tokens": 3, "do_sample": False}
    theirs = stock.generate(**inputs, **greedy)
    assert torch.equal(model.generate(**inputs, **greedy, retention_ratio=1.0), theirs)
    assert pooled > 1 or torch.equal(model.generate(**inputs, **greedy), theirs)
    assert model(**inputs).past_key_values.get_seq_length() == 2 + len(features.pooler_output[0])


@of_representatives
def test_a_config_assigned_to_the_model_takes_effect_in_every_call(family: Family, short_length: Callable) -> None:
    model = family.load(retention_ratio=1.0)
    model.config = copy.deepcopy(model.config)
    model.config.retention_ratio = RETENTION_RATIO
    inputs = family.one_video()
    for call in (
        lambda: model(**inputs),
        lambda: model.generate(**inputs, max_new_tokens=1, return_dict_in_generate=True),
    ):
        assert call().past_key_values.get_seq_length() == short_length(inputs)


@of_representatives
def test_an_unknown_setting_of_a_call_is_refused(family: Family) -> None:
    inputs = family.one_video()
    for name in ("compression_ratio", "retention_rate", "vision_feature_layers", "max_video_frames"):
        for call in (family.model, family.model.model):
            with pytest.raises(ValueError, match=f"`{name}` is not a setting"):
                call(**inputs, **{name: 0.5})
        with pytest.raises(ValueError, match=f"`{name}` is not a setting"):
            family.model.get_video_features(**family.videos_of(inputs), **{name: 0.5})


@of_representatives
def test_more_arguments_by_position_than_the_parent_takes_are_refused(family: Family) -> None:
    for method in (family.model.model.get_video_features, family.model.model.forward):
        with pytest.raises(TypeError, match=rf"`{method.__name__}` was given 40 arguments by position, but takes \d+:"):
            method(*[None] * 40)


@only(lambda family: family.name.startswith(("llava", "internvl")))
def test_arguments_of_the_parent_are_not_mistaken_for_settings(family: Family) -> None:
    inputs = family.one_video()
    parents = [family.case.stock_class.forward, family.stock.model.forward, family.stock.model.get_video_features]
    names = {name for method in parents for name in inspect.signature(method).parameters if name[:7] == "vision_"}
    assert names
    for name in names:
        value = {name: getattr(family.stock.config, name)}
        assert torch.equal(family.model(**inputs, **value).logits, family.model(**inputs).logits)
        family.model.get_video_features(**family.videos_of(inputs), **value)
        family.model.generate(**inputs, **value, max_new_tokens=1)


class ByPosition(torch.nn.Module):
    """A call for `torch.jit.trace`, whose arguments and results are all tensors, by position."""

    def __init__(self, call: Callable[..., Tensor], names: list[str]):
        super().__init__()
        self.call, self.names = call, names

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.call(**dict(zip(self.names, inputs)))


@of_representatives
@pytest.mark.parametrize("how", ["export", "trace"])
def test_exporting_or_tracing_a_compressing_model_is_refused(family: Family, how: str) -> None:
    inputs, model = family.one_video(), family.load()
    names = [name for name in family.case.video_inputs if isinstance(inputs[name], torch.Tensor)]
    for module in (
        ByPosition(lambda **named: model(**named, use_cache=False).logits, ["input_ids", *names]),
        ByPosition(lambda **named: torch.cat(model.get_video_features(**named).pooler_output), names),
    ):
        tensors = tuple(inputs[name] for name in module.names)
        with pytest.raises(ValueError, match=r"torch\.(export|jit\.trace).*`retention_ratio=1\.0`"):
            torch.export.export(module, tensors) if how == "export" else torch.jit.trace(module, tensors)


@only(lambda family: family.name in ("llava_onevision", "qwen2_5_vl", "internvl", "gemma4"))  # kinds of prompts
@pytest.mark.parametrize("how", ["export", "strict export", "trace"])
def test_a_refused_export_or_trace_leaves_nothing_behind(family: Family, how: str) -> None:
    """Neither in the model, which answers as one that was never exported, nor in the KV cache of a conversation."""
    inputs, model = family.one_video(), family.load()
    names = ["input_ids", *(name for name in family.case.video_inputs if isinstance(inputs[name], torch.Tensor))]

    def first_turn(of: Any) -> Any:
        return of.generate(**inputs, max_new_tokens=2, do_sample=False, return_dict_in_generate=True)

    def whole_conversation(first: Any) -> dict[str, Any]:
        ids = torch.cat([first.sequences, inputs["input_ids"]], dim=1)
        return dict(inputs) | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def second_turn(of: Any, first: Any) -> Any:
        more = whole_conversation(first) | {"past_key_values": first.past_key_values}
        return of.generate(**more, max_new_tokens=2, do_sample=False)

    def held() -> dict[str, Any]:
        """The attributes and buffers of all modules."""
        attributes = {name: vars(each) | each._buffers for name, each in model.named_modules()}
        return {f"{name}.{key}": value for name, each in attributes.items() for key, value in each.items()}

    ours, first = first_turn(family.model), first_turn(model)
    before, notes, settings = held(), dict(vars(first.past_key_values)), model.config.to_dict()
    again = whole_conversation(first)
    calls = {
        "forward": lambda **named: model(**named, past_key_values=first.past_key_values).logits,
        "generate": lambda **named: model.generate(**again | named, past_key_values=first.past_key_values),
        "features": lambda **named: torch.cat(model.get_video_features(**named).pooler_output),
    }
    for name, call in calls.items():
        module = ByPosition(call, names[name == "features" :])
        tensors = tuple((again if name == "generate" else inputs)[each] for each in module.names)
        with pytest.raises((ValueError, RuntimeError, SystemError)):  # a strict export fails in Dynamo
            if how == "trace":
                torch.jit.trace(module, tensors)
            torch.export.export(module, tensors, strict=how == "strict export")
        after = held()
        assert after.keys() == before.keys() and all(after[each] is before[each] for each in after)
        assert model.config.to_dict() == settings and vars(first.past_key_values) == notes
    assert torch.equal(second_turn(model, first), second_turn(family.model, ours))
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, family.model(**inputs).logits)


@of_representatives
def test_a_mask_that_hides_a_placeholder_of_a_dropped_token_or_of_an_image_is_refused(family: Family) -> None:
    """Every family says so. M-RoPE positions would be wrong, or of another number than the tokens."""
    inputs = make_prompt(family, "image_and_video")
    is_video = video_places(family.model.config, inputs["input_ids"])[0]
    is_image = (inputs["input_ids"][0] == family.model.config.image_token_id) & ~is_video
    kept = family.model.get_video_features(**family.videos_of(inputs)).video_compressions[0].placeholders
    is_video[is_video.nonzero()[kept, 0]] = False  # those of dropped tokens are left
    for hidden in (is_video.nonzero()[:1, 0], is_video.nonzero()[:, 0], is_image.nonzero()[:1, 0]):
        mask = inputs["attention_mask"].index_fill(1, hidden, 0)
        assert_all_refuse(family, dict(inputs) | {"attention_mask": mask}, f"hides {len(hidden)} placeholders of")


@only(lambda family: family.native and not family.in_one_class)
@of_representatives
def test_an_inner_model_built_from_a_stock_config_works(family: Family) -> None:
    inner = type(family.model.model)(family.stock.config).eval()
    inner.load_state_dict(family.stock.model.state_dict())
    inputs = family.one_video()
    assert torch.equal(inner(**inputs).last_hidden_state, family.load().model(**inputs).last_hidden_state)


@of_representatives
@only(lambda family: family.mrope)
def test_images_and_videos_without_their_grids_are_refused(family: Family) -> None:
    inputs = dict(family.inputs(family.prompt("?", videos=1, images=1), videos=[make_video(0)], images=[make_image(0)]))
    del inputs["image_grid_thw"]
    with pytest.raises(ValueError, match="The prompt has 1 images, but `image_grid_thw` is None"):
        family.model(**inputs)


@of_representatives
@pytest.mark.parametrize(
    ("method", "value"),
    [("vidcom2", math.inf), *((method, math.nan) for method in ("vidcom2", "coverage", "evs", "uniform_frames"))],
)
def test_a_pixel_that_is_not_finite_stays_visible_in_the_answer(family: Family, method: str, value: float) -> None:
    """In the stock class it is. So it must not be lost with a token or a frame that is dropped."""
    inputs = dict(family.one_video())
    for place in (1 / 9, 1 / 3, 1 / 2):
        pixels = inputs["pixel_values_videos"].clone()
        pixels.view(-1)[int(place * pixels.numel())] = value
        bad = inputs | {"pixel_values_videos": pixels}
        assert not family.model(**bad, retention_ratio=1.0).logits[:, -1].isfinite().any()
        assert not family.model(**bad, compression_method=method).logits[:, -1].isfinite().any()


# -- the tables of what cannot be combined with a compressed prompt ----------------------------------------------------


def test_the_docs_show_every_refusal() -> None:
    lines = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8").splitlines()
    for refusal in (refusal for table in TABLES for refusal in table):
        shown = [line for line in lines if line.startswith("| ") and refusal.asked in line]
        assert len(shown) == 1 and shown[0].endswith(f"| {refusal.instead} |"), refusal.asked


# `asked` of a row -> what to pass to `generate`, or None if another test does so or this Transformers supports it.
ASKING: dict[str, dict[str, Any] | None] = {
    "`position_ids`": {"position_ids": torch.zeros(1, 4, dtype=torch.long)},
    "`cu_seq_lens_q` and the other lengths of packed prompts": {"cu_seq_lens_q": torch.tensor([0, 4])},
    '`cache_implementation="paged"`': {"cache_implementation": "paged"},
    "`token_healing`": {"token_healing": True},
    "`prefill_chunk_size` on Transformers 5.19": None,  # tests/test_generate.py
}


@only(lambda family: family.name == "llava_onevision")
@pytest.mark.parametrize("refusal", [refusal for table in TABLES[:2] for refusal in table], ids=lambda row: row.asked)
def test_each_row_of_the_tables_is_refused_with_its_reason_and_remedy(family: Family, refusal: Any) -> None:
    """One family stands for all, since one place reads the tables."""
    asking = ASKING[refusal.asked]
    if asking is not None:
        with pytest.raises(ValueError) as error:
            run(family.model, make_prompt(family, "one_video"), **asking)
        assert str(error.value) == f"{refusal.because} {refusal.instead}"
