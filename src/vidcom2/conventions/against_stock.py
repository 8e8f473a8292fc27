"""Compares a model that a derived row hosts with its stock class, on frames of noise. It must pass what a row of the
table must, as far as one checkpoint can show it."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..configuration.compression_settings import CompressionSettings
from ..loading.applying import apply, remove
from ..loading.processors import restore, shorten
from ..modeling.compress import compress
from ..modeling.methods.compression import VideoTokens
from ..modeling.prompt.calls import MARKS, PER_TOKEN
from .derived_row import frame_side, noise, shown_at

RATIO = 0.25
# How far results may differ, by the size of their values: kernels round otherwise for tensors of another shape.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
NUM_NEW = 3  # a step that follows the prompt, and one that follows a step
GREEDY = {
    **{"max_new_tokens": NUM_NEW, "min_new_tokens": NUM_NEW, "do_sample": False, "num_beams": 1},
    **{"num_return_sequences": 1, "output_logits": True, "return_dict_in_generate": True},
}
TEXTS = ["What?", "Who is there, and why?"]


@dataclass(frozen=True)
class Comparison:
    """What was compared, and how it differs; an empty text if it does not."""

    what: str
    difference: str


@torch.no_grad()
def compare_with_stock(model: Any, processor: Any) -> list[Comparison]:
    """Return how a model differs when VidCom² hosts it, in the order in which a reader would ask.

    Args:
        model: of the stock class, whose family has a row. Afterwards it is again of that class, and each of its modules
            in its mode, also after an error.
        processor: its stock processor, which stays as it is.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        return _comparisons(model, processor)
    finally:
        for module, mode in modes:
            module.training = mode


def _comparisons(model: Any, processor: Any) -> list[Comparison]:
    frames = partial(noise, side=frame_side(processor))
    video, other, still = frames(8), frames(12, seed=1), frames(4).repeat_interleave(2, dim=0)
    asked = {"one video": [video], "two videos": [video, other]}
    stock = {name: written(model, processor, videos, TEXTS[:1]) for name, videos in asked.items()}
    of_still = written(model, processor, [still], TEXTS[:1])
    logits = {name: model(**inputs).logits for name, inputs in stock.items()}
    features, features_of_still = features_of(model, stock["one video"]), features_of(model, of_still)
    tokens = VideoTokens(features.float().unflatten(0, (int(stock["one video"]["video_grid_thw"][0, 0]), -1)))
    kept = features[compress(tokens, RATIO, compression_rounding="exact").indices]

    # All of them, since the config of a checkpoint that a hosted model saved has some.
    apply(model, **CompressionSettings(retention_ratio=RATIO, compression_rounding="exact").as_dict())
    short = copy.copy(processor)
    try:
        shorten(short, model.config)

        def last(of: Any, videos: list[Tensor], texts: list[str]) -> Tensor:
            return model(**written(model, of, videos, texts)).logits[:, -1]

        everything, found = {"retention_ratio": 1.0}, []
        for name, videos in asked.items():
            whole = partial(model, **stock[name], **everything)
            found.append(
                compared(f"{name}: all tokens stay", lambda call=whole: call().logits, lambda known=logits[name]: known)
            )
            by_short, by_stock = (partial(last, each, videos, TEXTS[:1]) for each in (short, processor))
            found.append(compared(f"{name}: a short prompt, and the stock one", by_short, by_stock))
        one = stock["one video"]
        by_name: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
            "the tokens that stay, and those that `compress` keeps": (lambda: features_of(model, one), lambda: kept),
            "two frames at a time": (
                lambda: features_of(model, one, vision_chunk_frames=2, **everything),
                lambda: features,
            ),
            "a still video": (lambda: features_of(model, of_still, **everything), lambda: features_of_still),
            "a padded batch, and its rows": (
                lambda: last(short, [video, other], TEXTS),
                lambda: torch.cat(
                    [last(short, [each], [text]) for each, text in zip((video, other), TEXTS, strict=True)]
                ),
            ),
        }
        found += [compared(name, *each) for name, each in by_name.items()]
        inputs = written(model, short, [video], TEXTS[:1])
        for positions in ("consecutive", "original"):
            both = [partial(_answer, model, inputs, each, compression_positions=positions) for each in (True, False)]
            found.append(compared(f"`generate`, and `forward`, at {positions} positions", *both))
        return found
    finally:
        remove(model)
        restore(short)


def _answer(model: Any, inputs: dict[str, Any], generates: bool, **settings: Any) -> Tensor:
    """Return the logits (NUM_NEW, vocabulary) of an answer, as `generate` computes them in steps, or as `forward` does
    at once, given the prompt with the answer."""
    marks = [mark for name in MARKS if (mark := getattr(model.config, name, None)) is not None]
    said = model.generate(**inputs, **GREEDY, **settings, suppress_tokens=marks)
    if generates:
        return torch.cat(said.logits)
    longer = {name: nn.functional.pad(inputs[name], (0, NUM_NEW - 1)) for name in PER_TOKEN if name in inputs}
    longer |= {"input_ids": said.sequences[:, :-1], "attention_mask": torch.ones_like(said.sequences[:, :-1])}
    return model(**inputs | longer, **settings).logits[0, -NUM_NEW:]


def compared(what: str, ours: Callable[[], Tensor], others: Callable[[], Tensor]) -> Comparison:
    """Compare two results, however far they come: an error is a difference, since the stock class raised none."""
    try:
        found, theirs = ours(), others()
    except Exception as error:  # of any kind, and the report says it
        return Comparison(what, f"{type(error).__name__}: {error}")
    if found.shape != theirs.shape:
        return Comparison(what, f"the shape is {tuple(found.shape)}, not {tuple(theirs.shape)}")
    difference, size = float((found - theirs).abs().max()), float(theirs.abs().max())
    is_close = difference <= TOLERANCE.get(theirs.dtype, 1e-3) * size  # also false for a NaN
    return Comparison(what, "" if is_close else f"by up to {difference:.1e}, of values up to {size:.1e}")


def written(model: Any, processor: Any, videos: list[Tensor], texts: list[str]) -> dict[str, Any]:
    """Return prompts as the model takes them: one with all videos, or as many as there are videos, with one of each."""
    shown = [{"type": "video"}] * (len(videos) // len(texts))
    chats = [[{"role": "user", "content": [*shown, {"type": "text", "text": text}]}] for text in texts]
    made = processor(
        text=[processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats],
        videos=videos,
        video_metadata=[shown_at(each) for each in videos],
        do_sample_frames=False,
        padding=True,
        padding_side="left",
        return_tensors="pt",
    )
    return dict(made.to(model.device, model.dtype))


def features_of(model: Any, inputs: dict[str, Any], **settings: Any) -> Tensor:
    """Return the features of a prompt's videos, (tokens, dim)."""
    encode = model.model.get_video_features
    names = inspect.signature(encode).parameters
    found = encode(**{name: value for name, value in inputs.items() if name in names}, **settings)
    return torch.cat([each.flatten(0, -2) for each in found.pooler_output])
