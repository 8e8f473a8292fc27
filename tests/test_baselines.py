"""The baselines of benchmarks/baselines equal plain loops and the stock model with the dropped tokens masked."""

import copy
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import only
from models import make_image, make_video
from torch import Tensor, nn
from transformers import BatchFeature, LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessor

from benchmarks.baselines import BASELINES, downscale, fastv, in_model_pruning, pyramiddrop, sparsevlm
from benchmarks.baselines.prompts import Prompt, read_prompt
from benchmarks.baselines.schedules import Stage
from vidcom2 import CompressionSettings, compress, frame_budgets
from vidcom2.tiny.llava import tiny_llava_onevision
from vidcom2.tiny.qwen import tiny_qwen2_vl

NUM_FRAMES, TOKENS_PER_FRAME, NUM_LAYERS = 8, 16, 4
NUM_VIDEO_TOKENS = NUM_FRAMES * TOKENS_PER_FRAME
IN_MODEL = {"fastv": fastv, "pyramiddrop": pyramiddrop, "sparsevlm": sparsevlm}
RATIO = 0.6
MAX_NEW_TOKENS = 4
QUESTIONS = ("What happens?", "Is it a cat, a dog or a bird that shows up?")

Tiny = tuple[LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessor]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    """Build a stock model whose attention is far from uniform, so that ranking by attention means something."""
    model, processor = tiny_llava_onevision(image_size=112, num_layers=NUM_LAYERS)  # 8 x 8 patches, 4 x 4 tokens
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    return model, processor


def make_inputs(processor: LlavaOnevisionProcessor, *questions: str, padding_side: str = "left") -> BatchFeature:
    prompts = []
    for question in questions:
        content = [{"type": "video"}, {"type": "text", "text": question}]
        prompts.append(
            processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        )
    videos = [make_video(seed, NUM_FRAMES) for seed in range(len(prompts))]
    return processor(text=prompts, videos=videos, padding=True, padding_side=padding_side, return_tensors="pt")


def stock_answer(model: LlavaOnevisionForConditionalGeneration, inputs: BatchFeature) -> Tensor:
    output = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    return output[:, inputs["input_ids"].shape[1] :]


# The slow way. Nothing leaves the hidden states. Dropped tokens are masked in all later layers, by eager attention over
# the full prompt, which runs again for each stage and each new token.


