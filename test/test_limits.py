# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Where an answer ends, what it is made of, and that the bill agrees with what was sent."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from engine_tools import load, request, run, with_oracle
from host_tools import Told, endless_pair, running, submit
from host_tools import request as host_request
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import Gemma4ForCausalLM

from gemma_mtp_ros.api import (
    MAX_DRAFT,
    Cancel,
    EngineConfig,
    ErrorCode,
    Finish,
    FinishReason,
    Piece,
    Request,
    SamplingParams,
)
from gemma_mtp_ros.engine.decode import Engine, RoundControl
from gemma_mtp_ros.engine.draft_length import Costs
from gemma_mtp_ros.engine.load import generation_defaults
from gemma_mtp_ros.engine.sampling import Rules
from gemma_mtp_ros.engine.sequence import Sequence
from gemma_mtp_ros.engine.text import Text
from gemma_mtp_ros.host import BusyPolicy

CAPS = [0, 1, 3, MAX_DRAFT]
BIASED = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return load(*tiny.make_pair(tmp_path_factory.mktemp("pair"), tiny.E_SIZE))


@pytest.fixture(autouse=True)
def _restore(request):
    """Tests may put an oracle in the drafter's place or change what ends an answer."""
    if "engine" not in request.fixturenames:
        yield
        return
    engine = request.getfixturevalue("engine")
    drafter, generation = engine.drafter, engine.model.generation
    yield
    engine.drafter, engine.model.generation = drafter, generation
    engine.model.suppressed = engine.model.costs = None


def end_at(engine: Engine, *tokens: int) -> None:
    engine.model.generation = dataclasses.replace(engine.model.generation, eos=frozenset(tokens))


def write_ascii(engine: Engine) -> None:
    """Let the model write printable characters only, one a token."""
    printable = {engine.text.encode((), chr(c))[-1] for c in range(33, 127)}
    others = sorted(set(range(engine.target.spec.vocab)) - printable)
    engine.model.suppressed = torch.tensor(others)


# The bill.


def audit(events: list[Any]) -> Finish:
    """Check the statistics of an answer in one channel against its pieces; return its end."""
    finish = events[-1]
    assert isinstance(finish, Finish)
    pieces = [event for event in events if isinstance(event, Piece)]
    stats = finish.stats
    assert "".join(piece.text for piece in pieces) == finish.text
    assert sum(len(piece.token_ids) for piece in pieces) == stats.completion_tokens
    assert [piece.completion_tokens for piece in pieces] == list(
        itertools.accumulate(len(piece.token_ids) for piece in pieces)
    )
    assert all(a >= b for a, b in itertools.pairwise(stats.drafted_at))
    assert all(a >= b for a, b in itertools.pairwise(stats.accepted_at))
    assert all(a <= d for a, d in zip(stats.accepted_at, stats.drafted_at, strict=True))
    # One piece of the prefill, one of each round, and one of what was held back until the end.
    rounds, held = pieces[1 : 1 + stats.rounds], pieces[1 + stats.rounds :]
    assert len(rounds) == stats.rounds
    assert len(held) <= 1
    assert all(piece.token_ids == () and piece.text for piece in held)
    if pieces:
        assert len(pieces[0].token_ids) <= 1
        assert pieces[0].draft_length == 0
    assert stats.drafted_at == tuple(
        sum(piece.draft_length > depth for piece in rounds) for depth in range(MAX_DRAFT)
    )
    # A round that ran to its end has one token of the target's own beside the drafts that stood.
    stood = [len(piece.token_ids) - 1 for piece in rounds]
    allowed = [stood]
    if rounds and finish.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
        # The last round may have ended at a draft that stood, of which EOS is not sent.
        cut = min(stood[-1] + 1, rounds[-1].draft_length)
        eos = min(stood[-1] + 2, rounds[-1].draft_length)
        allowed += [[*stood[:-1], cut], [*stood[:-1], eos]]
    depths = [
        tuple(sum(each > depth for each in counts) for depth in range(MAX_DRAFT))
        for counts in allowed
    ]
    assert stats.accepted_at in depths
    assert 0.0 <= stats.ttft_s <= stats.total_s
    return finish


