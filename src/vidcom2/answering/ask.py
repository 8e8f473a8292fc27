"""Asking a question about a video, in one call."""

import inspect
import warnings
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from transformers import BatchFeature, GenerationConfig, GenerationMixin, PreTrainedModel, ProcessorMixin

from ..configuration.compression_settings import SETTING_NAMES
from ..modeling.methods.video_compression import VideoCompression
from ..options import FAMILY_SETTINGS, OptionError, check_placement, check_settings, find_checkpoint, whole_number
from ..video.reading import Video, read_video

if TYPE_CHECKING:
    from ..checkpoints import Checkpoint
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin
    from .comparison import Run

DEMO_WARNING = (
    "No `model` was named, so the toy that comes along answers: it knows the videos of its benchmark, and nothing "
    "else. Name a checkpoint, such as model='llava-hf/llava-onevision-qwen2-0.5b-ov-hf'."
)
# What `ask` itself gives to `generate`, or takes from it.
OWN_ARGUMENTS = ("inputs", "input_ids", "num_return_sequences", "return_dict_in_generate")


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a question about a video; as a string, its text.

    Attributes:
        answer: the text.
        prompt_tokens: length of the compressed prompt, as it is in the KV cache after prefill.
        video_tokens: of these, tokens of the video.
        full_prompt_tokens, full_video_tokens: the same without compression.
        new_tokens: how many tokens were generated.
        video: what was read of the file.
        compression: what was kept of it.
        measured: with `measure=True`, what `vidcom2 run` reports.
    """

    answer: str
    model: str
    question: str
    prompt_tokens: int
    video_tokens: int
    full_prompt_tokens: int
    full_video_tokens: int
    new_tokens: int
    video: Video = field(repr=False)
    compression: VideoCompression = field(repr=False)
    measured: "Run | None" = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.answer


def ask(
    video: str | PathLike[str] | Video,
    question: str,
    model: str | PreTrainedModel | None = None,
    *,
    processor: ProcessorMixin | None = None,
    num_frames: int = 32,
    max_new_tokens: int = 64,
    measure: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    attn_implementation: str | None = None,
    device_map: str | None = None,
    revision: str | None = None,
    **arguments: Any,
) -> Answer:
    """Read a video, ask a model about it, and compress the video on the way.

    Args:
        video: a path, an http(s) URL, or what `read_video` returned.
        model: a Hub id or a folder, of a stock checkpoint as well; or a VidCom² model, which saves loading it for each
            question. Without it, the toy that comes along.
        processor: of a model that is passed itself.
        num_frames: sampled evenly in time; not of a `Video`, which has its frames.
        max_new_tokens: longest answer.
        measure: answer again with and without compression, and measure both, as `vidcom2 run` does. It answers
            greedily, whatever the arguments of `generate`.
        device, dtype, attn_implementation, device_map, revision: how to load a model that is named.
        **arguments: settings of VidCom² (`retention_ratio=0.15`), the checkpoint's where not given; and arguments of
            `generate`. It decodes greedily unless told `do_sample=True`.

    Raises:
        VideoError: if the video cannot be read.
        CheckpointError: if the model cannot be loaded.
        ValueError: on an argument that is unknown, outside its accepted set, or of no use together with another.
    """
    settings = pop_call_settings(arguments)
    placement = {
        "device": device,
        "dtype": dtype,
        "attn_implementation": attn_implementation,
        "device_map": device_map,
    }
    # All that can be refused is refused before anything takes long.
    if not isinstance(video, str | PathLike | Video):
        raise OptionError(f"`video` is {video!r}, but must be a path, an http(s) URL, or what `read_video` returned.")
    if not isinstance(question, str):
        raise OptionError(f"`question` is {question!r}, but must be text.")
    if not question.strip():
        raise OptionError(f"`question` is {question!r}. Ask something about the video.")
    num_frames = whole_number("num_frames", num_frames)
    max_new_tokens = whole_number("max_new_tokens", max_new_tokens)
    check_generate_arguments("ask", arguments)
    check_model(model, processor, placement, revision)
    if measure and settings and isinstance(model, PreTrainedModel):
        raise OptionError(
            f"`measure=True` measures the model with its own settings, but {', '.join(map(repr, settings))} is given "
            "for this call. Set it in `model.config`."
        )
    if not isinstance(video, Video):
        video = read_video(video, num_frames)
    if model is None:
        warnings.warn(DEMO_WARNING, UserWarning, stacklevel=2)
    checkpoint, settings = checkpoint_of(model, processor, placement, revision, settings)
    answer = _answer(checkpoint, video, question, settings, {"max_new_tokens": max_new_tokens, **arguments})
    if not measure:
        return answer

    from .comparison import run

    return replace(answer, measured=run(checkpoint, video, question, max_new_tokens))


def prepare_inputs(
    processor: ProcessorMixin, prompt: str, video: Video, model: PreTrainedModel | None = None, batch_size: int = 1
) -> BatchFeature:
    """The chat prompt with its placeholders, and the pixels, as the checkpoint's own processor makes them.

    It is told when each frame is shown; whether the model hears of it is the family's affair.

    Args:
        model: whose device all of it goes to, and whose dtype the pixels get. No other number does: Qwen2.5-VL computes
            positions from the times of frames, and in bfloat16 neighbours would share one.
        batch_size: how often the prompt and the video are in the batch.
    """
    content = [{"type": "video"}, {"type": "text", "text": prompt}]
    chat: list[dict[str, Any]] = [{"role": "user", "content": content}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True)
    frames, metadata = video.frames, video.metadata
    if len(frames) == 1 < getattr(cast(Any, processor).video_processor, "temporal_patch_size", 1):
        # Qwen2-VL's processor itself shows a frame twice where it takes two together. Qwen3-VL's refuses it.
        frames = np.concatenate([frames, frames])
        metadata = metadata | {"frames_indices": np.repeat(metadata["frames_indices"], 2)}
    inputs: BatchFeature = cast(Any, processor)(  # by its annotations it takes nothing that is for a part alone
        text=[text] * batch_size,
        videos=[frames] * batch_size,
        video_metadata=[dict(metadata) for _ in range(batch_size)],
        do_sample_frames=False,
        return_tensors="pt",
    )
    if model is not None:
        inputs = inputs.to(model.device)
        inputs["pixel_values_videos"] = inputs["pixel_values_videos"].to(model.dtype)
    return inputs


def video_arguments(model: PreTrainedModel, inputs: BatchFeature) -> dict[str, Any]:
    """What the model's `get_video_features` takes of a prompt's inputs."""
    names = inspect.signature(cast(Any, model).get_video_features).parameters
    return {name: inputs[name] for name in names if name in inputs}


def pop_call_settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """Take the settings out of a call's arguments, and check them."""
    settings = {name: arguments.pop(name) for name in (*SETTING_NAMES, *FAMILY_SETTINGS) if name in arguments}
    check_settings(settings)
    return settings


