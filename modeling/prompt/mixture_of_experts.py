"""What families with a mixture of experts share. Their load-balancing loss, which keeps experts equally busy, counts
the tokens of the compressed prompt.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..hosting.in_transformers import MoeCausalLMOutputWithPast
from .compressed_generation import VidCom2GenerationMixin
from .conversation_cache import ShortPrompt


@dataclass
class VidCom2MoeCausalLMOutputWithPast(MoeCausalLMOutputWithPast):
    """The parent's output over the compressed prompt.

    Attributes:
        rope_deltas: a field of the parent's output in older Transformers versions.
        prompt_positions: int64, for each row of the logits the position in `input_ids` of its token, -1 at padding;
            None if nothing was compressed.
    """

    rope_deltas: torch.LongTensor | None = None
    prompt_positions: torch.LongTensor | None = None


class MixtureOfExpertsMixin(VidCom2GenerationMixin):
    """`VidCom2GenerationMixin` for a parent whose `forward` returns an `aux_loss`.

    The loss counts which experts the tokens of the compressed prompt went to, and `router_logits` cover these tokens.
    """

    hides_mask_from_head = True  # The parent's head would apply the caller's mask to the tokens of the short prompt.
    output_class = VidCom2MoeCausalLMOutputWithPast
    load_balancing_loss: ClassVar[Callable[..., Any]]  # the parent's function of that name

    def _balance_experts(self, outputs: Any, prompt: ShortPrompt) -> None:
        """Put the load-balancing loss over the compressed prompt into `outputs`, and add it to their loss."""
        if outputs.get("router_logits") is None:
            return
        text, mask = self.config.get_text_config(), (prompt.positions >= 0).long()
        num_experts = outputs.router_logits[0].shape[-1]  # configs have several names for it
        outputs.aux_loss = type(self).load_balancing_loss(
            outputs.router_logits, num_experts, text.num_experts_per_tok, mask
        )
        if outputs.loss is not None:
            outputs.loss = outputs.loss + text.router_aux_loss_coef * outputs.aux_loss.to(outputs.loss.device)
