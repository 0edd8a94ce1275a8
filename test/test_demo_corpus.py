# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The corpus of the embedded pair, its tokenizer, and the reading of plans."""

from __future__ import annotations

import json
import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_mtp_ros.demo import DRAFTER_DIR, TARGET_DIR, corpus, vocabulary
from gemma_mtp_ros.demo.evaluate import extract_plan, plan_matches
from gemma_mtp_ros.demo.speech import plural
from gemma_mtp_ros.demo.tokenizer import CHAT_TEMPLATE, SPACED_WORDS

KEYS = {
    "navigate": {"to"},
    "pick": {"object", "count"},
    "place": {"object", "target"},
    "give": {"object", "to"},
    "open": {"target"},
    "close": {"target"},
    "turn_on": {"target"},
    "turn_off": {"target"},
    "inspect": {"target"},
    "wait": {"seconds"},
    "follow": {"person", "to"},
    "report": {"to"},
    "dock": set(),
}
OPTIONAL = {("pick", "count"), ("follow", "to")}


@pytest.mark.parametrize("free_names", [0.0, 0.3])
def test_held_out_instructions_share_no_instance_with_training(free_names):
    trained = list(islice(corpus.examples(1, free_names=free_names), 8_000))
    tested = corpus.held_out(200, free_names=free_names)
    assert not {e.instance for e in trained} & {e.instance for e in tested}
    assert not {e.instruction for e in trained} & {e.instruction for e in tested}
    # Not by luck of the draw: the rule itself separates them.
    assert all(corpus.is_held_out(e) for e in tested)
    assert not any(corpus.is_held_out(e) for e in trained)


def test_training_conversations_hold_no_held_out_plan():
    tested = {e.answer for e in corpus.held_out(200) if e.plan}
    seen = {
        message["content"]
        for conversation in islice(corpus.conversations(3), 3_000)
        for message in conversation
    }
    assert not seen & tested


def test_held_out_is_deterministic_and_without_repeats():
    first, second = corpus.held_out(200), corpus.held_out(200)
    assert first == second
    assert len({e.instance for e in first}) == 200
    assert corpus.held_out(50) == first[:50]


def test_a_seed_decides_everything():
    def draw(seed):
        return list(islice(corpus.conversations(seed), 50))

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


def test_plans_follow_the_documented_schema():
    for example in islice(corpus.examples(2, free_names=0.2), 3_000):
        assert len(example.plan) <= corpus.MAX_STEPS
        for step in example.plan:
            action = step["action"]
            required = {k for k in KEYS[action] if (action, k) not in OPTIONAL}
            assert required <= set(step) - {"action"} <= KEYS[action]
        assert plan_matches(example.answer, example.plan) == (True, True)


def test_every_action_and_every_kind_of_request_occurs():
    drawn = list(islice(corpus.examples(4), 2_000))
    assert {step["action"] for e in drawn for step in e.plan} == set(KEYS)
    assert any(not e.plan for e in drawn)
    assert {len(e.plan) for e in drawn} == set(range(corpus.MAX_STEPS + 1))


def test_what_is_said_first_is_not_always_done_first():
    example = next(e for e in corpus.examples(8) if e.instruction.startswith("Before you"))
    later, sooner = example.instruction.split(", ", 1)
    assert len(example.plan) >= 2
    assert later
    assert sooner


def test_a_pronoun_stands_for_what_was_named():
    drawn = list(islice(corpus.examples(9), 2_000))
    told = [e for e in drawn if re.search(r"\b(give|hand) (it|them) to\b", e.instruction)]
    assert told
    for example in told:
        picked = {step["object"] for step in example.plan if step["action"] == "pick"}
        given = {step["object"] for step in example.plan if step["action"] == "give"}
        assert given
        assert given <= picked
    values = {str(value) for e in drawn for step in e.plan for value in step.values()}
    assert not values & {"it", "them", "me", "you"}


def test_an_instruction_has_one_meaning():
    plans: dict[str, str] = {}
    for example in islice(corpus.examples(10), 10_000):
        plan = corpus.dump_plan(example.plan)
        assert plans.setdefault(example.instruction, plan) == plan


def test_places_are_named_with_and_without_a_number():
    places = {
        step["to"]
        for example in islice(corpus.examples(11), 5_000)
        for step in example.plan
        if step["action"] == "navigate"
    }
    assert "hall" in places
    assert any(re.fullmatch(r"hall \d+", place) for place in places)
    assert "user" in places  # "come here"


