"""Shows the hooks of `generate` the full prompt while it works on the compressed one."""

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer


class FullPromptView:
    """Maps sequences that begin with the short prompt to the same sequences with the full one.

    `generate` merges the caller's logits processors and stopping criteria with its own by their type. So the caller's
    come to it as they are, in lists that carry the view, and what it makes of them is wrapped.

    Args:
        full_ids: (B, L) the caller's `input_ids`.
        full_mask: (B, L) their mask.
        short_length: L', length of the compressed prompt.
    """

    def __init__(self, full_ids: Tensor, full_mask: Tensor, short_length: int):
        self.full_ids = full_ids
        self.full_mask = full_mask
        self.short_length = short_length

    @property
    def num_dropped(self) -> int:
        return self.full_ids.shape[1] - self.short_length

    def restore(self, sequences: Tensor) -> torch.LongTensor:
        """(B·n, L' + new) -> (B·n, L + new), n sequences of each prompt side by side."""
        prompts = self.full_ids.repeat_interleave(len(sequences) // len(self.full_ids), dim=0)
        full = torch.cat([prompts.to(sequences.device), sequences[:, self.short_length :]], dim=1)
        return cast(torch.LongTensor, full)

    def of_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """`generate`'s arguments, with lists of hooks that carry the view, and a streamer that gets the full prompt."""
        hooks = {
            "logits_processor": _ViewedProcessors(arguments.get("logits_processor") or [], self),
            "stopping_criteria": _ViewedCriteria(arguments.get("stopping_criteria") or [], self),
        }
        if arguments.get("streamer") is not None:
            hooks["streamer"] = _FullPromptStreamer(self, arguments["streamer"])
        return arguments | hooks

    def of_processor_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments of `_get_logits_processor` in terms of the full prompt."""
        model_kwargs = dict(arguments.get("model_kwargs") or {})
        if model_kwargs.get("attention_mask") is not None:
            rows = len(model_kwargs["attention_mask"])
            model_kwargs["attention_mask"] = self.full_mask.repeat_interleave(rows // len(self.full_mask), dim=0)
        return self._with_full_lengths(arguments) | {
            "input_ids_seq_length": arguments["input_ids_seq_length"] + self.num_dropped,
            "encoder_input_ids": self.full_ids,
            "model_kwargs": model_kwargs,
            "logits_processor": LogitsProcessorList(arguments["logits_processor"]),
        }

    def of_criteria_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments of `_get_stopping_criteria` in terms of the full prompt."""
        plain = StoppingCriteriaList(arguments["stopping_criteria"])
        return self._with_full_lengths(arguments) | {"stopping_criteria": plain}

    def _with_full_lengths(self, arguments: dict[str, Any]) -> dict[str, Any]:
        config = copy.copy(arguments["generation_config"])
        for name in ("max_length", "min_length"):
            if getattr(config, name):  # a minimum of 0 is none
                setattr(config, name, getattr(config, name) + self.num_dropped)
        return arguments | {"generation_config": config}

    def of_logits_processors(self, processors: LogitsProcessorList) -> LogitsProcessorList:
        """Each wrapped by itself: an assistant model takes them out of the list."""
        return LogitsProcessorList([_FullPromptLogitsProcessor(self, hook) for hook in processors])

    def of_stopping_criteria(self, criteria: StoppingCriteriaList) -> StoppingCriteriaList:
        """Wrapped as a list: `generate` asks what kinds are in it."""
        return _FullPromptCriteria(criteria, self)


class _ViewedProcessors(LogitsProcessorList):
    def __init__(self, hooks: list, view: FullPromptView):
        super().__init__(hooks)
        self.view = view


class _ViewedCriteria(StoppingCriteriaList):
    def __init__(self, hooks: list, view: FullPromptView):
        super().__init__(hooks)
        self.view = view


def view_of(hooks: Any) -> FullPromptView | None:
    """The view that a list of the caller's hooks carries, in a `generate` on a compressed prompt."""
    return hooks.view if isinstance(hooks, (_ViewedProcessors, _ViewedCriteria)) else None


class _FullPromptLogitsProcessor(LogitsProcessor):
    def __init__(self, view: FullPromptView, hook: Callable):
        self.view, self.hook = view, hook

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.hook(self.view.restore(input_ids), scores)


class _FullPromptCriteria(StoppingCriteriaList):
    def __init__(self, criteria: list, view: FullPromptView):
        super().__init__(criteria)
        self.view = view

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return super().__call__(self.view.restore(input_ids), scores, **kwargs)

    @property
    def max_length(self) -> int | None:
        """Of the short sequences, with which `generate` compares it."""
        full = StoppingCriteriaList(self).max_length
        return None if full is None else full - self.view.num_dropped


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
