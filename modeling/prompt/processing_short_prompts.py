"""The processor says how many: it writes a placeholder for each video token that stays, and returns their number.

Transformers asks a processor for the text that replaces a video (`replace_video_token`). The stock text has a
placeholder for each token of the video, and here it is thinned out. How many stay follows from sizes alone, so the
model can be told to keep as many, and the prompt is short wherever Transformers or an engine runs it.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from transformers import ProcessorMixin

from ...configuration.compression_settings import COUNTED_BY, NUM_KEPT, CompressionSettings, checked_setting, name_meant
from ...configuration.saved_with_code import SavedWithCode
from ..hosting.in_transformers import pop_settings
from ..methods.compression import num_kept_tokens
from ..registered_methods import METHODS as METHODS  # so that their count rules are here
from .prompt_layout import spread

OWN = (*COUNTED_BY, "writes_all")  # what a processor of ours says in `processor_config.json` beside the stock one

if TYPE_CHECKING:
    ParentProcessor = ProcessorMixin
else:
    ParentProcessor = object


@dataclass
class WrittenVideos:
    """What one call of a processor writes for its videos.

    Attributes:
        settings: those of the call.
        num_kept: how many scored tokens of each video stay.
        group_sizes: how many placeholders each group of a video has in the stock text.
    """

    settings: CompressionSettings
    num_kept: list[int] = field(default_factory=list)
    group_sizes: list[list[int]] = field(default_factory=list)


class VidCom2ProcessorMixin(SavedWithCode, ParentProcessor):
    """Makes a stock processor write prompts for the tokens that stay. It comes before the stock class among the bases.

    A call takes the settings on which the number depends, like any other argument for videos:
    `processor(..., retention_ratio=0.1)`, also in the `processor_kwargs` of `apply_chat_template`. It returns
    `num_kept_video_tokens`, (num_videos,) int64, with which the model keeps as many.

    Attributes:
        retention_ratio, compression_method, max_video_tokens: the settings, saved and loaded with the processor.
        writes_all: whether it writes a placeholder for every token, since only the model can say how many stay.
        frames_stand_apart: whether each frame has a group of placeholders of its own.
        placeholder: the name of the attribute with the text of a placeholder.
        one_prompt_a_call: whether the stock class takes videos only with a single prompt.
        whole_milliseconds: whether the stock class counts a step of a video's clock in whole milliseconds, so that it
            loses the times of a finer clock.
        prepares_on_cpu: whether the video processor fails on frames on other devices, or without values.
    """

    retention_ratio: float = 0.25
    compression_method: str = "vidcom2"
    max_video_tokens: int | None = None
    writes_all: bool = False
    frames_stand_apart: ClassVar[bool] = False
    placeholder: ClassVar[str] = "video_token"
    one_prompt_a_call: ClassVar[bool] = False
    whole_milliseconds: ClassVar[bool] = False
    prepares_on_cpu: ClassVar[bool] = False
    _written: WrittenVideos | None = None

    # -----------------------------------------------------------------------------------------------------------------
    # What a family decides
    # -----------------------------------------------------------------------------------------------------------------

    def num_frames(self, video_inputs: Mapping[str, Any], video_idx: int, group_sizes: Sequence[int]) -> int:
        """Return T, how many scored frames a video has.

        Args:
            video_inputs: what the video processor returned.
            group_sizes: how many placeholders each group has in the stock text.
        """
        if self.frames_stand_apart:
            return len(group_sizes)
        if "video_grid_thw" in video_inputs:
            return int(video_inputs["video_grid_thw"][video_idx][0])
        return len(video_inputs["pixel_values_videos"][video_idx])

    def num_structure(self, num_placeholders: int, num_frames: int) -> int:
        """Return how many of a video's placeholders stand for no token of a frame. They always stay."""
        return 0

    def placeholders_per_frame(self) -> int | None:
        """Return how many placeholders a frame has, if the stock class does not count those of videos."""
        return None

    # -----------------------------------------------------------------------------------------------------------------
    # What all families share
    # -----------------------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, checked_setting(name, value) if name in COUNTED_BY else value)

    def count_settings(self, **of_call: Any) -> CompressionSettings:
        """Return the settings on which the number of kept tokens depends.

        Args:
            **of_call: settings that replace the processor's own, where they are not None.

        Raises:
            ValueError: on a value outside its accepted set.
        """
        if self.writes_all:
            if of_call:
                raise ValueError(
                    f"`{next(iter(of_call))}` is passed to a processor that writes all placeholders, since only the "
                    "model can say how many tokens stay under its settings. Pass it to the model."
                )
            return CompressionSettings(retention_ratio=1.0)
        own = CompressionSettings(**{name: getattr(self, name) for name in COUNTED_BY})
        return own.compression_settings(**of_call)

    def _merge_kwargs(self, *args: Any, **kwargs: Any) -> dict[str, dict]:
        """Sort a call's arguments as the stock class does, with the settings among those for videos.

        Raises:
            ValueError: on a setting that a prompt does not depend on, or that there is not.
        """
        of_videos = dict(kwargs.get("videos_kwargs") or {})
        given = pop_settings(kwargs, vars(self)) | pop_settings(of_videos, vars(self))
        for name in given.keys() - set(COUNTED_BY):
            raise ValueError(
                f"`{name}` is {given[name]!r} in a call of the processor, which takes {', '.join(COUNTED_BY)}: how "
                "many tokens stay depends on these alone. Pass it to the model."
            )
        for name in (*kwargs, *of_videos):  # the stock class would ignore it, with a warning
            if name not in vars(self) and (meant := name_meant(name, cutoff=0.8)):
                raise ValueError(f"`{name}` is not an argument of the processor.{meant}")
        if "videos_kwargs" in kwargs:
            kwargs["videos_kwargs"] = of_videos
        merged = super()._merge_kwargs(*args, **kwargs)
        merged["videos_kwargs"] |= given
        return merged

    def _process_videos(self, videos: Any, **kwargs: Any) -> tuple[dict[str, Any], list[str]]:
        of_videos = kwargs.get("videos_kwargs", kwargs)  # Processors that also hear get all arguments, sorted.
        # The view holds what this call writes, since other threads may use the processor.
        view = copy.copy(self)
        view._written = WrittenVideos(self.count_settings(**_taken(of_videos, COUNTED_BY)))
        processed, replacements = super(VidCom2ProcessorMixin, view)._process_videos(videos, **kwargs)
        vars(self).update(vars(view) | {"_written": self._written})  # what a stock class notes, as HyperCLOVA X's does
        if not self.writes_all:
            processed[NUM_KEPT] = view._written.num_kept
        return self.complete(processed, view._written), replacements

    def complete(self, processed: dict[str, Any], written: WrittenVideos) -> dict[str, Any]:
        """Return what the video processor returned with what else the model needs."""
        return processed

    def replace_video_token(self, video_inputs: dict[str, Any], video_idx: int, **kwargs: Any) -> str:
        """Return the text that stands for a video, thinned out to the placeholders of the tokens that stay.

        Raises:
            ValueError: if fewer tokens stay than the video has groups of placeholders.
        """
        text = super().replace_video_token(video_inputs, video_idx, **kwargs)
        return self.thinned(text, video_inputs, video_idx)

    def thinned(self, text: str, video_inputs: Mapping[str, Any], video_idx: int) -> str:
        """Return the stock text of a video with as many placeholders as tokens stay."""
        token = getattr(self, self.placeholder)
        sizes = group_sizes(text, token)
        written = self._written or WrittenVideos(self.count_settings())
        num_frames = self.num_frames(video_inputs, video_idx, sizes)
        structure = self.num_structure(sum(sizes), num_frames)
        num_kept = num_kept_tokens(written.settings, num_frames, (sum(sizes) - structure) // num_frames)
        if num_kept < len(sizes):
            raise ValueError(
                f"`retention_ratio` is {written.settings.retention_ratio} and `max_video_tokens` is "
                f"{written.settings.max_video_tokens}, so {num_kept} tokens of video {video_idx} stay, but its "
                f"{len(sizes)} frames or slices stand apart in the prompt and need a placeholder each. Pass a larger "
                "ratio or budget, or fewer frames."
            )
        written.num_kept.append(num_kept)
        written.group_sizes.append(sizes)
        return with_fewer(text, token, num_kept + structure)

    def _get_num_multimodal_tokens(self, image_sizes: Any = None, video_sizes: Any = None, **kwargs: Any) -> Any:
        """Return how many tokens each image and video has in a prompt, from sizes alone. Engines plan with it.

        Args:
            image_sizes, video_sizes: (height, width) of each image, and (frames, height, width) of each video.
        """
        settings, per_frame = self.count_settings(**_taken(kwargs, COUNTED_BY)), self.placeholders_per_frame()
        if video_sizes is not None and per_frame is None:
            kwargs["video_sizes"] = video_sizes
        data = cast(Any, super())._get_num_multimodal_tokens(image_sizes=image_sizes, **kwargs)
        if video_sizes is not None and per_frame is not None:
            data.num_video_tokens = [length * per_frame for length, *_ in video_sizes]
        if video_sizes is not None and data.num_video_tokens is not None:
            for i, (total, (length, *_)) in enumerate(zip(data.num_video_tokens, video_sizes, strict=True)):
                num_frames = -(-length // getattr(self.video_processor, "temporal_patch_size", 1))
                structure = self.num_structure(int(total), num_frames)
                kept = num_kept_tokens(settings, num_frames, (int(total) - structure) // num_frames)
                data.num_video_tokens[i] = structure + kept
        return data

    @property
    def model_input_names(self) -> list[str]:
        return [*super().model_input_names, NUM_KEPT]

    # -----------------------------------------------------------------------------------------------------------------
    # Saving and loading
    # -----------------------------------------------------------------------------------------------------------------

    @classmethod
    def stock_class(cls) -> type[Any]:
        """Return the processor that writes a placeholder for every token."""
        stock = (base for base in cls.__mro__ if not issubclass(base, VidCom2ProcessorMixin))
        return next(base for base in stock if issubclass(base, ProcessorMixin))

    def to_dict(self) -> dict[str, Any]:
        """Return what `processor_config.json` says. It names the stock class, so that the files also load without
        `trust_remote_code`, and this class in `auto_map`."""
        stock, own = self.stock_class(), {name: getattr(self, name) for name in OWN}
        is_known = stock.__module__.startswith("transformers.")
        names = {
            "processor_class": stock.__name__ if is_known else type(self).__name__,
            "auto_map": {"AutoProcessor": f"{type(self).__module__.rpartition('.')[2]}.{type(self).__name__}"},
        }
        fields = super().to_dict() | own | names
        fields["video_processor"].pop("model_input_names", None)  # `from_args_and_dict` sets them
        return fields

    @classmethod
    def _get_arguments_from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load the parts of the processor, of which some have settings of the same names, as Qwen3-VL's
        `max_video_tokens` of a frame."""
        _taken(kwargs, OWN)
        return super()._get_arguments_from_pretrained(*args, **kwargs)

    @classmethod
    def from_args_and_dict(cls, args: Any, processor_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a processor as the stock class does, with the settings of its file, or with those of the call."""
        processor_dict = dict(processor_dict)
        given = _taken(processor_dict, OWN) | _taken(kwargs, OWN)
        found = super().from_args_and_dict(args, processor_dict, **kwargs)
        processor = found[0] if isinstance(found, tuple) else found
        for name, value in given.items():
            setattr(processor, name, value)
        # vLLM passes what a part of the processor names on to the model, where a prompt has images beside videos.
        names = processor.video_processor.model_input_names
        processor.video_processor.model_input_names = list(dict.fromkeys([*names, NUM_KEPT]))
        return found


def group_sizes(text: str, token: str) -> list[int]:
    """Return how many placeholders each group of them in a text has."""
    return [len(run) // len(token) for run in re.findall(f"(?:{re.escape(token)})+", text)]


def with_fewer(text: str, token: str, total: int) -> str:
    """Return a text with this many placeholders, spread evenly among its groups, of which each must get one."""
    stay = spread(total, group_sizes(text, token))
    return re.sub(f"(?:{re.escape(token)})+", lambda _: token * next(stay), text)


def _taken(arguments: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Remove arguments by name, and return them."""
    return {name: arguments.pop(name) for name in names if name in arguments}
