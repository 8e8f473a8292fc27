"""Loading a VidCom² model and its processor, of any family, from the checkpoint's config alone."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoProcessor, PreTrainedConfig, ProcessorMixin
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from .checks import check_settings
from .configuration.compression_settings import CompressionSettings, check_all_read
from .devices import torch_device
from .errors import CheckpointError, OptionError, did_you_mean
from .families import FAMILIES, Family
from .finding_checkpoints import find_checkpoint
from .hub_calls import TRANSPORT_ERRORS
from .placement import Placement
from .records.fingerprints import folder_identity, hub_commit, hub_identity
from .tiny.toy import TOY_FOLDER, TOY_NAME

if TYPE_CHECKING:
    from .modeling.prompt.compressed_generation import VidCom2GenerationMixin

SMALL_WEIGHTS = 200e6  # bytes
NAMES_SHOWN = 3  # of weights that do not fit

__all__ = ["Checkpoint", "CheckpointError", "family_of", "load_checkpoint", "load_placed"]


@dataclass
class Checkpoint:
    """A model with its processor, and what to call it.

    Attributes:
        source: the folder, or the Hub id, that it was loaded from; None if it was not loaded by `load_checkpoint`.
        commit: of the Hub repo.
    """

    name: str
    model: "VidCom2GenerationMixin"
    processor: ProcessorMixin
    source: str | None = None
    commit: str | None = None

    @cached_property
    def identity(self) -> dict[str, Any] | None:
        """What its answers are known by, as `fingerprints.model_identity` returns it; None if nothing tells."""
        if self.source is None:
            return None
        return folder_identity(Path(self.source)) if self.commit is None else hub_identity(self.source, self.commit)


def load_checkpoint(
    name: str | None = None,
    retention_ratio: float | None = None,
    device: str = "auto",
    dtype: str = "auto",
    attn_implementation: str | None = None,
    device_map: str | None = None,
    revision: str | None = None,
    **settings: Any,
) -> Checkpoint:
    """Load a checkpoint of any supported family; without a name, the toy model that comes along.

    Args:
        name: a folder, or a Hub id.
        retention_ratio: fraction of the video tokens kept; the checkpoint's if None, which is 0.25 for a stock one.
        device: `"auto"` for the accelerator if there is one.
        dtype: `"auto"` for the checkpoint's.
        attn_implementation: Transformers' choice if None.
        device_map: how accelerate spreads the model over devices, instead of `device`.
        revision: commit, tag or branch of a Hub repo.
        **settings: the other settings (`compression_rounding="exact"`); the checkpoint's where not given.

    Raises:
        CheckpointError: if there is no such checkpoint, its files cannot be read, or VidCom² has no class for it.
        OptionError: a ValueError, if a setting, `device`, `dtype`, ... is outside its accepted set.
    """
    placement = Placement(
        device=device,
        device_map=device_map,
        dtype=dtype,
        attn_implementation=attn_implementation,
        revision=revision,
    )
    of_ratio = {} if retention_ratio is None else {"retention_ratio": retention_ratio}
    return load_placed(name, placement, settings | of_ratio)


def load_placed(name: str | None, placement: Placement, settings: Mapping[str, Any]) -> Checkpoint:
    """`load_checkpoint`, with its placement and its settings as they are handed from one function to the next."""
    settings = dict(settings)
    check_settings(settings)
    placement.check(name)
    target = None if placement.device_map is not None else torch_device(placement.device)
    if target is not None:
        placement.check_attention_on(target.type)
    named = ("dtype", "device_map", "attn_implementation")
    placed = {each: value for each in named if (value := getattr(placement, each)) is not None}
    if name is not None:
        path = find_checkpoint(name, placement.revision)
        with no_progress_bars() if _loads_at_once(path) else nullcontext():
            return _load(name, path, placement.revision, target, placed, settings)
    with no_progress_bars():
        return _load(TOY_NAME, str(TOY_FOLDER), None, target, placed, settings)


@contextmanager
def tiny_checkpoint(family: Family, **sizes: int) -> Iterator[str]:
    """A folder with a tiny random checkpoint of the uncompressed model, as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder, no_progress_bars():
        for part in family.build_tiny(**sizes):
            part.save_pretrained(folder)
        yield folder


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """For what is tiny: nothing is downloaded, nothing takes long."""
    was_shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            enable_progress_bar()


