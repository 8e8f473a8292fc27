"""The shape of a Hub repo, shared by the code that makes one (`shipped_code.py`, `hub_upload/`) and that checks one.

It imports only the standard library, since the process of `vidcom2 verify` cannot import `vidcom2` and reads this file
by its path.
"""

import ast
import hashlib
import re
from collections.abc import Callable, Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

CONFIG, CARD, PROCESSOR = "config.json", "README.md", "processor_config.json"
INDEX, SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"
AUTO_MODEL_CLASSES = ("AutoModel", "AutoModelForImageTextToText", "AutoModelForMultimodalLM")
PIPELINE_TASK = "video-text-to-text"
# Other pickles, such as a trainer's state, are never loaded.
PICKLED_WEIGHTS = re.compile(r"(pytorch_model|adapter_model).*\.(bin|pt|pth)")
LISTED = re.compile(r"^\| `([^`|]+)` \|(?: .* \|)? `([0-9a-f]{64})` \|$", flags=re.MULTILINE)
# The last line of the process that checks. If it is missing, the process ended early, as a repo's code can make it.
FINISHED = "all checks were made"


def listed_files(card: str) -> dict[str, str]:
    """Return path -> sha256 for the files that a card lists."""
    return dict(LISTED.findall(card))


def refused_pickles(files: Iterable[str]) -> str:
    """Return why a repo with these files is refused; an empty string if its weights are not pickled."""
    pickles = [file for file in files if PICKLED_WEIGHTS.fullmatch(file)]
    return f"{pickles} can run code when they are loaded. Keep safetensors only." if pickles else ""


def import_closure(modules: Iterable[str], read: Callable[[str], str]) -> dict[str, str]:
    """Return module -> source for these modules and all that they import by `from .name import`, in the order in which
    a reader meets them: each module is followed by what it imports, as far as that was not met before.

    Args:
        read: returns the source of a module.
    """
    sources: dict[str, str] = {}
    to_visit = list(modules)
    while to_visit:
        module = to_visit.pop(0)
        if module not in sources:
            sources[module] = read(module)
            to_visit[:0] = _imported_beside(sources[module])
    return sources


@cache
def _imported_beside(source: str) -> tuple[str, ...]:
    """Return the modules that a source imports by `from .name import`. Each save of a model asks for the same ones."""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.level == 1]
    return tuple(node.module for node in imports if node.module is not None)


def weight_files(paths: Collection[str], read_json: Callable[[str], dict[str, Any]]) -> set[str]:
    """Return the weight files that Transformers would load from a repo with these paths; some may be missing."""
    if SINGLE_FILE in paths or INDEX not in paths:
        return {SINGLE_FILE}
    shards = read_json(INDEX).get("weight_map")
    return {str(name) for name in shards.values()} if isinstance(shards, dict) else set()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, read in blocks because it may not fit in memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