class MaskedRun:
    def __init__(self, model: LlavaOnevisionForConditionalGeneration, inputs: BatchFeature) -> None:
        self.model = copy.deepcopy(model)
        self.model.set_attn_implementation("eager")
        self.inputs = dict(inputs)
        self.dropped: list[set[int]] = [set() for _ in range(NUM_LAYERS)]  # the positions that each layer does not see
        self.replaced: list[dict[int, Tensor]] = [
            {} for _ in range(NUM_LAYERS)
        ]  # the replaced states that enter each layer, by position
        self.states: dict[int, Tensor] = {}
        self.attention: dict[int, Tensor] = {}
        for index, layer in enumerate(self.model.model.language_model.layers):
            layer.register_forward_pre_hook(self._enter(index), with_kwargs=True)
            layer.self_attn.register_forward_hook(self._attended(index))

    def _enter(self, index: int) -> Callable[..., Any]:
        def hook(layer: nn.Module, args: tuple[Tensor], kwargs: dict[str, Any]) -> Any:
            hidden = args[0].clone()
            for position, state in self.replaced[index].items():
                hidden[0, position] = state
            self.states[index] = hidden[0]
            length = hidden.shape[1]
            mask = torch.full((length, length), -1e30).triu(1)
            mask[:, sorted(self.dropped[index])] = -1e30
            return (hidden,), {**kwargs, "attention_mask": mask[None, None]}

        return hook

    def _attended(self, index: int) -> Callable[..., None]:
        def hook(attention: nn.Module, args: Any, output: tuple[Tensor, Tensor]) -> None:
            self.attention[index] = output[1][0].mean(dim=0)  # over heads: (queries, keys)

        return hook

    @torch.no_grad()
    def logits(self, new_tokens: list[int]) -> Tensor:
        ids = torch.cat([self.inputs["input_ids"], torch.tensor([new_tokens], dtype=torch.long)], dim=1)
        inputs = {**self.inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return self.model(**inputs, use_cache=False).logits[0, -1]


def plain_recycle(states: Tensor, scores: list[float], num_clusters: int) -> tuple[list[int], list[Tensor]]:
    """Cluster by density peaks, with loops in float64."""
    best = sorted(range(len(scores)), key=lambda i: -scores[i])[: math.floor(len(scores) * 0.3) + 1]
    points = [states[i].double() for i in best]
    distance = [[float(torch.linalg.vector_norm(p - q)) / math.sqrt(len(p)) for q in points] for p in points]
    density = [math.exp(-sum(d * d for d in sorted(row)[:num_clusters]) / num_clusters) for row in distance]
    furthest = max(map(max, distance))
    delta = [
        min([distance[i][j] for j in range(len(points)) if (density[j], -j) > (density[i], -i)], default=furthest)
        for i in range(len(points))
    ]
    centres = sorted(range(len(points)), key=lambda i: -density[i] * delta[i])[:num_clusters]
    groups: list[list[Tensor]] = [[] for _ in centres]
    for i, point in enumerate(points):
        near = centres.index(i) if i in centres else min(range(num_clusters), key=lambda c: distance[i][centres[c]])
        groups[near].append(point)
    return [best[c] for c in centres], [torch.stack(group).mean(dim=0) for group in groups]


def slow_answer(
    model: LlavaOnevisionForConditionalGeneration, inputs: BatchFeature, name: str, frame_adjustment: bool
) -> tuple[list[int], Tensor]:
    """Return the new tokens of one prompt and their logits."""
    stages = IN_MODEL[name].stages(RATIO, NUM_LAYERS, NUM_VIDEO_TOKENS)
    run = MaskedRun(model, inputs)
    ids = inputs["input_ids"][0].tolist()
    first = ids.index(model.config.video_token_id)
    alive = list(range(first, first + NUM_VIDEO_TOKENS))  # the newline is not among them
    text = list(range(first + NUM_VIDEO_TOKENS + 1, len(ids)))
    for stage in stages:
        run.logits([])
        queries = [len(ids) - 1]
        if name == "sparsevlm":
            embeddings = run.states[0].double()
            raters = [0.0] * len(text)
            for position in range(first, first + NUM_VIDEO_TOKENS):
                likeness = torch.softmax(torch.stack([embeddings[position] @ embeddings[t] for t in text]), dim=0)
                raters = [so_far + float(x) / NUM_VIDEO_TOKENS for so_far, x in zip(raters, likeness)]
            queries = [t for t, rating in zip(text, raters) if rating >= sum(raters) / len(text)]
            assert 0 < len(queries) < len(text)
        attention = run.attention[stage.after if name == "pyramiddrop" else stage.after - 1]
        score = {p: float(sum(attention[q, p] for q in queries)) / len(queries) for p in alive}
        ranked = sorted(alive, key=lambda p: (-score[p], p))
        if frame_adjustment:
            video = run.states[0][first : first + NUM_VIDEO_TOKENS].view(NUM_FRAMES, TOKENS_PER_FRAME, -1)
            settings = CompressionSettings(
                retention_ratio=stage.selected / NUM_VIDEO_TOKENS, compression_rounding="exact"
            )
            uniqueness = compress(video, 0.25).frame_uniqueness
            assert uniqueness is not None
            budgets = frame_budgets(uniqueness, TOKENS_PER_FRAME, settings)[0].tolist()
            within, beyond = [], []
            for p in ranked:
                frame = (p - first) // TOKENS_PER_FRAME
                budgets[frame] -= 1
                (within if budgets[frame] >= 0 else beyond).append(p)
            ranked = within + beyond
        chosen = set(ranked[: stage.selected])
        dropped = [p for p in alive if p not in chosen]
        if stage.recycled:
            states = run.states[stage.after][dropped]
            centres, merged = plain_recycle(states, [score[p] for p in dropped], stage.recycled)
            for centre, state in zip(centres, merged):
                run.replaced[stage.after][dropped[centre]] = state.float()
                chosen.add(dropped[centre])
        alive = [p for p in alive if p in chosen]
        assert len(alive) == stage.kept
        gone = {p for p in range(first, first + NUM_VIDEO_TOKENS) if p not in chosen}
        for index in range(stage.after, NUM_LAYERS):
            run.dropped[index] = gone
    new_tokens: list[int] = []
    logits = []
    for _ in range(MAX_NEW_TOKENS):
        logits.append(run.logits(new_tokens))
        new_tokens.append(int(logits[-1].argmax()))
    return new_tokens, torch.stack(logits)


@pytest.mark.parametrize("frame_adjustment", [False, True], ids=["", "frame_adjustment"])
@pytest.mark.parametrize("name", IN_MODEL)
def test_a_baseline_equals_the_full_prompt_with_dropped_tokens_masked(
    tiny: Tiny, name: str, frame_adjustment: bool
) -> None:
    model, processor = tiny
    inputs = make_inputs(processor, QUESTIONS[1])
    answer = BASELINES[name](model, inputs, RATIO, MAX_NEW_TOKENS, frame_adjustment=frame_adjustment)
    new_tokens, logits = slow_answer(model, inputs, name, frame_adjustment)
    assert answer.token_ids[0].tolist() == new_tokens
    torch.testing.assert_close(answer.logits[0], logits, atol=2e-4, rtol=1e-4)
    full = BASELINES[name](model, inputs, 1.0, MAX_NEW_TOKENS)
    assert (answer.logits[0, 0] - full.logits[0, 0]).abs().max() > 0.02  # what is dropped makes a difference


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_that_keeps_everything_equals_the_stock_model(tiny: Tiny, name: str) -> None:
    model, processor = tiny
    inputs = make_inputs(processor, *QUESTIONS)
    answer = BASELINES[name](model, inputs, 1.0, MAX_NEW_TOKENS)
    assert torch.equal(answer.token_ids, stock_answer(model, inputs))
    assert answer.retention_ratio == 1.0
    assert answer.tokens_per_layer == [NUM_VIDEO_TOKENS] * NUM_LAYERS


def test_rows_of_a_batch_end_as_in_generate(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = tiny
    inputs = make_inputs(processor, *QUESTIONS)
    full = stock_answer(model, inputs)
    monkeypatch.setattr(model.generation_config, "eos_token_id", [int(full[0, 1])])
    stock = stock_answer(model, inputs)
    assert stock[0].tolist()[2:] != full[0].tolist()[2:]  # the first row is padded after its end
    assert torch.equal(fastv.answer(model, inputs, 1.0, MAX_NEW_TOKENS).token_ids, stock)
    both = [int(token) for token in full[:, 1]]
    monkeypatch.setattr(model.generation_config, "eos_token_id", both)
    assert torch.equal(fastv.answer(model, inputs, 1.0, MAX_NEW_TOKENS).token_ids, stock_answer(model, inputs))


@only(lambda name, frame_adjustment: not (name == "downscale" and frame_adjustment))
@pytest.mark.parametrize("frame_adjustment", [False, True], ids=["", "frame_adjustment"])
@pytest.mark.parametrize("name", BASELINES)
def test_a_padded_batch_equals_its_rows_alone(tiny: Tiny, name: str, frame_adjustment: bool) -> None:
    model, processor = tiny
    inputs = make_inputs(processor, *QUESTIONS)
    assert not inputs["attention_mask"].all()
    positions = read_prompt(model, inputs).positions
    for row, mask in enumerate(inputs["attention_mask"].bool()):
        assert positions[row, mask].tolist() == list(range(int(mask.sum())))
    together = BASELINES[name](model, inputs, RATIO, MAX_NEW_TOKENS, frame_adjustment=frame_adjustment)
    for row, mask in enumerate(inputs["attention_mask"].bool()):
        alone = {name: inputs[name][row : row + 1, mask] for name in ("input_ids", "attention_mask")}
        alone["pixel_values_videos"] = inputs["pixel_values_videos"][row : row + 1]
        answer = BASELINES[name](model, alone, RATIO, MAX_NEW_TOKENS, frame_adjustment=frame_adjustment)
        assert torch.equal(answer.token_ids[0], together.token_ids[row])
        torch.testing.assert_close(answer.logits[0], together.logits[row], atol=2e-4, rtol=1e-4)
        assert answer.tokens_per_layer == together.tokens_per_layer


@pytest.mark.parametrize("name", IN_MODEL)
def test_video_features_can_replace_pixels(tiny: Tiny, name: str) -> None:
    model, processor = tiny
    inputs = make_inputs(processor, *QUESTIONS)
    with torch.no_grad():
        features = model.get_video_features(inputs["pixel_values_videos"]).pooler_output
    text = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    answer = BASELINES[name](model, text, RATIO, MAX_NEW_TOKENS, video_features=features)
    assert torch.equal(answer.logits, BASELINES[name](model, inputs, RATIO, MAX_NEW_TOKENS).logits)


@pytest.fixture
def lengths(tiny: Tiny) -> Iterator[list[int]]:
    """Collect how many tokens each call of a layer of the language model sees."""
    lengths: list[int] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, args: lengths.append(args[0].shape[1]))
        for layer in tiny[0].model.language_model.layers
    ]
    yield lengths
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("ratio", [0.4, 0.75])
@pytest.mark.parametrize("name", BASELINES)
def test_the_layers_keep_the_retention_ratio_on_average(
    tiny: Tiny, lengths: list[int], name: str, ratio: float
) -> None:
    model, processor = tiny
    inputs = make_inputs(processor, QUESTIONS[0])
    answer = BASELINES[name](model, inputs, ratio, max_new_tokens=1)
    others = inputs["input_ids"].shape[1] - NUM_VIDEO_TOKENS
    assert [length - others for length in lengths] == answer.tokens_per_layer
    assert answer.retention_ratio == sum(answer.tokens_per_layer) / (NUM_LAYERS * NUM_VIDEO_TOKENS)
    # Scaled down, a frame of 16 tokens has 6 or 12, which is nearest to 40 % and 75 %.
    nearest = 0.4 / 16 if name == "downscale" else 1 / (2 * NUM_VIDEO_TOKENS)
    assert abs(answer.retention_ratio - ratio) <= nearest + 1e-9


