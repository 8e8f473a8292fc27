"""`vidcom2 publish` and `vidcom2 verify`, thin over functions that return data."""

import shlex
import tempfile
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..console import DEMO_VIDEO, err, one_line_errors, out, progress_bar
from ..options import OptionError, check_hub_id, check_settings

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from .base_checkpoint import Base
    from .publishing import Operation, Remote
    from .staging import StagedRepo
    from .verification import Check

VERIFY_MODES = ("full", "twin", "none")
STATUS_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def publish_command(
    repo: Annotated[str | None, typer.Option(help="Repo to make or to update: `org/name`.", show_default=False)] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="Checkpoint to start from: a Hub id, or a folder (for LLaVA-Video of `convert-llava-video`).",
            show_default=False,
        ),
    ] = None,
    custom_generate: Annotated[
        str | None,
        typer.Option(help="Publish a `custom_generate` repo of this name instead: code alone.", show_default=False),
    ] = None,
    retention_ratio: Annotated[
        float | None,
        typer.Option(help="Fraction of the video tokens to keep, in (0, 1].", show_default="the base's, or 0.25"),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Commit, tag or branch of the base.", show_default="main")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Tag to put on the commit.", show_default=False)] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repo private.")] = False,
    pr: Annotated[bool, typer.Option("--pr", help="Open a pull request instead of committing.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Write over files of others, and delete those that would be loaded in place of the new ones.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write the staged folder, show the operations, send nothing.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to stage; kept.", show_default="with --dry-run: NAME-staged"),
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            help="Result file with provenance, for the card's measured tables; repeatable.", show_default=False
        ),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(help="Hub id that the card names as base, if the base is a folder.", show_default=False),
    ] = None,
    verify: Annotated[
        str,
        typer.Option(
            help="Check before sending: `full` with the weights, `twin` with a tiny random model of the same config, "
            "`none`."
        ),
    ] = "full",
) -> None:
    """Publish a Hub repo that loads with VidCom² by itself: code, config.json, card and weights in one commit.

    Weights are copied on the Hub from the base's commit, not uploaded, where the Hub can do that. Log in first:
    `hf auth login`.
    """
    with one_line_errors():
        of_models = {
            "--base": base,
            "--repo": repo,
            "--retention-ratio": retention_ratio,
            "--revision": revision,
            "--base-model": base_model,
            "--results": results,
        }
        target = _target(custom_generate, verify, of_models)
        if output is None and dry_run:
            output = Path(f"{target.split('/')[-1]}-staged")
        with err.status("Importing Transformers ..."):
            from huggingface_hub import HfApi

            from .model_card import CUSTOM_GENERATE_MARKER, MODEL_MARKER
            from .publishing import check_deletions, check_login, check_target, plan, publish
            from .staging import check_replaceable, complete, stage_custom_generate
        # Whatever can be known to fail fails before anything takes long.
        if output is not None:
            check_replaceable(output)
        api = HfApi()
        remote = _remote(api, target, dry_run)
        marker = MODEL_MARKER if custom_generate is None else CUSTOM_GENERATE_MARKER
        check_target(target, remote, marker, force=force, private=private, tag=tag, pull_request=pr)
        if not dry_run:
            check_login(api, target, remote)
        with _folder(output) as folder:
            if custom_generate is None:
                checkpoint = _base(api, base, revision, target, base_model, with_weights=verify == "full")
                staged = _staged(
                    checkpoint, Path(folder), target, retention_ratio, tag, base_model, results or [], verify == "full"
                )
            else:
                staged = stage_custom_generate(Path(folder), target, _command(custom_generate=target))
            weights = complete(staged) if output is not None else ""
            operations = plan(staged, remote)
            check_deletions(target, operations, remote, force=force or pr)
            if verify != "none" and not _rehearsed(staged, verify):
                raise typer.Exit(1)
            _print_operations(operations, target, remote)
            if dry_run:
                text = f"Staged in {output}; nothing was sent. {weights}"
                out.print(escape(text), highlight=False, soft_wrap=True)
                return
            # huggingface_hub shows progress bars of its own.
            done = publish(api, target, staged, remote, private=private, tag=tag, pull_request=pr)
    if done.pull_request is not None:
        text = f"Pull request: {done.pull_request}"
    elif done.commit is None:
        text = f"{done.url} held all of it before, at {done.head}"
    else:
        text = f"Published {done.url} at {done.commit}"
    out.print(escape(text + (f", tagged {tag}" if tag else "")), highlight=False, soft_wrap=True)


