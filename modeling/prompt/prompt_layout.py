"""Where the kept tokens of videos stand in a prompt, and where they would stand if no token were dropped.

In a prompt of this project's processor, placeholders are spread evenly over a video's frames. The model decides how
many each frame keeps, and moves placeholders, and the text between the frames, accordingly: the prompt keeps its
length. From a prompt of a stock processor, which has a placeholder for every token, those of dropped tokens are taken
out.

Either way, the host knows where each token would stand in the full prompt, but not which tokens of a video stay, which
is on the device. So it hands over places, those of the kept tokens join them there, and one sort is the layout. The
device is asked nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

import torch
from torch import Tensor, nn

from ..hosting.in_transformers import whole_videos
from ..methods.compression import on_device


@dataclass(frozen=True)
class FullPrompts:
    """The caller's prompts (B, L) with a placeholder for every video token. All of it is on the host.

    Attributes:
        places: (B, L) int64: where each token of the caller's prompts that is no video's stands in the full ones,
            (B, F); -1 at placeholders of videos.
        lengths: (B,) int64: how long each full prompt is. F is the longest; others are padded on the left.
    """

    places: Tensor
    lengths: Tensor

    def of(self, values: Tensor, of_videos: int) -> Tensor:
        """Return ids or a mask (B, L) of the caller's prompts for the full ones (B, F), with 0 at padding.

        Args:
            of_videos: the value of all placeholders of videos.
        """
        length, is_text = int(self.lengths.max()), self.places >= 0
        is_padding = torch.arange(length) < length - self.lengths[:, None]
        full = values.new_full((len(values), length), of_videos).masked_fill(is_padding, 0)
        full[is_text.nonzero()[:, 0], self.places[is_text]] = values[is_text]
        return full


@dataclass(frozen=True)
class Layout:
    """Prompts (B, L') as the language model runs them, made of the caller's prompts (B, L).

    Attributes:
        order: (B, L') int64: where each token is in the caller's prompt; -1 at padding, which stands on the left.
        places: (B, L') int64: where each token is in the full prompt (B, F).
        rows: (B, L) int64: for each token of the caller's, the token here whose output predicts what follows it.
        full: the full prompts; None if the caller's are these, and the model shortens them.
        mask: (B, n) a mask, on the host, that hides a token between others where that of these tokens may; None if that
            of the caller's tokens is like it.
        pads: whether there is padding here that the caller's prompts need not have.
        moves: whether tokens may stand elsewhere than in the caller's prompts.
        moves_hidden: whether some of those may be hidden by the caller's mask.
    """

    order: Tensor
    places: Tensor
    rows: Tensor
    full: FullPrompts | None = None
    mask: Tensor | None = None
    pads: bool = False
    moves: bool = True
    moves_hidden: bool = True

    @property
    def shortens(self) -> bool:
        """Whether the caller's prompts have a placeholder for every token, of which those of dropped ones are gone."""
        return self.full is None

    def laid_out(self, values: Tensor, padding: Tensor | int = 0) -> Tensor:
        """Return ids, types, labels, a mask or embeddings (B, L, ...) of the caller's prompts for these."""
        return laid_out(self.order, values, padding) if self.shortens else _gathered(values, self.order)

    def in_full(self, values: Tensor, of_videos: int) -> Tensor:
        """Return ids or a mask (B, L) of the caller's prompts, on the host, for the full ones, as `FullPrompts.of`."""
        return values if self.full is None else self.full.of(values, of_videos)

    def of_caller(self, rows: Tensor) -> Tensor:
        """Return a row (B, L, ...) of the model's output (B, L', ...) for each token of the caller's prompts."""
        return _gathered(rows, self.rows)

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
        return _gathered(rows.view(num_rows, num_run, -1), places).flatten(0, 1)


def laid_out(order: Tensor, values: Tensor, padding: Tensor | int = 0) -> Tensor:
    """Return values (B, L, ...) in the order (B, L') of a layout, with `padding` where it is -1."""
    order = order.to(values.device)
    is_token = (order >= 0).view(*order.shape, *[1] * (values.ndim - 2))
    return torch.where(is_token, _gathered(values, order.clamp(min=0)), padding)


def _gathered(values: Tensor, index: Tensor) -> Tensor:
    index = index.to(values.device)
    return values.gather(1, index.view(*index.shape, *[1] * (values.ndim - 2)).expand(*index.shape, *values.shape[2:]))


def _with_kept(places: Tensor, is_kept: Tensor, tables: Sequence[Tensor], kept: Sequence[Tensor]) -> Tensor:
    """Return places (B, n) in the full prompts, on the device, with those of the kept tokens of videos among them.

    Args:
        places: (B, n) the places of other tokens, on the host.
        is_kept: (B, n) bool: which entries are those of kept tokens, on the host.
        tables: for each video, where each of its placeholders stands in the full prompt, on the host.
        kept: for each video, which of these stay.
    """
    if not kept:
        return places
    device = kept[0].device
    of_videos = on_device(torch.cat(list(tables)), device).split([len(table) for table in tables])
    found = torch.cat([table.index_select(0, each) for table, each in zip(of_videos, kept)])
    entries = on_device(is_kept.flatten().nonzero().flatten(), device)
    return on_device(places, device).flatten().index_copy(0, entries, found).view(places.shape)


def _rows(places: Tensor, wanted: Tensor) -> Tensor:
    """Return for each of the places (B, L) that are wanted the last of the sorted places (B, L') that is no later."""
    return (torch.searchsorted(places, wanted, right=True) - 1).clamp(min=0)


# ---------------------------------------------------------------------------------------------------------------------
# A prompt with a placeholder for every token
# ---------------------------------------------------------------------------------------------------------------------


def without_dropped(attended: Tensor, is_video: Tensor, videos: Sequence[tuple[int, Tensor]]) -> Layout:
    """Lay out prompts without the placeholders of dropped tokens, and without the padding on either side of a prompt.

    A dropped token gets the row of the last token kept before it, from which the model predicts what follows.

    Args:
        attended: (B, L) the mask, on the host.
        is_video: (B, L) bool: which tokens are placeholders of videos, on the host.
        videos: for each video, in the order of the prompts, how many placeholders it has, and which of them stay.

    Raises:
        ValueError: if the placeholders do not fit the videos.
    """
    sizes, kept = [size for size, _ in videos], [each for _, each in videos]
    of_prompts = _videos_of_prompts(is_video, sizes, sizes)
    is_text = between_ends(attended) & ~is_video
    num_kept = [sum(len(kept[number]) for number in numbers) for numbers in of_prompts]
    lengths = [int(text.sum()) + number for text, number in zip(is_text, num_kept)]
    places = torch.full((len(is_text), max(lengths)), -1)
    is_kept, mask = torch.zeros(2, *places.shape, dtype=torch.bool)
    for row, (text, number, length) in enumerate(zip(is_text, num_kept, lengths)):
        places[row, places.shape[1] - length + number :] = text.nonzero().flatten()
        is_kept[row, places.shape[1] - length : places.shape[1] - length + number] = True
        mask[row, places.shape[1] - length + number :] = attended[row, text]
    # The kept tokens of videos come first in it, and those of a video that ends a prompt also last.
    ends_in_video = (is_video & (attended.flip(1).long().cumsum(1).flip(1) == 1) & attended.bool()).any(1, keepdim=True)
    mask = torch.cat([mask | is_kept, ends_in_video], dim=1)
    tables = is_video.nonzero()[:, 1].split(sizes)
    order = _with_kept(places, is_kept, tables, kept).sort(dim=1).values
    wanted = on_device(torch.arange(is_video.shape[1]), order.device).expand(is_video.shape).contiguous()
    return Layout(order, order.clamp(min=0), _rows(order, wanted), mask=mask, pads=len(set(lengths)) > 1)


def _videos_of_prompts(is_video: Tensor, numbers: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Return which videos each prompt holds, by their number.

    Args:
        numbers: how many of the prompts' placeholders each video has.
        sizes: how many it has at least.

    Raises:
        ValueError: if the placeholders do not fit the videos.
    """
    counts, left = is_video.sum(dim=1).tolist(), iter(range(len(numbers)))
    if not whole_videos(counts, numbers) or any(size > number for size, number in zip(sizes, numbers)):
        raise _misfit(is_video, numbers)
    of_prompts = []
    for count in counts:
        of_prompt: list[int] = []
        while sum(numbers[each] for each in of_prompt) < count:
            of_prompt.append(next(left))
        of_prompts.append(of_prompt)
    return of_prompts


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


def with_budgets(attended: Tensor, is_video: Tensor, videos: Sequence[tuple[Sequence[int], Tensor]]) -> Layout:
    """Lay out prompts so that each group of placeholders is as long as its frame's budget.

    Args:
        attended: (B, L) the mask, on the host.
        is_video: (B, L) bool: which tokens are placeholders of videos, on the host.
        videos: for each video, in the order of the prompts, how many placeholders each of its groups has in the full
            prompt, and which of all these stay, (K,) int64.

    Raises:
        ValueError: if the placeholders do not fit the videos.
    """
    numbers, kept = [len(each) for _, each in videos], [each for _, each in videos]
    of_prompts = _videos_of_prompts(is_video, numbers, [len(sizes) for sizes, _ in videos])
    found = []
    for prompt, of_prompt in zip(is_video, of_prompts):
        laid = _of_prompt(prompt, [(videos[number][0], numbers[number]) for number in of_prompt])
        if laid is None:
            raise _misfit(is_video, numbers)
        found.append(laid)
    texts, ends, tables, of_prompts = zip(*found)
    lengths = torch.tensor(of_prompts)
    padding = lengths.max() - lengths
    text, ends = (
        torch.where(each < 0, -1, each + padding[:, None]) for each in (torch.stack(texts), torch.stack(ends))
    )
    table = torch.cat([each + left for each, left in zip(tables, padding)])
    places = _with_kept(text, is_video, table.split([sum(sizes) for sizes, _ in videos]), kept)
    # The last placeholder of a group predicts the text behind it, and so does the token before that text here.
    ends = on_device(ends, places.device)
    rows, (in_order, order) = torch.where(ends < 0, places, ends), places.sort(dim=1)
    moves = any(len(sizes) > 1 and len(each) < sum(sizes) for sizes, each in videos)
    return Layout(
        order,
        in_order,
        _rows(in_order, rows),
        full=FullPrompts(text, lengths),
        moves=moves,
        moves_hidden=moves and bool((between_ends(is_video) & ~attended.bool()).any()),
    )


def _of_prompt(
    is_video: Tensor, videos: Sequence[tuple[Sequence[int], int]]
) -> tuple[Tensor, Tensor, Tensor, int] | None:
    """Return places in the full prompt of one prompt, and its length; None if text stands within a group.

    Args:
        is_video: (L,) bool.
        videos: for each video, how many placeholders each of its groups has in the full prompt, and how many are here.

    Returns:
        (L,) where each token that is no video's stands; (L,) of the last placeholder before such text, the place before
        that text; both -1 elsewhere. And where each placeholder of the full prompt stands.
    """
    sizes = list(chain.from_iterable(of_video for of_video, _ in videos))
    edges = nn.functional.pad(is_video.long(), (1, 1)).diff().nonzero().flatten()
    written = (edges[1::2] - edges[::2]).tolist()
    if len(written) != len(sizes):  # Videos without text between them make one run.
        written = list(chain.from_iterable(spread(number, of_video) for of_video, number in videos))
    ends_in_full, ends = (torch.tensor([0, *accumulate(each)]) for each in (sizes, written))
    # how many groups are before each token of text, and how much text before each group
    before = is_video.cumsum(0)[~is_video]
    groups_before = torch.searchsorted(ends[1:], before, right=True)
    if not torch.equal(ends[groups_before], before):
        return None
    text_before = torch.searchsorted(groups_before, torch.arange(len(sizes)), right=True)
    places = torch.full(is_video.shape, -1)
    places[~is_video] = torch.arange(len(before)) + ends_in_full[groups_before]
    ends_group = nn.functional.pad(is_video[:-1] & ~is_video[1:], (0, 1))
    before_text = torch.where(ends_group, places.roll(-1) - 1, -1)
    table = torch.arange(sum(sizes)) + text_before.repeat_interleave(torch.tensor(sizes, dtype=torch.int64))
    return places, before_text, table, len(before) + sum(sizes)
