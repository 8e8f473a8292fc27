"""Families of which another has the code give the answers of Transformers."""

import gc
from pathlib import Path

import pytest
from engines import KEPT, ROWS, Case, Served, engine
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory


@pytest.mark.parametrize("name", ["glm4v_moe", "glm46v", "cosmos3_omni"])
def test_families_of_which_another_has_the_code_give_the_same_answers(tmp_path: Path, name: str) -> None:
    cleanup_dist_env_and_memory()  # the groups of an earlier engine in this process, which may lack one for experts
    served = Served.saved(tmp_path, Case(ROWS[name], {"patch_size": 14}, (4, 5), most_videos=1), **KEPT)
    requests = [served.request(**asked) for asked in ({}, {"images": (0,)}, {"ratio": 0.5}, {"ratio": 1.0})]
    llm = engine(tmp_path, served.case)
    answers = served.answers(*requests, llm=llm)
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    assert answers == served.expected(*requests)
