"""Answering a batch of questions with each candidate, at each number of frames that candidates are shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..answering.candidates import AllTokens, Candidate
from ..answering.generation import NO_HOOK, Batch, EncodedVideos, StageHook, compress, encode, generate, joined
from ..answering.named_choice import BEGINS_THOUGHT, ENDS_THOUGHT, THOUGHT_MARKS
from ..answering.prompting import padded, prepare_inputs, without_pixels
from ..answering.questions import Question
from ..answering.stopwatch import Stopwatch
from ..checkpoints import Checkpoint
from ..configuration.compression_settings import CompressionSettings
from ..errors import one_line
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..video.reading import Video

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin

PROMPT_END = 16  # tokens at the end of a prompt, among which a template begins the thoughts


def rows_of_batch(
    shown: Sequence["ShownFrames"], questions: Sequence[Question], max_new_tokens: int
) -> list[dict[str, Any]]:
    """Return the rows of a batch of questions.

    Args:
        shown: the candidates, by the number of frames that they are shown.
    """
    errors: dict[str, str] = {}
    answers: dict[str, dict[str, Any]] = {question.id: {} for question in questions}
    for frames in shown:
        prepared = []
        for question in questions:
            try:
                if question.id not in errors:
                    prepared.append(frames.prepared(question))
            except ValueError as error:
                errors[question.id] = one_line(error)
        if not prepared:
            continue
        for label, given in _answers(frames, prepared, max_new_tokens).items():
            for each, answer in zip(prepared, given, strict=True):
                answers[each.question.id][label] = answer
    return [
        row_of(question, error=errors[question.id])
        if question.id in errors
        else row_of(question, answers=answers[question.id])
        for question in questions
    ]


def row_of(question: Question, **found: Any) -> dict[str, Any]:
    return {"id": question.id, "given": question.given, **found}


# ---------------------------------------------------------------------------------------------------------------------
# Videos and prompts
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PreparedQuestion:
    """A question about a video that is encoded.

    Attributes:
        inputs: its inputs for a batch of one, without pixels.
        num_frames: how many frames the video has, which may be fewer than were asked for.
        vision_seconds: how long the video's encoding took.
    """

    question: Question
    inputs: dict[str, Any]
    video: EncodedVideos
    num_frames: int
    vision_seconds: float


class ShownFrames:
    """Some candidates that are shown the same frames, and the reader of these frames.

    It reads and encodes the videos of questions, and keeps the last one for further questions about it.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        candidates: Sequence[Candidate],
        num_frames: int,
        read: Callable[[str, int], Video],
        template_arguments: Mapping[str, Any] | None = None,
    ):
        self.template_arguments = template_arguments
        self.checkpoint, self.num_frames, self.read = checkpoint, num_frames, read
        self.candidates = sorted(candidates, key=lambda each: not isinstance(each, AllTokens))  # others agree with it
        self.held: tuple[str, Video | ValueError, tuple[EncodedVideos, float] | None] | None = None

    def prepared(self, question: Question) -> PreparedQuestion:
        """Return a question with its inputs and its encoded video.

        Raises:
            ValueError: on a video that cannot be read, or that the processor or the model refuses.
        """
        if self.held is None or self.held[0] != question.video:
            try:
                self.held = question.video, self.read(question.video, self.num_frames), None
            except ValueError as error:
                self.held = question.video, error, None
        _, video, encoded = self.held
        if isinstance(video, ValueError):
            raise video
        model = self.checkpoint.model
        processor, of_template = self.checkpoint.processor, self.template_arguments
        inputs = prepare_inputs(processor, question.prompt, video, model, template_arguments=of_template)
        if encoded is None:
            watch = Stopwatch(model)
            of_video = encode(model, inputs, model.config.compression_settings(), watch)
            encoded = of_video, watch.seconds()["vision"]
            self.held = question.video, video, encoded
        return PreparedQuestion(question, without_pixels(inputs), encoded[0], len(video.frames), encoded[1])


# ---------------------------------------------------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------------------------------------------------


def _answers(
    shown: ShownFrames, prepared: Sequence[PreparedQuestion], max_new_tokens: int
) -> dict[str, list[dict[str, Any]]]:
    """Return label -> answers to these questions, for each candidate."""
    processor: Any = shown.checkpoint.processor
    tokenizer = processor.tokenizer
    batch = Batch(padded([each.inputs for each in prepared], tokenizer), tuple(each.video for each in prepared))
    answers: dict[str, list[dict[str, Any]]] = {}
    for candidate in shown.candidates:
        found = _answers_of(candidate, shown.checkpoint.model, tokenizer, batch, prepared, max_new_tokens)
        answers[candidate.label] = found
        whole = answers.get(AllTokens(candidate.num_frames).label)
        for i, (each, answer) in enumerate(zip(prepared, found, strict=True)):
            if "text" in answer:
                answer["correct"] = each.question.is_correct(answer["text"])
                answer["agrees"] = None if whole is None else each.question.agree(answer["text"], whole[i]["text"])
    return answers


