"""Answering a batch of questions with each candidate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..answering.candidates import AllTokens, Candidate
from ..answering.generation import Batch, EncodedVideos, compress, encode, generate, joined
from ..answering.letters import FIRST_TOKEN, letter_answers
from ..answering.named_choice import BEGINS_THOUGHT, ENDS_THOUGHT
from ..answering.prepared_video import PreparedVideo, prepare_video
from ..answering.prompting import begun_thought, padded
from ..answering.questions import Question
from ..checkpoints import Checkpoint
from ..configuration.compression_settings import CompressionSettings
from ..errors import one_line
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..video.reading import Video

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin

PROMPT_END = 16  # tokens at the end of a prompt, among which a template begins the thoughts


def rows_of_batch(shown: "ShownFrames", questions: Sequence[Question], max_new_tokens: int) -> list[dict[str, Any]]:
    """Return the rows of a batch of questions."""
    errors: dict[str, str] = {}
    prepared: list[PreparedQuestion] = []
    for question in questions:
        try:
            prepared.append(shown.prepared(question))
        except ValueError as error:
            errors[question.id] = one_line(error)
    answers: dict[str, dict[str, Any]] = {each.question.id: {} for each in prepared}
    for by_letter in (True, False):
        group = [each for each in prepared if each.by_letter is by_letter]
        for label, given in (_answers(shown, group, max_new_tokens) if group else {}).items():
            for each, answer in zip(group, given, strict=True):
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
        by_letter: whether its answers are letters. Those of a batch all are, or none.
    """

    question: Question
    inputs: dict[str, Any]
    video: EncodedVideos
    by_letter: bool


class ShownFrames:
    """The candidates, and the reader of the frames that they are shown.

    It reads and encodes the videos of questions, and keeps the last one for further questions about it.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        candidates: Sequence[Candidate],
        num_frames: int,
        read: Callable[[str, int], Video],
        template_arguments: Mapping[str, Any] | None = None,
        letters: bool = False,
    ):
        self.template_arguments, self.letters = template_arguments, letters
        self.checkpoint, self.num_frames, self.read = checkpoint, num_frames, read
        self.candidates = candidates  # all tokens come first, since the others agree with them
        self.held: tuple[str, tuple[PreparedVideo, EncodedVideos] | ValueError] | None = None

    def prepared(self, question: Question) -> PreparedQuestion:
        """Return a question with its inputs and its encoded video.

        Raises:
            ValueError: on a video that cannot be read, or that the processor or the model refuses.
        """
        if self.held is None or self.held[0] != question.video:
            try:
                self.held = question.video, self._encoded(question.video)
            except ValueError as error:
                self.held = question.video, error
        held = self.held[1]
        if isinstance(held, ValueError):
            raise held
        written, encoded = held
        of = self.checkpoint
        inputs = written.prompt(of.processor, of.model, question.prompt, self.template_arguments)
        return PreparedQuestion(question, inputs, encoded, self.letters and question.choices is not None)

    def _encoded(self, video: str) -> tuple[PreparedVideo, EncodedVideos]:
        model = self.checkpoint.model
        written, inputs = prepare_video(self.checkpoint.processor, self.read(video, self.num_frames), model)
        return written, encode(model, inputs, model.config.compression_settings())


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
        whole = answers[AllTokens().label]
        for each, answer, full in zip(prepared, found, whole, strict=True):
            if "text" in answer:
                answer["correct"] = each.question.is_correct(answer["text"])
                answer["agrees"] = each.question.agree(answer["text"], full["text"])
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
    new: Any
    try:
        if candidate.answer is not None:
            new, kept = candidate.answer(model, batch, max_new_tokens)
        else:
            settings, first = candidate.settings_in(model.config), FIRST_TOKEN if prepared[0].by_letter else {}
            new, kept = compressed_answers(model, batch, settings, 1 if first else max_new_tokens, **first)
    except ValueError as error:
        if isinstance(candidate, AllTokens):
            raise
        return [{"refused": one_line(error)} for _ in prepared]
    if prepared[0].by_letter:
        found = letter_answers(tokenizer, new.logits[0], [len(each.question.choices or ()) for each in prepared])
    else:
        prompts = [each.inputs["input_ids"][0] for each in prepared]
        found = [{"text": text_of(tokenizer, prompt, row)} for prompt, row in zip(prompts, new, strict=True)]
    return [answer | {"kept_share": share} for answer, share in zip(found, kept.tolist(), strict=True)]


def text_of(tokenizer: Any, prompt: Tensor, new: Tensor) -> str:
    """Return the text of an answer, in which what encloses the model's thoughts can be found.

    Of special tokens these marks alone are kept, since some tokenizers have them as such. Where the chat template has
    begun the thoughts at the end of the prompt, the text begins with its mark.

    Args:
        prompt: (L,) ids of the prompt.
        new: (n,) ids of the answer.
    """
    special = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    marks = {i for i, each in special.items() if BEGINS_THOUGHT.fullmatch(each) or ENDS_THOUGHT.fullmatch(each)}
    text = tokenizer.decode([i for i in new.tolist() if i in marks or i not in special])
    return (begun_thought(tokenizer.decode(prompt[-PROMPT_END:])) + text).strip()


def compressed_answers(
    model: "VidCom2GenerationMixin", batch: Batch, settings: CompressionSettings, max_new_tokens: int, **more: Any
) -> tuple[Any, Tensor]:
    """Answer a batch with these settings. Return what `generate` returns, the ids of the new tokens (B, n) without more
    arguments, and the share of the scored tokens that was kept (B,).

    Raises:
        ValueError: on settings that the method refuses for one of the videos, or the model for the batch, and on
            settings for the vision tower other than the model's, with which the videos were encoded.
    """
    of_videos: dict[int, VidCom2VideoFeatures] = {}  # a video that occurs twice is compressed once
    for video in batch.videos:
        if id(video) not in of_videos:
            of_videos[id(video)] = compress(model, video, settings)
    features = joined([of_videos[id(video)] for video in batch.videos])
    new = generate(model, batch.inputs, features, settings.compression_positions, max_new_tokens=max_new_tokens, **more)
    shares = [len(each.indices) / each.num_tokens for each in features.video_compressions]
    return new, torch.tensor(shares, dtype=torch.float64)
