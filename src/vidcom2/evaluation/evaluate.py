"""Answering questions about videos with all tokens and with each of several compressions.

A video is read and encoded once for all compressions, and for all consecutive questions about it. A batch of questions
shares a call of `generate`.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..answering.candidates import AllTokens, Candidate
from ..answering.generation import Batch, EncodedVideos, compress, encode, generate, joined
from ..answering.prompting import padded, prepare_inputs, without_pixels
from ..answering.questions import Question
from ..checkpoints import Checkpoint
from ..configuration.compression_settings import CompressionSettings
from ..errors import OptionError, is_out_of_memory, memory_reason, one_line
from ..records.fingerprints import video_changed, video_stamp
from ..records.jsonl import answered_rows, append_rows, rows_so_far
from ..records.run_record import locked, versions_of_answers
from ..video.reading import Progress, Video, read_video

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin

OUT_OF_MEMORY = (
    "out of memory ({}). Take fewer frames or a smaller batch, and start again: only failed questions are asked again."
)


def evaluate(
    checkpoint: Checkpoint,
    questions: Sequence[Question],
    candidates: Sequence[Candidate],
    answers: Path,
    *,
    num_frames: int = 32,
    batch_size: int = 8,
    max_new_tokens: int = 32,
    read: Callable[[str, int], Video] = read_video,
    progress: Progress = lambda *_: None,
) -> list[dict[str, Any]]:
    """Answer each question with all tokens and with each candidate, greedily, and write the answers to a file.

    Args:
        answers: a JSONL file that gets a row for each question. Rows that it has already are reused, except errors.
            `<name>.lock` beside it keeps other runs out.
        num_frames: how many frames are sampled evenly from each video.
        batch_size: questions in a call of `generate`.
        max_new_tokens: the most tokens that an answer may have.
        read: reads a video's frames, and raises a ValueError if it cannot.

    Returns:
        The rows in the order of the questions. A row has `id`; `given`, the question's line; and either `answers`, by
        the labels of the candidates and "all tokens", or `error`, why there are none. An answer has `text`, `correct`
        (null if that is not known), `agrees` (with all tokens) and `kept_share` (kept tokens per scored token), or only
        `refused`, why its method cannot do this. `video_file` is the size and the time of the last change of a video
        that is a file, and `made_by` a digest of all else that the answers depend on.

    Raises:
        OptionError: if the file holds rows of another model, or of other questions, candidates or arguments, or about
            videos that have changed since; if another run is writing it; or if it is no answer file.
    """
    with locked(answers):
        return evaluate_locked(
            checkpoint,
            questions,
            candidates,
            answers,
            num_frames=num_frames,
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            read=read,
            progress=progress,
        )


@torch.no_grad()
def evaluate_locked(
    checkpoint: Checkpoint,
    questions: Sequence[Question],
    candidates: Sequence[Candidate],
    answers: Path,
    *,
    num_frames: int,
    batch_size: int,
    max_new_tokens: int,
    read: Callable[[str, int], Video] = read_video,
    progress: Progress = lambda *_: None,
) -> list[dict[str, Any]]:
    """Do what `evaluate` does for a caller that holds the lock of the file."""
    run = _run(checkpoint, candidates, num_frames, max_new_tokens)
    _check_same(answers, questions, run)
    rows = rows_so_far(answers)
    left = [question for question in questions if question.id not in rows]
    compared = [AllTokens(), *candidates]
    videos = _Videos(checkpoint, compared, num_frames, read)
    with answers.open("a", encoding="utf-8", newline="\n") as file:
        for start in range(0, len(left), batch_size):
            progress("Answering", len(questions) - len(left) + start, len(questions))
            together = left[start : start + batch_size]
            stamps = [video_stamp(question.video) for question in together]  # before they are read
            try:
                done = _rows(checkpoint, videos, together, compared, max_new_tokens)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                done = [_row(question, error=OUT_OF_MEMORY.format(memory_reason(error))) for question in together]
            done = [
                row | {"video_file": stamp, "made_by": _made_by(run, question)}
                for row, stamp, question in zip(done, stamps, together, strict=True)
            ]
            append_rows(file, done)
            rows |= {row["id"]: row for row in done}
    return [rows[question.id] for question in questions]


def _run(
    checkpoint: Checkpoint, candidates: Sequence[Candidate], num_frames: int, max_new_tokens: int
) -> dict[str, Any] | None:
    """Return what answers depend on besides the question; None if it is not known which weights the model has."""
    if checkpoint.identity is None:
        return None
    model = checkpoint.model
    return {
        **checkpoint.identity,
        "model_settings": model.config.compression_settings().as_dict(),
        "dtype": str(model.dtype),
        "attn_implementation": model.config._attn_implementation,
        "candidates": [[each.label, each.overrides] for each in candidates],
        "num_frames": num_frames,
        "max_new_tokens": max_new_tokens,
        **versions_of_answers(),
    }


def _made_by(run: dict[str, Any] | None, question: Question) -> str | None:
    """Return a digest of all that an answer depends on. A video's folder does not count: the file has its own stamp."""
    if run is None:
        return None
    video = question.video.rpartition("/")[2]
    depends_on = [run, video, question.prompt, question.answers, question.choices]
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


