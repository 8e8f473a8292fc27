"""`convert_llava_video` keeps every bit, finishes or leaves nothing, and refuses by name whatever does not fit."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from llava_video_original import VISION, Sizes, original_weights, write_original
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoProcessor, GenerationConfig

from vidcom2.errors import CheckpointError, OptionError
from vidcom2.llava_video import converter
from vidcom2.llava_video.classes import VidCom2LlavaVideoForConditionalGeneration
from vidcom2.llava_video.converter import Conversion, convert_llava_video, original_name

LAYER = "model.layers.1.self_attn.q_proj.weight"
VISION_LAYER = f"{VISION}encoder.layers.1.mlp.fc1.bias"


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def convert(folder: Path, **kwargs: Any) -> Conversion:
    return convert_llava_video(str(folder / "original"), str(folder / "converted"), **kwargs)


# -- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_shards", "tied", "dtype"), [(1, False, torch.float32), (3, True, torch.bfloat16), (3, False, torch.float16)]
)
def test_weights_are_converted_bit_for_bit_to_their_new_names(
    tmp_path: Path, num_shards: int, tied: bool, dtype: torch.dtype
) -> None:
    weights = write_original(tmp_path / "original", tied=tied, num_shards=num_shards, dtype=dtype)
    seen = []
    result = convert(tmp_path, progress=lambda what, done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen}) and len(seen) == num_shards + 1
    assert seen[0] == (0, result.num_bytes) and seen[-1] == (result.num_bytes, result.num_bytes)
    assert (result.num_tensors, result.dtype) == (len(weights), str(dtype).removeprefix("torch."))
    assert result.num_bytes == sum(tensor.nbytes for tensor in weights.values())
    written = tensors_of(tmp_path / "converted")
    assert {original_name(name) for name in written} == weights.keys()
    for name, tensor in written.items():
        assert tensor.dtype == dtype and torch.equal(tensor, weights[original_name(name)]), name
    assert len(list((tmp_path / "converted").glob("*.safetensors"))) == num_shards
    assert (tmp_path / "converted" / "model.safetensors.index.json").exists() == (num_shards > 1)
    for path in (tmp_path / "converted").glob("*.safetensors"):
        with safe_open(path, "pt") as file:  # other tools ask for it
            assert file.metadata() == {"format": "pt"}

    model, info = VidCom2LlavaVideoForConditionalGeneration.from_pretrained(
        tmp_path / "converted", output_loading_info=True
    )
    assert not any(info.values()), info
    assert model.dtype == dtype and (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    state = model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in written.items())
    assert state.keys() - written.keys() == ({"lm_head.weight"} if tied else set())


def test_the_config_keeps_the_fields_of_the_source(tmp_path: Path) -> None:
    write_original(tmp_path / "original", text_config={"model_type": "stray"}, vision_config={"model_type": "stray"})
    convert(tmp_path)
    config = json.loads((tmp_path / "converted" / "config.json").read_text())
    assert config["model_type"] == "vidcom2_llava_video"
    assert config["architectures"] == ["VidCom2LlavaVideoForConditionalGeneration"]
    text, vision = config["text_config"], config["vision_config"]
    assert text["rope_parameters"]["rope_theta"] == 1000000.0 and text["max_position_embeddings"] == 32768
    assert (text["hidden_size"], text["num_hidden_layers"], text["eos_token_id"]) == (32, 2, 258)
    assert not text["use_sliding_window"]
    assert vision["num_hidden_layers"] == Sizes().tower_layers - 1 and not vision["vision_use_head"]
    assert config["vision_feature_layer"] == -1 and config["vision_aspect_ratio"] == "anyres_max_9"
    assert config["image_grid_pinpoints"][:3] == [[98, 98], [196, 98], [294, 98]]  # the original puts the width first
    assert (config["retention_ratio"], config["dtype"]) == (0.25, "float32")


def test_the_pooling_mode_is_average_and_a_note_names_the_sources_mode(tmp_path: Path) -> None:
    write_original(tmp_path / "original")
    result = convert(tmp_path)
    assert result.spatial_pool_mode == "average" and "'bilinear'" in result.notes[0] and "'average'" in result.notes[0]
    assert "`repetition_penalty` 1.05" in result.notes[1]
    shutil.rmtree(tmp_path / "converted")
    (tmp_path / "original" / "generation_config.json").unlink()
    assert convert(tmp_path, spatial_pool_mode="bilinear").notes == []
    for file in ("config.json", "processor_config.json"):
        assert json.loads((tmp_path / "converted" / file).read_text())["spatial_pool_mode"] == "bilinear"


def test_tokenizer_processor_and_generation_config_are_written_too(tmp_path: Path) -> None:
    write_original(tmp_path / "original", add_time_instruction=False)
    assert "<video>" not in (tmp_path / "original" / "tokenizer.json").read_text()
    convert(tmp_path)
    processor = AutoProcessor.from_pretrained(tmp_path / "converted")
    model = VidCom2LlavaVideoForConditionalGeneration.from_pretrained(tmp_path / "converted")
    assert (model.config.image_token_id, model.config.video_token_id) == (259, 260)
    assert (processor.image_token_id, processor.video_token_id) == (259, 260)
    assert processor.tokenizer.padding_side == "left" and not processor.add_time_instruction
    assert processor.num_image_tokens == 49
    for part in (processor.image_processor, processor.video_processor):
        assert (*part.image_mean, *part.image_std) == (0.5,) * 6
        assert (part.size["height"], part.size["width"], part.do_resize) == (98, 98, True)
    saved = GenerationConfig.from_pretrained(tmp_path / "converted")
    assert (saved.do_sample, saved.top_k, saved.eos_token_id) == (True, 20, [258, 256])


def test_a_qwen2_tokenizer_of_vocabulary_and_merges_is_read(tmp_path: Path) -> None:
    """The released checkpoints have one, beside a config.json whose `model_type` is "llava"."""
    from tokenizers import pre_tokenizers

    write_original(tmp_path / "original")
    folder = tmp_path / "original"
    (folder / "tokenizer.json").unlink()
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    added = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"]
    special = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {str(256 + i): {"content": token, **special} for i, token in enumerate(added)},
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "padding_side": "right",
        "chat_template": "another",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    convert(tmp_path)
    processor = AutoProcessor.from_pretrained(tmp_path / "converted")
    ids = processor.tokenizer("<|im_start|>a<image><video><|im_end|>")["input_ids"]
    assert ids == [257, vocabulary["a"], 259, 260, 258]
    chat = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What?"}]}]
    for template in (processor, processor.tokenizer):
        assert "<video>\nWhat?" in template.apply_chat_template(chat, tokenize=False)


# -- whole or not at all ----------------------------------------------------------------------------------------------


def test_a_failure_leaves_nothing_and_the_next_run_succeeds(tmp_path: Path) -> None:
    write_original(tmp_path / "original")

    def fail(what: str, done: float, total: float | None) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path, progress=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["original"]
    assert convert(tmp_path).num_tensors == 69


KILLED = """
import os, signal, sys
from vidcom2.llava_video.converter import convert_llava_video
convert_llava_video(sys.argv[1], sys.argv[2], progress=lambda what, done, total: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_that_loads_and_the_next_run_cleans_up(tmp_path: Path) -> None:
    write_original(tmp_path / "original")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "original"), str(tmp_path / "converted")]
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == -9
    (left,) = (path for path in tmp_path.glob(".converted.*-incomplete") if path.is_dir())
    with pytest.raises(OSError, match="no file named"):
        VidCom2LlavaVideoForConditionalGeneration.from_pretrained(left)
    convert(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["converted", "original"]
    assert (tmp_path / "converted" / "config.json").exists()


def test_a_second_conversion_to_the_same_destination_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    """Jobs that start together may each convert a checkpoint that is missing."""
    weights = write_original(tmp_path / "original")
    refusals = []

    def start_another(what: str, done: float, total: float | None) -> None:
        if not refusals:
            with pytest.raises(OptionError, match=r"is being made by another process.*Wait until it ends") as refusal:
                convert(tmp_path)
            refusals.append(refusal)

    convert(tmp_path, progress=start_another)
    assert refusals and {original_name(name) for name in tensors_of(tmp_path / "converted")} == weights.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["converted", "original"]


def test_a_users_folder_is_neither_taken_for_an_unfinished_conversion_nor_overwritten(tmp_path: Path) -> None:
    write_original(tmp_path / "original")
    mine = [tmp_path / "converted.incomplete", tmp_path / "converted.incomplete-0123abcd"]
    for folder in mine:
        folder.mkdir()
        (folder / "thesis.txt").write_text("years of work")
    convert(tmp_path)
    assert [(folder / "thesis.txt").read_text() for folder in mine] == ["years of work"] * 2
    with pytest.raises(OptionError, match="exists already"):
        convert(tmp_path)


# -- refused ----------------------------------------------------------------------------------------------------------


def refused(tmp_path: Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        convert(tmp_path)
    assert not list(tmp_path.glob("converted*"))


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("model.vision_resampler.weight", lambda tensor: torch.zeros(3), "holds {}"),
        ("model.layers.2.mlp.up_proj.weight", lambda tensor: torch.zeros(3), "holds {}"),
        (LAYER, lambda tensor: None, "the weights lack"),
        ("lm_head.weight", lambda tensor: None, "the weights lack"),
        ("model.image_newline", lambda tensor: None, "the weights lack"),
        (VISION_LAYER, lambda tensor: tensor[1:].clone(), "{} in model.safetensors has shape"),
        ("model.embed_tokens.weight", lambda tensor: tensor[1:].clone(), "{} in model.safetensors has shape"),
        (LAYER, lambda tensor: tensor.to(torch.int8), "{} in model.safetensors is I8"),
    ],
)
def test_a_weight_that_is_unknown_or_missing_or_of_another_form_is_refused(
    tmp_path: Path, name: str, change: Callable[[Tensor | None], Tensor | None], problem: str
) -> None:
    write_original(tmp_path / "original", num_shards=1)
    file = tmp_path / "original" / "model.safetensors"
    tensors = load_file(file)
    tensors |= {name: change(tensors.get(name))}
    save_file({name: each for name, each in tensors.items() if each is not None}, file, metadata={"format": "pt"})
    refused(tmp_path, re.escape(problem.format(repr(name))))


