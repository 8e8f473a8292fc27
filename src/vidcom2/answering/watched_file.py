"""The file of a watched video: its kept features, how it stands in a prompt, and maybe a KV cache, in safetensors.

The tensors are as they were. One JSON text in the header holds all else, and a sha256 of both, since safetensors
does not notice a changed byte. Nothing in the file is code, and nothing is unpickled.

A model may read the file if it would have made the same one: `watched_model.py`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import DynamicCache

from ..checkpoints import Checkpoint
from ..configuration.compression_settings import CompressionSettings
from ..errors import OptionError, one_line
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..modeling.families.llava_videos import VideoLayout
from ..modeling.methods.compression import VideoCompression
from ..records.fingerprints import video_changed, video_stamp
from ..records.whole_files import TakenError, write_alone
from .prepared_video import PreparedVideo
from .watched_model import encoder_identity, model_identity

if TYPE_CHECKING:
    from .watched import Watched

FORMAT = 2
HEADER = "vidcom2"
# The kinds of layers of a KV cache that are written, with the tensors and numbers that each holds. Others are refused,
# since what is not known would be lost silently.
ATTENTION, LINEAR = ("keys", "values"), ("conv_states", "recurrent_states")
LAYERS: dict[str, tuple[str, ...]] = {
    "DynamicLayer": ATTENTION,
    "DynamicSlidingWindowLayer": ATTENTION,
    "LinearAttentionLayer": LINEAR,
    "LinearAttentionAndFullAttentionLayer": ATTENTION + LINEAR,
    "LinearAttentionAndSlidingWindowAttentionLayer": ATTENTION + LINEAR,
    "DummyLayer": (),
}
AGAIN = "Watch the video again: `vidcom2.watch(...)` and `save`."

# ---------------------------------------------------------------------------------------------------------------------
# Writing
# ---------------------------------------------------------------------------------------------------------------------


def write_watched(watched: "Watched", path: Path, with_cache: bool) -> None:
    """Write a watched video so that the file is whole or, after an interruption, what it was before.

    Raises:
        OptionError: on a file that cannot be written, and on a KV cache with a layer of an unknown kind.
    """
    features, model = watched.features, watched.checkpoint.model
    compression = features.video_compressions[0]
    tensors = {"features": features.pooler_output[0]}
    for number, layer in enumerate(features.deepstack_features or ()):
        tensors[f"deepstack.{number}"] = layer[0]
    of_compression, numbers = _parts(vars(compression) | {"merge": None, "layout": None})
    of_inputs, rest = _parts(watched.prepared.inputs)
    tensors |= {f"compression.{name}": value for name, value in of_compression.items()}
    tensors |= {f"inputs.{name}": value for name, value in of_inputs.items()}
    header = {
        "format": FORMAT,
        "transformers": transformers.__version__,
        "class": type(model).__name__,
        "settings": watched.settings.as_dict(),
        "encoder": encoder_identity(watched.checkpoint),
        "compression": numbers,
        "layout": _named(compression.layout),
        "prepared": {name: value for name, value in vars(watched.prepared).items() if name != "inputs"},
        "inputs": rest,
        "source": watched.source,
        "lost_frames": watched.lost_frames,
    }
    if with_cache:
        of_cache, header["layers"] = _layers(watched.cache)
        assert watched.prefix is not None
        tensors |= {"prefix": watched.prefix, **of_cache}
        tensors |= {f"memory.{name}": value for name, value in model.cache_memory(watched.cache).items()}
        header["model"] = model_identity(model)
    # A user's method may return tensors that share memory, which safetensors refuses.
    tensors = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()
    }
    header["sha256"] = _sha256(tensors, json.loads(json.dumps(header)))
    try:
        write_alone(path.resolve(), save(tensors, metadata={HEADER: json.dumps(header)}))
    except (OSError, TakenError) as error:
        raise OptionError(f"cannot write {str(path)!r}: {one_line(error)}. Nothing was changed.") from error


def _parts(values: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Divide values into tensors and those that JSON holds. Raises an OptionError on any other."""
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    rest = {name: value for name, value in values.items() if name not in tensors and value is not None}
    try:
        json.dumps(rest)
    except TypeError as error:
        raise OptionError(f"the video cannot be written: {one_line(error)}.") from error
    return tensors, rest


def _named(layout: VideoLayout | None) -> tuple[str, dict[str, Any]] | None:
    return None if layout is None else (type(layout).__name__, asdict(layout))


