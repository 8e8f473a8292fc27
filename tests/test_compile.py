"""`torch.compile` makes one graph for all videos of a shape, since with `"exact"` no size depends on the content."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from conftest import Family, only
from models import make_video
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import CompileConfig

from vidcom2 import Video, VideoTokens, compress
from vidcom2.asking.generation import generate_answers, keep_tokens, run_tower
from vidcom2.asking.prepared_video import prepare_video
from vidcom2.asking.stopwatch import Stopwatch

EXACT = {"compression_rounding": "exact"}
# One family with M-RoPE and one without, since each takes seconds.
pytestmark = only(lambda family: family.name in ("llava_onevision", "qwen3_vl"))

# Stock steps look for padding by `nonzero`, or count the tokens of experts by `repeat_interleave`. To Nemotron's steps
# `generate` also passes no mask, so that ours asks the cache whether it hides tokens.
BREAKS_GRAPHS = ("qwen4_exp", "glm5_next", "kimi_k25", "nemotron_h_omni")
LONG_TO_COMPILE = ("glm5_next",)  # a case takes 45 s


class CountingBackend:
    """Run graphs as they are, without a C compiler, and count them. A copy of the backend adds to the same count."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def __call__(self, graph: Any, inputs: list[Tensor]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward

    def __deepcopy__(self, memo: dict) -> "CountingBackend":
        return self


@pytest.fixture
def backend() -> CountingBackend:
    torch._dynamo.reset()
    return CountingBackend()


@pytest.mark.parametrize(
    "settings",
    [EXACT, EXACT | {"compression_scoring": "released"}]
    + [EXACT | {"compression_window": 4}, EXACT | {"max_video_tokens": 20}]
    + [{"compression_method": name} for name in ("uniform_frames", "dycoke", "evs", "vcast")]
    + [{"compression_method": "vcast", "compression_scoring": "released"}],
    ids=lambda settings: ",".join(map(str, settings.values())),
)
def test_the_operator_compiles_to_one_graph(settings: dict[str, Any], backend: CountingBackend) -> None:
    def indices(tokens: Tensor) -> Tensor:
        return compress(VideoTokens(tokens, (4, 4)), **settings).indices

    compiled = torch.compile(indices, fullgraph=True, backend=backend)
    for seed in range(4):
        tokens = torch.randn(8, 16, 32, generator=torch.Generator().manual_seed(seed))
        if seed == 3:
            tokens[2, 5] = torch.inf  # asked about outside graphs, and computed inside them
        assert torch.equal(compiled(tokens), indices(tokens))
    assert len(backend.graphs) == 1


def test_the_compressed_prefill_compiles_to_one_graph(family: Family, backend: CountingBackend) -> None:
    """The language model has one graph for all videos of one shape."""
    model = family.load(**EXACT, retention_ratio=0.3)
    plain = copy.deepcopy(model)
    model.model.language_model.compile(fullgraph=True, dynamic=False, backend=backend)
    for seed in range(4):
        inputs = family.one_video(seed=seed)
        with torch.no_grad():
            torch.testing.assert_close(model(**inputs).logits, plain(**inputs).logits, rtol=0, atol=1e-5)
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("positions", ["consecutive", "original"])
@only(lambda family, positions: positions == "consecutive" or not (family.mrope or family.name in LONG_TO_COMPILE))
def test_a_step_on_a_static_cache_is_the_stock_classs_graph(
    family: Family, asking: Family, positions: str, backend: CountingBackend
) -> None:
    """Transformers compiles the steps after the prefill. On a GPU it does so by itself. The answers about further
    videos need no further graph."""
    if family.case.adds_features and transformers.__version__.startswith("5.20."):
        pytest.skip("Transformers 5.20 passes the types of all tokens with each step, which are read outside graphs")
    how = CompileConfig(dynamic=False, mode=None, backend=backend)  # not `fullgraph`, which captures scalars, too
    how._compile_all_devices = True
    greedy = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    static = greedy | {"cache_implementation": "static", "compile_config": how}

    family.stock.generate(**family.one_video(), **static)
    stock_graphs = len(backend.graphs)
    assert stock_graphs > 0
    torch._dynamo.reset()
    counters.clear()
    backend.graphs.clear()
    model = family.load(**EXACT, retention_ratio=0.3, compression_positions=positions)
    for seed in range(2):
        inputs = asking.one_video(seed=seed)
        assert torch.equal(model.generate(**inputs, **static), model.generate(**inputs, **greedy))
    if family.case.name not in BREAKS_GRAPHS:
        assert len(backend.graphs) == stock_graphs and not counters["graph_break"]


@pytest.mark.parametrize("positions", ["consecutive", "original"])
@only(lambda family, positions: (positions == "consecutive" or not family.mrope) and family.name not in LONG_TO_COMPILE)
def test_measuring_compiled_steps_breaks_no_graph_and_sees_the_positions_of_plain_ones(
    family: Family, positions: str, backend: CountingBackend
) -> None:
    how = CompileConfig(dynamic=False, mode=None, backend=backend)
    how._compile_all_devices = True
    model: Any = family.load(**EXACT, retention_ratio=0.3, compression_positions=positions)
    of, settings = family.processor, model.config.compression_settings()
    written, inputs = prepare_video(of, Video.from_frames(make_video(0), fps=1), model)
    features = keep_tokens(model, run_tower(model, inputs, settings), settings)
    prompt = written.prompt(of, "What happens?").inputs(of, model, features)
    static = {"cache_implementation": "static", "compile_config": how}
    model.generate(**family.one_video(), max_new_tokens=4, min_new_tokens=4, do_sample=False, **static)
    unwatched_graphs = len(backend.graphs)
    assert unwatched_graphs > 0
    torch._dynamo.reset()
    counters.clear()
    backend.graphs.clear()
    answers, watches = [], []
    for more in ({}, static):
        watches.append(Stopwatch(model))
        given = {"max_new_tokens": 4, "min_new_tokens": 4, **more}
        answers.append(generate_answers(model, prompt, features, positions, watches[-1], **given))
    assert torch.equal(*answers)
    assert len(backend.graphs) == unwatched_graphs
    assert family.case.name in BREAKS_GRAPHS or not counters["graph_break"]
    plain, compiled = watches
    assert [stage for stage, _ in plain.each()] == [stage for stage, _ in compiled.each()]
    assert plain.num_positions == compiled.num_positions
    assert [call.tokens for call in plain.calls] == [call.tokens for call in compiled.calls]


@pytest.mark.slow
def test_torch_compile_of_forward_gives_the_same_logits(family: Family) -> None:
    model = copy.deepcopy(family.model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")  # traces like every backend, but needs no C compiler
    for seed in range(2):
        inputs = family.one_video(seed=seed)
        with torch.no_grad():
            torch.testing.assert_close(compiled(**inputs).logits, family.model(**inputs).logits, rtol=0, atol=1e-5)
