"""A compression method of the user's own goes along with the model that uses it, so that the repo loads by itself."""

import ast
import inspect
from functools import cache
from pathlib import Path

from .configuration.compression_methods import COMPRESSION_METHODS
from .shipped_files import ROOMS, shipped_files, source_of

REGISTERED_METHODS = "registered_methods.py"  # the shipped file that imports what goes along
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
    if function is None:
        return {}

    def refused(reason: str) -> UnshippableMethodError:
        return UnshippableMethodError(
            f"`compression_method={name!r}` cannot be saved with the model: {reason} Nothing was written. Set another "
            "method before saving, or put the function into one file that imports what it needs of this project as "
            "`from vidcom2 import ...`."
        )

    path = inspect.getsourcefile(inspect.unwrap(function))
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
        source, needed = _as_shipped(Path(path))
    except ValueError as error:
        raise refused(f"{path!r} {error}") from None
    registering = (
        '"""Compression methods that came with this model."""\n\n'
        f"from .{module} import {function.__name__}\n\nMETHODS = ({function.__name__},)\n"
    )
    shipped = {f"{module}.py": source.encode(), REGISTERED_METHODS: registering.encode()}
    return shipped_files(*needed) | shipped


def _as_shipped(path: Path) -> tuple[str, list[str]]:
    """A user's module with its imports from `vidcom2` as a repo has them, and the modules that these are from.

    Raises:
        ValueError: on an import that a repo cannot have.
    """
    source = path.read_text(encoding="utf-8")
    lines, needed = source.splitlines(keepends=True), []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        of_module = node.module or "." if isinstance(node, ast.ImportFrom) else ""
        for name in [of_module] if of_module else [alias.name for alias in node.names]:
            top = name.partition(".")[0]
            if getattr(node, "level", 0) or (path.parent / f"{top}.py").is_file() or (path.parent / top).is_dir():
                raise ValueError(f"imports {name!r} in line {node.lineno}, a file beside it that would not go along.")
            if top == PACKAGE and not of_module:
                raise ValueError(f"has `import {PACKAGE}` in line {node.lineno}, and a repo has no such package.")
        if of_module.partition(".")[0] != PACKAGE:
            continue
        indent = lines[node.lineno - 1][: node.col_offset]
        imports = []
        for alias in node.names:
            module = _module_of(of_module, alias.name)
            needed.append(module)
            renamed = f" as {alias.asname}" if alias.asname else ""
            imports.append(f"{indent}from .{module} import {alias.name}{renamed}\n")
        lines[node.lineno - 1] = "".join(imports)
        for number in range(node.lineno, node.end_lineno or node.lineno):
            lines[number] = ""
    return "".join(lines), needed


def _module_of(package: str, name: str) -> str:
    """The shipped module that has what a user imports from `vidcom2`, or from a module of it."""
    module = _exported().get(name, "") if package == PACKAGE else package.removeprefix(f"{PACKAGE}.")
    room, _, module = module.partition(".")
    if room not in ROOMS or not module:
        raise ValueError(f"imports {name!r} from {package!r}, which repos do not hold.")
    return module


@cache
def _exported() -> dict[str, str]:
    """Name that `vidcom2` exports -> module that has it."""
    stub = ast.parse(Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}
