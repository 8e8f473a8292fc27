"""FastV (Chen et al., "An Image is Worth 1/2 Tokens After Layer 2", ECCV 2024, arXiv 2403.06764).

Tokens are dropped once, after layer K (Section 4.1), by the attention that they get in it, a mean over its heads. In
the paper all tokens that attend to them count. The released code (pkunlp-icler/FastV) takes the last prompt token as
the only query, and so do the VidCom² paper (Appendix "Baseline Details") and this file. K = 0 is not offered.
"""

from .inside_language_model import Pruning


class FastV(Pruning):
    @staticmethod
    def drops_after(ratio: float, num_layers: int) -> list[int]:
        """Return the paper's K = 2; in a model with few layers 1, since 15 % is out of reach after two of eight."""
        return [2 if num_layers >= 16 else 1]
