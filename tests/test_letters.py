"""Questions with options are answered by a letter: the most probable one as the answer's first token."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Family
from make_clips import write_clip
from test_cli import vidcom2
from test_cli_errors import mistake
from test_evaluation import ALL, command, read, read_lines, write_lines
from tokenizers import Tokenizer, models
from transformers import AutoProcessor, PreTrainedTokenizerFast

from benchmarks.methods.compressed_answers import compressed_answers
from vidcom2.asking.candidates import Candidate, candidates_of
from vidcom2.asking.generation import Batch
from vidcom2.asking.prompting import prepare_inputs, thinks_aloud
from vidcom2.errors import NoAnswersError, OptionError
from vidcom2.evaluation import candidates_engine
from vidcom2.evaluation.accuracy_tables import markdown, table, unanswered
from vidcom2.evaluation.evaluate import evaluate
from vidcom2.evaluation.report import summary
from vidcom2.judging.letters import letter_answers
from vidcom2.judging.named_choice import LETTERS, named_choice
from vidcom2.judging.questions import Question
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint

OPTIONS = ("kitchen", "street", "garden")


def asked() -> list[Question]:
    """Return questions with options and without, of several lengths, about two videos."""
    return [
        Question("1", "0 8", "Where?", ("street",), OPTIONS),
        Question("2", "0 8", "What happens?"),
        Question("3", "1 6", "Where is the scene of this video?", ("kitchen",), OPTIONS[:2]),
        Question("4", "1 6", "Which?\n1. cat\n2. dog", ("dog",), ("cat", "dog")),
        Question("5", "1 6", "What happens now?"),
    ]


def test_the_letter_is_the_most_probable_one_of_a_single_forward(family: Family, tmp_path: Path) -> None:
    questions, candidates = asked(), candidates_of("vidcom2,random", "0.3")
    checkpoint = Checkpoint("tiny", family.model, family.processor)
    rows = evaluate(checkpoint, questions, candidates, tmp_path / "a", max_new_tokens=4, batch_size=8, read=read)
    seen = set()
    for question, row in zip(questions, rows, strict=True):
        inputs = prepare_inputs(family.processor, question.prompt, read(question.video, 8), family.model)
        for label, overrides in {ALL: {"retention_ratio": 1.0}, **{c.label: c.overrides for c in candidates}}.items():
            answer = row["answers"][label]
            if question.choices is None:
                assert answer.keys() == {"text", "kept_share", "correct", "agrees"}
                continue
            with torch.no_grad():
                logits = family.model(**inputs, **overrides).logits[0, -1].double()
            letters = "ABC"[: len(question.choices)]
            logprobs = {each: logits.log_softmax(0)[ids(family, each)].item() for each in letters}
            assert answer["letter_logprobs"] == pytest.approx(logprobs, abs=1e-3), label
            assert answer["text"] == max(logprobs, key=lambda letter: logprobs[letter])
            assert answer["correct"] == (question.choices["ABC".index(answer["text"])] == question.answers[0])
            assert answer["agrees"] == (answer["text"] == row["answers"][ALL]["text"])
            seen.add(answer["letter_logprobs"]["A"])
    assert len(seen) == 9 or not family.case.representative  # a model that sees nothing would pass


def ids(family: Family, letter: str) -> int:
    (found,) = family.processor.tokenizer(letter, add_special_tokens=False).input_ids  # a token for each byte
    return found


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_a_letter_counts_with_a_space_before_it_and_without() -> None:
    """What a model writes depends on how its chat template ends: "Assistant:" or a line break."""
    for space in "Ġ▁":
        words = ["<unk>", "A", "B", "Ba", f"{space}A", f"{space}B", f"{space}Ba", "(B", "b"]
        vocabulary = {word: i for i, word in enumerate(words)}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")), unk_token="<unk>"
        )
        with pytest.raises(OptionError, match=r"a letter is no token\. .*`letters=False`"):
            letter_answers(tokenizer, torch.zeros(1, 9), [3])
        logits = torch.tensor([[0.0, 2.0, 1.5, 9.0, 0.0, 1.9, 9.0, 9.0, 9.0]])
        (answer,) = letter_answers(tokenizer, logits, [2])
        share = logits[0].exp() / logits[0].exp().sum()
        assert answer["text"] == "B" and answer["letter_logprobs"] == pytest.approx(
            {"A": float((share[1] + share[4]).log()), "B": float((share[2] + share[5]).log())}, abs=1e-4
        )


def test_a_model_that_begins_with_a_thought_is_not_held_to_letters(checkpoint: Checkpoint) -> None:
    tokenizer: Any = load_checkpoint(str(checkpoint.name), device="cpu").processor.tokenizer
    tokenizer.add_tokens(["<think>", "</think>"])
    begins = tokenizer.convert_tokens_to_ids("<think>")
    logits = torch.zeros(1, begins + 2)
    logits[0, tokenizer.convert_tokens_to_ids("B")] = 5.0
    assert letter_answers(tokenizer, logits, [2])[0]["text"] == "B"
    logits[0, begins] = 9.0
    with pytest.raises(OptionError, match=r"begins its answers with a thought.*`letters=False`"):
        letter_answers(tokenizer, logits, [2])


def test_a_letter_names_its_option_whatever_the_options_are() -> None:
    many = [f"place {i}" for i in range(26)]
    for options in (["B", "A", "D", "C"], ["yes", "no"], ["I", "II", "III"], ["Plan B", "Plan A"], ["5", "<5"], many):
        named = [named_choice(letter, options) for letter in LETTERS[: len(options)]]
        assert named == list(range(len(options))), options


# -- which models and candidates --------------------------------------------------------------------------------------

ENDS = "{% if add_generation_prompt %}<|im_start|>assistant\n"
# Qwen3.5 and GLM-4.5V think unless they are told not to, Gemma 4 only if it is told to.
UNLESS_TOLD = "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n{% endif %}"
IF_TOLD = "{% if enable_thinking is defined and enable_thinking %}<|think|>{% endif %}"


@pytest.mark.parametrize(
    ("more", "arguments", "thinks"),
    [
        ("", {}, False),
        ("<think>\n", {}, True),  # Qwen3-VL-Thinking
        ("<think>\n\n</think>\n\n", {}, False),
        (UNLESS_TOLD, {}, True),
        (UNLESS_TOLD, {"enable_thinking": False}, False),
        (IF_TOLD, {}, False),
        (IF_TOLD, {"enable_thinking": True}, True),
    ],
    ids=str,
)
def test_the_template_tells_whether_a_model_thinks_aloud(
    more: str, arguments: dict[str, Any], thinks: bool, checkpoint: Checkpoint
) -> None:
    processor: Any = AutoProcessor.from_pretrained(checkpoint.name)
    processor.chat_template = processor.chat_template.replace(ENDS, ENDS + more)
    assert more in processor.chat_template
    assert thinks_aloud(processor, arguments) == thinks


def own_answers(model: Any, batch: Batch, max_new_tokens: int) -> Any:
    return compressed_answers(model, batch, model.config.compression_settings(retention_ratio=0.5), max_new_tokens)


def test_models_that_think_and_candidates_that_answer_by_themselves_are_read_from_their_texts(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """All answers of a run are read in one way, since they are compared."""
    thinking = load_checkpoint(str(checkpoint.name), device="cpu")
    processor: Any = thinking.processor
    processor.chat_template = processor.chat_template.replace(ENDS, ENDS + "<think>\n")
    own = Candidate("mine", 0.5, answer=own_answers)
    arguments = {"read": read, "max_new_tokens": 3}
    for number, (model, candidates, given, by_letter) in enumerate(
        [
            (checkpoint, candidates_of("random", "0.5"), {}, True),
            (checkpoint, candidates_of("random", "0.5"), {"letters": False}, False),
            (checkpoint, [own], {}, False),
            (thinking, candidates_of("random", "0.5"), {}, False),
            (thinking, candidates_of("random", "0.5"), {"letters": True}, True),
        ]
    ):
        (row,) = evaluate(model, asked()[:1], candidates, tmp_path / f"{number}", **arguments, **given)
        assert [("letter_logprobs" in answer) for answer in row["answers"].values()] == [by_letter] * 2
    with pytest.raises(OptionError, match=r"`letters` is True, but 'mine 0\.5' answers by itself"):
        evaluate(checkpoint, asked()[:1], [own], tmp_path / "x", letters=True, **arguments)


def test_a_model_that_begins_to_think_unasked_ends_the_run_with_advice(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every question would end so. A row of errors for each would take a whole run to say it."""

    def thinks(*_: Any) -> list[dict[str, Any]]:
        raise NoAnswersError("the model begins its answers with a thought. Read the answers as texts.")

    monkeypatch.setattr(candidates_engine, "letter_answers", thinks)
    with pytest.raises(OptionError, match="begins its answers with a thought"):
        evaluate(checkpoint, asked(), candidates_of("random", "0.5"), tmp_path / "a", read=read)