ENDINGS = ["stop string", "end of sequence", "token limit", "context", "canceled", "timeout"]
ENDINGS += ["preempted", "halted"]
ENDED_BY = {
    "canceled": (FinishReason.CANCELED, ErrorCode.CANCELED),
    "timeout": (FinishReason.TIMEOUT, ErrorCode.TIMEOUT),
    "preempted": (FinishReason.PREEMPTED, ErrorCode.PREEMPTED),
    "halted": (FinishReason.THERMAL, ErrorCode.THERMAL_LIMIT),
}


@pytest.mark.parametrize("acceptance", [0.5, 1.0])
@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_statistics_agree_with_the_tokens_sent(engine, ending, cap, acceptance):
    end_at(engine)
    write_ascii(engine)
    prompt = "x" * 478 if ending == "context" else "Hi"
    asked = request(prompt, temperature=1.0, seed=13, max_new_tokens=40)
    plain, whole = run(engine, asked, 0)
    sampling = asked.sampling
    expected, reason, code = len(plain), FinishReason.STOP, ErrorCode.NONE
    if ending == "stop string":
        stop = whole.text[10:13]
        sampling = sampling.model_copy(update={"stop": (stop,)})
        expected = whole.text.index(stop) + len(stop)
    elif ending == "end of sequence":
        end_at(engine, plain[12])
        expected = plain.index(plain[12])
    elif ending in ("token limit", "context"):
        reason = FinishReason.LENGTH
        if ending == "token limit":
            expected = 14
            sampling = sampling.model_copy(update={"max_new_tokens": 14})
    else:
        reason, code = ENDED_BY[ending]
    asked = asked.model_copy(update={"sampling": sampling})
    with_oracle(engine, asked, plain, acceptance)
    polls = itertools.count()

    def poll() -> RoundControl:
        end = None
        if ending in ENDED_BY and next(polls) == 4:
            end = Cancel(request_id=asked.id, finish_reason=reason, error_code=code)
        return RoundControl(cap, end)

    events = list(engine.generate(asked, poll))
    finish = audit(events)
    assert (finish.finish_reason, finish.error_code) == (reason, code)
    tokens = [t for event in events if isinstance(event, Piece) for t in event.token_ids]
    if ending in ENDED_BY:
        assert tokens == plain[: len(tokens)] != []
    else:
        assert tokens == plain[:expected]
    if ending == "context":
        assert finish.stats.prompt_tokens + len(tokens) == engine.context


def test_a_goal_that_ends_with_its_first_token_has_a_bill_too(engine):
    end_at(engine)
    asked = request("Hi")
    (first, *_), _ = run(engine, asked, 0)
    end_at(engine, first)
    finish = audit(list(engine.generate(asked, lambda: RoundControl(MAX_DRAFT))))
    assert (finish.finish_reason, finish.text) == (FinishReason.STOP, "")
    assert (finish.stats.completion_tokens, finish.stats.rounds) == (0, 0)
    end_at(engine)
    one = request("Hi", max_new_tokens=1)
    finish = audit(list(engine.generate(one, lambda: RoundControl(MAX_DRAFT))))
    assert (finish.stats.completion_tokens, finish.stats.rounds) == (1, 0)


# Stop strings, the end-of-sequence token and the limit, without a model.


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Text:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.tokenizer().save_pretrained(folder)
    return Text(folder)


EOS = 1


def served(
    text: Text, tokens: list[int], cuts: Iterator[int], stop: tuple[str, ...], limit: int
) -> tuple[FinishReason, str, list[int], list[str]]:
    """What becomes of tokens that are chosen a round at a time: end, text, tokens, pieces."""
    asked = Request(id="a", raw_prompt="x", sampling=SamplingParams(stop=stop))
    sequence = Sequence(asked, [2], Rules(), limit, text)
    pieces, sent, at = [], [], 0
    while sequence.finish is None:
        step = next(cuts)
        shown, kept, _ = sequence.push(tokens[at : at + step], frozenset({EOS}))
        at += step
        sent += [token for each in shown for token in each.tokens]
        pieces += [each.text for each in shown]
        assert sent[len(sent) - len(kept) :] == kept
    pieces += [each.text for each in sequence.flush()]
    finish = sequence.finished(None)
    assert sent == sequence.tokens
    assert finish.stats.completion_tokens == len(sent)
    return finish.finish_reason, finish.text, sent, pieces


