"""This project's processors in the place of stock ones: they write a placeholder for each video token that stays.

They have the attributes of the stock ones and the settings on which the number depends, so changing the class of the
object is enough.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import ProcessorMixin

from ..configuration.compression_settings import COMPRESSION_METHODS, COUNTED_BY, checked_setting
from ..errors import OptionError
from ..families.table import FAMILIES, PROCESSORS, Family, imported
from ..modeling.prompt.processing_short_prompts import OWN, VidCom2ProcessorMixin

# VideoLLaMA3's video processor would leave out tokens that repeat the frame before, and MiniCPM-V's would cut slices.
OF_WHOLE_FRAMES = {"use_token_compression": False, "max_slice_nums": 1}


def can_be_counted(config: Any) -> bool:
    """Whether a video's sizes alone decide how many of its tokens stay under a config's settings, so that a processor
    can write the prompt."""
    method = COMPRESSION_METHODS[checked_setting("compression_method", config.compression_method)]
    is_fixed = method.count is not None and method.keeps_by_sizes(config.compression_rounding)
    return is_fixed and getattr(config, "compression_newlines", "all") != "occupied"


def shorten(processor: Any, config: Any) -> None:
    """Let a processor write prompts for the tokens that stay under a config's settings, in place.

    Where their number depends on what a video shows, it becomes the stock processor, or writes as many placeholders as
    that, and the model shortens the prompt.

    Raises:
        OptionError: on a processor of a class that extends a stock one, whose methods would be lost.
    """
    family = FAMILIES[config.model_type]
    if not _becomes_ours(config):
        restore(processor)
        return
    is_older = not hasattr(processor, "writes_all")  # one of ours that an older repo holds would ignore it
    if is_older and type(processor).__name__ in {path.rpartition(".")[2] for path in PROCESSORS.values()}:
        restore(processor)
    if not _is_ours(processor):
        new_class = family.processor_like(processor)
        if new_class is None:
            remedy = ", or leave `processor` out: the model then shortens its prompts"
            raise OptionError(
                f"`processor` is a {type(processor).__name__}, but must be a "
                f"{' or a '.join(family.stock_processors)} itself, whose class changes. Derive your class from this "
                f"project's{remedy if family.runs_stock_prompts else ''}."
            )
        processor.__class__ = new_class
    for name, value in _settings_of_processor(config).items():
        setattr(processor, name, value)


def _becomes_ours(config: Any) -> bool:
    return can_be_counted(config) or not FAMILIES[config.model_type].runs_stock_prompts


def _settings_of_processor(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in COUNTED_BY} | {"writes_all": not can_be_counted(config)}


def restore(processor: ProcessorMixin) -> None:
    """Turn a processor back into the stock one, in place."""
    if _is_ours(processor):
        for name in (*OWN, "auto_map"):  # the last names the class that it was loaded with
            vars(processor).pop(name, None)
        processor.__class__ = type(processor).stock_class()  # pyright: ignore[reportAttributeAccessIssue]


def processor_fields(config: Any) -> dict[str, Any]:
    """Return what `processor_config.json` of a repo says of this project's processor: its class and its settings.

    Where the model shortens the prompts, it names no class, or the stock one if Transformers does not have it.
    """
    family = FAMILIES[config.model_type]
    if _becomes_ours(config):
        return _settings_of_processor(config) | {"auto_map": {"AutoProcessor": family.processor}}
    if family.native:
        return {}
    module, _, _ = family.processor.partition(".")
    return {"auto_map": {"AutoProcessor": f"{module}.{family.stock_processors[0]}"}}


def placeholder_of(processor: Any, text: str) -> str:
    """Return what a processor has written in a text for each token of a video. One that extends no known class is taken
    to write its `video_token`, or its `image_token` if the text has none."""
    ours = class_for(processor)
    if ours is VidCom2ProcessorMixin:
        return processor.video_token if processor.video_token in text else processor.image_token
    return getattr(processor, ours.placeholder, None) or getattr(ours, ours.placeholder)


def class_for(processor: Any) -> type[VidCom2ProcessorMixin]:
    """Return this project's class for a processor, which may be the stock one. It says what is special about both. For
    a processor that extends no known class, it is the mixin, which says that nothing is."""
    names = (PROCESSORS[each.__name__] for each in type(processor).__mro__ if each.__name__ in PROCESSORS)
    name = next(names, None)
    return VidCom2ProcessorMixin if name is None else imported(f"modeling.families.{name}")


def of_whole_prompts(processor: Any) -> Any:
    """Return the stock processor that offers methods all tokens of a video's whole frames, and writes a placeholder for
    each, whatever this one does. Its video processor may be changed."""
    view = of_whole_frames(processor)
    restore(view)
    return view


def of_whole_frames(processor: Any) -> Any:
    """Return a processor that gives all tokens of a video's whole frames to choose from, and else does the same. Its
    video processor may be changed."""
    view = copy.copy(processor)
    view.video_processor = of_videos = copy.copy(view.video_processor)
    for name in OF_WHOLE_FRAMES.keys() & set(dir(of_videos)):
        setattr(of_videos, name, OF_WHOLE_FRAMES[name])
    return view


def frames_without_values(processor: Any, *sizes: int) -> torch.Tensor:
    """Return frames from which a processor can tell what it makes of a video of these sizes: their number, height and
    width."""
    length, height, width = sizes
    if class_for(processor).prepares_on_cpu:
        return torch.zeros((), dtype=torch.uint8).expand(length, 3, height, width)
    return torch.empty((length, 3, height, width), dtype=torch.uint8, device="meta")


def show_sizes_alone(processor: Any, *size: int, check: Callable[[Any], None] = lambda made: None) -> None:
    """Let a processor write the text of videos from the sizes of their frames alone, in place. No frame is prepared,
    because its video processor is given frames without values in their place.

    Args:
        processor: a view of one, as `of_whole_frames` returns it.
        size: the height and width of the frames.
        check: refuses what the video processor makes, before a text is written.
    """
    of_videos = processor.video_processor
    preprocess = of_videos.preprocess

    def sizes(videos: Any, **arguments: Any) -> Any:
        made = preprocess([frames_without_values(processor, len(videos[0][0]), *size)], **arguments)
        check(made)
        return _with_sizes_alone(made)

    of_videos.preprocess = sizes


def _with_sizes_alone(made: dict[str, Any]) -> dict[str, Any]:
    """Return what a video processor made of frames without values, so that a processor can write their text. It may
    read a size with NumPy, and counts the tokens that a mask leaves: all of them."""
    if isinstance(pixels := made.get("pixel_values_videos"), torch.Tensor):
        made["pixel_values_videos"] = torch.zeros(()).expand(pixels.shape)
    if "video_compression_mask" in made:
        made["video_compression_mask"] = torch.ones(made["video_compression_mask"].shape, dtype=torch.bool)
    return made


def check_processor(what: str, processor: object, family: Family) -> None:
    """Check that a processor is one, and not that of another family. It may be of a class that someone else wrote.

    Args:
        what: begins the error.

    Raises:
        OptionError: if it is not.
    """
    foreign = foreign_processor([each.__name__ for each in type(processor).__mro__], family)
    if foreign is None and isinstance(processor, ProcessorMixin):
        return
    why = "which is only a part of a processor" if foreign is None else "which belongs to another family"
    raise OptionError(
        f"{what} is a {type(processor).__name__}, {why}: {family.name} needs a {family.processor_names[0]}. Take that "
        "of the checkpoint that the model was made from."
    )


def foreign_processor(names: Sequence[str], family: Family) -> str | None:
    """Return the processor of another family that a class is, by the names of the class and of those that it extends;
    None if it is of this family, or of none."""
    from transformers.models.auto import processing_auto

    known: Any = processing_auto.PROCESSOR_MAPPING_NAMES  # pyright: ignore[reportPrivateImportUsage]  (no other name)
    every = {*known.values(), *(each for other in FAMILIES.values() for each in other.processor_names)}
    found = next((name for name in names if name in every), None)
    return None if found in family.processor_names else found


def _is_ours(processor: Any) -> bool:
    # Compared by name, because a processor from a Hub repo has its own copy of the class.
    return any(base.__name__ == "VidCom2ProcessorMixin" for base in type(processor).__mro__)
