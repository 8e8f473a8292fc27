"""Users' methods: one of each kind that the interface is for, in every family and mode, and what is refused."""

import ast
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, only, use_method
from models import make_image, make_video, video_places
from reference import new_tokens
from torch import Tensor

from vidcom2 import (
    RECOMMENDED,
    CompressionSettings,
    TokenMerge,
    VideoCompression,
    VideoTokens,
    apply,
    compress,
    register_compression_method,
)
from vidcom2.asking.prompting import prepare_inputs
from vidcom2.configuration.compression_settings import (
    COMPRESSION_METHODS,
    OF_SOME_COMPRESSION_METHODS,
    VISION_METHODS,
)
from vidcom2.explaining.explain import explain
from vidcom2.explaining.explanation import DIMMED, LIGHT
from vidcom2.modeling.methods.method_coverage import SKETCH, projection
from vidcom2.toys import DEMO_VIDEO
from vidcom2.video.reading import read_video

pytestmark = pytest.mark.usefixtures("methods_restored")
OWN = {name: row for name, row in COMPRESSION_METHODS.items() if row.own}
A_FEW = only(lambda family: family.name in ("llava_onevision", "qwen3_vl"))


def video_tokens(num_frames: int = 4, tokens_per_frame: int = 9) -> Tensor:
    return torch.randn(num_frames, tokens_per_frame, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", OWN)
def test_torchs_default_dtype_changes_nothing(name: str) -> None:
    """Scripts set it before they load a model, and some never set it back."""
    torch.manual_seed(0)
    width = SKETCH + 1  # wide enough that each step of each method runs
    video = VideoTokens(torch.randn(8, 9, width), grid=(3, 3))
    projection.cache_clear()
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = compress(video, 0.3, compression_method=name)
    finally:
        torch.set_default_dtype(torch.float32)
    expected = compress(video, 0.3, compression_method=name)
    assert torch.equal(found.indices, expected.indices)
    if expected.merge is not None:
        assert all(map(torch.equal, found.merge, expected.merge))


# -- in models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["merged_in_time", "whole_frames", "inner_contrast", "vcast"])
def test_generate_gives_the_tokens_of_a_prompt_compressed_by_hand(family: Family, method: str) -> None:
    """That holds in a padded batch, greedy and with beams, with images beside the videos."""
    settings = {"compression_method": method if method in COMPRESSION_METHODS else use_method(method)}
    # In the second video two frames become one, so that merging differs from dropping.
    prompts = family.prompt("What?", videos=1), family.prompt("Who is to be seen here?", videos=1, images=1)
    first = family.inputs(prompts[0], videos=[make_video(0)])
    second = family.inputs(prompts[1], videos=[make_video(1)], images=[make_image(2)])
    both = family.inputs(*prompts, videos=[make_video(0), make_video(1)], images=[make_image(2)])
    for ratio, call in ((0.25, {}), (0.5, {"num_beams": 2})):
        call = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False} | call
        got = family.model.generate(**both, retention_ratio=ratio, **settings, **call)
        for row, inputs in enumerate((first, second)):
            expected = new_tokens(family, inputs, ratio, settings=settings, **call)
            assert got[row, both["input_ids"].shape[1] :].tolist() == expected[0].tolist()


def test_training_reaches_the_features_through_a_merge(family: Family) -> None:
    use_method("merged_in_time")
    model = family.load(compression_method="merged_in_time", retention_ratio=0.5).train()
    inputs = family.one_video()
    labels = inputs["input_ids"].clone()
    labels[video_places(model.config, labels)] = -100
    model(**inputs, labels=labels).loss.backward()
    projectors = ("projector", "merger", "embed_vision", "connector")
    reached = [
        p.grad.abs().sum() > 0 for name, p in model.named_parameters() if any(map(name.__contains__, projectors))
    ]
    assert reached and all(reached)


