import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: `.ci/vllm`")
sys.path.insert(0, str(Path(__file__).parent))

from engines import CASES, RATIO, Case, Served, engine, save_repo


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def repo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    case: Case = request.param
    folder = tmp_path_factory.mktemp(case.name)
    return Served(case, folder, save_repo(folder, case, retention_ratio=RATIO, compression_rounding="exact"))


@pytest.fixture(scope="module")
def served(repo: Served) -> Iterator[Served]:
    """With an engine, which is gone before the next one takes over what both need in one process."""
    repo.llm = engine(repo.folder, repo.case)
    yield repo
    repo.llm.llm_engine.engine_core.shutdown()
    repo.llm = None
    gc.collect()
