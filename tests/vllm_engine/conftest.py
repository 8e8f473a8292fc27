import gc
from collections.abc import Iterator

import pytest

pytest.importorskip("vllm", reason="vLLM needs an environment of its own, which `.ci/vllm` makes")
from engines import CASES, KEPT, Case, Served, engine


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def repo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    case: Case = request.param
    folder = tmp_path_factory.mktemp(case.name)
    return Served.saved(folder, case, **KEPT)


@pytest.fixture(scope="module")
def served(repo: Served) -> Iterator[Served]:
    """Give the repo an engine, and shut it down before the next one needs the same process."""
    repo.llm = engine(repo.folder, repo.case)
    yield repo
    repo.llm.llm_engine.engine_core.shutdown()
    repo.llm = None
    gc.collect()
