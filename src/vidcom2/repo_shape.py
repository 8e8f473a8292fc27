"""The shape of a Hub repo, for what makes one (`shipped_code.py`, `hub_upload/`) and for what checks one.

The standard library alone: the process of `vidcom2 verify` cannot import `vidcom2`, and reads this file by its path.
"""

import ast
import hashlib
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

CONFIG, CARD, CUSTOM_GENERATE = "config.json", "README.md", "custom_generate"
INDEX, SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"
AUTO_MODEL_CLASSES = ("AutoModel", "AutoModelForImageTextToText", "AutoModelForMultimodalLM")
PIPELINE_TASK = "video-text-to-text"
LISTED = re.compile(r"^\| `([^`|]+)` \|(?: [\d,]+ \|)? `([0-9a-f]{64})` \|$", flags=re.MULTILINE)
# The last line of the process that checks; a repo's code may end that process at any time.
FINISHED = "all checks were made"


def listed_files(card: str) -> dict[str, str]:
    """Path -> sha256 of the files that a card lists."""
    return dict(LISTED.findall(card))


def import_closure(modules: Iterable[str], read: Callable[[str], str]) -> dict[str, str]:
    """Module -> source, of these modules and all that they import by `from .name import`, in alphabetical order.

    Args:
        read: gives the source of a module.
    """
    sources: dict[str, str] = {}
    to_visit = list(modules)
    while to_visit:
        module = to_visit.pop()
        if module not in sources:
            sources[module] = read(module)
            for node in ast.walk(ast.parse(sources[module])):
                if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is not None:
                    to_visit.append(node.module)
    return dict(sorted(sources.items()))


def weight_files(paths: Collection[str], read_json: Callable[[str], dict[str, Any]]) -> set[str]:
    """The files of weights that Transformers would load from these; they may be missing."""
    if SINGLE_FILE in paths or INDEX not in paths:
        return {SINGLE_FILE}
    return set((read_json(INDEX).get("weight_map") or {}).values())


def sha256_of(path: Path) -> str:
    """Of a file that may be too large to read at once."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