def verify_command(
    repo: Annotated[str, typer.Argument(help="Hub id, or a folder.", metavar="REPO_OR_FOLDER")],
    revision: Annotated[str | None, typer.Option(help="Commit, tag or branch.", show_default="main")] = None,
    device: Annotated[str, typer.Option(help="`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`.")] = "auto",
) -> None:
    """Use a repo as its users will, in a fresh process without `vidcom2`, and show what holds.

    Runs the repo's code. Exit code 1 if anything fails.
    """
    with one_line_errors():
        if "/" not in repo and not Path(repo).exists():
            check_hub_id(repo)
        if not _verified(repo, revision, device, repo):
            raise typer.Exit(1)


def _target(custom_generate: str | None, verify: str, of_models: dict[str, object]) -> str:
    """The repo to publish, if the options fit together."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    given = [name for name, value in of_models.items() if value is not None]
    if custom_generate is not None and given:
        raise OptionError(f"`--custom-generate` publishes code alone, so {', '.join(given)} cannot go with it.")
    if custom_generate is None and not {"--base", "--repo"} <= set(given):
        raise OptionError("pass `--base` and `--repo` for a model repo, or `--custom-generate` for one of code alone.")
    if verify not in VERIFY_MODES:
        raise OptionError(f"`--verify` is {verify!r}, but must be one of {', '.join(VERIFY_MODES)}.")
    target, retention_ratio = str(custom_generate or of_models["--repo"]), of_models["--retention-ratio"]
    if target.count("/") != 1:
        raise OptionError(f"the repo is {target!r}, but must be named with its user or organisation: `org/name`.")
    try:
        validate_repo_id(target)
    except HFValidationError as error:
        raise OptionError(f"the repo is {target!r}, which cannot be a name on the Hub: {error}") from None
    if retention_ratio is not None:
        check_settings({"retention_ratio": retention_ratio})
    if custom_generate is None and find_spec("matplotlib") is None:
        raise OptionError("the card's figure needs matplotlib, which is not installed: pip install matplotlib.")
    return target


def _remote(api: "HfApi", repo: str, dry_run: bool) -> "Remote":
    """The repo as it is; for a dry run, which needs no Hub, as a new one if the Hub cannot be asked."""
    from .hub_calls import HubUnreachable
    from .publishing import Remote, remote_state

    if not dry_run:
        return remote_state(api, repo)
    try:
        return remote_state(api, repo, tries=1)
    except HubUnreachable as error:
        text = f"What {repo!r} holds is not known, so the operations are those of a new repo: {error}"
        err.print("[yellow]Note:[/]", escape(text), highlight=False, soft_wrap=True)
        return Remote(None, {})


def _folder(output: Path | None) -> AbstractContextManager:
    return tempfile.TemporaryDirectory() if output is None else nullcontext(output)


def _base(
    api: "HfApi", name: str, revision: str | None, repo: str, base_model: str | None, with_weights: bool
) -> "Base":
    from .base_checkpoint import download, hub_base, local_base

    folder = Path(name).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise OptionError(f"`--revision` is {revision!r}, but the base {name!r} is a folder, which has none.")
        with progress_bar() as progress:
            task = progress.add_task("Reading the base", total=None)
            return local_base(
                folder,
                lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
            )
    if name.startswith((".", "/", "~")):
        raise OptionError(f"there is no folder {name!r}. Name a folder, or a Hub repo as `org/name`.")
    name = name.rstrip("/")
    if name == repo:
        raise OptionError(
            f"`--base` and `--repo` are both {repo!r}. Publish from the checkpoint that it was made from."
        )
    if base_model is not None:
        raise OptionError(f"`--base-model` is for a base in a folder, but {name!r} is on the Hub, and named as it is.")
    checkpoint = hub_base(api, name, revision)
    if with_weights:
        download(api, checkpoint, [file.path for file in checkpoint.weights])
    return checkpoint


def _staged(
    base: "Base",
    folder: Path,
    repo: str,
    retention_ratio: float | None,
    tag: str | None,
    base_model: str | None,
    results: list[Path],
    with_weights: bool,
) -> "StagedRepo":
    from .model_card import CardOptions, read_result
    from .staging import stage

    if base.revision is not None:
        base_model = base.name
    tables = [read_result(path, [base_model or base.name, repo]) for path in results]
    command = _command(
        base=base.name,
        revision=base.revision,
        base_model=base_model if base.revision is None else None,
        repo=repo,
        retention_ratio=retention_ratio,
        tag=tag,
    )
    with tempfile.TemporaryDirectory() as scratch, err.status("Drawing the card's figure ..."):
        figure = Path(scratch, "figure.png")
        caption = _draw(base, retention_ratio, figure, with_weights)
        card = CardOptions(repo, command, figure, caption, tag, base_model, tables)
        settings = {} if retention_ratio is None else {"retention_ratio": retention_ratio}
        staged = stage(base, folder, settings, card)
    if left_out := ", ".join(path for path in base.left_out if path not in staged.files):
        err.print(f"Not taken from the base: {escape(left_out)}", highlight=False, soft_wrap=True)
    return staged


def _draw(base: "Base", retention_ratio: float | None, path: Path, with_weights: bool) -> str:
    """Draw the figure of the card, by the base's weights or by a tiny random model; returns its caption."""
    from ..checkpoints import load_checkpoint
    from ..explain import draw_png, explain
    from ..video import read_video

    ratio = base.config.get("retention_ratio", 0.25) if retention_ratio is None else retention_ratio
    # On the CPU, since the process that verifies will want the accelerator's memory.
    checkpoint = load_checkpoint(str(base.folder) if with_weights else None, ratio, device="cpu")
    checkpoint.name = base.name if with_weights else checkpoint.name
    draw_png(explain(checkpoint, read_video(str(DEMO_VIDEO), 16)), str(path))
    drawn = "The picture is `vidcom2 explain` on the clip that comes with `vidcom2`"
    if with_weights:
        return f"{drawn}, with these weights."
    return f"{drawn}, with {checkpoint.name}: it shows the mechanism, not what this model keeps."