@pytest.mark.parametrize("num_tokens", [576, 6272])
@pytest.mark.parametrize("num_layers", [3, 24, 28])
@pytest.mark.parametrize("name", IN_MODEL)
def test_stages_reach_each_ratio_above_the_first_drop(name: str, num_layers: int, num_tokens: int) -> None:
    stages_of = IN_MODEL[name].stages
    for ratio in (0.15, 0.25, 0.4, 0.5, 0.77, 0.95, 1.0):
        if num_layers == 3 and ratio < 0.35:
            with pytest.raises(ValueError, match=rf"retention_ratio={ratio} cannot be reached.*at least 0.3\d* of the"):
                stages_of(ratio, num_layers, num_tokens)
            continue
        kept_in = [num_tokens] * num_layers
        for after, selected, recycled in stages_of(ratio, num_layers, num_tokens):
            dropped = kept_in[-1] - selected
            # The authors' code makes clusters of the best 30 %, one for every ten tokens.
            clusters = (int(dropped * 0.3) + 1) // 10 + 1 if name == "sparsevlm" and dropped else 0
            assert recycled == clusters
            kept_in[after:] = [selected + recycled] * (num_layers - after)
        assert abs(sum(kept_in) / num_layers / num_tokens - ratio) <= 1 / (2 * num_tokens) + 1e-12
        assert sorted(kept_in, reverse=True) == kept_in


