"""What a processor makes of a video, recorded once, so that a further question about it needs only its text.

A processor writes a text in place of the video's placeholder, such as the time of each frame and a token for each part
of it, and tokenizes the whole prompt. This text does not depend on the question.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from ..errors import OptionError
from ..video.reading import Video
from .chats import Prompt
from .prompting import check_vocabulary, prepare_inputs, prompt_text

QUESTION = "⟦question⟧"  # stands for any question while the processor's text is recorded
OF_THE_TEXT = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")


class _Recorder:
    """A tokenizer that remembers the text that it was given, and with which arguments."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __call__(self, text: Any, **arguments: Any) -> Any:
        self.text, self.arguments = text, arguments
        return self._tokenizer(text, **arguments)


@dataclass(frozen=True, eq=False)
class PreparedVideo:
    """A video as a processor writes it into a prompt.

    Attributes:
        inputs: the processor's inputs that describe the video, such as its size in patches, without pixels.
        placeholder: the part of a prompt that the processor replaces.
        written: the text that it writes there.
        tokenizer_arguments: how it calls its tokenizer.
        types_tokens: whether its inputs tell which tokens are a video's (`mm_token_type_ids`).
    """

    inputs: dict[str, Any]
    placeholder: str
    written: str
    tokenizer_arguments: dict[str, Any]
    types_tokens: bool

    def prompt(
        self,
        processor: ProcessorMixin,
        model: PreTrainedModel,
        prompt: Prompt,
        template_arguments: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
    ) -> dict[str, Any]:
        """Return what `prepare_inputs` returns for a question about this video, without pixels.

        Args:
            device: where they go; by default, to the model's.

        Raises:
            OptionError: on what `prompt_text` refuses, and if the chat template writes the video in another way than
                for a question alone.
        """
        text = prompt_text(processor, prompt, template_arguments)
        before, placeholder, after = text.partition(self.placeholder)
        if not placeholder:
            raise OptionError(
                f"the chat template does not write {self.placeholder!r} for the video of this chat, as it does for a "
                "question alone. Prepare the inputs with the processor, and call the model's own `generate`."
            )
        encoded = cast(Any, processor).tokenizer([before + self.written + after], **self.tokenizer_arguments)
        inputs = {name: torch.as_tensor(value) for name, value in encoded.items()}
        check_vocabulary(model, inputs["input_ids"])
        if self.types_tokens:
            inputs["mm_token_type_ids"] = cast(Any, model).model.kinds(inputs["input_ids"]).clamp(min=0).long()
        return dict(BatchFeature(inputs | self.inputs).to(model.device if device is None else device))


def prepare_video(
    processor: ProcessorMixin, video: Video, model: PreTrainedModel | None = None
) -> tuple[PreparedVideo, BatchFeature]:
    """Let a processor prepare a video, once.

    Args:
        model: as in `prepare_inputs`.

    Returns:
        The video for any number of questions. And the inputs with its pixels, for `encode`.

    Raises:
        OptionError: if the processor changes more of the prompt than the part around the video.
    """
    recording: Any = copy.copy(processor)
    recorder = recording.tokenizer = _Recorder(recording.tokenizer)
    inputs = prepare_inputs(recording, QUESTION, video, model)
    asked, (made,) = prompt_text(processor, QUESTION), recorder.text
    before, _, after = asked.partition(cast(Any, processor).video_token)
    start = _common(before, made)
    end = _common(after[::-1], made[::-1])
    if QUESTION not in before[:start] + after[len(after) - end :]:
        raise OptionError(
            f"{type(processor).__name__} rewrites the question with the video, so the video cannot be prepared once "
            "for several questions."
        )
    described = {name: value for name, value in inputs.items() if name not in (*OF_THE_TEXT, "pixel_values_videos")}
    prepared = PreparedVideo(
        inputs=described,
        placeholder=asked[start : len(asked) - end],
        written=made[start : len(made) - end],
        tokenizer_arguments=recorder.arguments | {"return_tensors": "pt"},
        types_tokens="mm_token_type_ids" in inputs,
    )
    return prepared, inputs


def _common(text: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    pairs = zip(text, other)
    return next((place for place, (one, two) in enumerate(pairs) if one != two), min(len(text), len(other)))
