"""`vidcom2.tiny_model` makes a model of each family for tests of users' own code."""

import pytest
import torch
from make_clips import INTERRUPTION

import vidcom2


@pytest.mark.parametrize("name", ["qwen3_vl", "Qwen3-VL", "VidCom2Qwen3VLForConditionalGeneration"])
def test_a_tiny_model_answers_and_is_drawn_like_a_loaded_one(name: str) -> None:
    before = torch.random.get_rng_state()
    model, processor = vidcom2.tiny_model(name, retention_ratio=0.5)
    assert isinstance(model, vidcom2.VidCom2Qwen3VLForConditionalGeneration) and not model.training
    assert torch.equal(torch.random.get_rng_state(), before)
    answer = vidcom2.ask(
        INTERRUPTION, "What happens?", model, processor=processor, num_frames=4, max_new_tokens=2, do_sample=False
    )
    assert answer.video_tokens < answer.full_video_tokens and answer.model == "a tiny Qwen3-VL"
    (way,) = vidcom2.explain(answer.video, model, processor=processor).ways
    assert way.kept.sum() == answer.video_tokens and way.settings == {"retention_ratio": 0.5}


def test_an_unknown_family_or_setting_of_a_tiny_model_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"qwen3vl.* Did you mean 'qwen3_vl'\?"):
        vidcom2.tiny_model("qwen3vl")
    with pytest.raises(ValueError, match="retention_ratio"):
        vidcom2.tiny_model("qwen3_vl", retention_ratio=7)
