"""The file of a watched video, in safetensors: the features of its kept tokens, and what the processor of the loading
model needs to write the prompt, which are numbers.

Files are passed on, so what is in one may be anybody's. It is data: nothing in it names an argument, a class or a text
for the prompt. What `write_watched` would not write is refused, also where the checksums are right, since anyone can
compute these.

A model may read the file if it would have made the same one: `watched_model.py`.
"""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..checkpoints import Checkpoint
from ..configuration.compression_settings import SETTING_NAMES, CompressionSettings
from ..errors import OptionError, brief, is_out_of_memory, one_line, sentence
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..modeling.methods.compression import VideoCompression
from ..records.fingerprints import video_changed, video_stamp
from ..records.whole_files import TakenError, write_alone
from ..video.reading import Video
from .prepared_video import prepare_without_pixels
from .watched_model import encoder_identity

if TYPE_CHECKING:
    from .watched import Watched

FORMAT = 3
HEADER, CHECKSUM = "vidcom2", "sha256"  # of the metadata: a JSON text, and the digest of this text
AGAIN = "Watch the video again: `vidcom2.watch(...)` and `save`."
# The most that a file may hold. What lies beyond would take a processor minutes, or fill the memory.
MOST_BYTES, MOST_FRAMES, MOST_TOKENS, MOST_SIDE, MOST_SECONDS = 2**16, 2**14, 2**20, 2**15, 1e10


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _pair(each: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and len(value) == 2 and all(map(each, value))


def _by_name(names: Collection[str], kinds: Any) -> Callable[[Any], bool]:
    return lambda value: (
        type(value) is dict and value.keys() == {*names} and all(isinstance(each, kinds) for each in value.values())
    )


def _is_text(value: Any) -> bool:
    return type(value) is str


# The entries of the header, and whether a value may be one. `tensors` is the digest of the tensors.
ENTRIES: dict[str, Callable[[Any], bool]] = {
    "format": _whole(FORMAT, FORMAT),
    "tensors": _is_text,
    "settings": _by_name(SETTING_NAMES, str | int | float | None),
    "encoder": _by_name(("dtype", "weights", "config", "processor"), str),
    "size": _pair(_whole(1, MOST_SIDE)),
    "scaled_alone": lambda value: type(value) is bool,
    "fps": lambda value: type(value) is float and 0 < value < math.inf,
    "total_num_frames": _whole(1, 2**53),
    "tokens_per_frame": _whole(1, MOST_TOKENS),
    "grid": lambda value: value is None or _pair(_whole(1, MOST_TOKENS))(value),
    "source": lambda value: value is None or _pair(_is_text)(value),
    "lost_frames": _whole(0, 2**53),
}
# The tensors besides the features, for T frames of M tokens, F frames of the file and K kept tokens.
TENSORS: dict[str, tuple[torch.dtype, str]] = {
    "frames_indices": (torch.int64, "F"),
    "frame_budgets": (torch.int64, "T"),
    "indices": (torch.int64, "K"),
    "frame_uniqueness": (torch.float32, "T"),
    "token_uniqueness": (torch.float32, "TM"),
    "in_prompt": (torch.bool, "TM"),
}


def write_watched(watched: "Watched", path: Path) -> None:
    """Write a watched video so that the file is whole or, after an interruption, what it was before.

    Raises:
        OptionError: on a file that cannot be written, and on a video that could not be read again.
    """
    features, prepared, model = watched.features, watched.prepared, watched.checkpoint.model
    (compression,) = features.video_compressions
    found = {
        "features": features.pooler_output[0],
        **{f"deepstack.{number}": layer[0] for number, layer in enumerate(features.deepstack_features or ())},
        "frames_indices": torch.as_tensor(prepared.video.frames_indices),
        **{name: getattr(compression, name) for name in TENSORS if getattr(compression, name, None) is not None},
    }
    # A user's method may return other dtypes, and tensors that share memory, which safetensors refuses.
    tensors = {
        name: each.detach().to("cpu", TENSORS.get(name, (each.dtype,))[0]).clone(memory_format=torch.contiguous_format)
        for name, each in found.items()
    }
    header = {
        "format": FORMAT,
        "tensors": _sha256(tensors),
        "settings": watched.settings.as_dict(),
        "encoder": encoder_identity(watched.checkpoint),
        "size": list(prepared.video.frames.shape[1:3]),
        "scaled_alone": prepared.scaled_alone,
        "fps": float(prepared.video.fps),
        "total_num_frames": int(prepared.video.total_num_frames),
        "tokens_per_frame": compression.tokens_per_frame,
        "grid": compression.grid and list(compression.grid),
        "source": watched.source and list(watched.source),
        "lost_frames": watched.lost_frames,
    }
    try:
        _check_header(header)
        _features_of(model, header, tensors)
        text = json.dumps(header)
        write_alone(path.resolve(), save(tensors, metadata={HEADER: text, CHECKSUM: _digest(text)}))
    except (OSError, OptionError, TakenError) as error:
        raise OptionError(f"cannot write {str(path)!r}: {sentence(one_line(error))} Nothing was changed.") from error


def read_header(path: Path) -> dict[str, Any]:
    """Return what a file says about its video, without reading the tensors.

    Raises:
        OptionError: on a file that is none of a watched video, is cut short, or is of another format, and if the video
            has changed since it was watched.
    """
    with _opened(path) as file:
        header = _header(file)
    if header["source"] and _has_changed(*header["source"]):
        raise OptionError(f"{brief(header['source'][0])} has changed since {str(path)!r} was made of it. {AGAIN}")
    return header


def read_watched(
    path: Path, header: Mapping[str, Any], checkpoint: Checkpoint, encoder: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the attributes of the `Watched` that a file holds, for the model that watched it.

    Args:
        header: what `read_header` returned for the file.
        encoder: as in `load_watched_file`.

    Raises:
        OptionError: on a file that `write_watched` did not write, and on another model.
    """
    _check_same(path, header["encoder"], encoder or encoder_identity(checkpoint))
    with _opened(path) as file:
        if _header(file) != header:
            raise OptionError("it was replaced while it was read")
        tensors = _tensors(file, checkpoint.model)
        if _sha256(tensors) != header["tensors"]:
            raise OptionError("it is damaged: it is not what was written")
        features = _features_of(checkpoint.model, header, tensors)
        indices = tensors["frames_indices"].numpy()
        frames = np.broadcast_to(np.uint8(0), (len(indices), *header["size"], 3))
        video = Video(frames, indices, header["fps"], header["total_num_frames"])
        (compression,) = features.video_compressions
        return {
            "prepared": prepare_without_pixels(checkpoint.processor, video, compression, header["scaled_alone"]),
            "features": features,
            "settings": CompressionSettings(**header["settings"]),
            "source": header["source"] and tuple(header["source"]),
            "lost_frames": header["lost_frames"],
        }


# ---------------------------------------------------------------------------------------------------------------------
# What may be in a file
# ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file of safetensors. Whatever is wrong with it meanwhile becomes the same kind of error."""
    if path.is_dir():
        raise OptionError(f"{str(path)!r} is a folder. Pass a file that `Watched.save` wrote.")
    if not path.is_file():
        raise OptionError(f"there is no file {str(path)!r}. `Watched.save` writes one.")
    try:
        with path.open("rb") as file:
            if int.from_bytes(file.read(8), "little") > MOST_BYTES:
                raise OptionError("it is of an older version of vidcom2, or no watched video")
        with safe_open(path, framework="pt") as file:
            yield file
    except Exception as error:  # processors, too, raise whatever they like on sizes that no video has
        if is_out_of_memory(error):
            raise
        short = "it is cut short, or no file of safetensors: " if isinstance(error, SafetensorError) else ""
        raise OptionError(f"{str(path)!r} cannot be used: {short}{one_line(error).rstrip('.')}. {AGAIN}") from error


def _header(file: Any) -> dict[str, Any]:
    """Return the header of a file that is open. Its checksum is compared before anything in it is looked at."""
    metadata = file.metadata() or {}
    if _digest(metadata.get(HEADER, "")) != metadata.get(CHECKSUM):
        raise OptionError("it is damaged, of an older version of vidcom2, or no watched video")
    header = json.loads(metadata[HEADER])
    _check_header(header)
    return header


def _check_header(header: Any) -> None:
    """Check the entries of a header. Raises a ValueError on the first that it cannot have."""
    version = header.get("format") if type(header) is dict else None
    if type(version) is int and version != FORMAT:
        raise OptionError(f"its format is {version}, and this version of vidcom2 reads {FORMAT}")
    if type(header) is not dict or header.keys() != ENTRIES.keys():
        raise OptionError(f"its header has other entries than {', '.join(ENTRIES)}")
    for name, may_be in ENTRIES.items():
        if not may_be(header[name]):
            raise OptionError(f"`{name}` in its header is of another kind, or out of bounds")
    CompressionSettings(**header["settings"])
    if header["grid"] is not None and math.prod(header["grid"]) != header["tokens_per_frame"]:
        raise OptionError("its `grid` has another number of tokens than `tokens_per_frame`")
    if header["total_num_frames"] / header["fps"] > MOST_SECONDS:
        raise OptionError(f"its video lasts longer than {MOST_SECONDS:g} seconds")


def _tensors(file: Any, model: Any) -> dict[str, Tensor]:
    """Return the tensors of a file that is open, if they are those of a watched video and not too large."""
    levels, given = _levels_of(model), {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (no dict)
    for name in {*levels, "frames_indices", "frame_budgets", "indices"} - given.keys():
        raise OptionError(f"it lacks `{name}`")
    for name, each in given.items():
        most = MOST_TOKENS * (_width_of(model) if name in levels else 1)
        if name not in {*levels, *TENSORS} or math.prod(each.get_shape()) > most:
            raise OptionError(f"it has the tensor {brief(name)}, which is too large, or has no place in it")
    # Clones, since the others are the file itself: whoever writes to it would change them.
    return {name: file.get_tensor(name).clone() for name in given}


def _levels_of(model: Any) -> list[str]:
    """Return the names of the features that a model reads: those of the kept tokens, and what its first layers add."""
    layers = getattr(getattr(model.model, "visual", None), "deepstack_merger_list", ())
    return ["features", *(f"deepstack.{number}" for number in range(len(layers)))]


def _width_of(model: Any) -> int:
    return model.config.get_text_config(decoder=True).hidden_size


def _features_of(model: Any, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> VidCom2VideoFeatures:
    """Return the features of a video, on the model's device.

    Args:
        header: a header that is checked.
        tensors: those of the names that a file has.

    Raises:
        OptionError: if they do not fit together or the model.
    """
    indices, budgets, times = (tensors[name] for name in ("indices", "frame_budgets", "frames_indices"))
    sizes = {"K": indices.numel(), "T": budgets.numel(), "F": times.numel(), "M": header["tokens_per_frame"]}
    for name, (dtype, axes) in TENSORS.items():
        shape = tuple(sizes[axis] for axis in axes)
        if name in tensors and (tensors[name].dtype, tensors[name].shape) != (dtype, shape):
            raise OptionError(f"`{name}` is not {dtype} of shape {shape}")
    num_tokens = sizes["T"] * sizes["M"]
    if not 1 <= sizes["F"] <= MOST_FRAMES or not 1 <= num_tokens <= MOST_TOKENS or not sizes["K"]:
        raise OptionError(
            f"it has {sizes['F']} frames of {num_tokens} tokens, of which {sizes['K']} are kept, but must have 1 to "
            f"{MOST_FRAMES} frames and 1 to {MOST_TOKENS} tokens"
        )
    if indices.min() < 0 or indices.max() >= num_tokens or not (indices.diff() > 0).all():
        raise OptionError(f"`indices` are not ascending among the {num_tokens} tokens")
    if not torch.equal(torch.bincount(indices // sizes["M"], minlength=sizes["T"]), budgets):
        raise OptionError("`frame_budgets` are not those of `indices`")
    if times.min() < 0 or not (times.diff() > 0).all() or times[-1].item() / header["fps"] > MOST_SECONDS:
        raise OptionError("`frames_indices` are not ascending, or too large")
    parts = {name: tensors[name].to(model.device) for name in TENSORS if name in tensors and name != "frames_indices"}
    if "in_prompt" in parts:
        parts["in_prompt"] = parts["in_prompt"].view(torch.uint8) > 0  # a file may hold bytes besides 0 and 1
        if not parts["in_prompt"].flatten()[parts["indices"]].all():
            raise OptionError("`indices` are of tokens that have no placeholder")
    layout_of = getattr(model.model, "layout_of", None)
    layout = layout_of and layout_of(model.config, sizes["T"], model.config.vision_config.image_size)
    if layout is not None and layout.num_tokens != num_tokens:
        raise OptionError(f"it has {num_tokens} tokens, but this model {layout.num_tokens} of as many frames")
    compression = VideoCompression(
        **parts, tokens_per_frame=sizes["M"], grid=header["grid"] and tuple(header["grid"]), layout=layout
    )
    shape, levels = (len(compression.placeholders), _width_of(model)), [tensors[name] for name in _levels_of(model)]
    for level in levels:
        if level.shape != shape or level.dtype != levels[0].dtype or not level.is_floating_point():
            raise OptionError(f"its features are not of shape {shape}, or not all of one dtype")
        if not level.isfinite().all():
            raise OptionError("its features are not finite")
    features, *layers = (level.to(model.device) for level in levels)
    return VidCom2VideoFeatures(
        pooler_output=(features,),
        deepstack_features=[(layer,) for layer in layers] or None,
        video_compressions=(compression,),
    )


def _check_same(path: Path, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that the model is the one that watched the video. Raises an OptionError that names what differs."""
    for name, value in now.items():
        if then[name] != value:
            what, remedy = f"the encoder differs in its {name}", AGAIN
            if name == "dtype":
                what += f" ({brief(then[name])} then, {value!r} now)"
                remedy = "Load the model with `dtype` as then, or watch the video again."
            raise OptionError(f"{str(path)!r} was made by another model: {what}. {remedy}")


def _has_changed(source: str, then: str) -> bool:
    """Tell whether a video has changed since. The file may name any path, so nothing is opened or fetched, and only
    ordinary files on this machine's own paths are looked at: asking for a share would send a password's hash there."""
    path = Path(source)
    is_local = path.is_absolute() and not source.startswith(("//", "\\\\")) and path.is_file()
    return is_local and video_changed(then, video_stamp(source))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
