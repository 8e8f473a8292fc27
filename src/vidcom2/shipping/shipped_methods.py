"""Which methods a repo holds, and how a user's own is saved with the model that uses it."""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from ..configuration.compression_settings import COMPRESSION_METHODS, TABLES
from .installed_packages import packages_distributions
from .shipped_files import ROOMS, shipped_files, shipped_paths

REGISTERED_METHODS = "registered_methods"  # the shipped file that imports the methods' files
RELATIVE_IMPORT = re.compile(r"^\s*(?:from|import)\s+\.\S*", flags=re.MULTILINE)
# Setting -> the functions that register a method.
REGISTERED_BY = {
    "compression_method": ("register_compression_method", "register_score_method"),
    "vision_method": ("register_vision_method",),
}
PACKAGE = __name__.partition(".")[0]


class UnshippableMethodError(ValueError):
    """Raised for a user's method that cannot be saved with a model."""


def sources_of_methods(held: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return the sources by which a repo's files differ from the checkout's: the file that imports the methods that
    the repo holds, and the users' modules among these.

    A user's module is unchanged except for its imports from `vidcom2`, which name the repo's own files instead.

    Args:
        held: setting -> the names of the methods that it may choose.

    Returns:
        Module -> source.

    Raises:
        UnshippableMethodError: if a module is no file, needs other files of the user, or has the name of one of ours.
    """
    sources: dict[str, str] = {}
    modules: set[str] = set()
    for setting, name in ((setting, name) for setting, names in held.items() for name in names):
        method = TABLES[setting][name]
        if method.function is None:  # `"full"`
            continue
        if method.own:
            modules.add(_own_module(method.function))
        else:
            module, source = _module_of_user(setting, name, method.function)
            if sources.setdefault(module, source) != source:
                raise UnshippableMethodError(
                    f"`{setting}={name!r}` cannot be saved with the model: another method's file is called "
                    f"{module}.py, too. Nothing was written. Rename one of them."
                )
            modules.add(module)
    return sources | {REGISTERED_METHODS: _registering(modules)}


def _registering(modules: Collection[str]) -> str:
    """Return the source of the file that imports the methods in these modules."""
    # Every module has a `__name__`. Importing it registers the method, and lets Transformers find the file.
    return (
        '"""The methods that this repo holds. Importing their files enters their functions into the tables\n'
        '(`compression_settings.py`)."""\n\n'
        + "".join(f"from .{module} import __name__ as {module}\n" for module in sorted(modules))
        + f"\nMETHODS = ({', '.join(sorted(modules))},)\n"
    )


def only_registers(content: bytes) -> bool:
    """Tell whether a file is what this project writes to import methods, whichever these are."""
    return content == _registering(re.findall(r"^from \.(\w+) import", content.decode(errors="replace"), re.M)).encode()


def _own_module(function: Callable[..., object] | None) -> str:
    """Return the shipped module of a method of this project."""
    return inspect.unwrap(cast(Any, function)).__module__.rpartition(".")[2]


def _module_of_user(setting: str, name: str, function: Callable[..., object]) -> tuple[str, str]:
    """Return the module of a user's method, and its source as a repo holds it."""

    def refused(reason: str) -> UnshippableMethodError:
        return UnshippableMethodError(
            f"`{setting}={name!r}` cannot be saved with the model: {reason} Nothing was written. Set another "
            "method before saving, or put the function into one file that imports what it needs from this project with "
            "`from vidcom2 import ...`."
        )

    function = inspect.unwrap(function)
    path = inspect.getsourcefile(function)
    if function.__module__ == "__main__" or path is None or not Path(path).is_file():
        raise refused(f"{function.__qualname__} is defined in a notebook, a script or on the fly, not in a module.")
    module = Path(path).stem
    if not module.isidentifier() or module == "__init__":
        raise refused(f"{path!r} does not have a name that a module can have.")
    if module in shipped_paths():
        raise refused(f"its file is called {module}.py, like one of this project's.")
    try:
        return module, _as_shipped(Path(path), name, REGISTERED_BY[setting])
    except (ValueError, SyntaxError) as error:  # a UnicodeDecodeError is a ValueError too
        raise refused(f"{path!r} {error}") from None


