# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Repositories of the Hugging Face Hub: what they hold, and their files into the local cache.

huggingface_hub does the talking and owns the cache. One thing is added: a large file that was cut
off is kept beside the finished ones and goes on where it stopped in the next run, which
huggingface_hub (1.31 to 2.4) begins anew.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import (
    HfApi,
    constants,
    errors,
    get_hf_file_metadata,
    get_token,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers, validate_repo_id  # type: ignore[attr-defined]

from .. import __version__
from ..api import ErrorCode, GemmaMtpError

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TEXT_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""What the engine reads of a target beside config and weights, where the repository has it."""
LICENCES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE")

RESUMED_BYTES = 4 * 2**20
"""From this size on a file that was cut off is kept; below, it is fetched anew."""
SPARE_BYTES = 64 * 2**20
"""Left free on the disk."""
ANSWER_S = 30.0
"""How long the hub may take to say what a repository holds."""
_LIBRARY: dict[str, Any] = {"library_name": "gemma_mtp_ros", "library_version": __version__}
_HttpError: type[Exception] = vars(errors)["HTTPError"]
"""Of all that httpx raises, or httpx2: huggingface_hub took the one, and takes the other."""

Told = Callable[[int], None]
"""Takes how many more bytes are there; negative where a server began anew."""


class FetchError(GemmaMtpError):
    """A repository that cannot be fetched; one sentence with the remedy."""

    code = ErrorCode.BACKEND_UNAVAILABLE


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository. ``blob`` is its name in the cache: the SHA-256 of a large file."""

    name: str
    size: int
    blob: str
    sha256: str = ""


@dataclass(frozen=True)
class Repository:
    """A repository at one commit.

    Attributes:
        files: by name.
        licence, licence_link: as the model card states them; empty: it does not.
    """

    name: str
    revision: str
    commit: str
    files: dict[str, RemoteFile]
    licence: str = ""
    licence_link: str = ""

    def needed(self, weights: Sequence[str], target: bool) -> list[RemoteFile]:
        """What the engine reads of it, the small files first."""
        names = [CONFIG, *(TEXT_FILES if target else ()), *LICENCES, INDEX, *weights]
        return [self.files[name] for name in dict.fromkeys(names) if name in self.files]


def cache_folder() -> Path:
    """Where huggingface_hub keeps what it downloads (HF_HUB_CACHE, HF_HOME)."""
    return Path(constants.HF_HUB_CACHE).expanduser()


def storage(name: str) -> Path:
    """The folder of a repository in the cache."""
    return cache_folder() / repo_folder_name(repo_id=name, repo_type="model")


def page(name: str) -> str:
    """The address of a repository."""
    return f"{constants.ENDPOINT}/{name}"


def is_offline() -> bool:
    """Whether the environment forbids to ask the hub (HF_HUB_OFFLINE)."""
    return bool(constants.HF_HUB_OFFLINE)


def is_name(name: str) -> bool:
    """Whether a repository can be called so, and the engine finds it by that name."""
    try:
        validate_repo_id(name)
    except errors.HFValidationError:
        return False
    return name.count("/") == 1


def look_up(name: str, revision: str) -> Repository:
    """Ask the hub what a repository holds at a branch, tag or commit.

    Raises:
        FetchError: there is no such repository or revision, no access, or no network.
    """
    with sentences(name, revision):
        info = HfApi(**_LIBRARY).model_info(
            name, revision=revision, files_metadata=True, timeout=ANSWER_S
        )
    files = {}
    for sibling in info.siblings or []:
        sha256 = sibling.lfs.sha256 if sibling.lfs else ""
        files[sibling.rfilename] = RemoteFile(
            sibling.rfilename, sibling.size or 0, sha256 or sibling.blob_id or "", sha256
        )
    card: Any = info.card_data or {}
    commit = info.sha or ""
    if not commit:
        raise FetchError(
            f"{constants.ENDPOINT} does not say which commit {name} is at; set HF_ENDPOINT to a "
            "Hugging Face Hub, or unset it"
        )
    return Repository(
        info.id or name,
        revision,
        commit,
        files,
        str(card.get("license") or card.get("license_name") or ""),
        str(card.get("license_link") or ""),
    )


def weight_names(repository: Repository, index: Path | None) -> list[str]:
    """The files of weights: those of the index, else the single one.

    Raises:
        FetchError: there are no safetensors, or the index names a file that is not there.
    """
    names = [SINGLE]
    if index is not None:
        try:
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise FetchError(
                f"{INDEX} of {repository.name} cannot be read ({error}); take another revision"
            ) from error
    missing = [name for name in names if name not in repository.files]
    if missing:
        others = sorted(
            {Path(name).suffix for name in repository.files} & {".gguf", ".bin", ".pth"}
        )
        held = f" (it holds {', '.join(others)})" if others else ""
        raise FetchError(
            f"{repository.name} has no {missing[0]} at {repository.commit[:12]}{held}; take the "
            "unquantised Hugging Face repository, such as google/gemma-4-E2B-it"
        )
    return names


def cached(repository: Repository, file: str) -> Path | None:
    """Where a file of this commit lies in the cache; None: nowhere."""
    found = try_to_load_from_cache(repository.name, file, revision=repository.commit)
    return Path(found) if isinstance(found, str) else None


def part(repository: Repository, blob: str) -> Path:
    """Where a file that was cut off is kept."""
    return storage(repository.name) / "blobs" / f"{blob}.incomplete"


def missing_bytes(repository: Repository, file: RemoteFile) -> int:
    """What is still to be fetched of a file."""
    if cached(repository, file.name) is not None:
        return 0
    with contextlib.suppress(OSError):
        return max(0, file.size - part(repository, file.blob).stat().st_size)
    return file.size


def check_disk(needed: int) -> None:
    """Refuse what does not fit into the disk of the cache. Bytes.

    Raises:
        FetchError: with the numbers.
    """
    folder = cache_folder()
    place = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(place).free
    if needed and needed + SPARE_BYTES > free:
        raise FetchError(
            f"{size_text(needed)} are to be fetched into {folder}, where {size_text(free)} are "
            "free; free some, or set HF_HOME to a folder on a larger disk"
        )


def size_text(size: int) -> str:
    """Bytes as people read them."""
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= bytes_:
            return f"{size / bytes_:.1f} {unit}"
    return f"{size} bytes"


def fetch_file(repository: Repository, file: RemoteFile, told: Told = lambda count: None) -> Path:
    """Bring a file into the cache, from where it was cut off; one that is there costs nothing.

    Raises:
        FetchError: network, access, disk, or a file that is not what the hub says it is.
    """
    found = cached(repository, file.name)
    if found is not None:
        return found
    with sentences(repository.name, repository.commit):
        if RESUMED_BYTES <= file.size <= constants.MAX_HTTP_DOWNLOAD_SIZE:
            _resume(repository, file, told)
            told = lambda count: None  # noqa: E731
        return Path(
            hf_hub_download(
                repository.name,
                file.name,
                revision=repository.commit,
                tqdm_class=_bar(told),
                **_LIBRARY,
            )
        )


def remember_revision(repository: Repository) -> None:
    """Let the cache find this commit by its branch or tag, now that all of it is there.

    The layout is that of the cache's documentation: refs/REVISION holds a commit.

    Raises:
        FetchError: the disk does not take it.
    """
    if repository.revision == repository.commit:
        return
    file = storage(repository.name) / "refs" / repository.revision
    with sentences(repository.name, repository.revision):
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{os.getpid()}")
        new.write_text(repository.commit, encoding="ascii")
        os.replace(new, file)


def _resume(repository: Repository, file: RemoteFile, told: Told) -> None:
    """Fetch what is missing of a large file; ends with its blob in the cache."""
    url = hf_hub_url(repository.name, file.name, revision=repository.commit)
    metadata = get_hf_file_metadata(url, **_LIBRARY)
    if not metadata.etag:
        raise FetchError(
            f"{constants.ENDPOINT} gives no ETag for {file.name} of {repository.name}; set "
            "HF_ENDPOINT to a Hugging Face Hub, or unset it"
        )
    place = part(repository, metadata.etag)
    if place.with_suffix("").exists():
        told(file.size)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("ab") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FetchError(
                f"{file.name} of {repository.name} is being fetched by another process; wait for "
                "it, or end it"
            ) from error
        if held.tell() > file.size:
            held.truncate(0)
        begun = held.tell()
        told(begun)
        while True:
            at = held.tell()
            try:
                http_get(
                    metadata.location,
                    held,
                    resume_size=at,
                    headers=_headers(url, metadata.location),
                    expected_size=file.size,
                    tqdm_class=_bar(told),
                )
                break
            except _HttpError:
                # A connection that broke, or a signed address that has run out, while bytes came:
                # go on with a new one.
                if held.tell() <= at:
                    raise
                metadata = get_hf_file_metadata(url, **_LIBRARY)
        held.flush()
        os.fsync(held.fileno())
        if begun and file.sha256 and _sha256(place) != file.sha256:
            place.unlink()
            raise FetchError(
                f"{file.name} of {repository.name} was put together from parts and does not have "
                "the SHA-256 that the hub states; it was removed, run the same command again"
            )
        os.replace(place, place.with_suffix(""))


def _headers(url: str, location: str) -> dict[str, str]:
    """Headers of a download; a token stays with the hub's own host."""
    headers: dict[str, str] = build_hf_headers(**_LIBRARY)
    headers["Accept-Encoding"] = "identity"
    if urlsplit(url).netloc != urlsplit(location).netloc:
        headers.pop("authorization", None)
    return headers


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _bar(told: Told) -> Any:
    """A class that stands in for tqdm and passes on what comes."""

    class Bar:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, count: float | None = 1) -> None:
            told(int(count or 0))

        def close(self) -> None:
            pass

        def set_postfix_str(self, *_: Any, **__: Any) -> None:
            pass

    return Bar