def test_a_key_in_two_shards_is_refused(tmp_path: Path) -> None:
    weights = write_original(tmp_path / "original", num_shards=2)
    second = tmp_path / "original" / "model-00002-of-00002.safetensors"
    save_file(load_file(second) | {"lm_head.weight": weights["lm_head.weight"]}, second)
    refused(tmp_path, r"'lm_head\.weight' is both in model-0000")


def test_missing_files_are_refused(tmp_path: Path) -> None:
    write_original(tmp_path / "original")
    for name in ("model-00002-of-00003.safetensors", "config.json", "tokenizer_config.json"):
        (tmp_path / "original" / name).rename(tmp_path / name)
        refused(tmp_path, rf"lacks {re.escape(name)}")
        (tmp_path / name).rename(tmp_path / "original" / name)
    with pytest.raises(CheckpointError, match=r"no folder .*hf download lmms-lab"):
        convert_llava_video(str(tmp_path / "nowhere"), str(tmp_path / "converted"))


def test_pickles_are_refused_without_being_read(tmp_path: Path) -> None:
    write_original(tmp_path / "original", num_shards=1)
    (tmp_path / "original" / "model.safetensors").unlink()
    (tmp_path / "original" / "pytorch_model-00001-of-00002.bin").write_bytes(b"not even a pickle")
    refused(tmp_path, r"pickle files \(pytorch_model-00001-of-00002\.bin\)")