def test_deepstack_features_are_kept_and_merged_like_the_tokens(family: Family) -> None:
    """Some families add such features to the first decoder layers. Here they are made up."""
    use_method("merged_in_time")
    model = family.load(compression_method="merged_in_time", retention_ratio=0.5).model
    encode = model.encode_videos

    def with_deepstack(*args, **kwargs):
        outputs, videos = encode(*args, **kwargs)
        outputs["deepstack_features"] = [[factor * video for video in outputs.pooler_output] for factor in (2.0, 3.0)]
        return outputs, videos

    model.encode_videos = with_deepstack
    features = model.get_video_features(**family.videos_of(family.one_video()))
    for layer, factor in zip(features.deepstack_features, (2.0, 3.0), strict=True):
        torch.testing.assert_close(layer[0], factor * features.pooler_output[0])
    passed_on = model._for_parent(features).deepstack_features
    assert passed_on is features.deepstack_features


# -- the operator -----------------------------------------------------------------------------------------------------


def test_kept_gathers_or_merges_any_features_of_the_tokens() -> None:
    merge = TokenMerge(torch.tensor([0, 0, 1]), torch.tensor([0, 3, 2]), torch.tensor([0.25, 0.75, 1.0]))
    compression = VideoCompression(torch.tensor([0, 2]), torch.tensor([1, 1]), merge=merge, tokens_per_frame=2)
    features = torch.arange(24.0).view(4, 2, 3)
    expected = torch.stack([0.25 * features[0] + 0.75 * features[3], features[2]])
    torch.testing.assert_close(compression.kept(features), expected)
    assert compression.kept(features.bfloat16()).dtype == torch.bfloat16
    assert compression.num_tokens == 4
    unmerged = VideoCompression(torch.tensor([0, 2]), torch.tensor([1, 1]), tokens_per_frame=2)
    assert torch.equal(unmerged.kept(features), features[[0, 2]])


# -- registering ------------------------------------------------------------------------------------------------------


def first_tokens(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
    kept = torch.zeros(video.tokens.shape[:2], dtype=torch.bool)
    kept[:, :2] = True
    return VideoCompression.of_mask(kept)


def test_a_registered_method_can_be_selected_everywhere() -> None:
    with pytest.raises(ValueError, match="`compression_method` is 'first'"):
        compress(video_tokens(), compression_method="first")
    assert register_compression_method("first")(first_tokens) is first_tokens
    got = compress(video_tokens(), compression_method="first")
    assert got.indices.tolist() == [0, 1, 9, 10, 18, 19, 27, 28] and got.tokens_per_frame == 9
    assert CompressionSettings(compression_method="first").compression_method == "first"
    with pytest.raises(ValueError, match=r"'first', .*'random', .*'vidcom2'.*once its module is imported"):
        compress(video_tokens(), compression_method="last")


def test_a_taken_name_is_refused_even_to_a_function_of_the_same_name() -> None:
    def vidcom2(video: VideoTokens, settings: CompressionSettings) -> VideoCompression: ...

    for name in ("vidcom2", "random"):
        with pytest.raises(ValueError, match=f"'{name}' is taken by this project"):
            register_compression_method(name)(vidcom2)
    register_compression_method("first")(first_tokens)
    register_compression_method("first")(first_tokens)  # as on a reload
    source = "def first_tokens(video, settings): ..."
    elsewhere: dict[str, Callable] = {"__name__": "elsewhere"}
    exec(source, elsewhere)
    with pytest.raises(ValueError, match=r"'first' is taken by test_methods\.first_tokens; choose another name"):
        register_compression_method("first")(elsewhere["first_tokens"])
    assert COMPRESSION_METHODS["first"].function.__wrapped__ is first_tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name of a compression method is ''"),
        ({"name": "mine", "settings": ("temperature",)}, r"`settings` of .* is \('temperature',\)"),
        ({"name": "mine", "settings": "retention_ratio"}, "`settings` of method 'mine' is 'retention_ratio'"),
    ],
)
def test_a_wrong_registration_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        register_compression_method(**arguments)
    with pytest.raises(ValueError, match="method 'mine' is a partial, but must be a function"):
        register_compression_method("mine")(partial(first_tokens))
    assert "mine" not in COMPRESSION_METHODS


