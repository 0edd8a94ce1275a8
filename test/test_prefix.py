# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Cached prefixes: the same answer as from a cold start, in bits, whatever was served before."""

from __future__ import annotations

import itertools
import random

import pytest
import tiny
import torch
from engine_tools import arithmetic, load, request, run, with_oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_mtp_ros.api import Cancel, FinishReason, Message, Request, SamplingParams, Started
from gemma_mtp_ros.engine import decode
from gemma_mtp_ros.engine.decode import RoundControl
from gemma_mtp_ros.engine.prefill import SHORTEST, chunk_ends
from gemma_mtp_ros.engine.prefix import PrefixCache, agreeing

TURN_END = 4
CHUNK = 96
WORDS = ("go", "to", "the", "dock", "bring", "a", "red", "cup", "and", "wait", "for", "me")
KINDS = {kind.name: kind for kind in tiny.KINDS}


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


# Where prompts are cut.


@given(
    st.lists(st.sampled_from([TURN_END, 9, 9, 9]), max_size=200),
    st.lists(st.sampled_from([TURN_END, 9, 9, 9]), max_size=200),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_prompts_are_cut_alike_as_far_as_they_agree(head, tail, longest, shortest):
    ends = chunk_ends(head, longest, TURN_END, shortest)
    assert chunk_ends(head + tail, longest, TURN_END, shortest)[: len(ends)] == ends
    both = chunk_ends(head + tail, longest, TURN_END, shortest)
    assert [end for end in both if end <= len(head)] == ends


def test_cuts():
    plain, turn = [9] * 100, [9] * 69 + [TURN_END]
    assert chunk_ends(plain, 40, TURN_END) == [40, 80]
    assert chunk_ends(turn + [9] * 5, 256, TURN_END) == [70]
    assert chunk_ends([9, TURN_END] * 5, 256, TURN_END) == []
    assert chunk_ends(turn * 2, 256, None) == []
    assert chunk_ends([9] * 256, 256, None) == [256]


@given(st.lists(st.integers(0, 1), max_size=9), st.lists(st.integers(0, 1), max_size=9))
def test_agreeing(a, b):
    same = agreeing(a, b)
    assert a[:same] == b[:same]
    assert same in (len(a), len(b)) or a[same] != b[same]


# The tree.


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return tiny.make_pair(tmp_path_factory.mktemp("pair"), KINDS["e-size"])


def cache_of(pair, budget, room=lambda size: True):
    engine = load(pair[0], max_context=1024)
    cache = engine.target.cache
    prefixes = PrefixCache(cache, engine.target.spec.window, budget, room)

    def keep(tokens, owner=None):
        cache.commit(len(tokens))
        return prefixes.keep(tokens, owner)

    return prefixes, keep


def test_the_longest_prefix_is_found_and_one_token_is_left(pair):
    prefixes, keep = cache_of(pair, 2**30)
    assert keep([5] * 20)
    assert keep([5] * 20 + [6] * 10)
    assert prefixes.find([5] * 20) is None
    assert prefixes.find([5] * 21).end == 20
    assert prefixes.find([5] * 20 + [6] * 10).end == 20
    assert prefixes.find([5] * 20 + [6] * 11).end == 30
    assert prefixes.find([6] * 40) is None
    assert prefixes.common([5] * 20 + [6] * 3 + [7] * 9) == 23


def test_a_snapshot_shares_the_rows_before_it(pair):
    prefixes, keep = cache_of(pair, 2**30)
    keep([5] * 200)
    first = prefixes.bytes
    keep([5] * 200 + [6] * 10)
    assert prefixes.bytes - first < first
    again = prefixes.bytes
    assert keep([5] * 200 + [6] * 10)
    assert prefixes.bytes == again


def test_the_longest_unused_goes_first_and_sessions_last(pair):
    prefixes, keep = cache_of(pair, 2**30)
    keep([5] * 50)
    one = prefixes.bytes
    prefixes.budget = 3 * one
    keep([6] * 50, "robot")
    keep([7] * 50)
    prefixes.restore(prefixes.find([5] * 51))
    keep([8] * 50)
    assert prefixes.find([7] * 51) is None
    assert prefixes.find([5] * 51) is not None
    keep([9] * 50)
    keep([10] * 50)
    assert prefixes.find([6] * 51) is not None
    for other in range(3):
        assert keep([11 + other] * 50, f"other {other}")
    assert prefixes.find([6] * 51) is None
    assert not prefixes.reset_session("robot")
    assert not keep([20] * 50)  # sessions hold all the room
    assert prefixes.bytes <= prefixes.budget


def test_a_snapshot_moves_on_where_two_do_not_fit(pair):
    prefixes, keep = cache_of(pair, 2**30)
    keep([5] * 60)
    prefixes.budget = prefixes.bytes
    prefixes.shrink(2**30)
    assert keep([5] * 50)
    assert keep([5] * 60, "robot")
    assert prefixes.find([5] * 55) is None
    assert prefixes.find([5] * 61).end == 60


def test_what_cannot_fit_is_not_kept(pair):
    prefixes, keep = cache_of(pair, 100)
    assert not keep([5] * 50)
    assert prefixes.bytes == 0
    assert not list(prefixes._all())
    prefixes, keep = cache_of(pair, 2**30, room=lambda size: False)
    assert not keep([5] * 50)
    assert prefixes.bytes == 0


def test_resetting_a_session_frees_what_is_its_own(pair):
    prefixes, keep = cache_of(pair, 2**30)
    keep([5] * 50, "a")
    keep([5] * 50 + [6] * 10, "a")
    keep([5] * 50 + [7] * 10, "b")
    shared = prefixes.bytes
    assert prefixes.reset_session("a")
    assert not prefixes.reset_session("a")
    assert prefixes.bytes < shared
    assert prefixes.find([5] * 50 + [6] * 11).end == 50
    assert prefixes.find([5] * 50 + [7] * 11).end == 60
    assert prefixes.reset_session("b")
    keep([9] * 50, "c")
    keep([9] * 60, "c")
    held = prefixes.bytes
    assert prefixes.reset_session("c")
    assert prefixes.bytes < held
    assert prefixes.find([9] * 61) is None


def test_resetting_a_session_whose_earlier_snapshot_was_evicted(pair):
    prefixes, keep = cache_of(pair, 2**30)
    keep([5] * 60)
    keep([5] * 90)
    prefixes.budget = prefixes.bytes - 1
    prefixes.shrink(2**30)
    assert keep([5] * 60, "a")
    assert keep([5] * 90, "a")
    assert prefixes.find([5] * 61) is None
    assert prefixes.reset_session("a")
    assert prefixes.bytes == 0
    assert not list(prefixes._all())


def test_a_snapshot_whose_rows_a_longer_one_kept_is_taken_again_in_its_place(pair):
    prefixes, keep = cache_of(pair, 2**30)
    keep([5] * 50)
    keep([5] * 60)
    prefixes.budget = prefixes.bytes - 1
    prefixes.shrink(2**30)
    assert keep([5] * 50)
    assert keep([5] * 60)
    assert prefixes.find([5] * 51) is None
    assert keep([5] * 50)
    assert prefixes.find([5] * 61).end == 50
    assert prefixes.bytes == sum(node.bytes for node in prefixes._all())
    prefixes.shrink(2**30)
    assert prefixes.bytes == 0


@settings(max_examples=200)
@given(st.data())
def test_bytes_are_those_of_the_rows(pair_cache, data):
    prefixes, cache = pair_cache
    prefixes.shrink(2**30)
    prefixes.budget = data.draw(st.integers(0, 60_000))
    for _ in range(data.draw(st.integers(1, 20))):
        tokens = data.draw(st.lists(st.integers(5, 6), min_size=1, max_size=4))
        tokens = [token for token in tokens for _ in range(9)]
        owner = data.draw(st.sampled_from([None, None, "a", "b"]))
        step = data.draw(st.sampled_from(["keep", "keep", "restore", "reset", "shrink"]))
        if step == "keep":
            cache.commit(len(tokens))
            prefixes.keep(tokens, owner)
            assert prefixes.bytes <= prefixes.budget
        elif step == "restore":
            found = prefixes.find(tokens)
            if found is not None:
                prefixes.restore(found, owner)
                assert cache.length == found.end < len(tokens)
        elif step == "reset":
            prefixes.reset_session(data.draw(st.sampled_from("ab")))
        else:
            prefixes.shrink(data.draw(st.integers(0, 30_000)))
        nodes = list(prefixes._all())
        assert prefixes.bytes == sum(node.bytes for node in nodes)
        assert all(node.windows is not None or node.children for node in nodes)


@pytest.fixture(scope="module")
def pair_cache(pair):
    cache = load(pair[0], max_context=256).target.cache
    return PrefixCache(cache, tiny.WINDOW, 0, lambda size: True), cache


# Against a cold start.


class Twins:
    """One engine with cached prefixes, one without, and what each prefill ended with."""

    def __init__(self, pair, **config):
        values = {"max_context": 1024, "prefill_chunk": CHUNK, **config}
        self.warm = load(*pair, cache_max_mib=64, **values)
        self.cold = load(*pair, **values)
        self.last = {}
        for name, engine in (("warm", self.warm), ("cold", self.cold)):
            self._listen(name, engine.target)

    def _listen(self, name, target):
        inner = target.prefill

        def prefill(ids, last):
            result = inner(ids, last)
            if last:
                self.last[name] = result
            return result

        target.prefill = prefill

    def rows(self):
        """Rows of both caches that the next token may see."""
        for i, ours in self.warm.target.cache.layers.items():
            cache, theirs = self.cold.target.cache, self.cold.target.cache.layers[i]
            assert self.warm.target.cache.length == cache.length
            first = max(0, cache.length - tiny.WINDOW + 1) if ours.sliding else 0
            at = torch.arange(first, cache.length)
            at = at % cache.ring if ours.sliding else at
            yield ours.kv[:, at], theirs.kv[:, at]

    def ask(self, asked, k=4):
        """Serve a request by both; they must agree. Returns the answer and what was cached."""
        tokens, finish = run(self.warm, asked, k)
        expected, cold = run(self.cold, asked, k)
        assert cold.stats.cached_tokens == 0
        assert finish.stats.prompt_tokens == cold.stats.prompt_tokens
        for ours, theirs in (*zip(self.last["warm"], self.last["cold"], strict=True), *self.rows()):
            assert torch.equal(ours, theirs)
        assert (tokens, finish.text) == (expected, cold.text)
        return finish.text, finish.stats.cached_tokens


CASES = ["e-size", "e-size-torch", "12b", "26b-a4b", "e-size-int8"]


@pytest.fixture(scope="module", params=CASES)
def twins(request, tmp_path_factory):
    name, _, how = request.param.partition("-size")
    kind = KINDS["e-size"] if name == "e" else KINDS[request.param]
    with arithmetic("torch" if how == "-torch" else "kernels"):
        pair = tiny.make_pair(tmp_path_factory.mktemp("pair"), kind)
        yield Twins(pair, kv_dtype="int8" if how == "-int8" else "auto")


def conversation(turns, **more):
    roles = itertools.chain(["system"], itertools.cycle(["user", "assistant"]))
    messages = tuple(Message(role=role, content=text) for role, text in zip(roles, turns))  # noqa: B905
    params = {"temperature": 0.0, "max_new_tokens": 12, **more.pop("sampling", {})}
    name = f"prefix-{next(_ids)}"
    return Request(id=name, messages=messages, sampling=SamplingParams(**params), **more)


_ids = itertools.count()


@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([8, 40, 200, 64_000]))
def test_conversations_equal_a_cold_start_in_bits(twins, rng, budget_kib):
    twins.warm.prefixes.shrink(2**40)
    twins.warm.prefixes.budget = budget_kib * 1024
    systems = [words(rng, n) for n in (4, 20, 40)]
    chats = {name: [rng.choice(systems), words(rng, rng.choice([3, 20]))] for name in "abc"}
    for _ in range(8):
        name = rng.choice("abc")
        turns = chats[name]
        asked = conversation(
            turns,
            session_id=rng.choice(["", name]),
            sampling={"temperature": rng.choice([0.0, 1.0]), "seed": 7},
        )
        text, _ = twins.ask(asked, rng.randint(0, 7))
        if rng.random() < 0.2:
            twins.warm.reset_session(name)
        if rng.random() < 0.8:
            turns += [text, words(rng, rng.choice([2, 15]))]
        if sum(map(len, turns)) > 700:
            del turns[2:]
        assert twins.warm.prefixes.bytes <= twins.warm.prefixes.budget


