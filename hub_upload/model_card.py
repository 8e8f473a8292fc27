"""Model cards from templates: what a repo is, what it is not, and where each figure comes from."""

import importlib.metadata
import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from ..configuration.compression_settings import SETTING_NAMES, CompressionSettings
from ..shipped_code import CUSTOM_GENERATE, PIPELINE_TASK, is_native
from .base_checkpoint import Base

# First in a card, by what its repo is. Each new publication replaces the card.
MODEL_MARKER = "<!-- written by `vidcom2 publish` -->"
CUSTOM_GENERATE_MARKER = "<!-- written by `vidcom2 publish --custom-generate` -->"
LISTED = re.compile(r"^\| `([^`|]+)` \|(?: [\d,]+ \|)? `([0-9a-f]{64})` \|$", flags=re.MULTILINE)
OLDEST_TRANSFORMERS = "5.19"
TAGS = ["vidcom2", "video", "token-compression", "custom_code"]
FAMILY_NAMES = {
    "llava_onevision": "LLaVA-OneVision",
    "vidcom2_llava_video": "LLaVA-Video",
    "qwen2_vl": "Qwen2-VL",
}
CITATION = """@article{liu2025vidcom2,
  title   = {Video Compression Commander: Plug-and-Play Inference Acceleration for Video Large Language Models},
  author  = {Liu, Xuyang and Wang, Yiyu and Ma, Junpeng and Zhang, Linfeng},
  journal = {arXiv preprint arXiv:2505.14454},
  year    = {2025}
}"""

# The paper's own figures: Table 1 (average over its benchmarks), Table 2, and the figure on Qwen2-VL.
PUBLISHED = {
    "llava_onevision": (
        "LLaVA-OneVision-7B",
        [
            ("average quality kept at 25 % of the tokens", "99.6 %"),
            ("average quality kept at 15 % of the tokens", "95.1 %"),
            ("LLM generation time at 25 % (MVBench, A100)", "−70.8 %"),
            ("whole model's time at 25 % (MVBench, A100)", "−43.0 %"),
        ],
    ),
    "vidcom2_llava_video": (
        "LLaVA-Video-7B",
        [
            ("average quality kept at 25 % of the tokens", "93.6 %"),
            ("average quality kept at 15 % of the tokens", "88.5 %"),
        ],
    ),
    "qwen2_vl": ("Qwen2-VL", [("VideoMME (Long) kept at 25 % of the tokens", "101.2 %")]),
}

# What a result file must say about where its figures come from.
PROVENANCE = ("model", "date", "command", "device", "torch", "transformers", "vidcom2_commit")


def listed_files(card: str) -> dict[str, str]:
    """Path -> sha256 of the files that a card lists."""
    return dict(LISTED.findall(card))


class ResultsError(ValueError):
    """A result file that does not say where its figures come from, or that is about another model."""


@dataclass(frozen=True)
class Result:
    """A measured table for the card."""

    title: str
    table: str
    provenance: str