def test_the_papers_settings_give_the_papers_stages() -> None:
    assert fastv.stages(0.5, 3, 576) == [Stage(1, 144)]  # (576 + 144 + 144) / 3 = 288
    assert fastv.stages(17 / 32, 32, 576) == [Stage(2, 288)]  # K = 2 and half of the tokens: (2 + 30 / 2) / 32
    assert fastv.stages(0.75, 4, 100, layer=2) == [Stage(2, 50)]
    assert pyramiddrop.stages(0.46875, 32, 576) == [Stage(8, 288), Stage(16, 144), Stage(24, 72)]
    assert pyramiddrop.stages(0.5, 4, 64, layers=[1, 2]) == [Stage(1, 32), Stage(2, 16)]  # 64 + 32 + 2·16 = 4·32
    assert sparsevlm.default_layers(32) == [3, 7, 16]
    assert sparsevlm.stages(0.75, 2, 100, layers=[1]) == [Stage(1, 48, 2)]  # 52 dropped, 16 of them make 2 tokens


def test_stages_refuse_impossible_layers_and_ratios() -> None:
    for layers in ([], [0], [3], [2, 1], [1, 1]):
        with pytest.raises(ValueError, match="ascending numbers from 1 to 2"):
            pyramiddrop.stages(0.9, 3, 100, layers=layers)
    with pytest.raises(ValueError, match="layers to drop after are \\[3\\]"):
        fastv.stages(0.9, 3, 100, layer=3)
    for ratio in (0, -0.1, 1.1, math.nan):
        for stages_of in (fastv.stages, pyramiddrop.stages, sparsevlm.stages):
            with pytest.raises(ValueError, match="not in \\(0, 1\\]"):
                stages_of(ratio, 3, 100)
        with pytest.raises(ValueError, match="not in \\(0, 1\\]"):
            downscale.smaller_grid(ratio, (6, 6))


