"""Where the kept tokens of videos stand in a prompt, and where they would stand if no token were dropped.

In a prompt of this project's processor, placeholders are spread evenly over a video's frames. The model decides how
many each frame keeps, and moves placeholders, and the text between the frames, accordingly: the prompt keeps its
length. From a prompt of a stock processor, which has a placeholder for every token, those of dropped tokens are taken
out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """One group of a video's placeholders.

    Attributes:
        size: how many placeholders it has in the full prompt.
        kept: (k,) int64: which of these stay.
    """

    size: int
    kept: Tensor


@dataclass(frozen=True)
class Layout:
    """Prompts (B, L') as the language model runs them, made of the caller's prompts (B, L).

    Attributes:
        order: (B, L') int64: where each token is in the caller's prompt; -1 at padding, which stands on the left.
        places: (B, L') int64: where each token is in the full prompt (B, F).
        rows: (B, L) int64: for each token of the caller's, the token here whose output predicts what follows it.
        lengths: (B,) int64: how long each full prompt is. F is the longest; others are padded on the left. None if the
            caller's prompts are the full ones.
    """

    order: Tensor
    places: Tensor
    rows: Tensor
    lengths: Tensor | None = None

    def laid_out(self, values: Tensor, padding: Tensor | int = 0) -> Tensor:
        """Return ids, types, labels, a mask or embeddings (B, L, ...) of the caller's prompts for these."""
        order = self.order.to(values.device)
        found = _gathered(values, order.clamp(min=0))
        is_token = (order >= 0).view(*order.shape, *[1] * (values.ndim - 2))
        return torch.where(is_token, found, padding)

    def of_caller(self, rows: Tensor) -> Tensor:
        """Return a row (B, L, ...) of the model's output (B, L', ...) for each token of the caller's prompts."""
        return _gathered(rows, self.rows.to(rows.device))

    @property
    def is_in_order(self) -> bool:
        """Whether the tokens are the caller's, each at its place."""
        places = torch.arange(self.rows.shape[1], device=self.order.device)
        return self.lengths is not None and bool((self.order == places).all())

    def spread(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        """Return rows (B·L, ...) for the caller's tokens of rows (B·L', ...), each equally often for a prompt's tokens.

        Args:
            mask: the caller's mask, which ends with these tokens; None hides none.
        """
        (num_rows, num_run), num_new = self.order.shape, self.rows.shape[1]
        attended = torch.ones_like(self.rows) if mask is None else mask[:, -num_new:].to(self.rows)
        ranks, kept = attended.cumsum(dim=1) - 1, (self.order >= 0).sum(dim=1, keepdim=True)
        places = ranks.clamp(min=0) * kept // attended.sum(dim=1, keepdim=True).clamp(min=1) + num_run - kept
        return _gathered(rows.view(num_rows, num_run, -1), places.to(rows.device)).flatten(0, 1)

    def in_full(self, values: Tensor, of_dropped: int) -> Tensor:
        """Return ids or a mask (B, L) of the caller's prompts for the full prompts (B, F), with 0 at padding.

        Args:
            of_dropped: the value of a dropped token that the caller's prompts lack.
        """
        if self.lengths is None:
            return values
        lengths, values = self.lengths.to(values.device), self.laid_out(values)
        most = int(self.lengths.max())
        is_padding = torch.arange(most, device=values.device) < most - lengths[:, None]
        full = values.new_full((len(values), most), of_dropped).masked_fill(is_padding, 0)
        return full.scatter(1, self.places.to(values.device), values)


def _gathered(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index.view(*index.shape, *[1] * (values.ndim - 2)).expand(*index.shape, *values.shape[2:]))


# ---------------------------------------------------------------------------------------------------------------------
# A prompt with a placeholder for every token
# ---------------------------------------------------------------------------------------------------------------------


def without_dropped(kept: Tensor) -> Layout:
    """Lay out prompts of which some tokens are dropped.

    A dropped token gets the row of the last token kept before it, from which the model predicts what follows.

    Args:
        kept: (B, L) bool: which tokens stay.
    """
    order = remaining(kept)
    counts = kept.long().cumsum(dim=1)
    rows = (order.shape[1] - counts[:, -1:] + counts - 1).clamp(min=0)
    return Layout(order, order.clamp(min=0), rows)


def between_ends(attended: Tensor) -> Tensor:
    """Return a bool mask (B, L) that is False at the padding on either side of each prompt."""
    counts = attended.long().cumsum(dim=1)
    return (counts > 0) & (counts - attended.long() < counts[:, -1:])


def remaining(kept: Tensor) -> Tensor:
    """Return where each row of a bool mask (B, L) is True: (B, L') int64, ascending, padded on the left with -1."""
    length = int(kept.sum(dim=1).max())
    places = kept.to(torch.uint8).argsort(dim=1, stable=True)[:, kept.shape[1] - length :]
    return torch.where(kept.gather(1, places), places, -1)


# ---------------------------------------------------------------------------------------------------------------------
# A prompt with a placeholder for each token that stays
# ---------------------------------------------------------------------------------------------------------------------


def with_budgets(is_video: Tensor, videos: Sequence[Sequence[Group]]) -> Layout:
    """Lay out prompts so that each group of placeholders is as long as its frame's budget.

    Args:
        is_video: (B, L) bool: which tokens are placeholders of videos.
        videos: the groups of each video, in the order of the prompts.

    Raises:
        ValueError: if the placeholders do not fit the videos.
    """
    left = iter(videos)
    order, places, rows, lengths = zip(*(_of_prompt(prompt, left) for prompt in is_video.cpu()))
    if next(left, None) is not None:
        raise _misfit(is_video, videos)
    of_prompts = torch.tensor(lengths)
    padding = of_prompts.max() - of_prompts
    tensors = (torch.stack(order), torch.stack(places) + padding[:, None], torch.stack(rows), of_prompts)
    return Layout(*(each.to(is_video.device) for each in tensors))


def _of_prompt(is_video: Tensor, videos: Iterator[Sequence[Group]]) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return the order, the places and the rows (L,) of one prompt, and the length of the full one."""
    edges = torch.nn.functional.pad(is_video.long(), (1, 1)).diff().nonzero().flatten().tolist()
    runs = list(zip(edges[::2], edges[1::2]))
    order, places, rows = [], [], torch.arange(len(is_video))
    length = full = done = 0  # of what is laid out, of the full prompt, of the caller's

    def put(tokens: Tensor, in_full: Tensor, size: int) -> None:
        nonlocal length, full
        order.append(tokens)
        places.append(full + in_full)
        length, full = length + len(tokens), full + size

    def put_text(start: int, end: int) -> None:
        rows[start:end] = torch.arange(length, length + end - start)
        put(torch.arange(start, end), torch.arange(end - start), end - start)

    while runs:
        groups = next(videos, ())
        of_video, runs = runs[: len(groups)], runs[len(groups) :]
        pool = torch.cat([torch.arange(*run) for run in of_video] or [torch.empty(0, dtype=torch.int64)])
        if not groups or len(of_video) < len(groups) or len(pool) != sum(len(group.kept) for group in groups):
            raise _misfit(is_video[None], [groups])
        for (start, end), group in zip(of_video, groups):
            put_text(done, start)
            taken, pool = pool[: len(group.kept)], pool[len(group.kept) :]
            # The last placeholder of a group predicts the text behind it, and so does the token before that text here.
            last = max(0, length + len(taken) - 1)
            rows[start:end] = (length + torch.arange(end - start)).clamp(max=last)
            rows[end - 1] = last
            put(taken, group.kept.cpu(), group.size)
            done = end
    put_text(done, len(is_video))
    return torch.cat(order), torch.cat(places), rows, full


def _misfit(is_video: Tensor, videos: Sequence[Sequence[Group]]) -> ValueError:
    kept = [sum(len(group.kept) for group in groups) for groups in videos]
    return ValueError(
        f"The prompts hold {is_video.sum(dim=1).tolist()} video placeholders, but {kept} tokens of the videos are "
        "kept. Build both with the same call of the repo's processor, and don't truncate the prompt. Videos of earlier "
        "turns are in the KV cache: leave their pixels out."
    )
