import gc
from collections.abc import Iterator

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: `.ci/vllm`")
from engines import CASES, EXACT, Case, Served, engine


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def repo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    case: Case = request.param
    folder = tmp_path_factory.mktemp(case.name)
    return Served.saved(folder, case, **EXACT)


@pytest.fixture(scope="module")
def served(repo: Served) -> Iterator[Served]:
    """With an engine, which is gone before the next one takes over what both need in one process."""
    repo.llm = engine(repo.folder, repo.case)
    yield repo
    repo.llm.llm_engine.engine_core.shutdown()
    repo.llm = None
    gc.collect()