def test_a_system_prompt_is_read_once_for_all_sessions(twins):
    twins.warm.prefixes.shrink(2**40)
    twins.warm.prefixes.budget = 2**26
    system = words(random.Random(1), 50)
    assert twins.ask(conversation([system, "Go."], session_id="a"))[1] == 0
    cached = twins.ask(conversation([system, "Come back."], session_id="b"))[1]
    assert cached > len(system) - SHORTEST
    assert twins.warm.reset_session("a")
    assert twins.ask(conversation([system, "Wait."], session_id="c"))[1] == cached


def test_a_conversation_goes_on_where_its_last_prompt_was_cut(twins):
    twins.warm.prefixes.shrink(2**40)
    turns = [words(random.Random(2), 30), words(random.Random(3), 30)]
    text, _ = twins.ask(conversation(turns, session_id="a"))
    turns += [text, "And then?"]
    prompt = twins.warm.text.encode(conversation(turns).messages, None)
    cuts = chunk_ends(prompt, CHUNK, TURN_END)
    _, cached = twins.ask(conversation(turns, session_id="a"))
    assert cached in cuts
    assert cached >= len("".join(turns[:2])) - SHORTEST


def test_raw_prompts_that_part_are_cached_from_the_second_on(twins):
    twins.warm.prefixes.shrink(2**40)
    shared = words(random.Random(4), 60)

    def asked(end):
        return request(shared + end, raw=True, max_new_tokens=5)

    tails = [words(random.Random(seed), 40) for seed in (5, 6, 7)]
    found = [twins.ask(asked(tail))[1] for tail in tails]
    assert found[0] == found[1] == 0
    assert len(shared) >= found[2] > len(shared) - CHUNK


