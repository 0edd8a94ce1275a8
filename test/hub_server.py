# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face Hub in small: the requests that huggingface_hub makes for a model, over HTTP.

Large files are stored and addressed as on the hub: by their SHA-256, on a host of their own
(another name of this machine), to which the hub redirects.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = 100_000
"""Bytes from which on a file is a large one."""


def commit_of(files: dict[str, bytes]) -> str:
    digest = hashlib.sha1()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name])
    return digest.hexdigest()


@dataclass
class Repo:
    """Commits of a repository, and what is true of it."""

    card: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    token: str = ""
    """Only who sends this one may see it."""
    gated: bool = False
    claimed: dict[str, int] = field(default_factory=dict)
    """Sizes to be told of files instead of their own."""

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        name = commit_of(files)
        self.commits[name] = files
        self.branches[branch] = name
        return name

    def files(self, revision: str) -> dict[str, bytes] | None:
        return self.commits.get(self.branches.get(revision, revision))


@dataclass
class Request:
    method: str
    path: str
    host: str
    range: str
    token: str
    sent: int = 0


class HubServer:
    """Serves ``repos`` by name. A context manager.

    cuts: for the next downloads of a file name, after how many bytes the connection breaks; a
        negative number resets it (RST), a positive one ends it early (FIN).
    status: what every request is answered with; 0: as it should be.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.cuts: dict[str, list[int]] = {}
        self.status = 0
        self.held = threading.Event()
        self.hold: dict[str, int] = {}
        """Files whose download stands still after so many bytes, until ``release`` is set."""
        self.release = threading.Event()
        self.requests: list[Request] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, name: str, folder: Path, extra: dict[str, bytes] | None = None) -> Repo:
        """A repository with one commit: the files of a folder, and others."""
        files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        repo = self.repos.setdefault(name, Repo())
        repo.commit({**files, **(extra or {})})
        return repo

    def downloads(self, file: str) -> list[Request]:
        return [r for r in self.requests if r.method == "GET" and r.path.endswith(f"/{file}")]

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.serve()

            def do_GET(self) -> None:
                self.serve()

            def serve(self) -> None:
                path = unquote(urlsplit(self.path).path)
                self.seen = Request(
                    self.command,
                    path,
                    self.headers["Host"].split(":")[0],
                    self.headers.get("Range", ""),
                    self.headers.get("Authorization", "").removeprefix("Bearer "),
                )
                hub.requests.append(self.seen)
                if hub.status:
                    self.answer(hub.status, {"error": "the hub is unwell"})
                elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
                    self.model(*found.groups())
                elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                    self.resolve(*found.groups())
                elif found := re.fullmatch(r"/large/([^/]+/[^/]+)/([0-9a-f]+)/(.+)", path):
                    name, commit, file = found.groups()
                    self.content(file, hub.repos[name].commits[commit][file], {})
                else:
                    self.answer(404, {})

            def permitted(self, name: str, content: bool) -> Repo | None:
                repo = hub.repos.get(name)
                if repo is None:
                    self.answer(401 if not self.seen.token else 404, {}, "RepoNotFound")
                elif repo.gated and content and self.seen.token != repo.token:
                    self.answer(403 if self.seen.token else 401, {}, "GatedRepo")
                elif repo.token and not repo.gated and self.seen.token != repo.token:
                    self.answer(401, {}, "RepoNotFound")
                else:
                    return repo
                return None

            def model(self, name: str, revision: str) -> None:
                repo = self.permitted(name, content=False)
                if repo is None:
                    return None
                files = repo.files(revision)
                if files is None:
                    return self.answer(404, {}, "RevisionNotFound")
                siblings: list[dict[str, Any]] = []
                for file, data in files.items():
                    size = repo.claimed.get(file, len(data))
                    entry = {"rfilename": file, "size": size, "blobId": git_blob(data)}
                    if len(data) >= LARGE:
                        sha256 = hashlib.sha256(data).hexdigest()
                        entry["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 130}
                    siblings.append(entry)
                self.answer(
                    200,
                    {
                        "id": name,
                        "modelId": name,
                        "sha": commit_of(files),
                        "private": bool(repo.token) and not repo.gated,
                        "gated": "manual" if repo.gated else False,
                        "cardData": repo.card,
                        "tags": [],
                        "siblings": siblings,
                    },
                )
                return None

            def resolve(self, name: str, revision: str, file: str) -> None:
                repo = self.permitted(name, content=True)
                if repo is None:
                    return None
                files = repo.files(revision)
                if files is None:
                    return self.answer(404, {}, "RevisionNotFound")
                if file not in files:
                    return self.answer(404, {}, "EntryNotFound")
                data, commit = files[file], commit_of(files)
                headers = {"X-Repo-Commit": commit, "ETag": f'"{git_blob(data)}"'}
                if len(data) < LARGE:
                    return self.content(file, data, headers)
                headers["X-Linked-Etag"] = f'"{hashlib.sha256(data).hexdigest()}"'
                headers["X-Linked-Size"] = str(len(data))
                headers["Location"] = f"http://localhost:{hub.port}/large/{name}/{commit}/{file}"
                return self.answer(302, {}, headers=headers)

            def answer(
                self,
                status: int,
                body: dict[str, Any],
                error: str = "",
                headers: dict[str, str] | None = None,
            ) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                for key, value in (headers or {}).items():
                    self.send_header(key, value)
                if error:
                    self.send_header("X-Error-Code", error)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            def content(self, file: str, data: bytes, headers: dict[str, str]) -> None:
                begin = 0
                if asked := re.fullmatch(r"bytes=(\d+)-", self.seen.range):
                    begin = int(asked[1])
                self.send_response(206 if asked else 200)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Length", str(len(data) - begin))
                if asked:
                    self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
                self.end_headers()
                if self.command == "HEAD":
                    return
                part = data[begin:]
                cut = hub.cuts[file].pop(0) if hub.cuts.get(file) else 0
                if file in hub.hold:
                    self.send(part[: hub.hold[file]])
                    hub.held.set()
                    hub.release.wait()
                    self.connection.close()
                    self.close_connection = True
                elif cut:
                    self.send(part[: abs(cut)])
                    if cut < 0:  # a reset, not an end
                        linger = struct.pack("ii", 1, 0)
                        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.close_connection = True
                else:
                    self.send(part)

            def send(self, part: bytes) -> None:
                self.wfile.write(part)
                self.wfile.flush()
                self.seen.sent += len(part)

        return Handler


def git_blob(data: bytes) -> str:
    """The name that git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
