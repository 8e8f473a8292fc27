"""Ways to compress: methods at retention ratios, which `vidcom2 eval` compares, and their names in all reports.

Nothing here imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from ..checks import FAMILY_SETTINGS, check_settings
from ..configuration.compression_settings import (
    ALL_TOKENS,
    COMPRESSION_METHODS,
    SETTING_NAMES,
    CompressionSettings,
    ratio_meant,
)
from ..errors import OptionError

if TYPE_CHECKING:
    from torch import Tensor

    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin
    from .generation import Batch

    # Takes the model, a batch of questions and `max_new_tokens`. Returns the ids of the new tokens (B, n), with special
    # tokens after the end of each answer, and the share of the scored tokens that was kept (B,).
    Answerer: TypeAlias = Callable[[VidCom2GenerationMixin, Batch, int], tuple[Tensor, Tensor]]


BASELINE = {**ALL_TOKENS, "vision_method": "full"}  # the settings with which the model is its parent


def way_in_words(settings: Mapping[str, Any]) -> str:
    """Return the method and the ratio among these settings as all reports name them: "vidcom2 at 0.25"."""
    words = f"{settings.get('compression_method', 'vidcom2')} at {settings['retention_ratio']:g}"
    return ", ".join([words, *budget_in_words(settings)])


def budget_in_words(settings: Mapping[str, Any]) -> list[str]:
    """Return the budget of a video among these settings, if there is one."""
    budget = settings.get("max_video_tokens")
    return [] if budget is None else [f"at most {budget:,} tokens"]


def method_in_words(label: str) -> str:
    """Return the method of a candidate with its settings in brackets, as tables and plots name it, such as
    "vidcom2 (released)". A word stands alone, and a number has the setting's name."""
    name, *settings = label.split(":")
    if not all("=" in setting for setting in settings):  # not of the command line
        return label
    pairs = [setting.removeprefix("compression_").split("=", 1) for setting in settings]
    shown = [value if value.isalpha() else f"{setting}={value}" for setting, value in pairs]
    return f"{name} ({', '.join(shown)})" if shown else name


def changed_settings(config: Any, settings: CompressionSettings) -> dict[str, Any]:
    """Return `retention_ratio`, and the settings that are not at their default, those of the model's family included.

    Args:
        config: the model's.
        settings: those of the call.
    """
    of_family = {
        name: getattr(config, name) for name in (*FAMILY_SETTINGS, "spatial_pool_mode") if hasattr(config, name)
    }
    values = settings.as_dict() | of_family
    return {
        name: value
        for name, value in values.items()
        if name == "retention_ratio" or value != getattr(type(config), name)
    }


def others_in_words(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings that `way_in_words` does not name."""
    said = ("retention_ratio", "compression_method", "max_video_tokens")
    return [f"{name}={value}" for name, value in settings.items() if name not in said]


def in_words(settings: Mapping[str, Any]) -> str:
    """Return the way to compress, and the other settings that `changed_settings` returned."""
    return ", ".join([way_in_words(settings), *others_in_words(settings)])


@dataclass(frozen=True)
class Candidate:
    """One way to compress.

    Attributes:
        method: its name in tables. All candidates of a method make one line of the plot.
        retention_ratio: in (0, 1].
        settings: those of `CompressionSettings` that its calls set; the model's own apply for the rest.
        answer: answers a batch in place of a call of `generate` with these settings, for a method that works at another
            place in the model; None for all others.
    """

    method: str
    retention_ratio: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    answer: Answerer | None = None

    @property
    def label(self) -> str:
        """Its name in answers, which no other candidate of an evaluation may have."""
        return self.method if self.retention_ratio == 1.0 else f"{self.method} {self.retention_ratio:g}"

    @property
    def overrides(self) -> dict[str, Any]:
        """The settings of a call, with the ratio."""
        return {**self.settings, "retention_ratio": self.retention_ratio}

    def settings_in(self, config: Any) -> CompressionSettings:
        """Return all settings of its calls of a model with this config."""
        return config.compression_settings(**self.overrides)


class AllTokens(Candidate):
    """The candidate that keeps all tokens, with which the others are compared: the stock model."""

    def __init__(self) -> None:
        super().__init__("all tokens", 1.0, {"vision_method": "full"})

    def settings_in(self, config: Any) -> CompressionSettings:
        """Return the settings of the stock model, also where the config has a budget or a vision method."""
        return config.compression_settings(**BASELINE)


def compared_candidates(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return `AllTokens` and these candidates. Raises an OptionError if two have the same label."""
    compared = [AllTokens(), *candidates]
    labels = [candidate.label for candidate in compared]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise OptionError(f"two candidates have the label {twice[0]!r}. Give each method its own name.")
    return compared


# ---------------------------------------------------------------------------------------------------------------------
# Candidates as the command line names them
# ---------------------------------------------------------------------------------------------------------------------


def candidates_of(
    methods: str, ratios: str, options: tuple[str, str] = ("--methods", "--ratios"), settings: Iterable[str] = ()
) -> list[Candidate]:
    """Return a candidate for each method at each ratio.

    Args:
        methods: names, separated by commas. The settings of a method follow its name, as in
            `vidcom2:compression_scoring=released:compression_rounding=exact`.
        ratios: numbers in (0, 1), separated by commas.
        options: the names of the two options, for the errors.
        settings: the names of settings for all methods that read them.

    Raises:
        OptionError: on a name, a setting or a ratio that is not accepted, or one that is given twice; and on a setting
            that no method reads.
    """
    words = [word.strip() for word in methods.split(",")]
    numbers = [_ratio(word.strip(), options[1]) for word in ratios.split(",")]
    for option, names in zip(options, (words, [f"{number:g}" for number in numbers])):  # as results call them
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise OptionError(f"`{option}` has {twice[0]!r} twice. Name each once.")
    ratio_is = f"Ratios go in `{options[1]}`."
    candidates = [
        Candidate(word, number, _settings(word, options[0], ratio_is)) for word, number in product(words, numbers)
    ]
    for candidate in candidates:
        check_settings(candidate.overrides, typed={"compression_method": options[0]})
    rows = [COMPRESSION_METHODS[candidate.settings["compression_method"]] for candidate in candidates]
    for name in settings:
        if name in SETTING_NAMES and not any(row.reads(name) for row in rows):
            raise OptionError(f"`{name}` is given, but none of {methods} reads it. Leave it out.")
    return candidates


def _ratio(word: str, option: str) -> float:
    value = number_or_text(word)
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise OptionError(
            f"`{option}` has {word!r}, but each must be a number between 0 and 1, as in 0.5,0.25. All tokens "
            f"are always part of the comparison.{ratio_meant(word)}"
        )
    return value


def _settings(word: str, option: str, ratio_is: str) -> dict[str, Any]:
    method, *given = word.split(":")
    settings: dict[str, Any] = {"compression_method": method}
    for setting in given:
        name, equals, value = setting.partition("=")
        if not equals or name in (*settings, "retention_ratio"):
            raise OptionError(
                f"`{option}` has {word!r}, but settings follow their method, each once, as in "
                f"`vidcom2:compression_scoring=released:compression_rounding=exact`. {ratio_is}"
            )
        settings[name] = number_or_text(value)
    return settings


def number_or_text(word: str) -> int | float | str:
    """Return the number that a word is, or else the word."""
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word