def _check_same(answers: Path, questions: Sequence[Question], run: dict[str, Any] | None) -> None:
    """Check that a file's rows answer these questions and were made in the same way. Raises an OptionError if not."""
    rows = answered_rows(answers)
    if rows and run is None:
        raise OptionError(
            f"{str(answers)!r} has answers, but it is not known whether this model gave them. Load the "
            "model with `load_checkpoint`, or name another file."
        )
    for question in questions:
        row = rows.get(question.id)
        if row is None:
            continue
        if row["given"] != question.given:
            raise OptionError(
                f"{str(answers)!r} has the answer to another question of id {question.id!r}. Name another file."
            )
        if row.get("made_by") != _made_by(run, question):
            raise OptionError(
                f"{str(answers)!r} has an answer to question {question.id!r} by another model, or by other methods, "
                "settings or versions. Name another file."
            )
        if video_changed(question.video, row):
            raise OptionError(
                f"{str(answers)!r} has the answer about another video of question {question.id!r}: {question.video!r} "
                f"was {row['video_file']}, and now is {video_stamp(question.video)}. Name another file."
            )


def compressed_answers(
    model: "VidCom2GenerationMixin", batch: Batch, settings: CompressionSettings, max_new_tokens: int
) -> tuple[Tensor, Tensor]:
    """Answer a batch with these settings. Return the ids of the new tokens (B, n), and the share of the scored tokens
    that was kept (B,).

    Raises:
        ValueError: on settings that the method refuses for one of the videos, or the model for the batch, and on
            settings for the vision tower other than the model's, with which the videos were encoded.
    """
    features = {id(video): compress(model, video, settings) for video in batch.videos}
    of_each = [features[id(video)] for video in batch.videos]
    positions = settings.compression_positions
    new = generate(model, batch.inputs, joined(of_each), positions, max_new_tokens=max_new_tokens)
    kept = [compression for each in of_each for compression in each.video_compressions]
    shares = torch.tensor(
        [len(compression.indices) / compression.num_tokens for compression in kept], dtype=torch.float64
    )
    return new, shares


# ---------------------------------------------------------------------------------------------------------------------
# A batch
# ---------------------------------------------------------------------------------------------------------------------


def _rows(
    checkpoint: Checkpoint,
    videos: "_Videos",
    questions: Sequence[Question],
    candidates: Sequence[Candidate],
    max_new_tokens: int,
) -> list[dict[str, Any]]:
    """Return the rows of a batch of questions. The first candidate must be `AllTokens`."""
    prompts, asked_about, errors = [], [], {}
    for question in questions:
        try:
            prompt, video = videos.prepared(question)
        except ValueError as error:
            errors[question.id] = one_line(error)
        else:
            prompts.append(prompt)
            asked_about.append(video)
    asked = [question for question in questions if question.id not in errors]
    answers: dict[str, dict[str, Any]] = {question.id: {} for question in asked}
    if asked:
        processor: Any = checkpoint.processor
        tokenizer = processor.tokenizer
        batch = Batch(padded(prompts, tokenizer), tuple(asked_about))
        for candidate in candidates:
            for question, answer in zip(
                asked, _answers(checkpoint.model, tokenizer, batch, candidate, max_new_tokens), strict=True
            ):
                text = answer.get("text")
                if text is not None:
                    whole = answers[question.id].get(candidates[0].label, answer)["text"]
                    answer |= {"correct": question.is_correct(text), "agrees": question.agree(text, whole)}
                answers[question.id][candidate.label] = answer
    return [
        _row(question, error=errors[question.id])
        if question.id in errors
        else _row(question, answers=answers[question.id])
        for question in questions
    ]


def _answers(
    model: "VidCom2GenerationMixin", tokenizer: Any, batch: Batch, candidate: Candidate, max_new_tokens: int
) -> list[dict[str, Any]]:
    """Return a candidate's answer to each question. If it refuses one question, the whole batch counts as refused."""
    try:
        if candidate.answer is None:
            settings = model.config.compression_settings(**candidate.overrides)
            new, kept = compressed_answers(model, batch, settings, max_new_tokens)
        else:
            new, kept = candidate.answer(model, batch, max_new_tokens)
    except ValueError as error:
        if isinstance(candidate, AllTokens):
            raise
        return [{"refused": one_line(error)}] * len(batch.videos)
    texts = tokenizer.batch_decode(new, skip_special_tokens=True)
    return [{"text": text.strip(), "kept_share": share} for text, share in zip(texts, kept.tolist(), strict=True)]


def _row(question: Question, **found: Any) -> dict[str, Any]:
    return {"id": question.id, "given": question.given, **found}


# ---------------------------------------------------------------------------------------------------------------------
# Videos and prompts
# ---------------------------------------------------------------------------------------------------------------------


class _Videos:
    """Reads and encodes the videos of questions. It keeps the last video for further questions about it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        candidates: Sequence[Candidate],
        num_frames: int,
        read: Callable[[str, int], Video],
    ):
        self.checkpoint, self.candidates = checkpoint, candidates
        self.num_frames, self.read = num_frames, read
        self.held: tuple[str, Video | ValueError, EncodedVideos | None] | None = None

    def prepared(self, question: Question) -> tuple[dict[str, Any], EncodedVideos]:
        """Return a question's inputs for a batch of one, without pixels, and its encoded video.

        Raises:
            ValueError: on a video that cannot be read, or that the processor or the model refuses.
        """
        if self.held is None or self.held[0] != question.video:
            try:
                self.held = question.video, self.read(question.video, self.num_frames), None
            except ValueError as error:
                self.held = question.video, error, None
        _, video, of_video = self.held
        if isinstance(video, ValueError):
            raise video
        model = self.checkpoint.model
        inputs = prepare_inputs(self.checkpoint.processor, question.prompt, video, model)
        if of_video is None:
            methods = filter(None, (each.settings.get("compression_method") for each in self.candidates))
            of_video = encode(model, inputs, model.config.compression_settings(), methods)
            self.held = question.video, video, of_video
        return without_pixels(inputs), of_video
