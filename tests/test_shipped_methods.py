"""A user's method is saved with the model that uses it, or saving is refused."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from conftest import Family, build_family, only, use_method
from models import MODELS
from safetensors.torch import save_file
from test_cli import mistake, shown_by
from transformers import PreTrainedModel

from vidcom2 import VidCom2Qwen2VLConfig, VidCom2Qwen2VLForConditionalGeneration
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS
from vidcom2.shipping.shipped_code import code_of
from vidcom2.shipping.shipped_methods import UnshippableMethodError, sources_of_methods

pytestmark = pytest.mark.usefixtures("methods_restored")
METHODS_FOLDER = Path(__file__).parent / "methods_of_users"
HEAD = "from vidcom2 import VideoCompression, register_compression_method\n"
FUNCTION = """
@register_compression_method("mine")
def mine(video, settings):
    return VideoCompression.of_mask(video.tokens[..., 0] > -1e9)
"""
KEPT = """
def kept(model, inputs):
    return model.model(**inputs, only_features="kept", return_dict=True).pooler_output[0].tolist()
"""
# Code for a process that cannot import `vidcom2`. It loads models, and asks a config for methods that are not there.
ALONE = """
import json, sys
sys.modules["vidcom2"] = None
from pathlib import Path
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText
KEPT
answers, errors = [], []
for folder in map(Path, sys.argv[2:]):
    AutoConfig.from_pretrained(folder / "repo", trust_remote_code=True)
    model = AutoModelForImageTextToText.from_pretrained(folder / "repo", trust_remote_code=True).eval()
    inputs = load_file(folder / "inputs.safetensors")
    tokens = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    model.save_pretrained(folder / "again")
    answers.append([tokens.tolist(), kept(model, inputs)])
config = AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
for settings in ({"compression_method": "evs"}, {"vision_method": "skip_repeated"}, {"compression_method": "vidcom"}):
    try:
        config.compression_settings(**settings)
    except ValueError as error:
        errors.append(str(error))
