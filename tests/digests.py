"""What each family answers to prompts with videos, in tokens and numbers: `python tests/digests.py -o FILE`.

`tests/digests.json` holds what commit b08d7c7 answered on Transformers 5.24, when prompts of stock processors were
shortened inside `forward` and `generate`. Code that is built otherwise must answer the same. `exact` has the digests
with budgets of a fixed total, `ceil` those with Algorithm 1's.
"""

import argparse
import copy
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from models import MODELS, ModelCase, chat_prompt, make_image, make_video
from torch import Tensor

import vidcom2
from vidcom2.loading.processors import restore, shorten

RATIO = 0.25
FILE = Path(__file__).with_name("digests.json")
NEW = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
TEXT_MORE = (5, 6, 7)  # tokens of a further turn
TOP = 6  # of a row of logits, so many largest values are kept

Inputs = dict[str, Any]
Digest = dict[str, Any]


class Subject:
    """A tiny model of a family, with the processor that writes its prompts.

    Args:
        rounding: `compression_rounding`.
        short: whether the processor is this project's, which writes a placeholder for each token that stays.
    """

    def __init__(self, case: ModelCase, rounding: str = "exact", short: bool = False) -> None:
        self.case, self.short = case, short
        stock, self.processor = case.build(**case.build_arguments)
        self.model: Any = vidcom2.apply(stock, retention_ratio=RATIO, compression_rounding=rounding).eval()
        # This project's processor tells which frames are a video's.
        self.marks = not (case.family.runs_stock_prompts or short)
        if self.marks:
            shorten(self.processor, vidcom2.apply(case.build(**case.build_arguments)[0], retention_ratio=1.0).config)
        elif short:
            shorten(self.processor, self.model.config)
        else:
            restore(self.processor)
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0

    def prompt(self, question: str = "What happens?", videos: int = 1, images: int = 0) -> str:
        return chat_prompt(self.processor, question, videos, images)

    def inputs(self, texts: list[str], videos: list[Any], images: list[Any] | None = None) -> Inputs:
        """Return the processor's outputs for a padded batch of prompts."""
        processor: Any = self.processor
        media: dict[str, Any] = {"videos": list(videos)} | ({"images": list(images)} if images else {})
        if self.case.media_by_prompt and not self.case.takes_one_kind:
            for kind, token in (("images", processor.image_token), ("videos", processor.video_token)):
                if kind in media:
                    left = iter(media[kind])
                    media[kind] = [[next(left) for _ in range(text.count(token))] for text in texts]
        sampled = "fps" in vars(processor.video_processor) or self.case.frames_stand_apart
        found = processor(
            text=list(texts),
            **copy.deepcopy(media),
            padding=True,
            padding_side="left",
            return_tensors="pt",
            **{"do_sample_frames": False} if sampled else {},
        )
        if self.marks:
            found.pop("num_kept_video_tokens")
        return dict(found)

    def one(self, seed: int = 0, frames: int = 8, **prompt: Any) -> Inputs:
        return self.inputs([self.prompt(**prompt)], [make_video(seed, frames)])

    def two(self) -> Inputs:
        """Return a padded batch of two prompts, the second with two videos."""
        texts = [self.prompt("What?"), self.prompt("And who is it in here?", 2)]
        return self.inputs(texts, [make_video(1), make_video(2), make_video(3, unique_frame=2)])

    def beside_an_image(self) -> Inputs:
        return self.inputs([self.prompt(images=1)], [make_video(1)], [make_image(1)])

    def labels(self, inputs: Inputs) -> Tensor:
        """Return labels of the last four tokens alone, which are text."""
        ids = inputs["input_ids"]
        return torch.where(torch.arange(ids.shape[1]) >= ids.shape[1] - 4, ids, -100)

    def new_tokens(self, inputs: Inputs, **arguments: Any) -> Digest:
        """Return the new tokens, and by how much each that was chosen exceeds the next: small margins may turn."""
        asked = NEW | {"return_dict_in_generate": True, "output_logits": True} | arguments
        out = self.model.generate(**inputs, **asked)
        length, rows = inputs["input_ids"].shape[1], len(inputs["input_ids"])
        each = len(out.sequences) // rows
        assert torch.equal(out.sequences[::each, :length], inputs["input_ids"]), "the prompt changed"
        found: Digest = {"tokens": out.sequences[:, length:].tolist()}
        if not asked["do_sample"] and asked.get("num_beams", 1) == 1 and out.logits is not None:
            top = torch.stack(list(out.logits)).float().topk(2, dim=-1).values
            found["margin"] = float((top[..., 0] - top[..., 1]).min())
        if out.get("sequences_scores") is not None:
            found["numbers"] = rounded(out.sequences_scores)
        return found


def rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.6g}") for value in values.detach().double().flatten().tolist()]


def of_logits(row: Tensor) -> Digest:
    top = row.detach().float().topk(TOP, dim=-1)
    return {"tokens": top.indices.tolist(), "numbers": rounded(top.values)}


# ---------------------------------------------------------------------------------------------------------------------
# The checks
# ---------------------------------------------------------------------------------------------------------------------

CHECKS: dict[str, Callable[[Subject], Digest]] = {}


def check(function: Callable[[Subject], Digest]) -> Callable[[Subject], Digest]:
    CHECKS[function.__name__] = function
    return function


@check
def last_logits(of: Subject) -> Digest:
    with torch.no_grad():
        return of_logits(of.model(**of.one()).logits[:, -1])


@check
def loss(of: Subject) -> Digest:
    inputs = of.one()
    with torch.no_grad():
        return {"numbers": rounded(of.model(**inputs, labels=of.labels(inputs)).loss)}


@check
def gradients(of: Subject) -> Digest:
    inputs = of.one()
    of.model.zero_grad(set_to_none=True)
    of.model(**inputs, labels=of.labels(inputs)).loss.backward()
    norms = {name: value.grad.norm() for name, value in of.model.named_parameters() if value.grad is not None}
    of.model.zero_grad(set_to_none=True)
    groups: dict[str, list[Tensor]] = {}
    for name, norm in norms.items():
        groups.setdefault(".".join(name.split(".")[:2]), []).append(norm)
    return {"numbers": rounded(torch.stack([torch.stack(groups[name]).norm() for name in sorted(groups)]))}


@check
def greedy(of: Subject) -> Digest:
    return of.new_tokens(of.one())


@check
def sampled(of: Subject) -> Digest:
    torch.manual_seed(7)
    return of.new_tokens(of.one(), do_sample=True)


@check
def beams(of: Subject) -> Digest:
    return of.new_tokens(of.one(), num_beams=3, output_scores=True)


@check
def several_sequences(of: Subject) -> Digest:
    torch.manual_seed(8)
    return of.new_tokens(of.one(), do_sample=True, num_return_sequences=3)


@check
def static_cache(of: Subject) -> Digest:
    return of.new_tokens(of.one(), cache_implementation="static")


@check
def chunked_prefill(of: Subject) -> Digest:
    return of.new_tokens(of.one(), prefill_chunk_size=7)


@check
def prompt_lookup(of: Subject) -> Digest:
    return of.new_tokens(of.one(), prompt_lookup_num_tokens=2)


@check
def no_cache(of: Subject) -> Digest:
    return of.new_tokens(of.one(), use_cache=False)


@check
def padded_batch(of: Subject) -> Digest:
    return of.new_tokens(of.two())


@check
def beams_of_a_batch(of: Subject) -> Digest:
    return of.new_tokens(of.two(), num_beams=2, output_scores=True)


@check
def image_beside(of: Subject) -> Digest:
    return of.new_tokens(of.beside_an_image())


@check
def second_and_third_turn(of: Subject) -> Digest:
    return _turns(of, of.one(), [None, None])


@check
def second_turn_of_a_batch(of: Subject) -> Digest:
    return _turns(of, of.two(), [None])


@check
def second_turn_with_a_video(of: Subject) -> Digest:
    return _turns(of, of.one(), [of.one(seed=9, frames=4, question="And here?"), None])


@check
def interleaved_chats(of: Subject) -> Digest:
    other = of.one(seed=9, frames=4, question="Something quite different?")
    return _turns(of, of.one(), [None], between=lambda: of.model.generate(**other, **NEW))


