"""Which files of `modeling/` and `configuration/` a Hub repo holds, and how its config.json names them."""

import ast
import importlib.util
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub.utils.sha import sha_fileobj
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from .checkpoints import MODEL_CLASSES

AUTO_MODEL_CLASSES = ("AutoModel", "AutoModelForImageTextToText", "AutoModelForMultimodalLM")
PIPELINE_TASK, PIPELINE = "video-text-to-text", ("pipeline_video_text_to_text", "VideoTextToTextPipeline")
PROCESSORS = {"vidcom2_llava_video": "processing_llava_video"}  # families without a processor in Transformers
CUSTOM_GENERATE = "custom_generate"
LICENSE = "LICENSE-vidcom2"  # the base may have a LICENSE of its own


def is_native(model_class: type[PreTrainedModel]) -> bool:
    """Whether Transformers has a stock class that loads the same checkpoints."""
    return model_class.config_class.model_type in CONFIG_MAPPING_NAMES


def source_of(module: str) -> Path:
    """The file of a shipped module, in the checkout or in the installed package."""
    spec = importlib.util.find_spec(f".{module}", __package__)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"there is no shipped module {module!r}: the installation of vidcom2 is incomplete.")
    return Path(spec.origin)


def import_closure(*modules: str) -> dict[str, Path]:
    """File name -> file, of these modules and all that they import by `from .name import`, in alphabetical order."""
    files: dict[str, Path] = {}
    to_visit = list(modules)
    while to_visit:
        module = to_visit.pop()
        if f"{module}.py" in files:
            continue
        path = source_of(module)
        files[f"{module}.py"] = path
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                to_visit.append(node.module)
    return dict(sorted(files.items()))


def module_of(cls: type) -> str:
    return cls.__module__.rpartition(".")[2]


def code_of(model_class: type[PreTrainedModel]) -> dict[str, Path]:
    """The code of a model repo: config, model, pipeline and, where the project has its own, processor."""
    config_class = model_class.config_class
    processor = PROCESSORS.get(config_class.model_type)
    return import_closure(
        module_of(config_class), module_of(model_class), PIPELINE[0], *([] if processor is None else [processor])
    )


def code_of_custom_generate() -> dict[str, Path]:
    """The code of a `custom_generate` repo, by the path in the repo: its entry point must be called `generate.py`.

    The pipeline is among it, since Transformers fetches whatever a file that it loads seems to import.
    """
    files = import_closure("custom_generate")
    files["generate.py"] = files.pop("custom_generate.py")
    return {f"{CUSTOM_GENERATE}/{name}": path for name, path in sorted(files.items())}


def fields_of(model_class: type[PreTrainedModel]) -> dict[str, Any]:
    """What a repo's config.json says about its code.

    `architectures` is the custom name: with the stock one, a pipeline that cannot load the custom class would fall
    back on the stock class without a word.
    """
    config_class = model_class.config_class
    model = f"{module_of(model_class)}.{model_class.__name__}"
    return {
        "architectures": [model_class.__name__],
        "auto_map": {"AutoConfig": f"{module_of(config_class)}.{config_class.__name__}"}
        | dict.fromkeys(AUTO_MODEL_CLASSES, model),
        "custom_pipelines": {
            PIPELINE_TASK: {"impl": ".".join(PIPELINE), "pt": ["AutoModelForImageTextToText"], "type": "multimodal"}
        },
    }


def license_file() -> Path:
    """The licence of the code: beside this file in the installed package, at the top of the checkout."""
    here = Path(__file__).parent
    return next(path for path in (here / LICENSE, here.parent / "LICENSE") if path.is_file())


def write_code(config: PreTrainedConfig, folder: str) -> None:
    """Put the code of a config's family into a folder, and its names into the config. For `SavedWithCode`.

    Subclasses of the package's classes are left alone: their authors register them with Transformers themselves.
    """
    model_class = MODEL_CLASSES.get(config.model_type)
    if model_class is None or type(config) is not model_class.config_class:
        return
    if not set(config.architectures or []) <= {cls.__name__ for cls in model_class.__mro__}:
        return
    fields = fields_of(model_class)
    config.auto_map, config.custom_pipelines = fields["auto_map"], fields["custom_pipelines"]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, path in code_of(model_class).items():
        shutil.copyfile(path, Path(folder) / name)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return sha_fileobj(file).hex()
