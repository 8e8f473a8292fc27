"""Model cards, made from templates. A card says what a repo is, what it is not, and where each figure comes from."""

import ast
import importlib.metadata
import inspect
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from huggingface_hub import ModelCard, ModelCardData, SpaceCard, SpaceCardData, metadata_load

from ..configuration.compression_settings import COMPRESSION_METHODS, CompressionSettings
from ..errors import CheckpointError
from ..evaluation.accuracy_tables import as_text, pipes
from ..families.table import FAMILIES, Family
from ..loading.processors import can_be_counted
from ..modeling.prompt.prompt_compression import SERVED_BY_ENGINES
from ..repo_shape import CARD, PIPELINE_TASK
from ..shipping.shipped_code import held_methods
from ..shipping.shipped_files import shipped_paths
from ..toys import TOYS
from ..vllm_plugin import SERVED
from .base_checkpoint import Base
from .lmms_eval_results import is_of_lmms_eval, with_rows

# A card begins with the marker of its kind of repo. Each new publication replaces the card.
MODEL_MARKER = "<!-- written by `vidcom2 publish` -->"
SPACE_MARKER = "<!-- written by `vidcom2 publish --space` -->"
FIGURE = Path(__file__).with_name(
    "how_it_works.png"
)  # docs/explain.png at two thirds, with the same title in its metadata
FROM_BASE = {"license": str, "license_name": str, "license_link": str, "language": (str, list)}  # of its card
TAGS = ["vidcom2", "video", "token-compression", "custom_code"]
CITATION = """@article{liu2025vidcom2,
  title   = {Video Compression Commander: Plug-and-Play Inference Acceleration for Video Large Language Models},
  author  = {Liu, Xuyang and Wang, Yiyu and Ma, Junpeng and Zhang, Linfeng},
  journal = {arXiv preprint arXiv:2505.14454},
  year    = {2025}
}"""

# The fields in which a result file must say where its figures come from.
PROVENANCE = ("model", "date", "command", "device", "torch", "transformers", "vidcom2_commit")


class ResultsError(ValueError):
    """Raised for a result file that does not say where its figures come from, or that is about another model."""


@dataclass(frozen=True)
class Result:
    """A measured table for the card. `notes` say what its columns and brackets mean, if the file does."""

    title: str
    table: str
    notes: str
    provenance: str


