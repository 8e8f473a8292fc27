"""Turning a question and a video into model inputs, for the steps of `generation.py`."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jinja2
import jinja2.meta
import numpy as np
import torch
from torch import Tensor, nn
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from ..configuration.compression_settings import NUM_KEPT
from ..errors import ALIKE, CheckpointError, OptionError, brief, did_you_mean, is_out_of_memory, one_line, sentence
from ..loading.processors import class_for, of_whole_prompts, placeholder_of
from ..modeling.methods.compression import VideoCompression
from ..video.reading import Video
from .chats import Prompt, chat_about
from .frame_device import takes_a_device
from .thoughts import begun_thought

# The outputs of processors, by name: of the text, of videos, and what only the vision tower reads. Nothing else is ever
# handed to `generate` as an input of the model, whoever asks, and about whichever file.
OF_TEXTS = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
OF_VIDEOS = (
    *("video_grid_thw", "second_per_grid_ts", "video_second_per_grid", "num_frames", "num_frames_per_video"),
    *("target_sizes_videos", "num_patches_per_frame", "video_merge_sizes", "video_compression_mask"),
    *("num_chunks_per_video", NUM_KEPT),
)
MOST_FRAMES_A_SECOND = 240  # A higher rate in a video's metadata is that of its clock.
OF_TEMPLATES = ("messages", "raise_exception", "strftime_now")  # what Transformers itself hands to chat templates
OF_THE_TOWER = ("pixel_values_videos", "video_position_ids", "video_token_pooling", "video_grids")


def check_prompt(processor: ProcessorMixin, prompt: str) -> None:
    """Check that a prompt holds no token that stands for a video or an image. Raises an OptionError if it does."""
    for token in (cast(Any, processor).video_token, cast(Any, processor).image_token, placeholder_of(processor, "")):
        if token in prompt:
            raise OptionError(f"the prompt contains {token!r}, which stands for a video or an image. Leave it out.")


def check_template_arguments(processor: ProcessorMixin, arguments: Mapping[str, Any] | None) -> None:
    """Check that a processor's chat template reads the `chat_template_kwargs` of a call, such as `enable_thinking`.

    Raises:
        OptionError: on another name, which Jinja would ignore, and on a value that it would take for another.
    """
    if arguments is None or arguments == {}:
        return
    if not isinstance(arguments, Mapping):
        raise OptionError(
            f"`chat_template_kwargs` is {brief(arguments)}, but must be a dict: {{'enable_thinking': False}}."
        )
    taken = {*inspect.signature(ProcessorMixin.apply_chat_template).parameters, *OF_TEMPLATES}
    taken |= cast(Any, processor).tokenizer.special_tokens_map.keys()
    known = _variables(processor) - (taken - {"tools", "documents"})
    for name, value in arguments.items():
        if name not in known:
            raise OptionError(
                f"`chat_template_kwargs` has {name!r}, which this model's chat template does not read, or which is not "
                f"for callers to set. Leave it out.{did_you_mean(name, known, ALIKE)}"
            )
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            raise OptionError(
                f"`chat_template_kwargs` has the text {value!r} for {name!r}, which Jinja takes for true. Write it "
                "without quotes."
            )
        if name.startswith("enable_") and not isinstance(value, bool):  # templates ask whether it `is false`
            raise OptionError(
                f"`chat_template_kwargs` has {brief(value)} for {name!r}, which a template may take for true. Write "
                "True or False; in JSON, true or false."
            )


def _variables(processor: ProcessorMixin) -> set[str]:
    """Return the names that a processor's chat template reads from its caller."""
    template = cast(Any, processor).chat_template
    template = template.get("default") if isinstance(template, dict) else template
    # SmolVLM's processor has another template for chats with a video.
    template = getattr(inspect.getmodule(type(processor)), "DEFAULT_CHAT_TEMPLATE", template)
    text = re.sub(r"\{%-?\s*(?:end)?generation\s*-?%\}", "", str(template))  # a tag that only Transformers knows
    reader = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        return jinja2.meta.find_undeclared_variables(reader.parse(text))
    except jinja2.TemplateError as error:
        raise OptionError(f"the model's chat template cannot be read: {sentence(one_line(error))}") from error


def prompt_text(processor: ProcessorMixin, prompt: Prompt, template_arguments: Mapping[str, Any] | None = None) -> str:
    """Return a text or a chat in the processor's chat template, with the beginning of the answer.

    Args:
        template_arguments: the `chat_template_kwargs` of the call.

    Raises:
        OptionError: on a chat that `chat_about` or the template refuses, on arguments that the template refuses, and if
            it writes more placeholders than that of the video.
    """
    chat = chat_about(prompt)
    check_template_arguments(processor, template_arguments)
    continues = chat[-1]["role"] == "assistant"
    try:
        text = processor.apply_chat_template(
            chat, add_generation_prompt=not continues, continue_final_message=continues, **(template_arguments or {})
        )
    except (ValueError, TypeError, jinja2.TemplateError) as error:
        given = f" with `chat_template_kwargs` {brief(dict(template_arguments))}" if template_arguments else ""
        reason = sentence(one_line(error))
        raise OptionError(f"the model's chat template does not take the question{given}: {reason}") from error
    check_prompt(processor, text.replace(cast(Any, processor).video_token, "", 1))  # whatever part of a chat wrote it
    return text


