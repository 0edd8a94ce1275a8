# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Keys and values of prompts that were read before, for goals that begin alike.

A snapshot stands at a break of a prompt (:mod:`.prefill`): the rows of the full layers from the
snapshot before it, which it shares with all that follow, and the rows of the sliding windows, which
the rings lose as soon as the sequence goes on. Snapshots form a tree, system prompt and tools near
its root, conversations as its branches. Restoring one copies rows; nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

import torch

from .cache import KVCache, LayerCache

MAX_SESSIONS = 10_000
"""Most session names that are remembered; the longest unused is forgotten first."""


Owner = Hashable | None
"""The name of a session, another key whose snapshot is to stay, or None."""


class Rows(NamedTuple):
    """Rows of one layer, as :class:`LayerCache` stores them."""

    kv: torch.Tensor
    scales: torch.Tensor | None

    @property
    def bytes(self) -> int:
        """Memory of the rows."""
        scales = 0 if self.scales is None else self.scales.nbytes
        return self.kv.nbytes + scales


def copy_out(layer: LayerCache, rows: slice | torch.Tensor) -> Rows:
    """A copy of rows of a layer."""

    def taken(whole: torch.Tensor) -> torch.Tensor:
        return whole[:, rows].clone() if isinstance(rows, slice) else whole.index_select(1, rows)

    return Rows(taken(layer.kv), None if layer.scales is None else taken(layer.scales))


def copy_in(layer: LayerCache, rows: slice | torch.Tensor, saved: Rows) -> None:
    """Put copied rows back, as they were."""
    layer.kv[:, rows] = saved.kv
    if layer.scales is not None:
        assert saved.scales is not None
        layer.scales[:, rows] = saved.scales


