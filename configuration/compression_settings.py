"""The settings of VidCom², and the tables of the methods that they choose.

A compression method chooses the tokens that stay. A vision method says how the vision tower encodes a video's frames.
Each is a file whose import enters a row into a table. The settings and the names of methods need no torch.
"""

import copy
import difflib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, TypeVar

# ---------------------------------------------------------------------------------------------------------------------
# The tables of methods
# ---------------------------------------------------------------------------------------------------------------------


Row = TypeVar("Row", bound="Method")

# How many tokens K of a video a method keeps: of T frames with M tokens each, at a retention ratio R.
Count = Callable[[int, int, float], int]

# Settings that only some methods of a kind read. Every method reads the rest.
OF_SOME_COMPRESSION_METHODS = (
    "compression_scoring",
    "compression_rounding",
    "compression_temperature",
    "compression_frame_score",
    "compression_window",
    "compression_frame_weight",
    "compression_video_weight",
)
OF_SOME_VISION_METHODS = ("vision_tolerance",)


@dataclass(frozen=True, kw_only=True)
class Method:
    """What the rows of both tables have in common.

    Attributes:
        name: the value of the setting that chooses it.
        settings: the settings that it reads, of those that only some methods read. Others must be at their default.
        function: what it computes.
        own: whether it is a method of this project, and not a user's.
    """

    name: str
    settings: tuple[str, ...] = ()
    function: Callable[..., Any] | None = None
    own: bool = False


@dataclass(frozen=True, kw_only=True)
class CompressionMethod(Method):
    """A row of the table of compression methods, whose functions turn `VideoTokens` and `CompressionSettings` into a
    `VideoCompression`.

    Attributes:
        count: returns K from T, M and R, unless frame budgets are rounded. None if K is not known beforehand.
        compiles: whether it compiles into one graph when K depends on sizes alone.
        scores: a text on what its scores u_t of frames and u of tokens mean; None if it has none, or does not say.
    """

    count: Count | None = None
    compiles: bool = False
    scores: str | None = None

    def reads(self, setting: str) -> bool:
        """Return whether a value of this setting can matter. A setting that every method reads always can."""
        return setting in self.settings or setting not in OF_SOME_COMPRESSION_METHODS

    def keeps_by_sizes(self, rounding: str) -> bool:
        """Return whether K follows from the sizes and the ratio alone, whatever a video shows. It does unless frame
        budgets are rounded. A user's method is believed here, and checked where it matters."""
        return rounding == "exact" or not self.reads("compression_rounding")


@dataclass(frozen=True, kw_only=True)
class VisionMethod(Method):
    """A row of the table of vision methods, whose functions say how the tower runs on a part of a video's patches, or
    return None where it runs as a whole. `"full"`, the parent's own computation, has no function.

    Attributes:
        towers: the `model_type` of each vision tower that it can run; None for any, or none.
    """

    towers: tuple[str, ...] | None = None

    def reads(self, setting: str) -> bool:
        """Return whether a value of this setting can matter. A setting that every method reads always can."""
        return setting in self.settings or setting not in OF_SOME_VISION_METHODS

    def fits(self, tower: str | None) -> bool:
        """Return whether it can run a vision tower of this `model_type`, which is None if there is no tower."""
        return self.towers is None or tower in self.towers


class Methods(MutableMapping[str, Row]):
    """The methods of one kind, by name. A method's file enters its row, and is imported when the row is asked for. So
    names need no torch.

    Attributes:
        rows: those of the files that were imported.
        files: imports the files of further methods, by name (`registered_methods.py`).
    """

    def __init__(self, *rows: Row) -> None:
        self.rows: dict[str, Row] = {row.name: row for row in rows}
        self.files: dict[str, Callable[[], object]] = {}

    def __getitem__(self, name: str) -> Row:
        if name not in self.rows and name in self.files:
            self.files[name]()
        return self.rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self.rows or name in self.files

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.files, *self.rows)))

    def __len__(self) -> int:
        return len({*self.files, *self.rows})

    def __setitem__(self, name: str, row: Row) -> None:
        self.rows[name] = row

    def __delitem__(self, name: str) -> None:
        del self.rows[name]


COMPRESSION_METHODS: Methods[CompressionMethod] = Methods()
VISION_METHODS = Methods(VisionMethod(name="full", own=True))
# The settings that choose a row of a table.
TABLES: dict[str, Methods[Any]] = {"compression_method": COMPRESSION_METHODS, "vision_method": VISION_METHODS}


# ---------------------------------------------------------------------------------------------------------------------
# The settings
# ---------------------------------------------------------------------------------------------------------------------


