"""A watched video answers as `ask` does: at once, from its file, from its KV cache, and in another process."""

import copy
import json
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, only
from models import RETENTION_RATIO
from PIL import Image
from safetensors.torch import load_file, save
from test_cli import vidcom2 as cli
from transformers import LogitsProcessor, StaticCache

import vidcom2
from vidcom2.asking.model_identity import LANGUAGE_MODEL
from vidcom2.asking.prompting import OF_TEXTS, prepare_inputs
from vidcom2.asking.watched import Watched, load_watched_file
from vidcom2.asking.watched_file import read_header
from vidcom2.bulk import many_in_transformers
from vidcom2.bulk.engine import Engine
from vidcom2.configuration.compression_settings import NUM_KEPT, CompressionSettings
from vidcom2.errors import OptionError
from vidcom2.families.table import FAMILIES
from vidcom2.toys import DEMO_VIDEO

CHATS: list[Any] = [
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
    [
        {"role": "user", "content": [{"type": "text", "text": "First."}, {"type": "video"}]},
        {"role": "assistant", "content": "A ball."},
        {"role": "user", "content": "Where?"},
    ],
]


class Seen(LogitsProcessor):
    """Remembers the logits of an answer."""

    def __init__(self) -> None:
        self.logits: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.logits.append(scores.float())
        return scores


def logits(asks: Any, question: Any, *args: Any, **arguments: Any) -> torch.Tensor:
    seen = Seen()
    asks(question, *args, logits_processor=[seen], max_new_tokens=3, min_new_tokens=3, **arguments)
    return torch.stack(seen.logits)


@pytest.fixture(scope="module")
def video() -> vidcom2.Video:
    frames = np.random.default_rng(0).integers(0, 256, (8, 112, 112, 3)).astype(np.uint8)
    frames[3:] = frames[2] // 2 + frames[3:] // 2
    return vidcom2.Video.from_frames(frames, fps=2)


def watch(family: Family, video: Any, **settings: Any) -> Watched:
    return vidcom2.watch(video, family.model, processor=family.processor, **settings)


def load(family: Family, path: Path, model: Any = None, **settings: Any) -> Watched:
    return vidcom2.load_watched(path, model or family.model, processor=family.processor, **settings)


def test_a_watched_video_answers_as_ask_does(family: Family, video: vidcom2.Video, tmp_path: Path) -> None:
    """The prompt is the one that this project's processor writes, and the logits are those of `generate` on the stock
    processor's inputs: bit for bit from the features, up to rounding from the KV cache. Loaded files give the same."""
    watched = watch(family, video)
    watched.save(tmp_path / "features.watched")
    loaded, filled = load(family, tmp_path / "features.watched"), watch(family, video).prefill()
    for from_features, question in zip((watched, loaded, loaded), ("\nWho is it? Why?", *CHATS)):
        fresh = prepare_inputs(family.processor, question, video, family.model)
        expected = logits(
            lambda _, given=fresh, **rest: family.model.generate(**given, do_sample=False, **rest), question
        )
        inputs = watched.inputs(question)
        written = family.short_inputs(question, video)
        assert all(torch.equal(inputs[name], written[name]) for name in (*OF_TEXTS, NUM_KEPT) if name in written)
        assert torch.equal(logits(from_features.ask, question), expected)
        assert isinstance(question, list) or filled.can_continue(inputs["input_ids"], {})
        torch.testing.assert_close(logits(filled.ask, question), expected, rtol=0, atol=1e-5)
    given = {"max_new_tokens": 4}
    expected = vidcom2.ask(video, ["?", "Who?"], family.model, processor=family.processor, **given)
    answers = loaded.prefill().ask(["?", "Who?"], **given)
    assert answers == expected and answers[0].prompt_tokens == expected[0].prompt_tokens and answers[0].video is None
    assert torch.equal(answers[1].compression.placeholders, expected[1].compression.placeholders)


