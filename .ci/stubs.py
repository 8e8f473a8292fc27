"""Writes what follows from the rows of `table.py`: what type checkers read of the families whose modules are written
from them (`families/classes.pyi`, and names in `__init__.pyi`), and the list of families in README. The
tables of the docs are written by `pages.py`.

    python .ci/stubs.py
"""

import re
import subprocess
import sys
from pathlib import Path

from vidcom2.families.sources import written_families
from vidcom2.families.table import FAMILIES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "vidcom2"
SHOWN = 9  # families that README lists before it folds the list
CLASSES, EXPORTS = PACKAGE / "families" / "classes.pyi", PACKAGE / "__init__.pyi"


def stubs() -> dict[Path, str]:
    """Return the text of each stub file, before ruff sorts and wraps it."""
    written = written_families()
    imports = [
        "from ..configuration.family_config import FamilyConfig",
        "from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin",
    ]
    classes = []
    for family in written:
        ours, stock = family.classes, family.stock_model
        for name in (f"{family.stock}Config", f"{stock}Model", f"{stock}ForConditionalGeneration"):
            place = f".models.{family.module}.modeling_{family.module}" if name in family.not_exported else ""
            imports.append(f"from transformers{place} import {name}")
        mixins = {each: each.rpartition(".")[::2] for each in (*family.mixins, *family.head_mixins)}
        imports += [f"from ..modeling.families.{module} import {name}" for module, name in mixins.values()]
        of_model, of_head = (
            "".join(f"{mixins[each][1]}, " for each in group) for group in (family.mixins, family.head_mixins)
        )
        classes.append(f"""
class {ours}Config(FamilyConfig, {family.stock}Config): ...
class {ours}Model({of_model}{stock}Model):
    config: {ours}Config
class {ours}ForConditionalGeneration({of_head}VidCom2GenerationMixin, {stock}ForConditionalGeneration):
    config: {ours}Config
""")
    names = sorted(name for family in written for name in family.class_names)
    exports = EXPORTS.read_text(encoding="utf-8")
    before = re.search(r"^from \.families\.classes import \(\n.*?^\)\n", exports, flags=re.MULTILINE | re.DOTALL)
    ours = f"from .families.classes import ({', '.join(names)})\n"
    exports = exports.replace(before[0], ours) if before else exports.replace("from .live.", f"{ours}from .live.", 1)
    listed = re.search(r"^__all__ = \[\n(.*?)^\]", exports, flags=re.MULTILINE | re.DOTALL)
    assert listed is not None
    kept = {name for name in re.findall(r'"(\w+)"', listed[1]) if not _was_written(name, before[0] if before else "")}
    exports = exports.replace(listed[0], f"__all__ = {sorted(kept | {*names})!r}")
    title = '"""Written by `.ci/stubs.py` from the rows of `table.py`."""\n\n'
    return {CLASSES: title + "\n".join(dict.fromkeys(imports)) + "\n" + "".join(classes), EXPORTS: exports}


def _was_written(name: str, block: str) -> bool:
    return re.search(rf"\b{name}\b", block) is not None


def pages() -> dict[Path, str]:
    """Return the text of each page that lists the families."""
    families = list(FAMILIES.values())
    listed = [f"- {each.name}: {each.checkpoints or f'type `{each.model_type}`'}" for each in families]
    folded = [f"<details><summary>{len(families) - SHOWN} more</summary>", "", *listed[SHOWN:], "", "</details>"]
    blocks = {"README.md": [*listed[:SHOWN], "", *folded]}
    made = {}
    for name, lines in blocks.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        before, mark, rest = text.partition("<!-- families -->\n")
        made[ROOT / name] = before + mark + "\n".join(lines) + "\n<!-- end -->" + rest.partition("<!-- end -->")[2]
    return made


def ruff(path: Path, text: str) -> str:
    """Return a text as ruff sorts and wraps it."""
    for command in (["check", "-q", "--fix-only"], ["format", "-q"]):
        arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(ruff(path, text), encoding="utf-8")
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