def test_a_method_of_this_project_is_the_file_of_its_name_and_its_row_stands_there() -> None:
    for table, prefix in ((COMPRESSION_METHODS, "method_"), (VISION_METHODS, "vision_")):
        assert table.files
        for name in table.files:
            row = table[name]
            assert row.own and row.name == name and inspect.unwrap(row.function).__module__.endswith(f".{prefix}{name}")


def test_the_row_of_a_method_of_this_project_is_true() -> None:
    for row in OWN.values():
        assert set(row.settings) <= set(OF_SOME_COMPRESSION_METHODS)
        assert row.count is not None


def test_the_name_of_a_method_of_this_project_stands_only_in_its_row_and_its_file() -> None:
    """Exceptions are vLLM's own flag, which has a value "evs", the settings that are recommended, the memory of a live
    video that is named like the method, and the colours of plots."""
    root = Path(__file__).parents[1]
    files = [path for top in ("configuration", "modeling", "hub_upload", "src") for path in (root / top).rglob("*.py")]
    named: dict[str, set[str]] = {name: set() for name in ("dycoke", "evs", "vcast", "coverage")}
    for path in files:
        nodes = ast.walk(ast.parse(path.read_text("utf-8"))) if "vllm_plugin" not in path.parts else ()
        for name in named.keys() & {node.value for node in nodes if isinstance(node, ast.Constant)}:
            named[name].add(path.name)
    for name, where in named.items():
        assert where - {"presets.py", "live_video.py", "stream_memory.py", "plot_styles.py"} == {
            f"method_{name}.py",
        }


class Recorder(SimpleNamespace):
    """Settings that record which of them are read."""

    def __getattribute__(self, name: str) -> object:
        if name.startswith(("compression_", "retention_")):
            object.__getattribute__(self, "read").add(name)
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("name", OWN)
def test_a_method_reads_only_the_settings_that_its_row_declares(name: str) -> None:
    read: set[str] = set()
    for rounding in ("ceil", "exact"):
        settings = CompressionSettings.as_dict(CompressionSettings()) | {"compression_rounding": rounding}
        video = VideoTokens(video_tokens(), (3, 3))
        COMPRESSION_METHODS[name].function(video, Recorder(read=read, **settings))
    # Frame Compression Adjustment reads two settings that have no effect on frames with equal scores.
    read -= {"compression_temperature", "compression_frame_score"} if name == "random" else set()
    assert read == {"retention_ratio", *OWN[name].settings}


# -- settings that a method does not read ------------------------------------------------------------------------------


@A_FEW
def test_settings_that_a_method_does_not_read_are_refused_wherever_they_are_set(family: Family, tmp_path: Path) -> None:
    register_compression_method("first", settings=("compression_window",))(first_tokens)
    wrong = {"compression_method": "random", "compression_temperature": 0.5}
    inputs, config = family.one_video(), family.case.config_class()
    config.compression_method, config.compression_temperature = wrong.values()
    for call in (
        lambda: compress(video_tokens(), **wrong),
        lambda: compress(video_tokens(), **wrong | {"compression_method": "first"}),
        lambda: family.case.config_class(**wrong),
        lambda: family.case.config_class.from_pretrained(family.folder, **wrong),
        lambda: config.save_pretrained(tmp_path / "new"),
        lambda: family.load(**wrong),
        lambda: family.model(**inputs, **wrong),
        lambda: family.model.generate(**inputs, **wrong),
    ):
        with pytest.raises(ValueError, match=r"`compression_temperature` is 0\.5, but .* does not read it"):
            call()
    compress(video_tokens(), compression_method="first", compression_window=2, compression_positions="original")


