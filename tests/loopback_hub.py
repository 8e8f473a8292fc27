"""A Hugging Face Hub on 127.0.0.1 for tests that publish. The real client talks to it, and nothing leaves the machine.

    with LoopbackHub(tmp_path / "hub") as hub:
        hub.seed("org/base", folder)  # makes a repository with these files, without a client
        subprocess.run([...], env=hub.environment(tmp_path / "home", token="hf_test"))  # a user's process
        with hub.online(tmp_path / "home"):  # the client in this process, which conftest.py keeps offline
            HfApi(endpoint=hub.url, token="hf_test").create_commit(...)
        assert hub.read("org/new", "config.json") == b"..."

Weights travel as they do on the Hub: through `hf_xet`, whose own store on disk (`local:///folder`) stands in for the
Xet servers. They never pass through this server, so a client that asked for no `xet-write-token` uploaded no weights.
Only one process at a time can have that store open. While another process moves weights, this one must not read any
(`hub.read`).

Inside `online` a test passes `token=`, and calls the client's `HfApi(endpoint=hub.url)` or its module-level functions,
which then talk to this Hub too. Load models with remote code in a separate process.
"""

import base64
import codecs
import hashlib
import json
import os
import re
import socket
import struct
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

LFS_SUFFIXES = (".safetensors", ".bin", ".png", ".jpg", ".gif", ".mp4", ".pt", ".onnx")
GIT_ATTRIBUTES = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LFS_SUFFIXES).encode()
NEW_SPACE_CARD = b"""---
title: Demo
sdk: gradio
---

Check out the configuration reference at https://huggingface.co/docs/hub/spaces-config-reference
"""
MESSAGES = {403: "Forbidden", 409: "Conflict", 412: "A commit has happened since. Please refresh and try again."}


@dataclass(frozen=True)
class Blob:
    """A file's contents. LFS files have a `sha256`, and their `content` is None when the bytes are in the Xet store."""

    size: int
    oid: str  # git's name for it, or for the pointer file if the contents are in LFS
    sha256: str | None = None
    xet_hash: str | None = None
    content: bytes | None = field(default=None, repr=False)

    @classmethod
    def regular(cls, content: bytes) -> "Blob":
        return cls(len(content), hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(), content=content)

    @classmethod
    def lfs(cls, sha256: str, size: int, xet_hash: str | None = None, content: bytes | None = None) -> "Blob":
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
        return cls(size, cls.regular(pointer).oid, sha256, xet_hash, content)

    def described(self, path: str) -> dict[str, Any]:
        """Return the file's entry in listings."""
        lfs = {"lfs": {"oid": self.sha256, "size": self.size, "pointerSize": 134}} if self.sha256 else {}
        xet = {"xetHash": self.xet_hash} if self.xet_hash else {}
        return {"type": "file", "path": path, "size": self.size, "oid": self.oid, **lfs, **xet}


@dataclass(frozen=True)
class Commit:
    oid: str
    title: str
    files: dict[str, Blob]


@dataclass
class Repo:
    private: bool
    refs: dict[str, Commit] = field(default_factory=dict)  # refs/heads/main, refs/tags/v1, refs/pr/1
    commits: dict[str, Commit] = field(default_factory=dict)
    objects: dict[str, Blob] = field(default_factory=dict)  # LFS files the repository may point to, by sha256
    uploading: bool = False  # whether somebody may write to the Xet store for it


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # including the query
    status: int | None  # None: the client got no answer
    body_bytes: int  # how many were received


@dataclass
class Call:
    """A request on its way through the routes. `user` is None without a token."""

    method: str
    query: dict[str, str]
    headers: Any
    body: bytes
    user: dict[str, Any] | None

    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    def may_write(self, name: str) -> bool:
        owner = name.removeprefix("spaces/").split("/")[0]
        return self.user is not None and owner in (self.user["name"], *self.user["orgs"])


@dataclass
class Answer:
    body: Any = None  # bytes, or an object to send as JSON
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class Refusal(Exception):
    def __init__(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **headers}
        self.answer = Answer({"error": message}, status, headers)