def read_result(path: Path, models: Sequence[str]) -> Result:
    """A result file, `{"birth_certificate": {...}, "rows": [{...}, ...]}`, as a table of its rows.

    Args:
        models: names of the model that the card is about; the certificate's `model` must be one of them.

    Raises:
        ResultsError: if it is another kind of file, lacks its provenance, or was measured on another model.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        certificate, rows = content["birth_certificate"], content["rows"]
        missing = [name for name in PROVENANCE if not certificate.get(name)]
        columns = [name for name, value in rows[0].items() if not isinstance(value, dict)]
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ResultsError(
            f"{str(path)!r} is no result file ({type(error).__name__}: {error}). It must be JSON with "
            f"`birth_certificate` ({', '.join(PROVENANCE)}) and `rows`."
        ) from error
    if missing:
        raise ResultsError(f"{str(path)!r} does not say its {', '.join(missing)}. Measure again, with provenance.")
    if certificate["model"] not in models:
        raise ResultsError(
            f"{str(path)!r} was measured on {certificate['model']!r}, but the card is about {' or '.join(models)}."
        )
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_shown(row.get(name)) for name in columns) + " |" for row in rows]
    dirty = " with uncommitted changes" if certificate.get("vidcom2_dirty") else ""
    provenance = (
        f"`{certificate['command']}` on {certificate['device']}, {certificate['date']}; torch {certificate['torch']}, "
        f"transformers {certificate['transformers']}, vidcom2 {certificate['vidcom2_commit']}{dirty}."
    )
    return Result(content.get("title", path.stem.replace("_", " ")), "\n".join(lines), provenance)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return " × ".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Setting:
    """A row of the table of settings."""

    name: str
    value: str
    accepted: str
    meaning: str


def setting_rows(settings: CompressionSettings) -> list[Setting]:
    """The settings with what they mean, from the dataclass and its docstring."""
    attributes = inspect.getdoc(CompressionSettings).split("Attributes:")[1].split("Raises:")[0]
    meanings = dict(re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", attributes, flags=re.MULTILINE))
    values = asdict(settings)
    rows = []
    for field in fields(CompressionSettings):
        accepted = field.metadata["accepted"]
        accepted = accepted() if callable(accepted) else accepted
        shown = f"`{json.dumps(values[field.name])}`"
        rows.append(Setting(field.name, shown, accepted, " ".join(meanings[field.name].split())))
    return rows


@dataclass(frozen=True)
class CardOptions:
    """What only the card says.

    Attributes:
        repo: id of the repo.
        command: that makes it.
        tag: that will be put on it.
        base_model: Hub id of the base, if it has one.
        figure: a PNG of what is kept of a video, and its caption.
        results: measured tables.
    """

    repo: str
    command: str
    figure: Path
    figure_caption: str
    tag: str | None = None
    base_model: str | None = None
    results: Sequence[Result] = ()


def model_card(
    base: Base, config: dict[str, Any], files: Sequence[tuple[str, str]], figure: str, options: CardOptions
) -> ModelCard:
    """The card of a model repo.

    Args:
        config: the repo's config.json.
        files: (path, sha256) of all that is not the base's.
        figure: path of the picture in the repo.
    """
    family = config["model_type"]
    settings = CompressionSettings(**{name: config[name] for name in SETTING_NAMES})
    of_base = _card_data(base.folder)
    license_fields = {
        name: of_base[name] for name in ("license", "license_name", "license_link", "language") if name in of_base
    }
    # The Hub knows adapter, merge, quantized and finetune. The base's own weights, made cheaper to use, are nearest to
    # "quantized"; of a folder it is not known how its weights came from the base.
    relation = "finetune" if base.revision is None else "quantized"
    data = ModelCardData(
        base_model=options.base_model,
        **({} if options.base_model is None else {"base_model_relation": relation}),
        library_name="transformers",
        pipeline_tag=PIPELINE_TASK,
        tags=TAGS,
        **license_fields,
    )
    model, figures = PUBLISHED[family]
    return ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("model_card.md")),
        marker=MODEL_MARKER,
        family=FAMILY_NAMES[family],
        base=None if options.base_model is None else _linked(options.base_model),
        base_revision=base.revision,
        share=f"{100 * settings.retention_ratio:g} %",
        license_text=_license_text(of_base),
        repo=options.repo,
        tag=options.tag,
        is_native=is_native(base.model_class),
        settings=setting_rows(settings),
        figure=figure,
        figure_caption=options.figure_caption,
        results=options.results,
        published={"model": model, "figures": figures},
        transformers_version=OLDEST_TRANSFORMERS,
        vidcom2_version=importlib.metadata.version("vidcom2"),
        command=options.command,
        files=files,
        base_files=base.files,
        citation=CITATION,
    )


def custom_generate_card(repo: str, files: Sequence[tuple[str, str]], models: Sequence[str], command: str) -> ModelCard:
    """The card of a `custom_generate` repo, for these `model_type`s."""
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=PIPELINE_TASK,
        tags=[CUSTOM_GENERATE, *TAGS],
        license="apache-2.0",
    )
    return ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("custom_generate_card.md")),
        marker=CUSTOM_GENERATE_MARKER,
        repo=repo,
        models=" and ".join(FAMILY_NAMES[model] for model in models),
        settings=setting_rows(CompressionSettings()),
        transformers_version=OLDEST_TRANSFORMERS,
        vidcom2_version=importlib.metadata.version("vidcom2"),
        command=command,
        files=files,
        citation=CITATION,
    )


def _card_data(folder: Path) -> dict[str, Any]:
    """Metadata of the base's own card."""
    path = folder / "README.md"
    if not path.is_file():
        return {}
    return ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()


def _license_text(of_base: dict[str, Any]) -> str:
    """The base's licence, with its name and address where "other" is not enough."""
    known = of_base.get("license")
    if not known:
        return "not known here: see the base"
    name = of_base.get("license_name") or known
    return f"[{name}]({of_base['license_link']})" if of_base.get("license_link") else str(name)


def _linked(repo: str) -> str:
    return f"[{repo}](https://huggingface.co/{repo})"
