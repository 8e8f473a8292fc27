"""Answering questions about videos with all tokens and with each of several compressions.

Each question is asked once with each of them, by the engine of `vidcom2 run` and `answer_many`: a video is read and
encoded once for all compressions, and for consecutive questions about it.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import torch

from ..asking.candidates import AllTokens, Candidate, compared_candidates
from ..asking.model_identity import model_identity, processor_identity
from ..asking.prompting import thinks_aloud
from ..bulk.requests import AnsweredRequest, HowToAnswer
from ..errors import OptionError
from ..judging.questions import Question
from ..loading.checkpoints import Checkpoint
from ..presets import NUM_FRAMES
from ..records.fingerprints import code_digest, stamp_of_content, video_changed, video_stamp, without_content
from ..records.provenance import commit
from ..records.run_record import AnswerFile, versions_of_answers
from ..video.reading import Progress, Video, read_video
from .candidates_engine import CandidateAnswer, CandidateRequest, CandidatesEngine
from .folder import GROWS, check_questions, described


@torch.no_grad()
def evaluate(
    checkpoint: Checkpoint,
    questions: Sequence[Question],
    candidates: Sequence[Candidate],
    answers: Path | AnswerFile,
    *,
    num_frames: int = NUM_FRAMES,
    batch_size: int = 8,
    workers: int = 2,
    max_new_tokens: int = 32,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    letters: bool | None = None,
    read: Callable[[str, int], Video] = read_video,
    progress: Progress = lambda *_: None,
) -> list[dict[str, Any]]:
    """Answer each question with all tokens and with each candidate, greedily, and write the answers to a file.

    Args:
        answers: a JSONL file that gets a row for each question. Rows that it has already are reused, except errors,
            and so are the answers in them: only what they lack is asked, such as a further candidate.
            `<name>.lock` beside it keeps other runs out, and `<name>.run.json` records what the answers depend on. An
            `AnswerFile` is locked and claimed by the caller, who records the other arguments too.
        num_frames: how many frames are sampled evenly from each video.
        batch_size: the maximum number of prompts in a call of `generate`. A batch that does not fit into memory is
            halved, and so are those after it. Up to `batch_size` questions are held encoded, each with every candidate.
        workers: threads that read videos ahead. `workers` + `batch_size` videos are in memory at a time.
        max_new_tokens: the maximum length of an answer.
        chat_template_kwargs: values for the model's chat template, such as `{"enable_thinking": False}`.
        letters: whether the answer to a question with options is the most probable letter, as its first token. If not,
            the model answers in text, in which the option is looked for. None means yes, unless the model thinks aloud
            or a candidate answers by itself.
        read: reads a video's frames, and raises a ValueError if it cannot. Several threads call it.

    Returns:
        The rows in the order of the questions. A row has `id`; `given`, the question's line; and either `answers`, by
        the labels of "all tokens" and of all candidates that the file has answers of, or `error`, why an answer is
        missing, so that all candidates are compared on the same questions. Answers of before stay in the file then.
        An answer has `text`, `correct` (null if that is not known), `agrees` (with all tokens) and `kept_share` (kept
        tokens per scored token), or only `refused`, why its method cannot do this. A letter also has the
        `letter_logprobs` of all. `video_file` is the size of a video that is a file, the time of its last change, and
        a digest of its content.

    Raises:
        OptionError: if the file holds rows of another model, or of other questions or arguments; if a method or a
            video has changed since; if another run is writing it; if the file is not an answer file; or if candidates
            do not go together.
    """
    compared = compared_candidates(candidates)
    how = HowToAnswer(
        num_frames=num_frames,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        workers=workers,
        scale_while_reading=False,
        chat_template_kwargs=chat_template_kwargs or {},
    )
    template_kwargs = dict(chat_template_kwargs or {})
    by_itself = next((each.label for each in candidates if each.answer is not None), None)
    if by_itself is not None and letters:
        raise OptionError(f"`letters` is True, but {by_itself!r} answers by itself, in texts. Leave `letters` out.")
    if letters is None:
        letters = by_itself is None and not thinks_aloud(checkpoint.processor, template_kwargs)
    with ExitStack() as stack:
        if not isinstance(answers, AnswerFile):
            answers = AnswerFile(answers, GROWS)
            stack.enter_context(answers.locked())
            arguments: dict[str, Any] = {"num_frames": num_frames, "max_new_tokens": max_new_tokens}
            arguments |= {"chat_template_kwargs": template_kwargs, "letters": letters}
            answers.claim(_what_answers_depend_on(checkpoint, compared, read) | arguments, commit())
        check_questions(answers, questions)
        rows = answers.rows_to_continue()
        before = dict(rows)
        left: list[tuple[Question, list[Candidate]]] = []
        for question in questions:
            missing = [each for each in compared if each.label not in rows.get(question.id, {}).get("answers", {})]
            if missing:
                left.append((question, missing))
        done = len(questions) - len(left)
        progress("Answering", done, len(questions))
        engine = CandidatesEngine(checkpoint, how, max((len(missing) for _, missing in left), default=1))
        for row in _rows(engine, left, before, letters, read):
            answers.add([row])
            rows[row["id"]] = row
            done += 1
            progress("Answering", done, len(questions))
        if any(question.id in before for question, _ in left):
            answers.drop_replaced()
    return [rows[question.id] for question in questions]


def _rows(
    engine: CandidatesEngine,
    asked: Sequence[tuple[Question, Sequence[Candidate]]],
    before: Mapping[str, Mapping[str, Any]],
    letters: bool,
    read: Callable[[str, int], Video],
) -> Iterator[dict[str, Any]]:
    """Ask questions with candidates, and yield their rows in their order.

    Args:
        before: the rows with answers of other candidates, by the questions' ids.

    Raises:
        OptionError: if a video has changed since the answers of before.
    """
    stamps: dict[str, Any] = {}
    found: dict[str, dict[str, AnsweredRequest]] = {}
    waiting = deque(asked)

    def requests() -> Iterator[CandidateRequest]:
        for question, candidates in asked:
            stamp = video_stamp(question.video)  # before the video is read
            known = before.get(question.id, {}).get("video_file")
            if video_changed(known, stamp, question.video):
                raise OptionError(
                    f"the video of question {question.id!r} has changed: its file was {without_content(str(known))}, "
                    f"and is {stamp}. Name another output."
                )
            stamps[question.id], found[question.id] = stamp, {}
            by_letter = letters and question.choices is not None
            for candidate in candidates:
                yield CandidateRequest(
                    id=f"{question.id} with {candidate.label}",
                    video=question.video,
                    prompt=question.prompt,
                    question=question,
                    candidate=candidate,
                    by_letter=by_letter,
                )

    # Without a reader of the caller's, the engine's own can be interrupted in the middle of a video.
    with closing(engine.answers(requests(), None if read is read_video else read)) as answers:
        for answer in answers:
            request = cast(CandidateRequest, answer.request)
            found[request.question.id][request.candidate.label] = answer
            # Answers come in batches of similar length, so a row may be complete before an earlier one. It then waits.
            while waiting and len(found.get(waiting[0][0].id, ())) == len(waiting[0][1]):
                question, candidates = waiting.popleft()
                by_label = found.pop(question.id)
                of_question = [by_label[each.label] for each in candidates]
                earlier = before.get(question.id, {}).get("answers", {})
                row, stamp = _row_of(question, earlier, of_question), stamps[question.id]
                yield row | {"video_file": stamp if "error" in row else stamp_of_content(question.video, stamp)}


def _row_of(question: Question, before: Mapping[str, Any], answers: Sequence[AnsweredRequest]) -> dict[str, Any]:
    """Return the row of a question: the answers of before, and these.

    If a method refuses the video, that is noted as its answer. Any other failure, or a refusal by the stock model,
    makes the row an error.
    """
    row: dict[str, Any] = {"id": question.id, "given": question.given}
    by_label = dict(before)
    for answer in answers:
        label = cast(CandidateRequest, answer.request).candidate.label
        if isinstance(answer, CandidateAnswer):
            text = cast(str, answer.answer)
            by_label[label] = {"text": text}
            if answer.letter_logprobs is not None:
                by_label[label]["letter_logprobs"] = answer.letter_logprobs
            by_label[label] |= {"kept_share": answer.kept_share, "correct": question.is_correct(text)}
            by_label[label]["agrees"] = question.agree(text, by_label[AllTokens().label]["text"])
        elif answer.refused and label != AllTokens().label:
            by_label[label] = {"refused": answer.error}
        else:
            return row | {"error": answer.error}
    return row | {"answers": by_label}


def _what_answers_depend_on(checkpoint: Checkpoint, candidates: Sequence[Candidate], read: Any) -> dict[str, Any]:
    """Return what answers depend on besides the questions and the other arguments of `evaluate`.

    Raises:
        OptionError: if it cannot be told which weights the model has.
    """
    model: Any = checkpoint.model
    settings = model.config.compression_settings().as_dict()
    try:
        of_model = model_identity(model)
    except OptionError:  # Weights that are offloaded cannot be read. The files that they came from identify them.
        if checkpoint.identity is None:
            raise
        of_model = checkpoint.identity
    return {
        **of_model,
        "generation_config": json.loads(model.generation_config.to_json_string()),
        "processor": processor_identity(checkpoint.processor),
        "model_settings": settings,
        "dtype": str(model.dtype),
        "attn_implementation": model.config._attn_implementation,
        **({} if checkpoint.prepare_on == "auto" else {"prepare_on": checkpoint.prepare_on}),
        "candidates": {each.label: described(each, settings) for each in candidates},
        "read": code_digest(read),
        **versions_of_answers(),
    }
