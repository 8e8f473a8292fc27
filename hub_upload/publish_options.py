"""The options of `vidcom2 publish`, and their check before anything takes long. This file does not import PyTorch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ..checks import check_settings
from ..configuration.compression_settings import TABLES
from ..demo.serving import check_gradio
from ..errors import OptionError, did_you_mean, option_name
from ..records.provenance import command_line

DEFAULT_HARDWARE = "zero-a10g"


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """The options of `vidcom2 publish`. The command has an option for each field, with the field's help text.

    Attributes:
        settings: settings of `CompressionSettings` and of the base's family that replace the base's own.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    base: Annotated[
        str | None,
        Option(
            help="Checkpoint to start from: a Hub id, a folder (LLaVA-Video: made by `convert-llava-video`), or a toy.",
            show_default=False,
        ),
    ] = None
    repo: Annotated[str | None, Option(help="Repo to create or update: `org/name`.", show_default=False)] = None
    methods: Annotated[
        str | None,
        Option(
            help="Methods that the repo holds beside VidCom² and those of its settings: names with commas.",
            show_default=False,
        ),
    ] = None
    space: Annotated[
        str | None,
        Option(help="Publish a Space under this name, which serves the demo.", show_default=False),
    ] = None
    model: Annotated[str | None, Option(help="Hub id of the model that the Space runs.", show_default=False)] = None
    hardware: Annotated[
        str, Option(help="Hardware that the Space suggests to run on, by the Hub's name: `zero-a10g`, `l4x1`, ...")
    ] = DEFAULT_HARDWARE
    revision: Annotated[
        str | None, Option(help="Commit, tag or branch of the base, or of the Space's model.", show_default="main")
    ] = None
    tag: Annotated[str | None, Option(help="Tag to put on the commit.", show_default=False)] = None
    private: Annotated[bool, Option("--private", help="Make a new repo private.")] = False
    pr: Annotated[bool, Option("--pr", help="Open a pull request instead of committing.")] = False
    force: Annotated[
        bool,
        Option(
            "--force",
            help="Overwrite files of others, and delete those that would be loaded in place of the new ones.",
        ),
    ] = False
    dry_run: Annotated[
        bool, Option("--dry-run", help="Write the staged folder and show the operations, but send nothing.")
    ] = False
    output: Annotated[
        Path | None,
        Option(
            "--output", "-o", help="New folder to stage in. It is kept.", show_default="with --dry-run: NAME-staged"
        ),
    ] = None
    results: Annotated[
        list[Path] | None,
        Option(
            help="Result file of `vidcom2 eval`, `vidcom2 bench` or lmms-eval, for the card's measured tables. "
            "May be repeated.",
            show_default=False,
        ),
    ] = None
    base_model: Annotated[
        str | None,
        Option(help="Hub id that the card names as the base, if the base is a folder.", show_default=False),
    ] = None
    verify: Annotated[
        bool, Option("--verify/--no-verify", help="Whether to use the repo as its users will before it is sent.")
    ] = True

    @property
    def target(self) -> str:
        return str(self.space or self.repo)

    @property
    def repo_type(self) -> str:
        """The kind of the repo, in the Hub's words."""
        return "model" if self.space is None else "space"

    @property
    def more_methods(self) -> list[str]:
        return [] if self.methods is None else [name.strip() for name in self.methods.split(",")]

    @property
    def folder(self) -> Path | None:
        """The folder to stage in; None for a temporary one."""
        if self.output is None and self.dry_run:
            return Path(f"{self.target.split('/')[-1]}-staged")
        return self.output

    def check(self) -> None:
        """Raise an OptionError if the options cannot be carried out, or contradict each other."""
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        if self.space is not None:
            self._check_space()
        elif self.model is not None or self.hardware != DEFAULT_HARDWARE:
            name = "hardware" if self.model is None else "model"
            raise OptionError(
                f"`--{name}` is {getattr(self, name)!r}, but only a Space has one. Pass `--space` too, or leave out "
                f"`--{name}`."
            )
        elif self.base is None or self.repo is None:
            raise OptionError("pass `--base` and `--repo` for a model repo, or `--space` and `--model` for a Space.")
        if self.target.count("/") != 1:
            raise OptionError(
                f"the repo is {self.target!r}, but its name must include a user or organisation: `org/name`."
            )
        for what, name in (("the repo", self.target), ("`--base-model`", self.base_model or self.target)):
            try:
                validate_repo_id(name)
            except HFValidationError as error:
                raise OptionError(f"{what} is {name!r}, which is not a valid Hub name: {error}") from None
        if self.tag is not None and self.pr:
            raise OptionError(
                "`--tag` tags a commit of the repo, but a pull request is not yet part of it. Tag it after merging."
            )
        check_settings(dict(self.settings))
        known = [name for table in TABLES.values() for name in table]
        for name in self.more_methods:
            if name not in known:
                raise OptionError(
                    f"`--methods` has {name!r}, but its names must be of {', '.join(known)}.{did_you_mean(name, known)}"
                )

    def _check_space(self) -> None:
        from huggingface_hub import SpaceHardware

        others = {name: getattr(self, name) for name in ("base", "repo", "base_model", "results", "methods")}
        given = [option_name(name) for name, value in {**others, **self.settings}.items() if value is not None]
        if given:
            raise OptionError(
                f"`--space` publishes the demo, so {', '.join(given)} cannot go with it. Its settings are those of the "
                "model."
            )
        if self.model is None or self.model.count("/") != 1 or self.model.startswith((".", "/", "~")):
            raise OptionError(f"`--model` is {self.model!r}, but a Space needs a model on the Hub: `--model org/name`.")
        known = [hardware.value for hardware in SpaceHardware]
        if self.hardware not in known:
            raise OptionError(f"`--hardware` is {self.hardware!r}, but must be one of {', '.join(known)}.")
        check_gradio()

    def imports(self, settings: Mapping[str, Any]) -> list[str]:
        """Return the modules of the users' methods that the repo holds, which `--import` must name.

        Args:
            settings: those of the repo, in which the base's own stand where none are given.
        """
        chosen = {*self.more_methods, *(settings.get(setting) for setting in TABLES)}
        methods = [method for table in TABLES.values() for name, method in table.items() if name in chosen]
        return sorted({each.function.__module__ for each in methods if not each.own})

    def command(self, base: str | None = None, revision: str | None = None, imports: Sequence[str] = ()) -> str:
        """Return the command that makes the repo again, for the card.

        Args:
            base: the name of the base, without the folder that it is in.
            revision: the commit of the base.
            imports: the modules that `imports` returned.
        """
        shown = replace(self, results=None if self.results is None else [Path(path.name) for path in self.results])
        if self.space is None:
            shown = replace(shown, base=base, revision=revision)
        return command_line(shown, "publish", ("private", "pr", "force", "dry_run", "output"), imports)