def _layers(cache: Any) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return the tensors of a KV cache, and of each layer its kind and the number of tokens that it stands for."""
    tensors, layers = {}, []
    for number, layer in enumerate(cache.layers):
        kind = type(layer).__name__
        if kind not in LAYERS:
            raise OptionError(
                f"the KV cache has a layer of the kind {kind}, which the file cannot hold. Leave `prefill` out: the "
                "features alone can be saved."
            )
        for name in LAYERS[kind]:
            value = getattr(layer, name)
            states = value if isinstance(value, dict) else {0: value}
            tensors |= {f"cache.{number}.{name}.{i}": state for i, state in states.items() if state is not None}
        layers.append({"kind": kind, "tokens": getattr(layer, "cumulative_length", None)})
    return tensors, layers


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


def read_header(path: Path) -> dict[str, Any]:
    """Return what a file says about its video, without reading the tensors.

    Raises:
        OptionError: on a file that is none of a watched video, is cut short, or is of another format, and if the video
            has changed since it was watched.
    """
    with _opened(path) as file:
        header = _header(path, file)
    if header["format"] != FORMAT:
        raise OptionError(
            f"{str(path)!r} has format {header['format']}, and this version of vidcom2 reads {FORMAT}. {AGAIN}"
        )
    if header["source"] and video_changed(header["source"][1], video_stamp(header["source"][0])):
        raise OptionError(f"{header['source'][0]!r:.300} has changed since {str(path)!r} was made of it. {AGAIN}")
    return header


def read_watched(
    path: Path,
    header: Mapping[str, Any],
    checkpoint: Checkpoint,
    encoder: Mapping[str, Any] | None = None,
    with_cache: bool = True,
) -> dict[str, Any]:
    """Return the attributes of the `Watched` that a file holds, for the model that watched it.

    Args:
        header: what `read_header` returned for the file.
        encoder, with_cache: as in `load_watched_file`.

    Raises:
        OptionError: on a file with a changed byte, and on another model.
    """
    model = checkpoint.model
    _check_same(path, "encoder", header["encoder"], encoder or encoder_identity(checkpoint))
    with _opened(path) as file:
        if _header(path, file) != header:
            raise OptionError(f"{str(path)!r} was replaced while it was read. Load it again.")
        # Clones, since the others are the file itself: whoever writes to it would change them.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  (it is no dict)
    if _sha256(tensors, header) != header["sha256"]:
        raise OptionError(f"{str(path)!r} is damaged: it is not what was written. {AGAIN}")
    tensors = {name: value.to(model.device) for name, value in tensors.items()}
    of = partial(_below, tensors)
    layout = None
    if header["layout"] is not None:
        kind, values = header["layout"]
        layout = next(each for each in (VideoLayout, *VideoLayout.__subclasses__()) if each.__name__ == kind)(**values)
    numbers: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in header["compression"].items()
    }
    features = VidCom2VideoFeatures(
        pooler_output=(tensors["features"],),
        deepstack_features=[(layer,) for layer in of("deepstack").values()] or None,
        video_compressions=(VideoCompression(**of("compression"), **numbers, layout=layout),),
    )
    found = {
        "features": features,
        "prepared": PreparedVideo(inputs=of("inputs") | header["inputs"], **header["prepared"]),
        "settings": CompressionSettings(**header["settings"]),
        "source": tuple(header["source"]) if header["source"] else None,
        "lost_frames": header["lost_frames"],
    }
    if with_cache and "layers" in header:
        _check_same(path, "model", header["model"], model_identity(model))
        cache = _cache(model, header["layers"], of("cache"))
        model.restore_cache_memory(cache, of("memory"))
        found |= {"prefix": tensors["prefix"], "cache": cache}
    return found


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if path.is_dir():
        raise OptionError(f"{str(path)!r} is a folder. Pass a file that `Watched.save` wrote.")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise OptionError(f"there is no file {str(path)!r}. `Watched.save` writes one.") from None
    except (OSError, SafetensorError) as error:
        raise OptionError(f"{str(path)!r} cannot be read, or is cut short: {one_line(error)}. {AGAIN}") from error


def _header(path: Path, file: Any) -> dict[str, Any]:
    try:
        return json.loads((file.metadata() or {})[HEADER])
    except (KeyError, ValueError):
        raise OptionError(f"{str(path)!r} is not a video that was watched. {AGAIN}") from None


def _check_same(path: Path, what: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that the model is the one that watched the video. Raises an OptionError that names what differs."""
    differ = [name for name in then if then[name] != now.get(name)]
    if differ:
        name = differ[0]
        values = "" if name in ("weights", "config", "processor") else f" ({then[name]!r} then, {now.get(name)!r} now)"
        verb = "differ" if name == "weights" else "differs"
        as_then = name in ("dtype", "attn_implementation")
        remedy = f"Load the model with `{name}` as then, or watch the video again." if as_then else AGAIN
        raise OptionError(f"{str(path)!r} was made by another model: the {what}'s {name} {verb}{values}. {remedy}")


def _below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with this one, in order, without it."""
    found = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
    return dict(sorted(found.items(), key=lambda each: (len(each[0]), each[0])))  # 10 comes after 9


def _cache(model: Any, layers: list[dict[str, Any]], states: Mapping[str, Tensor]) -> DynamicCache:
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    for number, (layer, written) in enumerate(zip(cache.layers, layers, strict=True)):
        assert type(layer).__name__ == written["kind"]  # the model is the same, and so is Transformers
        own: Any = layer
        found = _below(states, str(number))
        if "keys.0" in found:
            own.update(found["keys.0"], found["values.0"])
        if written["tokens"] is not None:
            own.cumulative_length = written["tokens"]
        for name, state in found.items():
            kind, _, place = name.partition(".")
            if kind == "conv_states":
                own.update_conv_state(state, state_idx=int(place))
            elif kind == "recurrent_states":
                own.update_recurrent_state(state, state_idx=int(place))
    return cache


def _sha256(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in header.items() if name != "sha256"}
    total = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(tensors):
        total.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