# -- runs and results -------------------------------------------------------------------------------------------------


def result_rows(of_answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    made = {"correct": True, "agrees": True, "kept_share": 0.5}
    return [{"answers": dict.fromkeys((ALL, "random 0.5"), answer | made)} for answer in of_answers]


def test_results_say_how_answers_were_read_and_warn_if_letters_are_improbable() -> None:
    candidates = candidates_of("random", "0.5")
    questions = [Question(str(i), f"{i}", "Which?", ("dog",), ("cat", "dog")) for i in range(4)]
    sure = {"text": "B", "letter_logprobs": {"A": -4.0, "B": -0.1}}
    unsure = {"text": "B", "letter_logprobs": {"A": -6.0, "B": -4.0}}
    results = summary(questions, result_rows([sure] * 4), candidates)
    assert [(each["no_option"], each["of_choice"]) for each in results] == [(0, 0)] * 2
    assert results[0]["letter_share"] == pytest.approx(torch.tensor([-4.0, -0.1]).exp().sum().item())
    page = markdown("title", results, 0, "here")
    assert "no option" not in str(table(results)) and "the most probable letter" in page and "Cautions:" not in page
    assert unanswered(results) == []
    (warned,) = unanswered(summary(questions, result_rows([sure, *[unsure] * 3]), candidates))
    assert warned.startswith("with all tokens, the letters have 25 % of the") and "--no-letters" in warned
    assert warned in markdown("title", summary(questions, result_rows([sure, *[unsure] * 3]), candidates), 0, "here")
    as_texts = summary(questions, result_rows([{"text": "Hm."}] * 4), candidates)
    assert [(each["no_option"], each["of_choice"]) for each in as_texts] == [(4, 4)] * 2
    assert as_texts[0]["letter_share"] is None and len(unanswered(as_texts)) == 2
    assert "most probable letter" not in markdown("title", as_texts, 0, "here")


def test_the_command_answers_with_letters_and_records_it(folder: Path, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", [i / 5 for i in range(6)])
    line = {"video": str(clip), "question": "Where?", "choices": list(OPTIONS), "answer": "B"}
    questions = write_lines(tmp_path / "q.jsonl", line, {**line, "question": "And now?"})
    asking = command(folder, questions, tmp_path / "out")
    code, shown, error = vidcom2(*asking)
    assert code == 0 and "no option" not in shown, error
    rows = read_lines(tmp_path / "out" / "answers.jsonl")
    for answer in (answer for row in rows for answer in row["answers"].values()):
        assert answer["text"] in "ABC" and list(answer["letter_logprobs"]) == [*"ABC"]
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert content["birth_certificate"]["arguments"]["letters"] == "unless the model thinks aloud"
    assert "`letters` was 'unless the model thinks aloud' and is False" in mistake(*asking, "--no-letters")
    code, _, error = vidcom2(*command(folder, questions, tmp_path / "text"), "--no-letters")
    assert code == 0, error
    assert "letter_logprobs" not in (tmp_path / "text" / "answers.jsonl").read_text()
    content = json.loads((tmp_path / "text" / "results.json").read_text())
    assert content["birth_certificate"]["command"].endswith(" --no-letters --device cpu")
