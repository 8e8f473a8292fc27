"""What `vidcom2 eval` compares: methods at retention ratios, or at numbers of frames within a budget of video tokens.

Nothing here imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from ..checks import check_settings, whole_number
from ..configuration.compression_settings import ALL_TOKENS, COMPRESSION_METHODS, CompressionSettings
from ..errors import OptionError

if TYPE_CHECKING:
    from torch import Tensor

    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin
    from .generation import Batch

    # Takes the model, a batch of questions and `max_new_tokens`. Returns the ids of the new tokens (B, n), with special
    # tokens after the end of each answer, and the share of the scored tokens that was kept (B,).
    Answerer: TypeAlias = Callable[[VidCom2GenerationMixin, Batch, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Candidate:
    """One way to compress.

    Attributes:
        method: its name in tables. All candidates of a method make one line of the plot.
        retention_ratio: in (0, 1].
        settings: those of `CompressionSettings` that its calls set; the model's own apply for the rest.
        answer: answers a batch in place of a call of `generate` with these settings, for a method that works at another
            place in the model; None for all others.
        num_frames: how many frames it is shown; None for as many as the evaluation shows.
        token_budget: the setting `max_video_tokens` of its calls, for candidates with their own number of frames; None
            for the model's own.

    Raises:
        OptionError: on a budget without a number of frames, and on either with a function that answers.
    """

    method: str
    retention_ratio: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    answer: Answerer | None = None
    num_frames: int | None = None
    token_budget: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_frames", "token_budget"):
            value = getattr(self, name)
            if value is None:
                continue
            whole_number(name, value)
            if self.answer is not None:
                raise OptionError(
                    f"`{name}` of candidate {self.method!r} is {value}, but its `answer` is a function, which is given "
                    "neither. Leave one of them out."
                )
        if self.token_budget is not None and self.num_frames is None:
            raise OptionError(
                f"`token_budget` of candidate {self.method!r} is {self.token_budget}, but it has no `num_frames`, "
                "for which the budget holds. Pass both."
            )

    @property
    def label(self) -> str:
        """Its name in answers, which no other candidate of an evaluation may have."""
        parts = [self.method if self.retention_ratio == 1.0 else f"{self.method} {self.retention_ratio:g}"]
        if self.num_frames is not None:
            parts.append(f"{self.num_frames} frames")
        if self.token_budget is not None:
            parts.append(f"{self.token_budget} tokens")
        return ", ".join(parts)

    @property
    def overrides(self) -> dict[str, Any]:
        """The settings of a call, with the ratio and the budget."""
        budget = {} if self.token_budget is None else {"max_video_tokens": self.token_budget}
        return {**self.settings, "retention_ratio": self.retention_ratio, **budget}

    def settings_in(self, config: Any) -> CompressionSettings:
        """Return all settings of its calls of a model with this config."""
        return config.compression_settings(**self.overrides)


class AllTokens(Candidate):
    """The candidate that keeps all tokens, with which the others are compared if they are shown the same frames."""

    def __init__(self, num_frames: int | None = None) -> None:
        super().__init__("all tokens", 1.0, num_frames=num_frames)

    def settings_in(self, config: Any) -> CompressionSettings:
        """Return the settings that keep all tokens, also where the config has a budget."""
        return config.compression_settings(**ALL_TOKENS)


def compared_candidates(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return all candidates of an evaluation. If they are shown the same frames, `AllTokens` comes before them.

    Raises:
        OptionError: if some have their own number of frames, and others do not, or if two have the same label.
    """
    own = [candidate for candidate in candidates if candidate.num_frames is not None]
    if own and len(own) < len(candidates):
        other = next(candidate for candidate in candidates if candidate.num_frames is None)
        raise OptionError(
            f"candidate {own[0].label!r} has its own `num_frames`, but {other.label!r} has none. Give every candidate "
            "one, or none."
        )
    compared = [*candidates] if own else [AllTokens(), *candidates]
    labels = [candidate.label for candidate in compared]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise OptionError(f"two candidates have the label {twice[0]!r}. Give each method its own name.")
    return compared


