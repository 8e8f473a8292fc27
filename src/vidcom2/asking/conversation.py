"""A conversation about a watched video: each question continues the KV cache of the turns before it."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import OptionError
from ..modeling.hosting.in_transformers import CACHE, cached_length
from .arguments import with_tokenizer
from .generation import generate_answers
from .kept_cache import check_kind, check_room, continuing, empty_cache
from .prompting import check_prompt, check_template_arguments
from .watched import Watched

ANSWER = "⟦answer⟧"  # takes the place of an answer, to find out what the chat template writes behind it


class Conversation:
    """Questions and answers about a watched video.

    This object holds the whole conversation. Nothing of it stays on the model.

    Attributes:
        ids: (1, L) the token ids of the whole conversation; None before the first question.
        cache: the KV cache, which holds the compressed prompt and all turns; None before the first question.
    """

    def __init__(
        self,
        watched: Watched,
        max_new_tokens: int,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.checkpoint = watched.checkpoint
        check_template_arguments(self.checkpoint.processor, chat_template_kwargs)
        check_kind(self.checkpoint.model)
        self.template_arguments = dict(chat_template_kwargs or {})
        self.watched = watched
        self.max_new_tokens = max_new_tokens
        self.ids: Tensor | None = None
        self.cache: Any = None

    @property
    def cached_tokens(self) -> int:
        """The number of tokens in the KV cache."""
        return cached_length(self.cache)

    def ask(self, question: str, streamer: Any = None) -> str:
        """Answer the next question.

        Args:
            streamer: receives the new tokens as they are generated, as in Transformers' `generate`.

        Returns:
            The answer, without special tokens.

        Raises:
            OptionError: on a question that is empty or contains the model's placeholder for a video or an image, or
                for which a static KV cache has no room left. The conversation stays as it was.
            ValueError: on logits that are not numbers.
        """
        model, processor = self.checkpoint.model, cast(Any, self.checkpoint.processor)
        if not question.strip():
            raise OptionError(f"the question is {question!r}. Ask something about the video.")
        if self.ids is None:
            asked = {"max_new_tokens": self.max_new_tokens}
            inputs, features, arguments = self.watched.begin(question, self.template_arguments, asked)
            cache = arguments.get(CACHE)
            cache = empty_cache(model, inputs["input_ids"].shape[1]) if cache is None else cache
        else:
            ids, features, cache = self._continued(self.ids, question), None, self.cache
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        check_room(cache, inputs["input_ids"].shape[1] + self.max_new_tokens - 1)  # the last one is not cached
        new = generate_answers(
            model,
            inputs,
            features,
            self.watched.settings.compression_positions,
            **continuing(cache),
            max_new_tokens=self.max_new_tokens,
            use_cache=True,
            streamer=streamer,
            num_beams=1,
            **with_tokenizer({}, self.checkpoint),
        )
        self.ids, self.cache = torch.cat([inputs["input_ids"], new], dim=1), cache
        return processor.decode(new[0], skip_special_tokens=True).strip()

    def _continued(self, ids: Tensor, question: str) -> Tensor:
        """Return the ids of the conversation so far, followed by those of the next question in the chat template."""
        processor = cast(Any, self.checkpoint.processor)
        turns = [("user", "?"), ("assistant", ANSWER), ("user", question)]
        chat = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
        text = processor.apply_chat_template(chat, add_generation_prompt=True, **self.template_arguments)
        text = text.partition(ANSWER)[2]
        check_prompt(processor, text)
        after = processor.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids.to(ids.device)
        if ids[0, -1] == after[0, 0]:  # the model itself generated the token that ends its turn
            after = after[:, 1:]
        return torch.cat([ids, after], dim=1)