@pytest.mark.parametrize("seconds", [0.2, 1.4, 40.0])
def test_a_question_after_a_cache_that_ends_behind_a_video_has_the_stock_models_positions(
    family: Family, seconds: float
) -> None:
    """The stock class runs the whole prompt in one go. Where frames last long, a video's last frame has a larger
    position than the text behind it begins with."""
    frames = np.random.default_rng(0).integers(0, 256, (20, 56, 56, 3)).astype(np.uint8)
    video = vidcom2.Video.from_frames(frames, times=[place * seconds for place in range(20)])
    inputs = prepare_inputs(family.processor, "Who is it?", video, family.model)
    filled = watch(family, video, retention_ratio=1.0).prefill()
    assert filled.can_continue(filled.inputs("Who is it?")["input_ids"], {})
    expected = logits(lambda _, **rest: family.stock.generate(**inputs, do_sample=False, **rest), None)
    torch.testing.assert_close(logits(filled.ask, "Who is it?"), expected, rtol=0, atol=1e-5)


def test_a_tuned_language_model_keeps_the_features(family: Family, video: vidcom2.Video, tmp_path: Path) -> None:
    watch(family, video).save(tmp_path / "features.watched")
    tuned = family.load(retention_ratio=RETENTION_RATIO)
    if family.case.representative:
        tuned.save_pretrained(tmp_path / "saved")  # which notes its code in the config
    weights = set(tuned.model.get_decoder().parameters())
    with torch.no_grad():
        for weight in weights:
            weight *= 1.01
    assert load(family, tmp_path / "features.watched", tuned).ask("Who?", max_new_tokens=1).new_tokens == 1
    encoder = [value for value in tuned.model.parameters() if value not in weights]
    with torch.no_grad():
        encoder[-1].view(-1)[0] += 0.1
    with pytest.raises(OptionError, match="another model: the encoder differs in its weights"):
        load(family, tmp_path / "features.watched", tuned)


def test_smolvlms_language_model_is_known_by_another_name() -> None:
    inner: Any = FAMILIES["smolvlm"].build_tiny()[0].model
    known = {value for name, value in inner.named_parameters() if name.startswith(LANGUAGE_MODEL)}
    assert known == set(inner.get_decoder().parameters())


ONE = only(lambda family: family.name == "llava_onevision")


@pytest.fixture(scope="module")
def ways(family: Family, video: vidcom2.Video) -> list[Watched]:
    """A video that answers from its features, and from its KV cache. Questions do not change them."""
    return [watch(family, video), watch(family, video).prefill()]


@ONE
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_beams": 3},
        {"do_sample": True, "temperature": 2.0},
        {"repetition_penalty": 1.8},
        {"do_sample": True, "min_p": 0.05, "temperature": 3.0},
        {"prompt_lookup_num_tokens": 3},
        {"cache_implementation": "static"},
        {"use_cache": False},
    ],
    ids=lambda arguments: ", ".join(arguments) or "greedy",
)
def test_arguments_of_generate_do_what_they_do_in_ask(
    family: Family, video: vidcom2.Video, ways: list[Watched], arguments: dict[str, Any]
) -> None:
    """What cannot begin with a KV cache is answered from the features by itself."""
    given = {"max_new_tokens": 6, "min_new_tokens": 6, **arguments}
    torch.manual_seed(0)
    expected = vidcom2.ask(video, "Who is it?", family.model, processor=family.processor, **given)
    for way in ways:
        for _ in range(2):  # the kept cache is not changed by a question
            torch.manual_seed(0)
            assert way.ask("Who is it?", **given) == expected