@check
def loop_by_hand(of: Subject) -> Digest:
    inputs, tokens = of.one(), []
    with torch.no_grad():
        out = of.model(**inputs, use_cache=True)
        mask = inputs["attention_mask"]
        for _ in range(5):
            tokens.append(out.logits[:, -1:].argmax(-1))
            mask = torch.cat([mask, mask[:, :1]], 1)
            cache = out.past_key_values
            out = of.model(input_ids=tokens[-1], attention_mask=mask, past_key_values=cache, use_cache=True)
    return {"tokens": torch.cat(tokens, 1).tolist()}


def _turns(of: Subject, inputs: Inputs, more: list[Inputs | None], between: Callable[[], Any] | None = None) -> Digest:
    """Continue a conversation. Each turn passes all of it with the cache, and the media of the turn alone."""
    found, cache, margins = [], None, []
    given = inputs
    for turn in [*more, None]:
        out = of.model.generate(
            **given,
            **NEW,
            return_dict_in_generate=True,
            output_logits=True,
            **({} if cache is None else {"past_key_values": cache}),
        )
        length = given["input_ids"].shape[1]
        found.append(out.sequences[:, length:].tolist())
        top = torch.stack(list(out.logits)).float().topk(2, dim=-1).values
        margins.append(float((top[..., 0] - top[..., 1]).min()))
        if between is not None:
            between()
        cache = out.past_key_values
        ids = torch.cat([out.sequences, torch.tensor([TEXT_MORE]).expand(len(out.sequences), -1)], 1)
        mask, given = given["attention_mask"], {}
        if turn is not None:
            ids = torch.cat([ids, turn["input_ids"]], 1)
            given = {k: v for k, v in turn.items() if k not in ("input_ids", "attention_mask")}
            for name in ("mm_token_type_ids", "token_type_ids"):
                if name in given:
                    given[name] = torch.nn.functional.pad(given[name], (ids.shape[1] - given[name].shape[1], 0))
        mask = torch.cat([mask, mask.new_ones(len(ids), ids.shape[1] - mask.shape[1])], 1)
        given |= {"input_ids": ids, "attention_mask": mask}
    return {"tokens": found, "margin": min(margins)}


def alike(digest: Digest, other: Digest) -> bool:
    """Whether two digests are the same up to float noise. Tokens that won by next to nothing may differ."""
    if "error" in digest or "error" in other:
        return "error" in digest and "error" in other
    numbers = zip(digest.get("numbers", ()), other.get("numbers", ()), strict=True)
    same = all(abs(one - two) <= 1e-4 * max(1.0, abs(two)) for one, two in numbers)
    is_tie = other.get("margin", 1.0) < 1e-5
    return same and (is_tie or digest.get("tokens") == other.get("tokens"))


def digests(
    cases: list[ModelCase], rounding: str, short: bool = False, only: list[str] | None = None
) -> Iterator[tuple[str, str, Digest]]:
    """Yield the name of a family, of a check, and its digest; `{"error": ...}` for what is refused."""
    for case in cases:
        of = Subject(case, rounding, short)
        for name in only or CHECKS:
            try:
                found = CHECKS[name](of)
            except (ValueError, TypeError, IndexError, RuntimeError) as error:
                found = {"error": f"{type(error).__name__}: {error}"[:200]}
            yield case.name, name, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rounding", nargs="+", default=["exact", "ceil"])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", nargs="+")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    cases = [case for case in MODELS if case.loads_here and (not arguments.families or case.name in arguments.families)]
    found: dict[str, Any] = {}
    for rounding in arguments.rounding:
        for family, name, digest in digests(cases, rounding, arguments.short, arguments.only):
            found.setdefault(rounding, {}).setdefault(family, {})[name] = digest
            print(rounding, family, name, digest.get("error", "ok"), flush=True)
    lines = [
        f'  "{rounding}": {{\n'
        + ",\n".join(
            f'    "{family}": {{\n'
            + ",\n".join(f'      "{name}": {json.dumps(each)}' for name, each in checks.items())
            + "\n    }"
            for family, checks in families.items()
        )
        + "\n  }"
        for rounding, families in found.items()
    ]
    arguments.output.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
