# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of host and engine process share."""

from __future__ import annotations

import contextlib
import os
import select
import string
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gemma_mtp_ros.api import EngineConfig, Finish, Piece, Queued, Request, SamplingParams, Started
from gemma_mtp_ros.host import EngineHost, HostState

PATIENCE_S = 90.0
"""How long a test waits for what must happen; reached only when it fails."""


class Told:
    """A sink, or any callback, that keeps what it is told and can be waited on."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._changed = threading.Condition()

    def __call__(self, *what: Any) -> None:
        with self._changed:
            self.all.append(what[0] if len(what) == 1 else what)
            self._changed.notify_all()

    def until(self, wanted: Callable[[Any], bool], count: int = 1) -> Any:
        """Wait for the ``count``-th event that is wanted; return it."""

        def found() -> list[Any]:
            return [each for each in self.all if wanted(each)]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, PATIENCE_S), self.all
            return found()[count - 1]

    def piece(self, count: int = 1) -> Piece:
        return self.until(lambda event: isinstance(event, Piece), count)

    def started(self) -> Started:
        return self.until(lambda event: isinstance(event, Started))

    def queued(self, loading: bool) -> Queued:
        return self.until(lambda event: isinstance(event, Queued) and event.loading is loading)

    def finish(self) -> Finish:
        return self.until(lambda event: isinstance(event, Finish))

    def pieces(self) -> list[Piece]:
        return [event for event in self.all if isinstance(event, Piece)]

    def assert_well_formed(self) -> None:
        """Queued, then Started, then pieces, then exactly one Finish."""
        order = [Queued, Started, Piece, Finish]
        ranks = [order.index(type(event)) for event in self.all]
        assert ranks == sorted(ranks)
        assert ranks.count(3) == 1
        assert ranks.count(1) <= 1
        finish = self.all[-1]
        assert finish.text == "".join(piece.text for piece in self.pieces())


LETTERS = string.ascii_lowercase


def endless_pair(folder: Path) -> tuple[Path, Path]:
    """A tiny pair that writes letters and never ends by itself."""
    import tiny  # loads torch, which most tests of the host do without

    vocabulary = tiny.tokenizer().get_vocab()
    kept = {vocabulary[letter] for letter in LETTERS}
    suppressed = [token for token in range(tiny.VOCAB) if token not in kept]
    return tiny.make_pair(folder, tiny.PLAIN, suppress_tokens=suppressed)


def request(request_id: str, prompt: str = "Go", tokens: int = 3000, **fields: Any) -> Request:
    return Request(
        id=request_id,
        raw_prompt=prompt,
        sampling=SamplingParams(max_new_tokens=tokens, temperature=0.0, seed=7),
        **fields,
    )


def submit(host: EngineHost, request_id: str, **fields: Any) -> Told:
    told = Told()
    host.submit(request(request_id, **fields), told)
    return told


@contextmanager
def running(config: EngineConfig, **options: Any) -> Iterator[EngineHost]:
    """A started host, stopped in the end."""
    host = EngineHost(config, **options)
    try:
        host.start()
        yield host
    finally:
        host.stop()
    assert host.state is HostState.STOPPED


class Life:
    """Watches a process by descriptor, so that its number cannot be another's in the meantime."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def __del__(self) -> None:
        os.close(self._fd)

    def wait_end(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the process has ended."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        assert poller.poll(timeout_s * 1000), f"process {self.pid} lives"


def children() -> list[int]:
    """Processes whose parent is this one, zombies too."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):  # a thread that ends meanwhile
            found += map(int, path.read_text().split())
    return found


def descriptors() -> dict[str, str]:
    """Open descriptors of this process and what they lead to."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            found[path.name] = os.readlink(path)
        except FileNotFoundError:  # that of the listing itself
            continue
    return found


def shared_memory() -> set[str]:
    """Names in /dev/shm, those of DDS (of any program on this machine) left out."""
    return {name for name in os.listdir("/dev/shm") if "fast" not in name}
