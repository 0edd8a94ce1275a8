# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Every kind of drafter: the same answers, and drafts as good as its own text allows."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import shutil
from typing import get_args

import pytest
import tiny
import torch
from engine_tools import arithmetic, load, request, run
from safetensors.torch import load_file, save_file
from test_decode import SAMPLINGS
from transformers import AutoTokenizer

from gemma_mtp_ros.api import (
    MAX_DRAFT,
    Cancel,
    CheckpointError,
    DraftKind,
    Finish,
    FinishReason,
    Piece,
)
from gemma_mtp_ros.engine.decode import RoundControl
from gemma_mtp_ros.engine.draft_length import Costs
from gemma_mtp_ros.engine.draft_source import DraftSource
from gemma_mtp_ros.engine.prompt_lookup import BYTES_A_TOKEN
from gemma_mtp_ros.limits import DRAFT_KINDS

SHORT, LONG = "Hi", "Bring the red cup from the kitchen, then wait. "
KINDS = ["mtp", "copy", "noisy", "stranger", "prompt_lookup", "none"]
SCHEMA = {
    "type": "object",
    "properties": {
        "say": {"type": "string", "maxLength": 12},
        "steps": {"type": "array", "items": {"enum": ["goto", "pick"]}, "maxItems": 3},
    },
    "required": ["say", "steps"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target and what may draft for it, by name."""
    root = tmp_path_factory.mktemp("kinds")
    target, mtp = tiny.make_pair(root)
    noisy = root / "noisy"
    shutil.copytree(target, noisy)
    tensors = load_file(noisy / "model.safetensors")
    draw = torch.Generator().manual_seed(1)
    for name, value in tensors.items():
        if value.is_floating_point() and value.dim() == 2:
            value += 0.06 * value.std() * torch.randn(value.shape, generator=draw)
            tensors[name] = value
    save_file(tensors, noisy / "model.safetensors", metadata={"format": "pt"})
    stranger = tiny.save_target(root / "stranger", seed=9, **tiny.NO_PLE, **tiny.layers(1, 1))
    return {"target": target, "mtp": mtp, "copy": target, "noisy": noisy, "stranger": stranger}


def of_kind(folders, kind, **config):
    """An engine with a drafter of this kind, and no token that ends the text."""
    name = kind if kind in ("mtp", "prompt_lookup", "none") else "draft_model"
    engine = load(folders["target"], folders.get(kind), draft_kind=name, **config)
    end_at(engine, ())
    return engine


def end_at(engine, tokens):
    generation = dataclasses.replace(engine.model.generation, eos=frozenset(tokens))
    engine.model.generation = generation


@pytest.fixture(scope="module")
def plain(folders):
    """The target alone."""
    return of_kind(folders, "none")


@pytest.fixture(scope="module", params=KINDS)
def engine(request, folders):
    return of_kind(folders, request.param, cache_max_mib=16)


@pytest.fixture(scope="module")
def copied(folders):
    """A target with itself for a drafter, so that every draft stands."""
    return of_kind(folders, "copy", cache_max_mib=16)


@pytest.fixture(autouse=True)
def _restore(request):
    """Tests may change the end-of-sequence tokens, the costs and the drafter."""
    names = {"engine", "copied", "plain"} & set(request.fixturenames)
    engines = [request.getfixturevalue(name) for name in names]
    before = [(each.drafter, each.model.generation) for each in engines]
    yield
    for each, (drafter, generation) in zip(engines, before, strict=True):
        each.drafter, each.model.generation, each.model.costs = drafter, generation, None


@pytest.mark.parametrize("prompt", [SHORT, 3 * LONG], ids=["short", "past the window"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_same_tokens_at_every_draft_length(plain, engine, prompt, sampling):
    """Prompts are read anew the first time, and resumed at a snapshot later."""
    asked = request(prompt, **sampling)
    expected, finish = run(plain, asked, 0)
    for cap in range(MAX_DRAFT + 1):
        tokens, other = run(engine, asked, cap)
        assert tokens == expected
        assert other.text == finish.text
        assert other.stats.rounds <= finish.stats.rounds


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3, "top_k": 20}])
def test_same_tokens_under_a_schema(plain, engine, sampling):
    for each in (plain, engine):
        end_at(each, {1, 4})  # a grammar lets an answer end with them, and nothing else does
    asked = request(LONG, **{"max_new_tokens": 200, **sampling})
    asked = asked.model_copy(update={"response_schema": json.dumps(SCHEMA)})
    expected, finish = run(plain, asked, 0)
    json.loads(finish.text)
    for cap in range(MAX_DRAFT + 1):
        assert run(engine, asked, cap)[0] == expected


@pytest.mark.parametrize("draft_s", [0.001, 0.1])
def test_same_tokens_whatever_the_controller_chooses(plain, engine, draft_s):
    """Step by step where a draft is dear, else by chains; with caps that change."""
    asked = request(2 * LONG, max_new_tokens=120, temperature=1.0, seed=8, repetition_penalty=1.1)
    expected, _ = run(plain, asked, 0)
    engine.model.costs = Costs((0.1,) * (MAX_DRAFT + 1), draft_s)
    caps = itertools.cycle([7] * 9 + [0] * 12 + [3] * 5)
    events = list(engine.generate(asked, lambda: RoundControl(next(caps))))
    assert [t for e in events if isinstance(e, Piece) for t in e.token_ids] == expected


def test_bits_are_proved_and_the_kind_is_told(engine, folders):
    info = engine.info
    assert info.reproducible == "verified"
    assert info.draft_kind == engine.config.draft_kind
    assert info.drafter == {"prompt_lookup": "prompt_lookup"}.get(
        info.draft_kind, engine.config.drafter
    )
    assert (info.drafting == "none") == (info.draft_kind == "none")


@pytest.mark.parametrize("cap", [1, 3, 7])
@pytest.mark.parametrize("place", [0, 4, 9, 16])
def test_end_of_sequence_inside_drafts(plain, engine, cap, place):
    asked = request(LONG, temperature=1.0, seed=21)
    expected, _ = run(plain, asked, 0)
    end = expected[place]
    end_at(engine, {end})
    tokens, finish = run(engine, asked, cap)
    assert tokens == expected[: expected.index(end)]
    assert finish.finish_reason == FinishReason.STOP


def test_a_stop_string_inside_drafts(plain, engine):
    asked = request(LONG, temperature=1.0, seed=13)
    _, whole = run(plain, asked, 0)
    stop = whole.text[9:11]
    stopped = request(LONG, temperature=1.0, seed=13, stop=(stop,))
    expected = run(plain, stopped, 0)
    for cap in (2, 7):
        tokens, finish = run(engine, stopped, cap)
        assert (tokens, finish.text) == (expected[0], whole.text[: whole.text.index(stop)])
        assert finish.finish_reason == FinishReason.STOP


@pytest.mark.parametrize("cap", [2, 7])
def test_the_context_ends_the_answer(plain, engine, cap):
    asked = request("x" * 480, max_new_tokens=500)
    expected, _ = run(plain, asked, 0)
    tokens, finish = run(engine, asked, cap)
    assert (tokens, finish.finish_reason) == (expected, FinishReason.LENGTH)


@pytest.mark.parametrize("after", [1, 3, 6, 12, 20])
def test_a_cancel_is_heard_while_a_drafter_reads_and_drafts(plain, engine, after):
    """Prompts of many chunks, which a draft model reads on its own; nothing of it stays behind."""
    polls = itertools.count(1)
    asked = request(str(after) + "y" * 150, max_new_tokens=40)
    end = Cancel(request_id="x")

    def poll():
        return RoundControl(4, end if next(polls) >= after else None)

    events = list(engine.generate(asked, poll))
    assert isinstance(events[-1], Finish)
    assert events[-1].finish_reason == FinishReason.CANCELED
    assert next(polls) == after + 1
    assert run(engine, asked, 4)[0] == run(plain, asked, 0)[0]


def drafted(finish):
    return sum(finish.stats.drafted_at)


def accepted(finish):
    return sum(finish.stats.accepted_at)


@pytest.mark.parametrize("prompt", [SHORT, 4 * LONG], ids=["short", "past the window"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("cap", [1, 2, 5, 7])
def test_every_draft_of_a_copy_of_the_target_stands(copied, prompt, sampling, cap):
    """A row that a draft model lacks, or has at the wrong place, would show here."""
    _, finish = run(copied, request(prompt, max_new_tokens=60, **sampling), cap)
    assert accepted(finish) == drafted(finish) > 0
    assert finish.stats.rounds == -(-59 // (cap + 1))


@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "recorded"])
@pytest.mark.parametrize("cap", [1, 4, 7])
def test_a_copy_in_torch_stands_too(folders, recorded, cap):
    """As on a GPU, where passes are recorded; on a CPU a recording is called each time."""
    with arithmetic("torch"):
        engine = of_kind(folders, "copy")
        if recorded:
            engine.drafter.record(lambda: None)
            assert engine.drafter.recorded_bytes > 0
        asked = request(2 * LONG, max_new_tokens=80)
        expected, _ = run(engine, asked, 0)
        tokens, finish = run(engine, asked, cap)
        assert tokens == expected
        assert accepted(finish) == drafted(finish) > 0
        engine.drafter = spoiled = Spoiled(engine.drafter, 0.3)
        tokens, finish = run(engine, asked, cap)
        assert tokens == expected
        assert accepted(finish) == spoiled.right


class Spoiled(DraftSource):
    """A draft model some of whose drafts are made to fail, so that it has rows to give up."""

    def __init__(self, source, share):
        self.source, self.share = source, share
        self.random = random.Random(3)
        self.right, self.spoiled = 0, False
        self.cache, self.prefixes = source.cache, source.prefixes

    def begin(self, prompt, owner=None):
        self.source.begin(prompt, owner)

    def catch_up(self, standing):
        ready = self.source.catch_up(standing)
        self.spoiled = self.spoiled and ready is None
        return ready

    def prepare(self):
        return self.source.prepare()

    def step(self, token, state):
        return self.source.step(token, state)

    def logits(self, hidden):
        scores, ids = self.source.logits(hidden)
        self.spoiled = self.spoiled or self.random.random() < self.share
        if self.spoiled:
            return scores.roll(1, -1), ids
        self.right += 1
        return scores, ids


@pytest.mark.parametrize("share", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("cap", [2, 4, 7])
def test_a_copy_is_right_again_after_a_rejection(plain, copied, share, cap):
    """All drafts before a spoiled one stand, in every round."""
    asked = request(2 * LONG, max_new_tokens=150)
    expected, _ = run(plain, asked, 0)
    copied.drafter = spoiled = Spoiled(copied.drafter, share)
    tokens, finish = run(copied, asked, cap)
    assert tokens == expected
    assert 0 < accepted(finish) < drafted(finish)
    assert accepted(finish) == spoiled.right


@pytest.mark.parametrize("away", [3, 9, 40])
def test_a_copy_is_right_again_after_plain_rounds(plain, copied, away):
    """With a gap that fits into a step, into a pass of its own, and into several chunks."""
    asked = request(LONG, max_new_tokens=200)
    expected, _ = run(plain, asked, 0)
    caps = itertools.cycle([0] * away + [5] * 6)
    polls = []

    def poll():
        polls.append(next(caps))
        return RoundControl(polls[-1])

    events = list(copied.generate(asked, poll))
    assert [t for e in events if isinstance(e, Piece) for t in e.token_ids] == expected
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert accepted(finish) == drafted(finish) > 10


def test_a_schema_makes_no_row_of_a_copy_wrong(copied):
    end_at(copied, {1, 4})
    asked = request(LONG, max_new_tokens=200)
    asked = asked.model_copy(update={"response_schema": json.dumps(SCHEMA)})
    _, finish = run(copied, asked, 7)
    assert accepted(finish) == drafted(finish) > 0


def test_a_copy_with_noise_is_right_in_part(folders):
    _, finish = run(of_kind(folders, "noisy"), request(LONG, max_new_tokens=200), 4)
    assert 0.05 < accepted(finish) / drafted(finish) < 0.98


def chunks(engine, asked):
    """How often the engine looked around, and what came."""
    polls = []
    events = list(engine.generate(asked, lambda: polls.append(1) or RoundControl(4)))
    return len(polls), events[-1]


def test_a_draft_model_reads_a_repeated_prompt_once(folders):
    """In chunks, with a look around between them; from a snapshot the second time."""
    engine = of_kind(folders, "copy", cache_max_mib=16)
    asked = request("z" * 330, raw=True, max_new_tokens=2)
    first, _ = chunks(engine, asked)
    again, finish = chunks(engine, asked)
    read = 330 // engine.config.prefill_chunk
    assert finish.stats.cached_tokens > 300
    assert first >= 2 * read
    assert again <= first - 2 * (read - 2)
    assert engine.drafter.prefixes.bytes == engine.prefixes.bytes > 0
    assert engine.memory.snapshots == 2 * engine.prefixes.bytes
    budget = engine.prefixes.budget + engine.drafter.prefixes.budget
    assert budget == 16 * 2**20


def test_reset_session_forgets_it_in_both_models(folders):
    engine = of_kind(folders, "copy", cache_max_mib=16)
    asked = request("z" * 200, raw=True, max_new_tokens=4).model_copy(update={"session_id": "s"})
    run(engine, asked, 4)
    assert engine.reset_session("s")
    assert engine.memory.snapshots == 0
    assert not engine.reset_session("s")


def test_memory_of_a_draft_model_counts(folders):
    alone, both = of_kind(folders, "none"), of_kind(folders, "copy")
    memory, target = both.info.memory, alone.info.memory
    assert memory.drafter == target.weights + target.ple
    assert memory.kv == 2 * target.kv
    assert memory.workspace > target.workspace
    index = of_kind(folders, "prompt_lookup").info.memory.workspace - target.workspace
    assert index == BYTES_A_TOKEN * alone.context


def test_a_draft_model_that_cannot_fit_is_refused(folders, monkeypatch):
    from gemma_mtp_ros.engine import load as loading

    needed = []
    monkeypatch.setattr(loading, "check_memory", lambda size, *_: needed.append(size))
    for kind in ("none", "copy", "prompt_lookup"):
        of_kind(folders, kind)
    assert needed[1] > 1.9 * needed[0]
    assert needed[2] == needed[0] + BYTES_A_TOKEN * 512


def test_the_kinds_are_those_of_the_command_line():
    assert get_args(DraftKind) == DRAFT_KINDS


def test_costs_of_every_kind_are_measured(folders):
    for kind in ("mtp", "copy", "prompt_lookup"):
        engine = of_kind(folders, kind, adaptive_draft=True)
        assert 0 < engine.model.costs.draft < 1.0
        if engine.drafter.cache is not None:
            assert engine.drafter.cache.length == 0
        run(engine, request(LONG), 4)
    assert engine.info.drafting == "chain"  # a copy has no probability


def test_drafts_end_where_a_draft_model_reads_no_further(folders, plain, tmp_path):
    short = tiny.save_target(tmp_path / "short", **tiny.E_SIZE.target, max_position_embeddings=64)
    engine = of_kind({**folders, "short": short}, "short")
    asked = request(SHORT, max_new_tokens=200)
    tokens, finish = run(engine, asked, 4)
    assert tokens == run(plain, asked, 0)[0]
    assert 0 < drafted(finish) < 4 * 64
    asked = request(5 * LONG, max_new_tokens=20)
    tokens, finish = run(engine, asked, 4)
    assert (tokens, drafted(finish)) == (run(plain, asked, 0)[0], 0)


def reads_of(engine):
    """Lengths of what the draft model reads from now on."""
    read = []
    prefill = engine.drafter.model.prefill
    engine.drafter.model.prefill = lambda ids, last: (read.append(len(ids)), prefill(ids, last))[1]
    return read


def test_a_draft_model_that_cannot_pay_reads_no_prompts(folders):
    """As slow as the target: with every draft right it would still lose."""
    engine = of_kind(folders, "copy")
    engine.model.costs = Costs((0.1,) * (MAX_DRAFT + 1), 0.1)
    read = reads_of(engine)
    for number in range(3):
        run(engine, request(2 * LONG + str(number), max_new_tokens=60), 4)
    assert sum(read) == 0
    engine.model.costs = Costs((0.1,) * (MAX_DRAFT + 1), 0.001)
    _, finish = run(engine, request(2 * LONG, max_new_tokens=60), 4)
    assert sum(read) > 0
    assert accepted(finish) > 30


def test_a_draft_model_reads_no_long_prompt_for_a_few_tokens(folders, plain):
    engine = of_kind(folders, "copy")
    read = reads_of(engine)
    for most, reads in ((4, False), (150, True)):
        engine.model.costs = Costs((0.1,) * (MAX_DRAFT + 1), 0.02)
        engine.controller.read(100, 1.0)
        asked = request(4 * LONG, max_new_tokens=most)
        assert run(engine, asked, 4)[0] == run(plain, asked, 0)[0]
        assert (sum(read) > 0) == reads


def test_prompt_lookup_accepts_what_repeats(folders, tmp_path):
    """A model that says one thing again and again, which its first line shows."""
    target = tiny.save_target(tmp_path / "loop", seed=3, branches=0.05, **tiny.NO_PLE)
    asked = request(LONG, max_new_tokens=150)
    expected, _ = run(of_kind({"target": target}, "none"), asked, 0)
    assert len(set(expected[-60:])) < 30
    tokens, finish = run(of_kind({"target": target}, "prompt_lookup"), asked, 7)
    assert tokens == expected
    assert accepted(finish) > 0.5 * drafted(finish) > 0
    assert finish.stats.rounds < 80


def test_prompt_lookup_drafts_nothing_where_nothing_occurred_before(folders):
    engine = of_kind(folders, "prompt_lookup")
    engine.drafter.begin([1, 2, 3])
    assert engine.drafter.catch_up([4]) == 0
    assert engine.drafter.catch_up([4, 2]) == MAX_DRAFT
    state = torch.zeros(1, 48)
    chain = engine.drafter.chain(torch.tensor([2]), state, 5, None, 0)
    assert chain.tolist() == [3, 4, 2, 3, 4]


def test_prompt_lookup_reads_a_long_prompt_in_parts(folders):
    engine = of_kind(folders, "prompt_lookup")
    engine.drafter.begin(list(range(40_000)))
    assert engine.drafter.catch_up([7]) is None
    assert engine.drafter.catch_up([7]) is None
    assert engine.drafter.catch_up([7]) == MAX_DRAFT


@pytest.mark.parametrize(
    ("kind", "drafter", "words"),
    [
        ("draft_model", "mtp", ["draft.kind is draft_model", "MTP assistant", "draft.kind to mtp"]),
        ("mtp", "target", ["draft.kind is mtp", "gemma4_text", "draft.kind to draft_model"]),
        ("draft_model", "", ["no drafter is set", "'drafter'"]),
        ("draft_model", "larger", ["vocabulary of 320", "has 288", "same family"]),
        ("draft_model", "other", ["tokenizer.json", "differ in model", "same family"]),
        ("draft_model", "nowhere", ["nowhere", "does not exist"]),
    ],
)
def test_a_wrong_pairing_gets_one_sentence(folders, tmp_path, kind, drafter, words):
    names = {**folders, "nowhere": tmp_path / "nowhere"}
    if drafter == "larger":
        sizes = {"vocab_size": 320}
        names["larger"] = tiny.save_target(tmp_path / "larger", **tiny.NO_PLE, **sizes)
    if drafter == "other":
        names["other"] = tiny.save_target(tmp_path / "other", **tiny.NO_PLE)
        file = names["other"] / "tokenizer.json"
        raw = json.loads(file.read_text())
        vocab = raw["model"]["vocab"]
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
        file.write_text(json.dumps(raw))
        assert AutoTokenizer.from_pretrained(names["other"]).encode("a") != [vocab["b"]]
    with pytest.raises(CheckpointError) as refused:
        load(folders["target"], names.get(drafter), draft_kind=kind)
    for word in words:
        assert word in str(refused.value)
    assert str(refused.value).count(". ") == 0


def test_how_a_tokenizer_pads_is_no_difference(folders, tmp_path):
    twin = tmp_path / "twin"
    shutil.copytree(folders["target"], twin)
    file = twin / "tokenizer.json"
    raw = json.loads(file.read_text())
    raw["truncation"] = {"max_length": 9, "strategy": "LongestFirst", "stride": 0}
    raw["truncation"]["direction"] = "Right"
    file.write_text(json.dumps(raw, indent=1))
    assert load(folders["target"], twin, draft_kind="draft_model").drafter is not None


def test_warming_reads_the_system_prompt_into_both_models(folders):
    engine = of_kind(folders, "copy", cache_max_mib=16)
    engine.warm("You are a robot. " * 10, lambda: RoundControl(7))
    assert engine.drafter.prefixes.bytes > 0
    assert run(engine, request(LONG), 4)[0] == run(of_kind(folders, "none"), request(LONG), 0)[0]