def ratio_meant(value: Any) -> str:
    """Return " Did you mean 0.25?" for a ratio in percent or as text, such as 25, "25%" or "0.25"; else ""."""
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        return ""
    ratio = number / 100 if text.endswith("%") or number >= 2 else number
    return f" Did you mean {ratio:g}?" if 0 < ratio <= 1 else ""


def name_meant(name: str, others: Collection[str] = (), cutoff: float = 0.6) -> str:
    """Return " Did you mean 'retention_ratio'?" for a name that is short for, or close to, a setting's; else ""."""
    close = difflib.get_close_matches(SHORT_NAMES.get(name, name), [*SETTING_NAMES, *others], n=1, cutoff=cutoff)
    return f" Did you mean {close[0]!r}?" if close else ""


def _number(accepted: str, holds: Callable[[Any], bool]) -> dict[str, Any]:
    """Field metadata for a finite real number for which `holds`."""

    def normalize(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError
        if not (math.isfinite(value) and holds(value)):
            raise ValueError
        return float(value)

    return {"normalize": normalize, "accepted": accepted}


def _weight() -> dict[str, Any]:
    return _number("a finite number, at most 1e30 in size", lambda v: abs(v) <= 1e30)  # scores are float32


def _choice(*names: str) -> dict[str, Any]:
    """Field metadata for one of a few names."""

    def normalize(value: Any) -> str:
        if value not in names:
            raise ValueError
        return value

    return {"normalize": normalize, "accepted": f"one of {', '.join(map(repr, names))}"}


def _method_name(table: Mapping[str, Any]) -> dict[str, Any]:
    """Field metadata for the name of a row of a table, which may grow."""

    def normalize(value: Any) -> str:
        if not isinstance(value, str) or value not in table:
            raise ValueError
        return value

    def accepted() -> str:
        return (
            f"one of {', '.join(map(repr, sorted(table)))} (a method of your own is known once its module is imported; "
            "a Hub repo holds only the methods that it was published with: load it with `vidcom2.load`, which knows "
            "all, or publish it with `--methods`)"
        )

    return {"normalize": normalize, "accepted": accepted}


def _count_or_none(counted: str, none: str) -> dict[str, Any]:
    """Field metadata for a number of what is counted, or None, which means `none`."""

    def normalize(value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError
        if value < 1:
            raise ValueError
        return int(value)

    accepted = f"None ({none}) or a whole number of {counted} >= 1"
    return {"normalize": normalize, "accepted": accepted, "none": none}


@dataclass(kw_only=True)
class CompressionSettings:
    """How VidCom² compresses a video. Values are checked whenever a field is set.

    Attributes:
        retention_ratio: fraction of the video tokens kept, R in the paper, in (0, 1]. 1.0 keeps everything.
        compression_method: which tokens stay: those of `"vidcom2"`; tokens at random (`"random"`, a baseline in the
            paper's Table 1); all tokens of fewer frames (`"uniform_frames"`); those that do not repeat earlier frames
            (`"dycoke"`, DyCoke's temporal merging, and `"evs"`, Efficient Video Sampling); those that stand out in
            their frame, more of them where the video turns (`"vcast"`, V-CAST); those that leave no part of the video
            far from a kept one (`"coverage"`); or those of a method that `register_compression_method` added. A method
            reads the settings that its row of the table names.
        compression_scoring: `"paper"` for Algorithm 1, or for V-CAST, `"released"` for what the authors' published code
            computes.
        compression_rounding: how r_t·M becomes a frame's budget: `"exact"` for a total that depends on sizes alone, so
            that a processor can write the prompt; `"ceil"` as in the paper and `"round"` as in the released code, which
            depend on what a video shows.
        compression_temperature: τ of Eq. 5; smaller values concentrate the budget on the most unique frames.
        compression_frame_score: u_t as the `"mean"` or `"max"` of its tokens' video-level uniqueness; `"uniform"`
            gives every frame the same budget (Table 3).
        compression_window: g_v of frame t is the mean over this many consecutive frames centred on t; None for the
            whole video (Table 4). An even window reaches one frame further into the past.
        compression_positions: the positions of the kept tokens in families with one position per token:
            `"consecutive"`, renumbered as in the authors' code, or `"original"`, as in the full prompt. M-RoPE families
            always keep the original ones. Models read it; it selects nothing.
        compression_frame_weight: weight a in u_{t,m} = a·u_frame + b·u_video (Eq. 9 has a = b = 1).
        compression_video_weight: weight b in the same sum.
        max_video_tokens: a budget: the largest number of scored tokens that a video may keep; None for no budget. It
            applies to each video separately, and does not count structure tokens. If the ratio would keep more, the
            video is compressed at the lower ratio that keeps this many, and a method with frame budgets rounds as with
            `compression_rounding="exact"`. Other videos are compressed as if there were no budget.
        vision_method: how the vision tower encodes a video: `"full"` is the parent's computation; `"skip_repeated"`
            leaves out the patches that repeat what the tower computed last at their place; or a method that
            `register_vision_method` added. The config of a family whose tower a method cannot run refuses it. Models
            read it where they encode videos; it selects no tokens.
        vision_chunk_frames: how many frames the vision tower encodes at a time, which bounds its memory; None for all
            at once. Models read it where they compress; it selects nothing. In Qwen's families a frame is two of the
            file.
        vision_tolerance: for `"skip_repeated"`, how far the pixels of a group of patches may be from those that the
            tower computed last at their place: the root of their mean squared difference, in the units of
            `pixel_values_videos`. 0 asks for equal pixels.

    Raises:
        ValueError: on a value outside the accepted set, from the constructor and on assignment alike; from the
            constructor also on a setting that is not at its default, though the method does not read it.
    """

    retention_ratio: float = field(
        default=0.25,
        metadata=_number("a number in (0, 1]; 0.25 keeps a quarter of the video tokens, 1.0 all", lambda v: 0 < v <= 1),
    )
    compression_method: str = field(default="vidcom2", metadata=_method_name(COMPRESSION_METHODS))
    compression_scoring: str = field(default="paper", metadata=_choice("paper", "released"))
    compression_rounding: str = field(default="exact", metadata=_choice("exact", "ceil", "round"))
    compression_temperature: float = field(default=0.01, metadata=_number("a finite number > 0", lambda v: v > 0))
    compression_frame_score: str = field(default="mean", metadata=_choice("mean", "max", "uniform"))
    compression_window: int | None = field(default=None, metadata=_count_or_none("frames", none="the whole video"))
    compression_positions: str = field(default="consecutive", metadata=_choice("consecutive", "original"))
    compression_frame_weight: float = field(default=1.0, metadata=_weight())
    compression_video_weight: float = field(default=1.0, metadata=_weight())
    max_video_tokens: int | None = field(default=None, metadata=_count_or_none("video tokens", none="no budget"))
    vision_method: str = field(default="full", metadata=_method_name(VISION_METHODS))
    vision_chunk_frames: int | None = field(default=32, metadata=_count_or_none("frames", none="all frames at once"))
    vision_tolerance: float = field(
        default=0.0, metadata=_number("a finite number >= 0; 0 leaves out only what repeats exactly", lambda v: v >= 0)
    )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SETTING_NAMES:
            value = checked_setting(name, value)
        super().__setattr__(name, value)

    def __post_init__(self) -> None:
        check_all_read(CompressionSettings.as_dict(self))

    def compression_settings(self, **overrides: Any) -> "CompressionSettings":
        """Return these settings alone, without the config around them.

        Args:
            overrides: settings that replace the stored ones, where they are not None. If they choose another method,
                stored settings that it does not read are left out.

        Raises:
            ValueError: on a value outside the accepted set, or one that the method does not read.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        stored = CompressionSettings.as_dict(self)
        settings = CompressionSettings(**stored | left_out(stored, given) | given)
        _check_spelled_out(settings, given)
        return settings

    def drops_of(self, num_tokens: int) -> bool:
        """Return whether a video with this many scored tokens loses any."""
        return self.retention_ratio < 1.0 or (self.max_video_tokens is not None and num_tokens > self.max_video_tokens)

    @property
    def may_drop(self) -> bool:
        """Whether tokens of some videos are dropped, though maybe only of long ones."""
        return self.drops_of(NO_BUDGET)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return {name: getattr(self, name) for name in SETTING_NAMES}

    def vision_settings(self) -> dict[str, Any]:
        """Return the settings on which the features of all of a video's tokens depend."""
        names = ("vision_method", *VISION_METHODS[self.vision_method].settings)
        return {name: getattr(self, name) for name in names}


# The settings on which it depends how many tokens stay, and the name under which a processor returns this number for
# each video: (num_videos,) int64.
COUNTED_BY = ("retention_ratio", "compression_method", "max_video_tokens")
NUM_KEPT = "num_kept_video_tokens"
_FIELDS = {setting.name: setting for setting in fields(CompressionSettings)}
SETTING_NAMES = tuple(_FIELDS)
# as commands and people call them
SHORT_NAMES = {"method": "compression_method", "ratio": "retention_ratio", "retention": "retention_ratio"}
OF_COMPRESS = ("compression_rounding", "ceil")  # the default of `compress`, which no method refuses
# In a call, None stands for the config's value, so there a budget that no video exceeds stands for no budget.
NO_BUDGET = 2**62
ALL_TOKENS: dict[str, Any] = {"retention_ratio": 1.0, "max_video_tokens": NO_BUDGET}


def left_out(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored settings that given ones leave out, at their defaults.

    Where the given settings choose another method than the stored one, these are the settings that it does not read.

    Args:
        stored: settings by name, and maybe other fields of a config. A setting that is missing is at its default.
        given: settings by name, which replace the stored ones.
    """
    unread: set[str] = set()
    for setting, table in TABLES.items():
        method = given.get(setting)
        if not isinstance(method, str) or method not in table:  # any other is refused where it is set
            continue
        if method != stored.get(setting, _FIELDS[setting].default):
            unread |= {name for name in SETTING_NAMES if not table[method].reads(name)}
    return {name: _FIELDS[name].default for name in unread}


def checked_setting(name: str, value: Any) -> Any:
    """Return `value` as it is stored under the setting `name`.

    Raises:
        ValueError: if it is outside the accepted set.
    """
    metadata = _FIELDS[name].metadata
    try:
        return metadata["normalize"](value)
    except (TypeError, ValueError, OverflowError):
        accepted = metadata["accepted"]
        accepted = accepted() if callable(accepted) else accepted
        raise ValueError(
            f"`{name}` is {value!r:.100}, but must be {accepted}. The default is {_FIELDS[name].default!r}."
            f"{ratio_meant(value) if name == 'retention_ratio' else ''}"
        ) from None


def check_all_read(settings: Mapping[str, Any]) -> None:
    """Check that the methods read every setting that is not at its default, here or in `compress`.

    Args:
        settings: all settings by name.

    Raises:
        ValueError: on the first setting that its method does not read.
    """
    for setting, table in TABLES.items():
        method = table[settings[setting]]
        for name, value in settings.items():
            if not method.reads(name) and value != _FIELDS[name].default and (name, value) != OF_COMPRESS:
                raise _unread(name, value, setting, method)


def _check_spelled_out(settings: CompressionSettings, given: Collection[str]) -> None:
    """Refuse a vision method's setting in a call that does not name the method, if another method is stored.

    The caller may expect the setting to choose the method, so it is refused even at its default.
    """
    if "vision_method" not in given:
        method = VISION_METHODS[settings.vision_method]
        for name in given:
            if not method.reads(name):
                raise _unread(name, getattr(settings, name), "vision_method", method)


def _unread(name: str, value: Any, setting: str, method: CompressionMethod | VisionMethod) -> ValueError:
    """Return the error for a setting that a method does not read. `setting` is the one that chooses the method."""
    read = ", ".join(method.settings) or "none of those that only some methods read"
    readers = " or ".join(repr(other.name) for other in TABLES[setting].values() if other.reads(name))
    return ValueError(
        f"`{name}` is {value!r}, but `{setting}={method.name!r}` does not read it (it reads {read}). "
        f"Leave it at its default, {_FIELDS[name].default!r}, or choose another method: {readers}."
    )


def with_settings(config: Any, config_class: type, settings: dict[str, Any]) -> Any:
    """Return a model's config in the class that has the settings. It shares the objects that the config is made of.

    Args:
        config: an instance of `config_class`, or of the Transformers class that this extends. It stays as it is.
        settings: values that replace the config's. If they choose another method, settings of the config that it does
            not read are left out.

    Raises:
        ValueError: if the config is another family's, or a setting is outside its accepted set.
    """
    stock_class = next(base for base in config_class.__mro__ if base.__module__.startswith("transformers."))
    if not isinstance(config, config_class):
        if not isinstance(config, stock_class) or config.model_type != config_class.model_type:
            raise ValueError(
                f"`config` is a {type(config).__name__} of type {getattr(config, 'model_type', None)!r}, but must be a "
                f"{config_class.__name__} or a config of type {config_class.model_type!r}. Load it with "
                f"`{config_class.__name__}.from_pretrained(...)`."
            )
        converted = config_class()
        converted.__dict__.update(vars(config))
        config = converted
        settings = CompressionSettings.as_dict(config) | settings  # what a stock config says is checked only now
    elif settings:
        config = copy.copy(config)
    settings = left_out(CompressionSettings.as_dict(config), settings) | settings
    for name, value in settings.items():
        setattr(config, name, value)
    config.compression_settings()  # which checks them together
    return config
