"""What a repo will hold, made in a folder: nothing here talks to the Hub."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .base_checkpoint import Base
from .compression_settings import SETTING_NAMES, CompressionSettings
from .custom_generate import MODEL_CLASSES as GENERATING_CLASSES
from .model_card import CardOptions, custom_generate_card, model_card
from .shipped_code import LICENSE, code_of, code_of_custom_generate, fields_of, license_file, sha256_of

FIGURE = "how_it_works.png"
CARD = "README.md"


class StagingError(ValueError):
    """A folder that cannot be used for staging."""


@dataclass(frozen=True)
class StagedRepo:
    """A repo in a folder.

    Attributes:
        folder: all of its files but the weights.
        files: their paths.
        base: where the weights are; None for a repo without.
    """

    folder: Path
    files: tuple[str, ...]
    base: Base | None = None


def stage(base: Base, folder: Path, settings: Mapping[str, Any], card: CardOptions) -> StagedRepo:
    """Make a model repo of a base checkpoint: its files, the code, config.json and the card. Weights stay where they
    are.

    Args:
        folder: does not exist yet, or is empty.
        settings: fields of `CompressionSettings` that replace those of the base's config, or else the defaults.

    Raises:
        CheckpointError: if VidCom² has no class for the base.
        StagingError: if the folder holds something.
        ValueError: if a setting is outside its accepted set.
        OSError: if the folder cannot be written; what was written is removed.
    """
    config, model_class = base.config, base.model_class
    kept = {name: config[name] for name in SETTING_NAMES if name in config}
    checked = CompressionSettings(**kept | dict(settings))
    config |= asdict(checked) | fields_of(model_class)

    with _new_folder(folder):
        for file in base.files:
            if not file.is_weights:
                _copy(base.folder / file.path, folder / file.path)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        code = code_of(model_class)
        for name, path in code.items():
            _copy(path, folder / name)
        _copy(license_file(), folder / LICENSE)
        _copy(card.figure, folder / FIGURE)
        files = [(name, sha256_of(folder / name)) for name in ("config.json", *code, LICENSE)]
        model_card(base, config, files, FIGURE, card).save(folder / CARD)
        return StagedRepo(folder, _files(folder), base)


def stage_custom_generate(folder: Path, repo: str, command: str) -> StagedRepo:
    """Make a `custom_generate` repo: code and card, no weights.

    Raises:
        StagingError: if the folder holds something.
        OSError: if the folder cannot be written; what was written is removed.
    """
    with _new_folder(folder):
        code = code_of_custom_generate()
        for name, path in code.items():
            _copy(path, folder / name)
        _copy(license_file(), folder / LICENSE)
        files = [(name, sha256_of(folder / name)) for name in (*code, LICENSE)]
        custom_generate_card(repo, files, list(GENERATING_CLASSES), command).save(folder / CARD)
        return StagedRepo(folder, _files(folder))


def check_empty(folder: Path) -> None:
    """Raises a StagingError if the folder holds something."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StagingError(f"{str(folder)!r} is not an empty folder. Name a new one with `--output`, or empty it.")


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Leaves a whole folder, or none."""
    check_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _files(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
