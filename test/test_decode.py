# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The round loop: the same answer at every draft length, and a clean end wherever it falls."""

from __future__ import annotations

import dataclasses
import time

import pytest
import tiny
import torch
from engine_tools import load, request, run, with_oracle
from transformers import Gemma4ForCausalLM

from gemma_mtp_ros.api import (
    MAX_DRAFT,
    Cancel,
    ErrorCode,
    Finish,
    FinishReason,
    Message,
    Piece,
    Request,
    Started,
)
from gemma_mtp_ros.engine import decode, drafting
from gemma_mtp_ros.engine.decode import Engine, RoundControl
from gemma_mtp_ros.engine.draft_length import Costs, DraftController
from gemma_mtp_ros.engine.sequence import Sequence

SAMPLINGS = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3},
    "filtered": {"temperature": 0.9, "seed": 4, "top_k": 12, "top_p": 0.95, "min_p": 0.01},
    "penalised": {
        "temperature": 0.8,
        "seed": 5,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
    },
}
PROMPTS = {
    "within the window": "Hi",
    "past the window": "Bring the red cup from the kitchen, then wait.",
}


@pytest.fixture(scope="module", params=[tiny.E_SIZE, tiny.K_EQ_V], ids=lambda kind: kind.name)
def engine(request, tmp_path_factory):
    return load(*tiny.make_pair(tmp_path_factory.mktemp(request.param.name), request.param))


@pytest.fixture(autouse=True)
def _restore(engine):
    """Tests may put an oracle in the drafter's place or change the end-of-sequence tokens."""
    drafter, generation = engine.drafter, engine.model.generation
    yield
    engine.drafter, engine.model.generation = drafter, generation
    engine.model.suppressed = engine.model.costs = None


def end_at(engine: Engine, tokens: set[int]) -> None:
    """Let the model end at these tokens."""
    engine.model.generation = dataclasses.replace(engine.model.generation, eos=frozenset(tokens))