def test_a_prompt_that_ends_at_a_cut_keeps_its_last_token_to_compute(twins):
    twins.warm.prefixes.shrink(2**40)
    text = "x" * (2 * CHUNK - 1)  # and the beginning of the sequence
    for expected in (0, CHUNK):
        asked = request(text, raw=True, max_new_tokens=5)
        assert len(twins.warm.text.encode((), text)) in (2 * CHUNK, 2 * CHUNK - 1)
        assert twins.ask(asked)[1] in (expected, 0 if expected == 0 else CHUNK)
        longer = request(text + "yz", raw=True, max_new_tokens=5)
    assert twins.ask(longer)[1] >= CHUNK


def test_drafts_stand_as_often_after_a_cached_prefix(twins):
    twins.warm.prefixes.shrink(2**40)
    asked = conversation([words(random.Random(8), 40), "Go."], sampling={"max_new_tokens": 40})
    _, first = run(twins.warm, asked, 4)
    _, second = run(twins.warm, asked, 4)
    assert second.stats.cached_tokens > 0
    assert second.stats.accepted_at == first.stats.accepted_at
    answer, _ = run(twins.warm, asked, 0)
    before = twins.warm.drafter
    try:
        with_oracle(twins.warm, asked, answer, 1.0)
        _, known = run(twins.warm, asked, 4)
    finally:
        twins.warm.drafter = before
    assert known.stats.cached_tokens > 0
    assert sum(known.stats.accepted_at) == sum(known.stats.drafted_at)


