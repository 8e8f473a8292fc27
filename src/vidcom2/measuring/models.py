"""Models of released sizes with random weights, since how long a model takes does not depend on what it has learned."""

from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, ProcessorMixin
from transformers.initialization import no_init_weights

from ..errors import OptionError
from ..families.table import FAMILIES
from ..loading.checkpoints import Checkpoint
from ..loading.finding_checkpoints import check_settings_of
from .sizes import ModelSize

STD = 0.02  # standard deviation of the random weights, as in Transformers' own initialisation
# The only fields that are taken from the text config of the tiny model. The others are sizes or follow from sizes, as
# does a list with an entry for each of its two layers.
KEPT_OF_TEXT = ("model_type", "bos_token_id", "eos_token_id", "pad_token_id")


def random_checkpoint(
    name: str,
    size: ModelSize,
    device: torch.device,
    dtype: torch.dtype,
    attn_implementation: str | None = None,
    seed: int = 0,
    **settings: Any,
) -> Checkpoint:
    """Build a VidCom² model of a released size, with random weights of `dtype` on the device, and a processor.

    The processor has the real frame size and number of tokens per frame. Its tokenizer knows only bytes, so that the
    question has a token for each letter.

    Args:
        name: the name of the checkpoint that is returned.
        **settings: settings of VidCom² and of the family.

    Raises:
        OptionError: if the device has less free memory than the weights take, or a setting belongs to another family.
    """
    config, processor = config_and_processor(size, settings)
    model_class = cast(Any, FAMILIES[size.model_type].model_class)
    placed = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    _check_fits(name, num_parameters(config, size) * dtype.itemsize, device, dtype)
    with torch.device(device), no_init_weights():
        model = model_class._from_config(config, dtype=dtype, **placed)
    model.tie_weights()
    fill(model, seed)
    model.generation_config.pad_token_id = config.get_text_config().pad_token_id
    return Checkpoint(name, model.eval(), processor)


def config_and_processor(size: ModelSize, settings: dict[str, Any]) -> tuple[PreTrainedConfig, ProcessorMixin]:
    """Return the config of a size, and a processor. The processor and the config's token ids are those of the family's
    tiny checkpoint.

    Raises:
        OptionError: if this Transformers lacks the family, or a setting is another family's.
    """
    family = FAMILIES[size.model_type]
    if not family.runs_here:
        raise OptionError(
            f"{size.checkpoint or 'this size'} is a model of type {family.model_type!r}, which needs Transformers "
            f"{family.since} or newer, but {transformers.__version__} is installed. Upgrade Transformers, or take "
            "another size."
        )
    check_settings_of(f"the size of {size.checkpoint}", family, settings)
    tiny, processor = family.build_tiny(**size.tiny)
    fields: dict[str, Any] = tiny.config.to_dict()
    for unwanted in ("model_type", "architectures", "transformers_version", "dtype"):
        fields.pop(unwanted, None)
    text, vision = fields["text_config"], fields["vision_config"]
    fields["text_config"] = {each: text[each] for each in KEPT_OF_TEXT if each in text} | dict(size.text)
    fields["vision_config"] = {"model_type": vision["model_type"]} | dict(size.vision)
    if size.audio:
        fields["audio_config"] = {"model_type": fields["audio_config"]["model_type"]} | dict(size.audio)
    fields["tie_word_embeddings"] = size.text["tie_word_embeddings"]
    return family.config_class(**fields | settings), processor


def num_parameters(config: PreTrainedConfig, size: ModelSize) -> int:
    """Count the parameters of a model that is built on the meta device, where it takes no memory. Tied weights count
    once."""
    with torch.device("meta"), no_init_weights():
        model: PreTrainedModel = FAMILIES[size.model_type].model_class(config)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def fill(model: nn.Module, seed: int) -> None:
    """Fill with random matrices, biases of 0, and vectors of 1 otherwise, such as a norm's scale, so that activations
    stay in range through all layers."""
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, STD, generator=generator)
        else:
            parameter.fill_(0 if name.endswith("bias") else 1)


def _check_fits(name: str, needed: int, device: torch.device, dtype: torch.dtype) -> None:
    free, of_weights = free_bytes(device), str(dtype).removeprefix("torch.")
    if free is not None and needed > free:
        raise OptionError(
            f"`--model-size` is {name!r}, whose weights take {needed / 1e9:.1f} GB in {of_weights}, but {device} "
            f"has {free / 1e9:.1f} GB free. Take a smaller model, a smaller dtype, or another device."
        )


def free_bytes(device: torch.device) -> int | None:
    """Return a device's free memory; None if it is not known. On the CPU it includes what the system can give back."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), None)
