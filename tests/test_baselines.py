"""The paper's baselines inside the language model, benchmarks/methods/pruning_*.py: beside plain loops over the stock
model with dropped tokens masked."""

import copy
import math
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from models import chat_prompt, make_video
from torch import Tensor

from benchmarks.methods.inside_language_model import Pruning, kept_tokens, pruned_answers
from benchmarks.methods.pruning_fastv import FastV
from benchmarks.methods.pruning_pyramiddrop import PyramidDrop
from benchmarks.methods.pruning_sparsevlm import SparseVLM, num_recycled
from benchmarks.needle.candidates import IN_MODEL, SEEN_ALL
from vidcom2 import CompressionSettings, compress, frame_budgets
from vidcom2.asking.candidates import Candidate
from vidcom2.evaluation.evaluate import evaluate
from vidcom2.judging.questions import Question
from vidcom2.loading.checkpoints import load_checkpoint
from vidcom2.tiny.llava import tiny_llava_onevision
from vidcom2.tiny.qwen import tiny_qwen2_vl, tiny_qwen3_vl
from vidcom2.toys import PREFIX, TOYS

NUM_LAYERS, NUM_FRAMES, RATIO, NEW_TOKENS = 4, 8, 0.55, 4
QUESTIONS = ("What happens?", "Is it a cat, a dog or a bird that shows up?")
every_method = pytest.mark.parametrize("method", IN_MODEL.values())


class Tiny(NamedTuple):
    """A stock model, prompts of two rows, and the number of video tokens N and of a frame's M."""

    model: Any
    inputs: Any
    num_tokens: int
    tokens_per_frame: int

    def row(self, row: int) -> dict[str, Tensor]:
        """Return the inputs of one row, without its padding."""
        mask = self.inputs["attention_mask"][row].bool()
        rows = len(self.inputs["input_ids"])
        of_tokens = ("input_ids", "attention_mask", "mm_token_type_ids")
        parts = {name: each.chunk(rows)[row] for name, each in self.inputs.items()}
        return {name: each[:, mask] if name in of_tokens else each for name, each in parts.items()}


@pytest.fixture(scope="module", params=["llava_onevision", "qwen3_vl"])
def tiny(request: pytest.FixtureRequest) -> Tiny:
    """Build a model whose attention is far from uniform, so that a rank by attention means something."""
    is_llava = request.param == "llava_onevision"
    build = partial(tiny_llava_onevision, image_size=112) if is_llava else tiny_qwen3_vl
    model, processor = build(num_layers=NUM_LAYERS)
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8 if is_llava else 3)
    prompts = [chat_prompt(processor, question, videos=1) for question in QUESTIONS]
    videos = [make_video(seed, NUM_FRAMES) for seed in range(2)]
    inputs = processor(text=prompts, videos=videos, padding=True, padding_side="left", return_tensors="pt")
    num_tokens = int((inputs["input_ids"][0] == model.config.video_token_id).sum()) - is_llava
    return Tiny(model, inputs, num_tokens, num_tokens // (NUM_FRAMES if is_llava else NUM_FRAMES // 2))


def answers(model: Any, inputs: Any, **arguments: Any) -> Any:
    """Return the answer of `generate`, with its logits as (B, n, vocabulary)."""
    more = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True} | arguments
    output = model.generate(**inputs, max_new_tokens=NEW_TOKENS, eos_token_id=None, **more)
    output.logits = torch.stack(output.logits, dim=1)
    return output


def pruning_of(method: type[Pruning], tiny: Tiny, inputs: Any, ratio: float = RATIO, *more: Any) -> Pruning:
    return method(tiny.model, ratio, inputs["input_ids"], inputs["attention_mask"], *more)


# -- the slow way -----------------------------------------------------------------------------------------------------


