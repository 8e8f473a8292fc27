"""Where the kept tokens of videos stand: behind the time of their frame, and at which places of the full prompt.

A processor spreads a video's placeholders evenly over its frames. The model decides how many each frame keeps, and
moves placeholders, and the text between a video's frames, accordingly. A prompt keeps its length.
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
    """Prompts (B, L) in which each group is as long as its frame's budget.

    Attributes:
        order: (B, L) int64: where each token was in the caller's prompt.
        places: (B, L) int64: where each token is in the full prompt.
        rows: (B, L) int64: for each position of the caller's prompt, the token in this one that predicts what follows.
        lengths: (B,) int64: how long each full prompt is. F is the longest; others are padded on the left.
    """

    order: Tensor
    places: Tensor
    rows: Tensor
    lengths: Tensor

    @property
    def moves(self) -> bool:
        """Whether a token changes its place."""
        return bool((self.order.diff(dim=1) != 1).any())

    def laid_out(self, values: Tensor) -> Tensor:
        """Return ids, types, labels or embeddings (B, L, ...) of the caller's prompt in the new order."""
        return _gathered(values, self.order)

    def of_caller(self, values: Tensor) -> Tensor:
        """Return rows of the model's output (B, L, ...) in the order of the caller's prompt."""
        return _gathered(values, self.rows)

    def in_full(self, values: Tensor, of_groups: int) -> Tensor:
        """Return ids, types or a mask (B, L), in the new order, for the full prompts (B, F).

        Args:
            of_groups: the value of a dropped token. That of padding is 0.
        """
        lengths = self.lengths.to(values.device)
        most = int(self.lengths.max())
        is_padding = torch.arange(most, device=values.device) < most - lengths[:, None]
        full = values.new_full((len(values), most), of_groups).masked_fill(is_padding, 0)
        return full.scatter(1, self.places.to(values.device), values)


def _gathered(values: Tensor, index: Tensor) -> Tensor:
    index = index.to(values.device)
    return values.gather(1, index.view(*index.shape, *[1] * (values.ndim - 2)).expand_as(values))


def prompt_layout(is_video: Tensor, videos: Sequence[Sequence[Group]]) -> Layout:
    """Lay out prompts.

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
    return Layout(torch.stack(order), torch.stack(places) + padding[:, None], torch.stack(rows), of_prompts)


def _of_prompt(is_video: Tensor, videos: Iterator[Sequence[Group]]) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return the order, the places and the rows (L,) of one prompt, and the length of the full one."""
    edges = torch.nn.functional.pad(is_video.long(), (1, 1)).diff().nonzero().flatten().tolist()
    runs = list(zip(edges[::2], edges[1::2]))
    order, places, full, done = [], [], 0, 0
    rows = torch.arange(len(is_video))
    length = 0  # of what is laid out

    def put(tokens: Tensor, in_full: Tensor, size: int) -> None:
        nonlocal full, length
        order.append(tokens)
        places.append(full + in_full)
        full, length = full + size, length + len(tokens)

    def put_text(start: int, end: int) -> None:
        rows[start:end] = torch.arange(length, length + end - start)
        text = torch.arange(start, end)
        put(text, text - start, end - start)

    while runs:
        groups = next(videos, ())
        of_video, runs = runs[: len(groups)], runs[len(groups) :]
        pool = torch.cat([torch.arange(*run) for run in of_video] or [torch.empty(0, dtype=torch.int64)])
        if not groups or len(of_video) < len(groups) or len(pool) != sum(len(group.kept) for group in groups):
            raise _misfit(is_video[None], [groups])
        for (start, end), group in zip(of_video, groups):
            put_text(done, start)
            taken, pool = pool[: len(group.kept)], pool[len(group.kept) :]
            # The last placeholder of a group predicts the text behind it, so its row is that of the token before this.
            last = length + len(taken) - 1
            rows[start:end] = (length + torch.arange(end - start)).clamp(max=max(last, 0))
            rows[end - 1] = max(last, 0)
            put(taken, group.kept.cpu(), group.size)
            done = end
    put_text(done, len(is_video))
    return torch.cat(order), torch.cat(places), rows, full


def _misfit(is_video: Tensor, videos: Sequence[Sequence[Group]]) -> ValueError:
    kept = [sum(len(group.kept) for group in groups) for groups in videos]
    return ValueError(
        f"The prompts hold {is_video.sum(dim=1).tolist()} video placeholders, but {kept} tokens of the videos are "
        "kept. Build both with the same call of the repo's processor, and don't truncate the prompt."
    )
