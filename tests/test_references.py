"""`vidcom2 eval` compares any method with any other on the same questions, and says which ratio is enough."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from test_cli import vidcom2
from test_cli_errors import mistake

from vidcom2.asking.candidates import Candidate, candidates_of
from vidcom2.errors import OptionError
from vidcom2.evaluation import accuracy_plot
from vidcom2.evaluation.accuracy_plot import draw_results
from vidcom2.evaluation.accuracy_tables import markdown, reference_in_words, table
from vidcom2.evaluation.references import reference_labels
from vidcom2.evaluation.report import paired_interval, summary
from vidcom2.evaluation.which_ratio import enough, enough_in_words
from vidcom2.judging.questions import Question
from vidcom2.toys import TOY

METHODS, RATIOS = ("vidcom2", "random"), (0.5, 0.25)
CANDIDATES = candidates_of("vidcom2,random", "0.5,0.25")
NUM = 200


@pytest.fixture
def asked() -> tuple[list[Question], list[dict[str, Any]], dict[str, np.ndarray]]:
    """Two questions about each of 100 videos, their rows of answers, and which answers are right."""
    generator = np.random.default_rng(0)
    right = {"all tokens": generator.random(NUM) < 0.9}
    for candidate in CANDIDATES:
        share = 0.95 if candidate.method == "vidcom2" else candidate.retention_ratio
        right[candidate.label] = right["all tokens"] & (generator.random(NUM) < share)
    questions = [Question(str(i), f"video {i // 2}", "What?", answers=("x",)) for i in range(NUM)]
    rows = [{"answers": {label: _answer(bool(of[i])) for label, of in right.items()}} for i in range(NUM)]
    return questions, rows, right


def _answer(correct: bool) -> dict[str, Any]:
    return {"text": "x" if correct else "y", "correct": correct, "agrees": correct, "kept_share": 0.5}


def test_each_method_is_compared_with_the_reference_at_the_same_ratio_on_the_same_questions(asked: Any) -> None:
    questions, rows, right = asked
    results = summary(questions, rows, CANDIDATES, "vidcom2")
    assert [result["over_reference"] for result in results[:3]] == [None] * 3  # all tokens have no counterpart
    for ratio, result in zip(RATIOS, results[3:], strict=True):
        differences = right[f"random {ratio:g}"].astype(int) - right[f"vidcom2 {ratio:g}"].astype(int)
        assert result["over_reference"] == pytest.approx(differences.mean())
        interval = result["over_reference_low"], result["over_reference_high"]
        assert interval == paired_interval(differences.tolist(), [question.video for question in questions])
        assert (result["over_reference_n"], result["over_reference_videos"]) == (NUM, NUM // 2)
    headings, *cells = table(results)
    (place,) = (i for i, heading in enumerate(headings) if heading.startswith("minus vidcom2, points (n = 200, 100 v"))
    assert [row[place] == "–" for row in cells] == [True, True, True, False, False]
    assert "`minus` is the accuracy minus that of the named method" in markdown("t", results, 0, "here")
    plain = summary(questions, rows, CANDIDATES)
    assert not any("minus" in heading for heading in table(plain)[0]) and "reference" not in plain[0]
    assert [{**result, **each} for result, each in zip(results, plain)] == results  # nothing else changes


def test_a_candidate_can_be_the_reference_of_all_and_a_refused_question_counts_for_neither(asked: Any) -> None:
    questions, rows, right = asked
    rows[3]["answers"]["vidcom2 0.25"] = {"refused": "why"}
    results = summary(questions, rows, CANDIDATES, "vidcom2:0.25")
    differences = np.delete(right["vidcom2 0.5"].astype(int) - right["vidcom2 0.25"].astype(int), 3)
    assert results[1]["over_reference"] == pytest.approx(differences.mean())
    assert results[1]["over_reference_n"] == NUM - 1 and results[2]["over_reference"] is None
    assert all(result["over_reference"] is not None for result in results[3:])
    assert reference_in_words("vidcom2:0.25") == "vidcom2 at 0.25"
    assert reference_in_words("vidcom2:compression_scoring=released") == "vidcom2 (released)"


@pytest.mark.parametrize("reference", ["vidcom", "vidcom2:0.3", "evs", "0.25", ""])
def test_a_reference_that_is_not_asked_is_refused(reference: str) -> None:
    with pytest.raises(OptionError, match=r"must be one of the methods, vidcom2, random, or .* such as vidcom2:0\.5\."):
        reference_labels(reference, CANDIDATES)


def of_losses(**losses: list[tuple[float, float, float]]) -> list[dict[str, Any]]:
    """Return results of methods, each with (ratio, difference, low) in points."""
    results: list[dict[str, Any]] = [{"method": "all tokens", "retention_ratio": 1.0, "accuracy": 0.9}]
    for method, points in losses.items():
        for ratio, difference, low in points:
            result = {"method": method, "retention_ratio": ratio, "accuracy": 0.9, "kept_share": ratio}
            high = 2 * difference - low
            of_all = {"difference": difference / 100, "difference_low": low / 100, "difference_high": high / 100}
            results.append(result | of_all)
    return results


def test_the_smallest_ratio_is_enough_whose_interval_and_those_of_larger_ones_lie_above_the_margin() -> None:
    results = of_losses(
        steady=[(0.1, -9, -12), (0.25, -2, -4), (0.5, 0, -3)],
        lucky=[(0.1, 0, -2), (0.25, -8, -11), (0.5, 0, -3)],  # a tenth is good by chance
        unsure=[(0.1, -1, -9), (0.25, 0, -5), (0.5, 0, -3)],  # exactly the margin is enough
        worst=[(0.1, -40, -50), (0.25, -30, -40), (0.5, -20, -25)],
    )
    assert enough(results, 5) == {"steady": 0.25, "lucky": 0.5, "unsure": 0.25, "worst": None}
    assert enough(results, 30) == {"steady": 0.1, "lucky": 0.1, "unsure": 0.1, "worst": 0.5}
    assert enough_in_words(results, 5) == (
        "Enough for a loss of at most 5 points: steady at 25 %, lucky at 50 %, unsure at 25 % (10 % undecided), worst "
        "at none. More videos would decide."
    )
    assert enough_in_words(results[:7], 5) == "Enough for a loss of at most 5 points: steady at 25 %, lucky at 50 %."
    assert "steady undecided (50 %)" in str(enough_in_words(results, 2.5))
    unknown = [{**each, "accuracy": None, "difference": None, "difference_low": None} for each in results]
    assert enough_in_words(unknown, 5) is None and enough_in_words(results[:1], 5) is None
    results[3]["refused"] = "1 of 9 questions"
    assert enough(results, 5)["steady"] is None


def test_the_plot_rings_the_ratio_that_is_enough_and_shows_the_differences_to_the_reference(
    asked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(accuracy_plot, "save_png", lambda figure, path, methods: drawn.append(figure))
    questions, rows, _ = asked
    results = summary(questions, rows, CANDIDATES, "vidcom2")
    draw_results(results, "title", tmp_path / "a.png", margin=15)
    draw_results(results, "title", tmp_path / "a.png")
    draw_results([{**each, "accuracy": None, "difference_low": None} for each in results], "t", tmp_path / "a.png", 15)
    three, plain, unknown = drawn
    assert [len(each.axes) for each in (three, plain, unknown)] == [3, 1, 1]
    _, of_enough, of_reference = three.axes
    found = enough(results, 15)
    assert found == {"vidcom2": 0.25, "random": None}
    assert of_enough.get_legend_handles_labels()[1] == ["vidcom2: 25 %", "random: none"]
    (ring,) = (line for line in of_enough.lines if line.get_markerfacecolor() == "none")
    (expected,) = (each for each in results if each["method"] == "vidcom2" and each["retention_ratio"] == 0.25)
    assert ring.get_ydata()[0] == pytest.approx(100 * expected["difference"])
    assert of_reference.get_legend_handles_labels()[1] == ["random"]
    lines = {line.get_label(): line for line in three.axes[0].lines}
    assert lines  # the first panel is as ever
    (random,) = (handle[0] for handle in of_reference.get_legend_handles_labels()[0])
    assert random.get_ydata() == pytest.approx([100 * each["over_reference"] for each in results[:2:-1]][::-1])


def test_a_finished_evaluation_gets_another_report_without_a_model(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [{"video": str(clip.path), "question": clip.question, "answer": clip.answer} for clip in TOY.clips[:2]]
    Path("q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ["eval", "--data", "q.jsonl", "-o", "out", "--max-video-tokens", "300"]
    assert vidcom2(*given, "--methods", "vidcom2,random", "--ratios", "0.5")[0] == 0
    before = json.loads(Path("out/results.json").read_text())
    assert before["title"].endswith(" on q.jsonl, at most 300 tokens")
    again = f"""
