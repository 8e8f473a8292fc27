"""`vidcom2 publish` and `vidcom2 verify` turn options into tables. Functions that return data do the work."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..hub_upload.publish_options import PublishOptions
from ..loading.finding_checkpoints import check_hub_id
from ..loading.placement import Placement, check_machine
from ..toys import toy_of
from .console import err, one_line_errors, out, print_line, status, takes_fields, takes_settings

if TYPE_CHECKING:
    from ..hub_upload.publishing import Operation, Remote
    from ..hub_upload.verification import Check

STATUS_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


@takes_settings
@takes_fields(PublishOptions)
def publish_command(options: PublishOptions) -> None:
    """Publish a Hub repo that needs no vidcom2 to load: code, config.json, card and weights in one commit.

    Where the Hub can, it copies the weights from the base's commit, and nothing large is uploaded. Log in first:
    `hf auth login`.
    """
    with one_line_errors():
        options.check()
        if toy_of(options.base) is None and "/" not in str(options.base) and not Path(str(options.base)).exists():
            check_hub_id(str(options.base))
        with status("Importing Transformers ..."):
            from huggingface_hub import HfApi

            from ..hub_upload.publish_repo import prepare
            from ..hub_upload.publishing import publish
            from ..hub_upload.verification import failures
        api = HfApi()
        with tempfile.TemporaryDirectory() as scratch:
            with status("Preparing ...") as report:
                prepared = prepare(
                    api,
                    options,
                    options.folder or Path(scratch, "repo"),
                    lambda what: report(None if what is None else f"{what} ..."),
                )
            for note in prepared.notes:
                err.print(f"[yellow]Note:[/] {escape(note)}", highlight=False, soft_wrap=True)
            if prepared.checks:
                _print_checks(prepared.checks, "what was staged")
            if failures(prepared.checks):
                raise typer.Exit(1)
            _print_operations(prepared.operations, options.target, prepared.remote)
            if options.dry_run:
                print_line(escape(f"Staged in {options.folder}; nothing was sent. {prepared.weights}"))
                return
            done = publish(api, options, prepared.staged, prepared.remote, prepared.operations)
    if done.pull_request is not None:
        text = f"Pull request: {done.pull_request}"
    elif done.commit is None:
        text = f"{done.url} already held all of it, at {done.head}"
    else:
        text = f"Published {done.url} at {done.commit}"
    print_line(escape(text + (f", tagged {options.tag}" if options.tag else "")))


def verify_command(
    repo: Annotated[str, typer.Argument(help="Hub id, or a folder.", metavar="REPO_OR_FOLDER")],
    revision: Annotated[str | None, typer.Option(help="Commit, tag or branch.", show_default="main")] = None,
    device: Annotated[str, typer.Option(help="`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`.")] = "auto",
) -> None:
    """Use a repo as its users will, in a fresh process without `vidcom2`, and show what works.

    This runs the repo's code. The exit code is 1 if anything fails.
    """
    with one_line_errors():
        if "/" not in repo and not Path(repo).exists():
            check_hub_id(repo)
        check_machine(Placement(device=device))
        with status("Importing PyTorch ..."):
            from ..loading.devices import torch_device

            where = str(torch_device(device))
        with status("Importing Transformers ..."):
            from ..hub_upload.verification import failures, verify
        with status(f"Verifying {repo} in a fresh process ...") as report:
            if not Path(repo).is_dir():
                report(None)  # while huggingface_hub shows its own progress
            checks = verify(repo, revision, where, lambda check: report(f"Verified: {check.name} ..."))
        _print_checks(checks, repo)
        if failures(checks):
            raise typer.Exit(1)


def _print_checks(checks: "list[Check]", title: str) -> None:
    table = Table(title=escape(f"Verification of {title}"))
    for column in ("check", "", "found"):
        table.add_column(column, overflow="fold")
    for check in checks:
        table.add_row(check.name, f"[{STATUS_STYLES[check.status]}]{check.status}[/]", escape(check.detail))
    out.print(table)


def _print_operations(operations: "list[Operation]", repo: str, remote: "Remote") -> None:
    where = f"a new repo {repo}" if remote.head is None else f"{repo} on top of {remote.head}"
    print_line(escape(f"One commit in {where}, operations: {len(operations)}"))
    for operation in operations:
        size = "" if operation.size is None else f"{operation.size:,}"
        source = f"  <- {operation.source}" if operation.action == "copy" else ""
        line = f"{operation.action:6} {size:>15}  {operation.sha256 or '':64}  {operation.path}{source}"
        print_line(escape(line))
