"""`vidcom2 eval --token-budget`: more frames at a lower ratio or fewer at a higher one, within as many video tokens."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from conftest import Family, use_method
from make_clips import write_clip
from models import tower_of
from PIL import Image
from test_cli import save_tiny, vidcom2
from test_evaluation import asked, read, read_lines, write_lines

from vidcom2.answering.candidates import AllTokens, Candidate, candidates_within, compared_candidates
from vidcom2.answering.prompting import prepare_inputs
from vidcom2.answering.questions import Question
from vidcom2.checkpoints import Checkpoint, load_checkpoint
from vidcom2.errors import OptionError
from vidcom2.evaluation import plot
from vidcom2.evaluation.evaluate import evaluate
from vidcom2.evaluation.report import paired_interval, summary, wilson
from vidcom2.hub_upload.model_card import read_result
from vidcom2.video.reading import Video, read_video

M = 9  # tokens of a frame of `save_tiny`


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny-model")


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(str(folder), device="cpu")


# -- candidates -------------------------------------------------------------------------------------------------------


def test_every_method_is_a_candidate_at_every_number_of_frames_and_keeps_an_exact_total() -> None:
    found = candidates_within(100, "evs, vidcom2:compression_scoring=released", "16,8")
    evs = {"compression_method": "evs"}
    released = {"compression_method": "vidcom2", "compression_scoring": "released", "compression_rounding": "exact"}
    assert [(each.num_frames, each.settings, each.token_budget) for each in found] == [
        (8, evs, 100),
        (8, released, 100),
        (16, evs, 100),
        (16, released, 100),
    ]
    assert found[0].label == "evs, 8 frames, 100 tokens"
    assert found[0].overrides == {**evs, "retention_ratio": 1.0, "max_video_tokens": 100}


@pytest.mark.parametrize(
    ("methods", "frames", "reason"),
    [
        ("vidcom2", "8,8", "`--frames` has '8' twice"),
        ("vidcom2", "8,1.5", "`--frames` has '1.5', but each must be a whole number, at least 1"),
        ("vidcom2", "0", "`--frames` has '0'"),
        ("nonsense", "8", "`--methods` is 'nonsense'"),
        ("vidcom2:retention_ratio=0.5", "8", "The ratio follows from `--token-budget`"),
        ("vidcom2:compression_rounding=ceil", "8", "compares equally many tokens, which only `compression_rounding=ex"),
    ],
)
def test_bad_candidates_within_a_budget_are_refused(methods: str, frames: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        candidates_within(100, methods, frames)


def test_candidates_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(OptionError, match="has no `num_frames`, for which the budget holds"):
        Candidate("vidcom2", 1.0, token_budget=100)
    with pytest.raises(OptionError, match="its `answer` is a function"):
        Candidate("mine", 0.5, answer=lambda *_: None, num_frames=8)
    with pytest.raises(OptionError, match="`num_frames` is 0"):
        Candidate("vidcom2", 1.0, num_frames=0)
    eight = Candidate("vidcom2", 0.5, num_frames=8)
    with pytest.raises(
        OptionError, match=r"'vidcom2 0.5, 8 frames' has its own `num_frames`, but 'random 0.5' has none"
    ):
        compared_candidates([eight, Candidate("random", 0.5)])
    with pytest.raises(OptionError, match=r"two candidates have the label 'vidcom2 0.5, 8 frames'"):
        compared_candidates([eight, eight])


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tower_runs(family: Family) -> Iterator[list[int]]:
    runs: list[int] = []
    hook = tower_of(family.model.model).register_forward_hook(lambda *_: runs.append(1))
    yield runs
    hook.remove()


@pytest.mark.usefixtures("methods_restored")
def test_answers_within_a_budget_equal_those_at_the_ratio_that_keeps_as_many_tokens(
    family: Family, tower_runs: list[int], short_length: Any, tmp_path: Path
) -> None:
    rows, columns = family.case.grid
    of_eight = 8 // family.case.files_frames_per_frame * rows * columns  # all scored tokens of eight frames
    budget = of_eight // 2
    users = use_method("merged_in_time")
    candidates = candidates_within(budget, f"vidcom2,{users}", "8,4")
    chosen = ("0 8", "0 8", "", "1 8", "1 4", "", "2 8")  # all tokens of the video with four frames fit
    questions = [question for question in asked(*chosen) if question.video]
    found = evaluate(
        Checkpoint("tiny", family.model, family.processor),
        questions,
        candidates,
        tmp_path / "answers.jsonl",
        batch_size=2,
        max_new_tokens=5,
        read=read,
    )
    assert len(tower_runs) == 8  # each video once for each number of frames, whatever the batch
    texts = set()
    for question, row in zip(questions, found, strict=True):
        assert set(row["answers"]) == {each.label for each in candidates}
        for method in ("vidcom2", users):
            for num_frames in (8, 4):
                video = read(question.video, num_frames)
                inputs = prepare_inputs(family.processor, question.question, video, family.model)
                ratio = 0.5 if len(video.frames) == 8 else 1.0
                overrides = {"compression_method": method, "retention_ratio": ratio}
                if method == "vidcom2":
                    overrides["compression_rounding"] = "exact"
                output = family.model.generate(**inputs, max_new_tokens=5, do_sample=False, **overrides)
                new = output[0, inputs["input_ids"].shape[1] :]
                answer = row["answers"][f"{method}, {num_frames} frames, {budget} tokens"]
                assert answer["text"] == family.processor.decode(new, skip_special_tokens=True).strip()
                assert (answer["kept_tokens"], answer["kept_share"]) == (budget, ratio)
                assert answer["prompt_tokens"] == short_length(inputs, **overrides)
                assert answer["frames"] == len(video.frames) and answer["seconds"] > 0
                assert answer["agrees"] is None and answer["correct"] is None
                texts.add(answer["text"])
    assert len(texts) > 1 or not family.case.representative  # otherwise a model with only one answer would pass


def test_the_frames_are_those_that_are_read_for_each_number_alone(checkpoint: Checkpoint, tmp_path: Path) -> None:
    seen: list[tuple[int, list[int]]] = []
    clip = write_clip(tmp_path / "clip.mp4", np.arange(20) / 5)

    def noting(source: str, num_frames: int) -> Video:
        video = read_video(source, num_frames)
        seen.append((num_frames, video.frames_indices.tolist()))
        return video

    candidates = candidates_within(3 * M, "vidcom2", "3,5,32")
    (row,) = evaluate(checkpoint, asked(str(clip)), candidates, tmp_path / "a", max_new_tokens=2, read=noting)
    assert seen == [(n, read_video(clip, n).frames_indices.tolist()) for n in (3, 5, 32)]
    shown = [row["answers"][each.label] for each in candidates]
    assert [answer["frames"] for answer in shown] == [3, 5, 20]
    assert [answer["kept_share"] for answer in shown] == [1.0, 3 / 5, 3 / 20]


def test_a_method_that_keeps_more_than_the_budget_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    candidates = candidates_within(5, "vidcom2,evs", "4,8")
    (row,) = evaluate(checkpoint, asked("0 8"), candidates, tmp_path / "a", max_new_tokens=2, read=read)
    refused = {label: answer.get("refused", "") for label, answer in row["answers"].items()}
    assert [bool(text) for text in refused.values()] == [False, True, True, True]
    assert refused["vidcom2, 8 frames, 5 tokens"] == (  # a token for each frame
        "`max_video_tokens` is 5, but `compression_method='vidcom2'` needs 8 of the 72 tokens of this video (8 frames "
        "of 9), even at a lower ratio. Pass 8 or more, fewer frames, or another method."
    )
    assert "needs 9 of the 36 tokens" in refused["evs, 4 frames, 5 tokens"]  # the first frame stays whole


def test_all_tokens_of_some_number_of_frames_may_be_asked_beside(checkpoint: Checkpoint, tmp_path: Path) -> None:
    candidates = [*candidates_within(4 * M, "vidcom2", "4,8"), AllTokens(num_frames=8)]
    (row,) = evaluate(checkpoint, asked("0 8"), candidates, tmp_path / "a", max_new_tokens=3, read=read)
    (plain,) = evaluate(checkpoint, asked("0 8"), [], tmp_path / "b", num_frames=8, max_new_tokens=3, read=read)
    assert row["answers"]["all tokens, 8 frames"]["text"] == plain["answers"]["all tokens"]["text"]
    assert row["answers"]["all tokens, 8 frames"]["kept_tokens"] == 8 * M
    of_eight, whole = row["answers"]["vidcom2, 8 frames, 36 tokens"], row["answers"]["all tokens, 8 frames"]
    assert of_eight["agrees"] == (of_eight["text"] == whole["text"])


# -- figures ----------------------------------------------------------------------------------------------------------


def answered(correct: bool, frames: int, seconds: float) -> dict[str, Any]:
    figures = {"frames": frames, "kept_tokens": 20, "prompt_tokens": 30, "seconds": seconds}
    return {"text": "x", "kept_share": min(1.0, 2 / frames), "correct": correct, "agrees": None, **figures}


@pytest.fixture
def known() -> tuple[list[Question], list[dict[str, Any]], list[Candidate]]:
    """Return questions about five videos, one of which has only three frames, and answers to them."""
    right = {("evs", 2): "11000", ("random", 2): "11000", ("evs", 4): "11110", ("random", 4): "01000"}
    candidates = candidates_within(20, "evs,random", "2,4")
    questions = [Question(str(i), f"{i}.mp4", "?", ("x",)) for i in range(5)]
    rows = [
        {
            "answers": {
                each.label: answered(
                    right[each.method, each.num_frames][i] == "1",
                    min(each.num_frames, 3 + (i > 0)),
                    i * each.num_frames,
                )
                for each in candidates
            }
        }
        for i in range(5)
    ]
    return questions, rows, candidates


def test_figures_are_compared_with_the_fewest_frames_of_the_same_method(known: Any) -> None:
    results = {(each["method"], each["num_frames"]): each for each in summary(*known)}
    assert [each["accuracy"] for each in results.values()] == [0.4, 0.4, 0.8, 0.2]
    assert [each["difference"] for each in results.values()] == [None, None, 0.4, -0.2]
    evs = results["evs", 4]
    assert (evs["difference_low"], evs["difference_high"]) == paired_interval([0, 0, 1, 1, 0], list("01234"))
    assert (evs["accuracy_low"], evs["accuracy_high"]) == wilson(4, 5)
    assert evs["frames"] == pytest.approx((3 + 4 * 4) / 5) and evs["kept_tokens"] == 20
    assert evs["seconds"] == median([0, 4, 8, 12, 16]) and evs["agreement"] is None
    assert evs["kept_share"] == pytest.approx((2 / 3 + 4 * 0.5) / 5)


def test_the_plot_has_a_line_for_each_method_over_the_frames(known: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(plot, "save_png", lambda figure, path: figures.append(figure))
    results = summary(*known)
    results[-1]["refused"] = "why"
    plot.draw_frame_counts(results, "title", Path("unused.png"))
    (axes,) = figures[0].axes
    lines = {each.get_label(): each[0].get_xydata() for each in axes.containers}
    assert list(lines) == ["evs", "random"]
    assert lines["evs"] == pytest.approx(np.array([[2, 40], [4, 80]]), rel=0.02)
    assert lines["random"] == pytest.approx(np.array([[2, 40]]), rel=0.02)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2\n100 %", "4\n53.3 %"]


# -- the command ------------------------------------------------------------------------------------------------------

FRAMES = "1,3,6"
COMPARED = ("--token-budget", M, "--frames", FRAMES, "--methods", "vidcom2,dycoke")


@pytest.fixture(scope="module")
def data(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write questions about two clips. Right answers are those of one number of frames or another."""
    home = tmp_path_factory.mktemp("data")
    lines = []
    for i in (1, 2):
        picture = np.random.default_rng(i).integers(0, 256, (64, 96, 3), dtype=np.uint8)
        write_clip(home / f"{i}.mp4", np.arange(6) / 5, picture=lambda n, p=picture: np.roll(p, 9 * n, axis=1))
        lines += [{"video": f"{i}.mp4", "question": f"Question {i * j}{'?' * j}", "kind": f"k{j}"} for j in range(3)]
    questions = [Question(str(i), str(home / line["video"]), line["question"]) for i, line in enumerate(lines)]
    candidates = candidates_within(M, "vidcom2", FRAMES)
    rows = evaluate(checkpoint, questions, candidates, home / "before.jsonl", max_new_tokens=3)
    for i, (line, row) in enumerate(zip(lines, rows, strict=True)):
        line["answer"] = row["answers"][candidates[i % 3].label]["text"] or "nothing"
    return write_lines(home / "questions.jsonl", *lines)


