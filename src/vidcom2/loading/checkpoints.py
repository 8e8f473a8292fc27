"""Load a VidCom² model of any family with its processor. The checkpoint's config says which family it is."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoProcessor, PreTrainedConfig, ProcessorMixin
from transformers.quantizers.auto import AutoHfQuantizer
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from ..checks import FAMILY_SETTINGS, settings_hint
from ..configuration.compression_settings import (
    COUNTED_BY,
    SETTING_NAMES,
    SHORT_NAMES,
    CompressionSettings,
    check_all_read,
)
from ..errors import CheckpointError, OptionError, did_you_mean, is_out_of_memory
from ..families.table import FAMILIES, Family
from ..modeling.hosting.in_transformers import PREFIXES_OF_SETTINGS
from ..records.fingerprints import identity_of
from .devices import device_of, torch_device
from .finding_checkpoints import CONFIG, NAMES_CODE, Resolved, Source, checkpoint_file, read_object, resolve
from .hub_calls import TRANSPORT_ERRORS
from .placement import ATTENTION, Placement, check_accelerate, unknown_dtype
from .processors import check_processor, shorten

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin

SMALL_WEIGHTS = 200e6  # bytes, up to which loading needs no progress bar
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
OF_WHOLE_WEIGHTS = {"mismatched_keys": "not of the shape that its config.json says", "missing_keys": "missing"}
OF_ADAPTERS = {
    "mismatched_keys": "not of the shape of its base",
    "missing_keys": "missing",
    "unexpected_keys": "without a place in its base",
}
NAMES_SHOWN = 3  # how many weights that do not fit an error names
HUB_ARGUMENTS = ("token", "cache_dir", "local_files_only", "force_download")  # for config, processor and weights alike
OF_LOADING = {"dtype", "attn_implementation", "quantization_config"}  # never meant as config fields
# What Transformers, PyTorch and safetensors raise about a checkpoint's files, and about files that are cut short.
CUT_SHORT = (SafetensorError, UnpicklingError, EOFError)
OF_FILES = (OSError, ValueError, TypeError, AttributeError, LookupError, ImportError, RuntimeError, ArithmeticError)
OF_FILES += (StrictDataclassError, *CUT_SHORT)
# Arguments that `load` refuses, with the reason and the remedy.
NOT_OF_LOAD = {
    "config": "it reads the checkpoint's own. To use another, call `from_pretrained` of the family's class.",
    "ignore_mismatched_sizes": "it refuses weights that do not fit. To make these anew, call `from_pretrained` of the "
    "family's class.",
    "load_in_4bit": "Transformers replaced it. Pass `quantization_config=BitsAndBytesConfig(load_in_4bit=True)`.",
    "load_in_8bit": "Transformers replaced it. Pass `quantization_config=BitsAndBytesConfig(load_in_8bit=True)`.",
    **{short: f"pass `{name}`." for short, name in SHORT_NAMES.items()},
    "output_loading_info": "it refuses missing weights. To see them, call `from_pretrained` of the family's class.",
    "resume_download": "downloads always resume. Leave it out.",
    "state_dict": "it loads the checkpoint's weights. To use others, call `from_pretrained` of the family's class.",
    "subfolder": "a checkpoint lies at the top of its folder or repo. Name the folder itself.",
    "gguf_file": "GGUF files hold no vision tower. Load a checkpoint of Transformers.",
    "use_auth_token": "Transformers renamed it. Pass `token`.",
    "use_flash_attention_2": "Transformers replaced it. Pass `attn_implementation='flash_attention_2'`.",
    "trust_remote_code": "it uses this package's classes, even if the repo brings code. Leave it out.",
    "spatial_pool_mode": "model and processor must agree on it. Set it when you convert the checkpoint.",
}


@dataclass
class Checkpoint:
    """A model with its processor, and the name to call it by.

    Attributes:
        source: what it was loaded from; None if `load_checkpoint` did not load it.
        prepare_on: where the frames of videos are prepared, as in `Placement`.
    """

    name: str
    model: "VidCom2GenerationMixin"
    processor: ProcessorMixin
    source: Source | None = None
    prepare_on: str = "auto"

    @cached_property
    def identity(self) -> dict[str, Any] | None:
        """What identifies the model that gave an answer, as `identity_of` returns it; None if that is unknown."""
        return None if self.source is None else identity_of(self.source)


def load_checkpoint(name: str | None = None, **arguments: Any) -> Checkpoint:
    """Load a checkpoint of any supported family, or the bundled toy model if no name is given.

    Args:
        name: a folder, or a Hub id.
        **arguments: fields of `Placement` (`device="cpu"`); and settings of VidCom² (`retention_ratio=0.15`), the
            checkpoint's own where not given.

    Raises:
        CheckpointError: if there is no such checkpoint, its files cannot be read, or VidCom² has no class for it.
        OptionError: a ValueError, if a setting, `device`, `dtype`, ... is outside its accepted set.
    """
    return load_resolved(resolve(name, Placement.popped_from(arguments), arguments))


def load_resolved(resolved: Resolved) -> Checkpoint:
    """Load the model that `resolve` found. Raises what `load_checkpoint` raises about its files and the device."""
    placement = resolved.placement
    target = device_of(placement)
    named = ("dtype", "device_map", "attn_implementation")
    placed = {each: value for each in named if (value := getattr(placement, each)) is not None}
    with no_progress_bars() if _loads_at_once(resolved.source.path) else nullcontext():
        return replace(_load(resolved, target, placed), prepare_on=placement.prepare_on)


def load(
    name: str | PathLike[str], *, device: str = "auto", **arguments: Any
) -> tuple["VidCom2GenerationMixin", ProcessorMixin]:
    """Load a checkpoint of any supported family: its model in the VidCom² class, and its processor.

    The checkpoint's config says which family it is. It may be a stock checkpoint, or one that a VidCom² model saved.

    Args:
        name: a folder, or a Hub id.
        device: where to put the model; `"auto"` means the accelerator if there is one. With a `device_map`,
            Transformers places the model instead.
        **arguments: settings of VidCom² (`retention_ratio=0.15`), by default those of the checkpoint, but for those
            that another method than its own does not read; and arguments of `from_pretrained`: `dtype` (by default the
            checkpoint's), `device_map`, `attn_implementation`, `quantization_config`, `revision`, `token`, `cache_dir`
            and so on; and `cache_implementation="static"` or another kind of KV cache, for its generation config.

    Returns:
        The model, in evaluation mode, and the processor, which writes a placeholder for each video token that stays.
        Where their number depends on what a video shows (`compression_rounding="ceil"`), it writes all placeholders, as
        the stock processor, which it mostly is, and the model shortens its prompts.

    Raises:
        CheckpointError: a ValueError, if there is no such checkpoint, its files cannot be read, or VidCom² has no class
            for its family.
        ValueError: on an argument that does not exist or is outside its accepted set.
    """
    if not isinstance(name, str | PathLike):
        raise OptionError(f"`name` is a {type(name).__name__}, but must be a folder, or a Hub id: org/name.")
    for not_taken, instead in NOT_OF_LOAD.items():
        if not_taken in arguments:
            raise OptionError(f"`{not_taken}` is not an argument of `vidcom2.load`: {instead}")
    settings = {each: arguments.pop(each) for each in (*SETTING_NAMES, *FAMILY_SETTINGS) if each in arguments}
    if arguments.get("device_map") is not None and device != "auto":
        raise OptionError(f"`device` is {device!r} and `device_map` is {arguments['device_map']!r}. Pass one of them.")
    if arguments.get("device_map") is not None:
        check_accelerate(arguments["device_map"])
    dtype = arguments.setdefault("dtype", arguments.pop("torch_dtype", "auto"))  # under its former name
    if isinstance(dtype, str) and dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise unknown_dtype(dtype)
    target = None if arguments.get("device_map") is not None else torch_device(device)
    hub = {each: arguments.pop(each) for each in HUB_ARGUMENTS if each in arguments}
    attention = arguments.get("attn_implementation")
    placement = Placement(
        device="auto" if target is None else str(target),
        attn_implementation=attention if attention in ATTENTION else None,  # Transformers knows others
        revision=arguments.pop("revision", None),
        cache_implementation=arguments.pop("cache_implementation", None),
    )
    checkpoint = _load(resolve(fspath(name), placement, settings, **hub), target, arguments)
    return checkpoint.model, checkpoint.processor


def tiny_model(family: str, **settings: Any) -> tuple["VidCom2GenerationMixin", ProcessorMixin]:
    """Make a tiny model of a family, for tests of your own code: as `load` returns one, but with random weights.

    It is made on the CPU, without a download. Its prompts, positions and caches are like those of the family's real
    models. Its answers mean nothing.

    Args:
        family: the `model_type` of the family's checkpoints (`"qwen3_vl"`), its name (`"Qwen3-VL"`), or the name of its
            class.
        **settings: settings of VidCom² (`retention_ratio=0.5`).

    Raises:
        ValueError: on an unknown family, one that needs a package or a Transformers that is not installed, and on a
            setting outside its accepted set.
    """
    names = {
        each: row
        for row in FAMILIES.values()
        for each in (row.model_type, row.name, f"{row.classes}ForConditionalGeneration")
    }
    if family not in names:
        raise OptionError(
            f"`family` is {family!r}, but must be one of {', '.join(FAMILIES)}.{did_you_mean(family, names)}"
        )
    row = names[family]
    with tempfile.TemporaryDirectory() as folder, no_progress_bars():
        for part in row.build_tiny():
            part.save_pretrained(folder)
        model, processor = load(folder, device="cpu", **settings)
    model.config.name_or_path = f"a tiny {row.name}"
    return model, processor


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hide Transformers' progress bars. They say nothing about a tiny model, which loads at once."""
    was_shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            enable_progress_bar()


def _loads_at_once(path: str) -> bool:
    """Return whether a folder's weights are so small that a progress bar would only be in the way."""
    files = list(Path(path).glob("model*.safetensors"))
    return bool(files) and sum(file.stat().st_size for file in files) < SMALL_WEIGHTS


def read_config_and_processor(resolved: Resolved) -> tuple[PreTrainedConfig, ProcessorMixin]:
    """Return the config of a checkpoint, with the settings, and its processor, but no weights.

    Raises:
        CheckpointError, OptionError: as `load_checkpoint`.
    """
    name, family = resolved.name, resolved.family
    settings = _settings_beside_adapter(resolved) | resolved.settings
    path, pinned = _files(resolved, (CONFIG,))
    # Each given setting was checked before, so what fails here is in the file, or the settings do not go together.
    with _unreadable(name, "config"):
        config = family.model_class.config_class.from_pretrained(path, **pinned, **settings)
        check_all_read(CompressionSettings.as_dict(config))
    path, pinned = _files(resolved, PROCESSOR_FILES)
    _check_files(name, "processor", ["processor_config.json", "audio_tokenizer_config.json"], path, **pinned)
    with _unreadable(name, "processor"):
        processor = _processor(family, path, pinned)
    for part in (config, *vars(config).values(), *vars(processor).values()):
        forget_code(part)
    if hasattr(config, "read_tokenizer"):  # InternVL's prompts tell by their text what is a frame
        config.read_tokenizer(processor.tokenizer)
    config.complete_processor(processor)
    shorten(processor, config)
    return config, processor


def _settings_beside_adapter(resolved: Resolved) -> dict[str, Any]:
    """Return the settings of this project's processor that was saved beside an adapter, since they say with how many
    tokens it was trained, and PEFT saves no config."""

    def beside(name: str) -> Any:
        return checkpoint_file(resolved.source.path, resolved.source.commit, name, **resolved.hub)

    if resolved.source.base is None or beside(CONFIG) is not None:
        return {}
    file = beside(PROCESSOR_FILES[0])
    saved = {} if file is None else read_object(file)
    return {name: saved[name] for name in COUNTED_BY if name in saved and "writes_all" in saved}


def forget_code(part: object) -> None:
    """Forget what code the files of a config, a tokenizer or the like name, which would be saved with it."""
    for values in (getattr(part, "__dict__", {}), getattr(part, "init_kwargs", {})):
        for name in filter(NAMES_CODE.fullmatch, list(values)):
            del values[name]


def _files(resolved: Resolved, names: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return where these files of a checkpoint are, and the arguments of `from_pretrained` for it."""
    source = resolved.source.holding(names, **resolved.hub)
    return source.path, {"revision": source.commit or "main", **resolved.hub}


def _processor(family: Family, path: str, pinned: Mapping[str, Any]) -> Any:
    """Return the processor in a checkpoint's files. Where these name a class that Transformers does not know, it is
    the family's.

    Raises:
        ValueError: if the files are those of another family.
    """
    try:
        processor = AutoProcessor.from_pretrained(path, trust_remote_code=False, **pinned)
    except ValueError:  # the class is code in the repo, if it is not the files that are broken
        processor = None
    if not isinstance(processor, ProcessorMixin):  # Transformers gives a part where it does not know the whole
        processor = family.processor_class.from_pretrained(path, trust_remote_code=False, **pinned)
    check_processor("it", processor, family)
    if processor.chat_template is None:  # where it was before processors had one
        processor.chat_template = getattr(processor.tokenizer, "chat_template", None)
    return processor


def _load(resolved: Resolved, device: torch.device | None, placed: dict[str, Any]) -> Checkpoint:
    name, source, hub = resolved.name, resolved.source, resolved.hub
    config, processor = read_config_and_processor(resolved)
    placed = _take_fields(config, placed)
    if device is not None and (placed.get("quantization_config") or getattr(config, "quantization_config", None)):
        placed, device = {**placed, "device_map": str(device)}, None  # quantized weights are made where they stay
    of_weights = source.base or source
    _check_files(name, "generation config", [GENERATION_CONFIG_NAME], of_weights.path, of_weights.commit, **hub)
    _check_quantization(name, config, placed)
    with _unknown_arguments(placed), _unreadable(name, "weights"):
        loading: Any = resolved.family.model_class.from_pretrained(
            of_weights.path,
            config=config,
            revision=of_weights.commit or "main",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `_check_weights` refuses them by name
            **hub,
            **placed,
        )
        model, loaded = loading
    _check_weights(f"the model {name!r}", loaded, OF_WHOLE_WEIGHTS, "Download it again.")
    if source.base is not None:
        _load_adapter(name, model, source, hub)
    resolved.placement.set_cache(model)
    return Checkpoint(name, (model if device is None else model.to(device)).eval(), processor, source)


def _check_files(name: str, part: str, files: Iterable[str], path: str, revision: str | None, **hub: Any) -> None:
    """Refuse files in whose place Transformers would take its defaults, or that it would follow to another repo."""
    with _unreadable(name, part):
        for file in filter(None, (checkpoint_file(path, revision, each, **hub) for each in files)):
            read_object(file)


def _check_quantization(name: str, config: PreTrainedConfig, placed: Mapping[str, Any]) -> None:
    """Refuse weights that are quantized in a way which Transformers does not know, and therefore ignores."""
    own = getattr(config, "quantization_config", None)
    if own is None or placed.get("quantization_config") is not None:
        return
    with _unreadable(name, "config"):
        if not isinstance(own, dict) or not AutoHfQuantizer.supports_quant_method(own):
            raise ValueError(
                f"`quantization_config` is {own!r}, which this Transformers does not know. Take a checkpoint that is "
                "not quantized, or quantized in another way"
            )


def _load_adapter(name: str, model: Any, source: Source, hub: Mapping[str, Any]) -> None:
    """Put an adapter into its base, as Transformers' Auto classes do."""
    from peft import PeftConfig

    pinned = {"revision": source.commit or "main", **hub}
    with _unreadable(name, "adapter"):
        config: Any = PeftConfig.from_pretrained(source.path, **pinned)
        what = f"of type {config.peft_type.value}, which changes no weights" if config.is_prompt_learning else None
        if getattr(config, "alora_invocation_tokens", None):
            what = "an aLoRA, which only PEFT's own model activates"
        if what is not None:
            raise ValueError(
                f"it is {what}. Load its base, and give both to PEFT: `PeftModel.from_pretrained(model, ...)`"
            )
        loaded = model.load_adapter(source.path, adapter_kwargs=pinned, ignore_mismatched_sizes=True).to_dict()
    _check_weights(f"the adapter {name!r}", loaded, OF_ADAPTERS, "Was it trained on another base?")


def _take_fields(config: PreTrainedConfig, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Set the fields of the config that `arguments` name, as `from_pretrained` does, and return the other arguments.

    Raises:
        OptionError: on a misspelt setting.
    """
    left = {}
    for name, value in arguments.items():
        if hasattr(config, name) and name not in OF_LOADING:
            setattr(config, name, value)
        elif name.startswith(PREFIXES_OF_SETTINGS):
            raise OptionError(f"`{name}` is not a setting of VidCom².{settings_hint(name)}")
        else:
            left[name] = value
    return left


@contextmanager
def _unknown_arguments(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Turn the TypeError for an argument that neither Transformers nor the model knows into an OptionError."""
    try:
        yield
    except TypeError as error:
        unknown = [name for name in arguments if f"unexpected keyword argument '{name}'" in str(error)]
        if not unknown:
            raise
        raise OptionError(
            f"`{unknown[0]}` is neither a setting of VidCom² nor an argument of `from_pretrained`."
            f"{settings_hint(unknown[0], [each.name for each in fields(Placement)])}"
        ) from None


@contextmanager
def _unreadable(name: str, part: str) -> Iterator[None]:
    """Turn what Transformers raises about a checkpoint's files into a CheckpointError."""
    try:
        yield
    except (*OF_FILES, *TRANSPORT_ERRORS) as error:
        if is_out_of_memory(error) or "unexpected keyword argument" in str(error):  # these are not about files
            raise
        reason = " ".join(str(error).split("\n\n")[0].split()).rstrip(".")
        if not isinstance(error, (OSError, ValueError, ImportError, SafetensorError, StrictDataclassError)):
            reason = f"{type(error).__name__}: {reason}"
        hint = " Is the file complete? Download it again." if isinstance(error, CUT_SHORT) else ""
        if "trust_remote_code" in reason:
            reason, hint = "a class of it is code in the repo, which is not run", " Take a checkpoint for Transformers."
        # A missing package and an unknown attention are not the files' fault.
        is_of_files = not isinstance(error, ImportError) and "attn_implementation" not in reason
        because = f" because of its {part}" if is_of_files else ""
        raise CheckpointError(f"cannot load the model {name!r}{because}: {reason}.{hint}") from error


def _check_weights(what: str, loaded: dict[str, Any], kinds: Mapping[str, str], remedy: str) -> None:
    """Refuse weights that do not fit, of which Transformers only logs that it fills them at random or ignores them.

    Args:
        kinds: the keys of `loaded` that tell of them, and what these say.
    """
    for kind, problem in kinds.items():
        keys = {key[0] if isinstance(key, tuple) else key for key in loaded[kind]}
        if keys:
            names = ", ".join(sorted(keys)[:NAMES_SHOWN]) + (", ..." if len(keys) > NAMES_SHOWN else "")
            raise CheckpointError(f"cannot load {what}: {len(keys)} of its weights are {problem} ({names}). {remedy}")