def test_an_index_that_names_a_file_elsewhere_is_refused(tmp_path: Path) -> None:
    write_original(tmp_path / "original")
    for name in ("pytorch_model.bin", "../model.safetensors", "/etc/model.safetensors"):
        index = {"weight_map": {"lm_head.weight": name}}
        (tmp_path / "original" / "model.safetensors.index.json").write_text(json.dumps(index))
        refused(tmp_path, rf"names {re.escape(name)}, but only safetensors files beside it")


def test_a_file_that_is_no_safetensors_or_not_the_whole_of_one_is_refused(tmp_path: Path) -> None:
    write_original(tmp_path / "original", num_shards=1)
    file = tmp_path / "original" / "model.safetensors"
    for damage in (
        b"",
        b"<html>not found</html>",
        b"\xff" * 100,
        b"\x02" + b"\0" * 7 + b"[]",
        file.read_bytes()[:-100],
    ):
        file.write_bytes(damage)
        refused(tmp_path, r"model\.safetensors' is not a safetensors file, or not the whole of one")


@pytest.mark.parametrize(
    "field, value",
    [
        ("architectures", ["LlavaQwenMoeForCausalLM"]),
        ("mm_projector_type", "linear"),
        ("mm_newline_position", "one_token"),
        ("mm_newline_position", None),
        ("mm_patch_merge_type", "flat"),
        ("image_aspect_ratio", "anyres"),
        ("mm_vision_select_feature", "cls_patch"),
        ("add_faster_video", True),
        ("mm_resampler_type", "perceiver"),
        ("mm_vision_tower", "openai/clip-vit-large-patch14-336"),
        ("image_grid_pinpoints", "(1x1),...,(6x6)"),
        ("vocab_size", 260),
    ],
)
def test_a_model_that_computes_something_else_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    write_original(tmp_path / "original", **{field: value})
    refused(tmp_path, rf"config\.json has `{field}` ")