def read_result(
    path: Path, models: Sequence[str], files: str | None = None, commits: Mapping[str, str] = MappingProxyType({})
) -> Result:
    """Read a result file as a table.

    Args:
        path: a file `{"birth_certificate": {...}, "rows": [{...}, ...]}`, or one that lmms-eval wrote.
        models: names of the model that the card is about. The certificate's `model` must be one of them, unless both
            sides know the model's files.
        files: the `digest` of the model's files, for a model in a folder. If the certificate has a digest, the two
            decide, because many folders have the same name, and one model may have several.
        commits: name -> commit, for a model on the Hub of which the card is about one commit. If the certificate has a
            commit, it must be the same.

    Raises:
        ResultsError: if it is another kind of file, lacks its provenance, or was measured on another model.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if is_of_lmms_eval(content):
            content = with_rows(content)
        certificate, rows = content["birth_certificate"], content["rows"]
        missing = [name for name in PROVENANCE if not certificate.get(name)]
        cells = [{name: value for name, value in row.items() if not isinstance(value, dict)} for row in rows]
        columns = list(dict.fromkeys(name for row in cells for name in row))
        if not columns:
            raise ValueError("it has no rows")
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ResultsError(
            f"{str(path)!r} is not a result file ({type(error).__name__}: {error}). It must be JSON with "
            f"`birth_certificate` ({', '.join(PROVENANCE)}) and `rows`, or the `*_results.json` of "
            "`lmms-eval --model vidcom2`."
        ) from error
    if missing:
        raise ResultsError(f"{str(path)!r} does not say its {', '.join(missing)}. Measure again and record these.")
    _check_model(str(path), certificate, models, files, commits)
    shown = {name: as_text(certificate[name]) for name in PROVENANCE}
    shown["command"] = " ".join(str(certificate["command"]).replace("`", "'").split())
    dirty = " with uncommitted changes" if certificate.get("vidcom2_dirty") else ""
    provenance = (
        "`{command}` on {device}, {date}; torch {torch}, transformers {transformers}, vidcom2 {vidcom2_commit}"
    ).format_map(shown)
    table = pipes([list(map(as_text, columns)), *([_shown(row.get(name)) for name in columns] for row in cells)])
    title = as_text(content.get("title", path.stem.replace("_", " ")))
    notes = "\n".join(map(_with_code, str(content.get("notes", "")).splitlines()))
    return Result(title, table, notes, f"{provenance}{dirty}.")


def _check_model(
    path: str, certificate: Mapping[str, Any], models: Sequence[str], files: str | None, commits: Mapping[str, str]
) -> None:
    """Check that a result is about the model that `read_result` was given. Raises a ResultsError if not."""
    name, measured, commit = str(certificate["model"]), certificate.get("model_files"), certificate.get("model_commit")
    if files is not None and measured is not None:
        if measured != files:
            raise ResultsError(
                f"{path!r} was measured on another model than the base: the files of {name!r} differ. Measure the base."
            )
    elif name not in models:
        raise ResultsError(f"{path!r} was measured on {name!r}, but the card is about {' or '.join(models)}.")
    elif commit is not None and commit != commits.get(name, commit):
        raise ResultsError(
            f"{path!r} was measured on {name!r} at commit {commit}, but the card is about commit {commits[name]}. "
            f"Pass `--revision {commit}`, or measure again."
        )


def _with_code(line: str) -> str:
    """Return a line as `as_text` does, but show words between backticks as code, as the notes of `vidcom2 eval` have
    them."""
    return re.sub(r"\\`(\w[\w ]*)\\`", r"`\1`", as_text(line))


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return as_text(" × ".join(map(str, value)) if isinstance(value, list) else value)


def setting_rows(
    values: Mapping[str, Any], family: Family, held: Mapping[str, Collection[str]]
) -> list[dict[str, Any]]:
    """Return a row for each setting of the dataclass and of the family, with its meaning from their docstrings.

    Args:
        held: setting -> the names of the methods that it can choose in the repo.
    """
    accepted: dict[str, Any] = {field.name: field.metadata["accepted"] for field in fields(CompressionSettings)}
    accepted |= {setting: " or ".join(f"`{json.dumps(name)}`" for name in names) for setting, names in held.items()}
    meanings = _described(CompressionSettings)
    if family.settings:
        accepted |= {name: f"one of {', '.join(map(repr, names))}" for name, names in family.settings.items()}
        meanings |= _described(family.config_class)
    return [
        {
            "name": name,
            "value": json.dumps(values[name]),
            "accepted": what() if callable(what) else what,
            "meaning": meanings[name].partition(":")[0] if name in held else meanings[name],  # which names all methods
        }
        for name, what in accepted.items()
    ]


def _described(documented: type) -> dict[str, str]:
    """Return field -> meaning, from the docstring of a class."""
    found = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(documented) or "", flags=re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}


@dataclass(frozen=True)
class CardOptions:
    """The information that only the card needs.

    Attributes:
        repo: the id of the repo.
        command: the command that makes the repo.
        tag: the tag that will be put on the commit.
        base_model: the Hub id of the base, if it has one.
        results: measured tables.
        imports: the modules that the command imports, which have users' methods.
    """

    repo: str
    command: str
    tag: str | None = None
    base_model: str | None = None
    results: Sequence[Result] = ()
    imports: Sequence[str] = ()


def model_card(
    base: Base,
    config: dict[str, Any],
    files: Sequence[tuple[str, str]],
    code: Mapping[str, bytes],
    options: CardOptions,
    more_methods: Collection[str] = (),
) -> ModelCard:
    """Return the card of a model repo.

    Args:
        config: the content of the repo's config.json.
        files: (path, sha256) of all files that are not the base's.
        code: the content of those with code, in the order in which a reader meets them.
        more_methods: methods that the repo holds beside VidCom² and those of its settings.
    """
    family = base.family
    is_vidcom2 = config["compression_method"] == "vidcom2"
    of_base = _card_data(base.folder)
    # The Hub knows adapter, merge, quantized and finetune. "quantized" comes closest to the base's own weights made
    # cheaper to use. For a folder it is not known how its weights came from the base, so it is called "finetune".
    relation = "finetune" if base.revision is None else "quantized"
    data = ModelCardData(
        base_model=options.base_model,
        **({} if options.base_model is None else {"base_model_relation": relation}),
        library_name="transformers",
        pipeline_tag=PIPELINE_TASK,
        tags=TAGS,
        **of_base,
    )
    is_short = can_be_counted(SimpleNamespace(**config))
    return ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("model_card.md")),
        marker=MODEL_MARKER,
        transformers_version=family.since,
        vidcom2_version=importlib.metadata.version("vidcom2"),
        citation=CITATION,
        family=family,
        base=options.base_model,
        base_revision=base.revision,
        share=f"{100 * config['retention_ratio']:g} %",
        budget=None if config["max_video_tokens"] is None else f"{config['max_video_tokens']:,}",
        method=None if is_vidcom2 else config["compression_method"],
        license_text=_license_text(of_base),
        is_toy=_is_toy(base),
        needed=_needed(base, options),
        vllm_command=vllm_command(options.repo, config),
        served_in_vllm=family.model_class.__name__ in SERVED,
        plain_vllm_command=plain_vllm_command(options.repo, config) if is_short else None,
        repo=options.repo,
        tag=options.tag,
        short=is_short,
        own_processor=is_short or not family.runs_stock_prompts,
        settings=setting_rows(
            config, family, held_methods(config["compression_method"], config["vision_method"], more_methods)
        ),
        figure=FIGURE.name,
        results=options.results,
        published=family.published if is_vidcom2 else None,  # the authors measured only their own method
        command=re.sub(r"[\r\n]", " ", options.command),
        files=[(name, sha) for name, sha in files if name not in code],
        code=[(name, purpose(code[name]), sha) for name, sha in files if name in code],
        users_code=[name for name in code if name.removesuffix(".py") not in shipped_paths()],
        code_lines=sum(len(content.splitlines()) for content in code.values()),
        base_files=base.files,
    )


def _is_toy(base: Base) -> bool:
    return any(base.folder == toy.folder for toy in TOYS.values())


def _needed(base: Base, options: CardOptions) -> str:
    """Return what must be in the folder in which the command of the card is run; an empty string for nothing."""
    needed = []
    if base.revision is None and not _is_toy(base):
        name = " ".join(base.name.replace("`", "'").split())
        needed.append(f"`{name}`")
    if options.results:
        needed.append("the result files")
    needed += [f"the module `{module}` (unless it is installed)" for module in options.imports]
    return " and ".join([", ".join(needed[:-1]), *needed[-1:]] if needed[1:] else needed)


def purpose(source: bytes) -> str:
    """Return what a file of code is for: the first sentence of its docstring, or of the first that it holds."""
    file = ast.parse(source)
    holders = (each for each in (file, *file.body) if isinstance(each, ast.Module | ast.FunctionDef | ast.ClassDef))
    text = " ".join(next(filter(None, map(ast.get_docstring, holders)), "").split())
    return as_text(re.split(r"(?<=\.) (?=[A-Z`])", text)[0]).replace("\\`", "`").replace("|", "\\|")


def space_card(data: SpaceCardData, **fields: Any) -> SpaceCard:
    """The card of a Space: its metadata, which say how it runs, and what the template shows."""
    fields |= {"vidcom2_version": importlib.metadata.version("vidcom2")}
    return SpaceCard.from_template(data, template_path=str(Path(__file__).with_name("space_card.md")), **fields)


def vllm_command(repo: str, config: Mapping[str, Any]) -> str | None:
    """Return the command with which vLLM serves a repo; None if its plugin refuses the repo's family or settings.

    Source: docs/serving.md.

    Args:
        config: the repo's config.json.
    """
    method = COMPRESSION_METHODS[config["compression_method"]]
    model_class = FAMILIES[config["model_type"]].model_class
    of_text = config.get("text_config")
    attention = of_text.get("use_bidirectional_attention") if isinstance(of_text, dict) else None
    if model_class.__name__ not in SERVED or attention == "vision":
        return None
    if not method.own or config["vision_method"] != "full" or config.get("compression_newlines") == "occupied":
        return None
    if config["compression_positions"] == "original" and not model_class.inner_class.uses_mrope:
        return None
    exact = method.keeps_by_sizes(config["compression_rounding"])
    overrides = "" if exact else """ --hf-overrides '{"compression_rounding": "exact"}'"""
    return f"vllm serve {repo} --trust-remote-code{overrides}"


def plain_vllm_command(repo: str, config: Mapping[str, Any]) -> str | None:
    """Return the command with which vLLM's Transformers backend serves a repo that writes short prompts, without this
    package; None for a family or settings that this backend cannot serve.

    Source: docs/serving.md.

    Args:
        config: the repo's config.json.
    """
    family = FAMILIES[config["model_type"]]
    inner: Any = family.model_class.inner_class
    is_plain = family.served_plainly and not inner.uses_mrope and not inner.frames_stand_apart
    is_served = all(config[name] == served for name, served in SERVED_BY_ENGINES.items())
    if not is_plain or not is_served or not inner._supports_attention_backend:
        return None
    overrides = json.dumps({"auto_map": {"AutoModel": f"{inner.__module__.rpartition('.')[2]}.{inner.__name__}"}})
    return f"vllm serve {repo} --trust-remote-code --model-impl transformers --hf-overrides '{overrides}'"


def missing_in_card(folder: Path, base_model: str | None) -> list[str]:
    """Return a sentence for each fact that the Hub asks of a card and that is not known of the base."""
    missing = []
    if not _card_data(folder).get("license"):
        missing.append("The card names no license, since the base's own card has none. Add one to the base's README.md")
    if base_model is None:
        missing.append("The card names no base model. Pass its Hub id as --base-model")
    return missing


def _card_data(folder: Path) -> dict[str, Any]:
    """Return the licence and the language that the base's own card names."""
    path = folder / CARD
    try:
        found = metadata_load(path) or {} if path.is_file() else {}
    except Exception as error:  # also YAML's own
        raise CheckpointError(f"the metadata of the base's {CARD} are not valid. Correct them: {error}") from error
    return {name: found[name] for name, kind in FROM_BASE.items() if isinstance(found.get(name), kind)}


def _license_text(of_base: dict[str, Any]) -> str:
    """Return the base's licence, with its own name and address if the card gives them."""
    name = as_text(of_base.get("license_name") or of_base.get("license") or "which is not known here: see the base")
    link = of_base.get("license_link", "")
    return f"[{name}]({link})" if re.fullmatch(r"(https?://)?[\w./%#?=&-]+", link) else name
