"""The engine of an evaluation: that of many requests, which here ask each question with each candidate."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..asking.candidates import Candidate
from ..asking.generation import Batch, EncodedVideos
from ..asking.prepared_video import VideoPrompt
from ..asking.thoughts import BEGINS_THOUGHT, ENDS_THOUGHT, begun_thought
from ..asking.watched import Watched
from ..bulk.engine import Engine, Prepared
from ..bulk.many_in_transformers import EncodedRequest, SeenVideo, TransformersEngine
from ..bulk.requests import AnsweredRequest, HowToAnswer, VideoRequest
from ..checks import compressed_already
from ..configuration.compression_settings import CompressionSettings
from ..errors import OptionError
from ..judging.letters import FIRST_TOKEN, letter_answers
from ..judging.questions import Question
from ..loading.checkpoints import Checkpoint
from ..modeling.encoding.video_features import VidCom2VideoFeatures


@dataclass(frozen=True, eq=False, kw_only=True)
class CandidateRequest(VideoRequest):
    """A question that is asked with a candidate.

    Attributes:
        by_letter: whether its answer is a letter.
    """

    question: Question
    candidate: Candidate
    by_letter: bool


@dataclass(frozen=True, kw_only=True)
class CandidateAnswer(AnsweredRequest):
    """The answer to a question with a candidate.

    Attributes:
        kept_share: kept tokens per scored token.
        letter_logprobs: the log-probability of each letter; None if the answer is a text.
    """

    kept_share: float
    letter_logprobs: dict[str, float] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class _WithVideo(EncodedRequest):
    """A request that a candidate's own function answers, which is given the whole video."""

    video: EncodedVideos


class CandidatesEngine(TransformersEngine):
    """Asks each question with each candidate. A batch holds the prompts of several questions, and of those candidates
    whose prompts are of similar length.

    Args:
        num_candidates: with how many a question is asked.
    """

    def __init__(self, checkpoint: Checkpoint, how: HowToAnswer, num_candidates: int) -> None:
        super().__init__(checkpoint, how, held_requests=num_candidates * how.batch_size, in_order=True)
        self.most_of_a_video *= num_candidates

    def check(self, request: VideoRequest) -> None:
        Engine.check(self, request)  # settings that a candidate cannot have are its refusal, once the video was read

    def watched(self, path: Path) -> Watched:
        raise OptionError(compressed_already(path))

    def settings_of(self, request: VideoRequest) -> CompressionSettings:
        return _asked(request).candidate.settings_in(self.model.config)

    def length_of_answer(self, request: VideoRequest) -> int:
        return 1 if _asked(request).by_letter else self.how.max_new_tokens

    def together(self, request: VideoRequest, settings: CompressionSettings) -> Hashable:
        asked = _asked(request)
        return super().together(request, settings), asked.by_letter, asked.candidate.answer and id(asked.candidate)

    def features_of(
        self, request: VideoRequest, seen: SeenVideo, settings: CompressionSettings
    ) -> VidCom2VideoFeatures:
        if _asked(request).candidate.answer is not None:  # which chooses among all tokens
            return seen.encoded(settings).outputs
        return super().features_of(request, seen, settings)

    def encoded_request(
        self, request: VideoRequest, prompt: VideoPrompt, seen: SeenVideo | Watched, group: Prepared
    ) -> EncodedRequest:
        encoded = super().encoded_request(request, prompt, seen, group)
        if isinstance(seen, SeenVideo) and _asked(request).candidate.answer is not None:
            return _WithVideo(**vars(encoded), video=seen.encoded(self.settings_of(request)))
        return encoded

    def generated(self, batch: Sequence[EncodedRequest]) -> Sequence[AnsweredRequest]:
        tokenizer, asked = self.processor.tokenizer, [_asked(each.request) for each in batch]
        own = asked[0].candidate.answer
        new: Any
        found: list[dict[str, Any]]
        if own is not None:
            videos = tuple(each.video for each in batch if isinstance(each, _WithVideo))
            prompts = tuple(each.prompt for each in batch)
            new, kept = own(self.model, Batch(self.processor, prompts, videos), self.how.max_new_tokens)
            shares = kept.tolist()
        else:
            new = self.new_tokens(batch, batch[0].max_new_tokens, **(FIRST_TOKEN if asked[0].by_letter else {}))
            shares = [_share_of(each.features) for each in batch]
        if asked[0].by_letter:
            counts = [len(each.question.choices or ()) for each in asked]
            found = letter_answers(tokenizer, new.logits[0], counts)
        else:
            found = [{"text": text_of(tokenizer, each.prompt.after, row)} for each, row in zip(batch, new, strict=True)]
        return [
            CandidateAnswer(
                request=request, answer=each["text"], kept_share=share, letter_logprobs=each.get("letter_logprobs")
            )
            for request, each, share in zip(asked, found, shares, strict=True)
        ]


def _asked(request: VideoRequest) -> CandidateRequest:
    assert isinstance(request, CandidateRequest)
    return request


def _share_of(features: VidCom2VideoFeatures) -> float:
    assert features.video_compressions is not None
    (compression,) = features.video_compressions
    return len(compression.indices) / compression.num_tokens


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