def test_a_broken_off_prefill_leaves_what_it_read(twins):
    twins.warm.prefixes.shrink(2**40)
    asked = request("y" * 500, raw=True, max_new_tokens=5)
    polls = itertools.count()
    end = Cancel(request_id=asked.id, finish_reason=FinishReason.PREEMPTED)
    stop = (RoundControl(0, end if next(polls) >= 3 else None) for _ in itertools.count())
    events = list(twins.warm.generate(asked, lambda: next(stop)))
    assert events[-1].finish_reason is FinishReason.PREEMPTED
    assert twins.ask(asked)[1] == 3 * CHUNK


def test_memory_that_runs_low_takes_the_cached_prefixes_first(twins, monkeypatch):
    twins.warm.prefixes.shrink(2**40)
    engine = twins.warm
    asked = conversation([words(random.Random(9), 40), "Go."])
    run(engine, asked)
    held = engine.memory
    assert held.snapshots == engine.prefixes.bytes > 0
    reserve = engine.config.memory_reserve_mib * 2**20
    monkeypatch.setattr(
        decode,
        "available_memory",
        lambda device=None: reserve + (2**40 if engine.prefixes.bytes < held.snapshots else -1),
    )
    _, finish = run(engine, asked)
    assert finish.stats.cached_tokens == 0
    assert finish.stats.completion_tokens > 0


def test_the_system_prompt_is_cached_before_the_first_goal(twins):
    engine = twins.warm
    engine.prefixes.shrink(2**40)
    system = words(random.Random(10), 50)
    engine.warm(system, lambda: RoundControl(4))
    assert twins.ask(conversation([system, "Go."]))[1] > len(system) - SHORTEST


def test_started_says_what_was_cached(twins):
    twins.warm.prefixes.shrink(2**40)
    asked = conversation([words(random.Random(11), 40), "Go."])
    run(twins.warm, asked)
    events = list(twins.warm.generate(asked, lambda: RoundControl(0)))
    assert isinstance(events[0], Started)
    assert events[0].cached_tokens == events[-1].stats.cached_tokens > 0


def test_without_a_budget_nothing_is_kept(twins):
    asked = conversation([words(random.Random(12), 40), "Go."])
    for _ in range(2):
        _, finish = run(twins.cold, asked)
        assert finish.stats.cached_tokens == 0
    assert twins.cold.prefixes.bytes == 0


def test_not_reproducible_it_goes_on_after_the_answer_within_tolerance(pair):
    twins = Twins(pair, reproducible=False)
    turns = [words(random.Random(13), 40), "Go."]
    answer, finish = run(twins.warm, conversation(turns, sampling={"max_new_tokens": 90}), 4)
    decoded = finish.stats.prompt_tokens + len(answer)
    turns += [finish.text, "And then?"]
    asked = conversation(turns)
    prompt = twins.warm.text.encode(asked.messages, None)
    before = twins.warm.text.encode(conversation(turns[:2]).messages, None)
    same = agreeing(prompt, [*before, *answer])
    _, finish = run(twins.warm, asked)
    run(twins.cold, asked)
    if same == decoded:  # the text has the tokens that it was decoded from
        assert finish.stats.cached_tokens >= decoded - 1
    for ours, theirs in zip(twins.last["warm"], twins.last["cold"], strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3)