class MaskedRun:
    """Runs the whole prompt, from which nothing is taken, again for each drop and each new token, without a cache.
    Dropped tokens are masked in all later layers, in eager attention."""

    def __init__(self, model: Any, inputs: dict[str, Tensor]) -> None:
        self.model, self.inputs = copy.deepcopy(model), inputs
        self.model.set_attn_implementation("eager")
        self.gone: list[list[int]] = [[] for _ in range(NUM_LAYERS)]  # the places that each layer does not see
        self.replaced: list[dict[int, Tensor]] = [{} for _ in range(NUM_LAYERS)]  # states that enter each layer
        self.states: list[Tensor] = [torch.empty(0)] * NUM_LAYERS
        self.attention: list[Tensor] = [torch.empty(0)] * NUM_LAYERS
        for index, layer in enumerate(self.model.model.language_model.layers):
            layer.register_forward_pre_hook(partial(self._enter, index), with_kwargs=True)
            layer.self_attn.register_forward_hook(partial(self._attended, index))

    def _enter(self, index: int, layer: Any, args: tuple[Tensor], kwargs: dict[str, Any]) -> Any:
        hidden = args[0].clone()
        for place, state in self.replaced[index].items():
            hidden[0, place] = state
        self.states[index] = hidden[0]
        mask = torch.full((hidden.shape[1], hidden.shape[1]), -1e30).triu(1)
        mask[:, self.gone[index]] = -1e30
        return (hidden,), {**kwargs, "attention_mask": mask[None, None]}

    def _attended(self, index: int, layer: Any, args: Any, output: tuple[Tensor, Tensor]) -> None:
        self.attention[index] = output[1][0].mean(dim=0)  # over the heads: (queries, keys)

    @torch.no_grad()
    def logits(self, new: list[int]) -> Tensor:
        ids = torch.cat([self.inputs["input_ids"], torch.tensor([new], dtype=torch.long)], dim=1)
        inputs = {**self.inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if "mm_token_type_ids" in inputs:
            inputs["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, len(new)))
        return self.model(**inputs, use_cache=False).logits[0, -1]


def plain_clusters(states: Tensor, scores: list[float], number: int) -> dict[int, Tensor]:
    """Return the centres of clusters by density peaks, and their means, with loops in float64."""
    best = sorted(range(len(scores)), key=lambda i: -scores[i])[: math.floor(len(scores) * 0.3) + 1]
    points = [states[i].double() for i in best]
    distance = [[float(torch.linalg.vector_norm(p - q)) / math.sqrt(len(p)) for q in points] for p in points]
    density = [math.exp(-sum(d * d for d in sorted(row)[:number]) / number) for row in distance]
    furthest = max(map(max, distance))
    numbers = range(len(points))
    delta = [
        min([distance[i][j] for j in numbers if (density[j], -j) > (density[i], -i)], default=furthest) for i in numbers
    ]
    centres = sorted(numbers, key=lambda i: -density[i] * delta[i])[:number]
    groups: list[list[Tensor]] = [[] for _ in centres]
    for i, point in enumerate(points):
        nearest = min(range(number), key=lambda c: distance[i][centres[c]])
        groups[centres.index(i) if i in centres else nearest].append(point)
    return {best[c]: torch.stack(group).mean(dim=0).float() for c, group in zip(centres, groups)}


def raters(run: MaskedRun, video: list[int], text: list[int]) -> list[int]:
    """Return the text tokens to which the video's embeddings are at least as similar as to the text's mean."""
    embeddings, relevance = run.states[0].double(), torch.zeros(len(text), dtype=torch.float64)
    for place in video:
        relevance += torch.stack([embeddings[place] @ embeddings[t] for t in text]).softmax(dim=0)
    found = [t for t, rating in zip(text, relevance / len(video)) if rating >= 1 / len(text) - 1e-7]
    assert 0 < len(found) < len(text)
    return found


def slow_answer(tiny: Tiny, method: type[Pruning], adjusted: bool) -> tuple[list[int], Tensor, list[int]]:
    """Return the new tokens of the second prompt, their logits, and how many video tokens each layer sees."""
    inputs = tiny.row(1)
    run, ids = MaskedRun(tiny.model, inputs), inputs["input_ids"][0].tolist()
    placeholders = [place for place, token in enumerate(ids) if token == tiny.model.config.video_token_id]
    video, text = placeholders[: tiny.num_tokens], list(range(placeholders[-1] + 1, len(ids)))
    drops = method.drops_after(RATIO, NUM_LAYERS)
    kept = kept_tokens(RATIO, NUM_LAYERS, drops, tiny.num_tokens, method.fewest)
    alive, held = video, [len(video)] * NUM_LAYERS
    for after, number in zip(drops, kept, strict=True):
        run.logits([])
        queries = raters(run, video, text) if method is SparseVLM else [len(ids) - 1]
        attention = run.attention[after if method is PyramidDrop else after - 1]
        score = {place: float(sum(attention[q, place] for q in queries)) / len(queries) for place in alive}
        made = 0
        if method is SparseVLM:
            made = max(c for c in range(number) if c <= num_recycled(len(alive) - number + c))
        ranked = sorted(alive, key=lambda place: (-score[place], place))
        if adjusted:
            states = run.states[0][video].view(-1, tiny.tokens_per_frame, run.states[0].shape[1])
            share = (number - made) / tiny.num_tokens
            settings = CompressionSettings(retention_ratio=share, compression_rounding="exact")
            u: Any = compress(states, 0.25).frame_uniqueness
            budgets, within, beyond = frame_budgets(u, tiny.tokens_per_frame, settings)[0].tolist(), [], []
            for place in ranked:
                frame = video.index(place) // tiny.tokens_per_frame
                budgets[frame] -= 1
                (within if budgets[frame] >= 0 else beyond).append(place)
            ranked = within + beyond
        chosen = ranked[: number - made]
        if made:
            dropped = [place for place in alive if place not in chosen]
            found = plain_clusters(run.states[after][dropped], [score[place] for place in dropped], made)
            run.replaced[after] |= {dropped[centre]: state for centre, state in found.items()}
            chosen += [dropped[centre] for centre in found]
        alive = sorted(chosen)
        for index in range(after, NUM_LAYERS):
            run.gone[index], held[index] = [place for place in video if place not in alive], len(alive)
    new: list[int] = []
    logits = []
    for _ in range(NEW_TOKENS):
        logits.append(run.logits(new))
        new.append(int(logits[-1].argmax()))
    return new, torch.stack(logits), held


@pytest.mark.parametrize("adjusted", [False, True], ids=["", "frame budgets"])
@every_method
def test_a_baseline_equals_the_whole_prompt_with_dropped_tokens_masked(
    tiny: Tiny, method: type[Pruning], adjusted: bool
) -> None:
    """So do its new tokens, and what the KV cache of each layer holds."""
    inputs, new_and_text = tiny.row(1), NEW_TOKENS - 1 - tiny.num_tokens
    with pruning_of(method, tiny, inputs, RATIO, tiny.tokens_per_frame if adjusted else None):
        got = answers(tiny.model, inputs)
    new, logits, held = slow_answer(tiny, method, adjusted)
    length = inputs["input_ids"].shape[1]
    assert got.sequences[0, length:].tolist() == new
    torch.testing.assert_close(got.logits[0], logits, atol=3e-4, rtol=1e-4)
    assert [each.keys.shape[2] - length - new_and_text for each in got.past_key_values.layers] == held
    assert sum(held) / NUM_LAYERS / tiny.num_tokens == pytest.approx(RATIO, abs=1 / tiny.num_tokens)
    assert (got.logits[0, 0] - answers(tiny.model, inputs).logits[0, 0]).abs().max() > 0.02  # it makes a difference


@every_method
def test_a_baseline_that_keeps_all_tokens_is_the_stock_model_bit_for_bit(tiny: Tiny, method: type[Pruning]) -> None:
    expected = answers(tiny.model, tiny.inputs)
    with pruning_of(method, tiny, tiny.inputs, 1.0):
        got = answers(tiny.model, tiny.inputs)
    assert torch.equal(got.logits, expected.logits) and torch.equal(got.sequences, expected.sequences)


@every_method
def test_the_answers_of_a_batch_equal_those_of_its_rows(tiny: Tiny, method: type[Pruning]) -> None:
    assert not tiny.inputs["attention_mask"].all()
    with pruning_of(method, tiny, tiny.inputs):
        together = answers(tiny.model, tiny.inputs)
    for row in range(2):
        with pruning_of(method, tiny, tiny.row(row)):
            alone = answers(tiny.model, tiny.row(row))
        torch.testing.assert_close(together.logits[row], alone.logits[0], atol=3e-4, rtol=1e-4)


def test_the_papers_ratios_give_the_papers_stages() -> None:
    def stages(method: type[Pruning], ratio: float, num_layers: int = 32, num_tokens: int = 576) -> dict[int, int]:
        drops = method.drops_after(ratio, num_layers)
        return dict(zip(drops, kept_tokens(ratio, num_layers, drops, num_tokens, method.fewest), strict=True))

    assert stages(FastV, 17 / 32) == {2: 288}  # K = 2 and half of the tokens: (2 + 30 / 2) / 32
    assert stages(PyramidDrop, 0.46875) == {8: 288, 16: 144, 24: 72}
    assert list(stages(SparseVLM, 1 / 3)) == [3, 7, 16]  # after layers 2, 6 and 15, counted from 0
    assert stages(SparseVLM, 0.15, 8, 400) == {1: 56, 2: 8, 4: 2}  # 400 + 56 + 2 · 8 + 4 · 2 = 480
    assert stages(FastV, 0.15, 8, 400) == {1: 11}  # 400 + 7 · 11 = 477
    for method in IN_MODEL.values():
        for num_layers in (8, 24, 28):
            for ratio in (0.15, 0.25, 0.5, 0.95, 1.0):
                found = stages(method, ratio, num_layers)
                held = [next((found[d] for d in sorted(found)[::-1] if d <= i), 576) for i in range(num_layers)]
                assert held == sorted(held, reverse=True)
                assert sum(held) / num_layers == pytest.approx(576 * ratio, abs=0.5)
        for ratio in (0.1, 1.01):
            with pytest.raises(ValueError, match=f"retention_ratio={ratio} is out of reach by drops after layers"):
                stages(method, ratio, 8)


def test_a_tie_keeps_the_earlier_token() -> None:
    pruning = object.__new__(FastV)
    pruning.tokens_per_frame, pruning.scores = None, torch.tensor([[9.0, 3, 3, 5, 3, 9]])
    left = torch.tensor([[False, True, True, True, True, False]])
    assert pruning.best(left, 3).nonzero()[:, 1].tolist() == [1, 2, 3]


def test_models_prompts_and_calls_that_a_baseline_cannot_do_are_refused_and_leave_no_hook(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = tiny.model, tiny.inputs
    ids, mask, token = inputs["input_ids"], inputs["attention_mask"], model.config.video_token_id
    fewer, ends = ids.clone(), ids[:, : int((ids[0] == token).nonzero()[-1]) + 1]
    fewer[1, (ids[1] == token).nonzero()[0]] = 0
    with pytest.raises(ValueError, match="a Qwen2VLForConditionalGeneration with 'sdpa' attention is not"):
        FastV(tiny_qwen2_vl()[0], RATIO, ids, mask)
    for bad_ids, bad_mask in ((fewer, mask), (ids * 0, mask), (ends, mask[:, : ends.shape[1]]), (ids, mask.flip(1))):
        with pytest.raises(ValueError, match=r"must have equally many, with text after them and padding on the left"):
            FastV(model, RATIO, bad_ids, bad_mask)
    with (
        pytest.raises(ValueError, match=r"a layer gets .* Call `generate` once, without beams, drafts, chunks"),
        pruning_of(FastV, tiny, tiny.row(0)),
    ):
        answers(model, tiny.row(0), num_beams=2)
    with pytest.raises(ValueError, match="a layer gets"), pruning_of(FastV, tiny, tiny.row(0)):
        answers(model, tiny.row(0))
        answers(model, tiny.row(0))
    for layer in model.get_decoder().layers:
        assert not layer._forward_pre_hooks and not layer._forward_hooks
    monkeypatch.setattr(model.config.get_text_config(), "_attn_implementation_internal", "flash_attention_2")
    with pytest.raises(ValueError, match="with 'flash_attention_2' attention"):
        pruning_of(FastV, tiny, inputs)


@pytest.mark.parametrize("name", SEEN_ALL)
def test_the_benchmark_asks_the_baselines_as_it_asks_all_tokens(name: str, tmp_path: Any) -> None:
    """At a ratio of 1 the answers are those of all tokens. A ratio that is out of reach is refused."""
    clips = TOYS[name].clips
    questions = [Question(f"{i}", str(clip.path), clip.question, (clip.answer,)) for i, clip in enumerate(clips)]
    candidates = [
        Candidate(f"{label} {ratio}", ratio, answer=partial(pruned_answers, method=method, ratio=ratio))
        for label, method in IN_MODEL.items()
        for ratio in (1.0, 0.25, 0.05)
    ]
    rows = evaluate(
        load_checkpoint(f"{PREFIX}{name}", device="cpu"),
        questions,
        candidates,
        tmp_path / "answers.jsonl",
        num_frames=16,
        max_new_tokens=5,
    )
    for row in rows:
        for label in IN_MODEL:
            all_tokens, whole, quarter, few = (
                row["answers"][each]
                for each in ("all tokens", f"{label} 1.0", f"{label} 0.25 0.25", f"{label} 0.05 0.05")
            )
            assert whole["text"] == all_tokens["text"] and whole["kept_share"] == 1
            assert quarter["kept_share"] == pytest.approx(0.25, abs=0.002)
            assert "is out of reach" in few["refused"]