@only(lambda family: family.name in ("llava_onevision", "qwen3_vl", "qwen3_5"))
def test_a_static_cache_is_filled_once_and_answers_as_a_dynamic_one(family: Family, video: vidcom2.Video) -> None:
    """Where the generation config asks for one. What does not fit into it is answered from the features."""
    model = family.load(retention_ratio=RETENTION_RATIO)
    watched = vidcom2.watch(video, model, processor=family.processor)
    expected = logits(watched.ask, "Who is it?")
    length = watched.inputs("Who is it?")["input_ids"].shape[1]
    model.generation_config.cache_implementation = "static"
    for most, fits in ((None, True), (length + 2, True), (length + 1, False)):
        model.generation_config.max_cache_len = most
        filled = vidcom2.watch(video, model, processor=family.processor).prefill()
        assert isinstance(filled.cache, StaticCache) and most in (None, filled.cache.get_max_length())
        assert filled.can_continue(watched.inputs("Who is it?")["input_ids"], {"max_new_tokens": 3}) == fits
        for _ in range(2):  # the kept cache is not changed by a question
            torch.testing.assert_close(logits(filled.ask, "Who is it?"), expected, rtol=0, atol=1e-5)
    dynamic = {"cache_implementation": "dynamic"}
    assert not filled.can_continue(watched.inputs("Who is it?")["input_ids"], dynamic)
    assert torch.equal(logits(filled.ask, "Who is it?", **dynamic), expected)
    model.generation_config.max_cache_len = 3
    with pytest.raises(OptionError, match="the static KV cache has 3"):
        vidcom2.watch(video, model, processor=family.processor).prefill()


@ONE
def test_what_cannot_be_the_same_video_is_refused(family: Family, video: vidcom2.Video, tmp_path: Path) -> None:
    """Each has one error, and the file that was there stays."""
    path, clip = tmp_path / "clip.watched", tmp_path / "clip.mp4"
    clip.write_bytes(DEMO_VIDEO.read_bytes())
    watched = watch(family, clip, num_frames=4, retention_ratio=0.5)
    watched.save(path)
    whole = path.read_bytes()
    assert load(family, path, retention_ratio=0.5).ask("Who?") == watched.ask("Who?")
    for call in (partial(load, family, path), partial(watched.ask, "Who?")):
        with pytest.raises(OptionError, match=r"`retention_ratio` is 0.25, but the video was watched with 0.5"):
            call(retention_ratio=0.25)
    with pytest.raises(ValueError, match="`compression_newlines` is 'grid' in one call, but belongs to the model"):
        watched.ask("Who?", compression_newlines="grid")

    def refused(written: bytes, match: str) -> None:
        path.write_bytes(written)
        with pytest.raises(OptionError, match=match):
            load(family, path)

    refused(whole[:-1000], "cut short")
    refused(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:], "damaged")
    refused(clip.read_bytes(), "no watched video")
    refused(b"", "no file of safetensors")
    refused(whole.replace(b'\\"retention_ratio\\": 0.5', b'\\"retention_ratio\\": 0.7'), "damaged")
    refused(save({"features": torch.zeros(1)}), "no watched video")
    older = {"vidcom2": '{"format": 2, "sha256": "0"}'}
    refused(save({"features": torch.zeros(1)}, older), "older version of vidcom2.*Watch the video again")
    path.write_bytes(whole)
    clip.write_bytes(whole)
    with pytest.raises(OptionError, match="has changed since"):
        load(family, path)
    clip.unlink()  # what is gone has not changed
    assert load(family, path).source == watched.source
    with pytest.raises(ValueError, match="`compression_newlines` is 'all'"):
        load(family, path, compression_newlines="all")
    with pytest.raises(OptionError, match="is no watched video, whose name ends in"):
        load(family, tmp_path)
    with pytest.raises(OptionError, match="no file"):
        load(family, tmp_path / "none.watched")
    with pytest.raises(OptionError, match="`max_new_tokens` is neither an argument of `watch` nor a setting"):
        watch(family, video, max_new_tokens=3)


