"""What only GLM-5-Next has: an index that chooses what to attend to. In the other tests' short prompts it keeps all."""

from typing import Any

import pytest
import torch
from conftest import Family
from models import EACH_MODEL, RETENTION_RATIO
from reference import compressed_embeddings
from test_generate import NEW, answered, batch_of_two

pytestmark = pytest.mark.parametrize("family", [each for each in EACH_MODEL if each.id == "glm5_next"], indirect=True)


def choosing(model: Any) -> Any:
    """Let a model attend to four groups of four tokens, and to the tokens behind the last whole group."""
    indices = [module for module in model.modules() if hasattr(module, "index_topk")]
    for module in indices:
        module.index_topk = 16
    assert indices
    return model


@torch.no_grad()
def test_an_index_chooses_among_the_tokens_that_stay_as_in_a_prompt_compressed_by_hand(family: Family) -> None:
    inputs, ours = family.one_video(), choosing(family.load(retention_ratio=RETENTION_RATIO))
    embeddings, remaining = compressed_embeddings(family, inputs, RETENTION_RATIO)
    said = answered(ours, inputs, min_new_tokens=NEW)
    by_hand = {"inputs_embeds": embeddings, "attention_mask": torch.ones(1, len(remaining), dtype=torch.long)}
    theirs = answered(choosing(family.load_stock()), by_hand, min_new_tokens=NEW)
    assert torch.equal(said.sequences[:, -NEW:], theirs.sequences)
    torch.testing.assert_close(torch.stack(said.logits), torch.stack(theirs.logits), rtol=0, atol=1e-5)
    assert not torch.allclose(said.logits[0], family.model(**inputs).logits[:, -1], atol=1e-3), "the index kept all"


@torch.no_grad()
def test_an_index_chooses_in_a_padded_batch_as_in_each_row(family: Family) -> None:
    both, alone = batch_of_two(family)
    model = choosing(family.load(retention_ratio=RETENTION_RATIO))
    together = model(**both).logits[:, -1]
    for row, inputs in zip(together, alone, strict=True):
        torch.testing.assert_close(row, model(**inputs).logits[0, -1], rtol=0, atol=1e-5)