def write_ascii(engine: Engine) -> None:
    """Let the model write printable characters only, one a token."""
    printable = {engine.text.encode((), chr(c))[-1] for c in range(33, 127)}
    others = sorted(set(range(engine.target.spec.vocab)) - printable)
    engine.model.suppressed = torch.tensor(others)


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_same_tokens_at_every_draft_length(engine, prompt, sampling):
    """With the random drafter (hopeless), with a perfect one and with one that is right by
    turns.
    """
    end_at(engine, set())
    asked = request(prompt, **sampling)
    plain, finish = run(engine, asked, 0)
    assert finish.finish_reason == FinishReason.LENGTH
    assert finish.stats.rounds == len(plain) - 1
    hopeless = engine.drafter
    for cap in range(MAX_DRAFT + 1):
        for acceptance in (None, 0.6, 1.0):
            engine.drafter = hopeless
            if acceptance is not None:
                with_oracle(engine, asked, plain, acceptance)
            tokens, other = run(engine, asked, cap)
            assert tokens == plain
            assert other.text == finish.text
            if acceptance == 1.0:
                assert other.stats.rounds == -(-(len(plain) - 1) // (cap + 1))


def test_greedy_equals_transformers(engine):
    end_at(engine, set())
    asked = request("Bring the red cup from the kitchen, then wait.")
    tokens, _ = run(engine, asked, 3)
    model = Gemma4ForCausalLM.from_pretrained(engine.config.model, dtype=torch.float32)
    prompt = torch.tensor([engine.text.encode(asked.messages, None)])
    with torch.no_grad():
        out = model.generate(prompt, max_new_tokens=len(tokens), do_sample=False, eos_token_id=None)
    assert tokens == out[0, prompt.shape[1] :].tolist()


def test_draws_of_each_draft_length_come_from_one_seed(engine):
    asked = request("Hi", temperature=1.0, seed=8)
    other = request("Hi", temperature=1.0, seed=9)
    assert run(engine, asked, 5)[0] == run(engine, asked, 2)[0]
    assert run(engine, asked, 5)[0] != run(engine, other, 5)[0]
    seeds = {
        run(engine, request("Hi", temperature=1.0, max_new_tokens=2))[1].seed for _ in range(3)
    }
    assert len(seeds) == 3


@pytest.mark.parametrize("cap", range(1, MAX_DRAFT + 1))
@pytest.mark.parametrize("place", [0, 1, 2, 5, 6, 7, 8])
def test_end_of_sequence_inside_a_draft(engine, cap, place):
    """Nothing after it is sent, counted or accepted."""
    asked = request("Hi", temperature=1.0, seed=21, max_new_tokens=30)
    end_at(engine, set())
    plain, _ = run(engine, asked, 0)
    place = plain.index(plain[place])
    end_at(engine, {plain[place]})
    with_oracle(engine, asked, plain, 1.0)
    tokens, finish = run(engine, asked, cap)
    assert tokens == plain[:place]
    assert finish.finish_reason == FinishReason.STOP
    assert finish.error_code == ErrorCode.NONE
    assert finish.stats.rounds == -(-place // (cap + 1))
    # All rounds but the last accept every draft; the last accepts those up to the end.
    assert sum(finish.stats.accepted_at) == place - finish.stats.rounds + (place % (cap + 1) != 0)


@pytest.mark.parametrize("cap", range(MAX_DRAFT + 1))
@pytest.mark.parametrize("limit", [1, 2, 3, 8, 9])
def test_token_limit_inside_a_draft(engine, cap, limit):
    end_at(engine, set())
    asked = request("Hi", max_new_tokens=30)
    plain, _ = run(engine, asked, 0)
    short = request("Hi", max_new_tokens=limit)
    with_oracle(engine, short, plain, 1.0)
    tokens, finish = run(engine, short, cap)
    assert tokens == plain[:limit]
    assert finish.finish_reason == FinishReason.LENGTH
    assert sum(finish.stats.drafted_at) == sum(finish.stats.accepted_at)


def test_end_of_sequence_and_token_limit_in_one_round(engine):
    end_at(engine, set())
    asked = request("Hi", temperature=1.0, seed=2, max_new_tokens=6)
    plain, _ = run(engine, asked, 0)
    end_at(engine, {plain[4]})
    place = plain.index(plain[4])
    with_oracle(engine, asked, plain, 1.0)
    tokens, finish = run(engine, asked, 7)
    assert tokens == plain[:place]
    assert finish.finish_reason == FinishReason.STOP


@pytest.mark.parametrize("cap", [0, 2, 7])
def test_context_limit_ends_with_length(engine, cap):
    end_at(engine, set())
    prompt = "x" * 480
    length = engine.count_tokens(request(prompt).messages, None)
    tokens, finish = run(engine, request(prompt, max_new_tokens=500), cap)
    assert finish.finish_reason == FinishReason.LENGTH
    assert len(tokens) == engine.config.max_context - length
    assert tokens == run(engine, request(prompt, max_new_tokens=500), 0)[0]


@pytest.mark.parametrize("cap", [0, 3, 7])
def test_stop_string_cuts_text_and_tokens(engine, cap):
    """The stop string spans tokens (each is a byte) and may lie inside a standing draft."""
    end_at(engine, set())
    write_ascii(engine)
    asked = request("Hi", temperature=1.0, seed=13, max_new_tokens=40)
    plain, whole = run(engine, asked, 0)
    stop = whole.text[9:12]
    stopped = request("Hi", temperature=1.0, seed=13, max_new_tokens=40, stop=(stop, "never seen"))
    with_oracle(engine, stopped, plain, 1.0)
    tokens, finish = run(engine, stopped, cap)
    assert finish.finish_reason == FinishReason.STOP
    assert finish.text == whole.text[: whole.text.index(stop)]
    assert tokens == plain[: len(tokens)]
    assert stop in engine.text.decode(tokens)
    assert stop not in engine.text.decode(tokens[:-1])


def test_text_is_what_the_tokenizer_makes_of_the_tokens(engine):
    end_at(engine, set())
    tokens, finish = run(engine, request("Hi", temperature=1.5, seed=1, max_new_tokens=80), 4)
    assert finish.text == engine.text.decode(tokens)


@pytest.mark.parametrize("after", [1, 2, 3, 6])
def test_cancel_ends_within_a_round_with_the_text_so_far(engine, after):
    end_at(engine, set())
    polls = 0
    cancel = Cancel(request_id="x")

    def poll() -> RoundControl:
        nonlocal polls
        polls += 1
        return RoundControl(2, cancel if polls >= after else None)

    asked = request("Bring the red cup.", max_new_tokens=60)
    events = list(engine.generate(asked, poll))
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert finish.finish_reason == FinishReason.CANCELED
    assert finish.error_code == ErrorCode.CANCELED
    assert finish.text == "".join(e.text for e in events if isinstance(e, Piece))
    assert polls == after
    assert isinstance(events[0], Started)
    plain, _ = run(engine, asked, 0)
    sent = [t for e in events if isinstance(e, Piece) for t in e.token_ids]
    assert sent == plain[: len(sent)]


def test_nothing_of_an_abandoned_request_reaches_the_next(engine):
    asked = request("Hi", temperature=1.0, seed=5)
    before = run(engine, asked, 3)
    heavy = request("Other", repetition_penalty=1.9, stop=("e", "a"), seed=1, temperature=2.0)
    abandoned = engine.generate(heavy, lambda: RoundControl(7))
    for _ in range(4):
        next(abandoned, None)
    abandoned.close()
    after = run(engine, asked, 3)
    assert after[0] == before[0]
    assert after[1].text == before[1].text


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        (request("x" * 600), ErrorCode.PROMPT_TOO_LONG, "room for 512 tokens"),
        (request("x" * 4_000_000), ErrorCode.PROMPT_TOO_LONG, "4000000 bytes"),
        (request("\ud800", raw=True), ErrorCode.INVALID_GOAL, "no valid text"),
        (request("  "), ErrorCode.INVALID_GOAL, "empty"),
        (Request(id="none"), ErrorCode.INVALID_GOAL, "empty"),
    ],
)
def test_an_inadmissible_request_gets_one_sentence(engine, asked, code, words):
    events = list(engine.generate(asked, lambda: RoundControl(4)))
    assert len(events) == 1
    assert events[0].finish_reason == FinishReason.ERROR
    assert events[0].error_code == code
    assert words in events[0].error_msg