@dataclass
class Fault:
    method: str
    path: re.Pattern[str]
    times: int
    answer: Answer | None
    drop: bool
    after_bytes: int | None
    answer_lost: bool
    before: Callable[[], Any] | None


ROUTES: list[tuple[str, re.Pattern[str], Callable[..., Answer]]] = []


def route(methods: str, path: str) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Register a method of `LoopbackHub`. `{name}` is one part of the path, `{repo}` two, `{path*}` all the rest."""
    pattern = path.replace("{repo}", "(?P<repo>(?:spaces/)?[^/]+/[^/]+)").replace("/{path*}", "(?:/(?P<path>.+))?")
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern)

    def register(handler: Callable[..., Answer]) -> Callable[..., Answer]:
        ROUTES.extend((method, re.compile(pattern), handler) for method in methods.split())
        return handler

    return register


def is_lfs(path: str, size: int, sample: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample, final=size == len(sample))
    except UnicodeDecodeError:
        return True
    return size > 0 and (path.endswith(LFS_SUFFIXES) or size > 1_000_000 or b"\0" in sample)


def card_metadata(card: str) -> Any:
    front_matter = re.match(r"---\r?\n(.*?)\r?\n---\s", card + "\n", re.DOTALL)
    return yaml.safe_load(front_matter[1]) if front_matter else None


class LoopbackHub:
    """The server. `tokens` maps a token to its user; `folder` holds the Xet store."""

    def __init__(self, folder: Path) -> None:
        self.tokens: dict[str, dict[str, Any]] = {"hf_test": {"name": "ada", "orgs": ["org"]}}
        self.store = folder.resolve()
        self.store.mkdir(parents=True, exist_ok=True)
        self.repos: dict[str, Repo] = {}
        self.requests: list[Request] = []
        self.errors: list[str] = []  # tracebacks of failures in this fixture itself
        self._seen: list[str] = []
        self._faults: list[Fault] = []
        self._commits = 0
        self._lock = threading.RLock()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="loopback-hub")

    def __enter__(self) -> "LoopbackHub":
        self._thread.start()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if kind is None and self.errors:
            raise AssertionError("the loopback Hub failed:\n" + "\n".join(self.errors))

    # What tests use

    def create(self, name: str, private: bool = False) -> None:
        """Create an empty repository, or a Space if its name begins with `spaces/`. Like the Hub's, it begins with a
        commit that holds .gitattributes and, in a Space, a card."""
        self.repos[name] = Repo(private)
        card = {"README.md": NEW_SPACE_CARD} if name.startswith("spaces/") else {}
        self.commit(name, {".gitattributes": GIT_ATTRIBUTES, **card}, "initial commit")

    def commit(self, name: str, files: dict[str, bytes | Blob | None], message: str = "A commit") -> str:
        """Add a commit without any client, and return its oid. `files` holds contents to write, or None to delete."""
        ref = "refs/heads/main"
        with self._lock:
            parent = self.repos[name].refs.get(ref)
            tree = dict(parent.files) if parent else {}
            for path, content in files.items():
                tree.pop(path, None)
                if content is not None:
                    tree[path] = Blob.regular(content) if isinstance(content, bytes) else content
            return self._add_commit(self.repos[name], ref, message, tree).oid

    def seed(self, name: str, folder: Path) -> str:
        """Commit a folder to a repository, new or old, and return the oid. Weights go to the Xet store."""
        if name not in self.repos:
            self.create(name)
        files: dict[str, bytes | Blob | None] = {}
        large: dict[str, Any] = {}
        with self._xet_session().new_upload_commit(endpoint=f"local://{self.store}") as upload:
            for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                path, content = file.relative_to(folder).as_posix(), file.read_bytes()
                if is_lfs(path, len(content), content[:512]):
                    large[path] = upload.start_upload_file(str(file), sha256=hashlib.sha256(content).hexdigest())
                else:
                    files[path] = content
        for path, handle in large.items():
            info = handle.result().xet_info
            blob = Blob.lfs(info.sha256, info.file_size, info.hash)
            files[path] = self.repos[name].objects[info.sha256] = blob
        return self.commit(name, files, f"Upload {folder.name}")

    def head(self, name: str, revision: str = "main") -> str:
        return self._at(name, revision).oid

    def files(self, name: str, revision: str = "main") -> dict[str, Blob]:
        return dict(self._at(name, revision).files)

    def read(self, name: str, path: str, revision: str = "main") -> bytes:
        return self._bytes(self._at(name, revision).files[path])

    def fail(
        self,
        method: str,
        path: str,
        *,
        status: int | None = None,
        times: int = 1,
        after_bytes: int | None = None,
        drop: bool = False,
        answer_lost: bool = False,
        before: Callable[[], Any] | None = None,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Let the next `times` requests fail whose path, unquoted and with the query, has a match for `path`.

        By default, or with `status` (and `body`, `headers`), they get that answer and are not carried out. With `drop`
        the connection is reset after `after_bytes` of the request's body, or all of it, and nothing is carried out.
        With `answer_lost` the request is carried out, and the connection is reset instead of an answer. `before` is
        called before the request is carried out. On its own it changes nothing else.
        """
        if status is None and body is None and not (drop or answer_lost or before):
            status = 500
        answer = None
        if status is not None or body is not None:
            status = status or 200
            message = MESSAGES.get(status, f"Error {status}")
            explained = {"X-Error-Message": message} if status >= 400 else {}
            answer = Answer(body or {"error": message}, status, {**explained, **(headers or {})})
        fault = Fault(method, re.compile(path), times, answer, drop, after_bytes, answer_lost, before)
        self._faults.append(fault)

    def mend(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def log_text(self) -> str:
        """Return all that clients sent, with base64 contents as text, without the Authorization headers."""
        return "\n".join(self._seen)

    def environment(self, home: Path, token: str | None = "hf_test") -> dict[str, str]:
        """Return the environment of a user's process, with its own home folder and perhaps a token."""
        kept = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "TMPDIR", "LANG")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        environment |= {"HOME": str(home), "HF_HOME": str(home / "huggingface"), "HF_ENDPOINT": self.url}
        environment |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
        return environment | ({"HF_TOKEN": token} if token else {})

    @contextmanager
    def online(self, home: Path, waiting: bool = False) -> Iterator[None]:
        """Let `huggingface_hub` in this process talk to this Hub, with `home` as the user's home.

        No token is implicit inside. The client does not sleep between retries unless `waiting`.
        """
        from huggingface_hub import close_session, constants, hf_api
        from huggingface_hub.utils import _http, _xet

        home = home / "huggingface"
        changed = {"HF_HUB_OFFLINE": False, "ENDPOINT": self.url, "HF_HOME": str(home)}
        changed["HUGGINGFACE_CO_URL_TEMPLATE"] = self.url + "/{repo_id}/resolve/{revision}/{filename}"
        changed |= {"HF_HUB_CACHE": str(home / "hub"), "HF_XET_CACHE": str(home / "xet")}
        changed |= {"HF_TOKEN_PATH": str(home / "token"), "HF_STORED_TOKENS_PATH": str(home / "stored_tokens")}
        with ExitStack() as stack:
            environment = {"HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
            stack.enter_context(mock.patch.dict(os.environ, environment))
            for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
                os.environ.pop(name, None)
            stack.enter_context(mock.patch.multiple(constants, **changed))
            stack.enter_context(mock.patch.object(hf_api.api, "endpoint", self.url))
            # Transformers keeps one with the first address that it saw. 5.19 has none.
            stack.enter_context(mock.patch("transformers.utils.hub._hf_api", None, create=True))
            stack.enter_context(mock.patch.object(_xet, "_GLOBAL_XET_HOLDER", _xet.XetSessionHolder()))
            if not waiting:
                no_sleep = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
                stack.enter_context(mock.patch.object(_http, "time", no_sleep))
                os.environ["HF_XET_CLIENT_RETRY_MAX_ATTEMPTS"] = "2"
            stack.callback(close_session)
            stack.callback(_xet.XET_CONNECTION_INFO_CACHE.clear)
            close_session()
            yield

    # The repositories

    def _at(self, name: str, revision: str) -> Commit:
        repo = self.repos[name]
        for ref in (f"refs/heads/{revision}", f"refs/tags/{revision}", revision):
            if ref in repo.refs:
                return repo.refs[ref]
        if revision in repo.commits:
            return repo.commits[revision]
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def _add_commit(self, repo: Repo, ref: str, title: str, files: dict[str, Blob]) -> Commit:
        self._commits += 1
        oid = hashlib.sha1(f"{self._commits} {title}".encode()).hexdigest()
        repo.refs[ref] = repo.commits[oid] = commit = Commit(oid, title, dict(sorted(files.items())))
        return commit

    def _xet_files(self) -> dict[str, Blob]:
        """Return the files in the Xet store by sha256. Its shards hold 48-byte records, the last of 0xff bytes.

        A file has a head (hash, flags, number of segments), its segments, as many checksums, and one more record with
        its sha256.
        """

        def text(digest: bytes) -> str:  # Xet writes a hash as four little-endian numbers
            return "".join(f"{number:016x}" for number in struct.unpack("<4Q", digest))

        found = {}
        for shard in (self.store / "xet/xorbs/shards").glob("*.mdb"):
            records = shard.read_bytes()
            at = 48
            while (digest := records[at : at + 32]) != b"\xff" * 32:
                flags, count = struct.unpack("<II", records[at + 32 : at + 40])
                segments = [at + 48 * (1 + index) for index in range(count)]
                size = sum(struct.unpack("<I", records[start + 36 : start + 40])[0] for start in segments)
                at += 48 * (1 + count * (2 if flags & 1 << 31 else 1))
                if flags & 1 << 30:
                    sha256 = text(records[at : at + 32])
                    found[sha256] = Blob.lfs(sha256, size, text(digest))
                    at += 48
        return found

    def _xet_session(self) -> Any:
        from hf_xet import XetSession

        with mock.patch.dict(os.environ, {"HF_HOME": str(self.store)}):  # where its logs go
            return XetSession()

    def _bytes(self, blob: Blob) -> bytes:
        if blob.content is not None:
            return blob.content
        from hf_xet import XetFileInfo

        with tempfile.TemporaryDirectory(dir=self.store) as folder:
            with self._xet_session().new_file_download_group(endpoint=f"local://{self.store}") as group:
                group.start_download_file(XetFileInfo(blob.xet_hash, blob.size), f"{folder}/file")
            return Path(folder, "file").read_bytes()

    def _readable(self, call: Call, name: str) -> Repo:
        repo = self.repos.get(name)
        if repo is None or (repo.private and not call.may_write(name)):
            raise Refusal(404, "Repository not found", "RepoNotFound")
        return repo

    def _writable(self, call: Call, name: str) -> Repo:
        if call.user is None:  # the client reads a 401 as a missing repository, but on its own only over https
            raise Refusal(401, "Invalid username or password.", "RepoNotFound")
        repo = self._readable(call, name)
        if not call.may_write(name):
            raise Refusal(403, "You don't have the required permissions to perform this action")
        return repo

    # The routes

    def _answer(self, method: str, target: str, headers: Any, body: bytes) -> Answer:
        parts = urlsplit(target)
        try:
            token = headers.get("Authorization", "").removeprefix("Bearer ")
            if token and token not in self.tokens:
                raise Refusal(401, "Invalid credentials in Authorization header")
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            call = Call(method, query, headers, body, self.tokens.get(token))
            for methods, pattern, handler in ROUTES:
                path = re.sub("^/api/spaces/", "/api/models/spaces/", parts.path)  # a Space answers as a model does
                if methods == method and (match := pattern.fullmatch(path)):
                    groups = {name: unquote(value) if value else value for name, value in match.groupdict().items()}
                    with self._lock:
                        return handler(self, call, **groups)
            raise Refusal(404, "Sorry, we can't find the page you are looking for.")
        except Refusal as refusal:
            return refusal.answer

    @route("GET", "/api/whoami-v2")
    def _whoami(self, call: Call) -> Answer:
        if call.user is None:
            raise Refusal(401, "Invalid username or password.")
        orgs = [{"type": "org", "name": name, "fullname": name} for name in call.user["orgs"]]
        role = {"type": "access_token", "accessToken": {"displayName": "test", "role": "write"}}
        return Answer({"type": "user", "name": call.user["name"], "fullname": "", "orgs": orgs, "auth": role})

    @route("POST", "/api/repos/create")
    def _create(self, call: Call) -> Answer:
        if call.user is None:
            raise Refusal(401, "Invalid username or password.")
        wish = call.json()
        name = f"{wish.get('organization') or call.user['name']}/{wish['name']}"
        if wish.get("type") == "space":
            if wish.get("sdk") != "gradio":
                raise Refusal(400, "This test Hub has Gradio Spaces alone.")
            name = f"spaces/{name}"
        if not call.may_write(name):
            raise Refusal(403, f"You don't have the rights to create a model under the namespace of {name}")
        url = {"url": f"{self.url}/{name}"}
        if name in self.repos:
            return Answer({"error": "You already created this model repo", **url}, 409)
        self.create(name, wish.get("visibility") == "private" or bool(wish.get("private")))
        return Answer({"name": name, **url})

    @route("POST", "/api/validate-yaml")
    def _validate_yaml(self, call: Call) -> Answer:
        card_metadata(call.json()["content"])  # a card that is not valid makes the fixture fail
        return Answer({"errors": [], "warnings": []})

    @route("GET", "/api/models/{repo}")
    @route("GET", "/api/models/{repo}/revision/{revision}")
    def _model_info(self, call: Call, repo: str, revision: str = "main") -> Answer:
        private = self._readable(call, repo).private
        commit = self._at(repo, revision)
        siblings: list[dict[str, Any]] = [{"rfilename": path} for path in commit.files]
        if call.query.get("blobs"):
            for sibling, blob in zip(siblings, commit.files.values(), strict=True):
                sibling |= {"size": blob.size, "blobId": blob.oid}
                if blob.sha256:
                    sibling["lfs"] = {"sha256": blob.sha256, "size": blob.size, "pointerSize": 134}
        card = commit.files.get("README.md")
        data = (card_metadata(self._bytes(card).decode()) if card else None) or {}
        described = {name: data[name] for name in ("pipeline_tag", "library_name") if name in data}
        name = repo.removeprefix("spaces/")
        info = {"id": name, "modelId": name, "author": name.split("/")[0], "sha": commit.oid, "private": private}
        return Answer({**info, "tags": data.get("tags", []), "cardData": data, "siblings": siblings, **described})

    def _listed(self, commit: Commit, path: str) -> dict[str, Any]:
        if path in commit.files:
            return commit.files[path].described(path)
        return {"type": "directory", "path": path, "size": 0, "oid": Blob.regular(path.encode()).oid}

    def _folders(self, commit: Commit) -> set[str]:
        return {parent.as_posix() for path in commit.files for parent in Path(path).parents} - {"."}

    @route("GET", "/api/models/{repo}/tree/{revision}/{path*}")
    def _tree(self, call: Call, repo: str, revision: str, path: str | None) -> Answer:
        self._readable(call, repo)
        commit = self._at(repo, revision)
        folders, start = self._folders(commit), f"{path}/" if path else ""
        if path and path not in folders:
            raise Refusal(404, f"{path} does not exist on {revision}", "EntryNotFound", **{"X-Repo-Commit": commit.oid})
        names = [name for name in sorted({*commit.files, *folders}) if name.startswith(start)]
        if call.query.get("recursive", "").lower() not in ("true", "1"):
            names = [name for name in names if "/" not in name[len(start) :]]
        return Answer([self._listed(commit, name) for name in names])

    @route("POST", "/api/models/{repo}/paths-info/{revision}")
    def _paths_info(self, call: Call, repo: str, revision: str) -> Answer:
        self._readable(call, repo)
        commit, form = self._at(repo, revision), parse_qs(call.body.decode())
        known = {*commit.files, *self._folders(commit)}
        paths = [path.strip("/") for path in form.get("paths", [])]
        return Answer([self._listed(commit, path) for path in paths if path in known])

    @route("GET HEAD", "/{repo}/resolve/{revision}/{path*}")
    def _resolve(self, call: Call, repo: str, revision: str, path: str) -> Answer:
        self._readable(call, repo)
        commit = self._at(repo, revision)
        headers = {"X-Repo-Commit": commit.oid}
        if path not in commit.files:
            raise Refusal(404, "Entry not found", "EntryNotFound", **headers)
        blob = commit.files[path]
        headers["ETag"] = f'"{blob.sha256 or blob.oid}"'
        if blob.sha256:
            headers |= {"X-Linked-ETag": headers["ETag"], "X-Linked-Size": str(blob.size)}
        if blob.xet_hash:
            route = f"{self.url}/api/models/{repo}/xet-read-token/{commit.oid}"
            headers |= {"X-Xet-Hash": blob.xet_hash, "X-Xet-Refresh-Route": route}
        if call.method == "HEAD":
            return Answer(b"", headers={**headers, "Content-Length": str(blob.size)})
        return Answer(self._bytes(blob), headers=headers)

    @route("GET", "/api/models/{repo}/xet-(?P<right>read|write)-token/{revision}")
    def _xet_token(self, call: Call, repo: str, right: str, revision: str) -> Answer:
        if right == "write":
            self._writable(call, repo).uploading = True
        self._readable(call, repo)
        url, expiry = f"local://{self.store}", int(time.time()) + 3600
        headers = {"X-Xet-Cas-Url": url, "X-Xet-Access-Token": "xet", "X-Xet-Token-Expiration": str(expiry)}
        return Answer({"casUrl": url, "accessToken": "xet", "exp": expiry}, headers=headers)

    @route("POST", "/api/models/{repo}/preupload/{revision}")
    def _preupload(self, call: Call, repo: str, revision: str) -> Answer:
        self._writable(call, repo)
        there, files = self._at(repo, revision).files, []
        for file in call.json()["files"]:
            path = file["path"]
            lfs = is_lfs(path, file["size"], base64.b64decode(file["sample"]))
            files.append({"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False})
            if path in there:
                files[-1]["oid"] = there[path].sha256 or there[path].oid
        return Answer({"files": files})

    @route("POST", "/api/models/{repo}/lfs-files/duplicate")
    def _duplicate(self, call: Call, repo: str) -> Answer:
        wish = call.json()
        target, source, failed = self._writable(call, wish["target"]["name"]), self._readable(call, repo).objects, []
        for file in wish["files"]:
            blob = source.get(file["sha256"])
            if blob is not None and blob.xet_hash == file["xetHash"]:
                target.objects[file["sha256"]] = blob
            else:
                failed.append({"sha256": file["sha256"], "error": "File not found in the source repository"})
        return Answer({"failed": failed})

    @route("POST", "/api/models/{repo}/commit/{revision}")
    def _commit(self, call: Call, repo: str, revision: str) -> Answer:
        target, head = self._writable(call, repo), self._at(repo, revision)
        lines = [json.loads(line) for line in call.body.splitlines() if line.strip()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        wanted = header.get("parentCommit")
        if call.query.get("create_pr"):
            ref = f"refs/pr/{1 + sum(ref.startswith('refs/pr/') for ref in target.refs)}"
            parent = self._at(repo, wanted) if wanted else head
        else:
            ref = revision if revision.startswith("refs/") else f"refs/heads/{revision}"
            if ref not in target.refs:
                raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
            if wanted not in (None, head.oid):
                raise Refusal(412, MESSAGES[412])
            parent = head
        if target.uploading:
            target.objects.update({**self._xet_files(), **target.objects})
            target.uploading = False
        files = dict(parent.files)
        for line in lines:
            key, value = line["key"], line["value"]
            path = value.get("path")
            if key == "file":
                files[path] = Blob.regular(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                if value["oid"] not in target.objects:
                    why = "an LFS pointer pointed to a file that does not exist."
                    raise Refusal(400, f"Your push was rejected because {why} Offending file: - {path}")
                files[path] = target.objects[value["oid"]]
            elif key == "deletedFile" and files.pop(path, None) is None:
                raise Refusal(404, "A file with this name doesn't exist", "EntryNotFound")
        commit = self._add_commit(target, ref, header["summary"], files)
        done = {"success": True, "commitOid": commit.oid, "commitUrl": f"{self.url}/{repo}/commit/{commit.oid}"}
        if call.query.get("create_pr"):
            done["pullRequestUrl"] = f"{self.url}/{repo}/discussions/{ref.removeprefix('refs/pr/')}"
        return Answer(done)

    @route("POST", "/api/models/{repo}/tag/{revision}")
    def _tag(self, call: Call, repo: str, revision: str) -> Answer:
        refs, ref = self._writable(call, repo).refs, f"refs/tags/{call.json()['tag']}"
        if ref in refs:
            raise Refusal(409, f"Reference already exists: {ref}")
        refs[ref] = self._at(repo, revision)
        return Answer({})

    @route("GET", "/api/models/{repo}/refs")
    def _refs(self, call: Call, repo: str) -> Answer:
        refs = self._readable(call, repo).refs
        kinds = {"branches": "refs/heads/", "tags": "refs/tags/", "pullRequests": "refs/pr/"}
        listed: dict[str, Any] = {"converts": []}
        for kind, start in kinds.items():
            listed[kind] = [
                {"name": ref if kind == "pullRequests" else ref[len(start) :], "ref": ref, "targetCommit": commit.oid}
                for ref, commit in refs.items()
                if ref.startswith(start)
            ]
        return Answer(listed)


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for the threads

    def handle_error(self, *_: Any) -> None:
        pass  # a client that went away


class _Handler(BaseHTTPRequestHandler):
    """Answer one request per connection, so that none is left open when the server closes."""

    hub: LoopbackHub

    def log_message(self, *_: Any) -> None:
        pass

    def _body(self, limit: int | None) -> bytes:
        """Read the body of the request, or its first `limit` bytes."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            length = int(self.headers.get("Content-Length", 0))
            return self.rfile.read(length if limit is None else min(limit, length))
        body = b""
        while (size := int(self.rfile.readline(), 16)) and (limit is None or len(body) < limit):
            body += self.rfile.read(size)
            self.rfile.readline()
        if not size:
            self.rfile.readline()
        return body[:limit]

    def _serve(self) -> None:
        hub, path = self.hub, unquote(self.path)
        with hub._lock:
            faults = (f for f in hub._faults if f.times and f.method == self.command and f.path.search(path))
            fault = next(faults, None)
            if fault:
                fault.times -= 1
        body = self._body(fault.after_bytes if fault else None)
        answer = None
        try:
            if fault and fault.before:
                fault.before()
            if fault and fault.answer:
                answer = fault.answer
            elif not (fault and fault.drop):
                answer = hub._answer(self.command, self.path, self.headers, body)
        except Exception:
            hub.errors.append(traceback.format_exc())
            answer = Answer({"error": hub.errors[-1]}, 501)
        if fault and (fault.drop or fault.answer_lost):
            answer = None
        self._log(body, answer)
        if answer is None:
            self._reset()
        else:
            self._send(answer)

    do_GET = do_HEAD = do_POST = _serve

    def _log(self, body: bytes, answer: Answer | None) -> None:
        status = answer.status if answer else None
        self.hub.requests.append(Request(self.command, self.path, status, len(body)))
        headers = [f"{name}: {value}" for name, value in self.headers.items() if name.lower() != "authorization"]

        def decoded(match: re.Match[str]) -> str:
            try:
                return match[1] + base64.b64decode(match[2], validate=True).decode(errors="replace")
            except ValueError:
                return match[0]

        text = re.sub(r'("(?:content|sample)": ?")([\w+/=]+)', decoded, body.decode(errors="replace"))
        self.hub._seen.append("\n".join([f"{self.command} {self.path}", *headers, text]))

    def _send(self, answer: Answer) -> None:
        content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(content)), **answer.headers}.items():
            self.send_header(name, value.encode("ascii", "replace").decode())
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _reset(self) -> None:
        """End the connection so that the client sees a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()
