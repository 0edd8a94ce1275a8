# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The py_trees behaviour against the node with the embedded pair."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import py_trees
import pytest
from driver import REPOSITORY, Driver, NodeProcess, running_node
from py_trees.common import Access, Status
from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.node import Node

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import ErrorCode, FinishReason, ToolCall
from gemma_mtp_ros.demo.evaluate import extract_plan
from gemma_mtp_ros.msg import SamplingParams
from gemma_mtp_ros.ros.behaviour import AskModel
from gemma_mtp_ros.ros.client_messages import Result

PROMPT = "Bring Anna the red cup from the kitchen."
PLAN = [
    {"action": "navigate", "to": "kitchen"},
    {"action": "pick", "object": "red cup"},
    {"action": "give", "object": "red cup", "to": "Anna"},
]
# What was said is said again and again, until the limit.
LONG = Generate.Goal(
    prompt=PROMPT,
    sampling=SamplingParams(max_new_tokens=3000, temperature=0.0, presence_penalty=-100.0),
)
WAIT_S = 30.0


@pytest.fixture(scope="module")
def pair_node(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    parameters: dict[str, Any] = {
        "model": "demo",
        "draft": {"adaptive": False, "max_length": 4},
        "engine": {"threads": 1},
        "telemetry": {"source": "none"},
        "watchdog": {"mode": "off"},
    }
    with running_node(tmp_path_factory.mktemp("pair_node"), driver, parameters) as node:
        assert driver.change("configure", 180.0)
        assert driver.change("activate")
        yield node


class Robot:
    """A ROS node that a thread spins, a tree on it, and the blackboard."""

    def __init__(self, driver: Driver, executor: type) -> None:
        self.driver = driver
        self.node = Node("tree", context=driver.context)
        self._executor = executor(context=driver.context)
        self._executor.add_node(self.node)
        self._closing = False
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()
        py_trees.blackboard.Blackboard.clear()
        self.board = py_trees.blackboard.Client(name="test")
        for key in ("prompt", "urgent"):
            self.board.register_key(key, access=Access.WRITE)
        for part in ("text", "json", "tool_calls", "error_code", "error_msg", "result"):
            self.board.register_key(f"answer/{part}", access=Access.READ)
        self.board.prompt = PROMPT
        self.longest_tick_s = 0.0
        self.tree: py_trees.trees.BehaviourTree | None = None

    def plant(self, root: py_trees.behaviour.Behaviour) -> None:
        self.tree = py_trees.trees.BehaviourTree(root)
        self.tree.setup(node=self.node)

    def close(self) -> None:
        if self.tree is not None:
            self.tree.root.stop(Status.INVALID)
            self.tree.shutdown()
        self._closing = True
        self._executor.create_task(lambda: None)  # a wake alone does not end spin_once
        self._thread.join(5)
        self._executor.shutdown()
        self.node.destroy_node()

    def _spin(self) -> None:
        while not self._closing:
            self._executor.spin_once()

    def tick(self) -> Status:
        assert self.tree is not None
        begin_s = time.monotonic()
        self.tree.tick()
        self.longest_tick_s = max(self.longest_tick_s, time.monotonic() - begin_s)
        return self.tree.root.status

    def tick_until(self, condition: Callable[[], bool], timeout_s: float = WAIT_S) -> Status:
        """Tick, as often as messages come to the test's own node or at 50 Hz."""
        give_up_s = time.monotonic() + timeout_s
        while True:
            status = self.tick()
            if condition():
                return status
            assert time.monotonic() < give_up_s, self.tree and self.tree.root.feedback_message
            self.driver.soon(lambda: False, 0.02)

    def end(self, timeout_s: float = WAIT_S) -> Status:
        assert self.tree is not None
        root = self.tree.root
        return self.tick_until(lambda: root.status != Status.RUNNING, timeout_s)


@pytest.fixture(params=[SingleThreadedExecutor, MultiThreadedExecutor])
def robot(request: pytest.FixtureRequest, driver: Driver) -> Iterator[Robot]:
    robot = Robot(driver, request.param)
    yield robot
    robot.close()


@pytest.fixture
def active(pair_node: NodeProcess, driver: Driver) -> NodeProcess:
    driver.forget()
    return pair_node


def finish_of_latest(driver: Driver) -> FinishReason:
    """How the node's latest goal ended, from the last chunk on ~/tokens."""
    driver.wait_until(lambda: any(chunk.done for chunk in driver.chunks), WAIT_S, "the last chunk")
    return FinishReason(next(c.finish_reason for c in reversed(driver.chunks) if c.done))


@pytest.mark.usefixtures("active")
def test_an_answer_and_its_plan_come_to_the_blackboard(robot: Robot) -> None:
    ask = AskModel("ask", parse=extract_plan)
    robot.plant(ask)
    assert robot.tick() == Status.RUNNING
    assert robot.end() == Status.SUCCESS
    assert robot.board.get("answer/json") == PLAN
    text = robot.board.get("answer/text")
    assert text.startswith("I will bring Anna the red cup from the kitchen.\n{")
    assert robot.board.get("answer/result").text == text
    assert (robot.board.get("answer/error_code"), robot.board.get("answer/error_msg")) == (0, "")
    assert robot.board.get("answer/tool_calls") == []
    assert ask.feedback_message.startswith("STOP: ")


@pytest.mark.usefixtures("active")
def test_the_tree_may_ask_again(robot: Robot) -> None:
    robot.plant(AskModel("ask", parse=extract_plan))
    assert robot.end() == Status.SUCCESS
    robot.board.prompt = "Go to the kitchen."
    assert robot.tick() == Status.RUNNING
    assert robot.board.get("answer/text") == ""  # not the earlier answer
    assert robot.end() == Status.SUCCESS
    assert robot.board.get("answer/json") == [{"action": "navigate", "to": "kitchen"}]


@pytest.mark.usefixtures("active")
def test_an_answer_to_a_schema_comes_parsed(robot: Robot) -> None:
    schema = {
        "type": "object",
        "properties": {"go": {"enum": ["kitchen", "office"]}},
        "required": ["go"],
        "additionalProperties": False,
    }
    goal = Generate.Goal(response_schema=json.dumps(schema))
    robot.plant(AskModel("ask", goal=goal))
    assert robot.end() == Status.SUCCESS
    assert robot.board.get("answer/json")["go"] in ("kitchen", "office")


@pytest.mark.usefixtures("active")
def test_an_answer_that_was_cut_off_is_no_success(robot: Robot) -> None:
    short = Generate.Goal(sampling=SamplingParams(max_new_tokens=5, temperature=0.0))
    ask = AskModel("ask", goal=short)
    robot.plant(ask)
    assert robot.end() == Status.FAILURE
    assert "LENGTH" in ask.feedback_message
    assert "max_new_tokens" in ask.feedback_message
    assert robot.board.get("answer/text") != ""
    assert robot.board.get("answer/error_code") == ErrorCode.NONE


@pytest.mark.usefixtures("active")
def test_text_that_does_not_parse_is_no_success(robot: Robot) -> None:
    def refuse(_text: str) -> None:
        raise ValueError("no such form")

    ask = AskModel("ask", parse=refuse)
    robot.plant(ask)
    assert robot.end() == Status.FAILURE
    assert ask.feedback_message == "the answer cannot be parsed: no such form"


@pytest.mark.usefixtures("active")
def test_a_goal_that_is_refused_names_code_and_sentence(robot: Robot) -> None:
    robot.board.prompt = Generate.Goal(prompt="x", sampling=SamplingParams(top_p=7.0))
    ask = AskModel("ask")
    robot.plant(ask)
    assert robot.end() == Status.FAILURE
    assert ask.feedback_message.startswith("INVALID_GOAL (7101): ")
    assert "top_p" in ask.feedback_message
    assert robot.board.get("answer/error_code") == 7101
    assert robot.board.get("answer/error_msg") in ask.feedback_message


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("wish", [None, 7])
def test_a_prompt_that_is_none_fails_the_behaviour_and_not_the_tree(
    robot: Robot, wish: object
) -> None:
    if wish is None:
        robot.board.unset("prompt")
    else:
        robot.board.prompt = wish
    ask = AskModel("ask")
    robot.plant(ask)
    assert robot.tick() == Status.FAILURE
    assert ask.feedback_message.startswith("INVALID_GOAL (7101): prompt on the blackboard is ")


def urgent_first(ask: AskModel) -> py_trees.composites.Selector:
    """A tree whose first branch takes over when `urgent` is set."""
    check = py_trees.behaviours.CheckBlackboardVariableValue(
        "urgent?", py_trees.common.ComparisonExpression("urgent", True, lambda a, b: a == b)
    )
    stop = py_trees.composites.Sequence("urgent", memory=False)
    stop.add_children([check, py_trees.behaviours.Running("stand still")])
    root = py_trees.composites.Selector("root", memory=False)
    root.add_children([stop, ask])
    return root


@pytest.mark.usefixtures("active")
def test_a_higher_branch_cancels_the_goal_on_the_node(robot: Robot, driver: Driver) -> None:
    robot.board.urgent = False
    robot.board.prompt = LONG
    ask = AskModel("ask")
    robot.plant(urgent_first(ask))
    robot.tick_until(lambda: bool(driver.chunks))
    assert ask.status == Status.RUNNING
    robot.board.urgent = True
    robot.tick()
    assert ask.status == Status.INVALID
    assert finish_of_latest(driver) == FinishReason.CANCELED
    # And it can be asked again.
    robot.board.urgent = False
    robot.board.prompt = PROMPT
    assert robot.end() == Status.SUCCESS


@pytest.mark.usefixtures("active")
def test_a_goal_that_is_halted_before_it_is_accepted_is_canceled(
    robot: Robot, driver: Driver
) -> None:
    robot.board.prompt = LONG
    robot.plant(AskModel("ask"))
    for _ in range(3):  # sent, or not yet: none of them may go on
        robot.tick()
        assert robot.tree is not None
        robot.tree.root.stop(Status.INVALID)
    robot.board.prompt = PROMPT  # it would wait for them
    assert robot.end() == Status.SUCCESS
    ended = [FinishReason(chunk.finish_reason) for chunk in driver.chunks if chunk.done]
    assert set(ended[:-1]) <= {FinishReason.CANCELED}


@pytest.mark.usefixtures("active")
def test_the_time_out_of_the_goal_is_the_nodes(robot: Robot, driver: Driver) -> None:
    robot.board.prompt = LONG
    ask = AskModel("ask", timeout_s=0.3)
    robot.plant(ask)
    assert robot.end() == Status.FAILURE
    assert ask.feedback_message.startswith("TIMEOUT (7105): ")
    assert finish_of_latest(driver) == FinishReason.TIMEOUT


@pytest.mark.slow
def test_a_node_that_says_nothing_is_given_up(
    robot: Robot, driver: Driver, active: NodeProcess
) -> None:
    robot.board.prompt = LONG
    ask = AskModel("ask", timeout_s=2.0)
    robot.plant(ask)
    robot.tick_until(lambda: re.match("[1-9].* characters", ask.feedback_message) is not None)
    active.signal(signal.SIGSTOP)
    try:
        assert robot.end() == Status.FAILURE
    finally:
        active.signal(signal.SIGCONT)
    assert ask.feedback_message.startswith("TIMEOUT (7105): the node gave no result within ")
    assert robot.longest_tick_s < 1.0  # no tick waited for the node
    assert driver.state() == "active"


@pytest.mark.usefixtures("active")
def test_a_deactivated_node_fails_the_behaviour(robot: Robot, driver: Driver) -> None:
    ask = AskModel("ask")
    robot.plant(ask)
    assert driver.change("deactivate")
    try:
        assert robot.end() == Status.FAILURE
        assert ask.feedback_message.startswith("NOT_ACTIVE (7104): /gemma_mtp rejected the goal")
    finally:
        assert driver.change("activate")
    assert robot.end() == Status.SUCCESS


@pytest.mark.usefixtures("active")
def test_deactivation_ends_a_running_goal(robot: Robot, driver: Driver) -> None:
    robot.board.prompt = LONG
    ask = AskModel("ask")
    robot.plant(ask)
    robot.tick_until(lambda: bool(driver.chunks))
    assert driver.change("deactivate")
    try:
        assert robot.end() == Status.FAILURE
    finally:
        assert driver.change("activate")
    assert ask.feedback_message.startswith("NOT_ACTIVE (7104): ")
    assert robot.board.get("answer/text") != ""


def test_setup_waits_for_an_absent_node_and_no_longer(robot: Robot) -> None:
    ask = AskModel("ask", node_name="/nobody", server_timeout_s=0.2)
    with pytest.raises(RuntimeError, match="/nobody/generate was found within"):
        robot.plant(ask)


def test_an_absent_node_fails_the_behaviour(robot: Robot) -> None:
    ask = AskModel("ask", node_name="/nobody", server_timeout_s=0.2, require_server=False)
    robot.plant(ask)
    assert robot.tick() == Status.RUNNING
    assert robot.end() == Status.FAILURE
    assert ask.feedback_message.startswith("BACKEND_UNAVAILABLE (7112): no action server /nobody/")


@pytest.mark.slow
def test_a_node_that_ends_fails_a_running_behaviour(
    robot: Robot, driver: Driver, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    other = ("-r", "__ns:=/other")
    robot.board.prompt = LONG
    node = NodeProcess(tmp_path, parameters | {"autostart": True}, *other)
    try:
        ask = AskModel("ask", node_name="/other/gemma_mtp", server_timeout_s=60.0)
        robot.plant(ask)
        robot.tick_until(lambda: ask.feedback_message.endswith(" characters"), 60.0)
        node.signal(signal.SIGINT)
        assert robot.end() == Status.FAILURE
    finally:
        node.end()
    assert ask.feedback_message.startswith(("NOT_ACTIVE (7104)", "ENGINE_LOST (7108)"))


@pytest.mark.usefixtures("active")
def test_the_example_prints_the_plan(driver: Driver) -> None:
    command = [sys.executable, str(REPOSITORY / "examples" / "behaviour_tree.py"), PROMPT]
    path = f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    said, *steps = done.stdout.splitlines()
    assert said.startswith("SUCCESS: STOP: ")
    assert steps == [str(step) for step in PLAN]


class Said:
    """An answer that has ended: the embedded pair calls no tools and knows no schema."""

    def __init__(self, **fields: Any) -> None:
        self.goal = Generate.Goal(response_schema=fields.pop("response_schema", ""))
        self._result = Result(request_id="x", **fields)

    def result(self, check: bool) -> Result:
        assert not check
        return self._result


def test_tool_calls_come_parsed_to_the_blackboard(robot: Robot) -> None:
    ask = AskModel("ask")
    call = ToolCall(id="1", name="navigate", arguments='{"to": "kitchen"}')
    answer: Any = Said(finish_reason=FinishReason.TOOL_CALLS, tool_calls=(call,))
    assert ask._judge(answer) == Status.SUCCESS
    assert robot.board.get("answer/tool_calls") == [
        {"id": "1", "name": "navigate", "arguments": {"to": "kitchen"}}
    ]


def test_a_tool_call_that_cannot_be_read_is_no_success(robot: Robot) -> None:
    ask = AskModel("ask")
    cut = ToolCall(name="navigate", arguments='{"to": "kit')
    answer: Any = Said(
        finish_reason=FinishReason.ERROR,
        error_code=ErrorCode.TOOL_CALL_INVALID,
        error_msg="the call was cut short",
        tool_calls=(cut,),
    )
    assert ask._judge(answer) == Status.FAILURE
    assert ask.feedback_message == "TOOL_CALL_INVALID (7111): the call was cut short"
    assert robot.board.get("answer/tool_calls") == []


@pytest.mark.parametrize(
    ("text", "status", "parsed"),
    [('{"plan": []}', Status.SUCCESS, {"plan": []}), ('{"plan": [', Status.FAILURE, None)],
)
def test_a_goal_with_a_schema_is_parsed_as_json(
    robot: Robot, text: str, status: Status, parsed: Any
) -> None:
    ask = AskModel("ask")
    answer: Any = Said(finish_reason=FinishReason.STOP, text=text, response_schema="{}")
    assert ask._judge(answer) == status
    assert robot.board.get("answer/json") == parsed
    assert robot.board.get("answer/text") == text


def test_setup_without_a_node_says_so() -> None:
    with pytest.raises(KeyError, match="setup needs the ROS node"):
        AskModel("ask").setup()


@pytest.mark.parametrize(
    "times", [{"timeout_s": 0.0}, {"timeout_s": 1e10}, {"server_timeout_s": -1.0}]
)
def test_times_out_of_bounds_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(times))):
        AskModel("ask", **times)
