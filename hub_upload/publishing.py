"""One commit that makes a Hub repo what was staged: weights copied on the server, all else uploaded."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import (
    CommitInfo,
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
)
from huggingface_hub.errors import (
    FileDuplicationError,
    HfHubHTTPError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils.sha import git_hash

from ..shipped_code import CUSTOM_GENERATE, sha256_of
from .base_checkpoint import INDEX, SINGLE_FILE, download, is_read
from .hub_calls import HUB_ERRORS, PublishError, hub_errors, route_of, with_retries
from .model_card import CUSTOM_GENERATE_MARKER, MODEL_MARKER, listed_files
from .staging import CARD, StagedRepo

NEW_REPO_FILES = {".gitattributes"}
# Files that would change what is loaded, beside those that Transformers reads of any checkpoint.
DECISIVE_FILES = {SINGLE_FILE, INDEX, "adapter_config.json", f"{CUSTOM_GENERATE}/generate.py"}


@dataclass(frozen=True)
class Operation:
    """One line of the commit.

    Attributes:
        action: `"add"` (upload), `"copy"` (on the server) or `"delete"`.
        path: in the repo.
        size: bytes; None for a deletion.
        sha256: of the content; None for a deletion.
        source: the file to upload, or `name@revision` of the repo to copy from.
    """

    action: str
    path: str
    size: int | None = None
    sha256: str | None = None
    source: str = ""


@dataclass(frozen=True)
class Remote:
    """A repo on the Hub as it is; one that does not exist has no `head`.

    Attributes:
        head: its commit.
        files: path -> sha256 of LFS files, git's blob id of others.
        card: README.md, empty if there is none.
    """

    head: str | None
    files: dict[str, str]
    private: bool | None = None
    tags: tuple[str, ...] = ()
    card: str = ""

    @property
    def listed(self) -> dict[str, str]:
        """Path -> sha256 of what an earlier publication put there, by its card."""
        return listed_files(self.card) if MODEL_MARKER in self.card or CUSTOM_GENERATE_MARKER in self.card else {}


@dataclass(frozen=True)
class Published:
    """What was done. `commit` is None if the repo held all of it before."""

    url: str
    commit: str | None
    head: str
    pull_request: str | None = None


def remote_state(api: HfApi, repo: str, tries: int | None = None) -> Remote:
    """What is in the repo now.

    Args:
        tries: how often a Hub that does not answer is asked.

    Raises:
        HubUnreachable: if it never answers.
        PublishError: if it refuses.
    """
    with hub_errors(repo):
        try:
            info = with_retries(lambda: api.model_info(repo, files_metadata=True), tries=tries)
            refs = with_retries(lambda: api.list_repo_refs(repo))
        except RepositoryNotFoundError:
            return Remote(None, {})
        files = {
            sibling.rfilename: sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id
            for sibling in info.siblings
        }
        card = ""
        if CARD in files:
            path = with_retries(lambda: api.hf_hub_download(repo, CARD, revision=info.sha))
            card = Path(path).read_text(encoding="utf-8")
    return Remote(info.sha, files, info.private, tuple(tag.name for tag in refs.tags), card)


def check_login(api: HfApi, repo: str, remote: Remote) -> None:
    """Refuse early who is not logged in, or may not make the repo.

    Raises:
        PublishError: saying which.
    """
    with hub_errors(repo):
        try:
            me = with_retries(api.whoami)
        except LocalTokenNotFoundError as error:
            raise PublishError("you are not logged in. Log in with `hf auth login`.") from error
    names = {me["name"], *(org["name"] for org in me.get("orgs", []))}
    if remote.head is None and repo.split("/")[0] not in names:
        raise PublishError(f"{repo!r} is not in a namespace of yours: {', '.join(sorted(names))}. Choose one of these.")


def check_target(
    repo: str, remote: Remote, marker: str, *, force: bool, private: bool, tag: str | None, pull_request: bool
) -> None:
    """Refuse what would harm a repo that exists.

    Args:
        marker: of the card that is to be published.

    Raises:
        PublishError: if the repo is of another kind, holds what `vidcom2 publish` did not put there, has the tag, or is
            public where a private one is asked for.
    """
    if tag is not None and pull_request:
        raise PublishError("`--tag` names a commit of the repo, which a pull request is not yet. Tag it after merging.")
    if tag is not None and (not re.fullmatch(r"[\w.+/-]+", tag) or ".." in tag):
        raise PublishError(f"{tag!r} cannot be a tag. Use letters, digits and `.`, `-`, `_`, such as v1.")
    if remote.head is None:
        if pull_request:
            raise PublishError(f"there is no repo {repo!r} to open a pull request in. Publish without `--pr`.")
        return
    if tag in remote.tags:
        raise PublishError(f"{repo!r} has a tag {tag!r}, which may be pinned by users. Choose another.")
    if private and not remote.private:
        raise PublishError(
            f"{repo!r} exists and is public. Make it private on the Hub first, or leave out `--private`."
        )
    if remote.listed and marker not in remote.card:
        raise PublishError(f"{repo!r} is a repo of the other kind: a model, or `custom_generate`. Choose another name.")
    if remote.files.keys() <= NEW_REPO_FILES or force or pull_request:
        return
    if not remote.listed:
        shown = ", ".join(sorted(remote.files)[:5])
        raise PublishError(
            f"{repo!r} holds {len(remote.files)} files that `vidcom2 publish` did not write ({shown} ...). "
            "Choose another repo, open a pull request with `--pr`, or overwrite them with `--force`."
        )
    weights = {path: sha for path, sha in remote.listed.items() if path.endswith(".safetensors")}
    if changed := [path for path, sha in weights.items() if remote.files.get(path, sha) != sha]:
        raise PublishError(
            f"{repo!r} has got other weights since it was published, {changed}: trained ones perhaps. Publish into "
            "another repo, or replace them with `--force`."
        )


def check_deletions(repo: str, operations: Sequence[Operation], remote: Remote, *, force: bool) -> None:
    """Refuse to delete, without `force`, what an earlier publication did not put there.

    Raises:
        PublishError: if there are such files.
    """
    foreign = [op.path for op in operations if op.action == "delete" and op.path not in remote.listed]
    if foreign and not force:
        raise PublishError(
            f"{repo!r} holds {foreign}, which would change what is loaded, and which `vidcom2 publish` did not write. "
            "Remove them yourself, or with `--force`."
        )


def plan(staged: StagedRepo, remote: Remote, server_copies: bool = True) -> list[Operation]:
    """The operations that turn the repo into what was staged; what it holds already is left out.

    Args:
        server_copies: copy the weights on the server where it can; else upload them.
    """
    base = staged.base
    weights = {} if base is None else {file.path: file for file in base.weights}
    on_server = {} if base is None or not server_copies else {file.path: file for file in base.files if file.on_server}
    operations = []
    for path in sorted({*staged.files, *weights}):
        source = base.folder / path if path in weights else staged.folder / path
        sha256 = weights[path].sha256 if path in weights else sha256_of(source)
        size = weights[path].size if path in weights else source.stat().st_size
        if remote.files.get(path) == sha256:
            continue
        if path in on_server:
            operations.append(Operation("copy", path, size, sha256, f"{base.name}@{base.revision}"))
        elif path in weights or remote.files.get(path) != git_hash(source.read_bytes()):
            operations.append(Operation("add", path, size, sha256, str(source)))
    kept = {*staged.files, *weights}
    stale = [
        path
        for path in remote.files
        if path not in kept and (path in remote.listed or path in DECISIVE_FILES or is_read(path))
    ]
    return operations + [Operation("delete", path) for path in sorted(stale)]


def publish(
    api: HfApi,
    repo: str,
    staged: StagedRepo,
    remote: Remote,
    *,
    private: bool = False,
    tag: str | None = None,
    pull_request: bool = False,
    message: str = "Publish with vidcom2",
) -> Published:
    """Make the repo what was staged, in one commit on top of `remote.head`.

    Until that commit nothing of it is to be seen in the repo. If it fails, doing the same again goes on from there:
    weights that were uploaded are not uploaded twice.

    Raises:
        PublishError: if the Hub refuses or cannot be reached, or if the repo changed meanwhile.
    """
    with hub_errors(repo):
        if remote.head is None:
            with_retries(lambda: api.create_repo(repo, private=private, exist_ok=True))
            remote = remote_state(api, repo)
            if not remote.files.keys() <= NEW_REPO_FILES:
                raise PublishError(f"{repo!r} was filled by someone else meanwhile. Look at it, and run again.")
        url = f"{api.endpoint}/{repo}"
        operations = plan(staged, remote)
        if operations:
            try:
                commit = _commit(api, repo, staged, remote, operations, pull_request, message)
            except (FileDuplicationError, HfHubHTTPError) as error:
                if not _is_refused_copy(error):
                    raise
                operations = plan(staged, remote, server_copies=False)
                commit = _commit(api, repo, staged, remote, operations, pull_request, message)
            done = Published(url, commit.oid, commit.oid, commit.pr_url)
        else:
            done = Published(url, None, remote.head)
        if tag is not None:
            _tag(api, repo, tag, done.head)
        return done


def _is_refused_copy(error: Exception) -> bool:
    """Whether the Hub cannot copy weights between these two repos: of different regions, or not for this user."""
    if isinstance(error, FileDuplicationError):
        return True
    is_about_copying = route_of(error).endswith("/lfs-files/duplicate")
    return is_about_copying and 400 <= error.response.status_code < 500 and error.response.status_code not in (401, 429)


def _tag(api: HfApi, repo: str, tag: str, commit: str) -> None:
    try:
        with_retries(lambda: api.create_tag(repo, tag=tag, revision=commit, exist_ok=True))
        tags = {ref.name: ref.target_commit for ref in with_retries(lambda: api.list_repo_refs(repo)).tags}
    except HUB_ERRORS as error:
        why = error.response.status_code if isinstance(error, HfHubHTTPError) else type(error).__name__
        raise PublishError(
            f"{repo!r} is published at {commit}, but the Hub did not tag it {tag!r} ({why}). Run again to tag it."
        ) from error
    if tags.get(tag) != commit:
        raise PublishError(
            f"{repo!r} is published at {commit}, but its tag {tag!r} names {tags.get(tag)}. Tag it anew."
        )


def _commit(
    api: HfApi,
    repo: str,
    staged: StagedRepo,
    remote: Remote,
    operations: Sequence[Operation],
    pull_request: bool,
    message: str,
) -> CommitInfo:
    missing = [
        operation.path for operation in operations if operation.action == "add" and not Path(operation.source).is_file()
    ]
    if missing:  # weights on the Hub that it cannot copy
        with_retries(lambda: download(api, staged.base, missing))

    def commit() -> CommitInfo:
        return api.create_commit(
            repo,
            [_hub_operation(operation) for operation in operations],
            commit_message=message,
            parent_commit=remote.head,
            create_pr=pull_request,
        )

    def landed(error: Exception) -> CommitInfo | None:
        """The commit, if it was made and only the answer was lost."""
        if "/commit/" not in route_of(error):
            return None
        if pull_request:
            raise PublishError(
                f"the Hub did not answer: a pull request may have been opened in {repo!r}. Look there before you try "
                "again."
            )
        now = remote_state(api, repo)
        if now.head == remote.head or plan(staged, now):
            return None
        return CommitInfo(
            commit_url=f"{api.endpoint}/{repo}/commit/{now.head}",
            commit_message=message,
            commit_description="",
            oid=now.head,
            _endpoint=api.endpoint,
        )

    return with_retries(commit, landed)


def _hub_operation(operation: Operation) -> CommitOperationAdd | CommitOperationCopy | CommitOperationDelete:
    if operation.action == "delete":
        return CommitOperationDelete(operation.path)
    if operation.action == "add":
        return CommitOperationAdd(operation.path, operation.source)
    name, _, revision = operation.source.rpartition("@")
    return CommitOperationCopy(
        operation.path, operation.path, src_repo_id=name, src_repo_type="model", src_revision=revision
    )
