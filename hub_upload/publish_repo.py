"""From options to a staged repo: `prepare` makes and checks everything that `publishing.publish` then sends."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import HfApi

from ..errors import OptionError
from ..loading.devices import torch_device
from ..loading.finding_checkpoints import family_at, folder_named
from ..loading.hub_calls import HubUnreachable, hub_errors
from ..records.fingerprints import folder_identity
from ..records.whole_files import check_free
from ..toys import toy_of
from .base_checkpoint import Base, download_weights, hub_base, local_base
from .model_card import CardOptions, missing_in_card, read_result
from .publish_options import PublishOptions
from .publishing import Operation, Remote, check_deletions, check_login, check_target, plan, remote_state
from .space_repo import stage_space
from .staging import StagedRepo, complete, stage
from .verification import Check, verify

# It is told what is being done now, or None while huggingface_hub shows its own progress.
Report = Callable[[str | None], None]


@dataclass(frozen=True)
class Prepared:
    """Everything that would be sent, and the repo that it would be sent to.

    Attributes:
        weights: one sentence on the weights of the staged folder.
        checks: the results of the verification; empty if none was asked for.
        notes: sentences for the user.
    """

    staged: StagedRepo
    remote: Remote
    operations: list[Operation]
    weights: str
    checks: list[Check]
    notes: list[str]


def prepare(api: HfApi, options: PublishOptions, folder: Path, report: Report = lambda what: None) -> Prepared:
    """Stage the repo in a new folder, and check it. Nothing is sent. Mistakes that can be found early are raised before
    anything takes long.

    Args:
        options: options that passed their `check`.

    Raises:
        OptionError, CheckpointError, ResultsError: if the options cannot be carried out.
        PublishError: if the Hub does not have the base, or the repo would be harmed.
        VerificationError: if the process that runs the checks dies.
    """
    report("Looking at the repo")
    check_free(folder)
    remote, notes = _remote(api, options)
    check_target(options, remote)
    if not options.dry_run:
        check_login(api, options.target, remote)
    if options.space is not None:
        notes += _check_space_model(api, options)
        family = family_at(str(options.model), options.revision)
        staged = stage_space(folder, options, () if family is None else family.packages)
    else:
        base = _base(api, options, report)
        base.settings(options.settings)  # refuses bad settings before weights are downloaded
        if options.verify and base.revision is not None:
            download_weights(api, base)
        base_model = options.base_model if base.revision is None else base.name
        staged = _staged(base, base_model, options, folder)
        if left_out := ", ".join(path for path in base.left_out if path not in staged.files):
            notes.append(f"Not taken from the base: {left_out}")
        if changed := sorted(file.path for file in {*base.files} - {*(staged.base or base).files}):
            notes.append(f"Changed, so that they fit the model and name no code elsewhere: {', '.join(changed)}")
        notes += missing_in_card(base.folder, base_model)
    operations = plan(staged, remote)
    check_deletions(options, operations, remote)
    weights = complete(staged)
    checks = []
    if options.space is None and options.verify:
        report("Verifying what was staged")
        device = str(torch_device("auto"))
        checks = verify(str(staged.folder), None, device, lambda check: report(f"Verified: {check.name}"))
    return Prepared(staged, remote, operations, weights, checks, notes)


def _remote(api: HfApi, options: PublishOptions) -> tuple[Remote, list[str]]:
    """Return the repo as it is. A dry run needs no Hub: if the Hub cannot be asked, the repo counts as new."""
    try:
        return remote_state(api, options.target, options.repo_type), []
    except HubUnreachable as error:
        if not options.dry_run:
            raise
        unknown = f"It is not known what {options.target!r} holds, so the operations are those of a new repo: {error}"
        return Remote(), [unknown]


def _check_space_model(api: HfApi, options: PublishOptions) -> list[str]:
    """That the Hub has the Space's model; returns what the user is to be told."""
    model = str(options.model)
    notes = ["A Space is not verified here. Look at it once the Hub has built it."]
    try:
        with hub_errors(model):
            api.model_info(model, revision=options.revision)
    except HubUnreachable as error:
        if not options.dry_run:
            raise
        notes.append(f"Whether the Hub has the model {model!r} is not known: {error}")
    return notes


def _base(api: HfApi, options: PublishOptions, report: Report) -> Base:
    name = str(options.base).rstrip("/")
    toy = toy_of(name)
    if (folder := folder_named(name if toy is None else str(toy.folder), options.revision)) is not None:
        base = local_base(folder, report)
        return base if toy is None else replace(base, name=name)
    if name == options.repo:
        raise OptionError(
            f"`--base` and `--repo` are both {name!r}. Pass as `--base` the checkpoint that the repo was made from."
        )
    if options.base_model is not None:
        raise OptionError(
            f"`--base-model` is for a base in a folder, but {name!r} is on the Hub, and its own id is named. "
            "Leave the option out."
        )
    report(None)
    return hub_base(api, name, options.revision)


def _staged(base: Base, base_model: str | None, options: PublishOptions, folder: Path) -> StagedRepo:
    models = [name for name in (base_model, base.name, options.target) if name is not None]
    files = folder_identity(base.folder)["model_files"] if base.revision is None and options.results else None
    commits = {} if base.revision is None else {base.name: base.revision}
    results = [read_result(path, models, files, commits) for path in options.results or ()]
    imports = options.imports(base.settings(options.settings))
    command = options.command(base.name, base.revision, imports)
    card = CardOptions(options.target, command, options.tag, base_model, results, imports)
    return stage(base, folder, options.settings, card, options.more_methods)