class Node:
    """A place in prompts at which reading can be resumed.

    Attributes:
        tokens: those from the parent's end to ``end``.
        full: rows of the full layers for these tokens.
        windows: rows of the sliding layers before ``end``; None: dropped, while other nodes still
            need ``full``.
        owner: who took the snapshot; ``shared``: others have used it.
    """

    def __init__(self, parent: Node | None, tokens: tuple[int, ...], owner: Owner = None) -> None:
        self.parent = parent
        self.tokens = tokens
        self.begin: int = 0 if parent is None else parent.end
        self.end: int = self.begin + len(tokens)
        self.children: list[Node] = []
        self.full: dict[int, Rows] = {}
        self.windows: dict[int, Rows] | None = None
        self.used = 0
        self.owner = owner
        self.shared = False

    @property
    def bytes(self) -> int:
        """Memory of its rows."""
        windows = self.windows or {}
        return sum(rows.bytes for part in (self.full, windows) for rows in part.values())

    def path(self) -> Iterator[Node]:
        """This node and those before it, the first of the prompt last."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def begins(self, tokens: Sequence[int]) -> bool:
        """Whether ``tokens``, which agree with it up to ``begin``, agree up to ``end``."""
        if len(tokens) < self.end or tokens[self.end - 1] != self.tokens[-1]:
            return False
        return tuple(tokens[self.begin : self.end]) == self.tokens


class PrefixCache:
    """Snapshots of one engine's cache, within ``budget`` bytes.

    When space is short the longest unused snapshot goes first, those of sessions last. Using one
    counts as using its first node too, which is where system prompt and tools end.

    :param room: whether so many bytes may be taken now.
    """

    def __init__(
        self, cache: KVCache, window: int, budget: int, room: Callable[[int], bool]
    ) -> None:
        self.budget = budget
        self.bytes = 0
        self._cache = cache
        self._window = window
        self._room = room
        self._root = Node(None, ())
        self._sessions: dict[Hashable, Node] = {}
        self._clock = 0

    def find(self, tokens: Sequence[int]) -> Node | None:
        """The longest snapshot that ``tokens`` continue by at least one more."""
        found = (n for n in self._matching(tokens) if n.windows is not None and n.end < len(tokens))
        return max(found, key=lambda node: node.end, default=None)

    def common(self, tokens: Sequence[int]) -> int:
        """How many tokens at the beginning agree with some prompt of which rows are kept."""
        longest, nodes = 0, [self._root]
        while nodes:
            node = nodes.pop()
            for child in node.children:
                same = agreeing(child.tokens, tokens[child.begin : child.end])
                longest = max(longest, child.begin + same)
                if same == len(child.tokens):
                    nodes.append(child)
        return longest

    @torch.inference_mode()
    def restore(self, node: Node, owner: Owner = None) -> None:
        """Bring the cache to where a snapshot was taken."""
        cache = self._cache
        assert node.windows is not None
        for part in node.path():
            for i, saved in part.full.items():
                copy_in(cache.layers[i], slice(part.begin, part.end), saved)
        for i, saved in node.windows.items():
            copy_in(cache.layers[i], self._ring_slots(node.end), saved)
        cache.commit(node.end)
        self._use(node, owner)

    @torch.inference_mode()
    def keep(self, tokens: Sequence[int], owner: Owner = None) -> bool:
        """Take a snapshot of the cache, in which ``tokens`` were read (and at most a round more).

        :param owner: the session whose snapshot this is from now on, in place of an earlier one.
        :return: whether there is one; False: it does not fit.
        """
        node = max(self._matching(tokens), key=lambda node: node.end, default=self._root)
        if node.end < len(tokens):
            child = Node(node, tuple(tokens[node.end :]), owner)
            node.children.append(child)
            node = child
        if node is self._root:
            return False
        if node.windows is None and not self._fill(node, owner):
            return False
        self._use(node, owner)
        if owner is not None:
            self._sessions.pop(owner, None)
            self._sessions[owner] = node
            if len(self._sessions) > MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        return True

    def reset_session(self, session: str) -> bool:
        """Forget a session's snapshot, and its rows unless others use them; False: there is none.

        What others share stays: a system prompt is read once for all of them.
        """
        node = self._sessions.pop(session, None)
        if node is None:
            return False
        for own in list(node.path()):
            if own.owner != session or own.shared or own.children:
                break
            if own.windows is not None:  # else it went with the one after it
                self._drop(own)
        return True

    def shrink(self, size: int) -> int:
        """Free at least ``size`` bytes, or all; return how many."""
        before = self.bytes
        self._shrink_to(max(0, before - size), pinned_too=True)
        return before - self.bytes

    def _matching(self, tokens: Sequence[int]) -> Iterator[Node]:
        """All nodes at which a prompt can be that begins with ``tokens``."""
        nodes = list(self._root.children)
        while nodes:
            node = nodes.pop()
            if node.begins(tokens):
                nodes += node.children
                yield node

    def _fill(self, node: Node, owner: Owner) -> bool:
        """Copy the rows of a new or bare node; drop the node if they do not fit."""
        layers = self._cache.layers.items()
        fresh = 0 if node.full else node.end - node.begin
        window = min(node.end, self._window)
        size = sum(one.row_bytes * (window if one.sliding else fresh) for _, one in layers)
        node.windows = {}  # stays in the tree while those after it make room
        self._shrink_to(self.budget - size, pinned_too=owner is not None, spared=node)
        if self.bytes + size > self.budget or not self._room(size):
            self._drop(node)
            return False
        before = node.bytes
        if fresh:
            rows = slice(node.begin, node.end)
            node.full = {i: copy_out(one, rows) for i, one in layers if not one.sliding}
        slots = self._ring_slots(node.end)
        node.windows = {i: copy_out(one, slots) for i, one in layers if one.sliding}
        self.bytes += node.bytes - before
        return True

    def _ring_slots(self, end: int) -> torch.Tensor:
        first = max(0, end - self._window)
        return torch.arange(first, end, device=self._cache.device) % self._cache.ring

    def _use(self, node: Node, owner: Owner) -> None:
        self._clock += 1
        first = list(node.path())[-1]
        for used in (node, first):
            used.used = self._clock
            used.shared |= owner != used.owner

    def _shrink_to(self, size: int, *, pinned_too: bool, spared: Node | None = None) -> None:
        if self.bytes <= size:
            return
        pinned = set(map(id, self._sessions.values()))
        held = [n for n in self._all() if n.windows is not None and n is not spared]
        victims = held if pinned_too else [node for node in held if id(node) not in pinned]
        for victim in sorted(victims, key=lambda node: (id(node) in pinned, node.used)):
            if self.bytes <= size:
                return
            self._drop(victim)

    def _drop(self, node: Node) -> None:
        """Drop a snapshot, and the rows that no other one needs."""
        for session in [name for name, held in self._sessions.items() if held is node]:
            del self._sessions[session]
        before = node.bytes
        node.windows = None
        self.bytes += node.bytes - before
        while node.windows is None and not node.children and node.parent is not None:
            self.bytes -= node.bytes
            node.parent.children.remove(node)
            node = node.parent

    def _all(self) -> Iterator[Node]:
        nodes = list(self._root.children)
        while nodes:
            node = nodes.pop()
            nodes += node.children
            yield node


def agreeing(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