def test_a_config_without_a_size_and_an_unknown_pooling_mode_are_refused(tmp_path: Path) -> None:
    write_original(tmp_path / "original")
    with pytest.raises(ValueError, match="`spatial_pool_mode` is 'mean', but must be one of"):
        convert(tmp_path, spatial_pool_mode="mean")
    path = tmp_path / "original" / "config.json"
    config = json.loads(path.read_text())
    del config["rope_theta"]
    path.write_text(json.dumps(config))
    refused(tmp_path, "config.json lacks rope_theta")


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_original(tmp_path / "original")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(converter.shutil, "disk_usage", lambda path: usage)
    refused(tmp_path, "its disk has 1,000 left")


MEASURE = """
import resource, sys
from vidcom2.llava_video.converter import convert_llava_video
peaks = []
for folder in sys.argv[1:]:
    convert_llava_video(folder + "/original", folder + "/converted")
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(peaks[1] - peaks[0])
"""


@pytest.mark.slow
def test_memory_holds_one_shard_at_a_time(tmp_path: Path) -> None:
    """After a small checkpoint, one with two shards of an eighth of a gigabyte needs memory for one of them."""
    folders = [tmp_path / "small", tmp_path / "large"]
    for folder, vocab in zip(folders, (264, 1_000_000), strict=True):
        weights = {"model.embed_tokens.weight": torch.ones(vocab, Sizes().hidden)}
        weights |= {name: tensor for name, tensor in original_weights().items() if name not in weights}
        weights["lm_head.weight"] = torch.ones(vocab, Sizes().hidden)
        write_original(folder / "original", weights=weights, num_shards=2, vocab_size=vocab)
    command = [sys.executable, "-c", MEASURE, *map(str, folders)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    sizes = [path.stat().st_size for path in (folders[1] / "converted").glob("*.safetensors")]
    assert len(sizes) == 2 and min(sizes) > 125e6
    assert int(result.stdout) < 190e6
