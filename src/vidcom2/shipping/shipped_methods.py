"""A compression method of the user's own goes along with the model that uses it, so that the repo loads by itself."""

import ast
import inspect
import re
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from ..configuration.compression_methods import COMPRESSION_METHODS
from .shipped_files import ROOMS, shipped_files, source_of

REGISTERED_METHODS = "registered_methods.py"  # the shipped file that imports what goes along
RELATIVE_IMPORT = re.compile(r"^\s*(?:from|import)\s+\.\S*", flags=re.MULTILINE)
REGISTERED_BY = ("register_compression_method", "register_score_method")
PACKAGE = __name__.partition(".")[0]


class UnshippableMethodError(ValueError):
    """A method that cannot go along with a model."""


def code_of_method(name: str) -> dict[str, bytes]:
    """The files with which a repo loads the method; none for one of this project's own.

    They are the user's module, as it is but for its imports from `vidcom2`, whose files a repo has of its own; these
    files; and one that imports the module.

    Raises:
        UnshippableMethodError: if the module is no file, needs other files of the user, or is named like one of ours.
    """
    function = COMPRESSION_METHODS[name].function
    if isinstance(function, str):
        return {}

    def refused(reason: str) -> UnshippableMethodError:
        return UnshippableMethodError(
            f"`compression_method={name!r}` cannot be saved with the model: {reason} Nothing was written. Set another "
            "method before saving, or put the function into one file that imports what it needs of this project as "
            "`from vidcom2 import ...`."
        )

    function = inspect.unwrap(function)
    path = inspect.getsourcefile(function)
    if function.__module__ == "__main__" or path is None or not Path(path).is_file():
        raise refused(f"{function.__qualname__} is defined in a notebook, a script or on the fly, not in a module.")
    module = Path(path).stem
    if not module.isidentifier():
        raise refused(f"{path!r} is not named as a module can be.")
    try:
        source_of(module)
    except FileNotFoundError:
        pass
    else:
        raise refused(f"its file is called {module}.py, like one of this project's.")
    try:
        source, needed = _as_shipped(Path(path), name)
    except (ValueError, SyntaxError) as error:  # also of text that is not UTF-8
        raise refused(f"{path!r} {error}") from None
    # `__name__` is what any module has; its import is what registers the method, and what Transformers follows.
    registering = (
        '"""Compression methods that came with this model."""\n\n'
        f"from .{module} import __name__ as {module}\n\nMETHODS = ({module},)\n"
    )
    shipped = {f"{module}.py": source.encode(), REGISTERED_METHODS: registering.encode()}
    return shipped_files(*needed) | shipped


def _as_shipped(path: Path, method: str) -> tuple[str, list[str]]:
    """A user's module with its imports from `vidcom2` as a repo has them, and the modules that these are from.

    Raises:
        ValueError: on what would not work in a repo.
    """
    source = path.read_text(encoding="utf-8-sig")
    tree, lines, needed = ast.parse(source), source.split("\n"), []
    shipped: list[str | None] = [*lines]
    installed = packages_distributions()
    if line := RELATIVE_IMPORT.search(source):  # also in a docstring: Transformers looks for them in the text
        raise ValueError(f"imports from files beside it, or seems to, by {line[0].strip()!r}.")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        for name in names:
            top = name.partition(".")[0]
            if top == PACKAGE and isinstance(node, ast.Import):
                raise ValueError(f"has `import {PACKAGE}` in line {node.lineno}, and a repo has no such package.")
            if top != PACKAGE and top not in sys.stdlib_module_names and top not in installed:
                raise ValueError(f"imports {name!r} in line {node.lineno}, which is of no installed package.")
        if not isinstance(node, ast.ImportFrom) or names[0].partition(".")[0] != PACKAGE:
            continue
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        indent = lines[first].encode()[: node.col_offset].decode()
        rest = lines[last].encode()[node.end_col_offset :].decode().strip()
        if indent.strip() or (rest and not rest.startswith("#")):
            raise ValueError(f"has more than an import in line {node.lineno}: give that a line of its own.")
        imports = []
        for alias in node.names:
            module = _module_of(names[0], alias.name)
            needed.append(module)
            renamed = f" as {alias.asname}" if alias.asname else ""
            imports.append(f"{indent}from .{module} import {alias.name}{renamed}")
        # None for what the import stood on, so that the lines of other nodes count as before.
        shipped[first : last + 1] = ["\n".join(imports), *[None] * (last - first)]
    if not any(_registers(node, method) for node in ast.walk(tree)):
        ways = " or ".join(f"`{way}({method!r})`" for way in REGISTERED_BY)
        raise ValueError(f"does not register it by {ways}.")
    return "\n".join(line for line in shipped if line is not None), needed


def _registers(node: ast.AST, method: str) -> bool:
    """Whether it is a call `register_compression_method(method, ...)`, or one of the other way to register."""
    if not isinstance(node, ast.Call) or getattr(node.func, "id", None) not in REGISTERED_BY:
        return False
    given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "name")]
    return any(isinstance(value, ast.Constant) and value.value == method for value in given)


def _module_of(package: str, name: str) -> str:
    """The shipped module that has what a user imports from `vidcom2`, or from a module of it."""
    module = _exported().get(name, "") if package == PACKAGE else package.removeprefix(f"{PACKAGE}.")
    room, module = module.partition(".")[0], module.rpartition(".")[2]
    # Others would import the config, which is what imports the methods.
    if room not in ROOMS or f"{module}.py" not in _of_methods():
        raise ValueError(f"imports {name!r} from {package!r}, which methods in a repo cannot have.")
    return module


@cache
def _of_methods() -> frozenset[str]:
    """The shipped files that `compress` is made of, and that register a method."""
    return frozenset(shipped_files("compression", "score_methods"))


@cache
def _exported() -> dict[str, str]:
    """Name that `vidcom2` exports -> module that has it."""
    stub = ast.parse((Path(__file__).parents[1] / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}
