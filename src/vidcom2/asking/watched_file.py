"""The file of a watched video, in safetensors: the features of its kept tokens, and what the processor of the loading
model needs to write the prompt, which are numbers.

Files are passed on, so what is in one may be anybody's. It is data: nothing in it names an argument, a class or a text
for the prompt. Contents that `write_watched` would not write are refused even where the checksums are right, since
anyone can compute these.

A model may read the file if it would have made the same one: `model_identity.py`.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..configuration.compression_settings import CompressionSettings
from ..errors import OptionError, brief, is_out_of_memory, one_line, sentence
from ..loading.checkpoints import Checkpoint
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..modeling.methods.compression import VideoCompression
from ..records.fingerprints import video_changed, video_stamp
from ..records.whole_files import write_whole
from ..video.reading import Video
from .model_identity import encoder_identity
from .prepared_video import PreparedVideo, prepare_without_pixels
from .prompting import frames_together

FORMAT = 4
HEADER, CHECKSUM = "vidcom2", "sha256"  # of the metadata: a JSON text, and the digest of this text
AGAIN = "Watch the video again: `vidcom2.watch(...)` and `save`."
# The most that a file may hold. More would take a processor minutes, or fill the memory.
MOST_BYTES, MOST_FRAMES, MOST_TOKENS, MOST_SIDE, MOST_SECONDS = 2**20, 2**14, 2**20, 2**15, 1e10


# The entries of the header: of which type each is, and for numbers the least and the most. `tensors` is the digest of
# the tensors; four texts identify the encoder; `rows` and `columns` are 0 where a frame's tokens form no grid.
ENTRIES: dict[str, tuple[Any, ...]] = {
    "format": (int, FORMAT, FORMAT),
    "settings": (dict,),
    **dict.fromkeys(("tensors", "dtype", "weights", "config", "processor", "stamp"), (str,)),
    "source": (list,),
    **dict.fromkeys(("height", "width"), (int, 1, MOST_SIDE)),
    "scaled_alone": (bool,),
    "fps": (float, 1e-9, 1e12),
    "total_num_frames": (int, 1, 2**53),
    "tokens_per_frame": (int, 1, MOST_TOKENS),
    **dict.fromkeys(("rows", "columns"), (int, 0, MOST_TOKENS)),
    "lost_frames": (int, 0, 2**53),
}


def write_watched(
    path: Path,
    checkpoint: Checkpoint,
    prepared: PreparedVideo,
    features: VidCom2VideoFeatures,
    settings: CompressionSettings,
    source: tuple[str | list[str], str] | None,
    lost_frames: int,
) -> None:
    """Write a watched video so that the file is whole or, after an interruption, what it was before.

    Args:
        checkpoint, prepared, features, settings, source, lost_frames: as in `Watched`.

    Raises:
        OptionError: on a file that cannot be written, and on a video that could not be read again.
    """
    names, stamp = source or ([], "")
    (compression,) = features.video_compressions
    found = {
        "features": features.pooler_output[0],
        **{f"deepstack.{number}": layer[0] for number, layer in enumerate(features.deepstack_features or ())},
        "frames_indices": torch.as_tensor(prepared.video.frames_indices),
        "indices": compression.indices.long(),
    }
    # A user's method may return tensors that share memory, which safetensors refuses.
    tensors = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in found.items()}
    header = {
        "format": FORMAT,
        "tensors": _sha256(tensors),
        "settings": settings.as_dict(),
        **encoder_identity(checkpoint),
        "source": [names] if isinstance(names, str) else names,
        "stamp": stamp,
        **dict(zip(("height", "width"), prepared.video.frames.shape[1:3], strict=True)),
        "scaled_alone": prepared.scaled_alone,
        "fps": float(prepared.video.fps),
        "total_num_frames": int(prepared.video.total_num_frames),
        "tokens_per_frame": compression.tokens_per_frame,
        **dict(zip(("rows", "columns"), compression.grid or (0, 0), strict=True)),
        "lost_frames": lost_frames,
    }
    try:
        _check_header(header)
        _read_features(checkpoint, header, tensors)
        text = json.dumps(header)
        write_whole(path, save(tensors, metadata={HEADER: text, CHECKSUM: _digest(text)}))
    except (OSError, OptionError) as error:
        raise OptionError(f"cannot write {str(path)!r}: {sentence(one_line(error))} Nothing was changed.") from error


def read_header(path: Path) -> dict[str, Any]:
    """Return what a file says about its video, without reading the tensors.

    Raises:
        OptionError: on a file that is none of a watched video, is cut short, or is of another format, and if the video
            has changed since it was watched.
    """
    with _opened(path) as file:
        header = _header(file)
    if _has_changed(header["source"], header["stamp"]):
        first, *others = header["source"]
        what = f"{brief(first)}, or another of {len(others) + 1} pictures," if others else brief(first)
        raise OptionError(f"{what} has changed since {str(path)!r} was made of it. {AGAIN}")
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
    _check_same(path, header, encoder or encoder_identity(checkpoint))
    with _opened(path) as file:
        if _header(file) != header:
            raise OptionError("it was replaced while it was read")
        tensors = _tensors(file, checkpoint.model)
        if _sha256(tensors) != header["tensors"]:
            raise OptionError("it is damaged: it is not what was written")
        features = _read_features(checkpoint, header, tensors)
        indices = tensors["frames_indices"].numpy()
        frames = np.broadcast_to(np.uint8(0), (len(indices), header["height"], header["width"], 3))
        video = Video(frames, indices, header["fps"], header["total_num_frames"])
        (compression,) = features.video_compressions
        source = header["source"]
        return {
            "prepared": prepare_without_pixels(checkpoint.processor, video, compression, header["scaled_alone"]),
            "features": features,
            "settings": CompressionSettings(**header["settings"]),
            "source": (source[0] if len(source) == 1 else source, header["stamp"]) if source else None,
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
    if type(header) is not dict or header.keys() != ENTRIES.keys() or header["format"] != FORMAT:
        raise OptionError("it is of another version of vidcom2, or `save` did not write its header")
    for name, (kind, *bounds) in ENTRIES.items():
        if type(header[name]) is not kind or (bounds and not bounds[0] <= header[name] <= bounds[1]):
            raise OptionError(f"`{name}` in its header is of another kind, or out of bounds")
    if not all(type(each) is str for each in header["source"]):
        raise OptionError("`source` in its header holds more than names")
    if CompressionSettings(**header["settings"]).as_dict() != header["settings"]:
        raise OptionError("it lacks some settings")
    if header["rows"] * header["columns"] != header["tokens_per_frame"] and (header["rows"] or header["columns"]):
        raise OptionError("`rows` and `columns` in its header are not those of `tokens_per_frame`")


def _tensors(file: Any, model: Any) -> dict[str, Tensor]:
    """Return the tensors of a file that is open, if they are those of a watched video and not too large."""
    levels, width = _feature_levels(model)
    given = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (it is no dict)
    for name in {*levels, "frames_indices", "indices"} - given.keys():
        raise OptionError(f"it lacks `{name}`")
    for name, each in given.items():
        most = MOST_TOKENS * (width if name in levels else 1)
        if name not in {*levels, "frames_indices", "indices"} or math.prod(each.get_shape()) > most:
            raise OptionError(f"it has the tensor {brief(name)}, which is too large, or has no place in it")
    # Clones, since the others are the file itself: whoever writes to it would change them.
    return {name: file.get_tensor(name).clone() for name in given}


def _feature_levels(model: Any) -> tuple[list[str], int]:
    """Return the names of the features that a model reads, which are those of the kept tokens and what its first layers
    add to these, and the number of their channels."""
    layers = getattr(getattr(model.model, "visual", None), "deepstack_merger_list", ())
    names = ["features", *(f"deepstack.{number}" for number in range(len(layers)))]
    return names, model.config.get_text_config(decoder=True).hidden_size


def _read_features(
    checkpoint: Checkpoint, header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> VidCom2VideoFeatures:
    """Return the features of a video, on the model's device.

    Args:
        header: a header that is checked.
        tensors: those of the names that a file has.

    Raises:
        OptionError: if they do not fit together, or do not fit the model.
    """
    model: Any = checkpoint.model
    for name in ("indices", "frames_indices"):
        each = tensors[name]
        is_list = each.dtype == torch.int64 and each.ndim == 1 and each.numel() > 0
        if not is_list or each.min() < 0 or not (each.diff() > 0).all():
            raise OptionError(f"its `{name}` are not ascending whole numbers")
    indices, times = tensors["indices"], tensors["frames_indices"]
    num_frames, tokens_per_frame = -(-len(times) // frames_together(checkpoint.processor)), header["tokens_per_frame"]
    num_tokens = num_frames * tokens_per_frame
    seconds = max(times[-1].item(), header["total_num_frames"]) / header["fps"]
    if len(times) > MOST_FRAMES or num_tokens > MOST_TOKENS or seconds > MOST_SECONDS:
        raise OptionError(
            f"it has {len(times):,} frames with {num_tokens:,} tokens in {seconds:g} seconds, but may have at most "
            f"{MOST_FRAMES:,} with {MOST_TOKENS:,} in {MOST_SECONDS:g}"
        )
    if indices[-1] >= num_tokens:
        raise OptionError(f"it keeps the token {indices[-1]} of {num_tokens}")
    layout_of = getattr(model.model, "layout_of", None)
    layout = layout_of and layout_of(model.config, num_frames, model.config.vision_config.image_size)
    if layout is not None and layout.num_tokens != num_tokens:
        raise OptionError(f"it has {num_tokens} tokens, but as many frames have {layout.num_tokens} in this model")
    compression = VideoCompression(
        indices.to(model.device),
        torch.bincount(indices // tokens_per_frame, minlength=num_frames).to(model.device),
        tokens_per_frame=tokens_per_frame,
        grid=(header["rows"], header["columns"]) if header["rows"] else None,
        layout=layout,
    )
    names, width = _feature_levels(model)
    shape, levels = (len(compression.placeholders), width), [tensors[name] for name in names]
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


def _check_same(path: Path, then: Mapping[str, Any], now: Mapping[str, str]) -> None:
    """Check that the model is the one that watched the video. Raises an OptionError that names what differs."""
    for name, value in now.items():
        if then[name] != value:
            what, remedy = f"the encoder differs in its {name}", AGAIN
            if name == "dtype":
                what += f" ({brief(then[name])} then, {value!r} now)"
                remedy = "Load the model with `dtype` as then, or watch the video again."
            raise OptionError(f"{str(path)!r} was made by another model: {what}. {remedy}")


def _has_changed(source: list[str], then: str) -> bool:
    """Tell whether a video, or one of its pictures, has changed since. The file may name any path, so nothing is opened
    or fetched, and only ordinary files on this machine's own paths are looked at: asking for a share would send a
    password's hash there."""
    is_local = all(
        Path(name).is_absolute() and not name.startswith(("//", "\\\\")) and Path(name).is_file() for name in source
    )
    return is_local and video_changed(then, video_stamp(source[0] if len(source) == 1 else source))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
