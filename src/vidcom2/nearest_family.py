"""What a checkpoint of no supported family is told: which family is nearest, and why this one does not fit it."""

import difflib
from dataclasses import dataclass
from itertools import takewhile

from .families import FAMILIES

TEXT = "_text"  # how the `model_type` of a family's language model ends


@dataclass(frozen=True)
class Unsupported:
    """Models without a class of VidCom².

    Attributes:
        name: the name that people use.
        types: how the `model_type` of their checkpoints begins.
        nearest: the `model_type` of the family that is built most like them.
        reason: what keeps them from it, beginning with a verb. None if nobody has tried.
    """

    name: str
    types: tuple[str, ...]
    nearest: str
    reason: str | None = None


HAS_A_TALKER = (
    "lets its talker read the thinker's states at all positions of the prompt, also of dropped tokens. "
    "`vidcom2.load` takes the thinker, which answers in text, from such a checkpoint; `vidcom2.apply` takes "
    "`model.thinker`"
)
# What is said here of a class was read in Transformers 5.23. docs/limits.md shows the rows that have a reason.
UNSUPPORTED = (
    Unsupported("InternVL", ("internvl_chat",), "internvl"),
    Unsupported("Idefics", ("idefics",), "smolvlm", "takes images alone"),
    Unsupported(
        "VideoLLaMA3 in its authors' format",
        ("videollama3",),
        "video_llama_3",
        "has its class as code in its repo. Take a checkpoint for Transformers, such as `lkhl/VideoLLaMA3-7B-Image-HF`",
    ),
    Unsupported("Qwen2.5-Omni with its talker", ("qwen2_5_omni",), "qwen2_5_omni_thinker", HAS_A_TALKER),
    Unsupported("Qwen3-Omni with its talker", ("qwen3_omni",), "qwen3_omni_moe_thinker", HAS_A_TALKER),
    Unsupported(
        "Qwen3.8-Flash-Next",
        ("qwen4_exp",),
        "qwen3_5_moe",
        "embeds runs of neighbouring tokens, and averages neighbouring keys for its sparse attention: both would see "
        "other neighbours",
    ),
    Unsupported(
        "MiniCPM-V 4.7",
        ("minicpmv4_7",),
        "minicpmv4_6",
        "gives the tokens and marks of frames and slices positions in space (M-RoPE), which would have to be found for "
        "a compressed prompt",
    ),
    Unsupported(
        "LLaVA-OneVision-1.5",
        ("llavaonevision1_5", "llava_onevision1_5"),
        "qwen2_vl",
        "puts a tower of its own (Rice) before Qwen3, and its class is code in its repos",
    ),
    Unsupported("LLaVA-NeXT", ("llava_next",), "llava_next_video", "takes images alone"),
    Unsupported(
        "LLaVA",
        ("llava",),
        "vidcom2_llava_video",
        "takes no videos in Transformers. An original LLaVA-Video is converted first: `vidcom2 convert-llava-video`",
    ),
    Unsupported("MiniCPM-V", ("minicpmv", "minicpmo"), "minicpmv4_6"),
    Unsupported("Gemma 3", ("gemma3",), "gemma4", "takes no videos"),
    Unsupported("Video-LLaVA", ("video_llava",), "llava_next_video"),
)


def no_class_for(what: str, model_type: object, has_own_code: bool = False) -> str:
    """Return the error for a model that is of no supported family, as sentences.

    Args:
        what: which model it is.
        model_type: the `model_type` of its config.
        has_own_code: whether its repo holds the code of its class, which `auto_map` in its config.json says.
    """
    why = _why_not(str(model_type), has_own_code)
    return f"{what} is of type {model_type!r}, but VidCom² has classes for {', '.join(map(repr, FAMILIES))}. {why}"


def _why_not(model_type: str, has_own_code: bool) -> str:
    if (whole := model_type.removesuffix(TEXT)) in FAMILIES:
        return (
            f"The nearest is {_named(whole)}, but this is its language model alone, which has no vision tower and sees "
            "no videos. Take a checkpoint that has the tower."
        )
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as STOCK

    row = _row_of(model_type)
    nearest, name = (_nearest_name(model_type), repr(model_type)) if row is None else (row.nearest, row.name)
    remedy = "Take a checkpoint of a type above, or run this one without compression."
    if row is not None and row.reason is not None:
        reason = f"{name} {row.reason}"
    elif has_own_code:
        reason = f"{name} has its class as code in its repo (`auto_map`), and VidCom² extends those of Transformers"
    elif model_type in STOCK:
        reason = f"{name} has a class of its own, {STOCK[model_type]}, which nobody has tried with VidCom²"
    else:
        reason = f"Transformers lists no class for {name} that answers about images or videos"
        remedy = "Take a checkpoint of a type above."
    return f"{f'The nearest is {_named(nearest)}, but ' if nearest else ''}{reason}. {remedy}"


def _row_of(model_type: str) -> Unsupported | None:
    """Return the row of the longest beginning that a `model_type` has, in any case."""
    found = [(len(each), row) for row in UNSUPPORTED for each in row.types if model_type.lower().startswith(each)]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _nearest_name(model_type: str) -> str | None:
    """Return the family whose `model_type` begins most like this one. At least its first word must be the same."""

    def likeness(known: str) -> tuple[int, float]:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(known, model_type.lower()))
        return len(list(same)), difflib.SequenceMatcher(None, known, model_type.lower()).ratio()

    best = max(FAMILIES, key=likeness)
    return best if likeness(best)[0] >= len(best.split("_")[0]) else None


def _named(model_type: str) -> str:
    return f"{FAMILIES[model_type].name} ({model_type!r})"