@given(
    st.text("aböü€🤖", max_size=24),
    st.lists(st.text("aböü€🤖", min_size=1, max_size=3), max_size=3),
    st.lists(st.integers(1, MAX_DRAFT + 1), min_size=1, max_size=12),
    st.integers(1, 60),
)
@example("aab", ["ab"], [1], 60)
@example("x🤖y", ["🤖"], [2], 60)
@example("ab", ["abc"], [8], 60)
@example("abc", ["abc"], [3], 3)
@settings(max_examples=400)
def test_an_answer_ends_in_the_same_place_however_rounds_cut_it(text, written, stops, cuts, limit):
    """Against a search in the text of every prefix of the tokens: a character has up to 4."""
    tokens = [*text.tokenizer.encode(written, add_special_tokens=False), EOS, EOS, 50]
    reason, shown, kept = FinishReason.STOP, written, tokens[: tokens.index(EOS)]
    for count in range(1, len(kept) + 1):
        so_far = text.decode(kept[:count])
        found = [so_far.index(stop) for stop in stops if stop in so_far]
        if found:
            reason, shown, kept = FinishReason.STOP, so_far[: min(found)], kept[:count]
            break
        if count == limit:
            reason, shown, kept = FinishReason.LENGTH, so_far, kept[:count]
            break
    answer = served(text, tokens, itertools.cycle(cuts), tuple(stops), limit)
    assert answer[:3] == (reason, shown, kept)
    assert "".join(answer[3]) == shown


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 30), st.integers(1, 4), st.integers(0, MAX_DRAFT), st.floats(0.3, 1.0))
def test_a_stop_string_at_any_place_of_an_answer(engine, place, length, cap, acceptance):
    """With a real target: the drafts after the stop string were checked, and are not shown."""
    end_at(engine)
    write_ascii(engine)
    hopeless = engine.drafter
    plain, whole = run(engine, request("Hi", temperature=1.0, seed=13, max_new_tokens=40), 0)
    stop = whole.text[place : place + length]
    asked = request("Hi", temperature=1.0, seed=13, max_new_tokens=40, stop=(stop, "§"))
    with_oracle(engine, asked, plain, acceptance)
    events = list(engine.generate(asked, lambda: RoundControl(cap)))
    engine.drafter = hopeless
    finish = audit(events)
    at = whole.text.index(stop)
    assert (finish.finish_reason, finish.text) == (FinishReason.STOP, whole.text[:at])
    assert finish.stats.completion_tokens == at + length


# Limits.


@pytest.mark.parametrize("room", [1, 2, 7, 8, 9])
@pytest.mark.parametrize("cap", CAPS)
def test_the_context_limit_ends_with_length_and_the_text_so_far(engine, cap, room):
    end_at(engine)
    base = engine.count_tokens(request("x").messages, None)
    prompt = "x" * (engine.context - room - base + 1)
    plain, _ = run(engine, request(prompt, max_new_tokens=500), 0)
    asked = request(prompt, max_new_tokens=500)
    with_oracle(engine, asked, plain, 1.0)
    tokens, finish = run(engine, asked, cap)
    assert tokens == plain
    assert len(tokens) == room
    assert (finish.finish_reason, finish.error_code) == (FinishReason.LENGTH, ErrorCode.NONE)
    assert finish.stats.prompt_tokens + finish.stats.completion_tokens == engine.context
    refused = list(engine.generate(request(prompt + "x" * room), lambda: RoundControl(cap)))
    assert [event.error_code for event in refused] == [ErrorCode.PROMPT_TOO_LONG]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_least_of_the_limits_counts(engine, monkeypatch, limit):
    """The goal's, else the checkpoint's, else engine.max_new_tokens; and the context."""
    end_at(engine)
    own = engine.model.generation
    engine.model.generation = dataclasses.replace(own, max_new_tokens=limit + 10)
    assert len(run(engine, request("Hi", max_new_tokens=limit), 3)[0]) == limit
    assert len(run(engine, request("Hi", max_new_tokens=None), 3)[0]) == limit + 10
    engine.model.generation = dataclasses.replace(own, max_new_tokens=None)
    config = engine.config.model_copy(update={"max_new_tokens": limit + 20})
    monkeypatch.setattr(engine, "config", config)
    assert len(run(engine, request("Hi", max_new_tokens=None), 3)[0]) == limit + 20


# What the tokens are: penalties, suppress_tokens, EOS lists.


