"""`vidcom2 eval`: its questions, what counts as right, its figures, and what interruptions and bad input leave."""

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, make_video, use_method
from make_clips import write_clip
from models import save_tiny, tower_of
from PIL import Image
from reference import EXACT
from test_cli import vidcom2
from test_cli_errors import mistake
from tokenizers.normalizers import Lowercase

from benchmarks.methods.compressed_answers import compressed_answers
from vidcom2 import VideoCompression, compress, register_compression_method
from vidcom2.asking.candidates import Candidate, candidates_of, compared_candidates
from vidcom2.asking.generation import Batch
from vidcom2.asking.prompting import prepare_inputs
from vidcom2.bulk import many_in_transformers
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS
from vidcom2.errors import BUG, OptionError
from vidcom2.evaluation.accuracy_plot import draw_results
from vidcom2.evaluation.accuracy_tables import markdown, table, unanswered
from vidcom2.evaluation.evaluate import evaluate
from vidcom2.evaluation.report import paired_interval, summary, wilson, write_report
from vidcom2.hub_upload.model_card import read_result
from vidcom2.judging.named_choice import normalised
from vidcom2.judging.questions import Question, read_questions
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.records.fingerprints import video_place
from vidcom2.records.run_record import AnswerFile, locked_output
from vidcom2.toys import TOY
from vidcom2.video.reading import Video, VideoError

ALL = "all tokens"


def frames_of(seed: int, num_frames: int) -> Video:
    frames = np.ascontiguousarray(make_video(seed, num_frames, unique_frame=2).transpose(0, 2, 3, 1))
    return Video(frames, np.arange(num_frames) * 5, 5.0, num_frames * 5)


def read(source: str, num_frames: int) -> Video:
    """Return video number 3 with 6 frames for "3 6"."""
    seed, length = map(int, source.split())
    return frames_of(seed, min(length, num_frames))


def asked(*videos: str) -> list[Question]:
    """Return a question about each of the videos. The questions differ in length."""
    return [Question(str(i), video, "What happens" + " now" * i + "?") for i, video in enumerate(videos)]


GOOD = {"video": "a.mp4", "question": "What?"}
SHORT = {"max_new_tokens": 2, "read": read}

# -- what counts as right ---------------------------------------------------------------------------------------------


def test_case_spaces_punctuation_and_thoughts_do_not_count_in_a_free_answer() -> None:
    assert normalised(" A  red,\ncar! ") == "a red car"
    assert [normalised(text) for text in ("-5", "3.5.", "“don't”", "...")] == ["-5", "3.5", "don't", ""]
    question = Question("1", "v", "?", answers=("A red car", "car"))
    assert [question.is_correct(text) for text in ("a red car.", "Car", "a car", "")] == [True, True, False, False]
    assert question.is_correct("<think>Blue? No.</think>\n\nA red car.") and question.is_correct(r"\boxed{a red car}")
    assert question.is_correct(r"So \boxed{\text{a red car}}.") and question.is_correct("<answer>a red car</answer>")
    assert not question.is_correct("<think>A red car") and not question.is_correct("<think>x</think>")
    assert question.agree("<think>x</think>a red car", "<think>y</think>A red car.")
    assert not question.agree("<think>x", "<think>y") and not question.names_no_option("")
    assert Question("1", "v", "?").is_correct("anything") is None


def test_options_are_shown_with_letters_and_agreement_compares_options() -> None:
    question = Question("1", "v", "Which?", answers=("dog",), choices=("cat", "dog"))
    assert question.prompt.startswith("Which?\nA. cat\nB. dog\n")
    assert question.agree("B", "dog!") and not question.agree("A", "dog") and question.agree("Hm.", "hm")
    assert question.is_correct("B") and not question.is_correct("cat") and not question.is_correct("Hm.")
    assert question.is_correct("<think>A? No.</think>The answer is (B).") and not question.is_correct("A, B")
    thinking = "<think>The answer is B"
    assert not question.is_correct(thinking) and question.names_no_option(thinking)
    assert question.agree(thinking, thinking) and not question.agree(thinking, "<think>Well")


def test_the_report_counts_answers_without_an_option_or_an_end_and_advises_once() -> None:
    questions = [Question(str(i), f"{i}", "Which?", ("dog",), ("cat", "dog")) for i in range(10)]
    questions += [Question(f"open {i}", f"{i}", "What?", ("dog",)) for i in range(2)]

    def row(i: int, begun: str = "<think>") -> dict[str, Any]:
        texts = {ALL: f"{begun}B" if i < 2 else "B", "random 0.5": "A, B" if i < 2 else "A"}
        texts |= {ALL: f"{begun}A dog", "random 0.5": f"{begun}A cat?</think>A dog"} if i == 10 else {}
        made = {"correct": False, "agrees": True, "kept_share": 0.5}
        return {"answers": {label: {"text": text, **made} for label, text in texts.items()}}

    candidates = candidates_of("random", "0.5")
    results = summary(questions, [row(i) for i in range(12)], candidates)
    assert [(each["no_option"], each["of_choice"]) for each in results] == [(2, 10), (2, 10)]
    assert [(each["unfinished"], each["of_open"]) for each in results] == [(1, 2), (0, 2)]
    headings, *cells = table(results)
    shown = [dict(zip(headings, each)) for each in cells]
    assert [each["no option (n = 10)"] for each in shown] == ["2", "2"]
    assert [each["unfinished (n = 2)"] for each in shown] == ["1", "0"]
    first, second, third = unanswered(results)
    assert first == "with all tokens, 2 of 10 answers name no option, or several."
    assert second == "with all tokens, 1 of 2 answers to open questions end within the model's thoughts."
    assert third.startswith("with random at 0.5, 2 of 10 answers name no option, or several. A model that explains or ")
    page = markdown("title", results, 0, "here")
    assert page.count("--max-new-tokens") == 1 and first in page and second in page and third in page
    assert "`no option` counts answers" in page and "`unfinished` counts answers" in page
    few = summary(questions, [row(i) if i != 1 else row(5) for i in range(12)], candidates)
    assert len(unanswered(few)) == 1  # a tenth of the answers without an option is not too many
    gemma = summary(questions[10:], [row(10, "<|channel>thought"), row(11)], candidates)
    assert gemma[0]["unfinished"] == 1 and "no option" not in str(table(gemma)[0])
    free = summary(questions[11:], [row(11)], candidates)
    assert "no option" not in markdown("t", free, 0, "") and "unfinished" not in markdown("t", free, 0, "")
    assert unanswered(free) == []