def _loads_at_once(path: str) -> bool:
    """Return whether a folder's weights are so small that a progress bar would only be in the way."""
    files = list(Path(path).glob("*.safetensors"))
    return bool(files) and sum(file.stat().st_size for file in files) < SMALL_WEIGHTS


def _load(
    name: str,
    path: str,
    revision: str | None,
    device: torch.device | None,
    placed: dict[str, Any],
    settings: dict[str, Any],
) -> Checkpoint:
    # All of its files are of one commit, also if the repo is changed in the meantime.
    commit = revision = None if Path(path).is_dir() else hub_commit(path, revision)
    with _unreadable(name, "config", OSError, ValueError, StrictDataclassError):
        fields, _ = PreTrainedConfig.get_config_dict(path, revision=revision)
        if "model_type" not in fields:
            raise ValueError("it names no `model_type`")
    family = family_of(f"the model {name!r}", fields)
    check_settings_of(f"the model {name!r}", family, settings)
    model_class = family.model_class
    # Each setting was checked before: what is refused here is in the file, or does not go together.
    with _unreadable(name, "config", OSError, ValueError, StrictDataclassError):
        config = model_class.config_class.from_pretrained(path, revision=revision or "main", **settings)
        check_all_read(CompressionSettings.as_dict(config))
    with _unreadable(name, "processor", OSError, ValueError, ImportError):
        processor = AutoProcessor.from_pretrained(path, revision=revision or "main")
    with _unreadable(name, "weights", OSError, ImportError, SafetensorError):
        loading: Any = model_class.from_pretrained(
            path,
            config=config,
            revision=revision or "main",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by their names
            **placed,
        )
        model, loaded = loading
    _check_weights(name, loaded)
    return Checkpoint(name, (model if device is None else model.to(device)).eval(), processor, path, commit)


def family_of(what: str, config: dict[str, Any]) -> Family:
    """The family of a checkpoint, by its config.json.

    Raises:
        CheckpointError: if VidCom² has no class for it; `what` says whose config it is.
    """
    model_type = config.get("model_type")
    if model_type is None:
        raise CheckpointError(
            f"cannot load {what}, its config: it names no `model_type`. Is it whole? Download it again."
        )
    if model_type not in FAMILIES:
        raise CheckpointError(
            f"{what} is of type {model_type!r}, but VidCom² has classes for {', '.join(map(repr, FAMILIES))}. "
            "An original LLaVA-Video is converted first: `vidcom2 convert-llava-video`."
            f"{did_you_mean(model_type, FAMILIES)}"
        )
    return FAMILIES[model_type]


def check_settings_of(what: str, family: Family, settings: Mapping[str, Any]) -> None:
    """Raises an OptionError if one of the settings is of other families only."""
    foreign = [name for name in settings if not hasattr(family.config_class, name)]
    if foreign:
        raise OptionError(f"`{foreign[0]}` is no setting of {what}, which is of type {family.model_type!r}.")


@contextmanager
def _unreadable(name: str, part: str, *errors: type[Exception]) -> Iterator[None]:
    """What Transformers raises about the files of a checkpoint, as a CheckpointError."""
    try:
        yield
    except (*errors, *TRANSPORT_ERRORS) as error:
        hint = " Is the file whole? Download it again." if isinstance(error, SafetensorError) else ""
        reason = " ".join(str(error).split("\n\n")[0].split()).rstrip(".")
        raise CheckpointError(f"cannot load the model {name!r}, its {part}: {reason}.{hint}") from error


def _check_weights(name: str, loaded: dict[str, Any]) -> None:
    """Transformers fills what the files lack with random numbers, and says so in a log."""
    mismatched = {key[0] for key in loaded["mismatched_keys"]}
    for keys, what in ((mismatched, "of another shape than its config.json says"), (loaded["missing_keys"], "missing")):
        if keys:
            names = ", ".join(sorted(keys)[:NAMES_SHOWN]) + (", ..." if len(keys) > NAMES_SHOWN else "")
            raise CheckpointError(
                f"cannot load the model {name!r}: {len(keys)} of its weights are {what} ({names}). Download it again."
            )
