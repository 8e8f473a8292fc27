import gc
from collections.abc import Iterator

import pytest

pytest.importorskip("vllm", reason="vLLM needs an environment of its own, which `.ci/vllm` makes")
from engines import CASES, KEPT, ON_THE_HUB, Case, Served, engine
from models import save_as_on_the_hub
from transformers import dynamic_module_utils
from vllm.model_executor.models import registry


@pytest.fixture(scope="session", autouse=True)
def _this_process_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copy the code of repos for this process alone, and let vLLM look at models' classes in it.

    Otherwise vLLM starts a process for each class that is new to it, and imports itself there.
    """
    with pytest.MonkeyPatch.context() as patch:
        modules = str(tmp_path_factory.mktemp("modules"))
        patch.setenv("HF_MODULES_CACHE", modules)
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", modules)
        patch.setattr(registry, "_run_in_subprocess", lambda look: look())
        yield


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def repo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    case: Case = request.param
    served = Served.saved(tmp_path_factory.mktemp(case.name), case, **KEPT)
    if case.name in ON_THE_HUB:
        save_as_on_the_hub(case.row, served.model, served.folder)
    return served


@pytest.fixture(scope="module")
def served(repo: Served) -> Iterator[Served]:
    """Give the repo an engine, and shut it down before the next one needs the same process."""
    repo.llm = engine(repo.folder, repo.case)
    yield repo
    repo.llm.llm_engine.engine_core.shutdown()
    repo.llm = None
    gc.collect()
