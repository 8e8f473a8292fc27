"""What families with linear attention share. Such layers read all tokens into states, and cannot leave one out."""

from torch import Tensor

from ..hosting.in_transformers import ParentModel


class LinearAttentionMixin(ParentModel):
    """Refuses masks that linear attention cannot follow. It comes before the family's other mixin among the bases."""

    def check_mask(self, mask: Tensor, num_cached: int) -> None:
        check_no_gaps(mask, num_cached)


def check_no_gaps(mask: Tensor, num_cached: int) -> None:
    """Check that no token is hidden between a prompt's first token and its new ones, for linear attention.

    Linear attention reads all tokens, in order, into states. It leaves out the padding before a prompt, but from the
    first token on the states fade at every token, hidden or not. Transformers would not object.

    Args:
        mask: (B, P + n) over the P tokens in the KV cache and the n new ones.
        num_cached: P.

    Raises:
        ValueError: if a token is hidden there.
    """
    attended = mask.bool()
    hidden = ~attended & (attended.cumsum(dim=1) > 0)
    behind = attended & (hidden.cumsum(dim=1) > 0)
    rows = behind[:, num_cached:].any(dim=1).nonzero().flatten().tolist()
    if rows:
        raise ValueError(
            f"In prompts {rows} of the batch, padding or tokens that `attention_mask` hides stand between the tokens "
            "in the KV cache and the new ones. This model's linear attention cannot leave them out. All prompts "
            "must continue with equally many tokens, after compression too, and none may be hidden: continue one "
            "prompt at a time, or start over without the cache."
        )
