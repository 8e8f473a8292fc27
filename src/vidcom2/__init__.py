"""VidCom²: video LLMs that keep only the distinctive video tokens. See README.md."""

import importlib
import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what editors and type checkers read; `_MODULES` below is what runs, and a test holds them equal
    from .answer import ask as ask
    from .compression import VideoCompression as VideoCompression
    from .compression import compress as compress
    from .compression_settings import register_compression_method as register_compression_method
    from .configuration_vidcom2_llava_onevision import VidCom2LlavaOnevisionConfig as VidCom2LlavaOnevisionConfig
    from .configuration_vidcom2_qwen2_vl import VidCom2Qwen2VLConfig as VidCom2Qwen2VLConfig
    from .llava_video import LlavaVideoProcessor as LlavaVideoProcessor
    from .llava_video import VidCom2LlavaVideoConfig as VidCom2LlavaVideoConfig
    from .llava_video import (
        VidCom2LlavaVideoForConditionalGeneration as VidCom2LlavaVideoForConditionalGeneration,
    )
    from .modeling_vidcom2_llava_onevision import (
        VidCom2LlavaOnevisionForConditionalGeneration as VidCom2LlavaOnevisionForConditionalGeneration,
    )
    from .modeling_vidcom2_qwen2_vl import (
        VidCom2Qwen2VLForConditionalGeneration as VidCom2Qwen2VLForConditionalGeneration,
    )
    from .prompt_positions import labels_at as labels_at
    from .video import Video as Video
    from .video import read_video as read_video

    __version__: str

# In a source checkout the shipped code stays in its own top-level folders, the very files that Hub repos hold, and so
# does what builds these repos; the wheel holds all of them flat beside this file.
_CHECKOUT = Path(__file__).resolve().parents[2]
if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "modeling").is_dir():
    __path__ += [str(_CHECKOUT / name) for name in ("modeling", "configuration", "hub_upload")]

# Imported on first use: `vidcom2.compress` needs torch alone, and `vidcom2 --help` neither.
_MODULES = {
    "VideoCompression": "compression",
    "compress": "compression",
    "VidCom2LlavaOnevisionConfig": "configuration_vidcom2_llava_onevision",
    "VidCom2LlavaOnevisionForConditionalGeneration": "modeling_vidcom2_llava_onevision",
    "VidCom2LlavaVideoConfig": "llava_video",
    "VidCom2LlavaVideoForConditionalGeneration": "llava_video",
    "LlavaVideoProcessor": "llava_video",
    "VidCom2Qwen2VLConfig": "configuration_vidcom2_qwen2_vl",
    "VidCom2Qwen2VLForConditionalGeneration": "modeling_vidcom2_qwen2_vl",
    "Video": "video",
    "ask": "answer",
    "labels_at": "prompt_positions",
    "read_video": "video",
    "register_compression_method": "compression_settings",
}
__all__ = sorted(_MODULES)


def _write_code(saved: object, folder: str) -> None:
    importlib.import_module(f"{__name__}.shipped_code").write_code(saved, folder)


def _check_repo(saved: object, repo: str, token: object, revision: str | None) -> None:
    importlib.import_module(f"{__name__}.shipped_code").check_repo(saved, repo, token, revision)


# Cheap to import: the standard library alone.
_saved_with_code = importlib.import_module(f"{__name__}.saved_with_code").SavedWithCode
_saved_with_code.write_code, _saved_with_code.check_repo = staticmethod(_write_code), staticmethod(_check_repo)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version(__name__)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