def thinks_aloud(processor: ProcessorMixin, template_arguments: Mapping[str, Any]) -> bool:
    """Tell whether a chat template makes the model think before it answers: the prompt begins a thought, or is not the
    one with `enable_thinking=False`."""
    text, arguments = prompt_text(processor, "?", template_arguments), {**template_arguments, "enable_thinking": False}
    reads = "enable_thinking" in _variables(processor)
    return bool(begun_thought(text)) or (reads and text != prompt_text(processor, "?", arguments))


def check_template(processor: ProcessorMixin) -> None:
    """Check that the chat template of a checkpoint writes prompts with a video. Raises a CheckpointError if not."""
    remedy = "Set `processor.chat_template` to that of another checkpoint of the family."
    try:
        text = processor.apply_chat_template(chat_about("?"), add_generation_prompt=True)
    except Exception as error:  # a template is a program of its own
        reason = sentence(one_line(error))
        raise CheckpointError(f"the model's chat template cannot be used: {reason} {remedy}") from error
    if cast(Any, processor).video_token not in text:
        raise CheckpointError(f"the model's chat template leaves videos out. {remedy}")


def texts_of(model: PreTrainedModel, input_ids: Any) -> Any:
    """Return which tokens of a prompt are no placeholders of a video or an image: bool, of the same shape."""
    config: Any = model.config
    return (input_ids != config.image_token_id) & (input_ids != config.video_token_id)


def check_vocabulary(model: PreTrainedModel, input_ids: Any) -> None:
    """Check that a model knows the tokens of a prompt. On a GPU, an unknown one would end the process.

    Raises:
        CheckpointError: if the tokens are those of another checkpoint's tokenizer.
    """
    config: Any = model.config
    is_text = texts_of(model, input_ids)
    known = cast(Any, model.get_input_embeddings()).weight.shape[0]
    problem = None
    if is_text.all():
        problem = f"no placeholder of a video ({config.video_token_id} or {config.image_token_id} in config.json)"
    elif int(input_ids[is_text].max()) >= known:
        problem = f"the token {int(input_ids[is_text].max())}, but the model has embeddings of {known}"
    if problem is not None:
        raise CheckpointError(
            f"the tokenizer is not that of the model: a prompt has {problem}. Take the one that belongs to these "
            "weights; if it was extended, the model must be too, by `resize_token_embeddings`."
        )