def test_the_checkpoint_fills_in_what_the_request_leaves_open(tmp_path):
    target, drafter = tiny.make_pair(
        tmp_path, do_sample=True, temperature=0.5, top_k=7, top_p=0.9, suppress_tokens=[70, 71]
    )
    engine = load(target, drafter)
    rules = engine._rules(Request(id="a", raw_prompt="x"))
    assert (rules.temperature, rules.top_k, rules.top_p) == (0.5, 7, 0.9)
    limited = tiny.make_pair(tmp_path / "limited", max_new_tokens=7)
    tokens, finish = run(load(*limited), request("Hi", max_new_tokens=None, temperature=0.0), 2)
    assert (len(tokens), finish.finish_reason) == (7, FinishReason.LENGTH)
    own = engine._rules(request(temperature=0.0, top_k=0))
    assert (own.temperature, own.top_k, own.top_p) == (0.0, 0, 0.9)
    for seed in range(3):
        asked = request(temperature=3.0, top_k=0, top_p=1.0, seed=seed, max_new_tokens=100)
        assert not {70, 71} & set(run(engine, asked, 2)[0])


def test_template_adds_one_beginning_of_sequence(engine):
    ids = engine.text.encode((Message(role="user", content="Hi"),), None)
    assert ids.count(2) == 1
    assert ids[0] == 2


def test_short_memory_drops_the_cache_first_and_refuses_then(engine, monkeypatch):
    asked = request("Bring the red cup.", max_new_tokens=300)
    run(engine, asked)
    cache, reserve = engine.target.cache, engine.config.memory_reserve_mib * 2**20
    held, free = cache.bytes, []

    def available():
        free.append(reserve - 1 if cache.bytes == held else reserve + held)
        return free[-1]

    monkeypatch.setattr(decode, "available_memory", available)
    assert run(engine, asked)[1].error_code == ErrorCode.NONE
    assert len(free) == 2  # short, then enough once the last goal's rows were dropped
    monkeypatch.setattr(decode, "available_memory", lambda: reserve - 1)
    (refused,) = engine.generate(asked, lambda: RoundControl(0))
    assert refused.error_code == ErrorCode.OUT_OF_MEMORY
    assert "engine.memory_reserve_mib" in refused.error_msg
    monkeypatch.setattr(decode, "available_memory", lambda: None)
    assert run(engine, asked)[1].error_code == ErrorCode.NONE


def test_warm_leaves_nothing_behind(engine):
    asked = request("Hi", temperature=1.0, seed=5)
    before = run(engine, asked, 3)
    engine.warm("You are a robot.", lambda: RoundControl(7))
    engine.warm("", lambda: RoundControl(7))
    assert run(engine, asked, 3)[0] == before[0]


