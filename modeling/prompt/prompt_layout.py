"""Where the kept tokens of videos stand in a prompt, and where they would stand if no token were dropped.

In a prompt of this project's processor, placeholders are spread evenly over a video's frames. The model decides how
many each frame keeps, and moves placeholders, and the text between the frames, accordingly: the prompt keeps its
length. From a prompt of a stock processor, which has a placeholder for every token, those of dropped tokens are taken
out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from ..hosting.in_transformers import whole_videos


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
        return laid_out(self.order, values, padding)

    def of_caller(self, rows: Tensor) -> Tensor:
        """Return a row (B, L, ...) of the model's output (B, L', ...) for each token of the caller's prompts."""
        return _gathered(rows, self.rows.to(rows.device))

    @property
    def is_in_order(self) -> bool:
        """Whether the tokens are the caller's, each at its place."""
        places = torch.arange(self.rows.shape[1], device=self.order.device)
        return self.lengths is not None and bool((self.order == places).all())

    def spread(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        """Return rows (B·L, ...) for the caller's tokens of rows (B·L', ...). Every row of a prompt is repeated equally
        often, give or take one, so that a masked loss weights all rows alike.

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


def laid_out(order: Tensor, values: Tensor, padding: Tensor | int = 0) -> Tensor:
    """Return values (B, L, ...) in the order (B, L') of a layout, with `padding` where it is -1."""
    order = order.to(values.device)
    is_token = (order >= 0).view(*order.shape, *[1] * (values.ndim - 2))
    return torch.where(is_token, _gathered(values, order.clamp(min=0)), padding)


def _gathered(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index.view(*index.shape, *[1] * (values.ndim - 2)).expand(*index.shape, *values.shape[2:]))


# ---------------------------------------------------------------------------------------------------------------------
# A prompt with a placeholder for every token
# ---------------------------------------------------------------------------------------------------------------------


def without_dropped(attended: Tensor, is_video: Tensor, videos: Sequence[tuple[int, Tensor]]) -> Layout:
    """Lay out prompts without the placeholders of dropped tokens, and without the padding on either side of a prompt.

    A dropped token gets the row of the last token kept before it, from which the model predicts what follows.

    Args:
        attended: (B, L) the mask.
        is_video: (B, L) bool: which tokens are placeholders of videos.
        videos: for each video, in the order of the prompts, how many placeholders it has, and which of them stay.

    Raises:
        ValueError: if the placeholders do not fit the videos.
    """
    sizes = [size for size, _ in videos]
    if not whole_videos(is_video.sum(dim=1).tolist(), sizes):
        raise _misfit(is_video, sizes)
    starts = accumulate(sizes, initial=0)
    places = torch.cat([stay + start for (_, stay), start in zip(videos, starts)]).to(is_video.device)
    stays = torch.zeros(sum(sizes), dtype=torch.bool, device=is_video.device).index_fill(0, places, True)
    kept = between_ends(attended) & torch.ones_like(is_video).masked_scatter(is_video, stays)
    length, counts = int(kept.sum(dim=1).max()), kept.long().cumsum(dim=1)
    places = kept.to(torch.uint8).argsort(dim=1, stable=True)[:, kept.shape[1] - length :]
    order = torch.where(kept.gather(1, places), places, -1)
    return Layout(order, order.clamp(min=0), rows=(length - counts[:, -1:] + counts - 1).clamp(min=0))


def _misfit(is_video: Tensor, numbers: Sequence[int]) -> ValueError:
    return ValueError(
        f"The prompts hold {is_video.sum(dim=1).tolist()} video placeholders, but there are videos of {list(numbers)}. "
        "Build both with the same call of the checkpoint's processor, pass on all that it returns "
        "(`num_kept_video_tokens`, if it is this project's), and don't truncate the prompt. Videos of earlier turns "
        "are in the KV cache: leave their pixels out."
    )


def between_ends(attended: Tensor) -> Tensor:
    """Return a bool mask (B, L) that is False at the padding on either side of each prompt."""
    counts = attended.long().cumsum(dim=1)
    return (counts > 0) & (counts - attended.long() < counts[:, -1:])


# ---------------------------------------------------------------------------------------------------------------------
# A prompt with a placeholder for each token that stays
# ---------------------------------------------------------------------------------------------------------------------


def spread(total: int, sizes: Sequence[int]) -> Iterator[int]:
    """Yield how many of K placeholders each group gets: in proportion to its size, but at least one, to be seen.

    Args:
        total: K, between the number of groups and the sum of their sizes.
    """
    left, room = total - len(sizes), max(1, sum(sizes) - len(sizes))
    for before, after in pairwise(accumulate((size - 1 for size in sizes), initial=0)):
        yield 1 + left * after // room - left * before // room


def with_budgets(is_video: Tensor, videos: Sequence[tuple[Sequence[int], Tensor]]) -> Layout:
    """Lay out prompts so that each group of placeholders is as long as its frame's budget.

    Args:
        is_video: (B, L) bool: which tokens are placeholders of videos.
        videos: for each video, in the order of the prompts, how many placeholders each of its groups has in the full
            prompt, and which of all these stay, (K,) int64.

    Raises:
        ValueError: if the placeholders do not fit the videos.
    """
    numbers = [len(kept) for _, kept in videos]
    counts, left = is_video.sum(dim=1).tolist(), iter(videos)
    fits = whole_videos(counts, numbers) and all(len(sizes) <= len(kept) for sizes, kept in videos)
    of_prompts = []
    for prompt, count in zip(is_video.cpu(), counts if fits else ()):
        of_prompt: list[tuple[Sequence[int], Tensor]] = []
        while sum(len(kept) for _, kept in of_prompt) < count:
            of_prompt.append(next(left))
        laid = _of_prompt(prompt, of_prompt)
        fits = fits and laid is not None
        of_prompts.append(laid)
    if not fits:
        raise _misfit(is_video, numbers)
    order, places, rows, lengths = zip(*of_prompts)
    of_prompts = torch.tensor(lengths)
    tensors = torch.stack(order), torch.stack(places) + (of_prompts.max() - of_prompts)[:, None], torch.stack(rows)
    return Layout(*(each.to(is_video.device) for each in (*tensors, of_prompts)))


def _of_prompt(
    is_video: Tensor, videos: Sequence[tuple[Sequence[int], Tensor]]
) -> tuple[Tensor, Tensor, Tensor, int] | None:
    """Return the order, the places and the rows (L,) of one prompt, and the length of the full one; None if text stands
    within a group of placeholders."""
    sizes = [size for of_video, _ in videos for size in of_video]
    starts = accumulate((sum(of_video) for of_video, _ in videos), initial=0)
    # of the placeholders that stay, where they are among those of the full prompt
    kept = torch.cat(
        [is_video.new_empty(0, dtype=torch.int64), *(each.cpu() + at for (_, each), at in zip(videos, starts))]
    )
    edges = nn.functional.pad(is_video.long(), (1, 1)).diff().nonzero().flatten()
    written = edges[1::2] - edges[::2]
    if len(written) != len(sizes):  # Videos without text between them make one run.
        written = torch.tensor([number for of_video, each in videos for number in spread(len(each), of_video)])
    # Without a type, the empty list of a prompt that has no video would become a tensor of floats.
    ends_in_full, ends = (
        nn.functional.pad(torch.as_tensor(each, dtype=torch.int64).cumsum(0), (1, 0)) for each in (sizes, written)
    )
    group = torch.searchsorted(ends_in_full[1:], kept, right=True)
    ends_here = nn.functional.pad(group.bincount(minlength=len(sizes)).cumsum(0), (1, 0))
    # how many groups are before each token of text, and how much text before each group
    before = is_video.cumsum(0)[~is_video]
    groups_before = torch.searchsorted(ends[1:], before, right=True)
    if not torch.equal(ends[groups_before], before):
        return None
    text_before = torch.searchsorted(groups_before, torch.arange(len(sizes)), right=True)[group]
    here, in_full = torch.empty(2, len(is_video), dtype=torch.int64)
    here[is_video], in_full[is_video] = torch.arange(len(kept)) + text_before, kept + text_before
    text = torch.arange(len(before))
    here[~is_video], in_full[~is_video] = text + ends_here[groups_before], text + ends_in_full[groups_before]
    # The last placeholder of a group predicts the text behind it, and so does the token before that text here.
    ends_group = nn.functional.pad(is_video[:-1] & ~is_video[1:], (0, 1))
    rows = torch.where(ends_group, here.roll(-1) - 1, here).clamp(min=0)
    order = here.argsort()
    return order, in_full[order], rows, len(before) + sum(sizes)