@ONE
def test_a_video_of_pictures_is_refused_once_a_picture_has_changed(
    family: Family, video: vidcom2.Video, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [tmp_path / f"{i}.png" for i in range(4)]
    for name, frame in zip(names, video.frames):
        Image.fromarray(frame).save(name)
    monkeypatch.chdir(tmp_path)
    watched = watch(family, [name.name for name in names], fps=2)
    watched.save("clip.watched")
    monkeypatch.chdir("/")
    assert load(family, tmp_path / "clip.watched").source == watched.source
    Image.fromarray(video.frames[3]).save(names[1])
    with pytest.raises(OptionError, match=r"0\.png', or another of 4 pictures, has changed since"):
        load(family, tmp_path / "clip.watched")


@ONE
def test_the_loaded_model_may_change_after_watching(family: Family, video: vidcom2.Video, tmp_path: Path) -> None:
    """Another language model answers from the features, and fills its own KV cache. Another encoder is refused."""
    model = family.load(retention_ratio=RETENTION_RATIO)
    path = tmp_path / "clip.watched"
    watched = vidcom2.watch(video, model, processor=family.processor).prefill()
    watched.save(path)
    before, cache = watched.ask("Who?"), watched.cache
    values = [layer.self_attn.v_proj.weight for layer in model.model.language_model.layers]
    for weight in values:
        weight.grad = torch.randn_like(weight)
    torch.optim.SGD(values, lr=1.0).step()
    expected = vidcom2.ask(video, "Who?", model, processor=family.processor)
    assert watched.ask("Who?") == expected != before
    requests = [{"video": str(path), "prompt": "Who?"}]
    (answered,) = vidcom2.answer_many(requests, model, processor=family.processor)
    assert answered.answer == expected
    assert watched.prefill().cache is not cache and watched.ask("Who?") == expected
    assert load(family, path, model).ask("Who?") == expected
    tower: Any = model.model.vision_tower

    def loads_others() -> None:
        tower.load_state_dict({name: value + 0.1 for name, value in tower.state_dict().items()}, assign=True)

    for change in (loads_others, lambda: next(tower.parameters()).add_(0.1), model.bfloat16):
        watched = vidcom2.watch(video, model, processor=family.processor)
        with torch.no_grad():
            change()
        for use in (watched.prefill, partial(watched.ask, "Who?"), partial(watched.save, path)):
            with pytest.raises(OptionError, match="encoder has changed since it watched"):
                use()
    with pytest.raises(
        OptionError, match=r"\('torch.float32' then, 'torch.bfloat16' now\)\. Load the model with `dtype`"
    ):
        load(family, path, model)


@ONE
def test_a_model_that_was_changed_back_answers_about_no_watched_video(family: Family, video: vidcom2.Video) -> None:
    model = family.load(retention_ratio=RETENTION_RATIO)
    watched = vidcom2.watch(video, model, processor=family.processor)
    expected = watched.ask("Who?")
    vidcom2.remove(model)
    with pytest.raises(
        OptionError, match=r"`vidcom2.remove` restored its stock class. Call `vidcom2.apply\(model\)` again"
    ):
        watched.ask("Who?")
    vidcom2.apply(model)
    assert watched.ask("Who?") == expected


@ONE
def test_a_copy_answers_with_the_same_model_and_a_cache_of_its_own(family: Family, video: vidcom2.Video) -> None:
    watched = watch(family, video).prefill()
    copied = copy.deepcopy(watched)
    assert copied.checkpoint is watched.checkpoint and copied.cache is not watched.cache
    assert copied.ask("Who?") == watched.ask("Who?")


@ONE
def test_the_adapters_that_are_on_belong_to_the_model(family: Family, video: vidcom2.Video, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, path = family.load(retention_ratio=RETENTION_RATIO), tmp_path / "clip.watched"
    of_both = r".*(language_model|vision_tower).*q_proj"
    config = peft.LoraConfig(target_modules=of_both, r=2, init_lora_weights=False)
    adapted = peft.get_peft_model(model, config, "first").eval()
    adapted.add_adapter("second", config)
    adapted.set_adapter("first")
    watched = vidcom2.watch(video, model, processor=family.processor)
    watched.save(path)
    assert load(family, path, model).ask("Who?") == watched.ask("Who?")
    for switch in (partial(adapted.set_adapter, "second"), adapted.base_model.disable_adapter_layers):
        switch()
        with pytest.raises(OptionError, match="encoder has changed"):
            watched.ask("Who?")
        with pytest.raises(OptionError, match="the encoder differs in its weights"):
            load(family, path, model)


@only(lambda family: family.name == "llava_video")
def test_the_processor_must_write_the_same_text(
    family: Family, video: vidcom2.Video, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(family, video).save(tmp_path / "clip.watched")
    monkeypatch.setattr(family.processor, "add_time_instruction", not family.processor.add_time_instruction)
    with pytest.raises(OptionError, match="the encoder differs in its processor"):
        load(family, tmp_path / "clip.watched")


@ONE
def test_a_file_stands_for_itself(
    family: Family, video: vidcom2.Video, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happens to it afterwards changes nothing, and it says all that the frames said."""
    path, link = tmp_path / "clip.watched", tmp_path / "link.watched"
    link.symlink_to(path)
    watched = watch(family, replace(video, lost=3))
    watched.save(link)
    (tmp_path / "new").touch()
    assert link.is_symlink() and path.stat().st_mode == (tmp_path / "new").stat().st_mode
    loaded = load(family, path)
    requests = [{"video": str(path), "prompt": "Who?"}]
    (answered,) = vidcom2.answer_many(requests, family.model, processor=family.processor)
    assert loaded.lost_frames == answered.lost_frames == watched.lost_frames == 3
    header = read_header(path)
    with path.open("r+b") as file:  # in place, as `cp` does
        file.write(bytes(path.stat().st_size))
    assert loaded.ask("Who?") == watched.ask("Who?")
    watch(family, video, retention_ratio=0.5).save(path)
    with pytest.raises(OptionError, match="was replaced while it was read"):
        load_watched_file(path, header, watched.checkpoint, {})

    monkeypatch.chdir(tmp_path)  # the video is found from another folder, too
    Path("clip.mp4").write_bytes(DEMO_VIDEO.read_bytes())
    watch(family, "clip.mp4", num_frames=4).save("clip.watched")
    monkeypatch.chdir("/")
    assert load(family, path).source[0] == str(tmp_path / "clip.mp4")


@ONE
@pytest.mark.parametrize(
    ("name", "message"),
    [("clip.mp4", r"must end in '.watched'"), (".", "must end in"), ("none/clip.watched", "there is no folder")],
)
def test_no_other_file_is_written_over(family: Family, video: vidcom2.Video, name: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        watch(family, video).save(name)


@ONE
def test_a_file_that_cannot_be_written_leaves_the_old_one(
    family: Family, video: vidcom2.Video, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, watched = tmp_path / "clip.watched", watch(family, video)
    watched.save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OptionError, match="No space left"):
            watched.save(path)
    watched.features.pooler_output[0][0, 0] = torch.nan
    with pytest.raises(OptionError, match=r"its features are not finite\. Nothing was changed"):
        watched.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@ONE
def test_requests_about_a_watched_video_share_batches_with_others(
    family: Family, video: vidcom2.Video, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not fit ends in an error of its own. No watched video is encoded again."""
    path, clip = tmp_path / "clip.watched", tmp_path / "clip.mp4"
    clip.write_bytes(DEMO_VIDEO.read_bytes())
    watch(family, clip, num_frames=4, retention_ratio=0.5).save(path)
    batches, encoded = [], []
    of, encode = many_in_transformers.TransformersEngine, many_in_transformers.run_tower
    generated = of.generated
    monkeypatch.setattr(of, "generated", lambda *given: batches.append(given[1]) or generated(*given))
    monkeypatch.setattr(many_in_transformers, "run_tower", lambda *given: encoded.append(given) or encode(*given))
    requests: list[dict[str, Any]] = [
        {"video": str(path), "prompt": "Who?"},
        {"video": str(path), "prompt": "Who?", "retention_ratio": 0.25},
        {"video": str(path), "prompt": "What happens?", "retention_ratio": 0.5},
        {"video": str(path), "prompt": "Who?", "num_frames": 4},
        {"video": str(tmp_path / "none.watched"), "prompt": "Who?"},
        {"video": video, "prompt": "Where?"},
    ]
    answered = vidcom2.answer_many(requests, family.model, processor=family.processor, num_frames=2)
    found = {each.request.id: each for each in answered}
    for number, seen, prompt in ((1, clip, "Who?"), (3, clip, "What happens?"), (6, video, "Where?")):
        given = {"num_frames": 4, "retention_ratio": RETENTION_RATIO if seen is video else 0.5}
        expected = vidcom2.ask(seen, prompt, family.model, processor=family.processor, **given)
        answered = found[str(number)]
        assert answered.answer == expected and answered.error is None
        assert answered.prompt_tokens == expected.prompt_tokens
        assert answered.full_video_tokens == expected.full_video_tokens
    for number, reason in ((2, "`retention_ratio` is 0.25"), (4, "`num_frames` is for"), (5, "there is no file")):
        assert reason in str(found[str(number)].error)
    assert [len(batch) for batch in batches] == [3] and len(encoded) == 1
    (other,) = vidcom2.answer_many(requests[:1], family.model, processor=family.processor, retention_ratio=0.25)
    assert "`retention_ratio` is 0.25" in str(other.error)
    with pytest.raises(OptionError, match="--engine transformers"):  # vLLM's engine has what the base class does
        Engine.watched(object(), path)  # pyright: ignore[reportArgumentType]
    clip.write_bytes(path.read_bytes())
    (changed,) = vidcom2.answer_many(requests[:1], family.model, processor=family.processor)
    assert "has changed since" in str(changed.error)


def test_commands_answer_from_a_watched_video_or_say_why_not(tmp_path: Path) -> None:
    model, processor = vidcom2.load("toy:llava_onevision", device="cpu")
    path, asked = tmp_path / "clip.watched", "What is the digit?"
    watched = vidcom2.watch(DEMO_VIDEO, model, processor=processor, num_frames=16)
    watched.save(path)
    answer = watched.ask(asked)
    assert len(load_file(path)["features"]) <= 0.27 * answer.full_video_tokens
    _, output, _ = cli("run", "--video", str(path), "--prompt", asked)
    said = f"({answer.video_tokens} of {answer.full_video_tokens} video tokens, {answer.new_tokens} generated)"
    assert said in output and f"\n{answer}\n" in output and "not compared" in output
    for arguments, reason in (
        (("run", "--video", path, "--num-frames", "16"), "`--num-frames` needs the frames"),
        (("chat", path, "--num-frames", "16"), "`--num-frames` needs the frames"),
        (("chat", "https://example.org/clip.watched"), "on the web. Download it"),
        (("watch", DEMO_VIDEO, "-o", tmp_path / "clip.mp4"), "must end in '.watched'"),
        (("watch", path), "is a watched video, which has been compressed"),
        (("run", "--video", tmp_path / "other.watched"), "there is no video file"),
        (("run", "--video", path, "--retention-ratio", "0.5"), "`--retention-ratio` is 0.5, but the video was"),
        (("explain", "--video", path, "-o", tmp_path / "kept.png"), "holds tokens and no frames"),
    ):
        code, _, error = cli(*map(str, arguments))
        assert code == 2 and reason in error
    toy = "toy:llava_onevision"
    (refused,) = vidcom2.answer_many([{"video": str(path), "prompt": asked}], toy, retention_ratio=0.5, device="cpu")
    assert "`retention_ratio` is 0.5, but the video was" in str(refused.error)
    vidcom2.watch(DEMO_VIDEO, model, processor=processor, num_frames=16, max_video_tokens=60).save(path)
    with pytest.raises(OptionError, match="`max_video_tokens` is None, but the video was watched with 60"):
        vidcom2.load_watched(path, toy, max_video_tokens=None)
    watched.save(path)
    requests, answers = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    lines = [{"video": path.as_uri(), "prompt": asked}, {"video": path.name, "prompt": asked, "num_frames": 2}]
    requests.write_text("\n".join(map(json.dumps, lines)))
    assert "1 of 2 requests can be asked" in cli("run", "--requests", str(requests), "--check")[1]
    for ratio, expected in (("0.5", None), ("0.25", answer)):
        answers.unlink(missing_ok=True)
        answers.with_suffix(".jsonl.run.json").unlink(missing_ok=True)
        cli("run", "--requests", str(requests), "-o", str(answers), "--retention-ratio", ratio)
        rows = {row["id"]: row for row in map(json.loads, answers.read_text().splitlines())}
        assert rows["1"].get("answer") == expected and ("error" in rows["1"]) == (expected is None)


@pytest.mark.parametrize("toy", ["toy:llava_onevision", "toy:qwen3_vl"])
@pytest.mark.parametrize(
    "settings", [{"retention_ratio": 0.4}, {"compression_method": "evs"}, {"max_video_tokens": 60}], ids=str
)
def test_settings_of_loading_are_the_videos_and_not_the_encoders(
    toy: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """The processor of the model that watched is given them, and that of the model that answers is not."""
    model, processor = vidcom2.load(toy, device="cpu", **settings)
    watched = vidcom2.watch(DEMO_VIDEO, model, processor=processor, num_frames=16)
    watched.save(tmp_path / "clip.watched")
    again = vidcom2.load_watched(tmp_path / "clip.watched", toy, device="cpu")
    assert again.settings == watched.settings != CompressionSettings()
    asked = ["What is the digit?", "How many scenes are there?"]
    expected = vidcom2.ask(DEMO_VIDEO, asked, model, processor=processor, num_frames=16)
    for each in (again, again.prefill()):
        answers = [each.ask(question) for question in asked]
        assert answers == expected
        assert [one.video_tokens for one in answers] == [one.video_tokens for one in expected]


IN_ANOTHER_PROCESS = """
import sys, vidcom2
model, processor = vidcom2.load("toy:llava_onevision", device="cpu")
watched = vidcom2.load_watched(sys.argv[1], model=model, processor=processor)
print(watched.ask("What is the digit?"), watched.ask("How many scenes are there?"), sep="|")
"""


@pytest.mark.slow
def test_another_process_gives_the_same_answers(tmp_path: Path) -> None:
    model, processor = vidcom2.load("toy:llava_onevision", device="cpu")
    watched = vidcom2.watch(DEMO_VIDEO, model, processor=processor, num_frames=16)
    path = tmp_path / "clip.watched"
    watched.save(path)
    said = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, str(path)], capture_output=True, text=True, check=True
    ).stdout
    asked = ["What is the digit?", "How many scenes are there?"]
    expected = vidcom2.ask(DEMO_VIDEO, asked, model, processor=processor, num_frames=16)
    assert said.splitlines() == ["|".join(expected)] and expected[0] == "2"


SAVES = """
import sys, vidcom2
model, processor = vidcom2.load("toy:llava_onevision", device="cpu")
watched = vidcom2.watch(sys.argv[1], model, processor=processor, num_frames=int(sys.argv[3]))
print("begins", flush=True)
while True:
    watched.save(sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("kills", [20])
def test_a_killed_save_leaves_the_old_or_the_new_file(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "clip.watched"
    model, processor = vidcom2.load("toy:llava_onevision", device="cpu")
    expected = {}
    for frames in (8, 9):
        watched = vidcom2.watch(DEMO_VIDEO, model, processor=processor, num_frames=frames)
        watched.save(path)
        expected[watched.features.pooler_output[0].shape] = watched.ask("What is the digit?")
    delays = np.random.default_rng(0).uniform(0, 0.05, kills)
    for number, delay in enumerate(delays):
        command = [sys.executable, "-c", SAVES, str(DEMO_VIDEO), str(path), str(8 + number % 2)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(delay)
            process.kill()
        left = vidcom2.load_watched(path, model, processor=processor)
        assert left.ask("What is the digit?") == expected[left.features.pooler_output[0].shape]
    # Killed ones leave a part under a name of its own.
    hidden = [each.name for each in tmp_path.iterdir() if each != path]
    assert all(name.startswith(".clip.watched.") and name.endswith(".part") for name in hidden)
