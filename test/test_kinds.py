# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Every released kind, in small: tokens, acceptance, and what is read of its checkpoint.

Their logits are compared with transformers in test_target.py and test_drafter.py.
"""

from __future__ import annotations

import dataclasses
import json
import random
import string

import pytest
import tiny
import torch
import torch.nn.functional as F
from engine_tools import arithmetic, load, request, run, with_oracle
from safetensors.torch import load_file, save_file

from gemma_mtp_ros.api import MAX_DRAFT
from gemma_mtp_ros.engine import tensor_file
from gemma_mtp_ros.engine.checkpoint import Weights, read_config
from gemma_mtp_ros.engine.experts import Experts
from gemma_mtp_ros.engine.layers import Store
from gemma_mtp_ros.engine.spec import TARGET_TYPES, text_spec

TOKENS = 48
DRAFTS = 3
SHORT, LONG = "Go on", "Bring the red cup from the kitchen, then wait."
assert len(SHORT) < tiny.WINDOW < len(LONG)


@pytest.fixture(scope="module", params=tiny.RELEASED, ids=lambda kind: kind.name)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folders(kind, tmp_path_factory):
    return tiny.make_pair(tmp_path_factory.mktemp(kind.name), kind, seed=3)


@pytest.fixture(scope="module")
def engine(folders):
    return endless(load(*folders))


@pytest.fixture(scope="module")
def target(folders):
    return tiny.reference(folders[0])


def endless(engine):
    """No token ends the text."""
    engine.model.generation = dataclasses.replace(engine.model.generation, eos=frozenset())
    return engine


def hf_generate(target, prompts, drafter=None):
    """Greedy completions of prompts of one length, ``(n, TOKENS)``."""
    with torch.no_grad():
        out = target.generate(
            prompts,
            assistant_model=drafter,
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[:, prompts.shape[1] :]


def same_but_for_ties(folder, prompt, ours, theirs):
    """Whether two answers are equal up to a place where float64 cannot tell the tokens apart.

    float32 misses the exact logits of these models by about 1e-5.
    """
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
    if at is None:
        return True
    ids = torch.tensor([[*prompt, *ours[:at]]])
    with torch.no_grad():
        exact = tiny.reference(folder, torch.float64)(ids, use_cache=False).logits[0, -1]
    return bool((exact.max() - exact[[ours[at], theirs[at]]] < 2e-5).all())


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["within the window", "past the window"])
def test_greedy_tokens_equal_transformers(folders, engine, target, prompt):
    asked = request(prompt, raw=True, max_new_tokens=TOKENS)
    ids = engine.text.encode((), prompt)
    expected = hf_generate(target, torch.tensor([ids]))[0].tolist()
    assert len(set(expected)) > 8
    tokens, _ = run(engine, asked, 0)
    assert same_but_for_ties(folders[0], ids, tokens, expected)
    assert run(engine, asked, MAX_DRAFT)[0] == tokens


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "drawn"])
def test_same_tokens_at_every_draft_length(engine, sampling):
    asked = request(LONG, **sampling)
    plain, _ = run(engine, asked, 0)
    drafter = engine.drafter
    for cap in range(1, MAX_DRAFT + 1):
        with_oracle(engine, asked, plain, 0.6)
        try:
            tokens, finish = run(engine, asked, cap)
        finally:
            engine.drafter = drafter
        assert tokens == plain
        assert sum(finish.stats.accepted_at) > 0


def test_same_bits_at_every_draft_length(engine):
    """Logits and states of twelve rows, one at a time and in passes of every width."""
    ids = torch.tensor(engine.text.encode((), LONG))
    length = len(ids) - 12

    def passes(width):
        engine.target.cache.reset()
        engine.target.prefill(ids[:length], True)
        rows = []
        for at in range(length, len(ids), width):
            state, logits = engine.target.decode(ids[at : at + width], at)
            engine.target.cache.commit(at + len(logits))
            rows.append(torch.cat([state, logits], 1))
        return torch.cat(rows).view(torch.int32)

    with torch.inference_mode():
        single = passes(1)
        for width in range(2, MAX_DRAFT + 2):
            assert torch.equal(passes(width), single)


def answers(target, engine, count):
    """Random prompts of one length, their token ids, and the target's greedy answers."""
    draw = random.Random(7)
    texts = ["".join(draw.choices(string.ascii_letters, k=20)) for _ in range(count)]
    prompts = torch.tensor([engine.text.encode((), text) for text in texts])
    return texts, prompts, hf_generate(target, prompts)


