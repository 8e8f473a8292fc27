"""Answering questions about videos with all tokens and with each of several compressions.

A video is read and encoded once for all compressions, and for all consecutive questions about it. A batch of questions
shares a call of `generate`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ..asking.candidates import Candidate, compared_candidates
from ..asking.prompting import check_template_arguments, thinks_aloud
from ..asking.watched_model import model_identity, processor_identity
from ..checkpoints import Checkpoint
from ..configuration.compression_settings import TABLES
from ..errors import OptionError, is_out_of_memory, memory_reason, reason_of
from ..judging.questions import Question
from ..presets import NUM_FRAMES
from ..records.fingerprints import code_digest, video_stamp
from ..records.provenance import commit
from ..records.run_record import AnswerFile, stamp_of, versions_of_answers
from ..video.reading import Progress, Video, read_video
from .batches import ShownFrames, row_of, rows_of_batch

OUT_OF_MEMORY = (
    "out of memory ({}) for this question alone. Start again where more memory is free, or spread the model over "
    "devices: only failed questions are asked again. Fewer frames or another dtype need a new output."
)


@torch.no_grad()
def evaluate(
    checkpoint: Checkpoint,
    questions: Sequence[Question],
    candidates: Sequence[Candidate],
    answers: Path | AnswerFile,
    *,
    num_frames: int = NUM_FRAMES,
    batch_size: int = 8,
    max_new_tokens: int = 32,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    letters: bool | None = None,
    read: Callable[[str, int], Video] = read_video,
    progress: Progress = lambda *_: None,
) -> list[dict[str, Any]]:
    """Answer each question with all tokens and with each candidate, greedily, and write the answers to a file.

    Args:
        answers: a JSONL file that gets a row for each question. Rows that it has already are reused, except errors.
            `<name>.lock` beside it keeps other runs out, and `<name>.run.json` records what the answers depend on. An
            `AnswerFile` is locked and claimed by the caller.
        num_frames: how many frames are sampled evenly from each video.
        batch_size: the most questions in a call of `generate`. A batch that does not fit into memory is halved, and so
            are those after it.
        max_new_tokens: the most tokens that an answer may have.
        chat_template_kwargs: values for the model's chat template, such as `{"enable_thinking": False}`.
        letters: whether the answer to a question with options is the most probable letter, as its first token. If not,
            options are read in texts. None means yes, unless the model thinks aloud or a candidate answers by itself.
        read: reads a video's frames, and raises a ValueError if it cannot.

    Returns:
        The rows in the order of the questions. A row has `id`; `given`, the question's line; and either `answers`, by
        the labels of the candidates and "all tokens", or `error`, why there are none. An answer has `text`, `correct`
        (null if that is not known), `agrees` (with all tokens) and `kept_share` (kept tokens per scored token), or only
        `refused`, why its method cannot do this. A letter also has the `letter_logprobs` of all. `video_file` is the
        size and the time of the last change of a video that is a file.

    Raises:
        OptionError: if the file holds rows of another model, or of other questions, candidates or arguments, or about
            videos that have changed since; if another run is writing it; if it is no answer file; or if candidates do
            not go together.
    """
    compared = compared_candidates(candidates)
    check_template_arguments(checkpoint.processor, chat_template_kwargs)
    of_template, own = dict(chat_template_kwargs or {}), [each.label for each in candidates if each.answer is not None]
    if own and letters:
        raise OptionError(f"`letters` is True, but {own[0]!r} answers by itself, in texts. Leave `letters` out.")
    letters = not own and not thinks_aloud(checkpoint.processor, of_template) if letters is None else letters
    with ExitStack() as stack:
        if not isinstance(answers, AnswerFile):
            answers = AnswerFile(answers)
            stack.enter_context(answers.locked())
            run = _run(checkpoint, compared, read) | {"num_frames": num_frames, "max_new_tokens": max_new_tokens}
            answers.claim(run | {"chat_template_kwargs": of_template, "letters": letters}, commit())
        asked = ((question.id, stamp_of(question.given, question.video)) for question in questions)
        answers.check_answers(answers.answered(), asked, "question")
        rows = answers.rows_to_continue()
        left = [question for question in questions if question.id not in rows]
        shown = ShownFrames(checkpoint, compared, num_frames, read, of_template, letters)
        size = batch_size
        while left:
            progress("Answering", len(questions) - len(left), len(questions))
            together = left[:size]
            stamps = [video_stamp(question.video) for question in together]  # before they are read
            try:
                done = rows_of_batch(shown, together, max_new_tokens)
                size = batch_size
            except OptionError:  # the model cannot answer any question so
                raise
            except Exception as error:
                full = is_out_of_memory(error)
                reason = OUT_OF_MEMORY.format(memory_reason(error)) if full else reason_of(error)
                if len(together) > 1:  # other errors are those of one question
                    size = len(together) // 2
                    batch_size = size if full else batch_size
                    continue
                done = [row_of(question, error=reason) for question in together]
            done = [row | {"video_file": stamp} for row, stamp in zip(done, stamps, strict=True)]
            answers.add(done)
            rows |= {row["id"]: row for row in done}
            left = left[len(together) :]
    return [rows[question.id] for question in questions]


def _run(checkpoint: Checkpoint, candidates: Sequence[Candidate], read: Any) -> dict[str, Any]:
    """Return what answers depend on besides the questions and the other arguments of `evaluate`.

    Raises:
        OptionError: if it cannot be told which weights the model has.
    """
    model: Any = checkpoint.model
    settings = model.config.compression_settings().as_dict()

    def described(candidate: Candidate) -> dict[str, Any]:
        """Return its settings, and a fingerprint of the methods and the function of the user that it calls."""
        rows = [TABLES[name].get({**settings, **candidate.settings}[name]) for name in TABLES]
        users = (candidate.answer, *(row for row in rows if row and not row.own))
        return {"settings": candidate.overrides, "code": code_digest(users)}

    try:
        of_model = model_identity(model)
    except OptionError:  # weights that are offloaded cannot be read, nor easily changed
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
        "candidates": {each.label: described(each) for each in candidates},
        "read": code_digest(read),
        **versions_of_answers(),
    }
