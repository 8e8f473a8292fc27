"""A user's method is saved with the model that uses it, or saving is refused."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from conftest import Family, only, use_method
from safetensors.torch import save_file
from test_cli import vidcom2
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
# Code for a process that cannot import `vidcom2`.
ALONE = """
import json, sys
sys.modules["vidcom2"] = None
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText
KEPT
folder, inputs, again = sys.argv[1:]
AutoConfig.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=True).eval()
tokens = model.generate(**load_file(inputs), max_new_tokens=4, do_sample=False)
model.save_pretrained(again)
print(json.dumps([tokens.tolist(), kept(model, load_file(inputs))]))
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


# Each case starts a process, which takes long, so each method runs in one family.
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


@only(lambda family, name: SAVED[name][0] == family.name)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (" " not in name)) for name in SAVED])
def test_a_saved_model_loads_with_its_methods_without_the_package(family: Family, name: str, tmp_path: Path) -> None:
    _, settings = SAVED[name]
    methods = {settings["compression_method"], settings.get("vision_method", "full")}
    of_users = {method for method in methods if (METHODS_FOLDER / f"{method}.py").is_file()}
    for method in of_users:
        use_method(method)
    folder, again, file = tmp_path / "repo", tmp_path / "again", tmp_path / "inputs.safetensors"
    model = family.load(**settings, retention_ratio=0.5)
    model.save_pretrained(folder)
    family.processor.save_pretrained(folder)  # must not touch the code saved with the model
    inputs = {name: value for name, value in family.one_video().items() if isinstance(value, torch.Tensor)}
    save_file(inputs, file)
    arguments = [sys.executable, "-c", ALONE.replace("KEPT", KEPT), str(folder), str(file), str(again)]
    ran = subprocess.run(arguments, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    expected = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert json.loads(ran.stdout.splitlines()[-1]) == [expected.tolist(), kept(model, inputs)]
    assert kept(model, inputs) != kept(family.load(retention_ratio=0.5), inputs)

    code = {path.name: path.read_bytes() for path in folder.glob("*.py")}
    saved_again = {path.name: path.read_bytes() for path in again.glob("*.py")}
    of_model = {name: content for name, content in code.items() if not name.startswith("processing_")}
    assert saved_again == of_model  # the processor saves its own
    for method in of_users:
        saved, original = code[f"{method}.py"].decode(), (METHODS_FOLDER / f"{method}.py").read_text(encoding="utf-8")
        assert "vidcom2 import" not in saved and saved.count("def ") == original.count("def ")


WITHOUT_EVS = """
import json, sys
sys.modules["vidcom2"] = None
from transformers import AutoConfig
config = AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
errors = []
for settings in ({"compression_method": "evs"}, {"vision_method": "skip_repeated"}, {"compression_method": "vidcom"}):
    try:
        config.compression_settings(**settings)
    except ValueError as error:
        errors.append(str(error))
print(json.dumps(errors))
"""


def test_a_method_that_a_repo_does_not_hold_is_refused_with_the_remedies(tmp_path: Path) -> None:
    VidCom2Qwen2VLConfig().save_pretrained(tmp_path)
    ran = subprocess.run([sys.executable, "-c", WITHOUT_EVS, str(tmp_path)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    absent, skipped, misspelt = json.loads(ran.stdout.splitlines()[-1])
    assert absent.startswith("`compression_method` is 'evs', but must be one of 'vidcom2' (")
    assert "`vidcom2.load`" in absent and "`--methods`" in absent
    assert skipped.startswith("`vision_method` is 'skip_repeated', but must be one of 'full' (")
    assert misspelt.startswith("`compression_method` is 'vidcom', but must be one of 'vidcom2' (")
    config = VidCom2Qwen2VLConfig.from_pretrained(tmp_path, compression_method="evs")  # the package has all methods
    assert config.compression_method == "evs"


def test_a_model_that_returns_to_a_method_of_ours_is_saved_with_that_method(family: Family, tmp_path: Path) -> None:
    use_method("whole_frames")
    config = family.case.config_class(compression_method="whole_frames")
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


def test_the_packages_classes_require_the_methods_module_to_be_imported(family: Family, tmp_path: Path) -> None:
    use_method("whole_frames")
    family.load(compression_method="whole_frames").save_pretrained(tmp_path)
    del COMPRESSION_METHODS["whole_frames"]
    with pytest.raises(ValueError, match=r"`compression_method` is 'whole_frames'.*once its module is imported"):
        family.case.model_class.from_pretrained(tmp_path)


REFUSED = {
    "a name of ours": (
        ("compression", HEAD + FUNCTION),
        "its file is called compression.py, like one of this",
    ),
    "a whole package": (("mine_1", "import vidcom2\n" + HEAD + FUNCTION), "has `import vidcom2` in line 1"),
    "what is not shipped": (("mine_2", "from vidcom2 import ask\n" + HEAD + FUNCTION), "imports 'ask' from 'vidcom2'"),
    "a tool's module": (
        ("mine_3", "from vidcom2.tiny.tokens import tiny_tokenizer\n" + HEAD + FUNCTION),
        "imports 'tiny_tokenizer' from 'vidcom2.tiny.tokens'",
    ),
    "a file beside it": (("mine_4", HEAD + "from beside_it import x\n" + FUNCTION), "imports 'beside_it' in line 2"),
    "more on the line": (("mine_8", "import math; " + HEAD + FUNCTION), "has more than an import in line 1"),
    "a sentence like an import": (
        ("mine_10", '"""\nfrom .other import thing\n"""\n' + HEAD + FUNCTION),
        "imports from files beside it, or seems to, by 'from .other'",
    ),
    "a name that is not written": (
        ("mine_12", HEAD + FUNCTION.replace('"mine"', '"mi" + "ne"')),
        r"does not register it with `register_compression_method\('mine'\)` or `register_score_method\('mine'\)`",
    ),
    "no Python": (("mine_13", HEAD + FUNCTION), "invalid syntax"),
    "a notebook": (("mine_5", HEAD + f"exec({FUNCTION!r}, dict(globals(), __name__='__main__'))\n"), "in a notebook"),
}


@only(lambda family: family.name == "llava_onevision")
@pytest.mark.parametrize(("module", "message"), REFUSED.values(), ids=REFUSED.keys(), indirect=["module"])
def test_a_method_that_cannot_be_shipped_is_refused(
    module: ModuleType, message: str, family: Family, tmp_path: Path
) -> None:
    model = family.load(compression_method="mine")
    if message == "invalid syntax":  # the file was broken after its import
        Path(module.__file__).write_text("def mine(:\n")
    with pytest.raises(
        UnshippableMethodError, match=rf"'mine'` cannot be saved with the model: .*{message}.*Set another"
    ):
        model.save_pretrained(tmp_path / "folder")
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


def test_the_processor_may_be_saved_before_or_after_the_model(family: Family, tmp_path: Path) -> None:
    use_method("whole_frames")
    model = family.load(compression_method="whole_frames")
    for number, order in enumerate([(model, family.processor), (family.processor, model), (family.processor,)]):
        folder = tmp_path / str(number)
        for part in order:
            part.save_pretrained(folder)
        methods = folder / "registered_methods.py"
        assert methods.exists() == (model in order)  # a processor saves no method that would replace the model's
        if model in order:
            assert "whole_frames" in methods.read_text()


# -- the command line -------------------------------------------------------------------------------------------------


def test_the_command_line_imports_methods_by_file_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(METHODS_FOLDER)
    for imported, method in (("best_of_video.py", "best_of_video"), ("merged_in_time", "merged_in_time")):
        picture = tmp_path / f"{method}.png"
        code, out, error = vidcom2(
            *("--import", imported, "explain", "--compression-method", method, "--num-frames", 4, "-o", picture)
        )
        assert code == 0, error
        assert f"{method} at 0.25: " in out and picture.stat().st_size > 10_000
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
        code, _, error = vidcom2("--import", imported, "run")
        assert code == 2 and "--import" in error and reason in error