def test_attention_is_ranked_as_computed_by_hand() -> None:
    """With one head and no rotation, a query's attention over the tokens before it is proportional to e^key."""
    identity = nn.Identity()
    attention = SimpleNamespace(
        q_proj=lambda x: torch.tensor([1.0, 0.0]).expand_as(x),
        k_proj=lambda x: x,
        head_dim=2,
        scaling=1.0,
        num_key_value_groups=1,
    )
    layer: Any = SimpleNamespace(self_attn=attention, input_layernorm=identity)
    shares = torch.tensor([[9.0, 1, 4, 3, 1, 1], [7, 1, 4, 3, 1, 1]])  # the first token is padding in row 0
    hidden = torch.stack([shares.log(), torch.zeros_like(shares)], dim=-1)
    rotary = (torch.ones(2, 6, 2), torch.zeros(2, 6, 2))
    mask = torch.tensor([[False] + [True] * 5, [True] * 6])
    weights = torch.tensor([[0.0, 1.0], [0.5, 0.5]])  # the last token counts; then the last two
    received = in_model_pruning.attention_received(layer, hidden, rotary, mask, weights)
    by_hand = torch.tensor([[0, 1, 4, 3, 1, 1], [7, 1, 4, 3, 1, 1]]) / torch.tensor([[10.0], [17]])
    before_last = torch.tensor([7.0, 1, 4, 3, 1, 0]) / 16
    by_hand[1] = (by_hand[1] + before_last) / 2
    torch.testing.assert_close(received, by_hand)

    places = torch.tensor([[-1, 0, 1, 2, -1, -1], [-1, 0, 1, 2, 3, -1]])
    best = in_model_pruning.highest_scores(received, places, 2)
    assert best.nonzero().tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]


def test_highest_scores_prefer_the_earlier_token_and_respect_frame_budgets() -> None:
    places = torch.tensor([[-1, 0, 1, 2, 3, 4, 5, -1]])  # two frames of three tokens
    scores = torch.tensor([[9.0, 3, 3, 3, 5, 1, 4, 9]])

    def kept(number: int, budgets: list[int] | None = None) -> list[int]:
        frames = None if budgets is None else torch.tensor([budgets])
        chosen = in_model_pruning.highest_scores(scores, places, number, frames, tokens_per_frame=3)
        return places[0, chosen[0]].tolist()

    assert kept(3) == [0, 3, 5]
    assert kept(3, [2, 1]) == [0, 1, 3]
    assert kept(3, [3, 0]) == [0, 1, 2]
    assert kept(1, [1, 1]) == [3]  # with fewer tokens than frames, the best of the frames' best are kept
    assert kept(5, [1, 3]) == [0, 1, 3, 4, 5]  # a budget that is too small is filled by score