def teach(target, drafter, ids, rounds=30):
    """Let a drafter learn to continue ``ids (n, length)`` for ``DRAFTS`` steps."""
    length = ids.shape[1]
    with torch.no_grad():
        out = target(ids, use_cache=False, output_hidden_states=True, return_shared_kv_states=True)
    embed, shared = target.get_input_embeddings(), dict(out.shared_kv_states)
    behind = torch.arange(1, length)[:, None] - torch.arange(length)[None]
    seen = {tiny.FULL: behind > 0, tiny.SLIDING: (behind > 0) & (behind < tiny.WINDOW)}
    masks = {key: torch.where(mask, 0.0, -1e30)[None, None] for key, mask in seen.items()}
    head = drafter.masked_embedding
    if head is not None:
        cluster = torch.empty_like(head.token_ordering)
        cluster[head.token_ordering] = torch.arange(tiny.VOCAB) // head.vocab_size_per_centroid
    drafter.set_attn_implementation("eager")
    optimiser = torch.optim.AdamW(drafter.parameters(), lr=1e-2)
    for _ in range(rounds):
        state, loss = out.hidden_states[-1][:, :-1].detach(), torch.zeros(())
        for step in range(DRAFTS):
            fed = F.pad(ids, (0, DRAFTS))[:, 1 + step : length + step]
            wanted = F.pad(ids, (0, DRAFTS + 1))[:, 2 + step : length + 1 + step]
            known = slice(0, length - 2 - step)
            hidden = drafter.model(
                inputs_embeds=drafter.pre_projection(torch.cat([embed(fed).detach(), state], -1)),
                attention_mask=masks,
                position_ids=torch.arange(1, length)[None],
                shared_kv_states=shared,
                use_cache=False,
                output_hidden_states=True,
            ).last_hidden_state
            scores = drafter.lm_head(hidden)[:, known].flatten(0, 1)
            loss = loss + F.cross_entropy(scores, wanted[:, known].flatten())
            if head is not None:
                scores = head.centroids(hidden)[:, known].flatten(0, 1)
                loss = loss + F.cross_entropy(scores, cluster[wanted[:, known]].flatten())
            state = drafter.post_projection(hidden)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimiser.step()


@pytest.mark.slow
def test_tokens_per_pass_as_in_transformers(folders, engine, target, tmp_path):
    """With a drafter taught on the answers without their prompts, so that it is right in part."""
    count = 16
    texts, prompts, expected = answers(target, engine, count)
    drafter = tiny.reference(folders[1])
    teach(target, drafter, torch.cat([prompts[:, -2:], expected], 1))
    drafter.save_pretrained(tmp_path / "drafter")
    drafter = tiny.reference(tmp_path / "drafter")
    drafter.generation_config.num_assistant_tokens = DRAFTS
    drafter.generation_config.num_assistant_tokens_schedule = "constant"
    passes = []
    handle = target.register_forward_hook(lambda *_: passes.append(1))
    for prompt in prompts:
        hf_generate(target, prompt[None], drafter)
    handle.remove()
    theirs = count * TOKENS / len(passes)
    mine = endless(load(folders[0], tmp_path / "drafter"))
    ours = 0
    for text, prompt, row in zip(texts, prompts, expected, strict=True):
        tokens, finish = run(mine, request(text, raw=True, max_new_tokens=TOKENS), DRAFTS)
        assert same_but_for_ties(folders[0], prompt.tolist(), tokens, row.tolist())
        ours += finish.stats.rounds + 1
    ours = count * TOKENS / ours
    print(f"tokens per pass: {ours:.3f}, transformers {theirs:.3f}")
    assert 1.2 < theirs < DRAFTS + 0.7
    assert ours >= 0.99 * theirs


def poison(folder, chosen):
    """Fill the tensors whose name is chosen with NaN."""
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if chosen(name) and tensor.is_floating_point():
                tensors[name] = torch.full_like(tensor, float("nan"))
        save_file(tensors, file, metadata={"format": "pt"})


def is_text(name):
    return name.startswith(("model.language_model.", "model.layers.", "lm_head."))


@pytest.mark.parametrize(
    "kind", [k for k in tiny.RELEASED if k.towers], ids=lambda kind: kind.name, scope="module"
)
def test_towers_are_never_read(kind, tmp_path, monkeypatch):
    target, _ = tiny.make_pair(tmp_path, kind)
    entries = Weights(target, "model").entries
    towers = [entry for name, entry in entries.items() if not is_text(name)]
    assert len(towers) > 3
    plain, _ = run(load(target), request(LONG))
    poison(target, lambda name: not is_text(name))
    read = []
    fill = tensor_file.fill

    def recorded(fd, begin, out):
        read.append((begin, begin + len(out)))
        fill(fd, begin, out)

    monkeypatch.setattr(tensor_file, "fill", recorded)
    assert run(load(target), request(LONG))[0] == plain
    begin = min(entry.begin for entry in entries.values())
    assert all(start >= begin for start, _ in read)
    if len({entry.file for entry in entries.values()}) == 1:
        for entry in towers:
            end = entry.begin + entry.bytes
            assert not any(start < end and entry.begin < stop for start, stop in read)


