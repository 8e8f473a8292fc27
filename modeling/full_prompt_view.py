"""Shows the caller's hooks the full prompt while `generate` works on the compressed one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer


class FullPromptView:
    """Maps sequences that begin with the short prompt to the same sequences with the full one.

    Args:
        full_ids: (B, L) the caller's `input_ids`.
        short_length: L', length of the compressed prompt.
    """

    def __init__(self, full_ids: Tensor, short_length: int):
        self.full_ids = full_ids
        self.short_length = short_length

    def restore(self, sequences: Tensor) -> Tensor:
        """(B·n, L' + new) -> (B·n, L + new), n sequences of each prompt side by side."""
        prompts = self.full_ids.repeat_interleave(len(sequences) // len(self.full_ids), dim=0)
        return torch.cat([prompts.to(sequences.device), sequences[:, self.short_length :]], dim=1)

    def of_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """`generate`'s arguments with the caller's hooks wrapped. What `generate` builds itself needs no wrapping: it
        looks at the set of prompt tokens, which is the same, at the end of the sequence, or at lengths."""
        arguments = dict(arguments)
        if arguments.get("logits_processor"):
            wrapped = [_FullPromptLogitsProcessor(self, hook) for hook in arguments["logits_processor"]]
            arguments["logits_processor"] = LogitsProcessorList(wrapped)
        if arguments.get("stopping_criteria"):
            wrapped = [_FullPromptStoppingCriteria(self, hook) for hook in arguments["stopping_criteria"]]
            arguments["stopping_criteria"] = StoppingCriteriaList(wrapped)
        if arguments.get("prefix_allowed_tokens_fn") is not None:
            arguments["prefix_allowed_tokens_fn"] = self._prefix_function(arguments["prefix_allowed_tokens_fn"])
        if arguments.get("streamer") is not None:
            arguments["streamer"] = _FullPromptStreamer(self, arguments["streamer"])
        return arguments

    def _prefix_function(self, allowed_tokens: Callable[[int, Tensor], list[int]]) -> Callable:
        def with_full_prompt(batch_id: int, sequence: Tensor) -> list[int]:
            prompt = self.full_ids[batch_id].to(sequence.device)
            return allowed_tokens(batch_id, torch.cat([prompt, sequence[self.short_length :]]))

        return with_full_prompt


class _FullPromptLogitsProcessor(LogitsProcessor):
    def __init__(self, view: FullPromptView, hook: Callable):
        self.view, self.hook = view, hook

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.hook(self.view.restore(input_ids), scores)


class _FullPromptStoppingCriteria(StoppingCriteria):
    def __init__(self, view: FullPromptView, hook: Callable):
        self.view, self.hook = view, hook

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        return self.hook(self.view.restore(input_ids), scores, **kwargs)


class _FullPromptStreamer(BaseStreamer):
    """`generate` puts the prompt first, then the new tokens."""

    def __init__(self, view: FullPromptView, streamer: BaseStreamer):
        self.streamer = streamer
        self.prompt = view.full_ids.cpu()

    def put(self, value: Tensor) -> None:
        if self.prompt is not None:
            value, self.prompt = self.prompt, None
        self.streamer.put(value)

    def end(self) -> None:
        self.streamer.end()
