"""Dynamic temporal segmentation: a video is cut where neighbouring frames differ. FastVID and FlashVID begin with it.

The frames' means are compared. A cut is made at each of the `MIN_SEGMENTS` - 1 least similar transitions, and at every
other transition whose cosine similarity is below `CUT_BELOW`. (FlashVID's code says it the other way round: it cuts
below the threshold, and adds the least similar transitions if segments are missing. The cuts are the same.)

FastVID's paper is arXiv 2503.11187, where this is called DySeg; the constants are its c and τ, and FlashVID's
`min_segment_num` and `segment_threshold`.
"""

import torch
from torch import Tensor

from vidcom2.modeling.methods.method_vidcom2 import cosine_similarity

MIN_SEGMENTS = 8
CUT_BELOW = 0.9
SIMILARITY_DECIMALS = 6  # The rest is float32 noise, which would decide between the transitions of still scenes.


def dynamic_segments(means: Tensor) -> list[slice]:
    """Return the segments of a video in order, as slices of its frames. In a tie the earlier transition is cut.

    The device is read once: how long segments are depends on the content.

    Args:
        means: (T, D) float32: the frames' means. A zero mean has similarity 0.
    """
    lengths = torch.linalg.vector_norm(means, dim=-1)
    cosines = cosine_similarity((means[:-1] * means[1:]).sum(dim=-1), lengths[:-1], lengths[1:])
    similarities = [round(cosine, SIMILARITY_DECIMALS) for cosine in cosines.tolist()]
    by_similarity = sorted(range(len(similarities)), key=similarities.__getitem__)
    cuts = set(by_similarity[: MIN_SEGMENTS - 1]) | {t for t, value in enumerate(similarities) if value < CUT_BELOW}
    starts = [0, *(t + 1 for t in sorted(cuts))]
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(means)])]