def test_each_figure_says_of_how_many_questions_it_is_and_what_its_brackets_mean() -> None:
    """Of four questions about three videos, three have right answers, and two are of the kind "colour"."""
    videos, kinds = ("a", "a", "b", "c"), ("colour", "shape", "shape", "colour")
    right = (("red",), ("round",), ("flat",), None)
    questions = [Question(str(i), v, "?", r, kind=k) for i, (v, r, k) in enumerate(zip(videos, right, kinds))]
    answers = [{"text": "", "correct": i < 3 or None, "agrees": True, "kept_share": 0.5} for i in range(4)]
    rows = [{"answers": {ALL: each, "random 0.5": each}} for each in answers]
    results = summary(questions, rows, candidates_of("random", "0.5"))
    page = markdown("title", results, 0, "here")
    headings = ["method", "ratio", "kept, % (n = 4)", "accuracy, % (n = 3)", "difference, points (n = 3, 2 videos)"]
    assert table(results)[0] == [*headings, "agreement, % (n = 4)"]
    assert "4 questions about 3 videos; 0 errors" in page
    assert "| method | ratio | colour (n = 1) | shape (n = 2) |" in page
    assert "Brackets hold 95 % intervals" in page and "where no answer changed" in page


# -- questions and candidates -----------------------------------------------------------------------------------------


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_of_the_file_is_a_question(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "questions.jsonl",
        {"video": "clips/a.mp4", "question": "Which?", "choices": ["cat", "dog"], "answer": "b", "source": "mine"},
        "",
        {"id": 7, "video": "https://x.org/b.mp4", "question": "Who?", "answer": ["Ann", "anna"], "kind": "people"},
        {"video": "/c.mp4", "question": "Why?"},
    )
    first, second, third = read_questions(path)
    assert (first.id, first.video, first.answers) == ("1", str(tmp_path / "clips/a.mp4"), ("dog",))
    assert first.given["source"] == "mine"
    assert (second.id, second.video, second.kind) == ("7", "https://x.org/b.mp4", "people")
    assert (third.id, third.video, third.answers, third.choices) == ("4", "/c.mp4", None, None)
    assert [question.id for question in read_questions(path, limit=2)] == ["1", "7"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "it is not valid JSON"),
        ("[1]", "it holds an array"),
        ('{"video": "a.mp4", "question": "x", "question": "y"}', "the key 'question' comes twice"),
        ('{"video": "a.mp4", "question": "x", "mine": NaN}', "NaN"),
        ({"video": "a.mp4", "qestion": "What?"}, "`question` is missing.*'qestion'"),
        ({"video": "a.mp4", "prompt": "What?"}, "`question` is missing.*`prompt`"),
        (GOOD | {"video": " "}, "`video` is ' '"),
        (GOOD | {"kind": 1}, "`kind` is 1"),
        (GOOD | {"kind": "two\nlines"}, r"`kind` is 'two\\nlines', but must be a text of one line"),
        (GOOD | {"id": True}, "`id` is True"),
        (GOOD | {"id": "1"}, "`id` is '1'"),
        (GOOD | {"chat_template_kwargs": {}}, "`chat_template_kwargs`"),
        (GOOD | {"max_new_tokens": 4}, "`max_new_tokens` holds for all questions. Pass it as --max-new-tokens"),
        (GOOD | {"retention_ratio": 0.9}, "`retention_ratio` holds for all questions. Pass it as --ratios"),
        (GOOD | {"answer": 3}, "`answer` is 3"),
        (GOOD | {"answer": []}, r"`answer` is \[\]"),
        (GOOD | {"answer": "..."}, "`answer` is '...'"),
        *((GOOD | {"answer": each}, "reads like the label of an option") for each in ("b", "(B)", "B.", ["B"])),
        (GOOD | {"choices": "ab"}, "`choices` is 'ab'"),
        (GOOD | {"choices": [1, 2]}, r"`choices` is \[1, 2\]"),
        (GOOD | {"choices": {"A": "x", "B": "y"}}, "`choices` is {'A': 'x'"),
        (GOOD | {"choices": ["a", "A."]}, "differ in case or punctuation alone"),
        (GOOD | {"choices": ["B. x", "A. y"]}, "letters in another order"),
        *(
            (GOOD | {"choices": ["x", "y"], "answer": each}, "`answer` is .*`choices`")
            for each in ("z", ["x", "y"], "C", "A. y")
        ),
        (GOOD | {"choices": ["B", "A"], "answer": "A"}, "`answer` is .*, where these are two options, both"),
        (GOOD | {"option_a": "x", "option_b": "y", "answer": "A"}, "'option_a' and 'option_b' .*read like options"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_the_reason(line: Any, reason: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "q.jsonl", GOOD, "", line)
    with pytest.raises(OptionError, match=rf"line 3 of .*q.jsonl' is no question: .*{reason}"):
        read_questions(path)


def test_bad_questions_are_reported_before_a_model_is_loaded(tmp_path: Path) -> None:
    for path in (
        tmp_path / "missing.jsonl",
        write_lines(tmp_path / "empty.jsonl", ""),
        write_lines(tmp_path / "bad.jsonl", "{"),
    ):
        code, _, error = vidcom2("eval", "--data", path, "--model", tmp_path / "no-model", "-o", tmp_path / "out")
        assert code == 2 and path.name in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_every_method_is_a_candidate_at_every_ratio() -> None:
    found = candidates_of("random, vidcom2:compression_scoring=released:compression_window=8", "0.5,.25")
    released = {"compression_method": "vidcom2", "compression_scoring": "released", "compression_window": 8}
    assert [each.overrides for each in found] == [
        {"compression_method": "random", "retention_ratio": 0.5},
        {"compression_method": "random", "retention_ratio": 0.25},
        released | {"retention_ratio": 0.5},
        released | {"retention_ratio": 0.25},
    ]
    assert found[1].label == "random 0.25"


@pytest.mark.parametrize(
    ("methods", "ratios", "reason"),
    [
        ("nonsense", "0.5", "`--methods` is 'nonsense'"),
        ("random:compression_scoring=released", "0.5", "does not read it"),
        ("vidcom2:released", "0.5", "`--methods` has 'vidcom2:released'"),
        ("vidcom2:retention_ratio=0.5", "0.5", "`--ratios`"),
        ("vidcom2,vidcom2", "0.5", "`--methods` has 'vidcom2' twice"),
        ("vidcom2", "0.5,1.0", "`--ratios` has '1.0'"),
        ("vidcom2", "half", "`--ratios` has 'half'"),
        ("vidcom2", "0.5,0.50", "`--ratios` has '0.5' twice"),
        ("vidcom2", "0.12345678,0.1,0.12345679", "`--ratios` has '0.123457' twice"),
    ],
)
def test_bad_candidates_are_refused(methods: str, ratios: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        candidates_of(methods, ratios)


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tower_runs(family: Family) -> Iterator[list[int]]:
    runs: list[int] = []
    hook = tower_of(family.model.model).register_forward_hook(lambda *_: runs.append(1))
    yield runs
    hook.remove()


@pytest.mark.usefixtures("methods_restored")
def test_answers_equal_those_of_each_question_alone_and_the_tower_runs_once_per_video(
    family: Family, tower_runs: list[int], tmp_path: Path
) -> None:
    users = [use_method("merged_in_time"), use_method("inner_contrast")]
    candidates = [*candidates_of("vidcom2", "0.5,0.2"), *candidates_of(",".join(users), "0.2")]
    questions = asked("0 8", "0 8", "1 6", "1 6")
    with_processor = Checkpoint("tiny", family.model, family.processor)
    given = {"batch_size": 3, "max_new_tokens": 5, "read": read}
    rows = evaluate(with_processor, questions, candidates, tmp_path / "answers.jsonl", **given)
    assert len(tower_runs) == 2
    for question, row in zip(questions, rows, strict=True):
        inputs = prepare_inputs(family.processor, question.question, read(question.video, 8), family.model)
        for label, overrides in {ALL: {"retention_ratio": 1.0}, **{c.label: c.overrides for c in candidates}}.items():
            output = family.model.generate(**inputs, max_new_tokens=5, do_sample=False, **overrides)
            new = output[0, inputs["input_ids"].shape[1] :]
            text = family.processor.decode(new, skip_special_tokens=True).strip()
            assert row["answers"][label]["text"] == text, label
            whole = normalised(text) == normalised(row["answers"][ALL]["text"])
            assert row["answers"][label]["agrees"] == whole
            kept = family.model.get_video_features(**family.videos_of(inputs), **overrides).video_compressions[0]
            assert row["answers"][label]["kept_share"] == len(kept.indices) / kept.num_tokens
    texts = Counter(answer["text"] for row in rows for answer in row["answers"].values())
    assert len(texts) > 1 or not family.case.representative  # otherwise a model with only one answer would pass


def test_a_candidate_may_be_a_function(checkpoint: Checkpoint, tmp_path: Path) -> None:
    seen = []

    def halved(model: Any, batch: Batch, max_new_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append((len(batch.prompts), len(batch.videos), max_new_tokens))
        assert set(batch.videos[0].outputs) == {"pooler_output"}  # a tower's hidden states would fill the memory
        assert "pixel_values_videos" in batch.videos[0].inputs
        return compressed_answers(model, batch, model.config.compression_settings(retention_ratio=0.5), max_new_tokens)

    candidates = [Candidate("mine", 0.5, answer=halved), *candidates_of("vidcom2", "0.5")]
    rows = evaluate(checkpoint, asked("0 8", "1 4"), candidates, tmp_path / "a", max_new_tokens=3, read=read)
    assert seen == [(2, 2, 3)]
    for row in rows:
        assert row["answers"]["mine 0.5"] == row["answers"]["vidcom2 0.5"] != row["answers"][ALL]


# -- interruptions and errors -----------------------------------------------------------------------------------------


def test_an_interrupted_run_is_continued_and_other_runs_are_kept_out(checkpoint: Checkpoint, tmp_path: Path) -> None:
    questions, candidates = asked("0 4", "1 4", "2 4", "3 4", "4 4"), candidates_of("random", "0.5")
    whole, halted = tmp_path / "whole.jsonl", tmp_path / "halted.jsonl"
    evaluate(checkpoint, questions, candidates, whole, batch_size=2, **SHORT)
    read_here, killed_at = [], ["3 4"]

    def reading(source: str, num_frames: int) -> Video:
        if source in killed_at:
            raise KeyboardInterrupt
        read_here.append(source)
        with pytest.raises(OptionError, match="another run is writing"), locked_output(halted):
            pass
        return read(source, num_frames)

    with pytest.raises(KeyboardInterrupt):
        evaluate(checkpoint, questions, candidates, halted, batch_size=2, max_new_tokens=2, read=reading)
    assert len(halted.read_text().splitlines()) == 2  # the answers of the batches before
    with halted.open("a") as file:
        file.write('{"id": "2", "given": {"vi')  # as if killed while writing
    killed_at.clear()
    read_here.clear()
    evaluate(checkpoint, questions, candidates, halted, batch_size=2, max_new_tokens=2, read=reading)
    assert sorted(read_here) == ["2 4", "3 4", "4 4"]
    assert halted.read_text() == whole.read_text()


def test_a_bad_video_gives_an_error_row_and_is_tried_again_next_time(checkpoint: Checkpoint, tmp_path: Path) -> None:
    questions, candidates, path = asked("0 4", "bad", "bad", "1 4"), candidates_of("random", "0.5"), tmp_path / "a"
    tries, bad = [], ["bad"]

    def reading(source: str, num_frames: int) -> Video:
        tries.append(source)
        if source in bad:
            raise VideoError("cannot read it:\n no frames.")
        return read("5 4" if source == "bad" else source, num_frames)

    rows = evaluate(checkpoint, questions, candidates, path, batch_size=4, max_new_tokens=2, read=reading)
    assert [row.get("error") for row in rows] == [None, *["cannot read it: no frames."] * 2, None]
    assert "answers" not in rows[1] and sorted(tries) == ["0 4", "1 4", "bad"]
    tries.clear()
    bad.clear()
    again = evaluate(checkpoint, questions, candidates, path, max_new_tokens=2, read=reading)
    assert tries == ["bad"] and all("answers" in row for row in again) and again[0] == rows[0] and again[3] == rows[3]
    assert Counter(row["id"] for row in read_lines(path)) == dict.fromkeys("0123", 1)


def test_a_batch_that_does_not_fit_into_memory_is_halved_and_a_bug_is_the_error_of_its_question(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    sizes: list[int] = []

    def large(error: Exception, most: int) -> list[Candidate]:
        def answer(model: Any, batch: Batch, max_new_tokens: int) -> Any:
            sizes.append(len(batch.videos))
            if sizes[-1] > most:
                raise error
            return compressed_answers(model, batch, model.config.compression_settings(), max_new_tokens)

        return [Candidate("large", 0.5, answer=answer)]

    questions, given = asked(*(f"{i} 4" for i in range(6))), {"batch_size": 5, **SHORT}
    full = torch.OutOfMemoryError("CUDA out of memory. Tried.\nMore.")
    rows = evaluate(checkpoint, questions, large(full, 2), tmp_path / "a", **given)
    assert sizes == [5, 2, 3, 1, 2, 1] and all("answers" in row for row in rows)
    assert [row["id"] for row in read_lines(tmp_path / "a")] == [question.id for question in questions]
    rows = evaluate(checkpoint, questions, large(full, 0), tmp_path / "b", **given)
    assert all(row["error"].startswith("out of memory (CUDA out of memory. Tried.)") for row in rows)
    sizes.clear()
    rows = evaluate(checkpoint, questions[:1], large(KeyError("x"), 0), tmp_path / "bug", **given)
    assert rows[0]["error"].startswith(f"{BUG}: KeyError: 'x' (test_evaluation:")
    sizes.clear()
    rows = evaluate(checkpoint, questions, large(KeyError("x"), 4), tmp_path / "c", **given)
    assert sizes == [5, 2, 3, 1] and all("answers" in row for row in rows)
    given["read"] = lambda source, n: {}[source] if source == "0 4" else read(source, n)
    rows = evaluate(checkpoint, questions, large(full, 9), tmp_path / "d", **given)
    assert rows[0]["error"] == "cannot read the video: KeyError: '0 4'" and all("answers" in row for row in rows[1:])
    with pytest.raises(KeyboardInterrupt):
        evaluate(checkpoint, questions, large(KeyboardInterrupt(), 0), tmp_path / "e", **given)
    with pytest.raises(OptionError, match="two questions have the id '1'"):
        evaluate(checkpoint, [*questions, questions[1]], large(full, 9), tmp_path / "f", **given)


@pytest.mark.usefixtures("methods_restored")
def test_a_ratio_that_a_method_refuses_is_shown_with_the_reason_and_no_figure(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    @register_compression_method("shy")
    def shy(video: Any, settings: Any) -> VideoCompression:
        if settings.retention_ratio < 0.2:
            raise ValueError("`retention_ratio` is below 0.2. Keep more.")
        return VideoCompression.of_mask(torch.rand(video.tokens.shape[:2]) < 0.5)

    questions, candidates = asked("0 4", "1 4"), candidates_of("shy,random", "0.3,0.1")
    rows = evaluate(checkpoint, questions, candidates, tmp_path / "a", **SHORT)
    results = summary(questions, rows, candidates)
    assert [result["kept_share"] is None for result in results] == [False, False, True, False, False]
    assert results[2]["refused"] == "2 of 2 questions, the first: `retention_ratio` is below 0.2. Keep more."
    certificate = dict.fromkeys(("model", "device", "date", "torch", "transformers", "vidcom2_commit"), "x")
    write_report(tmp_path, "title", questions, rows, candidates, certificate)
    page = (tmp_path / "results.md").read_text()
    assert "| shy | 0.1 | n/a | n/a |" in page and "- shy at 0.1: 2 of 2 questions" in page
    assert Image.open(tmp_path / "results.png").size[0] > 500


@pytest.mark.usefixtures("methods_restored")
def test_a_question_that_a_method_refuses_is_refused_alone(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Eight questions share a batch. The method refuses two videos, each with its own reason."""

    @register_compression_method("shy")
    def shy(video: Any, settings: Any) -> VideoCompression:
        if len(video.tokens) in (5, 7):
            raise ValueError(f"it refuses {len(video.tokens)} frames.")
        return VideoCompression.of_mask(torch.ones(video.tokens.shape[:2]) > 0)

    questions = asked("0 4", "1 4", "2 5", "2 5", "3 6", "4 7", "5 4", "6 4")
    for place in (1, 3):  # these are answered by a letter
        questions[place] = replace(questions[place], answers=("garden",), choices=("kitchen", "garden"))
    candidates, given = candidates_of("shy,random", "0.5"), {"num_frames": 8, **SHORT}
    rows = evaluate(checkpoint, questions, candidates, tmp_path / "a", **given)
    assert ["letter_logprobs" in row["answers"][ALL] for row in rows] == [place in (1, 3) for place in range(8)]
    refused = {row["id"]: row["answers"]["shy 0.5"].get("refused") for row in rows}
    reasons = {"2": "it refuses 5 frames.", "3": "it refuses 5 frames.", "5": "it refuses 7 frames."}
    assert refused == dict.fromkeys("01234567") | reasons
    alone = evaluate(checkpoint, questions, candidates, tmp_path / "b", batch_size=1, **given)
    for each in (answer for row in (*rows, *alone) for answer in row["answers"].values()):
        each.pop("letter_logprobs", None)  # which are rounded otherwise in a batch
    assert rows == alone
    known = [each | {"answers": {k: v | {"correct": True} for k, v in each["answers"].items()}} for each in rows]
    whole, short, by_chance = summary(questions, known, candidates)
    assert (whole["accuracy_n"], short["accuracy_n"], short["difference_n"], by_chance["accuracy_n"]) == (8, 5, 5, 8)
    assert short["refused"] == "3 of 8 questions, the first: it refuses 5 frames."
    headings, _, cells, _ = table([whole, short, by_chance])
    shown = dict(zip(headings, cells))
    assert shown["accuracy, %"].endswith("] (n = 5)") and shown["difference, points"].endswith("] (n = 5, 5 videos)")
    draw_results([whole, short, by_chance], "title", tmp_path / "plot.png")


def test_a_question_that_the_stock_model_refuses_is_an_error_alone(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 0
    generated = many_in_transformers.generate_answers

    def shy(model: Any, prompts: Any, *given: Any, **more: Any) -> torch.Tensor:
        nonlocal longest
        longest = max(longest, prompts["input_ids"].shape[1])  # the first call has all questions
        if prompts["input_ids"].shape[1] == longest:
            raise ValueError("the logits are\nnot numbers.")
        return generated(model, prompts, *given, **more)

    monkeypatch.setattr(many_in_transformers, "generate_answers", shy)
    rows = evaluate(checkpoint, asked("0 4", "1 4", "2 4"), candidates_of("random", "0.5"), tmp_path / "a", **SHORT)
    assert [row.get("error") for row in rows] == [None, None, "the logits are not numbers."]
    assert "answers" in rows[1] and "answers" not in rows[2]


# -- all tokens -------------------------------------------------------------------------------------------------------


SKIPS = {"vision_method": "skip_repeated", "vision_tolerance": 10.0}  # so that it sees the first frame alone


def test_all_tokens_is_the_stock_model_and_methods_may_have_towers_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A toy that skips what repeats misses the digit that flashes up. Each tower encodes the video once."""
    stock, skips = load_checkpoint(None, device="cpu"), load_checkpoint(None, device="cpu", **SKIPS)
    runs, encode = [], many_in_transformers.run_tower
    monkeypatch.setattr(many_in_transformers, "run_tower", lambda *given: runs.append(1) or encode(*given))
    clip, given = TOY.clips[0], {"num_frames": 16, "max_new_tokens": 4}
    asked = [Question(str(i), str(clip.path), clip.question, (clip.answer,)) for i in range(2)]

    def answers(model: Checkpoint, methods: str) -> list[bool]:
        candidates, file = candidates_of(methods, "0.5"), tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        rows = evaluate(model, asked, candidates, file, **given)
        settings = summary(asked, rows, candidates)[0]["settings"]
        assert settings == {"retention_ratio": 1.0, "vision_method": "full"}
        return [rows[0]["answers"][each.label]["correct"] for each in compared_candidates(candidates)]

    its_own = "vidcom2:" + ":".join(f"{name}={value}" for name, value in SKIPS.items())
    assert answers(stock, "vidcom2") == [True, True] and len(runs) == 1
    assert answers(skips, "vidcom2,random") == [True, False, False] and len(runs) == 3
    assert answers(stock, f"vidcom2,{its_own}") == [True, True, False] and len(runs) == 5
    assert answers(skips, "vidcom2:vision_method=full,vidcom2") == [True, True, False] and len(runs) == 7


# -- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17, 1998, Table I.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_equals_the_literatures(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)
    assert wilson(n - successes, n) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_the_paired_interval_resamples_videos_beside_a_gained_and_a_lost_one() -> None:
    rng = np.random.default_rng(1)
    differences = rng.choice([-1, 0, 1], size=400, p=[0.15, 0.75, 0.1]).tolist()
    videos = list(map(str, range(400)))
    low, high = paired_interval(differences, videos) or (0.0, 0.0)
    half = 1.96 * np.std([*differences, 1, -1]) / math.sqrt(402)  # by the central limit theorem
    middle = sum(differences) / 402
    assert (low, high) == pytest.approx((middle - half, middle + half), abs=0.1 * half)
    fourfold = paired_interval(np.repeat(differences, 4).tolist(), np.repeat(videos, 4).tolist())
    assert fourfold == pytest.approx((low, high), abs=1e-9)  # copies of a question add no information
    assert paired_interval(differences, videos) == (low, high)


def test_each_lost_answer_lowers_the_paired_interval() -> None:
    """With 0 of 100 lost, as with 3 in the rule of three: a loss of 3 % would be seen with a probability of 95 %."""
    videos = [f"{i:03}" for i in range(100)]
    found = [paired_interval([-1] * lost + [0] * (100 - lost), videos) or (0.0, 0.0) for lost in range(8)]
    lows, highs = zip(*found)
    assert found[0] == pytest.approx((-0.03, 0.03), abs=0.002)
    assert all(after < before for before, after in pairwise(lows)), lows
    assert all(after <= before for before, after in pairwise(highs)), highs
    assert all(low < -lost / 100 < high for lost, (low, high) in enumerate(found))


def test_answers_that_are_gained_and_lost_within_each_video_leave_an_interval() -> None:
    low, high = paired_interval([1, -1] * 10, [str(i // 2) for i in range(20)]) or (0.0, 0.0)
    assert low < -0.1 and high > 0.1
    assert paired_interval([0, 1], ["a", "a"]) is None  # a single video says nothing about others


def test_the_paired_interval_covers_the_true_difference() -> None:
    """30 videos of 2 questions, of which 3 % are lost in pairs and 1 % gained: true in 0.98 of the samples."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(100):
        drawn = np.repeat(rng.choice([-1, 0, 1], size=30, p=[0.03, 0.96, 0.01]), 2)
        low, high = paired_interval(drawn.tolist(), np.repeat(np.arange(30), 2).astype(str).tolist()) or (0.0, 0.0)
        held += low <= -0.02 <= high
    assert held >= 95


def test_questions_about_one_file_by_several_names_are_of_one_video(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.mp4").touch()
    (tmp_path / "link.mp4").symlink_to(tmp_path / "clips" / "a.mp4")
    names = ["clips/a.mp4", "clips/../clips/a.mp4", "link.mp4"]
    files = [*(str(tmp_path / name) for name in names), (tmp_path / "clips" / "a.mp4").as_uri()]
    assert {video_place(each) for each in files} == {str(tmp_path / "clips" / "a.mp4")}
    url = "https://x.org/clips/../a.mp4"
    assert video_place(url) == url
    questions = [Question(str(i), each, "What?", ("dog",)) for i, each in enumerate(files)]
    answer = {"text": "dog", "correct": True, "agrees": True, "kept_share": 0.5}
    rows = [{"answers": {ALL: answer, "random 0.5": answer | {"correct": i > 0}}} for i in range(4)]
    whole, short = summary(questions, rows, candidates_of("random", "0.5"))
    assert (whole["accuracy_n"], whole["accuracy_videos"]) == (4, 1)
    assert (short["difference_n"], short["difference_videos"], short["difference_low"]) == (4, 1, None)
    page = markdown("title", [whole, short], 0, "here")
    assert "−25.0 |" in page and "no interval" in page and "1 video" in page


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write questions about three clips and a missing one. Their right answers are taken from the model's own."""
    home = tmp_path_factory.mktemp("data")
    lines = []
    for i in range(3):
        rng = np.random.default_rng(i)
        picture = rng.integers(0, 256, (64, 96, 3), dtype=np.uint8)
        write_clip(home / f"{i}.mp4", np.arange(6) / 5, picture=lambda n, p=picture: np.roll(p, 9 * n, axis=1))
        for j in range(3):
            lines.append({"video": f"{i}.mp4", "question": f"Question {j * i}{'?' * j}", "kind": f"kind {j}", "own": i})
    lines.append({"video": "missing.mp4", "question": "What?", "answer": "nothing"})
    path = write_lines(home / "questions.jsonl", *lines)
    code, _, error = vidcom2(*command(folder, path, home / "before"))
    assert code == 3, error
    for i, row in enumerate(read_lines(home / "before" / "answers.jsonl")[:9]):
        label = (ALL, "vidcom2 0.5", "random 0.5", "random 0.2")[i % 4]
        lines[i]["answer"] = row["answers"][label]["text"] or "nothing"
    return write_lines(path, *lines)


def command(folder: Path, data: Path, output: Path, *more: Any) -> list[Any]:
    small = ["--ratios", "0.5,0.2", "--num-frames", 6, "--max-new-tokens", 3, "--batch-size", 4, "--device", "cpu"]
    return ["eval", "--model", folder, "--data", data, *small, "-o", output, *more]


@pytest.fixture(scope="module")
def output(folder: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("made") / "out"
    code, shown, error = vidcom2(*command(folder, data, output))
    assert code == 3, error  # as `run --videos`
    assert "1 of 10 questions were not answered. The first is 10: there is no video file" in shown
    return output


def test_the_figures_follow_from_the_answers_and_state_their_provenance(output: Path, data: Path, folder: Path) -> None:
    text = (output / "results.json").read_text()
    content = json.loads(text)
    certificate = content["birth_certificate"]
    assert certificate["model"] == folder.name and str(folder) not in text
    assert certificate["arguments"]["data_sha256"] == hashlib.sha256(data.read_bytes()).hexdigest()
    assert certificate["command"].startswith("vidcom2 eval --data questions.jsonl --model tiny-model --ratios 0.5,0.2 ")
    assert certificate["questions"] == 10 and certificate["dtype"] == "float32"
    rows = read_lines(output / "answers.jsonl")
    assert content["errors"] == 1 and [row["given"] for row in rows] == read_lines(data)
    answered = [row for row in rows if "answers" in row]
    figures = [row["figures"] for row in content["rows"]]
    assert len(answered) == 9 and len(figures) == 5
    seen = set()
    for found in figures:
        label = ALL if found["method"] == ALL else f"{found['method']} {found['retention_ratio']}"
        right = Counter()
        same = changed = 0
        for row in answered:
            text, truth, whole = row["answers"][label]["text"], row["given"]["answer"], row["answers"][ALL]["text"]
            right[row["given"]["kind"]] += normalised(text) == normalised(truth)
            changed += (normalised(text) == normalised(truth)) - (normalised(whole) == normalised(truth))
            same += normalised(text) == normalised(whole)
        assert (found["accuracy"], found["agreement"]) == (sum(right.values()) / 9, same / 9)
        assert found["accuracy_n"] == found["questions"] == 9
        assert {kind: 3 * shares["accuracy"] for kind, shares in found["by_kind"].items()} == dict(right)
        assert found["kept_share"] == pytest.approx(np.mean([row["answers"][label]["kept_share"] for row in answered]))
        if label != ALL:
            assert found["difference"] == pytest.approx(changed / 9)
            assert found["difference_low"] <= found["difference"] <= found["difference_high"]
        seen.add(found["accuracy"])
    assert len(seen) > 1  # otherwise the counts above would agree by chance
    tokens = torch.randn(6, 9, 8)
    shares = {r: len(compress(tokens, r, compression_method="random", **EXACT).indices) / 54 for r in (0.5, 0.2)}
    assert {found["retention_ratio"]: found["kept_share"] for found in figures[3:]} == pytest.approx(shares)


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vidcom2.evaluation.report.draw_results", lambda *_: None)


@pytest.mark.usefixtures("without_plots")
def test_a_run_is_continued_only_if_nothing_that_answers_depend_on_has_changed(
    folder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip, module, output = tmp_path / "clip.mp4", tmp_path / f"methods_{tmp_path.name}.py", tmp_path / "out"
    clip.write_bytes((data.parent / "0.mp4").read_bytes())
    module.write_text("kept = 1\n")
    questions = write_lines(tmp_path / "questions.jsonl", GOOD | {"video": "clip.mp4"})
    arguments = ["--import", module, *command(folder, questions, output, "--compression-rounding", "exact")]
    assert vidcom2(*arguments)[0] == 0
    before = (output / "answers.jsonl").read_text()
    assert vidcom2(*arguments, "--batch-size", 2)[0] == 0

    def check_refused(reason: str, asked: list[Any] = arguments) -> None:
        error = mistake(*asked)
        assert reason in error and "ame another --output" in error
        assert (output / "answers.jsonl").read_text() == before

    with locked_output(output / "answers.jsonl"):
        check_refused("another run is writing")
    check_refused("`num_frames` was 6 and is 4", [*arguments, "--num-frames", 4])
    check_refused("`settings.compression_rounding` was 'exact' and is None", arguments[:-2])
    module.write_text("kept = 2\n")
    assert vidcom2(*arguments)[0] == 0  # it holds no method
    module.write_text("kept = 1\n")
    content = clip.read_bytes()
    clip.unlink()
    clip.write_bytes(content)  # as a copy has a time of its own
    assert vidcom2(*arguments)[0] == 0 and (output / "answers.jsonl").read_text() == before
    clip.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    monkeypatch.setattr("vidcom2.loading.checkpoints.load_resolved", None)  # refused before it is called
    check_refused("has the answer about another video of question '1'")
    clip.write_bytes((data.parent / "1.mp4").read_bytes())
    check_refused("has the answer about another video of question '1'")
    other = save_tiny(tmp_path / folder.name, seed=1)
    check_refused(f"`model` was '{folder}' and is '{other}'", [other if each == folder else each for each in arguments])
    check_refused("is no run of `vidcom2 eval`", [data.parent if each == output else each for each in arguments])


def test_recorded_answers_of_another_model_are_refused_in_python(folder: Path, tmp_path: Path) -> None:
    questions, candidates, path = asked("0 4", "1 4"), candidates_of("random", "0.5"), tmp_path / "a.jsonl"
    arguments = {"num_frames": 4, **SHORT}
    own = load_checkpoint(str(folder), device="cpu")
    rows = evaluate(own, questions, candidates, path, **arguments)
    by_hand = Checkpoint("by hand", own.model, own.processor)
    for same in (load_checkpoint(str(folder), device="cpu"), by_hand):
        assert evaluate(same, questions, candidates, path, **arguments) == rows
    other = load_checkpoint(str(save_tiny(tmp_path / "other", seed=1)), device="cpu")
    rounded = load_checkpoint(str(folder), device="cpu", compression_rounding="ceil")
    trained = load_checkpoint(str(folder), device="cpu")
    trained.model.get_output_embeddings().weight.data[3, 5] += 1e-3
    penalized = load_checkpoint(str(folder), device="cpu")
    penalized.model.generation_config.repetition_penalty = 1.05
    smaller, templated, retokenized, lowered = (load_checkpoint(str(folder), device="cpu") for _ in range(4))
    smaller.processor.video_processor.image_mean = [0.1, 0.1, 0.1]
    templated.processor.chat_template += "\n"
    retokenized.processor.tokenizer.add_tokens(["<mine>"])
    lowered.processor.tokenizer.backend_tokenizer.normalizer = Lowercase()

    def of_user(model: Any, batch: Batch, max_new_tokens: int) -> Any:
        raise AssertionError("nothing is left to answer")

    of_function = [Candidate("random", 0.5, candidates[0].settings, of_user)]
    for model, asking, compared, more, reason in (
        (other, questions, candidates, {}, "holds the answers of another run: `weights` was"),
        (trained, questions, candidates, {}, "`weights` was"),
        (penalized, questions, candidates, {}, "`generation_config.repetition_penalty` was"),
        (rounded, questions, candidates, {}, "`model_settings.compression_rounding` was 'exact' and is 'ceil'"),
        *((each, questions, candidates, {}, "`processor` was") for each in (smaller, templated, retokenized, lowered)),
        (own, questions, of_function, {}, "the code of 'random 0.5' has changed since these answers"),
        (own, questions, candidates, {"num_frames": 3}, "`num_frames` was 4 and is 3"),
        (own, questions, candidates, {"read": lambda source, n: read(source, n)}, "`read` was"),
        (own, asked("1 4", "0 4"), candidates, {}, "the answer to another question of id '0'"),
    ):
        with pytest.raises(OptionError, match=reason):
            evaluate(model, asking, compared, path, **arguments | more)
    with pytest.raises(OptionError, match="two questions have the id '1'"):
        evaluate(own, [*questions, questions[1]], candidates, tmp_path / "b.jsonl", **arguments)
    assert read_lines(path) == rows and not (tmp_path / "b.jsonl").exists()


@pytest.mark.usefixtures("methods_restored")
@pytest.mark.parametrize(
    ("setting", "method"), [("compression_method", "mine"), ("vision_method", "mine"), ("compression_method", "ranked")]
)
def test_answers_of_a_method_whose_code_has_changed_are_not_continued(
    checkpoint: Checkpoint, setting: str, method: str, tmp_path: Path
) -> None:
    """A notebook defines its method again, under the same name. A function that the method calls may change as well."""

    def defined(share: float) -> None:
        code = f"""
from vidcom2 import VideoCompression, register_compression_method, register_score_method, register_vision_method
def kept(tokens):
    return tokens[..., 0] > {share}
def mine(video, settings):
    return VideoCompression.of_mask(kept(video.tokens))
def changed(groups, computed, settings):
    return kept(groups)
register_compression_method("mine")(mine)
register_vision_method("mine")(changed)
register_score_method("ranked", ranking={"frame" if share else "video"!r})(lambda video: video.tokens[..., 0])
"""
        exec(code, {"__name__": "notebook"})

    candidates = [Candidate("random", 0.5, {"compression_method": "random", setting: method})]
    given = {"num_frames": 4, "max_new_tokens": 1, "read": read}
    defined(-1e9)
    rows = evaluate(checkpoint, asked("0 4"), candidates, tmp_path / "a", **given)
    defined(-1e9)
    assert evaluate(checkpoint, asked("0 4"), candidates, tmp_path / "a", **given) == rows
    defined(0.0)
    with pytest.raises(OptionError, match=r"the code of 'random 0\.5' has changed since these answers"):
        evaluate(checkpoint, asked("0 4"), candidates, tmp_path / "a", **given)


@pytest.mark.usefixtures("methods_restored")
def test_a_further_method_is_asked_alone_and_compared_with_the_answers_of_before(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, given = tmp_path / "a", {"num_frames": 8, **SHORT}
    questions = [*asked("0 8", "0 8", "1 6", "2 8"), Question("l", "1 6", "Where?", ("b",), ("a", "b"))]
    first, then = candidates_of("random", "0.5"), candidates_of("random,vidcom2", "0.5,0.2")
    at_once = evaluate(checkpoint, questions, then, tmp_path / "at_once", **given)
    chosen, compress = [], many_in_transformers.keep_tokens
    monkeypatch.setattr(
        many_in_transformers, "keep_tokens", lambda *given: chosen.append(given[2].as_dict()) or compress(*given)
    )
    evaluate(checkpoint, questions[:3], first, file, **given)
    chosen.clear()
    evaluate(checkpoint, questions[:3], then, file, **given)
    found = Counter((each["compression_method"], each["retention_ratio"]) for each in chosen)
    assert found == {("random", 0.2): 2, ("vidcom2", 0.5): 2, ("vidcom2", 0.2): 2}  # of two videos
    rows = evaluate(checkpoint, questions, then, file, **given)
    assert rows == at_once and [row["id"] for row in read_lines(file)] == ["0", "1", "2", "3", "l"]
    chosen.clear()
    assert evaluate(checkpoint, questions, first, file, **given) == rows and not chosen

    def mended(fails: bool) -> list[dict[str, Any]]:
        @register_compression_method("mine")
        def mine(video: Any, settings: Any) -> VideoCompression:
            return VideoCompression.of_mask({}["x"] if fails else torch.ones(video.tokens.shape[:2]) > 0)

        found = evaluate(checkpoint, questions, candidates_of("mine", "0.5"), file, **given)
        del COMPRESSION_METHODS["mine"]
        return found

    assert all(row["error"].startswith(BUG) for row in mended(fails=True))
    assert all("mine 0.5" in row["answers"] for row in mended(fails=False))  # no answer is of the former code
    with pytest.raises(OptionError, match=r"the code of 'mine 0\.5' has changed"):
        mended(fails=True)


def test_what_cannot_be_read_when_a_method_is_added_is_an_error_and_no_refusal_of_the_method(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file, given = tmp_path / "a", {"num_frames": 8, "max_new_tokens": 2}
    clips = [write_clip(tmp_path / f"{i}.mp4", np.arange(6) / 5) for i in range(2)]
    questions = asked(*map(str, clips), "none.mp4")
    before = evaluate(checkpoint, questions, candidates_of("random", "0.5"), file, **given)
    assert [each.get("error", "")[:8] for each in before] == ["", "", "there is"]
    content = clips[1].read_bytes()
    clips[1].unlink()
    both = candidates_of("random,vidcom2", "0.5")
    rows = evaluate(checkpoint, questions, both, file, **given)
    assert [each.get("error", "")[:8] for each in rows] == ["", "there is", "there is"]
    assert [row["id"] for row in read_lines(file)].count("2") == 1  # the row of an error stays, as without a method
    clips[1].write_bytes(content)
    os.utime(clips[1], ns=(0, 0))
    rows = evaluate(checkpoint, questions, both, file, **given)
    assert [each.get("error", "")[:8] for each in rows] == ["", "", "there is"], "it is the same video"
    clips[1].write_bytes(content[:-1] + b"?")
    with pytest.raises(OptionError, match="another video of question '1'"):
        evaluate(checkpoint, questions, both, file, **given)


def test_a_video_that_changes_while_a_method_is_added_ends_the_run(checkpoint: Checkpoint, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "0.mp4", np.arange(6) / 5)
    questions, file = asked(str(clip)), tmp_path / "a"
    evaluate(checkpoint, questions, candidates_of("random", "0.5"), file, num_frames=4, max_new_tokens=2)

    def changes(*_: Any) -> None:
        clip.write_bytes(content)

    content = clip.read_bytes()[:-1] + b"?"
    more, given = candidates_of("vidcom2", "0.5"), {"num_frames": 4, "max_new_tokens": 2, "progress": changes}
    with pytest.raises(OptionError, match="the video of question '0' has changed"):
        evaluate(checkpoint, questions, more, file, **given)


def test_a_row_that_does_not_know_its_videos_file_gets_further_answers(checkpoint: Checkpoint, tmp_path: Path) -> None:
    questions, file = asked("0 4"), tmp_path / "a"
    evaluate(checkpoint, questions, candidates_of("random", "0.5"), file, max_new_tokens=2, read=read)
    rows = [{name: value for name, value in row.items() if name != "video_file"} for row in read_lines(file)]
    write_lines(file, *rows, "")
    (row,) = evaluate(checkpoint, questions, candidates_of("vidcom2", "0.5"), file, max_new_tokens=2, read=read)
    assert row["answers"].keys() == {ALL, "random 0.5", "vidcom2 0.5"}


@pytest.mark.usefixtures("methods_restored", "without_plots")
def test_the_command_adds_a_method_of_a_further_file(folder: Path, data: Path, tmp_path: Path) -> None:
    """Results hold what was asked last. The answers of before stay in the file. A method of ours does not become the
    imported file's, if that happens to be the first to ask for it."""
    module = tmp_path / f"methods_{tmp_path.name}.py"
    module.write_text("""
from dataclasses import replace
from vidcom2 import register_score_method
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS
COMPRESSION_METHODS["random"] = replace(COMPRESSION_METHODS["random"])
@register_score_method("mine", ranking="video")
def mine(video):
    return video.tokens[..., 0]
""")
    lines = [{**line, "video": str(data.parent / line["video"])} for line in read_lines(data)[:2]]
    path, output = write_lines(tmp_path / "q.jsonl", *lines), tmp_path / "out"
    assert vidcom2(*command(folder, path, output, "--methods", "random"))[0] == 0
    before = {row["id"]: row["answers"] for row in read_lines(output / "answers.jsonl")}
    code, _, error = vidcom2("--import", module, *command(folder, path, output, "--methods", "mine,random"))
    assert code == 0, error
    for row in read_lines(output / "answers.jsonl"):
        assert row["answers"].items() >= before[row["id"]].items()
        assert [*row["answers"]] == [ALL, "random 0.5", "random 0.2", "mine 0.5", "mine 0.2"]
    shown = [row["figures"]["method"] for row in json.loads((output / "results.json").read_text())["rows"]]
    assert shown == [ALL, "mine", "mine", "random", "random"]
    module.write_text(module.read_text().replace("[..., 0]", "[..., 1]"))
    code, _, error = vidcom2("--import", module, *command(folder, path, output, "--methods", "mine"))
    assert code == 2 and f"{module.name}', which 'mine 0.5' is in, has changed since these answers" in error
    assert vidcom2(*command(folder, path, output, "--methods", "random"))[0] == 0
    other = module.with_name(f"other_{module.name}")
    other.write_text(module.read_text())
    del COMPRESSION_METHODS["mine"]  # in another process, there is only one
    code, _, error = vidcom2("--import", other, *command(folder, path, output, "--methods", "mine"))
    assert code == 2 and "holds the answers of another run" in error


def test_a_record_without_answers_keeps_no_other_run_out(tmp_path: Path) -> None:
    file = AnswerFile(tmp_path / "a.jsonl")
    file.claim({"num_frames": 4}, "c")
    assert file.claim({"num_frames": 8}, "d") == ["d"]
    file.path.write_text("{}")
    assert file.claim({"num_frames": 8}, "e") == ["d", "e"]
    with pytest.raises(OptionError, match="`num_frames` was 8 and is 4"):
        file.check({"num_frames": 4})


def test_a_setting_that_no_method_reads_and_questions_without_a_single_answer_are_refused(
    data: Path, folder: Path, tmp_path: Path
) -> None:
    of_random = ["--compression-scoring", "released", "--methods", "random"]
    assert "`--compression-scoring`" in mistake(*command(folder, data, tmp_path / "b", *of_random))
    assert "No such option" in mistake(*command(folder, data, tmp_path / "c", "--retention-ratio", 0.5))
    code, _, error = vidcom2(*command(folder, write_lines(tmp_path / "q.jsonl", GOOD), tmp_path / "out"))
    assert code == 2 and "none of the 1 questions could be answered. The first: there is no video file" in error


def test_questions_without_right_answers_give_only_agreement(data: Path, folder: Path, tmp_path: Path) -> None:
    lines = [{**line, "video": str(data.parent / line["video"])} for line in read_lines(data)[:4]]
    path = write_lines(tmp_path / "q.jsonl", *({name: line[name] for name in GOOD} for line in lines))
    code, shown, error = vidcom2(*command(folder, path, tmp_path / "out"))
    assert code == 0, error
    row = json.loads((tmp_path / "out" / "results.json").read_text())["rows"][1]
    assert row["figures"]["accuracy"] is None and row["figures"]["agreement"] is not None
    assert "accuracy" not in shown and "agreement" in shown and (tmp_path / "out" / "results.png").is_file()


def test_publish_puts_the_results_into_the_card(output: Path, folder: Path, tmp_path: Path) -> None:
    result = read_result(output / "results.json", ["tiny-model"])
    headings = [
        "kept, % (n = 9)",
        "accuracy, % (n = 9)",
        "difference, points (n = 9, 3 videos)",
        "agreement, % (n = 9)",
    ]
    assert result.table.startswith(f"| method | ratio | {' | '.join(headings)} |")
    base = ["publish", "--base", folder, "--repo", "org/model", "--dry-run", "--no-verify", "-o", tmp_path / "x"]
    code, _, error = vidcom2(*base, "--base-model", "org/base", "--results", output / "results.json")
    assert code == 0, error
    card = (tmp_path / "x" / "README.md").read_text()
    assert f"{result.table}\n\n{result.notes}\n\n`vidcom2 eval" in card and "tiny-model on questions.jsonl" in card
    assert "Brackets hold 95 % intervals" in result.notes
    base[2], base[-1] = save_tiny(tmp_path / "other" / folder.name, seed=1), tmp_path / "y"
    code, _, error = vidcom2(*base, "--base-model", "org/base", "--results", output / "results.json")
    assert code == 2 and "was measured on another model than the base: the files of 'tiny-model'" in error
