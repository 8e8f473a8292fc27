"""Identifying a model, a video and an imported file, so that answers are never reused for another one.

A name does not suffice: two training runs may both end in a folder `final`. Nothing here imports PyTorch.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from dis import get_instructions
from functools import lru_cache, partial
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from ..checks import local_path
from ..errors import CheckpointError
from ..repo_shape import sha256_of
from ..toys import TOYS

if TYPE_CHECKING:
    from ..loading.finding_checkpoints import Source

# Files that Transformers reads from a checkpoint's folder: config, weights and their index, tokenizer, processor, chat
# template and code.
MODEL_SUFFIXES = (".bin", ".jinja", ".json", ".model", ".py", ".safetensors", ".tiktoken", ".txt")
CHAT_TEMPLATES = "additional_chat_templates"
RECORD_SUFFIX = ".run.json"  # of `vidcom2 run`, whose answers may lie in the model's folder
HASHED_BYTES = 32 * 2**20  # a larger file is sampled, since reading all of it takes as long as loading it
SAMPLES, SAMPLE_BYTES = 32, 64 * 2**10
CONTENT = ", content "  # what precedes the digest of a video's content in its stamp
PACKAGE = __name__.partition(".")[0] + "."
# What Python 3.13 and newer note about a class: its line, and the attributes that its methods set, in a random order.
NOTED = frozenset({"__firstlineno__", "__static_attributes__"})


def identity_of(source: "Source") -> dict[str, Any]:
    """Return what identifies a model: what `folder_identity` returns; for a Hub repo, `model` is its id, and its
    `model_commit` replaces the fingerprints. The identity of an adapter holds that of its `base`."""
    if source.commit is None:
        own = folder_identity(Path(source.path))
    else:  # which determines all files
        own = {"model": source.path, "model_commit": source.commit, "model_files": None, "model_times": None}
    if source.base is None:
        return own
    base = identity_of(source.base)
    return own | {"model": f"{own['model']} on {base['model']}", "base": base}


def folder_identity(folder: Path) -> dict[str, Any]:
    """Return `model`, the folder's resolved path; `model_files`, the `digest` of the files in it; and `model_times`, a
    digest of when the large ones were last changed.

    The path and the times are part of the identity, since large weights are only sampled: a folder that was moved or
    copied counts as another model. A toy is the same wherever the package is installed, since all of its files are
    hashed in full.
    """
    toys = {toy.folder: toy.title for toy in TOYS.values()}
    name = toys.get(folder) or str(folder.resolve())
    files = model_files(folder)
    try:
        return {"model": name, "model_commit": None, "model_files": digest(files), "model_times": _times(files)}
    except OSError as error:
        raise CheckpointError(f"cannot read the model {str(folder)!r}: {error}.") from error


def model_files(folder: Path) -> dict[str, Path]:
    """Return the files that Transformers reads from a checkpoint's folder, by their paths in it."""
    files = [path for place in (folder, folder / CHAT_TEMPLATES) if place.is_dir() for path in place.iterdir()]
    return {
        path.relative_to(folder).as_posix(): path
        for path in files
        if path.suffix in MODEL_SUFFIXES and path.is_file() and not path.name.endswith(RECORD_SUFFIX)
    }


def check_loaded(identity: Mapping[str, Any] | None, arguments: Mapping[str, Any]) -> None:
    """Check that the model which was loaded is the one that was identified for a run's arguments before.

    Raises:
        CheckpointError: if it was replaced in the meantime.
    """
    if identity is None or any(arguments[name] != value for name, value in identity.items()):
        raise CheckpointError(f"the model {arguments['model']!r} was changed while it was loading. Start again.")