def test_tensors_that_no_one_knows_are_left_alone(tmp_path):
    """As the keys that released checkpoints hold for layers that share another's."""
    target, _ = tiny.make_pair(tmp_path)
    plain, _ = run(load(target), request(LONG))
    file = target / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.5.self_attn.k_proj.weight"] = torch.full((64, 48), float("nan"))
    tensors["rotary.inv_freq"] = torch.ones(3)
    save_file(tensors, file, metadata={"format": "pt"})
    assert run(load(target), request(LONG))[0] == plain


def test_an_untied_head_counts_and_the_outer_config_says_so(tmp_path):
    kind = dataclasses.replace(tiny.UNTIED, towers=("vision",))
    target, _ = tiny.make_pair(tmp_path, kind)
    config = json.loads((target / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    del config["text_config"]["tie_word_embeddings"]
    (target / "config.json").write_text(json.dumps(config))
    engine = endless(load(target))
    expected = hf_generate(tiny.reference(target), torch.tensor([engine.text.encode((), LONG)]))[0]
    assert run(engine, request(LONG, raw=True, max_new_tokens=TOKENS))[0] == expected.tolist()


@pytest.fixture(scope="module", params=["kernels", "torch"])
def experts(request, tmp_path_factory):
    """The mixture of the first layer of a 26B-A4B."""
    with arithmetic(request.param):
        yield first_experts(tmp_path_factory.mktemp("experts"))


def first_experts(folder, precision="float32"):
    target, _ = tiny.make_pair(folder, tiny.EXPERTS_26B)
    spec = text_spec(read_config(target, TARGET_TYPES, "model").get_text_config())
    weights = Weights(target, "model")
    with torch.inference_mode():
        return Experts(weights, 0, spec, Store(precision, torch.device("cpu")))


def rows(n, seed=0):
    return torch.randn(n, 48, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n", [1, 3, 8, 40])
def test_only_the_chosen_experts_are_touched(experts, n):
    with torch.inference_mode():
        dense, x = rows(n), rows(n, 1)
        before = experts.add_to(dense, x)
        _, ids = experts.route(x)
        chosen = set(ids.flatten().tolist())
        others = [i for i in range(experts.spec.count) if i not in chosen]
        packed = [part.weight for part in (experts.gate_up, experts.down)]
        kept = [weight.clone() for weight in packed]
        for weight in packed:
            weight.view(experts.spec.count, -1)[others] = float("nan")
        try:
            after = experts.add_to(dense, x)
        finally:
            for weight, old in zip(packed, kept, strict=True):
                weight.copy_(old)
    assert n > 8 or others
    assert torch.equal(before, after)


def test_a_row_does_not_see_the_others_of_its_pass(experts):
    with torch.inference_mode():
        dense, x = rows(8), rows(8, 1)
        together = experts.add_to(dense, x)
        for i in range(8):
            mixed = rows(8, 2 + i)
            mixed[i] = x[i]
            own = rows(8, 20 + i)
            own[i] = dense[i]
            assert torch.equal(experts.add_to(own, mixed)[i], together[i])


def test_a_chunk_and_single_rows_agree(experts):
    with torch.inference_mode():
        dense, x = rows(40), rows(40, 1)
        chunk = experts.add_to(dense, x)
        single = torch.cat([experts.add_to(dense[i : i + 1], x[i : i + 1]) for i in range(40)])
    torch.testing.assert_close(chunk, single, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("precision", "allowed"), [("bfloat16", 0.02), ("int8", 0.03), ("int4", 0.3)]
)
def test_experts_in_every_precision(tmp_path, precision, allowed):
    """Read expert by expert, with one scale for all; the norm after brings rows to length 1."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    exact, rough = first_experts(tmp_path / "a"), first_experts(tmp_path / "b", precision)
    with torch.inference_mode():
        x, dense = rows(8, 1), rows(8)
        error = exact.add_to(dense, x) - rough.add_to(dense, x)
    assert 0 < error.square().mean().sqrt() < allowed
    assert rough.gate_up.bytes < 0.6 * exact.gate_up.bytes
