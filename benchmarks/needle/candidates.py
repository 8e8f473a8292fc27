"""The candidates of the needle benchmark: every method at its ratios, and the paper's ablations."""

from dataclasses import replace
from functools import partial
from typing import Any

from vidcom2.asking.candidates import Candidate
from vidcom2.toys import TOYS, Toy

from ..methods import register
from ..methods.attended_tokens import AttendedAnswers
from ..methods.inside_language_model import pruned_answers
from ..methods.pruning_fastv import FastV
from ..methods.pruning_pyramiddrop import PyramidDrop
from ..methods.pruning_sparsevlm import SparseVLM

# The toys whose training showed them all tokens of each video, and those that went on learning from random ones.
SEEN_ALL = tuple(name for name, toy in TOYS.items() if toy.trained_from is None)
SEEN_FEW = tuple(name for name in TOYS if name not in SEEN_ALL)
RATIOS = (0.5, 0.25, 0.15, 0.1, 0.05)
LEADERBOARD_RATIOS = (0.25, 0.15, 0.1, 0.05)
ABLATION_RATIOS = (0.25, 0.1)
BUDGET_RATIOS = (0.25, 0.1, 0.05)
HARD_RATIOS = (0.25, 0.1, 0.05)

EXACT = {"compression_rounding": "exact"}  # keeps as many tokens as other methods; `"ceil"` keeps up to a third more
# The ratios at which "exact" keeps as many tokens as "ceil" does on average (`ablations.json`): toy -> ratio of "ceil".
KEPT_BY_CEIL = {"llava_onevision": {0.25: 0.26, 0.1: 0.125}, "qwen3_vl": {0.25: 0.27, 0.1: 0.13}}
ORIGINAL = {"compression_positions": "original"}
METHODS: dict[str, dict[str, Any]] = {
    "VidCom² (paper)": {"compression_method": "vidcom2", **EXACT},
    "VidCom² (released)": {"compression_method": "vidcom2", "compression_scoring": "released", **EXACT},
    "random": {"compression_method": "random", **EXACT},
    "uniform_frames": {"compression_method": "uniform_frames"},
    "DyCoke": {"compression_method": "dycoke"},
    "EVS": {"compression_method": "evs"},
}
# The leaderboard compares these too.
NEWER_METHODS: dict[str, dict[str, Any]] = {
    "V-CAST": {"compression_method": "vcast"},
    "coverage": {"compression_method": "coverage"},
}
TRIED_METHODS: dict[str, dict[str, Any]] = {  # variants of "coverage", in `tried_methods.py`
    "merged over the whole video": {"compression_method": "coverage_merged"},
    "half the weight of time": {"compression_method": "coverage_less_time"},
    "a quarter by uniqueness": {"compression_method": "coverage_with_uniqueness"},
    "first a typical token of each frame": {"compression_method": "coverage_with_typical"},
    "least density of a kernel, merged": {"compression_method": "rarest"},
}
METHODS_BY_ATTENTION: dict[str, dict[str, Any]] = {  # of the vision tower, in `benchmarks/methods`
    "FastVID": {"compression_method": "fastvid"},
    "FlashVID": {"compression_method": "flashvid"},
    "VisionZip": {"compression_method": "visionzip"},
    "HoliTom": {"compression_method": "holitom"},
}
IN_MODEL_RATIOS = (0.5, 0.25, 0.15)  # averages over the layers, of which the first holds all tokens
ADJUSTED = " + adjustment"
IN_MODEL = {"FastV": FastV, "PyramidDrop": PyramidDrop, "SparseVLM": SparseVLM}


def main_candidates(toy: Toy) -> list[Candidate]:
    """Return the candidates of the paper's Table 2: method × ratio."""
    return [Candidate(name, ratio, settings) for name, settings in METHODS.items() for ratio in RATIOS]


def in_model_candidates(toy: Toy) -> list[Candidate]:
    """Return the paper's baselines inside the language model, alone and with VidCom²'s frame budgets (its Figure 5)."""
    ways = [(name, method, ratio, False) for name, method in IN_MODEL.items() for ratio in IN_MODEL_RATIOS]
    ways += [(f"{name}{ADJUSTED}", method, 0.25, True) for name, method in IN_MODEL.items()]
    answers = [partial(pruned_answers, method=method, ratio=ratio, adjusted=each) for _, method, ratio, each in ways]
    return [Candidate(name, ratio, answer=answer) for (name, _, ratio, _), answer in zip(ways, answers, strict=True)]


def position_candidates(toy: Toy) -> list[Candidate]:
    """Return candidates whose kept tokens have the positions that they have in the full prompt, and those with
    consecutive positions that `main_candidates` has not."""
    return [
        *(
            Candidate(f"{name}, original positions", ratio, settings | ORIGINAL)
            for name, settings in (METHODS | NEWER_METHODS).items()
            for ratio in RATIOS
        ),
        *(Candidate(name, ratio, settings) for name, settings in NEWER_METHODS.items() for ratio in RATIOS),
    ]


def long_position_candidates(toy: Toy) -> list[Candidate]:
    """Return the methods that `long` has with original positions, with consecutive ones."""
    return [
        Candidate(name, ratio, settings)
        for name, settings in (METHODS | NEWER_METHODS).items()
        for ratio in LEADERBOARD_RATIOS
    ]