import sys
from vidcom2.cli.app import app
sys.argv = ["vidcom2", *{given}, "--report-only", "--reference", "vidcom2", "--margin", "100"]
try:
    app()
finally:
    assert not {{"torch", "transformers", "av"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Enough for a loss of at most 100 points: vidcom2 at 50 %, random at 50 %." in " ".join(done.stdout.split())
    after = json.loads(Path("out/results.json").read_text())
    assert after["birth_certificate"] == before["birth_certificate"] and after["title"] == before["title"]
    assert (after["margin_points"], after["enough"]) == (100.0, {"vidcom2": 0.5, "random": 0.5})
    shown = [row["figures"] for row in after["rows"]]
    for row, old in zip(shown, before["rows"], strict=True):
        assert {**row, **old["figures"]} == row
    assert shown[2]["over_reference"] == shown[2]["accuracy"] - shown[1]["accuracy"]
    assert "minus vidcom2" in Path("out/results.md").read_text()

    assert vidcom2(*given, "--methods", "evs", "--ratios", "0.25", "--limit", 1)[0] == 0
    assert vidcom2(*given, "--methods", "evs", "--ratios", "0.25")[0] == 0
    assert vidcom2(*given, "--report-only")[0] == 0
    all_of_it = json.loads(Path("out/results.json").read_text())["birth_certificate"]
    ran = [shlex.split(each) for each in all_of_it["command"].split("&&")]
    assert ["evs" in each for each in ran] == [False, True, True]
    assert "--limit" in ran[1] and "--limit" not in ran[2]
    assert [*all_of_it["arguments"]["candidates"]] == ["vidcom2 0.5", "random 0.5", "evs 0.25"]

    assert vidcom2(*given, "--report-only", "--limit", 1)[0] == 0
    of_one = json.loads(Path("out/results.json").read_text())["birth_certificate"]
    assert of_one["questions"] == 1
    assert of_one["command"] == all_of_it["command"] + " && vidcom2 eval --data q.jsonl --limit 1 --report-only"

    Path("q.jsonl").write_text("".join(json.dumps({**line, "question": "What?"}) + "\n" for line in lines))
    assert "has the answer to another question" in mistake(*given, "--report-only")
    Path("r.jsonl").write_text(json.dumps({"video": lines[0]["video"], "question": "What?"}) + "\n")
    for more, message in (
        (["--report-only", "-o", "nowhere"], "has no finished evaluation of `vidcom2 eval`"),
        (["--reference", "vidcom2"], "no question in r.jsonl has an `answer`"),
    ):
        assert message in mistake("eval", "--data", "r.jsonl", *more)


def test_candidates_of_a_stopped_run_are_left_out_of_a_report(tmp_path: Path) -> None:
    """A further method has answered one question of two."""
    from vidcom2.evaluation.finished import report_again
    from vidcom2.evaluation.folder import GROWS
    from vidcom2.records.run_record import AnswerFile

    questions = [Question(str(i), f"video {i}", "What?", answers=("x",), given={"n": i}) for i in range(2)]
    candidates = [Candidate("vidcom2", 0.5, {"compression_method": "vidcom2"}), Candidate("mine", 0.5, {"a": 1})]
    file = AnswerFile(tmp_path / "answers.jsonl", GROWS)
    file.claim({"candidates": {each.label: {"settings": each.overrides} for each in candidates}}, "c")
    labels = ["all tokens", "vidcom2 0.5", "mine 0.5"]
    for i, of in enumerate((labels, labels[:2])):
        answers = {label: _answer(True) for label in of}
        file.add([{"id": str(i), "given": {"n": i}, "answers": answers, "video_file": None}])
    certificate = dict.fromkeys(("model", "device", "date", "torch", "transformers", "vidcom2_commit", "command"), "x")
    for wrong in ("x", certificate, {**certificate, "arguments": {}, "command": 3}, {**certificate, "arguments": "x"}):
        (tmp_path / "results.json").write_text(json.dumps({"title": "t", "birth_certificate": wrong}))
        with pytest.raises(OptionError, match="has no finished evaluation"):
            report_again(tmp_path, questions, None, 5.0)
    certificate["arguments"] = {}
    (tmp_path / "results.json").write_text(json.dumps({"title": "t", "birth_certificate": certificate}))
    rows, results, left_out = report_again(tmp_path, questions, None, 5.0)
    assert [each["method"] for each in results] == ["all tokens", "vidcom2"] and len(rows) == 2
    assert left_out == {"mine 0.5": 1}
    *_, last = report_again(tmp_path, [*questions, Question("9", "v", "?")], None, 5.0)[0]
    assert "was not answered" in last["error"]
    file.add([{"id": "9", "given": {}, "error": "the video is gone."}])
    *_, last = report_again(tmp_path, [*questions, Question("9", "v", "?")], None, 5.0)[0]
    assert last["error"] == "the video is gone."
