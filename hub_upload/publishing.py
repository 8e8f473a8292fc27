"""Make a Hub repo equal to what was staged, in one commit. Weights are copied on the server; the rest is uploaded."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi
from huggingface_hub.errors import FileDuplicationError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils.sha import git_hash

from ..loading.hub_calls import HubUnreachable, PublishError, hub_errors, route_of, status_of
from ..repo_shape import CARD, INDEX, SINGLE_FILE, listed_files
from .base_checkpoint import READ, Base, download_weights
from .model_card import MODEL_MARKER, SPACE_MARKER
from .publish_options import PublishOptions
from .staging import StagedRepo

NEW_REPO_FILES = {".gitattributes"}
# The only sentence of the card that the Hub gives a new Space.
NEW_SPACE_CARD = "Check out the configuration reference at https://huggingface.co/docs/hub/spaces-config-reference"
# Files that would change what is loaded, besides those that Transformers reads from any checkpoint.
DECISIVE = {SINGLE_FILE, INDEX, "adapter_config.json", "audio_tokenizer_config.json", "custom_generate/generate.py"}


class Operation(NamedTuple):
    """One operation of the commit.

    Attributes:
        action: `"add"` (upload), `"copy"` (on the server) or `"delete"`.
        size, sha256: those of the content; None for a deletion.
        source: the file to upload, or `name@revision` of the repo to copy from.
    """

    action: str
    path: str
    size: int | None = None
    sha256: str | None = None
    source: str = ""

    def of_hub(self) -> CommitOperationAdd | CommitOperationCopy | CommitOperationDelete:
        if self.action == "delete":
            return CommitOperationDelete(self.path)
        if self.action == "add":
            return CommitOperationAdd(self.path, self.source)
        name, _, commit = self.source.rpartition("@")
        return CommitOperationCopy(self.path, self.path, src_repo_id=name, src_repo_type="model", src_revision=commit)


@dataclass(frozen=True)
class Remote:
    """A repo on the Hub as it is now.

    Attributes:
        head: its latest commit; None if the repo does not exist.
        files: path -> sha256 of an LFS file, or git's blob id of any other file.
        tags: name -> commit.
        card: the text of README.md; empty if there is none.
    """

    head: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    private: bool | None = None
    tags: dict[str, str] = field(default_factory=dict)
    card: str = ""

    @property
    def listed(self) -> dict[str, str]:
        """Path -> sha256 of the files that an earlier publication wrote, as its card lists them."""
        return listed_files(self.card) if any(marker in self.card for marker in (MODEL_MARKER, SPACE_MARKER)) else {}

    @property
    def is_new(self) -> bool:
        card_is_new = self.card.rpartition("---")[2].strip() == NEW_SPACE_CARD
        return self.files.keys() <= NEW_REPO_FILES | ({CARD} if card_is_new else set())


@dataclass(frozen=True)
class Published:
    """The result of a publication. `commit` is None if the repo already held everything."""

    url: str
    commit: str | None
    head: str | None
    pull_request: str | None = None


def remote_state(api: HfApi, repo: str, repo_type: str = "model") -> Remote:
    """Ask the Hub what is in the repo now. Raises a PublishError if the Hub refuses, or does not answer."""
    with hub_errors(repo):
        try:
            info: Any = api.repo_info(repo, repo_type=repo_type, files_metadata=True)
            tags = api.list_repo_refs(repo, repo_type=repo_type).tags
        except RepositoryNotFoundError:
            return Remote()
        files = {file.rfilename: file.lfs.sha256 if file.lfs else file.blob_id for file in info.siblings or []}
        card = ""
        if CARD in files:
            card_file = api.hf_hub_download(repo, CARD, revision=info.sha, repo_type=repo_type)
            card = Path(card_file).read_text(encoding="utf-8", errors="replace")
    return Remote(info.sha, files, info.private, {tag.name: tag.target_commit for tag in tags}, card)


def check_login(api: HfApi, repo: str, remote: Remote) -> None:
    """Check early that the user is logged in and may create the repo. Raises a PublishError if not."""
    with hub_errors(repo):
        me = api.whoami()
    names = {me["name"], *(org["name"] for org in me.get("orgs", []))}
    if remote.head is None and repo.split("/")[0] not in names:
        raise PublishError(f"{repo!r} is not in a namespace of yours. Choose one of these: {', '.join(sorted(names))}.")


def check_target(options: PublishOptions, remote: Remote) -> None:
    """Refuse a publication that would harm an existing repo.

    Raises:
        PublishError: if the repo holds files that `vidcom2 publish` did not write, already has the tag, or is public
            although a private one is asked for.
    """
    repo, tag = options.target, options.tag
    if tag is not None and (not re.fullmatch(r"[\w.+/-]+", tag) or ".." in tag):
        raise PublishError(f"{tag!r} cannot be a tag. Use letters, digits and `.`, `-`, `_`, as in v1.")
    if remote.head is None:
        if options.pr:
            raise PublishError(f"there is no repo {repo!r} to open a pull request in. Publish without `--pr`.")
        return
    if tag in remote.tags:
        raise PublishError(f"{repo!r} already has a tag {tag!r}, which users may have pinned. Choose another.")
    if options.private and not remote.private:
        raise PublishError(
            f"{repo!r} exists and is public. Make it private on the Hub first, or leave out `--private`."
        )
    if remote.is_new or options.force or options.pr:
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
            f"{repo!r} has been given other weights since it was published, perhaps trained ones: {changed}. Publish "
            "to another repo, or replace them with `--force`."
        )


def check_deletions(options: PublishOptions, operations: Sequence[Operation], remote: Remote) -> None:
    """Raise a PublishError if files would be deleted that an earlier publication did not write, unless `--force` or
    `--pr` is given."""
    foreign = [op.path for op in operations if op.action == "delete" and op.path not in remote.listed]
    if foreign and not options.force and not options.pr:
        raise PublishError(
            f"{options.target!r} holds {foreign}, which would change what is loaded, and which `vidcom2 publish` did "
            "not write. Remove them yourself, or with `--force`."
        )


def plan(staged: StagedRepo, remote: Remote) -> list[Operation]:
    """Return the operations that turn the repo into what was staged. Files that it already holds are left out.

    `create_commit` would leave them out too, but only while it sends, so a dry run could not say what changes.
    """
    operations: list[Operation] = []
    for path in staged.files:
        file = staged.folder / path
        content = file.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        held = {sha256, git_hash(content)}
        if remote.files.get(path) in held:
            continue
        operations.append(Operation("add", path, len(content), sha256, str(file)))
    base = staged.base
    weights = () if base is None else base.weights
    for file in weights:
        if base is not None and remote.files.get(file.path) != file.sha256:
            action, source = "copy", f"{base.name}@{base.revision}"
            if base.revision is None:
                action, source = "add", str(base.folder / file.path)
            operations.append(Operation(action, file.path, file.size, file.sha256, source))
    kept = {*staged.files, *(file.path for file in weights)}
    for path in sorted(remote.files.keys() - kept):
        if path in remote.listed or (base is not None and (path in DECISIVE or READ.fullmatch(path))):
            operations.append(Operation("delete", path))
    return operations


def publish(
    api: HfApi, options: PublishOptions, staged: StagedRepo, remote: Remote, operations: Sequence[Operation]
) -> Published:
    """Carry out the operations that `plan` returned, in one commit on top of `remote.head`.

    Until that commit nothing can be seen in the repo. huggingface_hub repeats the requests that it may repeat. If
    another fails, publishing again finishes what is left, and uploads no weights twice.

    Raises:
        PublishError: if the Hub refuses or cannot be reached, or if the repo changed in the meantime.
    """
    repo, repo_type, head, pull_request = options.target, options.repo_type, remote.head, None
    with hub_errors(repo):
        if head is None:
            sdk = None if options.space is None else "gradio"
            api.create_repo(repo, private=options.private, repo_type=repo_type, space_sdk=sdk)
            head = api.repo_info(repo, repo_type=repo_type).sha
    if operations:
        commit = _commit(api, options, staged.base, head, operations)
        head, pull_request = commit.oid, commit.pr_url
    if options.tag is not None:
        try:
            with hub_errors(repo):
                api.create_tag(repo, tag=options.tag, revision=head, repo_type=repo_type)
        except PublishError as error:
            why = status_of(error.__cause__) or type(error.__cause__).__name__
            untagged = f"{repo!r} is published at {head}, but the Hub did not tag it {options.tag!r} ({why})."
            raise type(error)(f"{untagged} Run again to tag it.") from error.__cause__
    url = f"{api.endpoint}/{repo}" if options.space is None else f"{api.endpoint}/spaces/{repo}"
    return Published(url, head if operations else None, head, pull_request)


def _commit(
    api: HfApi, options: PublishOptions, base: Base | None, parent: str | None, operations: Sequence[Operation]
) -> CommitInfo:
    """Make the commit. Weights that the Hub cannot copy between the two repos are uploaded."""

    def commit(operations: Sequence[Operation]) -> CommitInfo:
        return api.create_commit(
            options.target,
            [each.of_hub() for each in operations],
            commit_message="Publish with vidcom2",
            parent_commit=parent,
            create_pr=options.pr,
            repo_type=options.repo_type,
        )

    try:
        with hub_errors(options.target):
            try:
                return commit(operations)
            except (FileDuplicationError, HfHubHTTPError, ValueError) as error:
                copies = [each.path for each in operations if each.action == "copy"]
                if base is None or not copies or not _is_refused_copy(error):
                    raise
                download_weights(api, base)
                paths = {path: str(base.folder / path) for path in copies}
                uploads = [Operation("add", path, source=source) for path, source in paths.items()]
                return commit([*(each for each in operations if each.path not in paths), *uploads])
    except HubUnreachable as error:
        if not options.pr:
            raise
        raise PublishError(
            f"the Hub did not answer, so a pull request may have been opened in {options.target!r}. Look there before "
            "you try again."
        ) from error


def _is_refused_copy(error: Exception) -> bool:
    """Return whether the Hub cannot copy these weights. They may be in another region, or older than Xet, for which
    huggingface_hub has only the words of a ValueError, or this user may not copy them."""
    text = str(error)
    if isinstance(error, FileDuplicationError) or (text.startswith("Cannot duplicate LFS") and "no xet hash" in text):
        return True
    return route_of(error).endswith("/lfs-files/duplicate") and status_of(error) in (400, 403, 404, 409, 422)