def _as_shipped(path: Path, method: str, registered_by: Sequence[str]) -> str:
    """Return a user's module with its imports from `vidcom2` as a repo needs them.

    Args:
        registered_by: the functions of which one must register the method.

    Raises:
        ValueError: on code that would not work in a repo. The message continues a sentence that begins with the path.
    """
    source = path.read_text(encoding="utf-8-sig")
    tree, lines = ast.parse(source), source.split("\n")
    shipped: list[str | None] = [*lines]
    installed = packages_distributions()
    if line := RELATIVE_IMPORT.search(source):  # even in a docstring, because Transformers searches the text
        raise ValueError(f"imports from files beside it, or seems to, by {line[0].strip()!r}.")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        for name in names:
            top = name.partition(".")[0]
            if top == PACKAGE and isinstance(node, ast.Import):
                raise ValueError(f"has `import {PACKAGE}` in line {node.lineno}, but a repo has no such package.")
            if top != PACKAGE and top not in sys.stdlib_module_names and top not in installed:
                raise ValueError(f"imports {name!r} in line {node.lineno}, which belongs to no installed package.")
        if not isinstance(node, ast.ImportFrom) or names[0].partition(".")[0] != PACKAGE:
            continue
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        indent = lines[first].encode()[: node.col_offset].decode()
        rest = lines[last].encode()[node.end_col_offset :].decode().strip()
        if indent.strip() or (rest and not rest.startswith("#")):
            raise ValueError(f"has more than an import in line {node.lineno}. Give the import a line of its own.")
        imports = []
        for alias in node.names:
            module = _defining_module(names[0], alias.name)
            renamed = f" as {alias.asname}" if alias.asname else ""
            imports.append(f"{indent}from .{module} import {alias.name}{renamed}")
        # An import's further lines become None rather than vanish, so that the line numbers of other nodes stay right.
        shipped[first : last + 1] = ["\n".join(imports), *[None] * (last - first)]
    if not any(_registers(node, method, registered_by) for node in ast.walk(tree)):
        ways = " or ".join(f"`{way}({method!r})`" for way in registered_by)
        raise ValueError(f"does not register it with {ways}.")
    return "\n".join(line for line in shipped if line is not None)


def _registers(node: ast.AST, method: str, registered_by: Sequence[str]) -> bool:
    """Return whether `node` is a call of one of these functions that registers the method."""
    if not isinstance(node, ast.Call) or getattr(node.func, "id", None) not in registered_by:
        return False
    given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "name")]
    return any(isinstance(value, ast.Constant) and value.value == method for value in given)


def _defining_module(package: str, name: str) -> str:
    """Return the shipped module that defines what a user imports from `vidcom2` or from one of its modules."""
    module = _exported().get(name, "") if package == PACKAGE else package.removeprefix(f"{PACKAGE}.")
    room, module = module.partition(".")[0], module.rpartition(".")[2]
    # Any other module would import the config, which in a repo is what imports the user's methods.
    if room not in ROOMS or f"{module}.py" not in _of_methods():
        raise ValueError(f"imports {name!r} from {package!r}, which a method in a repo cannot import.")
    return module


@cache
def _of_methods() -> frozenset[str]:
    """Return the names of the shipped files that methods are made of, and of those that register them."""
    files = (_own_module(method.function) for method in COMPRESSION_METHODS.values() if method.own)
    return frozenset(shipped_files("users_methods", *files)) | {"users_vision_methods.py"}


@cache
def _exported() -> dict[str, str]:
    """Return name that `vidcom2` exports -> module that defines it."""
    stub = ast.parse((Path(__file__).parents[1] / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}
