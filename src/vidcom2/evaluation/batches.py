"""Answering a batch of questions with each candidate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ..asking.candidates import AllTokens, Candidate
from ..asking.frame_device import device_of_frames
from ..asking.generation import Batch, EncodedVideos, generate_answers, joined, keep_tokens, run_tower
from ..asking.prepared_video import VideoPrompt, prepare_video
from ..asking.prompting import video_arguments
from ..asking.thoughts import BEGINS_THOUGHT, ENDS_THOUGHT, begun_thought
from ..checkpoints import Checkpoint
from ..configuration.compression_settings import CompressionSettings
from ..errors import one_line
from ..judging.letters import FIRST_TOKEN, letter_answers
from ..judging.questions import Question
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..video.reading import Video

if TYPE_CHECKING:
    from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin


def rows_of_batch(shown: "ShownFrames", questions: Sequence[Question], max_new_tokens: int) -> list[dict[str, Any]]:
    """Return the rows of a batch of questions. What all tokens refuse is the error of that question."""
    rows: dict[str, dict[str, Any]] = {}
    prepared: list[PreparedQuestion] = []
    for question in questions:
        try:
            prepared.append(shown.prepared(question))
        except ValueError as error:
            rows[question.id] = row_of(question, error=one_line(error))
    for by_letter in (True, False):
        group = [each for each in prepared if each.by_letter is by_letter]
        rows |= _rows_of_group(shown, group, max_new_tokens) if group else {}
    return [rows[each.id] for each in questions]


def row_of(question: Question, **found: Any) -> dict[str, Any]:
    return {"id": question.id, "given": question.given, **found}


# ---------------------------------------------------------------------------------------------------------------------
# Videos and prompts
# ---------------------------------------------------------------------------------------------------------------------


class SeenVideo:
    """A video as the processor prepared it, and what the vision tower makes of it, by the settings of the tower."""

    def __init__(self, of: Checkpoint, video: Video) -> None:
        self.model, self._encoded = of.model, dict[str, EncodedVideos]()
        self.written, inputs = prepare_video(of.processor, video, of.model, device=device_of_frames(of))
        self._inputs = video_arguments(of.model, inputs)

    def encoded(self, settings: CompressionSettings) -> EncodedVideos:
        """Return the video, encoded with these settings. Raises a ValueError if the model refuses it."""
        tower = str(settings.vision_settings())
        if tower not in self._encoded:
            self._encoded[tower] = run_tower(self.model, self._inputs, settings)
        return self._encoded[tower]


@dataclass(frozen=True, eq=False)
class PreparedQuestion:
    """A question about a video.

    Attributes:
        prompt: the question in the chat template.
        by_letter: whether its answers are letters. Those of a batch all are, or none.
    """

    question: Question
    prompt: VideoPrompt
    video: SeenVideo
    by_letter: bool


class ShownFrames:
    """The candidates, and the reader of the frames that they are shown.

    It reads the videos of questions, and keeps the last one for further questions about it.
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
        self.held: tuple[str, SeenVideo | ValueError] | None = None

    def prepared(self, question: Question) -> PreparedQuestion:
        """Return a question with its inputs and its video.

        Raises:
            ValueError: on a video that cannot be read, or that the processor refuses.
        """
        of = self.checkpoint
        if self.held is None or self.held[0] != question.video:
            try:
                self.held = question.video, SeenVideo(of, self.read(question.video, self.num_frames))
            except ValueError as error:
                self.held = question.video, error
        video = self.held[1]
        if isinstance(video, ValueError):
            raise video
        prompt = video.written.prompt(of.processor, question.prompt, self.template_arguments)
        return PreparedQuestion(question, prompt, video, self.letters and question.choices is not None)


# ---------------------------------------------------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------------------------------------------------


def _rows_of_group(
    shown: ShownFrames, group: Sequence[PreparedQuestion], max_new_tokens: int
) -> dict[str, dict[str, Any]]:
    """Return the rows of questions that are answered together, by id."""
    rows: dict[str, dict[str, Any]] = {each.question.id: row_of(each.question, answers={}) for each in group}
    batches: dict[str, Batch] = {}
    for candidate in shown.candidates:
        found = _answers_of(candidate, shown.checkpoint, group, max_new_tokens, batches) if group else []
        for each, answer in zip(group, found, strict=True):
            answers = rows[each.question.id]["answers"]
            answers[candidate.label] = answer
            whole = answers[AllTokens().label]
            if "refused" in whole:
                rows[each.question.id] = row_of(each.question, error=whole["refused"])
            elif "text" in answer:
                answer["correct"] = each.question.is_correct(answer["text"])
                answer["agrees"] = each.question.agree(answer["text"], whole["text"])
        if any("error" in rows[each.question.id] for each in group):
            group, batches = [each for each in group if "answers" in rows[each.question.id]], {}
    return rows