def checkpoint_of(
    model: str | PreTrainedModel | None,
    processor: ProcessorMixin | None,
    placement: dict[str, Any],
    revision: str | None,
    settings: dict[str, Any],
) -> "tuple[Checkpoint, dict[str, Any]]":
    """The model that `check_model` has accepted, loaded with the settings if it is named; and the settings that are
    left for each call of it."""
    from ..checkpoints import Checkpoint, load_checkpoint

    if model is None or isinstance(model, str):
        return load_checkpoint(model, **placement, revision=revision, **settings), {}
    loaded, its_own = cast("VidCom2GenerationMixin", model), cast(ProcessorMixin, processor)
    return Checkpoint(model.config.name_or_path or type(model).__name__, loaded, its_own), settings


@torch.no_grad()
def _answer(
    checkpoint: "Checkpoint", video: Video, question: str, settings: dict[str, Any], arguments: dict[str, Any]
) -> Answer:
    processor: Any = checkpoint.processor
    model = checkpoint.model
    inputs = prepare_inputs(processor, question, video, model)
    # Encoded here and not by `generate`, so that what was kept can be told.
    features = model.get_video_features(**video_arguments(model, inputs), **settings).without_tower_states()
    inputs.pop("pixel_values_videos")
    positions = {name: settings[name] for name in settings if name == "compression_positions"}  # the rest is done
    if "stop_strings" in arguments:
        arguments = {"tokenizer": processor.tokenizer, **arguments}
    output = model.generate(
        **inputs, mm_encoder_outputs={"video": features}, **positions, **{"do_sample": False, **arguments}
    )
    is_video = model.model.is_video(inputs["input_ids"])
    video_tokens = len(features.pooler_output[0])
    new = output[0, inputs["input_ids"].shape[1] :]
    return Answer(
        answer=processor.decode(new, skip_special_tokens=True),
        model=checkpoint.name,
        question=question,
        prompt_tokens=int((~is_video).sum()) + video_tokens,
        video_tokens=video_tokens,
        full_prompt_tokens=is_video.numel(),
        full_video_tokens=int(is_video.sum()),
        new_tokens=len(new),
        video=video,
        compression=features.video_compressions[0],
    )


def check_generate_arguments(function: str, arguments: dict[str, Any], own: tuple[str, ...] = OWN_ARGUMENTS) -> None:
    """That all are arguments of `generate`, and none of them `function`'s own affair."""
    taken = [name for name in own if name in arguments]
    if taken:
        raise OptionError(
            f"`{taken[0]}` is none of the arguments that `{function}` takes: it returns one answer. For more, call the "
            "model's own `generate`."
        )
    if "custom_generate" in arguments:  # which may take arguments of any name
        return
    known = {
        *inspect.signature(vars(GenerationMixin)["generate"]).parameters,
        *GenerationConfig().to_dict(),
        "tokenizer",
    }
    unknown = sorted(arguments.keys() - known)
    if unknown:
        raise OptionError(
            f"{', '.join(map(repr, unknown))} is neither an argument of `{function}` or `generate`, nor a "
            f"setting of VidCom². The settings are: {', '.join((*SETTING_NAMES, *FAMILY_SETTINGS))}."
        )


def check_model(
    model: str | PreTrainedModel | None,
    processor: ProcessorMixin | None,
    placement: dict[str, Any],
    revision: str | None,
) -> None:
    """What can be known of a call's model before it is loaded."""
    if model is None or isinstance(model, str):
        if processor is not None:
            raise OptionError("`processor` goes with a model that is loaded; a model that is named brings its own.")
        check_placement(**placement)
        if model is not None:
            find_checkpoint(model, revision)
        return
    if not hasattr(model.config, "compression_settings"):
        raise OptionError(
            f"`model` is a {type(model).__name__}, which compresses nothing. Load the checkpoint with a class of "
            "vidcom2, or pass its name."
        )
    if processor is None:
        raise OptionError("`processor` is None, but a loaded model needs its own: AutoProcessor.from_pretrained(...).")
    loading = placement | {"revision": revision}
    given = [name for name, value in loading.items() if value not in (None, "auto")]
    if given:
        raise OptionError(
            f"`{given[0]}` is {loading[given[0]]!r}, but the model is loaded. Pass it where the model is loaded."
        )