def _answers_of(
    candidate: Candidate,
    model: "VidCom2GenerationMixin",
    tokenizer: Any,
    batch: Batch,
    prepared: Sequence[PreparedQuestion],
    max_new_tokens: int,
) -> list[dict[str, Any]]:
    """Return a candidate's answer to each question. If it refuses one question, the whole batch counts as refused."""
    figures: Sequence[dict[str, Any]] = [{}] * len(prepared)
    try:
        if candidate.answer is not None:
            new, kept = candidate.answer(model, batch, max_new_tokens)
            shares = kept.tolist()
        else:
            settings = candidate.settings_in(model.config)
            watch = None if candidate.num_frames is None else Stopwatch(model)
            features = _compressed(model, batch, settings, watch or NO_HOOK)
            new = _generated(model, batch, features, settings, max_new_tokens, watch or NO_HOOK)
            shares = _kept_shares(features)
            if watch is not None:
                figures = _frame_figures(model, batch, prepared, features, sum(watch.seconds().values()))
    except ValueError as error:
        if isinstance(candidate, AllTokens):
            raise
        return [{"refused": one_line(error)} for _ in prepared]
    texts = [text_of(tokenizer, each.inputs["input_ids"][0], row) for each, row in zip(prepared, new, strict=True)]
    return [
        {"text": text, "kept_share": share, **of_one}
        for text, share, of_one in zip(texts, shares, figures, strict=True)
    ]


def text_of(tokenizer: Any, prompt: Tensor, new: Tensor) -> str:
    """Return the text of an answer, in which what encloses the model's thoughts can be found.

    Of special tokens these marks alone are kept, since some tokenizers have them as such. Where the chat template has
    begun the thoughts at the end of the prompt, the text begins with its mark.

    Args:
        prompt: (L,) ids of the prompt.
        new: (n,) ids of the answer.
    """
    added = tokenizer.added_tokens_decoder
    marks = {i: str(token) for i, token in added.items() if token.special and str(token) in THOUGHT_MARKS}
    parts, run = [], []
    for token in [*new.tolist(), None]:
        if token is None or token in marks:
            parts += [tokenizer.decode(run, skip_special_tokens=True), marks.get(token, "")]
            run = []
        else:
            run.append(token)
    line = tokenizer.decode(prompt[-PROMPT_END:]).rstrip().rpartition("\n")[2]
    begun = BEGINS_THOUGHT.search(ENDS_THOUGHT.split(line)[-1])  # thoughts that end there were not begun
    return ((begun[0] if begun else "") + "".join(parts)).strip()


def compressed_answers(
    model: "VidCom2GenerationMixin", batch: Batch, settings: CompressionSettings, max_new_tokens: int
) -> tuple[Tensor, Tensor]:
    """Answer a batch with these settings. Return the ids of the new tokens (B, n), and the share of the scored tokens
    that was kept (B,).

    Raises:
        ValueError: on settings that the method refuses for one of the videos, or the model for the batch, and on
            settings for the vision tower other than the model's, with which the videos were encoded.
    """
    features = _compressed(model, batch, settings)
    new = _generated(model, batch, features, settings, max_new_tokens)
    return new, torch.tensor(_kept_shares(features), dtype=torch.float64)


def _compressed(
    model: "VidCom2GenerationMixin",
    batch: Batch,
    settings: CompressionSettings,
    hook: StageHook = NO_HOOK,
) -> VidCom2VideoFeatures:
    """Compress each video of a batch. A video that occurs twice is compressed once."""
    features: dict[int, VidCom2VideoFeatures] = {}
    for video in batch.videos:
        if id(video) not in features:
            features[id(video)] = compress(model, video, settings, hook)
    return joined([features[id(video)] for video in batch.videos])


def _generated(
    model: "VidCom2GenerationMixin",
    batch: Batch,
    features: VidCom2VideoFeatures,
    settings: CompressionSettings,
    max_new_tokens: int,
    hook: StageHook = NO_HOOK,
) -> Tensor:
    """Return the ids of the new tokens (B, n). Of the settings only `compression_positions` is read."""
    positions = settings.compression_positions
    return generate(model, batch.inputs, features, positions, hook, max_new_tokens=max_new_tokens)


def _kept_shares(features: VidCom2VideoFeatures) -> list[float]:
    return [len(each.indices) / each.num_tokens for each in features.video_compressions]


# ---------------------------------------------------------------------------------------------------------------------
# Candidates with a number of frames of their own
# ---------------------------------------------------------------------------------------------------------------------


def _frame_figures(
    model: "VidCom2GenerationMixin",
    batch: Batch,
    prepared: Sequence[PreparedQuestion],
    features: VidCom2VideoFeatures,
    seconds: float,
) -> list[dict[str, Any]]:
    """Return the further figures in the answers of a candidate with its own number of frames.

    Args:
        features: those that enter the language model, structure tokens included.
        seconds: what the batch took to compress its videos and to generate. A question gets an equal share, and the
            whole time of encoding its video, though other questions may be about it too.
    """
    lengths = batch.inputs["attention_mask"].sum(dim=1).tolist()
    return [
        {
            "frames": each.num_frames,
            "kept_tokens": len(compression.indices),
            "prompt_tokens": length - compression.num_placeholders + len(entering),
            "seconds": each.vision_seconds + seconds / len(prepared),
        }
        for each, length, entering, compression in zip(
            prepared, lengths, features.pooler_output, features.video_compressions, strict=True
        )
    ]