@contextlib.contextmanager
def sentences(name: str, revision: str) -> Iterator[None]:
    """Say what went wrong with a repository in a sentence.

    Raises:
        FetchError: for what huggingface_hub, the network or the disk says.
    """
    try:
        yield
    except FetchError:
        raise
    except errors.GatedRepoError as error:
        token = "the token in use does not have it" if get_token() else "no token is set"
        raise FetchError(
            f"access to {name} is granted by its owner only, and {token}; accept its terms at "
            f"{constants.ENDPOINT}/{name}, then log in as that user (hf auth login) or set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FetchError(
            f"{constants.ENDPOINT} has no repository {name} that may be seen here; correct the "
            "name, or if it is private log in (hf auth login) or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FetchError(
            f"{name} has no revision {revision}; take a branch, tag or commit of "
            f"{constants.ENDPOINT}/{name}/commits/main"
        ) from error
    except errors.HFValidationError as error:
        raise FetchError(
            f"{name!r} is no name of a repository; give a size (E2B), or OWNER/NAME"
        ) from error
    except errors.HfHubHTTPError as error:
        raise FetchError(_refused(name, error.response.status_code, error)) from error
    except (_HttpError, errors.LocalEntryNotFoundError) as error:
        cause: BaseException = error.__cause__ or error
        if isinstance(cause, errors.HfHubHTTPError):
            raise FetchError(_refused(name, cause.response.status_code, cause)) from error
        raise FetchError(
            f"{constants.ENDPOINT} cannot be reached ({_said(cause)}); check network, proxy "
            "(HTTPS_PROXY) and HF_ENDPOINT, and run the same command again: it goes on where it "
            "stopped"
        ) from error
    except OSError as error:
        raise FetchError(_disk(error)) from error
    except ValueError as error:
        raise FetchError(
            f"{constants.ENDPOINT} cannot be asked so, or its answer is none ({_said(error)}); "
            "correct HTTPS_PROXY, HF_TOKEN or HF_ENDPOINT, and log in where a network asks for it"
        ) from error


def _refused(name: str, status: int, error: BaseException) -> str:
    if status == 401:
        return (
            f"{constants.ENDPOINT} does not take the token in use for {name}; log in anew "
            "(hf auth login) or correct HF_TOKEN"
        )
    if status == 429:
        return f"{constants.ENDPOINT} was asked too often; wait some minutes and run it again"
    return (
        f"{constants.ENDPOINT} answers {status} for {name} ({_said(error)}); run the same command "
        "again later: it goes on where it stopped"
    )


def _disk(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {cache_folder()} is full; free some of it, or set HF_HOME to a folder on "
            "a larger one, and run the same command again: it goes on where it stopped"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"{cache_folder()} cannot be written ({error.strerror}); set HF_HOME to a folder that "
            "can, or run as its owner"
        )
    return f"fetching failed ({_said(error)}); run the same command again"


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def local_commit(name: str, revision: str) -> str | None:
    """The commit of a branch, tag or commit in the cache; None: not there."""
    folder = storage(name)
    with contextlib.suppress(OSError, ValueError):
        ref = folder / "refs" / revision
        commit = ref.read_text("ascii").strip() if ref.is_file() else revision
        return commit if (folder / "snapshots" / commit).is_dir() else None
    return None