def command(folder: Path, data: Path, output: Path, *more: Any) -> list[Any]:
    return ["eval", "--model", folder, "--data", data, "--max-new-tokens", 3, "--device", "cpu", "-o", output, *more]


def test_the_command_compares_numbers_of_frames_and_continues(folder: Path, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = command(folder, data, output, *COMPARED)
    code, shown, error = vidcom2(*arguments)
    assert code == 0, error
    assert "Most right answers: " in shown and "6 questions tell little" in " ".join(shown.split())
    content = json.loads((output / "results.json").read_text())
    assert content["title"] == "tiny-model on questions.jsonl, within 9 video tokens"
    answers = [row["answers"] for row in read_lines(output / "answers.jsonl")]
    table = content["rows"]
    assert [(row["frames"], row["method"]) for row in table] == [
        ("1", "all tokens"),  # both methods keep all of a single frame
        *[(frames, method) for frames in "36" for method in ("vidcom2", "dycoke")],
    ]
    for row in table:
        figures = row["figures"]
        method = "vidcom2" if figures["method"] == "all tokens" else figures["method"]
        given = [each[f"{method}, {figures['num_frames']} frames, 9 tokens"] for each in answers]
        if "refused" in given[0]:
            assert (row["frames"], row["method"], row["tokens"]) == ("6", "dycoke", "n/a")
            assert "Refused: dycoke with 6 frames, 6 of 6 questions" in shown
            continue
        assert row["tokens"] == "9" and figures["accuracy"] == sum(each["correct"] for each in given) / 6
    assert len({row["figures"]["accuracy"] for row in table[:-1]}) > 1  # otherwise they would agree by chance
    certificate = content["birth_certificate"]
    assert "--token-budget 9 --frames 1,3,6" in certificate["command"] and "--ratios" not in certificate["command"]
    assert certificate["arguments"]["token_budget"] == 9 and "ratios" not in certificate["arguments"]
    assert "to the fewest frames" in (output / "results.md").read_text()
    assert Image.open(output / "results.png").size[0] > 500
    assert read_result(output / "results.json", ["tiny-model"]).table.startswith(
        "| frames | method | tokens | kept, % |"
    )

    before = (output / "answers.jsonl").read_text()
    assert vidcom2(*arguments, "--batch-size", 2)[0] == 0
    assert (output / "answers.jsonl").read_text() == before  # nothing is asked again, not even the times change
    for more, reason in (
        (("--token-budget", 10), "`token_budget` was 9 and is 10"),
        (("--frames", "1,6"), "`frames` was '1,3,6' and is '1,6'"),
    ):
        code, _, error = vidcom2(*arguments, *more)
        assert code == 2 and reason in error and "Name another --output" in error


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--ratios", "0.5"), "`--ratios` is '0.5', but does not go with --token-budget. The ratio follows from"),
        (("--max-video-tokens", 5), "`--max-video-tokens` is 5, but --token-budget is the same budget"),
        (("--num-frames", 8), "`--num-frames` is 8, but does not go with --token-budget. Name the numbers of frames"),
        (("--compression-rounding", "ceil"), "`--compression-rounding` is 'ceil', but --token-budget compares equally"),
        (("--frames", "8,x"), "`--frames` has 'x', but each must be a whole number"),
        (("--frames", ""), "`--frames` has '', but each must be a whole number"),  # a shell variable that is not set
        (("--compression-scoring", "released", "--methods", "evs"), "none of 'evs' reads it"),
    ],
)
@pytest.mark.parametrize("check", [(), ("--check",)])
def test_options_that_do_not_go_with_a_budget_are_refused(
    more: tuple[Any, ...], reason: str, check: tuple[str, ...], data: Path, tmp_path: Path
) -> None:
    arguments = ("eval", "--data", data, "-o", tmp_path / "out", "--token-budget", 100, *more, *check)
    code, _, error = vidcom2(*arguments)
    assert code == 2 and reason in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_frames_without_a_budget_and_questions_without_answers_are_refused(data: Path, tmp_path: Path) -> None:
    code, _, error = vidcom2("eval", "--data", data, "--frames", "8,16", "-o", tmp_path / "out")
    assert code == 2 and "`--frames` is '8,16', but there is no budget. Add --token-budget" in error
    lines = [{name: line[name] for name in ("video", "question")} for line in read_lines(data)]
    unanswered = write_lines(tmp_path / "questions.jsonl", *lines)
    for line in lines:
        shutil.copy(data.parent / line["video"], tmp_path)
    for check in ((), ("--check",)):
        code, _, error = vidcom2("eval", "--data", unanswered, "--token-budget", 18, "-o", tmp_path / "out", *check)
        assert code == 2 and "has an `answer`, but --token-budget compares right answers" in error
    assert not (tmp_path / "out").exists()
    code, shown, _ = vidcom2("eval", "--data", data, "--token-budget", 18, "--check")
    assert code == 0 and "6 of 6 questions can be asked" in shown