def reference_of(candidate: Candidate, compared: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate that this one is compared with, on the same questions; None for a reference.

    It is `AllTokens`, or among candidates with their own numbers of frames, the same way to compress of the fewest.
    """
    if candidate.num_frames is None:
        reference = compared[0]
    else:
        alike = [each for each in compared if _way(each) == _way(candidate)]
        reference = min(alike, key=lambda each: each.num_frames or 0)
    return None if reference is candidate else reference


def _way(candidate: Candidate) -> tuple[Any, ...]:
    return candidate.method, candidate.retention_ratio, candidate.token_budget


# ---------------------------------------------------------------------------------------------------------------------
# Candidates as the command line names them
# ---------------------------------------------------------------------------------------------------------------------


def candidates_of(methods: str, ratios: str, options: tuple[str, str] = ("--methods", "--ratios")) -> list[Candidate]:
    """Return a candidate for each method at each ratio.

    Args:
        methods: names, separated by commas. The settings of a method follow its name, as in
            `vidcom2:compression_scoring=released:compression_rounding=exact`.
        ratios: numbers in (0, 1), separated by commas.
        options: the names of the two options, for the errors.

    Raises:
        OptionError: on a name, a setting or a ratio that is not accepted, or one that is given twice.
    """
    words, numbers = _each_once(options[0], methods), _each_once(options[1], ratios)
    ratio_is = f"Ratios go in `{options[1]}`."
    candidates = [
        Candidate(word, _ratio(number, options[1]), _settings(word, options[0], ratio_is))
        for word, number in product(words, numbers)
    ]
    for candidate in candidates:
        check_settings(candidate.overrides, typed={"compression_method": options[0]})
    return candidates


def candidates_within(token_budget: int, methods: str, frames: str) -> list[Candidate]:
    """Return a candidate for each method at each number of frames, all of which keep as many tokens of a video.

    Args:
        token_budget: the most scored tokens of a video that each may keep.
        methods: as for `candidates_of`. A method with frame budgets gets `compression_rounding="exact"`.
        frames: whole numbers, separated by commas.

    Returns:
        The candidates, those of the fewest frames first.

    Raises:
        OptionError: on a name, a setting or a number that is not accepted, or one that is given twice.
    """
    counts = sorted(_frame_count(word) for word in _each_once("--frames", frames))
    settings = {word: _exact_settings(word) for word in _each_once("--methods", methods)}
    return [
        Candidate(word, 1.0, of_method, num_frames=count, token_budget=token_budget)
        for count, (word, of_method) in product(counts, settings.items())
    ]


def _exact_settings(word: str) -> dict[str, Any]:
    settings = _settings(word, "--methods", "The ratio follows from `--token-budget`.")
    check_settings(settings, typed={"compression_method": "--methods"})
    if not COMPRESSION_METHODS[settings["compression_method"]].reads("compression_rounding"):
        return settings
    if settings.get("compression_rounding", "exact") != "exact":
        raise OptionError(
            f"`--methods` has {word!r}, but `--token-budget` compares equally many tokens, which only "
            "`compression_rounding=exact` keeps. Leave the rounding out."
        )
    return {**settings, "compression_rounding": "exact"}


def _each_once(option: str, given: str) -> list[str]:
    words = [word.strip() for word in given.split(",")]
    twice = [word for word in words if words.count(word) > 1]
    if twice:
        raise OptionError(f"`{option}` has {twice[0]!r} twice. Name each once.")
    return words


def _frame_count(word: str) -> int:
    value = number_or_text(word)
    if not isinstance(value, int) or value < 1:
        raise OptionError(f"`--frames` has {word!r}, but each must be a whole number, at least 1, as in 8,16,32,64.")
    return value


def _ratio(word: str, option: str) -> float:
    value = number_or_text(word)
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise OptionError(
            f"`{option}` has {word!r}, but each must be a number between 0 and 1, as in 0.5,0.25. All tokens "
            "are always part of the comparison."
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
