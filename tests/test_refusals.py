"""What cannot be combined with a compressed prompt: the docs show the code's own tables, and each row is refused."""

from typing import Any

import pytest
import torch
from conftest import Family
from models import EACH_MODEL
from test_generate import make_prompt, run

from benchmarks.pages import ROOT
from vidcom2.modeling.prompt.refusals import TABLES


def test_the_docs_show_every_refusal() -> None:
    lines = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8").splitlines()
    for refusal in (refusal for table in TABLES for refusal in table):
        shown = [line for line in lines if line.startswith("| ") and refusal.asked in line]
        assert len(shown) == 1 and shown[0].endswith(f"| {refusal.instead} |"), refusal.asked


# `asked` of a row -> what to pass to `generate`, or None if another test does so or this Transformers supports it.
ASKING: dict[str, dict[str, Any] | None] = {
    "`position_ids`": {"position_ids": torch.zeros(1, 4, dtype=torch.long)},
    "`cu_seq_lens_q` and the other lengths of packed prompts": {"cu_seq_lens_q": torch.tensor([0, 4])},
    '`cache_implementation="paged"`': {"cache_implementation": "paged"},
    "`token_healing`": {"token_healing": True},
    "`prefill_chunk_size` on Transformers 5.19": None,  # tests/test_generate.py
}


@pytest.mark.parametrize(
    "family", [each for each in EACH_MODEL if each.values[0].name == "llava_onevision"], indirect=True
)
@pytest.mark.parametrize("refusal", [refusal for table in TABLES[:2] for refusal in table], ids=lambda row: row.asked)
def test_each_row_of_the_tables_is_refused_with_its_reason_and_remedy(family: Family, refusal: Any) -> None:
    """One family stands for all, since one place reads the tables."""
    asking = ASKING[refusal.asked]
    if asking is not None:
        with pytest.raises(ValueError) as error:
            run(family.model, make_prompt(family, "one_video"), **asking)
        assert str(error.value) == f"{refusal.because} {refusal.instead}"
