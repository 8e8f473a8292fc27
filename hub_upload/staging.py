"""Making in a folder what a repo will hold. Nothing in this file talks to the Hub."""

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..configuration.compression_settings import VISION_METHODS
from ..configuration.family_config import FamilyConfig
from ..errors import CheckpointError, written_to
from ..families.table import FAMILIES
from ..loading.finding_checkpoints import read_object
from ..loading.processors import foreign_processor, processor_fields
from ..modeling.prompt.processing_short_prompts import OWN
from ..records.whole_files import growing_folder
from ..repo_shape import CARD, CONFIG, PROCESSOR, sha256_of
from ..shipping.shipped_code import LICENSE, code_of, fields_of, license_file
from .base_checkpoint import SETTINGS, Base
from .model_card import FIGURE, CardOptions, model_card


@dataclass(frozen=True)
class StagedRepo:
    """A repo that was made in a folder.

    Attributes:
        folder: the folder, which holds all files except the weights.
        files: the paths of these files.
        base: the base, which has the weights; None for a Space, which has none.
    """

    folder: Path
    files: tuple[str, ...]
    base: Base | None = None


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
        CheckpointError: if a setting is not accepted, or the family's vision tower cannot run one of the methods.
        OptionError: if a setting belongs only to other families, or the folder exists or cannot be written.
        UnshippableMethodError: if the method is a user's and cannot be saved with a model.
    """
    model_class = base.family.model_class
    config = base.config | base.settings(settings)
    for name in more_methods:
        if name in VISION_METHODS:
            base.settings({**settings, "vision_method": name, "vision_tolerance": 0.0})  # refuses it for other towers
    methods = config["compression_method"], config["vision_method"]
    code = code_of(model_class, *methods, more_methods)
    config |= fields_of(model_class, code)
    with written_to(folder), growing_folder(folder) as made:
        for file in base.files:
            if not file.is_weights:
                _write((base.folder / file.path).read_bytes(), made / file.path)
        _write((json.dumps(config, indent=2) + "\n").encode(), made / CONFIG)
        _write(FIGURE.read_bytes(), made / FIGURE.name)
        changed = _settle(model_class.config_class, made, processor_fields(SimpleNamespace(**config)))
        base = replace(base, files=tuple(file for file in base.files if file.path not in changed))
        files = [(path, sha256_of(made / path)) for path in (CONFIG, *changed)]
        files += write_code(code, made)
        model_card(base, config, files, code, card, more_methods).save(made / CARD)
        return StagedRepo(folder, files_in(made), base)


def complete(staged: StagedRepo) -> str:
    """Let a staged folder load, if the weights are on this machine: links lead to them. Return one sentence on them."""
    folder, base = staged.folder, staged.base
    if base is None:
        return "It is complete, because such a repo has no weights."
    sources = {file.path: (base.folder / file.path).absolute() for file in base.weights}
    with written_to(folder):
        for path, source in sources.items():
            if source.is_file():
                (folder / path).symlink_to(source)
    missing = [path for path, source in sources.items() if not source.is_file()]
    if not missing:
        return "It loads as it is, because its weights are links to those of the base."
    return (
        f"It lacks the weights, which stay on the Hub. To load it, fetch them with `hf download {base.name} "
        f"{' '.join(missing)} --revision {base.revision} --local-dir {shlex.quote(str(folder))}`."
    )


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
            content = {name: value for name, value in content.items() if name not in OWN} | of_processor
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


def files_in(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
