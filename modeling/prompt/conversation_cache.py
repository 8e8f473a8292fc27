"""A prompt without its dropped tokens, and the memory of a KV cache: which tokens of the conversation it holds, and at
which position the next one stands.

Why does the cache change its class? Keys and values do not tell how long the prompt was before it was compressed, and
later turns need to know. The model cannot remember this, since it may serve other chats in between. So the memory lives
with the cache. A wrapper around the cache would not do: Transformers and its users ask whether it is a `StaticCache`,
write to its layers, compile for its type, and keep the object that they passed to `generate`, which would never become
the wrapper. With a subclass made on the spot, the cache stays the same object and the same kind of cache, and its
memory follows when its rows are reordered, repeated or cropped, and when it is copied.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..hosting.in_transformers import ParentCache

# ---------------------------------------------------------------------------------------------------------------------
# Positions of tokens in a prompt
# ---------------------------------------------------------------------------------------------------------------------


IGNORED_LABEL = -100


def remaining_positions(kept: Tensor) -> Tensor:
    """Return where each row of a bool mask (B, L) is True: (B, L') int64, ascending, padded on the left with -1."""
    length = int(kept.sum(dim=1).max())
    positions = kept.to(torch.uint8).argsort(dim=1, stable=True)[:, kept.shape[1] - length :]
    return torch.where(kept.gather(1, positions), positions, -1)


def positions_by_order(mask: Tensor) -> Tensor:
    """Return the position of each token among the attended ones of a mask (B, L): (B, L) int64, 0 at padding."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def positions_made_for(text_config: Any) -> int | None:
    """Return how many positions a language model was made for; None if its config does not say.

    Rotary positions that are scaled by a factor, as in LLaVA-NeXT-Video-7B, reach that many times further than
    `max_position_embeddings`.
    """
    limit = getattr(text_config, "max_position_embeddings", None)
    rope = getattr(text_config, "rope_parameters", None) or {}
    if limit is not None and rope.get("rope_type") in ("linear", "dynamic"):
        return int(limit * rope["factor"])
    return limit


def take(full: Tensor, positions: Tensor, padding: Tensor | int) -> Tensor:
    """Return the entries (B, L') of `full` (B, L) at `positions` (B, L'), and `padding` where these are -1."""
    return torch.where(positions >= 0, full.gather(1, positions.clamp(min=0).to(full.device)), padding)


def labels_at(labels: Tensor, prompt_positions: Tensor) -> Tensor:
    """Return the labels of a compressed prompt's rows.

    Args:
        labels: (B, L) labels of the caller's prompt.
        prompt_positions: (B, L') from the model's output: the position in the prompt of each row, -1 at padding.

    Returns:
        (B, L') labels, -100 at padding.
    """
    return take(labels, prompt_positions, IGNORED_LABEL)


# ---------------------------------------------------------------------------------------------------------------------
# The memory of a KV cache
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CachedPrompt:
    """What a KV cache holds of the caller's conversation.

    Attributes:
        positions: (B, P) position of each cached token in the caller's prompt, -1 at padding.
        prompt_length: number of the caller's tokens that the cache stands for, including the dropped ones.
        position_offset: (B, 1) position of the next token minus the number of tokens; None if positions are the order
            of the tokens.
        is_short: whether tokens were dropped, so that only this project's classes can continue the cache.
        lost: why the cache can no longer be continued; None if it can.
        num_remembered: for how many of the cached tokens, counted from the first, it is known which are padding; None
            for all of them.
    """

    positions: Tensor
    prompt_length: int
    position_offset: Tensor | None = None
    is_short: bool = True
    lost: str | None = None
    num_remembered: int | None = None

    @property
    def length(self) -> int:
        return self.positions.shape[1]

    @functools.cached_property
    def is_padded(self) -> bool:
        return bool((self.positions < 0).any())

    @property
    def is_plain(self) -> bool:
        """Whether the parent class continues the cache correctly by itself."""
        return not self.is_short and self.position_offset is None

    @staticmethod
    def attached_to(cache: Any) -> "CachedPrompt | None":
        """Return the memory that continuing a cache needs; None if the cache is empty, is plain, or has no memory."""
        known = getattr(cache, "cached_prompt", None)
        return known if known is not None and not known.is_plain and cache.get_seq_length() > 0 else None

    @staticmethod
    def is_unknown(cache: Any) -> bool:
        """Whether a cache holds tokens but has no memory of them, such as one rebuilt from its tensors."""
        return cache is not None and getattr(cache, "cached_prompt", None) is None and cache.get_seq_length() > 0

    @classmethod
    def of(cls, cache: Any, num_rows: int, device: torch.device) -> "CachedPrompt":
        """Return what `cache` holds: what it remembers, and one token of the caller's for each cached token after that.

        Raises:
            ValueError: if the memory does not fit the cache or the number of prompts, or the cache cannot be continued.
        """
        length = 0 if cache is None else int(cache.get_seq_length())
        known = cls.attached_to(cache)
        if known is None:
            nothing = torch.empty(num_rows, 0, dtype=torch.long, device=device)
            known = cls(nothing, 0, is_short=False)
        known._check_not_lost()
        if length < known.length or len(known.positions) != num_rows:
            what = "compressed to " if known.is_short else "of "
            raise ValueError(
                f"The KV cache holds {length} tokens, but was filled by {len(known.positions)} prompts {what}"
                f"{known.length} tokens, and there are {num_rows} prompts now. Pass it as `generate` returned it, with "
                "the same rows, or start over without it."
            )
        later = torch.arange(length - known.length, device=device).expand(num_rows, -1)
        num_remembered = known.num_remembered
        if num_remembered is None and later.shape[1]:
            num_remembered = known.length
        return replace(known.extended(later, later.shape[1]), num_remembered=num_remembered)

    @classmethod
    def of_full_prompt(cls, mask: Tensor, position_offset: Tensor | None) -> "CachedPrompt":
        """Return the memory of an uncompressed prompt.

        Args:
            mask: (B, L) attention mask of the prompt.
            position_offset: (B, 1), see the attribute; None if positions are the order of the tokens.
        """
        positions = torch.arange(mask.shape[1], device=mask.device).expand(len(mask), -1)
        positions = torch.where(mask.bool(), positions, -1)
        return cls(positions, mask.shape[1], position_offset, is_short=False)

    def mask_with_new(self, mask: Tensor | None, num_new: int, device: torch.device) -> Tensor:
        """Return the mask (B, P + n) over the P cached tokens and n new ones.

        Args:
            mask: the caller's mask, over these tokens or over the whole conversation. With None, all tokens except the
                padding of the compressed prompt are attended.

        Raises:
            ValueError: if the mask covers neither of the two, or could cover either.
        """
        is_token = (self.positions >= 0).to(device)
        if mask is None:
            return torch.cat([is_token, is_token.new_ones(len(is_token), num_new)], dim=1).long()
        lengths = self.prompt_length + num_new, self.length + num_new
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        accepted = [(len(is_token), length) for length in lengths]
        if shape not in accepted:
            raise ValueError(
                f"`attention_mask` is {shape}, but there are {len(is_token)} prompts, and the cache stands for "
                f"{self.prompt_length} tokens of the conversation, compressed to {self.length}, followed by {num_new} "
                f"new ones. Pass a 2-D mask over the {lengths[0]} tokens of the conversation, a 2-D mask over the "
                f"{lengths[1]} that are left, or no mask."
            )
        over_left = mask
        if shape == accepted[0]:
            over_whole = self.mask_of_conversation(mask)
            if shape != accepted[1] or torch.equal(over_whole, over_left):
                return over_whole
            # A batch whose longest prompt lost nothing keeps its length, so both readings of the mask have this shape.
            # The one whose padding agrees with what the cache remembers is right.
            known = slice(self.num_remembered)
            fits_whole, fits_left = (
                torch.equal(each[:, : self.length].bool()[:, known], is_token[:, known])
                for each in (over_whole, over_left)
            )
            if fits_whole == fits_left:
                raise ValueError(
                    f"`attention_mask` is {shape}: it may cover the whole conversation, or what compression left of "
                    "it, which is just as long here. Since it hides tokens in the KV cache, it is impossible to "
                    "tell which. Hide no token that was attended before, or leave the mask out."
                )
            if fits_whole:
                return over_whole
        return over_left

    def mask_of_conversation(self, mask: Tensor) -> Tensor:
        """Return the mask (B, P + n) that `mask_with_new` does, from one over the whole conversation."""
        return torch.cat([take(mask, self.positions, 0), mask[:, self.prompt_length :]], dim=1)

    def extended(self, positions: Tensor, num_tokens: int) -> "CachedPrompt":
        """Return the memory with `num_tokens` more tokens; those at `positions` (B, n), -1 for none, are cached."""
        positions = torch.where(positions >= 0, positions + self.prompt_length, -1)
        return replace(
            self,
            positions=torch.cat([self.positions.to(positions.device), positions], dim=1),
            prompt_length=self.prompt_length + num_tokens,
        )

    def rows(self, indices: Tensor) -> "CachedPrompt":
        """Return the memory of a cache whose rows were picked, repeated or reordered by `indices` (B',)."""
        of_rows = {name: getattr(self, name) for name in ("positions", "position_offset")}
        picked = {name: of[indices.to(of.device)] for name, of in of_rows.items() if of is not None}
        return replace(self, **picked)

    def repeated(self, repeats: int) -> "CachedPrompt":
        """Return the memory of a cache that holds each prompt `repeats` times, side by side, as for beams."""
        rows = torch.arange(len(self.positions), device=self.positions.device)
        return self.rows(rows.repeat_interleave(repeats))

    def attach_to(self, cache: Any) -> None:
        if cache is not None:
            cache.__class__ = remembering(type(cache))
            cache.cached_prompt = self

    def as_tensors(self) -> dict[str, Tensor]:
        """Return the memory as tensors, which can be stored beside keys and values.

        Raises:
            ValueError: if the cache cannot be continued.
        """
        self._check_not_lost()
        tensors = {name: getattr(self, name) for name in ("positions", "position_offset")}
        numbers = {name: getattr(self, name) for name in ("prompt_length", "is_short", "num_remembered")}
        given = {name: value for name, value in tensors.items() if value is not None}
        return given | {name: torch.tensor(int(value)) for name, value in numbers.items() if value is not None}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "CachedPrompt":
        """Return the memory whose `as_tensors` returned these tensors.

        Raises:
            ValueError: if `as_tensors` cannot have returned them.
        """
        fields: dict[str, Any] = dict(tensors)
        if not {"positions", "prompt_length", "is_short"} <= fields.keys() <= cls.__dataclass_fields__.keys():
            raise ValueError(f"The memory of a cache holds {sorted(fields)}. Pass what `cache_memory` returned.")
        for name in ("prompt_length", "num_remembered"):
            if name in fields:
                fields[name] = int(fields[name])
        fields["is_short"] = bool(fields["is_short"])
        return cls(**fields)

    def _check_not_lost(self) -> None:
        if self.lost is not None:
            raise ValueError(f"The KV cache cannot be continued: {self.lost}. Start over without it.")


class RemembersPrompt(ParentCache):
    """Gives a cache a memory that follows its rows and its length; it comes before the cache's own class."""

    cached_prompt: CachedPrompt | None = None
    in_use = False  # Whether a model of this project is writing to the cache at this moment.

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        self._follow(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._follow(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        if self.cached_prompt is not None:
            self.cached_prompt = self.cached_prompt.repeated(repeats)

    def _follow(self, indices: Tensor) -> None:
        if self.cached_prompt is not None:
            self.cached_prompt = self.cached_prompt.rows(torch.as_tensor(indices))

    def crop(self, *args: Any, **kwargs: Any) -> None:
        super().crop(*args, **kwargs)
        known, length = self.cached_prompt, int(self.get_seq_length())
        if length == 0:
            self.cached_prompt = None
        elif known is not None and length < known.length and known.is_short:
            lost = f"it was cropped to {length} tokens, into a prompt that was compressed to {known.length}"
            self.cached_prompt = replace(known, lost=lost)
        elif known is not None and length < known.length:
            self.cached_prompt = replace(known, positions=known.positions[:, :length], prompt_length=length)

    def reset(self) -> None:
        super().reset()
        self.cached_prompt = None

    def update(self, *args: Any, **kwargs: Any) -> Any:
        self._check_user()
        return super().update(*args, **kwargs)

    # Linear attention calls these before it writes to its states. Transformers 5.19 has no `get_conv_state`, and 5.23
    # calls nothing else.

    def has_previous_state(self, *args: Any, **kwargs: Any) -> bool:
        self._check_user()
        return super().has_previous_state(*args, **kwargs)

    def get_conv_state(self, *args: Any, **kwargs: Any) -> Any:
        self._check_user()
        return super().get_conv_state(*args, **kwargs)

    def _check_user(self) -> None:
        known = self.cached_prompt
        if known is None or self.in_use:
            return
        if known.is_short:
            raise ValueError(
                f"The KV cache holds a prompt of {known.prompt_length} tokens that VidCom² compressed to "
                f"{known.length}, and another model cannot continue it. Continue with the model that filled it, or "
                "start over without the cache."
            )
        if known.position_offset is not None and known.position_offset.any():
            raise ValueError(
                f"The KV cache holds a prompt of {known.prompt_length} tokens with images or videos, which a "
                "VidCom² model ran, and another model does not know where their positions end. Continue with the "
                "model that filled it, or start over without the cache."
            )

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Let `copy.deepcopy` and `pickle` rebuild the class, which they cannot find by its name."""
        _, _, *state = super().__reduce_ex__(protocol)
        return _new_remembering, (type(self).__bases__[1],), *state


@functools.cache
def remembering(cache_class: type) -> type:
    """Return the subclass of `cache_class` that remembers its prompt."""
    if issubclass(cache_class, RemembersPrompt):
        return cache_class
    return type(cache_class.__name__, (RemembersPrompt, cache_class), {"__module__": cache_class.__module__})


def _new_remembering(cache_class: type) -> Any:
    return object.__new__(remembering(cache_class))


@contextmanager
def using(cache: Any) -> Iterator[None]:
    """Mark the cache as one that a model of this project is writing to."""
    if not isinstance(cache, RemembersPrompt):
        yield
        return
    cache.in_use = True
    try:
        yield
    finally:
        cache.in_use = False


# ---------------------------------------------------------------------------------------------------------------------
# A prompt without its dropped tokens
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShortPrompt:
    """The new tokens of a prompt without the dropped ones.

    Attributes:
        kept: (B, L) bool: which of the caller's new tokens are left.
        attended: (B, L) bool: which of them the caller's mask does not hide.
        positions: (B, L') their positions among the caller's new tokens, -1 at the padding on the left.
        padding: (B, 1) a token of each prompt's text, which pads its ids.
        cached: what the KV cache will hold after them.
    """

    kept: Tensor
    attended: Tensor
    positions: Tensor
    padding: Tensor
    cached: CachedPrompt

    def at_positions(self, rows: Tensor, logits_to_keep: int | Tensor = 0, before_first: int | None = None) -> Tensor:
        """Return a row for each position of the caller's prompt.

        A kept token has a row of its own. A dropped token gets the row of the last token kept before it, from which the
        compressed prompt predicts what follows.

        Args:
            rows: (B, L', ...) rows of the compressed prompt.
            logits_to_keep: which positions, as in Transformers: the number of last ones (0 for all), indices (n,) or
                (B, n), or a bool mask (B, L).
            before_first: the value at positions before the first kept token; with None, they hold an arbitrary row.

        Returns:
            (B, n, ...), or (number of True, ...) for a bool mask.
        """
        counts = self.kept.long().cumsum(dim=1)
        padding = self.positions.shape[1] - counts[:, -1:]
        index = (padding + counts - 1).clamp(min=0).to(rows.device)
        prompts = torch.arange(len(index), device=rows.device)[:, None].expand_as(index)
        index, prompts, counts = (_picked(each, logits_to_keep) for each in (index, prompts, counts.to(rows.device)))
        picked = rows[prompts, index]
        return picked if before_first is None else picked.masked_fill(counts == 0, before_first)

    def of_layers(self, hidden_states: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Apply `at_positions` to the rows of each layer; a layer that was not asked for is None and stays so."""
        return tuple(None if rows is None else self.at_positions(rows) for rows in hidden_states)

    def spread(self, layers: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Repeat the rows of the compressed prompt so that a mean over the caller's prompt counts each token alike.

        Each of a prompt's L' rows fills as many of its L attended positions as any other row, or one more.

        Args:
            layers: (B·L', ...) rows of the compressed prompt, for each layer.

        Returns:
            (B·L, ...) for each layer, with an arbitrary row at positions that are not attended.
        """
        is_kept = self.positions >= 0
        kept, given = (each.long().sum(dim=1, keepdim=True) for each in (is_kept, self.attended))
        ranks = positions_by_order(self.attended) * kept // given.clamp(min=1)
        index = is_kept.shape[1] - kept + ranks
        prompts = torch.arange(len(index), device=index.device)[:, None]
        index = (prompts * is_kept.shape[1] + index).flatten()
        return tuple(rows[index.to(rows.device)] for rows in layers)


@dataclass(frozen=True)
class CompressedPrompt:
    """What `generate` carries beside the caller's full `input_ids`, while the model runs the compressed prompt.

    Attributes:
        ids: (B, L') token ids of the compressed conversation.
        full_mask: (B, L) the caller's mask.
        is_in_ids: whether the `input_ids` of a step are already these ids.
    """

    ids: Tensor
    full_mask: Tensor
    is_in_ids: bool = False

    @property
    def num_dropped(self) -> int:
        return self.full_mask.shape[1] - self.ids.shape[1]

    def shorten(self, sequences: Tensor) -> Tensor:
        """Put the short ids in front: (B·n, L + new) -> (B·n, L' + new), n sequences of each prompt side by side."""
        prompts = self.ids.repeat_interleave(len(sequences) // len(self.ids), dim=0)
        return torch.cat([prompts.to(sequences.device), sequences[:, self.full_mask.shape[1] :]], dim=1)


def _picked(full: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """Return the entries of `full` (B, L) that `logits_to_keep` names."""
    if isinstance(logits_to_keep, int):
        return full[:, -logits_to_keep:]  # 0 takes all of them.
    if not isinstance(logits_to_keep, Tensor):  # It is a slice or a list.
        return full[:, logits_to_keep]
    logits_to_keep = logits_to_keep.to(full.device)
    if logits_to_keep.dtype == torch.bool:
        return full[logits_to_keep]
    return full.take_along_dim(logits_to_keep, dim=1) if logits_to_keep.ndim == 2 else full[:, logits_to_keep]
