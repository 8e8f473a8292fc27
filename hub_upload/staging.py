"""Making in a folder what a repo will hold. Nothing in this file talks to the Hub."""

import json
import os
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..configuration.compression_settings import VISION_METHODS
from ..configuration.family_config import FamilyConfig
from ..errors import CheckpointError
from ..families import FAMILIES
from ..finding_checkpoints import read_object
from ..processors import foreign_processor, processor_fields
from ..repo_shape import CARD, CONFIG, sha256_of
from ..shipping.shipped_code import LICENSE, code_of, fields_of, license_file
from .base_checkpoint import SETTINGS, Base
from .model_card import FIGURE, CardOptions, model_card

PROCESSOR = "processor_config.json"


class StagingError(ValueError):
    """Raised for a folder that cannot be used for staging."""


@dataclass(frozen=True)
class StagedRepo:
    """A repo that was made in a folder.

    Attributes:
        folder: the folder, which holds all files except the weights.
        files: the paths of these files.
        base: the base, which has the weights; None for a repo without weights.
        repo_type: "model" or "space", as the Hub calls it.
    """

    folder: Path
    files: tuple[str, ...]
    base: Base | None = None
    repo_type: str = "model"


def stage(
    base: Base, folder: Path, settings: Mapping[str, Any], card: CardOptions, more_methods: Collection[str] = ()
) -> StagedRepo:
    """Make a model repo from a base checkpoint: its files, the code, config.json and the card. The weights stay where
    they are.

    Args:
        folder: a folder that does not exist yet.
        settings: settings that replace the base's own, or the defaults where the base has none.
        more_methods: methods that the repo holds beside VidCom² and those of its settings.

    Raises:
        CheckpointError: if VidCom² has no class for the base, if a setting is outside its accepted set, or if the
            family's vision tower cannot run one of `more_methods`.
        OptionError: if a setting belongs only to other families.
        UnshippableMethodError: if the method is a user's and cannot be saved with a model.
        StagingError: if the folder exists, or cannot be written. What was written is removed.
    """
    model_class = base.family.model_class
    config = base.config | base.settings(settings)
    for name in more_methods:
        if name in VISION_METHODS:
            base.settings({**settings, "vision_method": name, "vision_tolerance": 0.0})  # refuses it for other towers
    methods = config["compression_method"], config["vision_method"]
    code = code_of(model_class, *methods, more_methods)
    config |= fields_of(model_class, code)
    with new_folder(folder):
        for file in base.files:
            if not file.is_weights:
                _write((base.folder / file.path).read_bytes(), folder / file.path)
        _write((json.dumps(config, indent=2) + "\n").encode(), folder / CONFIG)
        _write(FIGURE.read_bytes(), folder / FIGURE.name)
        changed = _settle(model_class.config_class, folder, processor_fields(SimpleNamespace(**config)))
        base = replace(base, files=tuple(file for file in base.files if file.path not in changed))
        files = [(path, sha256_of(folder / path)) for path in (CONFIG, *changed)]
        files += write_code(code, folder)
        model_card(base, config, files, code, card, more_methods).save(folder / CARD)
        return StagedRepo(folder, staged_files(folder), base)


def complete(staged: StagedRepo) -> str:
    """Let a staged folder load, if the weights are on this machine: links lead to them.

    Returns:
        One sentence on the weights.

    Raises:
        StagingError: if the folder cannot be written.
    """
    folder, base, missing = staged.folder, staged.base, []
    if base is None:
        return "It is complete, because such a repo has no weights."
    with _writing(folder):
        for weights in base.weights:
            source = (base.folder / weights.path).absolute()
            if source.is_file():
                (folder / weights.path).symlink_to(source)
            else:
                missing.append(weights.path)
    if not missing:
        return "It loads as it is, because its weights are links to those of the base."
    return (
        f"It lacks the weights, which stay on the Hub. To load it, fetch them with `hf download {base.name} "
        f"{' '.join(missing)} --revision {base.revision} --local-dir {shlex.quote(str(folder))}`."
    )


def check_new(folder: Path) -> None:
    """Raise a StagingError if something has this name already, perhaps of another process that stages."""
    if folder.exists() or folder.is_symlink():
        raise StagingError(f"{str(folder)!r} exists already. Name a new folder with `--output`, or remove it.")


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Leave a complete folder that was not there before, or none."""
    check_new(folder)
    with _writing(folder):
        folder.mkdir(parents=True)  # fails if another process was faster
        try:
            yield
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn an error of the file system, such as a full disk or a missing right, into a StagingError."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # the error is not the file system's
            raise
        text = f"cannot write {str(folder)!r}: {os.strerror(error.errno)}. Choose another folder."
        raise StagingError(text) from error


def write_code(code: Mapping[str, bytes], folder: Path) -> list[tuple[str, str]]:
    """Write the code and its licence, and return (path, sha256) of each file."""
    code = {**code, LICENSE: license_file().read_bytes()}
    for name, content in code.items():
        _write(content, folder / name)
    return [(name, sha256_of(folder / name)) for name in code]


def _settle(config_class: type[FamilyConfig], folder: Path, of_processor: dict[str, Any]) -> list[str]:
    """Let the base's settings name no code but the repo's own, and say what the model needs of its processor. Return
    the paths of the files that changed.

    A class that Transformers does not know, as other libraries write it, becomes the family's. Otherwise the users of
    the repo would get a tokenizer.

    Args:
        of_processor: what `processor_config.json` says of the repo's own processor. The base may have no such file.

    Raises:
        CheckpointError: if a file names the processor of another family.
    """
    family, changed = FAMILIES[config_class.model_type], []
    needed = {"tokenizer_config.json": config_class.tokenizer_fields}
    needed |= dict.fromkeys(("video_preprocessor_config.json", "video_processor"), config_class.video_processor_fields)
    if of_processor and not (folder / PROCESSOR).is_file():
        _write(json.dumps({"processor_class": family.processor_names[0]}).encode(), folder / PROCESSOR)
    for path in (each for each in SETTINGS if (folder / each).is_file()):
        content, before = read_object(folder / path), json.loads((folder / path).read_text(encoding="utf-8"))
        if path == PROCESSOR:
            content |= of_processor
        named = content.get("processor_class")
        if named is not None and foreign_processor([str(named)], family) is not None:
            raise CheckpointError(
                f"the base's {path} names a {named}, which belongs to another family: {family.name} needs a "
                f"{family.processor_names[0]}. Take the processor's files of the checkpoint that it was made from."
            )
        if named not in (None, *family.processor_names):
            content["processor_class"] = family.processor_names[0]
        for fields, name in ((content, path), (content.get("video_processor"), "video_processor")):
            if isinstance(fields, dict) and name in needed:
                fields |= needed[name]
        if content != before:
            _write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode(), folder / path)
            changed.append(path)
    return changed


def _write(content: bytes, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def staged_files(folder: Path) -> tuple[str, ...]:
    return tuple(
        sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    )