def prepare_inputs(
    processor: ProcessorMixin,
    prompt: Prompt,
    video: Video,
    model: PreTrainedModel | None = None,
    batch_size: int = 1,
    template_arguments: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
) -> BatchFeature:
    """Return the chat prompt with all its placeholders, and the pixels, as the checkpoint's stock processor makes them.

    `prepared_video.py` writes prompts for the tokens that stay.

    The processor is told when each frame is shown. Whether it tells the model depends on the family.

    Args:
        prompt: a text, or a chat of which the video is a part.
        model: all inputs go to its device, and the pixels get its dtype. No other input does: Qwen2.5-VL computes
            positions from the times of frames, and in bfloat16 neighbouring frames would share a position.
        batch_size: how often the batch repeats the prompt and the video.
        template_arguments: as in `prompt_text`.
        device: where the frames are prepared, as `device_of_frames` returns it; None means the CPU.
    """
    check_template(processor)
    processor = of_whole_prompts(processor)
    text = prompt_text(processor, prompt, template_arguments)
    frames, metadata = at_least_a_pair(processor, video)
    num_prompts = 1 if class_for(processor).one_prompt_a_call else batch_size
    inputs = _called(
        processor,
        device if takes_a_device(processor) else None,
        text=[text] * num_prompts,
        videos=[[frames]] * num_prompts,
        video_metadata=[dict(metadata) for _ in range(num_prompts)],
        do_sample_frames=False,
        return_tensors="pt",
    )
    if num_prompts < batch_size:
        inputs = BatchFeature({name: torch.cat([each] * batch_size) for name, each in inputs.items()})
    if "pixel_values_videos" not in inputs:  # Some processors pass frames as images; here there are no others.
        inputs["pixel_values_videos"] = inputs.pop("pixel_values").flatten(0, -4)
        inputs.pop("pixel_attention_mask", None)  # All frames are of one size.
        inputs["num_frames"] = torch.full((batch_size,), len(frames))
    if "target_sizes_videos" in inputs:  # MiniCPM-V's does not say which frames belong to which video.
        inputs["num_frames_per_video"] = torch.full((batch_size,), len(frames))
        inputs["num_patches_per_frame"] = torch.ones(batch_size * len(frames), dtype=torch.int64)  # without slices
    if has_grid_rows(processor):  # Kimi-K2.5's does not say which of them belong to which video.
        inputs["num_chunks_per_video"] = torch.full((batch_size,), len(inputs["video_grid_thw"]) // batch_size)
    spacing = spacing_of_a_part(video)
    patch = frames_together(processor)
    if spacing is not None and "second_per_grid_ts" in inputs:
        # Qwen2.5-VL's processor divides the length of the whole video by the number of frames.
        inputs["second_per_grid_ts"] = torch.full((batch_size,), patch * spacing)
    if "video_second_per_grid" in inputs:
        # The processors of Qwen's Omni models read no metadata, and take one or two frames a second for granted.
        spacing = video.duration / len(video.frames) if spacing is None else spacing
        inputs["video_second_per_grid"] = torch.full((batch_size,), patch * spacing)
    for name in inputs.keys() - {*OF_TEXTS, *OF_VIDEOS, *OF_THE_TOWER}:
        raise CheckpointError(
            f"the {type(processor).__name__} returns `{name}`, which vidcom2 does not know. Take Transformers' own."
        )
    if model is not None:
        check_vocabulary(model, inputs["input_ids"])
        inputs = inputs.to(model.device)
        inputs["pixel_values_videos"] = inputs["pixel_values_videos"].to(model.dtype)
    return inputs


def _called(processor: ProcessorMixin, device: torch.device | None, **arguments: Any) -> BatchFeature:
    """Call a processor, which prepares frames on a device. Where the device lacks an operation for that, or memory, the
    CPU does it."""
    of_videos = {} if device is None else {"videos_kwargs": {"device": device}}
    try:
        return cast(Any, processor)(**arguments, **of_videos)  # its annotations lack the arguments for its parts
    except Exception as error:
        if device is None or not (isinstance(error, NotImplementedError) or is_out_of_memory(error)):
            raise
    return _called(processor, None, **arguments)  # outside the handler, which holds the failed call's tensors


def frames_together(processor: ProcessorMixin) -> int:
    """Return how many frames a processor joins, whose tokens are then the same."""
    return getattr(cast(Any, processor).video_processor, "temporal_patch_size", 1)


def has_grid_rows(processor: ProcessorMixin) -> bool:
    """Return whether a video may have several rows of `video_grid_thw`, each of frames that are joined."""
    return "num_chunks_per_video" in cast(Any, processor).video_processor.model_input_names


def at_least_a_pair(processor: ProcessorMixin, video: Video) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the frames and the metadata of a video, with a single frame twice for a processor that joins pairs.

    Qwen2-VL's processor repeats a single frame itself, but Qwen3-VL's refuses it. Kimi-K2.5's takes a row of fewer.
    Nemotron's counts a step of `frames_indices` in whole milliseconds, which would be 0 on the clock of a file whose
    frames come at uneven times. So such a processor gets the times of this file in milliseconds.
    """
    frames, metadata = video.frames, video.metadata
    if class_for(processor).whole_milliseconds and metadata["fps"] > MOST_FRAMES_A_SECOND:
        metadata |= {"fps": 1000.0, "frames_indices": np.round(1000 * video.seconds).astype(int).tolist()}
    if len(frames) == 1 < frames_together(processor) and not has_grid_rows(processor):
        frames = np.concatenate([frames, frames])
        metadata = metadata | {"frames_indices": np.repeat(metadata["frames_indices"], 2)}
    return frames, metadata


def spacing_of_a_part(video: Video) -> float | None:
    """Return the mean seconds between the frames of a video, if they show only a part of it; None if they span it."""
    seconds = video.seconds
    if len(seconds) < 2:
        return None
    spacing = float(seconds[-1] - seconds[0]) / (len(seconds) - 1)
    unseen = max(float(seconds[0]), video.duration - float(seconds[-1]))
    return spacing if unseen > 1.5 * spacing else None


def video_arguments(model: PreTrainedModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a prompt that the model's `get_video_features` takes."""
    names = inspect.signature(cast(Any, model).get_video_features).parameters
    return {name: inputs[name] for name in names if name in inputs}


def padded(prompts: Sequence[dict[str, Tensor]], tokenizer: Any) -> dict[str, Tensor]:
    """Join prompts of one question each into a batch, padded on the left."""
    length = max(prompt["input_ids"].shape[1] for prompt in prompts)
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    batch = {}
    for name in prompts[0]:
        values = [prompt[name] for prompt in prompts]
        if values[0].shape == prompts[0]["input_ids"].shape:  # one entry per token, 0 at padding
            fill = pad if name == "input_ids" else 0
            values = [nn.functional.pad(value, (length - value.shape[1], 0), value=fill) for value in values]
        batch[name] = torch.cat(values)
    return batch


def scored_frames(num_frames: int, compression: VideoCompression) -> slice:
    """Return a slice of the video's frames, one for each of the T scored frames. Qwen2-VL scores two frames as one."""
    return slice(None, None, -(-num_frames // len(compression.frame_budgets)))