def test_dropped_tokens_are_recycled_as_computed_by_hand() -> None:
    """The seven best of twenty dropped tokens are recycled: four around the origin, three around (6, 8)."""
    states = torch.full((20, 2), 100.0)
    near = [[0.0, 0], [0.2, 0], [-0.2, 0], [0, 0.4]]
    far = [[6.0, 8], [6.3, 8], [5.7, 8]]
    places = [1, 4, 5, 9, 12, 13, 19]
    states[places] = torch.tensor(near + far)
    scores = torch.zeros(20)
    scores[places] = torch.tensor([7.0, 1, 2, 3, 6, 4, 5])
    # A density follows from the nearest token, which is 0.2 away, or 0.3 in the other group. Of equally dense tokens,
    # the one with the higher score counts as denser. So (0, 0) is the densest, and gets the largest distance of all.
    # The nearest denser token of (6, 8) is (0.2, 0), 9.9 away. All others have one less than 1 away.
    centres, merged = sparsevlm.recycle(states, scores, 2)
    assert sorted(centres.tolist()) == [1, 12]
    means = {int(centre): state for centre, state in zip(centres, merged)}
    torch.testing.assert_close(means[1], torch.tensor([0.0, 0.1]))
    torch.testing.assert_close(means[12], torch.tensor([6.0, 8.0]))