@A_FEW
def test_a_call_with_another_method_ignores_settings_that_only_the_configs_method_reads(family: Family) -> None:
    model = family.load(compression_window=2, compression_rounding="ceil")
    inputs = family.videos_of(family.one_video())
    got = model.get_video_features(**inputs, compression_method="random").video_compressions[0]
    plain = family.load(compression_method="random", compression_rounding="ceil")
    expected = plain.get_video_features(**inputs).video_compressions[0]
    assert torch.equal(got.indices, expected.indices)
    with pytest.raises(ValueError, match=r"`compression_window` is 3, but .* does not read it"):
        model.get_video_features(**inputs, compression_method="random", compression_window=3)


@A_FEW
def test_a_method_chosen_on_loading_ignores_settings_that_only_the_stored_method_reads(
    family: Family, tmp_path: Path
) -> None:
    stored: dict[str, Any] = {"compression_scoring": "released", "compression_window": 2, "retention_ratio": 0.5}
    model = family.load(**stored)
    model.config.save_pretrained(tmp_path)
    expected = family.case.config_class(retention_ratio=0.5, **RECOMMENDED).as_dict()
    assert family.case.config_class.from_pretrained(tmp_path, **RECOMMENDED).as_dict() == expected
    assert family.case.model_class(model.config, **RECOMMENDED).config.as_dict() == expected
    assert model.config.as_dict() == CompressionSettings(**stored).as_dict()
    refused = pytest.raises(ValueError, match=r"`compression_window` is 3, but .* does not read it")
    with refused:
        family.case.config_class.from_pretrained(tmp_path, **RECOMMENDED, compression_window=3)
    with refused:
        apply(model, **RECOMMENDED, compression_window=3)
    assert apply(model, **RECOMMENDED).config.as_dict() == expected
    answer = model.generate(**family.one_video(), max_new_tokens=2, do_sample=False)
    again = family.load(**stored).generate(**family.one_video(), **RECOMMENDED, max_new_tokens=2, do_sample=False)
    assert torch.equal(answer, again)


@only(lambda family: family.native)
def test_settings_in_a_stock_config_are_checked(family: Family) -> None:
    for name, value in (("compression_method", "nope"), ("retention_ratio", 7)):
        config = family.case.stock_config_class.from_pretrained(family.folder)
        setattr(config, name, value)
        with pytest.raises(ValueError, match=f"`{name}` is {value!r}"):
            family.case.model_class.from_pretrained(family.folder, config=config)


# -- what a method returns --------------------------------------------------------------------------------------------

GOOD = {"indices": torch.tensor([0, 5, 9]), "frame_budgets": torch.tensor([2, 1, 0, 0])}
GOOD_MERGE = TokenMerge(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 5, 9, 10]), torch.tensor([1.0, 1.0, 0.5, 0.5]))
OF_NOTHING = {"indices": torch.tensor([], dtype=torch.int64), "frame_budgets": torch.tensor([0, 0, 0, 0])}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "a NoneType, not a `VideoCompression`"),
        (GOOD | {"indices": [0, 5, 9]}, "`indices` that are not int64"),
        (GOOD | {"indices": torch.tensor([0.0, 5.0, 9.0])}, "`indices` that are not int64"),
        (GOOD | {"indices": torch.tensor([5, 0, 9])}, "`indices` that do not ascend within the 36 tokens"),
        (GOOD | {"indices": torch.tensor([0, 0, 9])}, "`indices` that do not ascend"),
        (GOOD | {"indices": torch.tensor([-1, 0, 9])}, "`indices` that do not ascend"),
        (GOOD | {"indices": torch.tensor([0, 5, 36])}, "`indices` that do not ascend"),
        (OF_NOTHING, "no token at all"),
        (GOOD | {"frame_budgets": torch.tensor([2, 1, 0])}, "`frame_budgets` that are not int64"),
        (GOOD | {"frame_budgets": torch.tensor([1, 1, 1, 0])}, "`frame_budgets` that are not what `indices` keep"),
        (GOOD | {"frame_uniqueness": torch.zeros(3)}, "`frame_uniqueness` that is no float tensor"),
        (GOOD | {"token_uniqueness": torch.zeros(36)}, "`token_uniqueness` that is no float tensor"),
        (GOOD | {"merge": GOOD_MERGE._replace(weights=torch.tensor([1.0, 1.0, 1.0, 1.0]))}, "a `merge` that is no"),
        (GOOD | {"merge": GOOD_MERGE._replace(outputs=torch.tensor([0, 1, 2, 3]))}, "a `merge` that is no"),
        (GOOD | {"merge": GOOD_MERGE._replace(inputs=torch.tensor([0, 5, 9, 36]))}, "a `merge` that is no"),
        (GOOD | {"merge": GOOD_MERGE._replace(inputs=torch.tensor([0, 5, 9]))}, "a `merge` that is no"),
        (GOOD | {"merge": tuple(GOOD_MERGE)}, "a `merge` that is no"),
    ],
)
def test_a_bad_result_of_a_method_is_refused(returned: dict | None, message: str) -> None:
    register_compression_method("careless")(lambda *_: None if returned is None else VideoCompression(**returned))
    with pytest.raises(ValueError, match=f"`compression_method='careless'` returned {message}"):
        compress(video_tokens(), compression_method="careless")


