"""The rooms of the code, and that each imports only from rooms below it."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from vidcom2.families.table import FAMILIES

ROOT = Path(__file__).parents[1]
# From the ground up, as docs/architecture.md draws them. A room imports only from those before it. A dot in front marks
# a file of the ground floor.
ROOMS = (
    *("configuration", "modeling.methods", "modeling.hosting", "modeling.encoding", "modeling.prompt"),
    *("modeling.families", "modeling", ".errors", ".own_version", "families", "vllm_plugin"),
    *(".repo_shape", ".checks", ".toys", ".presets", "tiny", "video", "records", "shipping", "loading"),
    *("asking", "live", "judging", "bulk", "evaluation", "measuring", "explaining", "demo"),
    *("conventions", "llava_video", "hub_upload", "cli", ".__main__"),
)
TOPS = {"": ROOT / "src" / "vidcom2"} | {
    f"{name}.": ROOT / name for name in ("modeling", "configuration", "hub_upload")
}


def modules() -> dict[str, Path]:
    """Return the file of each dotted name below `vidcom2`."""
    found = {}
    for prefix, top in TOPS.items():
        for path in top.rglob("*.py"):
            parts = path.relative_to(top).with_suffix("").parts
            if not (prefix == "" and f"{parts[0]}." in TOPS):
                found[prefix + ".".join(parts).removesuffix(".__init__").replace("__init__", "")] = path
    return found


MODULES = modules()
# Configs check that the methods that they name are here, and processors count by them. The list of those that are here
# lies above both, since it names the methods of every room.
EXCEPTIONS = {
    ("configuration.family_config", "modeling.registered_methods"),
    ("modeling.prompt.processing_short_prompts", "modeling.registered_methods"),
}


def room_of(module: str) -> str:
    parts = module.split(".")
    if parts[0] == "modeling":
        return ".".join(parts[: min(2, max(1, len(parts) - 1))])
    is_room = MODULES[module].name == "__init__.py" or len(parts) > 1
    return parts[0] if is_room else f".{module}"


@cache
def imports(module: str) -> list[str]:
    """Return what a module imports when it runs. Imports for type checkers do not count."""
    path = MODULES[module]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and id(node) not in for_types]
    bases = ((node, package[: len(package) - node.level + 1]) for node in nodes if node.level)
    return [".".join([*base, *([node.module] if node.module else [])]) for node, base in bases]


def test_a_room_imports_only_from_rooms_below_it() -> None:
    found = {(module, imported) for module in MODULES if module for imported in imports(module)}
    upward = {each for each in found if ROOMS.index(room_of(each[1])) > ROOMS.index(room_of(each[0]))}
    assert upward <= EXCEPTIONS, sorted(upward - EXCEPTIONS)


def test_no_files_import_each_other_in_a_circle() -> None:
    needs = {name: {each for each in imports(name) if each in MODULES} for name in MODULES}
    TopologicalSorter(needs).prepare()  # raises a CycleError that names the circle


def test_every_file_has_a_room() -> None:
    assert {room_of(name) for name in MODULES if name} <= set(ROOMS)
    assert {path.name for path in TOPS[""].glob("*.py")} == {"__init__.py"} | {
        f"{room[1:]}.py" for room in ROOMS if room.startswith(".")
    }


def test_the_docs_name_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert not [room for room in ROOMS if f"`{room.lstrip('.').replace('.', '/')}" not in text]


# The tables in which a row is a family, and the code of one family alone.
OF_FAMILIES = (
    *("families.", "toys.", "tiny.", "llava_video."),
    *("modeling.families.", "configuration.configuration_", "vllm_plugin."),
)
SHARED_IN_VLLM = {f"vllm_plugin.{name}" for name in ("settings", "compressed_videos", "separate_frames", "compat")}


def test_shared_code_does_not_ask_for_a_family_by_name() -> None:
    """What differs between families is said by hooks and by the fields of `Family`."""
    names = {name for row in FAMILIES.values() for name in (row.model_type, row.part_of, row.module, row.name) if name}
    asked = [
        (module, node.value)
        for module, path in MODULES.items()
        if module in SHARED_IN_VLLM or not f"{module}.".startswith(OF_FAMILIES)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert asked == []
