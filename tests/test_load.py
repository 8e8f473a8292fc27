"""`vidcom2.load` finds the family in the checkpoint's config, and takes the arguments of `from_pretrained`."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Family, only
from models import MODELS, RETENTION_RATIO
from transformers import AutoProcessor, BitsAndBytesConfig, ProcessorMixin

import vidcom2
from vidcom2.checkpoints import check_processor
from vidcom2.errors import CheckpointError
from vidcom2.families import FAMILIES, no_class_for


def test_load_returns_the_class_and_the_processor_of_the_family(family: Family) -> None:
    model, processor = vidcom2.load(str(family.folder), retention_ratio=RETENTION_RATIO, device="cpu")
    assert type(model) is family.case.model_class and type(processor) is type(family.processor)
    assert not model.training and model.config.to_dict() == family.model.config.to_dict()
    inputs = family.one_video()
    assert torch.equal(model(**inputs).logits, family.model(**inputs).logits)
    new = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(model.generate(**inputs, **new), family.model.generate(**inputs, **new))
    made = processor(text=[family.prompt("What?", images=1)], images=[torch.zeros(3, 70, 90)], return_tensors="pt")
    assert set(made) >= {"input_ids", "pixel_values"}


def test_load_takes_settings_and_arguments_of_from_pretrained(family: Family, tmp_path: Path) -> None:
    settings = {"retention_ratio": 0.5, "compression_rounding": "exact"}
    model, _ = vidcom2.load(
        family.folder,
        **settings,
        dtype=torch.bfloat16,
        attn_implementation="eager",
        device_map="cpu",
        cache_dir=tmp_path,
        tie_word_embeddings=family.stock.config.tie_word_embeddings,
    )
    assert {name: getattr(model.config, name) for name in settings} == settings
    assert model.dtype == torch.bfloat16 and model.config._attn_implementation == "eager"
    assert model.device == torch.device("cpu")


def test_a_saved_vidcom2_model_loads_with_its_settings(family: Family, tmp_path: Path) -> None:
    family.load(retention_ratio=0.6).save_pretrained(tmp_path)
    family.processor.save_pretrained(tmp_path)
    model, processor = vidcom2.load(tmp_path)
    assert type(model) is family.case.model_class and type(processor) is type(family.processor)
    assert model.config.retention_ratio == 0.6


@only(lambda family: family.name in ("llava_video", "qwen2_5_vl"))
def test_a_hub_repo_is_loaded_from_the_given_cache(family: Family, tmp_path: Path) -> None:
    """Its config, processor and weights come from there, at the given revision."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "models--org--tiny"
    shutil.copytree(family.folder, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    for revision in (None, commit):
        model, processor = vidcom2.load("org/tiny", cache_dir=tmp_path, revision=revision, device="cpu")
        assert type(model) is family.case.model_class and type(processor) is type(family.processor)
    with pytest.raises(CheckpointError, match="cannot load the model 'org/tiny'"):
        vidcom2.load("org/tiny", device="cpu")


def test_a_setting_replaces_one_of_the_config_that_is_unknown_here(family: Family, tmp_path: Path) -> None:
    """Such as a user's method whose module was not imported, or a method that an older version had."""
    family.load(compression_method="evs").save_pretrained(tmp_path)
    family.processor.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"evs"', '"fastvid"'))
    with pytest.raises(CheckpointError, match=r"`compression_method` is 'fastvid', but must be one of"):
        vidcom2.load(tmp_path, device="cpu")
    model, _ = vidcom2.load(tmp_path, compression_method="vidcom2", device="cpu")
    assert model.config.compression_method == "vidcom2"


def test_load_replaces_fields_of_the_config_as_from_pretrained_does(family: Family) -> None:
    model, _ = vidcom2.load(family.folder, image_token_id=3, device="cpu")
    assert model.config.image_token_id == 3


def test_a_quantized_model_is_loaded_onto_its_device(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not moved after loading, which bitsandbytes refuses."""
    torchao = pytest.importorskip("torchao.quantization")
    from transformers import TorchAoConfig

    pytest.importorskip("accelerate")
    given = []
    from_pretrained = family.case.model_class.from_pretrained

    def recorded(*args: Any, **kwargs: Any) -> Any:
        given.append(kwargs)
        return from_pretrained(*args, **kwargs)

    monkeypatch.setattr(family.case.model_class, "from_pretrained", recorded)
    config = TorchAoConfig(torchao.Int8WeightOnlyConfig())
    model, _ = vidcom2.load(family.folder, quantization_config=config, device="cpu", retention_ratio=RETENTION_RATIO)
    assert model.hf_quantizer is not None and given[0]["device_map"] == "cpu"
    assert model.generate(**family.one_video(), max_new_tokens=2, do_sample=False).shape[0] == 1


def test_weights_that_bitsandbytes_makes_int8_run_on_a_cpu_and_are_saved(family: Family, tmp_path: Path) -> None:
    """At ratio 1 the logits are those of the stock class with the same weights."""
    pytest.importorskip("bitsandbytes")
    if family.case.name == "cosmos3_edge":
        pytest.skip("its tower asks quantized weights for the dtype of pixels, in the stock class too")
    int8 = BitsAndBytesConfig(load_in_8bit=True)
    model, processor = vidcom2.load(family.folder, quantization_config=int8, device="cpu", retention_ratio=1.0)
    stock = family.load_stock(quantization_config=int8, device_map="cpu")
    inputs = family.one_video()
    assert any(type(module).__name__ == "Linear8bitLt" for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, stock(**inputs).logits)
        model.config.retention_ratio = RETENTION_RATIO
        model.save_pretrained(tmp_path)
        processor.save_pretrained(tmp_path)
        again, _ = vidcom2.load(tmp_path, device="cpu")
        assert torch.equal(model(**inputs).logits, again(**inputs).logits)


def rename_processor(folder: Path, name: str = "UnslothVisionProcessor") -> None:
    """Let all files that name the processor's class name another."""
    for file in folder.glob("*_config.json"):
        content = json.loads(file.read_text())
        if "processor_class" in content:
            file.write_text(json.dumps(content | {"processor_class": name}))


def test_a_processor_that_another_library_renamed_is_the_familys(family: Family, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(family.folder, tmp_path / "renamed"))
    rename_processor(folder)
    if family.case.native:
        assert not isinstance(AutoProcessor.from_pretrained(folder), ProcessorMixin)  # it is the tokenizer alone
    _, processor = vidcom2.load(folder, device="cpu")
    assert type(processor) is type(family.processor)
    made = processor(text=[family.prompt("What?", images=1)], images=[torch.zeros(3, 70, 90)], return_tensors="pt")
    expected = family.processor(
        text=[family.prompt("What?", images=1)], images=[torch.zeros(3, 70, 90)], return_tensors="pt"
    )
    assert all(torch.equal(made[name], expected[name]) for name in ("input_ids", "pixel_values"))


def test_every_family_names_the_processor_of_its_checkpoints(family: Family) -> None:
    row = FAMILIES[family.model.config.model_type]
    assert type(family.processor).__name__ == row.processor_names[0] and row.processor_class is type(family.processor)


# -- refused ----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_no_supported_family_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    supported = "'llava_onevision', 'vidcom2_llava_video', .*'minicpmv4_6'"
    with pytest.raises(
        CheckpointError, match=f"{tmp_path}.* is of type 'bert', but VidCom² has classes for {supported}"
    ):
        vidcom2.load(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "meant"),
    [
        ("internvl_chat", "'internvl'"),
        ("videollama3_qwen2", "'video_llama_3'"),
        ("qwen3_5_moe_text", "'qwen3_5_moe'"),  # Qwen3.8-2.4T
        ("qwen2-vl", "'qwen2_vl'"),
        ("minicpmv4_7", "'minicpmv4_6'"),
        ("Keye", None),
    ],
)
def test_a_model_of_no_family_is_told_the_type_that_is_written_most_like_its_own(
    model_type: str, meant: str | None
) -> None:
    assert re.findall(r"Did you mean (.*?)\?", no_class_for("it", model_type)) == ([] if meant is None else [meant])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"retention_ratio": 1.5}, "`retention_ratio` is 1.5"),
        ({"compresion_rounding": "up"}, "`compresion_rounding` is neither a setting .* The settings are: retention"),
        ({"compression_rouding": "up"}, "`compression_rouding` is not a setting .*'compression_rounding'"),
        ({"name": 3}, "`name` is a int, but must be a folder, or a Hub id"),
        ({"name": "no/such"}, "cannot load the model 'no/such': there is no such folder"),
        ({"name": "no/such", "local_files_only": True}, "the cache does not have it, and `local_files_only` is set"),
        ({"device": "cpu", "device_map": "auto"}, "`device` is 'cpu' and `device_map` is 'auto'. Pass one"),
        ({"config": {}}, "`config` is not an argument of `vidcom2.load`: .* `from_pretrained` of the family's class"),
        ({"trust_remote_code": True}, "`trust_remote_code` is not an argument .* this package's"),
        ({"revision": "main"}, "`revision` is 'main', but the model .* is a folder"),
        ({"dtype": "bf16"}, "`dtype` is 'bf16', .* Did you mean 'bfloat16'?"),
        ({"num_frames": 3}, "`num_frames` is neither a setting of VidCom² nor an argument of `from_pretrained`"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@only(lambda family: family.name == "llava_onevision")
def test_load_refuses_arguments_that_make_no_sense(family: Family, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vidcom2.load(**{"name": family.folder, **arguments})


@only(lambda family: family.name == "qwen2_vl")
def test_a_setting_of_another_family_is_refused(family: Family) -> None:
    with pytest.raises(ValueError, match=r"`compression_newlines` is not a setting of .* of type 'qwen2_vl'"):
        vidcom2.load(family.folder, compression_newlines="all")


def test_a_processor_of_another_family_is_refused_with_the_one_to_take(family: Family, tmp_path: Path) -> None:
    other = next(case for case in MODELS if case.name == ("qwen2_vl" if family.case.name != "qwen2_vl" else "qwen3_vl"))
    folder, (_, processor) = tmp_path / "mixed", other.build(**other.build_arguments)
    shutil.copytree(family.folder, folder)
    processor.save_pretrained(folder)
    names = FAMILIES[family.model.config.model_type].processor_names
    needed = f"is a {type(processor).__name__}, which belongs to another family: .* needs a {names[0]}"
    with pytest.raises(CheckpointError, match=f"because of its processor: it {needed}"):
        vidcom2.load(folder, device="cpu")
    for wrong, why in ((processor, needed), (family.processor.tokenizer, f"only a part of a processor.* {names[0]}")):
        for call in (vidcom2.ask, vidcom2.answer_many):
            video = "no such.mp4" if call is vidcom2.ask else [{"video": "no such.mp4", "prompt": "What?"}]
            more = ("What?",) if call is vidcom2.ask else ()
            with pytest.raises(ValueError, match=f"`processor` {why}" if wrong is processor else why):
                call(video, *more, model=family.model, processor=wrong)


@only(lambda family: family.name == "qwen2_vl")
def test_a_users_own_class_of_a_processor_is_taken(family: Family) -> None:
    class Mine(type(family.processor)):
        pass

    class Alien(ProcessorMixin):
        def __init__(self) -> None:
            pass

    row = FAMILIES["qwen2_vl"]
    for accepted in (Mine.__new__(Mine), Alien()):
        check_processor("it", accepted, row)