def _answers_of(
    candidate: Candidate,
    checkpoint: Checkpoint,
    prepared: Sequence[PreparedQuestion],
    max_new_tokens: int,
    batches: dict[str, Batch],
) -> list[dict[str, Any]]:
    """Return a candidate's answer to each question, all of which are answered by a letter, or none. A batch of which it
    refuses a question is halved, until that question is alone.

    Args:
        batches: the batches of these questions, by the settings of the vision tower.

    Raises:
        OptionError: if the model cannot answer by a letter.
    """
    model, processor = checkpoint.model, cast(Any, checkpoint.processor)
    tokenizer, first = processor.tokenizer, FIRST_TOKEN if prepared[0].by_letter else {}
    new: Any
    try:
        settings = candidate.settings_in(model.config)
        tower = str(settings.vision_settings())
        if tower not in batches:
            videos = tuple(each.video.encoded(settings) for each in prepared)
            batches[tower] = Batch(processor, tuple(each.prompt for each in prepared), videos)
        if candidate.answer is not None:
            new, kept = candidate.answer(model, batches[tower], max_new_tokens)
        else:
            length = 1 if first else max_new_tokens
            new, kept = compressed_answers(model, batches[tower], settings, length, **first)
    except ValueError as error:
        if len(prepared) == 1:
            return [{"refused": one_line(error)}]
        halves = prepared[: len(prepared) // 2], prepared[len(prepared) // 2 :]
        return [each for half in halves for each in _answers_of(candidate, checkpoint, half, max_new_tokens, {})]
    if first:
        found = letter_answers(tokenizer, new.logits[0], [len(each.question.choices or ()) for each in prepared])
    else:
        pairs = zip(prepared, new, strict=True)
        found = [{"text": text_of(tokenizer, each.prompt.after, row)} for each, row in pairs]
    return [answer | {"kept_share": share} for answer, share in zip(found, kept.tolist(), strict=True)]


def text_of(tokenizer: Any, prompt: str, new: Tensor) -> str:
    """Return the text of an answer, with the marks around the model's thoughts.

    Of the special tokens only these marks are kept, since some tokenizers have special tokens for them. Where the
    chat template has begun the thoughts at the end of the prompt, the text begins with its mark.

    Args:
        prompt: the end of the prompt.
        new: (n,) ids of the answer.
    """
    special = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    marks = {i for i, each in special.items() if BEGINS_THOUGHT.fullmatch(each) or ENDS_THOUGHT.fullmatch(each)}
    text = tokenizer.decode([i for i in new.tolist() if i in marks or i not in special])
    return (begun_thought(prompt) + text).strip()


def compressed_answers(
    model: "VidCom2GenerationMixin", batch: Batch, settings: CompressionSettings, max_new_tokens: int, **more: Any
) -> tuple[Any, Tensor]:
    """Answer a batch with these settings. Return what `generate_answers` returns, without more arguments the ids of the
    new tokens (B, n), and the share of the scored tokens that was kept (B,).

    Raises:
        ValueError: on settings that the method refuses for one of the videos, or the model for the batch, and on
            settings for the vision tower other than those with which the videos were encoded.
    """
    of_videos: dict[int, VidCom2VideoFeatures] = {}  # a video that occurs twice is compressed once
    for video in batch.videos:
        if id(video) not in of_videos:
            of_videos[id(video)] = keep_tokens(model, video, settings)
    of_each = [of_videos[id(video)] for video in batch.videos]
    inputs, features = batch.inputs(model, of_each), joined(of_each)
    new = generate_answers(
        model, inputs, features, settings.compression_positions, max_new_tokens=max_new_tokens, **more
    )
    shares = [len(each.indices) / each.num_tokens for each in features.video_compressions]
    return new, torch.tensor(shares, dtype=torch.float64)