print(json.dumps([answers, errors]))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Import a user's module with the source that the test's parameter gives."""
    name, source = request.param
    folder = tmp_path / "of_user"
    folder.mkdir()
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    (folder / "beside_it.py").write_text("x = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield importlib.import_module(name)
    for added in set(sys.modules) - before:
        if Path(getattr(sys.modules[added], "__file__", None) or "/").parent == folder:
            del sys.modules[added]


def kept(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> list:
    namespace: dict = {}
    exec(KEPT, namespace)
    return namespace["kept"](model, inputs)


# Each method runs in one family.
SAVED: dict[str, tuple[str, dict]] = {
    "users methods of both kinds": (
        "qwen2_5_vl",
        {"compression_method": "whole_frames", "vision_method": "centre_changed", "vision_tolerance": 0.5},
    ),
    "methods of ours of both kinds": (
        "qwen2_vl",
        {"compression_method": "evs", "vision_method": "skip_repeated", "vision_tolerance": 0.3},
    ),
    "inner_contrast": ("llava_video", {"compression_method": "inner_contrast"}),
    "merged_in_time": ("qwen2_5_vl", {"compression_method": "merged_in_time"}),
    "longest_in_frame": ("llava_onevision", {"compression_method": "longest_in_frame"}),
    "uniform_frames": ("qwen2_vl", {"compression_method": "uniform_frames"}),
    "dycoke": ("llava_video", {"compression_method": "dycoke"}),
    "vcast": ("qwen3_vl", {"compression_method": "vcast"}),
}


def of_users(settings: dict[str, Any]) -> set[str]:
    methods = {settings["compression_method"], settings.get("vision_method", "full")}
    return {method for method in methods if (METHODS_FOLDER / f"{method}.py").is_file()}


@pytest.mark.parametrize(
    "names", [list(SAVED)[:2], pytest.param(list(SAVED)[2:], marks=pytest.mark.slow)], ids=["both kinds", "the others"]
)
def test_saved_models_load_with_their_methods_and_refuse_others_without_the_package(
    names: list[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One process serves for all, since it takes long to start."""
    expected, plain = {}, tmp_path / "plain"
    VidCom2Qwen2VLConfig().save_pretrained(plain)
    for name in names:
        model_name, settings = SAVED[name]
        for method in of_users(settings):
            use_method(method)
        family = build_family(next(case for case in MODELS if case.name == model_name), tmp_path_factory)
        model, folder = family.load(**settings, retention_ratio=0.5), tmp_path / name
        model.save_pretrained(folder / "repo")
        family.processor.save_pretrained(folder / "repo")  # must not touch the code saved with the model
        inputs = {name: value for name, value in family.one_video().items() if isinstance(value, torch.Tensor)}
        save_file(inputs, folder / "inputs.safetensors")
        tokens = model.generate(**inputs, max_new_tokens=4, do_sample=False)
        expected[folder] = [tokens.tolist(), kept(model, inputs)]
        assert kept(model, inputs) != kept(family.load(retention_ratio=0.5), inputs)

    arguments = [sys.executable, "-c", ALONE.replace("KEPT", KEPT), str(plain), *map(str, expected)]
    ran = subprocess.run(arguments, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    answers, (absent, skipped, misspelt) = json.loads(ran.stdout.splitlines()[-1])
    assert answers == list(expected.values())
    for name in names:
        code = {path.name: path.read_bytes() for path in (tmp_path / name / "repo").glob("*.py")}
        saved_again = {path.name: path.read_bytes() for path in (tmp_path / name / "again").glob("*.py")}
        of_model = {name: content for name, content in code.items() if not name.startswith("processing_")}
        assert saved_again == of_model  # the processor saves its own
        for method in of_users(SAVED[name][1]):
            saved, original = code[f"{method}.py"].decode(), (METHODS_FOLDER / f"{method}.py").read_text("utf-8")
            assert "vidcom2 import" not in saved and saved.count("def ") == original.count("def ")

    assert absent.startswith("`compression_method` is 'evs', but must be one of 'vidcom2' (")
    assert "`vidcom2.load`" in absent and "`--methods`" in absent
    assert skipped.startswith("`vision_method` is 'skip_repeated', but must be one of 'full' (")
    assert misspelt.startswith("`compression_method` is 'vidcom', but must be one of 'vidcom2' (")
    config = VidCom2Qwen2VLConfig.from_pretrained(plain, compression_method="evs")  # the package has all methods
    assert config.compression_method == "evs"


def test_a_model_that_returns_to_a_method_of_ours_is_saved_with_that_method(tmp_path: Path) -> None:
    use_method("whole_frames")
    config = VidCom2Qwen2VLConfig(compression_method="whole_frames")
    config.save_pretrained(tmp_path)
    assert "from .whole_frames import __name__" in (tmp_path / "registered_methods.py").read_text()
    config.compression_method = "random"
    config.save_pretrained(tmp_path)
    methods = (tmp_path / "registered_methods.py").read_text()
    assert "METHODS = (method_random, method_vidcom2,)" in methods
    assert (tmp_path / "method_random.py").is_file() and not (tmp_path / "whole_frames.py").exists()
    (tmp_path / "method_random.py").write_text("# mine now")
    config.compression_method = "vidcom2"
    config.save_pretrained(tmp_path)
    assert (tmp_path / "method_random.py").read_text() == "# mine now"


@only(lambda family: family.name == "qwen2_vl")
def test_the_packages_classes_require_the_methods_module_to_be_imported(family: Family, tmp_path: Path) -> None:
    use_method("whole_frames")
    family.load(compression_method="whole_frames").save_pretrained(tmp_path)
    del COMPRESSION_METHODS["whole_frames"]
    with pytest.raises(ValueError, match=r"`compression_method` is 'whole_frames'.*once its module is imported"):
        family.case.model_class.from_pretrained(tmp_path)


NOT_WRITTEN = r"does not register it with `register_compression_method\('mine'\)` or `register_score_method\('mine'\)`"
REFUSED = [
    (("compression", HEAD + FUNCTION), "its file is called compression.py, like one of this"),
    (("mine_1", "import vidcom2\n" + HEAD + FUNCTION), "has `import vidcom2` in line 1"),
    (("mine_2", "from vidcom2 import ask\n" + HEAD + FUNCTION), "imports 'ask' from 'vidcom2'"),
    (("mine_3", "from vidcom2.toys import TOY\n" + HEAD + FUNCTION), "imports 'TOY' from 'vidcom2.toys'"),
    (("mine_4", HEAD + "from beside_it import x\n" + FUNCTION), "imports 'beside_it' in line 2"),
    (("mine_8", "import math; " + HEAD + FUNCTION), "has more than an import in line 1"),
    (("mine_10", '"""\nfrom .other import thing\n"""\n' + HEAD + FUNCTION), "or seems to, by 'from .other'"),
    (("mine_12", HEAD + FUNCTION.replace('"mine"', '"mi" + "ne"')), NOT_WRITTEN),
    (("mine_13", HEAD + FUNCTION), "invalid syntax"),
    (("mine_5", HEAD + f"exec({FUNCTION!r}, dict(globals(), __name__='__main__'))\n"), "in a notebook"),
]


@only(lambda family: family.name == "llava_onevision")
@pytest.mark.parametrize(("module", "message"), REFUSED, ids=[name for (name, _), _ in REFUSED], indirect=["module"])
def test_a_method_that_cannot_be_shipped_is_refused(
    module: ModuleType, message: str, family: Family, tmp_path: Path
) -> None:
    """Nothing is written then, with a model as with its config."""
    is_model = module.__name__ == "mine_1"  # which takes long to load
    settings = {"compression_method": "mine"}
    saved = family.load(**settings) if is_model else family.case.config_class(**settings)
    if message == "invalid syntax":  # the file was broken after its import
        Path(module.__file__).write_text("def mine(:\n")
    told = rf"'mine'` cannot be saved with the model: .*{message}.*Set another"
    with pytest.raises(UnshippableMethodError, match=told):
        saved.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists() or not list((tmp_path / "folder").iterdir())


SOURCE = (
    HEAD
    + """import math
from vidcom2 import frame_budgets as budgets, VideoTokens


def inner():
    from vidcom2.modeling.methods.compression import exact_total
    return exact_total
"""
    + FUNCTION
)


@pytest.mark.parametrize("module", [("mine_6", SOURCE)], indirect=True)
def test_the_methods_file_is_shipped_unchanged_except_for_its_imports_of_vidcom2(module: ModuleType) -> None:
    sources = sources_of_methods({"compression_method": ["mine"]})
    lines = sources["mine_6"].splitlines()
    assert lines[:5] == [
        "from .compression import VideoCompression",
        "from .users_methods import register_compression_method",
        "import math",
        "from .method_vidcom2 import frame_budgets as budgets",
        "from .compression import VideoTokens",
    ]
    assert "    from .compression import exact_total" in lines
    assert sources["mine_6"].endswith(FUNCTION)
    shipped = code_of(VidCom2Qwen2VLForConditionalGeneration, "mine")
    assert {"mine_6.py", "users_methods.py", "compression.py", "method_vidcom2.py"} <= shipped.keys()
    assert shipped["mine_6.py"].decode() == sources["mine_6"]


LAMBDA = (
    HEAD
    + "\f\nWORDS = 'a\u2028b'\n"
    + """
def make():
    @register_compression_method("mine")
    def inner(video, settings):
        return VideoCompression.of_mask(video.tokens[..., 0] > -1e9)


make()
register_compression_method("other")(lambda video, settings: None)
"""
)


@pytest.mark.parametrize("module", [("mine_7", "\ufeff" + LAMBDA)], indirect=True)
def test_a_method_need_not_have_a_name_in_its_module(module: ModuleType) -> None:
    sources = sources_of_methods({"compression_method": ["mine"]})
    assert "from .mine_7 import __name__ as mine_7" in sources["registered_methods"]
    compile(sources["mine_7"], "mine_7.py", "exec")
    assert "'a\u2028b'" in sources["mine_7"] and "vidcom2" not in sources["mine_7"]
    assert sources_of_methods({"compression_method": ["other"]}).keys() == sources.keys()


@only(lambda family: family.name == "llava_video")  # whose processor is of a class of ours
def test_the_processor_may_be_saved_before_or_after_the_model(family: Family, tmp_path: Path) -> None:
    """It saves no method, which would replace the model's."""
    use_method("whole_frames")
    model, methods = family.load(compression_method="whole_frames"), "registered_methods.py"
    model.save_pretrained(tmp_path / "model")
    family.processor.save_pretrained(tmp_path / "processor")
    assert not (tmp_path / "processor" / methods).exists()
    family.processor.save_pretrained(tmp_path / "model")
    model.save_pretrained(tmp_path / "processor")
    for folder in ("model", "processor"):
        assert "whole_frames" in (tmp_path / folder / methods).read_text()


# -- the command line -------------------------------------------------------------------------------------------------


def test_the_command_line_imports_methods_by_file_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(METHODS_FOLDER)
    for imported, method in (("best_of_video.py", "best_of_video"), ("merged_in_time", "merged_in_time")):
        typed = ("explain", "--compression-method", method, "--num-frames", 4, "-o", tmp_path / f"{method}.html")
        assert f"{method} at 0.25: " in shown_by("--import", imported, *typed)
        sys.modules.pop(method)


def test_a_module_that_cannot_be_imported_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "random.py").write_text("")
    for imported, reason in (
        ("nowhere.py", "no such file"),
        ("nowhere_at_all", "ModuleNotFoundError"),
        ("broken.py", "ZeroDivisionError"),
        ("random.py", "another module has that name"),
    ):
        error = mistake("--import", imported, "run")
        assert "--import" in error and reason in error
