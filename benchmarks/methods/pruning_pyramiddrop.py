"""PyramidDrop (Xing et al., CVPR 2025, arXiv 2410.17247), without training.

The layers make four stages, and a share λ of the video tokens is kept at the end of each but the last (Section 3.2), by
their attention from the last token of the instruction. As in the released code (Cooperx521/PyramidDrop), a drop after l
layers ranks by the weights of layer l + 1 on its input, and the query is the last token of the whole prompt.
"""

from .inside_language_model import Pruning


class PyramidDrop(Pruning):
    ranks_in_next_layer = True

    @staticmethod
    def drops_after(ratio: float, num_layers: int) -> list[int]:
        """Return the ends of three stages, the first of which uses half of the budget of R·L layers. At the paper's own
        R = 0.469 these are its quarters of the layers, with which R ≤ 0.25 would be out of reach."""
        length = max(1, round(ratio * num_layers / 2))
        return [after for after in (length, 2 * length, 3 * length) if after < num_layers]