@pytest.mark.parametrize(
    ("noun", "many"),
    [("cup", "cups"), ("box", "boxes"), ("battery", "batteries"), ("toy car", "toy cars"),
     ("glass", "glasses"), ("wrench", "wrenches"), ("cup of tea", "cups of tea")],
)  # fmt: skip
def test_plural(noun, many):
    assert plural(noun) == many


PLAN = ({"action": "navigate", "to": "kitchen"}, {"action": "dock"})
GOOD = 'I will.\n{"plan":[{"action":"navigate","to":"kitchen"},{"action":"dock"}]}'


@pytest.mark.parametrize(
    ("text", "valid", "exact"),
    [
        (GOOD, True, True),
        (GOOD + "\n", True, True),
        ('{"plan":[{"to":"kitchen","action":"navigate"},{"action":"dock"}]}', True, True),
        ('{"plan":[{"action":"dock"},{"action":"navigate","to":"kitchen"}]}', True, False),
        ('{"plan":[]}', True, False),
        ("", False, False),
        ("I will go.", False, False),
        (GOOD[:-1], False, False),
        (GOOD + " done", False, False),
        ('{"plan":"dock"}', False, False),
        ('{"plan":[{"to":"kitchen"}]}', False, False),
        ("[1]", False, False),
    ],
)
def test_plan_matches(text, valid, exact):
    assert plan_matches(text, PLAN) == (valid, exact)


@given(st.text(max_size=60))
def test_extract_plan_takes_any_text(text):
    steps = extract_plan(text)
    assert steps is None or isinstance(steps, list)


@pytest.fixture(scope="module")
def tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_file(str(TARGET_DIR / "tokenizer.json"))


@given(text=st.text(max_size=60).filter(lambda text: "▁" not in text))
def test_any_text_survives_the_tokenizer(tokenizer, text):
    # "▁" itself stands for a space, as in every Gemma tokenizer.
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_listed_name_is_the_same_few_tokens_wherever_it_stands(tokenizer):
    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    for name in (*vocabulary.PLACES, *vocabulary.PEOPLE, *vocabulary.OBJECTS):
        ids = encode(name)
        # A token for each word, each space and each hyphen; "of" takes its space along.
        assert len(ids) == len(re.findall("(?: of)|[A-Za-z]+|[ -]", name))
        assert encode(f'"{name}"')[1:-1] == ids
        if re.split("[ -]", name)[0] not in SPACED_WORDS:
            assert encode(f" {name}")[1:] == ids


def test_template_gives_gemma_4_turns_and_one_bos():
    jinja2 = pytest.importorskip("jinja2")
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(CHAT_TEMPLATE)
    text = template.render(
        bos_token="<bos>",
        add_generation_prompt=True,
        messages=[
            {"role": "system", "content": "Be brief. "},
            {"role": "user", "content": " Go."},
            {"role": "assistant", "content": "I will."},
            {"role": "user", "content": "Stop."},
        ],
    )
    assert text == (
        "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nGo.<turn|>\n"
        "<|turn>model\nI will.<turn|>\n<|turn>user\nStop.<turn|>\n<|turn>model\n"
    )
    for folder in (TARGET_DIR, DRAFTER_DIR):
        assert (folder / "chat_template.jinja").read_text(encoding="utf-8") == CHAT_TEMPLATE


def test_the_folders_fit_each_other_and_the_size_stated():
    config = json.loads((TARGET_DIR / "config.json").read_text(encoding="utf-8"))
    drafter = json.loads((DRAFTER_DIR / "config.json").read_text(encoding="utf-8"))
    assert drafter["backbone_hidden_size"] == config["hidden_size"]
    assert drafter["text_config"]["vocab_size"] == config["vocab_size"]
    assert config["sliding_window"] < 100
    assert config["layer_types"][-1] == "full_attention"
    tokens = json.loads((TARGET_DIR / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["content"]: token["id"] for token in tokens["added_tokens"]}
    generation = json.loads((TARGET_DIR / "generation_config.json").read_text(encoding="utf-8"))
    assert generation["eos_token_id"] == [special["<eos>"], special["<turn|>"]]
    files = [f for d in (TARGET_DIR, DRAFTER_DIR) for f in d.iterdir()]
    assert sum(f.stat().st_size for f in files) < 10_500_000