def _command(**options: object) -> str:
    words = [f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in options.items() if value]
    return " ".join(["vidcom2 publish", *words])


def _rehearsed(staged: "StagedRepo", mode: str) -> bool:
    """Whether what was staged loads and works."""
    from .rehearsal import rehearse, rehearse_with_twin

    with tempfile.TemporaryDirectory() as folder:
        if mode == "twin" and staged.base is not None:
            rehearse_with_twin(staged, Path(folder))
            return _verified(folder, None, "auto", "a tiny twin of what was staged")
        rehearse(staged, Path(folder))
        return _verified(folder, None, "auto", "what was staged")


def _verified(name: str, revision: str | None, device: str, title: str) -> bool:
    with err.status("Importing Transformers ..."):
        from ..checkpoints import torch_device
        from .verification import failures, verify

        where = str(torch_device(device))
    with err.status(f"Verifying {escape(title)} in a fresh process ...") as status:
        checks = verify(
            name, revision, where, lambda check: status.update(f"Verifying {escape(title)}: after {check.name} ...")
        )
    _print_checks(checks, title)
    return not failures(checks)


def _print_checks(checks: "list[Check]", title: str) -> None:
    table = Table(title=escape(f"Verification of {title}"))
    for column in ("check", "", "found"):
        table.add_column(column, overflow="fold")
    for check in checks:
        table.add_row(check.name, f"[{STATUS_STYLES[check.status]}]{check.status}[/]", escape(check.detail))
    out.print(table)


def _print_operations(operations: "list[Operation]", repo: str, remote: "Remote") -> None:
    where = f"a new repo {repo}" if remote.head is None else f"{repo} on top of {remote.head}"
    out.print(f"One commit in {escape(where)}, operations: {len(operations)}", highlight=False, soft_wrap=True)
    for operation in operations:
        size = "" if operation.size is None else f"{operation.size:,}"
        source = f"  <- {operation.source}" if operation.action == "copy" else ""
        line = f"{operation.action:6} {size:>15}  {operation.sha256 or '':64}  {operation.path}{source}"
        out.print(escape(line), highlight=False, soft_wrap=True)
