"""One commit that makes a Hub repo what was staged: weights copied on the server, all else uploaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import (
    CommitInfo,
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    ModelCard,
)
from huggingface_hub.errors import FileDuplicationError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils.sha import git_hash

from .base_checkpoint import download
from .hub_calls import PublishError, hub_errors, with_retries
from .model_card import MARKER
from .shipped_code import CUSTOM_GENERATE, sha256_of
from .staging import CARD, StagedRepo

REPLACED_SUFFIXES = (".safetensors", ".safetensors.index.json", ".py", ".bin", ".pt", ".pth", ".ckpt", ".pkl")
NEW_REPO_FILES = {".gitattributes"}


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
    """A repo on the Hub as it is: `head` is its commit, `files` maps paths to sha256 of LFS files, or to git's blob id.
    A repo that does not exist has neither."""

    head: str | None
    files: dict[str, str]
    private: bool | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Published:
    """What was done. `commit` is None if the repo held all of it before."""

    url: str
    commit: str | None
    head: str
    pull_request: str | None = None


def remote_state(api: HfApi, repo: str) -> Remote:
    """What is in the repo now."""
    with hub_errors(repo):
        try:
            info = with_retries(lambda: api.model_info(repo, files_metadata=True))
            refs = with_retries(lambda: api.list_repo_refs(repo))
        except RepositoryNotFoundError:
            return Remote(None, {})
    files = {
        sibling.rfilename: sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id
        for sibling in info.siblings
    }
    return Remote(info.sha, files, info.private, tuple(tag.name for tag in refs.tags))


def check_target(
    api: HfApi, repo: str, remote: Remote, *, force: bool, private: bool, tag: str | None, pull_request: bool
) -> None:
    """Refuse what would harm a repo that exists.

    Raises:
        PublishError: if it holds files that `vidcom2 publish` did not write, has the tag, or is public where a private
            one is asked for.
    """
    if tag is not None and pull_request:
        raise PublishError("`--tag` names a commit of the repo, which a pull request is not yet. Tag it after merging.")
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
    if remote.files.keys() <= NEW_REPO_FILES or force or pull_request:
        return
    if CARD in remote.files:
        with hub_errors(repo):
            card = with_retries(lambda: api.hf_hub_download(repo, CARD, revision=remote.head))
        if MARKER in ModelCard.load(card, ignore_metadata_errors=True).text:
            return
    shown = ", ".join(sorted(remote.files)[:5])
    raise PublishError(
        f"{repo!r} holds {len(remote.files)} files that `vidcom2 publish` did not write ({shown} ...). "
        "Choose another repo, open a pull request with `--pr`, or overwrite them with `--force`."
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
    return operations + [
        Operation("delete", path) for path in sorted(remote.files) if path not in kept and _is_ours(path)
    ]


def _is_ours(path: str) -> bool:
    """Whether a file of another checkpoint or of older code, which must not stay beside the new ones."""
    return path.endswith(REPLACED_SUFFIXES) and ("/" not in path or path.startswith(f"{CUSTOM_GENERATE}/"))


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
    return error.response.status_code == 403 and str(error.response.url).endswith("/lfs-files/duplicate")


def _tag(api: HfApi, repo: str, tag: str, commit: str) -> None:
    with_retries(lambda: api.create_tag(repo, tag=tag, revision=commit, exist_ok=True))
    tags = {ref.name: ref.target_commit for ref in with_retries(lambda: api.list_repo_refs(repo)).tags}
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

    def landed() -> CommitInfo | None:
        """The commit, if it was made and only the answer was lost."""
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