def greedy_of_transformers(engine: Engine, asked: Request, count: int, **options: Any) -> list[int]:
    model = Gemma4ForCausalLM.from_pretrained(engine.config.model, dtype=torch.float32)
    prompt = torch.tensor([engine.text.encode(asked.messages, asked.raw_prompt)])
    options = {"do_sample": False, "eos_token_id": None, **options}
    with torch.no_grad():
        out = model.generate(prompt, max_new_tokens=count, **options)
    return out[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("cap", CAPS)
def test_penalties_in_the_loop_equal_those_of_transformers(engine, cap):
    """Prompt and answer count, drafts that fell do not."""
    end_at(engine)
    asked = request("Bring the red cup.", max_new_tokens=30, repetition_penalty=1.4)
    plain, _ = run(engine, asked, 0)
    with_oracle(engine, asked, plain, 0.6)
    tokens, _ = run(engine, asked, cap)
    assert tokens == greedy_of_transformers(engine, asked, 30, repetition_penalty=1.4)
    assert tokens != run(engine, request("Bring the red cup.", max_new_tokens=30), 0)[0]


@pytest.mark.parametrize("cap", CAPS)
def test_presence_and_frequency_in_the_loop_equal_a_plain_loop(engine, cap):
    end_at(engine)
    given = {"presence_penalty": 1.0, "frequency_penalty": 0.5}
    asked = request("Bring the red cup.", max_new_tokens=30, **given)
    model = Gemma4ForCausalLM.from_pretrained(engine.config.model, dtype=torch.float32)
    ids = engine.text.encode(asked.messages, None)
    expected: list[int] = []
    for _ in range(30):
        with torch.no_grad():
            logits = model(torch.tensor([ids + expected])).logits[0, -1]
        for token in set(expected):
            logits[token] -= 1.0 + 0.5 * expected.count(token)
        expected.append(int(logits.argmax()))
    with_oracle(engine, asked, expected, 0.6)
    assert run(engine, asked, cap)[0] == expected


@pytest.mark.parametrize("cap", CAPS)
def test_suppressed_tokens_never_come_drafted_or_not(tmp_path, cap):
    plain, _ = run(load(*tiny.make_pair(tmp_path / "a", eos_token_id=[1])), request("Hi"), 0)
    unwanted = sorted(set(plain[:5]))
    pair = tiny.make_pair(tmp_path / "b", eos_token_id=[1], suppress_tokens=unwanted)
    engine = load(*pair)
    end_at(engine)
    asked = request("Hi")
    tokens, _ = run(engine, asked, 0)
    assert not set(tokens) & set(unwanted)
    assert tokens == greedy_of_transformers(engine, asked, 40, suppress_tokens=unwanted)
    with_oracle(engine, asked, plain, 1.0)  # drafts what must not come
    assert run(engine, asked, cap)[0] == tokens


def test_a_suppressed_end_of_sequence_token_ends_nothing(tmp_path):
    plain, _ = run(load(*tiny.make_pair(tmp_path / "a", eos_token_id=[1])), request("Hi"), 0)
    end = plain[3]
    engine = load(*tiny.make_pair(tmp_path / "b", eos_token_id=[end], suppress_tokens=[end]))
    tokens, finish = run(engine, request("Hi"), MAX_DRAFT)
    assert (len(tokens), finish.finish_reason) == (40, FinishReason.LENGTH)
    assert end not in tokens


def test_suppressed_tokens_outside_the_vocabulary_are_passed_over(tmp_path):
    """Lists of other members of a family name them; -1 stands for none in some."""
    target, drafter = tiny.make_pair(tmp_path, suppress_tokens=[-1, 70, tiny.VOCAB, 10**6])
    tokens, finish = run(load(target, drafter), request("Hi", temperature=5.0, seed=1), 3)
    assert finish.error_code is ErrorCode.NONE
    assert 70 not in tokens


@pytest.mark.parametrize("cap", CAPS)
def test_every_token_of_the_eos_list_ends_an_answer(tmp_path, cap):
    plain, _ = run(load(*tiny.make_pair(tmp_path / "a", eos_token_id=[1])), request("Hi"), 0)
    for number, end in enumerate(dict.fromkeys(plain[2:12:3])):
        engine = load(*tiny.make_pair(tmp_path / f"b{number}", eos_token_id=[3, end, 1]))
        asked = request("Hi")
        with_oracle(engine, asked, plain, 1.0)
        tokens, finish = run(engine, asked, cap)
        assert tokens == plain[: plain.index(end)]
        assert finish.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("said", "eos"),
    [
        ({"eos_token_id": [1, 106]}, {1, 106}),
        ({"eos_token_id": 106}, {106}),
        ({}, {7}),
        ({"eos_token_id": None}, {7}),
        (None, {7}),
    ],
)
def test_where_the_end_of_sequence_is_read(tmp_path: Path, said: Any, eos: set[int]) -> None:
    """generation_config.json first, then the model's config."""
    if said is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(said))
    config = tiny.target_config(eos_token_id=7)
    assert generation_defaults(tmp_path, config).eos == frozenset(eos)


