"""Checkpoints whose names are not their family's load in its class, and answer as in the stock class.

Their configs are as they were read, made narrow. Token ids, positions, deepstack and the tower's depth stay exact. The
data file says where each was read, and at how many frames a second its makers sample a video.
"""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family
from models import MODELS, RETENTION_RATIO
from reference import compressed_embeddings, new_tokens, position_arguments
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import BatchFeature, Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata

import vidcom2
from vidcom2.loading.processors import restore
from vidcom2.tiny.qwen import QWEN2_VL_CHAT_TEMPLATE
from vidcom2.tiny.tokens import chat_tokenizer

# Qwen3.8's template begins the answer with a thought.
THINKING_TEMPLATE = QWEN2_VL_CHAT_TEMPLATE.replace("assistant\n", "assistant\n<think>\n")
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 4, "min_new_tokens": 4, "pad_token_id": 0}
FRAMES_PER_SECOND = 8  # of the clips
DATA = json.loads((Path(__file__).parent / "data" / "read_checkpoints.json").read_text("utf-8"))


def shrunk(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return its config with fewer and narrower layers. Positions, tokens and proportions stay as they are: value heads
    per key head, the period of full attention, and where deepstack features come from."""
    config = deepcopy(checkpoint["config"])
    text, tower = config["text_config"], config["vision_config"]
    text |= {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.2}
    text["intermediate_size"] = 32
    text["num_hidden_layers"] = text.get("full_attention_interval", 3)
    if "linear_num_value_heads" in text:
        per_key = text["linear_num_value_heads"] // text["linear_num_key_heads"]
        text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 2 * per_key}
        text |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
        text["layer_types"] = text["layer_types"][: text["num_hidden_layers"]]
    tower |= {"hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16}
    return config


def processor_of(checkpoint: dict[str, Any]) -> Qwen3VLProcessor:
    """Return a processor with the checkpoint's special tokens at their own ids, and a token for each byte."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary | checkpoint["tokens"], merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=16),
        video_processor=Qwen3VLVideoProcessor(**DATA["video_processor"]),
        tokenizer=chat_tokenizer(tokenizer, list(checkpoint["tokens"]), THINKING_TEMPLATE),
        chat_template=THINKING_TEMPLATE,
    )


@pytest.fixture(scope="module", params=DATA["checkpoints"], ids=lambda checkpoint: checkpoint["name"])
def read(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Family]:
    checkpoint, folder = request.param, tmp_path_factory.mktemp("read")
    config = shrunk(checkpoint)
    case = next(row for row in MODELS if row.name == config["model_type"])
    torch.manual_seed(0)
    case.stock_class(case.stock_class.config_class.from_dict(config)).save_pretrained(folder)
    processor_of(checkpoint).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    # The checkpoints hold layers that predict further tokens, which Transformers does not load.
    weights = load_file(folder / "model.safetensors") | {"mtp.fc.weight": torch.zeros(16, 32)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model, processor = vidcom2.load(folder, retention_ratio=RETENTION_RATIO, device="cpu")
    assert type(model) is case.model_class
    family = Family(replace(case, grid=(2, 3)), folder, case.stock_from(folder).eval(), processor)
    family.model = model
    restore(processor)  # The stock class runs the same prompts.
    return checkpoint, family


def clip(seed: int, num_frames: int) -> np.ndarray:
    """Return (num_frames, 3, 64, 96) uint8: 2 × 3 tokens a frame."""
    rng = np.random.default_rng(seed)
    scene = rng.integers(0, 256, (3, 64, 96))
    return np.stack([np.clip(scene + rng.integers(-40, 40, scene.shape), 0, 255) for _ in range(num_frames)]).astype(
        "u1"
    )


def prompts(family: Family, questions: list[str], videos: list[np.ndarray], **sampling: Any) -> BatchFeature:
    """Return the inputs of a batch. The processor samples frames from the clips, as it does from files."""
    content = [[{"type": "video"}, {"type": "text", "text": question}] for question in questions]
    chats = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": each}] for each in content]
    metadata = [
        VideoMetadata(total_num_frames=len(video), fps=FRAMES_PER_SECOND, duration=len(video) / FRAMES_PER_SECOND)
        for video in videos
    ]
    texts = [family.processor.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
    return family.processor(
        text=texts, videos=videos, video_metadata=metadata, padding=True, return_tensors="pt", **sampling
    )


def test_a_batch_answers_as_in_the_stock_class_and_as_compressed_by_hand(read: tuple[dict[str, Any], Family]) -> None:
    checkpoint, family = read
    questions = ["What happens?", "Who?"]
    videos = [clip(0, 24), clip(1, 16)]
    both = prompts(family, questions, videos, fps=checkpoint["fps"])
    new = slice(both["input_ids"].shape[1], None)
    whole = family.stock.generate(**both, **GREEDY)
    assert torch.equal(family.model.generate(**both, **GREEDY, retention_ratio=1.0), whole)
    ours = family.model.generate(**both, **GREEDY)
    for row, (question, video) in enumerate(zip(questions, videos, strict=True)):
        alone = prompts(family, [question], [video], fps=checkpoint["fps"])
        assert torch.equal(ours[row : row + 1, new], new_tokens(family, alone, RETENTION_RATIO, **GREEDY))

    rows, remaining = compressed_embeddings(family, alone, RETENTION_RATIO)
    with torch.no_grad():
        last = {"logits_to_keep": 1}
        by_hand = family.stock(inputs_embeds=rows, **position_arguments(family, alone, remaining), **last).logits
        torch.testing.assert_close(family.model(**alone, **last).logits, by_hand, rtol=0, atol=1e-5)
        assert (family.stock(**alone, **last).logits - by_hand).abs().max() > 1e-3  # they depend on the video
