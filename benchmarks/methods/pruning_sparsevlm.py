"""SparseVLM (Zhang et al., ICML 2025, arXiv 2410.04417).

Raters are chosen among the text tokens before the first layer (Eqs. 5 and 6). In a layer that drops tokens, a video
token's score is the attention that it gets from them (Eqs. 2 and 3). The best are selected after it, and the best 30 %
of the others recycled (Section 3.3): density peaks clustering makes a token of every ten or so. The adaptive number of
drops (Eq. 7) is left out, since it cannot meet a given ratio. Nor do the authors use it to compare at one.

Where the paper leaves something open, this file follows their code (Gumpest/SparseVLMs): all that follows the video is
text, τ is 30 % and θ a tenth, a density has as many neighbours as there are clusters, tokens join the nearest centre by
Euclidean distance, and a new token is a mean. It departs from the code so: raters are at or above the mean, as in
Eq. 5; of equally dense tokens the one with the higher score counts as denser, where the code adds noise; and a new
token has the place and the position of its cluster's centre, where the code puts all of them at the end.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .density_peaks import density_peaks
from .inside_language_model import Pruning


class SparseVLM(Pruning):
    fewest = 2  # one is selected and one recycled

    @staticmethod
    def drops_after(ratio: float, num_layers: int) -> list[int]:
        """Return layers in the proportion of the authors' 3, 7 and 16 of 32: 3, 6, 14 of 28 and 1, 2, 4 of 8."""
        return sorted({max(1, round(after * num_layers / 32)) for after in (3, 7, 16)})

    def query_weights(self, embeddings: Tensor) -> Tensor:
        """Return 1 / (number of raters) for each rater. Raters are at or above the mean of the text's relevance: a
        softmax over the text of inner products, averaged over the video tokens."""
        is_text = self.is_text[:, -int(self.is_text.sum(dim=1).max()) :]
        video = embeddings[self.is_video].view(len(is_text), self.num_tokens, -1).float()
        likeness = (video @ embeddings[:, -is_text.shape[1] :].float().mT).masked_fill(~is_text[:, None], -torch.inf)
        mean = 1 / is_text.sum(dim=1, keepdim=True)  # since the relevance adds up to 1
        raters = is_text & (likeness.softmax(dim=-1).mean(dim=1) >= mean - 1e-7)  # despite float noise, one is enough
        return raters / raters.sum(dim=1, keepdim=True)

    def drop(self, hidden: Tensor, left: Tensor, number: int) -> tuple[Tensor, Tensor]:
        before, hidden = int(left[0].sum()), hidden.clone()
        selected = next(each for each in range(1, before + 1) if each + num_recycled(before - each) >= number)
        stays, made = self.best(left, selected), number - selected
        for row, places in enumerate(each.nonzero()[:, 0] for each in left & ~stays):
            order = self.scores[row, places].argsort(descending=True, stable=True)
            pool = places[order[: int(len(places) * 0.3) + 1]]
            states = hidden[row, pool].float()
            peaks, distances = density_peaks(states, torch.ones_like(pool, dtype=torch.bool), made)
            centres = peaks.argsort(descending=True, stable=True)[:made]
            cluster = distances[:, centres].argmin(dim=1)
            cluster[centres] = torch.arange(made, device=cluster.device)  # even if two centres are the same point
            members = one_hot(cluster, made).float()
            hidden[row, pool[centres]] = ((members / members.sum(dim=0)).T @ states).to(hidden)
            stays[row, pool[centres]] = True
        return hidden, stays


def num_recycled(num_dropped: int) -> int:
    return (int(num_dropped * 0.3) + 1) // 10 + 1 if num_dropped else 0