# Real processes: seeds over restarts, and the bill of every ending.


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> EngineConfig:
    target, drafter = endless_pair(tmp_path_factory.mktemp("endless"))
    return EngineConfig(
        model=str(target), drafter=str(drafter), reproducible=True, threads=1, max_context=4096
    )


def test_a_seed_gives_the_same_answer_in_every_process_at_every_draft_length(config):
    sampling = SamplingParams(max_new_tokens=120, temperature=1.2, **BIASED)

    def ask(host: Any, seed: int | None) -> Finish:
        told = Told()
        wish = sampling.model_copy(update={"seed": seed})
        host.submit(Request(id=f"{time.monotonic()}", raw_prompt="Go", sampling=wish), told)
        return told.finish()

    with running(config) as host:
        host.set_live(draft_max_length=0)
        drawn = ask(host, None)
        assert len(drawn.text) == 120
        for longest in range(1, MAX_DRAFT + 1):
            host.set_live(draft_max_length=longest)
            again = ask(host, drawn.seed)
            assert again.text == drawn.text
            assert sum(again.stats.drafted_at) > 0
        assert ask(host, drawn.seed + 1).text != drawn.text
        first = host.pid
    with running(config.model_copy(update={"adaptive_draft": True})) as host:
        assert host.pid != first
        again = ask(host, drawn.seed)
        assert (again.text, again.seed) == (drawn.text, drawn.seed)
        assert ask(host, None).seed not in (drawn.seed, 0)
    with running(config.model_copy(update={"drafter": ""})) as host:
        assert ask(host, drawn.seed).text == drawn.text


def test_an_adaptive_draft_length_changes_nothing_either(engine):
    end_at(engine)
    asked = request("Hi", temperature=1.0, seed=4, max_new_tokens=80, **BIASED)
    plain, finish = run(engine, asked, 0)
    with_oracle(engine, asked, plain, 0.7)
    engine.model.costs = Costs(tuple(0.1 for _ in range(MAX_DRAFT + 1)), 0.01)
    events = list(engine.generate(asked, lambda: RoundControl(MAX_DRAFT)))
    assert audit(events).text == finish.text
    assert len({event.draft_length for event in events if isinstance(event, Piece)}) > 1


def endings() -> dict[str, tuple[dict[str, Any], Callable[[Any], Any], FinishReason]]:
    """Fields of the request, what is done to the host while it runs, how it ends."""
    return {
        "token limit": ({"tokens": 25}, lambda host: None, FinishReason.LENGTH),
        "canceled": ({}, lambda host: host.cancel("a"), FinishReason.CANCELED),
        "preempted": ({}, lambda host: submit(host, "b", tokens=1), FinishReason.PREEMPTED),
        "halted": (
            {},
            lambda host: host.set_control(draft_cap=3, halt=True, reason="hot"),
            FinishReason.THERMAL,
        ),
        "timeout": ({"timeout": 0.3}, lambda host: None, FinishReason.TIMEOUT),
    }


@pytest.mark.parametrize("ending", endings())
def test_the_bill_that_the_host_passes_on(config, ending):
    fields, act, reason = endings()[ending]
    fields = dict(fields)
    with running(config, busy_policy=BusyPolicy.PREEMPT) as host:
        host.set_control(draft_cap=3, pause_s=0.02, halt=False, reason="")
        host.set_live(stale_after_s=1e9)
        now_s = time.monotonic()
        if "timeout" in fields:
            fields["deadline_s"] = now_s + fields.pop("timeout")
        told = Told()
        host.submit(host_request("a", submitted_s=now_s, **fields), told)
        told.piece(3)
        act(host)
        told.finish()
        finish = audit(told.all)
        assert finish.finish_reason is reason
        assert finish.stats.rounds > 0
        told.assert_well_formed()
        host.set_control(draft_cap=3, pause_s=0.0, halt=False, reason="")