def test_a_method_that_writes_into_the_tokens_is_refused() -> None:
    def writing(video: VideoTokens, settings: CompressionSettings) -> VideoCompression:
        tokens = video.tokens.float()
        tokens -= tokens.mean()
        return VideoCompression(**GOOD)

    register_compression_method("writing")(writing)
    with pytest.raises(ValueError, match=r"'writing'` wrote into the video's tokens.*Compute on a copy"):
        compress(video_tokens(), compression_method="writing")


def test_at_ratio_one_a_registered_method_is_not_called() -> None:
    register_compression_method("never")(lambda video, settings: 1 / 0)
    got = compress(video_tokens(), 1.0, compression_method="never")
    assert len(got.indices) == 36 and got.token_uniqueness is None


def test_a_good_result_of_a_method_is_returned_unchanged() -> None:
    merge = GOOD_MERGE._replace(weights=GOOD_MERGE.weights.double())
    register_compression_method("careful")(lambda video, settings: VideoCompression(**GOOD, merge=merge))
    got = compress(VideoTokens(video_tokens(), grid=(3, 3)), compression_method="careful")
    assert got.merge is merge and got.grid == (3, 3)
    with_floats = VideoCompression(**GOOD, merge=GOOD_MERGE).kept(video_tokens().flatten(0, 1))
    torch.testing.assert_close(got.kept(video_tokens().flatten(0, 1)), with_floats)


# -- drawings ---------------------------------------------------------------------------------------------------------


@A_FEW
@pytest.mark.parametrize("method", ["merged_in_time", "whole_frames"])
def test_explain_shows_what_any_method_keeps_and_merges(family: Family, method: str) -> None:
    model = family.load(compression_method=use_method(method), retention_ratio=0.5)
    video = read_video(str(DEMO_VIDEO), 8)
    (explanation,) = explain(video, model, processor=family.processor).ways
    inputs = {name: each for name, each in prepare_inputs(family.processor, "", video).items() if name != "input_ids"}
    compression = model.model(**inputs, only_features="kept", return_dict=True).video_compressions[0]
    assert np.flatnonzero(explanation.kept).tolist() == compression.indices.tolist()
    kept, whole = len(compression.placeholders), compression.num_placeholders
    assert explanation.title.startswith(f"{method} at 0.5: {kept} of {whole} video tokens stay")
    if method != "merged_in_time":
        assert explanation.merged is None and "merged" not in explanation.title
        return
    assert np.array_equal(explanation.merged, ~explanation.kept)  # every other token is merged into a kept one
    merged = compression.num_tokens - len(compression.indices)
    assert explanation.title.endswith(f"and {merged} are merged into them")
    first = int(np.flatnonzero(explanation.merged.any(axis=(1, 2)))[0])
    pale = (explanation.frames[first].astype(float) * DIMMED + LIGHT * (1 - DIMMED)).round()
    drawn = explanation.kept_picture(first)
    assert explanation.covered == (0, 0, 1, 1) and np.abs(drawn - pale).max() <= 1
