"""`vidcom2 run` measures both sides in turn, and reports what it measured."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from conftest import Family, change_json
from rich.console import Console
from test_cli import mistake, shown_by, told_by, vidcom2

import vidcom2 as vidcom2_package
from vidcom2 import VideoTokens, register_score_method
from vidcom2.asking import comparison as run_module
from vidcom2.asking.comparison import Comparison, Measured, compare_answers
from vidcom2.asking.prompting import prepare_inputs
from vidcom2.cli.comparison_table import as_json, print_comparison
from vidcom2.configuration.compression_settings import CompressionSettings
from vidcom2.errors import OptionError
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.modeling.methods.compression import VideoCompression
from vidcom2.toys import DEMO_VIDEO
from vidcom2.video.reading import Video, read_video

# Seconds of each call, including the first
SECONDS = {0.25: [9.0, 1.0, 1.2, 8.0, 1.1, 1.3], 1.0: [9.0, 4.2, 4.1, 4.4, 4.0, 0.1]}


@pytest.fixture(scope="module")
def video() -> Video:
    return read_video(str(DEMO_VIDEO), 8)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[float, int, int]]]:
    """Collect (ratio, max_new_tokens, threads) of each call. A call takes as many seconds as scripted."""
    calls: list[tuple[float, int, int]] = []
    left = {ratio: list(seconds) for ratio, seconds in SECONDS.items()}

    def call(*given: object, max_new_tokens: int) -> run_module.TimedAnswer:
        settings = cast(CompressionSettings, given[-1])
        ratio = settings.retention_ratio
        calls.append((ratio, max_new_tokens, torch.get_num_threads()))
        seconds = left[ratio].pop(0)
        return run_module.TimedAnswer(100, 60, seconds, 2 * seconds, 100, torch.tensor([1]))

    monkeypatch.setattr(run_module, "timed_answer", call)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield calls
    torch.set_num_threads(before)


@pytest.mark.usefixtures("methods_restored")
def test_the_table_says_of_u_t_what_the_method_says_and_nothing_else(
    folder: Path, video: Video, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    @register_score_method("apples", scores="u_t counts [red] apples.")
    def apples(video: VideoTokens) -> torch.Tensor:
        return video.tokens.float().mean(dim=-1)

    @register_score_method("pears")
    def pears(video: VideoTokens) -> torch.Tensor:
        return video.tokens.float().mean(dim=-1)

    for module in ("console", "comparison_table"):
        monkeypatch.setattr(f"vidcom2.cli.{module}.out", Console(width=200))
    said, recorded = {}, {}
    for method in ("vidcom2", "vcast", "evs", "apples", "pears"):
        checkpoint = load_checkpoint(str(folder), device="cpu", compression_method=method)
        result = compare_answers(checkpoint, video, "What?", 1, repeats=1, baseline=False)
        recorded[method] = as_json(result)["scores"]
        print_comparison(result)
        shown = " ".join(capsys.readouterr().out.split())
        assert (" u_t " in shown) == (method != "evs")
        (said[method],) = re.findall(r"are kept \(.*?\)[^.]*\. (.*)k_t is how many tokens of a frame are kept\.", shown)
    assert said["vidcom2"].startswith("u_t says how unlike the tokens of a frame are to the video's mean, ")
    assert said["vcast"].startswith("u_t says how sharply the path of the frames' means turns at a frame, ")
    assert (said["evs"], said["apples"], said["pears"]) == ("", "u_t counts [red] apples. ", "")
    # `--json` names the scores of frames by the paper's word, so it says what each method's are.
    assert {name: each and f"{each} " for name, each in recorded.items()} == {n: said[n] or None for n in recorded}


def test_both_sides_take_turns_after_a_warm_up_and_medians_count(
    checkpoint: Checkpoint, video: Video, scripted: list
) -> None:
    measured = compare_answers(checkpoint, video, "What?", 7, repeats=5)
    pairs = [scripted[i : i + 2] for i in range(0, len(scripted), 2)]
    assert [{ratio for ratio, *_ in pair} for pair in pairs] == [{0.25, 1.0}] * 6
    assert [pair[0][0] for pair in pairs] == [1.0, 0.25] * 3  # neither side always goes first
    assert [new for _, new, _ in scripted] == [1, 1] + [7] * 10
    assert measured.compressed.prefill_seconds_each == SECONDS[0.25][1:]
    assert measured.uncompressed.total_seconds_each == [2 * seconds for seconds in SECONDS[1.0][1:]]
    assert (measured.compressed.prefill_seconds, measured.uncompressed.prefill_seconds) == (1.2, 4.1)
    assert measured.compressed.total_seconds == 2.4


def test_a_small_model_runs_on_one_thread_unless_the_user_sets_the_number(
    checkpoint: Checkpoint, video: Video, scripted: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert compare_answers(checkpoint, video, "What?", 7, repeats=1).environment["threads"] == "1"
    assert {threads for *_, threads in scripted} == {1} and torch.get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert compare_answers(checkpoint, video, "What?", 7, repeats=1).environment["threads"] == "2"
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(run_module, "SMALL_MODEL", 1)
    assert compare_answers(checkpoint, video, "What?", 7, repeats=1).environment["threads"] == "2"


def test_without_a_baseline_the_full_prompt_never_runs(checkpoint: Checkpoint, video: Video, scripted: list) -> None:
    measured = compare_answers(checkpoint, video, "What?", 7, repeats=2, baseline=False)
    assert {ratio for ratio, *_ in scripted} == {0.25} and measured.uncompressed is None
    inputs = prepare_inputs(checkpoint.processor, "What?", video)
    assert measured.full_prompt_tokens == inputs["input_ids"].shape[1]


def test_a_budget_that_the_method_cannot_keep_to_is_a_mistake_of_the_user() -> None:
    said = mistake("run", "--num-frames", 5, "--compression-method", "evs", "--max-video-tokens", 10)
    assert "`--max-video-tokens` is 10, but `compression_method='evs'` needs 25 of the 125 tokens" in said


def test_a_method_that_cannot_keep_so_few_tokens_is_said_to_keep_more() -> None:
    """EVS keeps its first frame whole, whatever the ratio or a budget asks for."""
    few = ["run", "--num-frames", 1, "--max-new-tokens", 1, "--repeats", 1, "--no-baseline", "--against", "evs"]
    for arguments in (few, [*few, "--max-video-tokens", 6]):
        shown, result = " ".join(shown_by(*arguments).split()), told_by(*arguments)
        assert "Not as many tokens: of the 25 scored tokens, evs keeps 25 instead of 6." in shown
        assert (result["kept_share"], result["other_kept_share"]) == (6 / 25, 1)
        assert result["other"]["video_tokens"] > result["compressed"]["video_tokens"]
    enough = [*few, "--num-frames", 8]
    assert "Not as many" not in shown_by(*enough) and told_by(*enough)["other_kept_share"] == 0.25


def test_a_method_that_refuses_to_keep_so_few_tokens_is_named_with_what_it_needs() -> None:
    for more, remedy in (
        ([], "--retention-ratio 0.4 or more, or name"),
        (["--max-video-tokens", 10], "--max-video-tokens 50 or more, or name"),
    ):
        code, shown, error = vidcom2("run", "--num-frames", 5, "--against", "dycoke", *more)
        assert code == 2 and not shown and remedy in error and "`--retention-ratio` is" not in error
        assert f"`--against dycoke` would have to keep {10 if more else 31} of the 125 scored tokens" in error
        assert "but it needs 50." in error


def test_a_comparison_that_cannot_be_made_is_refused_before_anything_runs() -> None:
    nothing: Any = None
    with pytest.raises(OptionError, match="`repeats` is 0, but must be a whole number"):
        compare_answers(nothing, nothing, "What?", 1, repeats=0)
    with pytest.raises(OptionError, match=r"`other_method` is 'dycok', but must be one of .* Did you mean 'dycoke'"):
        compare_answers(nothing, nothing, "What?", 1, other_method="dycok")


def test_the_command_line_shows_what_did_not_run() -> None:
    arguments = ["run", "--num-frames", 4, "--max-new-tokens", 1, "--repeats", 1, "--no-baseline"]
    shown, result = shown_by(*arguments), told_by(*arguments)
    assert shown.count("not run") == 2 and "Answer at 1.0" not in shown and "medians" not in shown
    assert result["uncompressed"] is None and result["full_prompt_tokens"] > result["compressed"]["prompt_tokens"]


def test_the_reported_positions_are_those_that_the_language_model_sees(family: Family, video: Video) -> None:
    result = compare_answers(Checkpoint("tiny", family.model, family.processor), video, "What?", 3, repeats=1)
    inputs = prepare_inputs(family.processor, "What?", video)
    positions = family.case.full_positions(family.stock, inputs)
    if positions is None:
        positions = torch.arange(inputs["input_ids"].shape[1])
    side = result.uncompressed
    answered = int(positions[..., -1].max()) + side.new_tokens - 1  # the last new token is never fed back
    assert side.num_positions == 1 + max(int(positions.max()), answered)
    assert side.prompt_tokens == inputs["input_ids"].shape[1] > result.compressed.prompt_tokens


def test_a_prompt_longer_than_the_model_supports_is_reported_for_each_side(family: Family, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(family.folder, tmp_path / "model"))
    text_config = json.loads((folder / "config.json").read_text())["text_config"]
    arguments = ["run", "--model", folder, "--num-frames", 8, "--max-new-tokens", 1, "--repeats", 1]

    def run_with(limit: int) -> dict[str, Any]:
        change_json(folder / "config.json", text_config=text_config | {"max_position_embeddings": limit})
        result = told_by(*arguments)
        assert result["max_position_embeddings"] == limit
        return result

    found = run_with(32768)
    assert found["beyond_max_position_embeddings"] == []
    full, short = found["uncompressed"], found["compressed"]
    longest = max(full["prompt_tokens"], full["num_positions"])
    expected = ["all tokens"]
    if max(short["prompt_tokens"], short["num_positions"]) == longest:  # the kept tokens keep positions in time
        expected.append("vidcom2 at 0.25")
    assert run_with(longest - 1)["beyond_max_position_embeddings"] == expected
    assert run_with(20)["beyond_max_position_embeddings"] == ["all tokens", "vidcom2 at 0.25"]
    shown = " ".join(shown_by(*arguments).split())
    for name, side in (("vidcom2 at 0.25", found["compressed"]), ("all tokens", full)):
        assert f"Too long: {name} has {side['prompt_tokens']:,} prompt tokens" in shown


def test_frames_that_could_not_be_decoded_are_counted(video: Video, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = Video(**{name: value for name, value in vars(video).items() if name != "lost"}, lost=3)
    monkeypatch.setattr("vidcom2.video.reading.read_video", lambda *_, **__: damaged)
    arguments = ["run", "--max-new-tokens", 1, "--repeats", 1, "--no-baseline"]
    assert "Damaged: 3 frames of the video could not be decoded" in " ".join(shown_by(*arguments).split())
    assert told_by(*arguments)["lost_frames"] == 3


def measured(new_tokens: int) -> Measured:
    times = {"prefill_seconds": 1.0, "total_seconds": 2.0, "prefill_seconds_each": [1.0], "total_seconds_each": [2.0]}
    return Measured(prompt_tokens=10, video_tokens=8, **times, new_tokens=new_tokens, answer="", num_positions=12)


def test_no_speedup_is_stated_for_answers_of_different_lengths(capsys: pytest.CaptureFixture) -> None:
    for full, ratios in ((3, 1), (64, 2)):
        counts = (0, 40, 32, [0.0], [2], [0.5], 8, 0.25, None)
        settings = {"compression_method": "evs"}
        print_comparison(Comparison("m", "?", 0.25, settings, *counts, measured(64), measured(full)))
        table = capsys.readouterr().out
        assert table.count("1.00×") == ratios and "new tokens" in table


WHOLE, OF_FRAMES = "; a video keeps a whole number of tokens", "; each frame keeps a whole number of tokens"
AT_LEAST, BUDGET = "; {} keeps at least {} tokens of a video of this size", "; the budget lowers it"


@pytest.mark.usefixtures("methods_restored")
@pytest.mark.parametrize(
    ("shape", "ratio", "settings", "kept", "reason"),
    [
        ((30, 25), 0.25, {}, 187, WHOLE),  # of 187.5
        ((30, 25), 0.25, {"compression_rounding": "ceil"}, None, OF_FRAMES),
        ((30, 25), 0.25, {"max_video_tokens": 100}, 100, BUDGET),
        ((30, 25), 0.25, {"max_video_tokens": 187}, 187, WHOLE),
        ((30, 25), 0.25, {"max_video_tokens": 100, "compression_rounding": "ceil"}, 100, BUDGET),
        ((30, 4), 0.1, {}, 30, AT_LEAST.format("vidcom2", 30)),
        ((8, 25), 0.05, {"compression_method": "evs"}, 25, AT_LEAST.format("evs", 25)),
        ((30, 25), 0.25, {"compression_method": "vcast"}, 188, WHOLE),  # which rounds half to even
        ((8, 25), 0.25, {"compression_method": "half"}, 100, ""),
        ((8, 25), 0.25, {"compression_method": "counted_half"}, 100, ""),
        ((8, 25), 0.25, {}, 50, ""),
    ],
)
def test_a_share_that_is_not_the_ratio_has_its_true_reason(
    shape: tuple[int, int], ratio: float, settings: dict, kept: int | None, reason: str, capsys: pytest.CaptureFixture
) -> None:
    @vidcom2_package.register_compression_method("half")
    @vidcom2_package.register_compression_method(
        "counted_half", count=lambda frames, tokens, ratio: frames * tokens // 2
    )
    def half(video: Any, settings: Any) -> VideoCompression:
        return VideoCompression.of_mask(torch.arange(video.tokens[..., 0].numel()).view(video.tokens.shape[:2]) % 2 > 0)

    tokens = torch.randn(*shape, 8, generator=torch.Generator().manual_seed(0))
    settings = {"compression_method": "vidcom2"} | settings
    if settings["compression_method"] == "vidcom2":
        settings = {"compression_rounding": "exact"} | settings
    budgets = vidcom2_package.compress(tokens, retention_ratio=ratio, **settings).frame_budgets.tolist()
    assert kept is None or sum(budgets) == kept
    total = shape[0] * shape[1]
    result = Comparison(
        *("m", "?", ratio, settings, 0, total + 8, total, [0.0] * shape[0], budgets, None, shape[1]),
        *(sum(budgets) / total, None, measured(1), None),
    )
    print_comparison(result)
    shown = " ".join(capsys.readouterr().out.split())
    said = shown.split(f"{sum(budgets)} of {total} are kept (")[1].split(" k_t is")[0]
    assert said == f"{sum(budgets) / total:.1%}){reason}."
    result.full_video_tokens = total - 1
    print_comparison(result)
    told = "have no place in the prompt" in " ".join(capsys.readouterr().out.split())
    assert told == (abs(sum(budgets) / total - ratio) >= 0.0005)
