"""Qwen's Omni models beyond what all families share: sound, apart from a video and among its tokens, and checkpoints
that hold more than the thinker. The stock class runs the prompt that plain loops compressed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, only
from models import MODELS, RETENTION_RATIO, ModelCase, make_image, make_video, save_as_on_the_hub
from reference import new_tokens
from safetensors.torch import load_file, save_file
from test_generate import MODES, NEW, defaults, run
from test_qwen_videos import attentive
from transformers import AutoConfig, AutoModelForTextToWaveform

import vidcom2
from vidcom2.families.table import FAMILIES

__all__ = ["attentive"]  # a fixture
pytestmark = only(lambda family: family.hears)

APART, IN_VIDEO, BOTH = "apart", "in the video", "one apart, one in the video"


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=int(16000 * seconds)).astype(np.float32)


def prompt(family: Family, *parts: str, question: str = "What happens?") -> str:
    content = [*({"type": part} for part in parts), {"type": "text", "text": question}]
    return family.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)


def heard(family: Family, kind: str, seed: int = 0, image: bool = False, seconds: float = 5.6) -> dict[str, Any]:
    """Return the inputs of a prompt with a video of 8 frames in 5.6 s, and sound of 3.1 s."""
    parts = ["image"] * image + {APART: ["video", "audio"], IN_VIDEO: ["video"], BOTH: ["audio", "video"]}[kind]
    sounds = [sound(1.2, seed + 9)] * (kind == BOTH) + [sound(3.1, seed)]
    sources: dict[str, list] = {APART: [None], IN_VIDEO: [0], BOTH: [None, 0]}
    media: dict[str, Any] = {"images": [make_image(seed)]} if image else {}
    inputs = family.processor(
        text=[prompt(family, *parts)],
        videos=[make_video(seed)],
        audio=sounds,
        load_audio_from_video=kind != APART,
        audio_from_video_indices=None if kind == APART else sources[kind],
        do_sample_frames=False,
        fps=8 / seconds,
        return_tensors="pt",
        **media,
    )
    return dict(inputs) | ({} if kind == APART else {"use_audio_in_video": True})


@pytest.mark.parametrize("mode", ["greedy", "beams_returned", "static_cache", "no_cache"])
@pytest.mark.parametrize("kind", [APART, IN_VIDEO, BOTH])
def test_sound_stays_whole_and_videos_are_compressed_as_by_hand(attentive: Family, kind: str, mode: str) -> None:
    inputs = heard(attentive, kind, image=kind == BOTH)
    is_sound = inputs["input_ids"] == attentive.stock.config.audio_token_id
    assert is_sound.sum() > 40  # 13 or 25 tokens a second
    first, last = (inputs["input_ids"] == attentive.stock.config.video_token_id)[0].nonzero()[[0, -1], 0].tolist()
    assert is_sound[0, first:last].any() == (kind != APART), "the sound alternates with the frames"
    settings = defaults(attentive.stock) | {"max_new_tokens": NEW, **MODES[mode]}
    ours = attentive.model.generate(**inputs, **settings)[:, inputs["input_ids"].shape[1] :]
    theirs = new_tokens(attentive, inputs, RETENTION_RATIO, **settings)
    assert torch.equal(ours, theirs)
    silent = inputs | {"input_features": torch.zeros_like(inputs["input_features"])}
    logits = [attentive.model(**each).logits[:, -1] for each in (inputs, silent)]
    assert not torch.allclose(*logits, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("kind", [APART, IN_VIDEO])
def test_at_ratio_1_each_bit_is_the_stock_classs(attentive: Family, kind: str) -> None:
    inputs = heard(attentive, kind, image=True)
    ours = attentive.model(**inputs, retention_ratio=1.0).logits
    assert torch.equal(ours, attentive.stock(**inputs).logits)
    assert torch.equal(run(attentive.model, inputs, retention_ratio=1.0), run(attentive.stock, inputs))


@pytest.mark.parametrize("ratios", [(RETENTION_RATIO, RETENTION_RATIO), (1.0, RETENTION_RATIO)])
@pytest.mark.parametrize("kind", [APART, IN_VIDEO])
def test_a_second_turn_that_is_heard_equals_a_run_from_scratch(attentive: Family, kind: str, ratios: tuple) -> None:
    """With the second pair of ratios, the first turn is text. With the first one, beams hear the new sound alone."""
    model, second = attentive.model, heard(attentive, kind, seed=3, seconds=9.0)
    first = heard(attentive, kind) if ratios[0] < 1 else dict(attentive.inputs(prompt(attentive)))
    turn = run(model, first, return_dict_in_generate=True, retention_ratio=ratios[0])
    ids = torch.cat([turn.sequences, second["input_ids"]], dim=1)
    conversation = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    names = [name for name in second if name not in (*conversation, "use_audio_in_video")]
    media = {name: torch.cat([first[name], second[name]]) if name in first else second[name] for name in names}
    flag = {name: second[name] for name in ("use_audio_in_video",) if name in second}
    call = {"retention_ratio": ratios[1], "num_beams": 1 if ratios[0] == 1.0 else 2}
    whole = run(model, conversation | media | flag, **call)
    turn.past_key_values.batch_repeat_interleave(call["num_beams"])
    of_all = {"video_second_per_grid": media["video_second_per_grid"]}  # the last ones are the turn's
    new = {name: second[name] for name in names} | flag | of_all
    continued = run(model, conversation | new, past_key_values=turn.past_key_values, **call)
    assert torch.equal(continued, whole)


def test_inputs_that_do_not_fit_the_prompt_are_refused(family: Family) -> None:
    apart, mixed = heard(family, APART), heard(family, IN_VIDEO)
    nothing = torch.zeros(0, 3000, dtype=torch.int32)
    for inputs, bad, error in (
        (apart, {"use_audio_in_video": True}, "`use_audio_in_video` is True, but 0 videos .* and 1 have not"),
        (mixed, {"use_audio_in_video": None}, "`use_audio_in_video` is None, but 1 videos .* and 0 have not"),
        (apart, {"feature_attention_mask": nothing}, "has 1 sounds, but `feature_attention_mask` has 0"),
        (apart, {"video_second_per_grid": None}, "has 1 videos, but `video_second_per_grid` is None"),
    ):
        for call in (family.model, family.model.generate):
            with pytest.raises(ValueError, match=error):
                call(**inputs | bad)


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_load_takes_the_thinker_from_a_checkpoint_that_also_speaks(family: Family, tmp_path: Path) -> None:
    """Its keys and config are laid out as in the released models."""
    family.processor.save_pretrained(tmp_path)
    save_as_on_the_hub(family.case, family.stock, tmp_path)
    weights = load_file(tmp_path / "model.safetensors") | {"talker.thinker_to_talker_proj.bias": torch.zeros(3)}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    whole = FAMILIES[family.case.config_class.model_type].part_of
    parts = {"thinker_config": family.stock.config.to_dict(), "talker_config": {"model_type": f"{whole}_talker"}}
    config = {"architectures": ["WithATalker"], "model_type": whole, **parts}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, processor = vidcom2.load(tmp_path, retention_ratio=RETENTION_RATIO, device="cpu")
    assert type(model) is family.case.model_class
    inputs = heard(family, IN_VIDEO)
    assert processor(text=[prompt(family)])["input_ids"] == family.processor(text=[prompt(family)])["input_ids"]
    assert torch.equal(run(model, inputs), run(family.model, inputs))


@only(lambda family: family.name == "qwen3_omni_moe_thinker")  # The whole Qwen2.5-Omni asks its talker in any case.
def test_the_thinker_of_a_whole_model_is_applied_to_and_the_whole_is_refused(family: Family) -> None:
    thinker_config = family.stock.config.to_dict()
    whole = AutoModelForTextToWaveform.from_config(
        AutoConfig.for_model(
            FAMILIES[family.case.config_class.model_type].part_of,
            thinker_config=thinker_config,
            enable_audio_output=False,
        )
    ).eval()
    whole.thinker.load_state_dict(family.stock.state_dict())
    with pytest.raises(ValueError, match=r"`vidcom2\.apply` takes `model\.thinker`"):
        vidcom2.apply(whole)
    vidcom2.apply(whole.thinker, retention_ratio=RETENTION_RATIO)
    inputs = heard(family, IN_VIDEO)
    settings = {"thinker_max_new_tokens": NEW, "thinker_do_sample": False, "generation_mode": "text"}
    assert torch.equal(whole.generate(**inputs, **settings), run(family.model, inputs))


NOT_HERE = [case for case in MODELS if case.hears and not case.loads_here]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in NOT_HERE])
def test_a_transformers_without_the_inner_class_is_refused(case: ModelCase) -> None:
    with pytest.raises(ValueError, match=r"needs 5\.23 for .* Upgrade Transformers"):
        case.config_class()
    with pytest.raises(ValueError, match=r"needs 5\.23 for .* Upgrade Transformers"):
        vidcom2.apply(case.build()[0])


@pytest.mark.parametrize("kind", ["an image and a video", "sound", "image and sound"])
def test_embeddings_that_are_ready_run_as_in_the_stock_class(family: Family, kind: str) -> None:
    """Their ids show placeholders whose features are among the embeddings already."""
    parts = [part for part in ("image", "video", "sound") if part in kind]
    media = {"images": [make_image(0)], "videos": [make_video(0)], "audio": [sound(1.2)]}
    names = {"image": "images", "video": "videos", "sound": "audio"}
    inputs = family.processor(
        text=[prompt(family, *("audio" if part == "sound" else part for part in parts))],
        return_tensors="pt",
        **{names[part]: media[names[part]] for part in parts},
    )
    ready = {"inputs_embeds": family.stock.get_input_embeddings()(inputs["input_ids"]).detach()}
    ready |= {name: inputs[name] for name in ("input_ids", "attention_mask")}
    for ratio in (RETENTION_RATIO, 1.0):
        ours = run(family.model, ready, retention_ratio=ratio)
        assert torch.equal(ours, run(family.stock, ready))


@pytest.mark.parametrize("sounds", [1, 2])
def test_beams_take_sound_beside_embeddings(family: Family, sounds: int) -> None:
    parts = [prompt(family, *["audio"] * sounds), prompt(family, "audio")]
    inputs = family.processor(
        text=parts, audio=[sound(1.2, seed) for seed in range(sounds + 1)], return_tensors="pt", padding=True
    )
    embedded = {name: value for name, value in inputs.items() if name != "input_ids"}
    embedded["inputs_embeds"] = family.stock.get_input_embeddings()(inputs["input_ids"]).detach()
    expected = run(family.model, inputs, num_beams=2)[:, inputs["input_ids"].shape[1] :]
    for ratio in (RETENTION_RATIO, 1.0):
        assert torch.equal(run(family.model, embedded, num_beams=2, retention_ratio=ratio), expected)
