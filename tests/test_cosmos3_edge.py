"""What only Cosmos 3 Edge has: a processor that leaves out what its model needs, and Transformers too old for it."""

from pathlib import Path

import pytest
import torch
from models import MODELS, chat_prompt, make_video
from transformers import AutoProcessor, Cosmos3EdgeProcessor

import vidcom2
from vidcom2.configuration.configuration_vidcom2_cosmos3_edge import VidCom2Cosmos3EdgeConfig
from vidcom2.tiny.cosmos3_edge import tiny_cosmos3_edge

CASE = next(case for case in MODELS if case.name == "cosmos3_edge")
NEEDS_ITS_TRANSFORMERS = pytest.mark.skipif(not CASE.loads_here, reason="its class needs a later Transformers")


def as_released(processor: Cosmos3EdgeProcessor, folder: Path) -> Cosmos3EdgeProcessor:
    """Return the processor of a checkpoint that says nothing of metadata and types."""
    processor.video_processor.return_metadata = False
    del processor.tokenizer.init_kwargs["return_mm_token_type_ids"]
    processor.save_pretrained(folder)
    return AutoProcessor.from_pretrained(folder)


@NEEDS_ITS_TRANSFORMERS
def test_a_loaded_processor_returns_what_the_model_needs(tmp_path: Path) -> None:
    stock, processor = tiny_cosmos3_edge(patch_size=10)
    stock.save_pretrained(tmp_path)
    released = as_released(processor, tmp_path)
    asked = {"text": chat_prompt(processor, "?", 1, 0), "videos": [make_video(0)], "return_tensors": "pt"}
    with pytest.raises(KeyError, match="video_metadata"):  # Transformers has mended it if this fails.
        released(**asked)
    needed = {"return_metadata": True, "return_mm_token_type_ids": True}
    expected = released(**asked, **needed)
    model, loaded = vidcom2.load(tmp_path, retention_ratio=1.0)
    inputs = loaded(**asked)
    assert inputs.pop("num_kept_video_tokens").tolist() == [96]
    assert inputs.keys() == expected.keys() - {"video_metadata"} and "mm_token_type_ids" in inputs
    assert all(torch.equal(inputs[name], expected[name]) for name in inputs)
    assert torch.equal(model(**inputs).logits, stock(**inputs).logits)
    VidCom2Cosmos3EdgeConfig.complete_processor(released)
    assert torch.equal(released(**asked)["mm_token_type_ids"], expected["mm_token_type_ids"])


@pytest.mark.skipif(CASE.loads_here, reason="this Transformers has what its class needs")
def test_a_transformers_that_takes_time_for_order_is_refused() -> None:
    for make in (VidCom2Cosmos3EdgeConfig, lambda: vidcom2.apply(tiny_cosmos3_edge()[0])):
        with pytest.raises(ValueError, match=r"takes the tokens' positions in time .* Upgrade Transformers"):
            make()