def leaderboard_candidates(toy: Toy) -> list[Candidate]:
    """Return the methods that choose by the tokens, for the leaderboard. Kept tokens have their original positions, as
    they always do in Qwen's families."""
    return _on_leaderboard(METHODS | NEWER_METHODS)


def attention_candidates(toy: Toy) -> list[Candidate]:
    """Return the methods that choose by the vision tower's attention, for the leaderboard."""
    register()
    answers = AttendedAnswers()
    return [
        replace(candidate, answer=partial(answers.answer, overrides=candidate.overrides))
        for candidate in _on_leaderboard(METHODS_BY_ATTENTION)
    ]


def hard_candidates(toy: Toy) -> list[Candidate]:
    """Return, for each ratio, `"coverage"`, the other methods that choose by the tokens, and variants of it that were
    tried."""
    from . import tried_methods  # noqa: F401  (registers them)

    methods = {"coverage": NEWER_METHODS["coverage"]} | METHODS | NEWER_METHODS | TRIED_METHODS
    methods.pop("DyCoke")  # which keeps a quarter at least
    return [Candidate(name, ratio, settings | ORIGINAL) for ratio in HARD_RATIOS for name, settings in methods.items()]


def _on_leaderboard(methods: dict[str, dict[str, Any]]) -> list[Candidate]:
    return [
        Candidate(name, ratio, settings | ORIGINAL)
        for name, settings in methods.items()
        for ratio in LEADERBOARD_RATIOS
    ]


def ablation_candidates(toy: Toy) -> list[Candidate]:
    """Return the candidates of the paper's Tables 4 to 7 and of its table of windows, and temperatures besides."""
    from . import adjusted_methods  # noqa: F401  (registers the methods with Frame Compression Adjustment)

    # The weights of a token's uniqueness in its frame and in the video. A negative one keeps the most similar tokens.
    weights = {
        "−u_frame": (-1.0, 0.0),
        "u_frame": (1.0, 0.0),
        "−u_video": (0.0, -1.0),
        "u_video": (0.0, 1.0),
        "u_frame + 2 u_video": (1.0, 2.0),
        "2 u_frame + u_video": (2.0, 1.0),
    }
    settings: dict[str, dict[str, Any]] = {
        name: {"compression_frame_weight": a, "compression_video_weight": b} for name, (a, b) in weights.items()
    }
    settings |= {f"budgets: {score}": {"compression_frame_score": score} for score in ("uniform", "max")}
    settings |= {f"window {window}": {"compression_window": window} for window in (4, 8)}
    settings |= {f"τ = {t:g}": {"compression_temperature": t} for t in (0.003, 0.03, 0.1, 1.0)}
    settings |= {f"rounding: {name}": {"compression_rounding": name} for name in ("ceil", "round")}
    settings = {"u_frame + u_video": {}} | settings
    candidates = [Candidate(name, ratio, EXACT | each) for name, each in settings.items() for ratio in ABLATION_RATIOS]
    for name, its_own in {"random": EXACT, "evs": {}}.items():
        for adjusted, given in {name: its_own, f"{name}{ADJUSTED}": EXACT}.items():
            method = {"compression_method": adjusted.replace(ADJUSTED, "_adjusted")}
            candidates += [Candidate(adjusted, ratio, given | method) for ratio in ABLATION_RATIOS]
    return candidates


def rounding_candidates(toy: Toy) -> list[Candidate]:
    """Return, for each ratio, VidCom² with the paper's rounding; and with others, the last of which keep as many tokens
    by a higher ratio."""
    roundings = {name: {"compression_rounding": name} for name in ("ceil", "round", "exact")}
    return [
        candidate
        for ratio in ABLATION_RATIOS
        for candidate in (
            *(Candidate(name, ratio, settings) for name, settings in roundings.items()),
            Candidate("exact", KEPT_BY_CEIL[toy.name][ratio], EXACT),
        )
    ]


def budget_candidates(toy: Toy) -> list[Candidate]:
    """Return the ways to give a frame its budget (the paper's Table 5 and its table of windows), and methods without
    budgets."""
    settings: dict[str, dict[str, Any]] = {"budgets: mean": EXACT}
    settings |= {f"budgets: {score}": EXACT | {"compression_frame_score": score} for score in ("max", "uniform")}
    settings |= {f"window {window}": EXACT | {"compression_window": window} for window in (4, 8)}
    settings |= {f"τ = {t:g}": EXACT | {"compression_temperature": t} for t in (0.003, 0.03, 0.1, 1.0)}
    settings |= {name: METHODS[name] for name in ("VidCom² (released)", "random", "uniform_frames", "EVS")}
    return [Candidate(name, ratio, each) for name, each in settings.items() for ratio in BUDGET_RATIOS]


def repeat_candidates(toy: Toy) -> list[Candidate]:
    """Return the candidates that answer, besides all tokens, with each way to leave out what repeats."""
    return [
        Candidate("VidCom² (paper)", 0.25, METHODS["VidCom² (paper)"]),
        Candidate("coverage", 0.25, NEWER_METHODS["coverage"]),
    ]