def test_the_text_tokens_most_like_the_video_rate_it() -> None:
    video, newline, other, like, unlike = [1.0, 0], [5.0, 5], [9.0, 0], [4.0, 0], [0.0, 9]
    rows = [[other, video, video, newline, like, unlike, like], [video, video, newline, unlike, like, unlike, unlike]]
    places = torch.tensor([[-1, 0, 1, -1, -1, -1, -1], [0, 1, -1, -1, -1, -1, -1]])
    everything = torch.ones(2, 7, dtype=torch.bool)
    prompt = Prompt(torch.tensor(rows), everything, torch.arange(7).expand(2, 7), places, 1, 2)
    assert prompt.text_after_video.tolist() == [[False, True, True, True], [True] * 4]
    assert sparsevlm.rater_weights(prompt).tolist() == [[0, 0.5, 0, 0.5], [0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("ratio", "grid"), [(1.0, (6, 6)), (0.25, (3, 3)), (0.15, (2, 3)), (0.85, (5, 6)), (0.01, (1, 1)), (0.5, (4, 4))]
)
def test_downscale_takes_the_nearest_grid(ratio: float, grid: tuple[int, int]) -> None:
    assert downscale.smaller_grid(ratio, (6, 6)) == grid


@pytest.mark.parametrize(("ratio", "side"), [(0.25, 56), (0.5625, 84)])
def test_downscale_equals_the_stock_model_at_a_smaller_image_size(tiny: Tiny, ratio: float, side: int) -> None:
    model, processor = tiny
    inputs = make_inputs(processor, *QUESTIONS)
    small, small_processor = tiny_llava_onevision(image_size=side, num_layers=NUM_LAYERS)
    weights = model.state_dict()
    [name] = [name for name in weights if name.endswith("vision_model.embeddings.position_embedding.weight")] or [
        name for name in weights if "position_embedding.weight" in name
    ]
    grid = weights[name].T.unflatten(1, (8, 8))[None]
    smaller = nn.functional.interpolate(grid, size=(side // 14, side // 14), mode="bicubic", align_corners=False)
    small.load_state_dict({**weights, name: smaller[0].flatten(1).T})
    expected = make_inputs(small_processor, *QUESTIONS)
    pixels = inputs["pixel_values_videos"]
    expected["pixel_values_videos"] = nn.functional.interpolate(
        pixels.flatten(0, 1), size=(side, side), mode="bicubic", antialias=True
    ).unflatten(0, pixels.shape[:2])
    answer = downscale.answer(model, inputs, ratio, MAX_NEW_TOKENS)
    assert torch.equal(answer.token_ids, stock_answer(small, expected))
    assert answer.tokens_per_layer == [NUM_FRAMES * (side // 28) ** 2] * NUM_LAYERS
    assert answer.retention_ratio == ratio


def test_downscale_leaves_an_odd_number_of_patches_alone() -> None:
    model, processor = tiny_llava_onevision(image_size=100)  # 7 patches per side and a margin, 4 tokens
    inputs = make_inputs(processor, QUESTIONS[0])
    answer = downscale.answer(model, inputs, 1.0, MAX_NEW_TOKENS)
    prompt = read_prompt(model, inputs)
    smaller = downscale.features_of_smaller_frames(model, inputs["pixel_values_videos"], 4, 4)
    assert torch.equal(smaller[:, :-1], prompt.video_tokens)
    assert torch.equal(answer.token_ids, stock_answer(model, inputs))


def test_inputs_that_a_baseline_cannot_handle_are_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = tiny
    inputs = make_inputs(processor, QUESTIONS[0])
    chat = processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "video"}, {"type": "video"}]}], add_generation_prompt=True
    )
    two = processor(text=[chat], videos=[make_video(0, 8), make_video(1, 8)], return_tensors="pt")
    right = make_inputs(processor, *QUESTIONS, padding_side="right")
    cut = int((inputs["input_ids"][0] == model.config.video_token_id).nonzero()[-1])
    ends = {**inputs, "input_ids": inputs["input_ids"][:, : cut + 1], "attention_mask": None}
    fewer = {**inputs, "input_ids": inputs["input_ids"].clone()}
    fewer["input_ids"][0, cut] = 0
    images: dict[str, Any] = {**inputs, "pixel_values": torch.from_numpy(np.asarray(make_image(0)))}
    features = torch.zeros(1, NUM_VIDEO_TOKENS, 32)
    no_video = {"input_ids": inputs["input_ids"]}
    refused: list[tuple[Any, Any, str]] = [
        (two, None, r"hold \[258\] video tokens, but there are 2 videos of 129.*one video a row"),
        (fewer, None, r"hold \[128\] video tokens, but there are 1 videos of 129"),
        (right, None, "padding_side='left'"),
        (ends, None, "ends with its video"),
        (images, None, "`pixel_values`"),
        (inputs, features, r"hold \[129\] video tokens, but there are 1 videos of 128"),
        (no_video, None, "no `pixel_values_videos`"),
    ]
    for bad, given, message in refused:
        for name, answer in BASELINES.items():
            if name != "downscale" or given is None:
                with pytest.raises(ValueError, match=message):
                    answer(model, bad, RATIO, video_features=given)
    for field, value, message in (
        ("_attn_implementation_internal", "flash_attention_2", "load the model with 'sdpa' or 'eager'"),
        ("layer_types", ["sliding_attention"] * NUM_LAYERS, "use_sliding_window=False"),
    ):
        with monkeypatch.context() as patch, pytest.raises(ValueError, match=message):
            patch.setattr(model.config.text_config, field, value)
            downscale.answer(model, inputs, RATIO)
    with pytest.raises(ValueError, match="not made of frames of 15 tokens"):
        read_prompt(model, inputs, tokens_per_frame=15)
    with pytest.raises(ValueError, match="max_new_tokens=0 is not positive"):
        fastv.answer(model, inputs, RATIO, 0)
    with pytest.raises(ValueError, match="takes no `frame_adjustment`"):
        downscale.answer(model, inputs, RATIO, frame_adjustment=True)
    with pytest.raises(ValueError, match="takes no `video_features`"):
        downscale.answer(model, inputs, RATIO, video_features=features)
    other: Any = tiny_qwen2_vl()[0]
    with pytest.raises(ValueError, match=r"Qwen2VLForConditionalGeneration.*load such a checkpoint"):
        downscale.answer(other, inputs, RATIO)