def test_a_target_without_drafter_decodes_plainly(tmp_path):
    target, _ = tiny.make_pair(tmp_path)
    engine = load(target)
    tokens, finish = run(engine, request("Hi"), 0)
    again = list(engine.generate(request("Hi"), lambda: RoundControl(7)))
    assert again[-1].text == finish.text
    assert sum(again[-1].stats.drafted_at) == 0
    assert tokens


def adaptive(engine: Engine, **costs: float) -> None:
    """Let the controller choose, by made-up costs."""
    passes = tuple(1.0 + n * costs.get("row", 0.0) for n in range(MAX_DRAFT + 1))
    engine.model.costs = Costs(tuple(0.1 * each for each in passes), 0.1 * costs["draft"])


@pytest.mark.parametrize("chain", [False, True], ids=["stepwise", "chain"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_same_tokens_whatever_the_controller_chooses(engine, monkeypatch, sampling, chain):
    """With modes that change in mid-answer, too: each makes it time all lengths anew."""
    end_at(engine, set())
    if chain:
        monkeypatch.setattr(drafting, "reads_confidence", lambda *_: False)
    asked = request("Bring the red cup.", max_new_tokens=60, **sampling)
    plain, finish = run(engine, asked, 0)
    hopeless = engine.drafter
    lengths = set()
    for acceptance in (None, 0.7, 1.0):
        engine.drafter = hopeless
        if acceptance is not None:
            with_oracle(engine, asked, plain, acceptance)
        adaptive(engine, draft=0.05)
        tokens, polls = [], 0

        def poll() -> RoundControl:
            nonlocal polls
            polls += 1
            return RoundControl(7, power_mode=("MAXN", "15W", "")[polls // 7 % 3])

        for event in engine.generate(asked, poll):
            if isinstance(event, Piece):
                tokens += event.token_ids
                lengths.add(event.draft_length)
            elif isinstance(event, Finish):
                assert event.text == finish.text
        assert tokens == plain
    assert len(lengths) > 3


def test_the_controller_drafts_for_a_good_drafter_and_not_for_a_hopeless_one(engine, monkeypatch):
    end_at(engine, set())
    # Rounds take what the costs say: this is about acceptance, and not about this machine.
    monkeypatch.setattr(Sequence, "round_s", lambda self, paused_s: 0.0)
    monkeypatch.setattr(drafting, "reads_confidence", lambda *_: False)
    asked = request("Hi", max_new_tokens=200)
    plain, _ = run(engine, asked, 0)
    adaptive(engine, draft=0.3, row=0.3)
    _, hopeless = run(engine, asked, 7)
    with_oracle(engine, asked, plain, 1.0)
    adaptive(engine, draft=0.05)
    _, perfect = run(engine, asked, 7)
    assert sum(hopeless.stats.drafted_at) < 0.2 * len(plain)
    assert perfect.stats.rounds < len(plain) / 5


def test_the_controller_keeps_to_the_cap(engine):
    adaptive(engine, draft=0.01)
    for cap in range(MAX_DRAFT + 1):
        run(engine, request("Hi", temperature=1.0, seed=1), cap)  # asserts it


def test_a_round_is_timed_without_its_pauses(engine, monkeypatch):
    end_at(engine, set())
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    seen = []
    close = DraftController.close

    def noted(self, drafted, kept, following, round_s, draft_s=None):
        seen.append(round_s)
        close(self, drafted, kept, following, round_s, draft_s)

    monkeypatch.setattr(DraftController, "close", noted)
    adaptive(engine, draft=0.05)

    def poll() -> RoundControl:
        now[0] += 5.5
        return RoundControl(3, paused_s=5.0)

    list(engine.generate(request("Hi", max_new_tokens=20), poll))
    assert seen == pytest.approx([0.5] * len(seen))


def test_what_runs_is_told(tmp_path, monkeypatch):
    target, drafter = tiny.make_pair(tmp_path)
    assert load(target).info.drafting == "none"
    assert load(target, drafter).info.drafting == "fixed"
    for pays_s, told in ((0.0, "stepwise"), (1e9, "chain")):
        monkeypatch.setattr(drafting, "READING_PAYS_S", pays_s)
        assert load(target, drafter, adaptive_draft=True).info.drafting == told