def certificate_of(identity: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a result file says about the model besides its name: `model_commit` and `model_files`, and the same
    of an adapter's `base`. The dict is empty if the model's source is not known."""
    if identity is None:
        return {}
    certificate = {name: identity[name] for name in ("model_commit", "model_files")}
    return certificate | ({"base": certificate_of(identity["base"])} if "base" in identity else {})


def digest(files: Mapping[str, Path]) -> str:
    """Return a fingerprint of the contents of files, regardless of where they lie and when they were copied there."""
    return hashlib.sha256("\n".join(f"{name} {_content(files[name])}" for name in sorted(files)).encode()).hexdigest()


def _content(path: Path) -> str:
    """Return a file's sha256 or, for a large file, the sha256 of samples from all over it and its size."""
    size = path.stat().st_size
    if size <= HASHED_BYTES:
        return f"sha256 {sha256_of(path)}"
    samples = hashlib.sha256()
    with path.open("rb") as file:
        for i in range(SAMPLES):
            file.seek(i * max(0, size - SAMPLE_BYTES) // (SAMPLES - 1))
            samples.update(file.read(SAMPLE_BYTES))
    return f"samples {samples.hexdigest()[:16]}, {size} bytes"


def _times(files: Mapping[str, Path]) -> str | None:
    """Return a digest of when the large files were changed, whose contents are only sampled; None if there are none."""
    of_large = [f"{name} {stamp(path)}" for name, path in sorted(files.items()) if path.stat().st_size > HASHED_BYTES]
    return hashlib.sha256("\n".join(of_large).encode()).hexdigest()[:16] if of_large else None


def stamp(path: Path) -> str:
    """Return a file's size and the time of its last change, which need no reading of the file."""
    status = path.stat()
    changed = datetime.fromtimestamp(status.st_mtime, timezone.utc)
    return f"{status.st_size} bytes of {changed.isoformat(timespec='microseconds')}"


def video_stamp(source: object) -> str | None:
    """Return the `stamp` of a video file, or one of all pictures of a list; None for a URL, frames already read, and
    where there is no file."""
    try:
        stamps = [stamp(path) for path in _files_of(source)]
    except (OSError, ValueError):  # reading the video will report it
        return None
    if not stamps or not isinstance(source, list | tuple):
        return stamps[0] if stamps else None
    return f"{len(stamps)} pictures, {hashlib.sha256(' '.join(stamps).encode()).hexdigest()[:16]}"


def _files_of(source: object) -> list[Path]:
    """Return the files of a video that are on this machine: one, or its pictures."""
    names = source if isinstance(source, list | tuple) else [source]
    paths = [local_path(fspath(name)) for name in names if isinstance(name, str | PathLike)]
    return [Path(path) for path in paths if path]


def stamp_of_content(source: object, before: str | None) -> str | None:
    """Return the stamp of a video that was read, with a digest of its content, by which a copy is known. A file that
    has changed since `before`, its `video_stamp` then, keeps that stamp."""
    try:
        content = _content_of_video(source)
    except (OSError, ValueError):
        return before
    return before if before is None or video_stamp(source) != before else f"{before}{CONTENT}{content}"


def without_content(video_file: str) -> str:
    """Return the size and the time in a stamp, as messages show them."""
    return video_file.partition(CONTENT)[0]


def _content_of_video(source: object) -> str:
    """Return a digest of a video's content. Raises an OSError on what is no ordinary file, such as a pipe, of which
    nothing is read."""
    contents = []
    for path in _files_of(source):
        if not path.is_file():
            raise OSError(f"{path} is no ordinary file")
        status = path.stat()
        contents.append(_known_content(path, status.st_size, status.st_mtime_ns))
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()[:16]


@lru_cache(maxsize=2**17)
def _known_content(path: Path, size: int, changed: int) -> str:
    """Return `_content` of a file, which is read once however many requests are about it."""
    return _content(path)


def video_place(source: str) -> str:
    """Return where a video is, whatever name leads there: the resolved path of a file, or a URL unchanged."""
    path = local_path(source)
    return source if path is None else str(Path(path).resolve())


def stamped(source: Any) -> tuple[str | list[str], str] | None:
    """Return a video's absolute path, or those of a list of pictures, with its `video_stamp`, which is taken before it
    is read; None where there is no file."""
    now = video_stamp(source)
    if now is None:
        return None
    names = source if isinstance(source, list | tuple) else [source]
    paths = [name if (path := local_path(fspath(name))) is None else str(Path(path).absolute()) for name in names]
    return (paths if names is source else paths[0]), now


def video_changed(before: str | None, now: str | None, source: object = None) -> bool:
    """Tell whether a video file has changed since an answer. An answer about a file that is gone is still its answer.

    Args:
        before: the file's stamp of then, which may have a digest of its content.
        now: its `video_stamp`.
        source: the video. Its content is read where only the times differ, as those of a copy do.
    """
    if not isinstance(before, str) or now is None:
        return False
    then, _, content = before.partition(CONTENT)
    if then == now:
        return False
    sizes = [each.partition(" bytes of ")[:2] for each in (then, now)]
    if all(is_file for _, is_file in sizes) and sizes[0] != sizes[1]:
        return True
    try:
        return not content or source is None or _content_of_video(source) != content
    except (OSError, ValueError):
        return True


def module_files(module: str) -> dict[str, Path]:
    """Return what `--import` imported: a file, a module's file, or all files of a package, by their names.

    The modules that these import in turn are not included.

    Args:
        module: the name or the file as it was given.
    """
    path = Path(module).expanduser()
    if path.suffix != ".py":
        source = sys.modules[module].__file__
        if source is None:
            return {}
        path = Path(source)
    if path.name != "__init__.py":
        return {path.name: path}
    root = path.parent.parent
    return {each.relative_to(root).as_posix(): each for each in path.parent.rglob("*.py")}


def code_digest(value: Any) -> str:
    """Return a fingerprint of what a function or an object does: its code, the values that are bound to it, and the
    functions, objects and values of its own module that it names, in turn. It is the same in another process of this
    version of Python.

    Lists and the like are left out, since they may change while it runs, and so are the modules that it imports. Of
    this package, whose version a run notes, only the bound values are described.
    """
    return hashlib.sha256("\n".join(_parts(value, None, {})).encode()).hexdigest()[:16]


def _parts(value: Any, home: str | None, seen: dict[int, int]) -> Iterator[str]:
    """Yield what a value consists of. `home` is the module of what holds it, and `seen` numbers what was described."""
    inner: Iterable[Any] = ()
    if _is_plain(value):
        yield f"{value!r} {getattr(value, 'pattern', '')}"  # of a long regular expression, the repr is cut
    elif isinstance(value, tuple | frozenset):
        inner = value if isinstance(value, tuple) else sorted(value, key=repr)
    elif id(value) in seen:
        yield f"number {seen[id(value)]}"
    elif isinstance(value, property):
        inner = (value.fget,)
    elif isinstance(value, partial):
        inner = (value.func, *_leaves((value.args, value.keywords)))
    elif isinstance(value, MethodType | staticmethod | classmethod):
        inner = (value.__func__, getattr(value, "__self__", None))
    elif isinstance(value, FunctionType):
        seen[id(value)] = len(seen)
        home = value.__globals__.get("__name__")  # `__module__` may be that of a function which this one wraps
        inner = [cell.cell_contents for cell in value.__closure__ or ()]
        if str(home).startswith(PACKAGE):
            yield f"{home}.{value.__qualname__}"
        else:
            codes = [*_codes(value.__code__)]
            named = (value.__globals__.get(name) for code in codes for name in code.co_names)
            inner += [value.__defaults__, *sorted((value.__kwdefaults__ or {}).items())]
            inner += [part for code in codes for part in (code.co_code, code.co_names, *_constants(code))]
            inner += [each for each in named if _is_own(each, home)]
    elif callable(value) or home in (None, type(value).__module__):  # an object, a class, or what is written in C
        seen[id(value)] = len(seen)
        yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
        home, inner = (value if isinstance(value, type) else type(value)).__module__, _attributes(value)
    for each in inner:
        yield from _parts(each, home, seen)


def _is_plain(value: Any) -> bool:
    """Tell whether a value never changes and its repr says all, as of a number, a path or a dtype."""
    if isinstance(value, str | bytes):
        return True
    composed = hasattr(value, "__dict__") or callable(value) or isinstance(value, tuple | frozenset)
    return not composed and type(value).__hash__ is not None and " at 0x" not in repr(value)


def _is_own(value: Any, home: str | None) -> bool:
    """Tell whether what a module's code names belongs to it, or holds values that do."""
    data = _is_plain(value) or isinstance(value, tuple | partial)
    return data or (getattr(value, "__module__", None) in (None, home) and not isinstance(value, ModuleType))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and that of the functions in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _constants(code: CodeType) -> list[Any]:
    """Return a code's constants. Of a class in a function, those are left out that Python 3.13 notes about its text."""
    steps = pairwise(get_instructions(code)) if NOTED.intersection(code.co_names) else ()
    noted = {step.arg for step, then in steps if then.opname == "STORE_NAME" and then.argval in NOTED}
    return [constant for i, constant in enumerate(code.co_consts) if i not in noted]


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what lists, dicts and sets hold, however deep they are, and the kind and the size of each of them."""
    held: Iterable[Any]
    if isinstance(value, Mapping):
        held = (part for key in sorted(value, key=repr) for part in (key, value[key]))
    elif isinstance(value, list | tuple | set | frozenset):
        held = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
    else:
        yield value
        return
    yield f"{type(value).__name__} {len(value)}"
    for each in held:
        yield from _leaves(each)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's attributes, and those of its class and the bases that are in the module of its class."""
    kind = value if isinstance(value, type) else type(value)
    yield from sorted(getattr(value, "__members__", {}).items())  # of an enumeration
    for owner in (value, *(each for each in kind.__mro__ if each.__module__ == kind.__module__)):
        for name, each in sorted(getattr(owner, "__dict__", {}).items()):
            if name in NOTED:
                continue
            each = getattr(value, name, None) if isinstance(each, MemberDescriptorType) else each
            if isinstance(each, FunctionType | staticmethod | classmethod | property) or _is_own(each, kind.__module__):
                yield name, each
