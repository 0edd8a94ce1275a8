# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The client of robot behaviours, against the real node with the embedded pair."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from driver import Driver, NodeProcess
from pydantic import BaseModel
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import (
    Executor,
    ExternalShutdownException,
    MultiThreadedExecutor,
    SingleThreadedExecutor,
)
from rclpy.node import Node
from test_busy_policy import ENDLESS
from unique_identifier_msgs.msg import UUID

from gemma_mtp_ros.api import Channel, ErrorCode, FinishReason, Message, RequestError
from gemma_mtp_ros.msg import TokenChunk
from gemma_mtp_ros.ros import courier
from gemma_mtp_ros.ros.client import (
    Answer,
    AnswerTimeoutError,
    ClientError,
    GenerateClient,
    GoalFailedError,
    GoalRejectedError,
    NodeLostError,
    NotSpunError,
    Piece,
    ServerUnavailableError,
    Stage,
)
from gemma_mtp_ros.ros.client_messages import goal_message

CUP = "Bring Anna the red cup from the kitchen."
DOCK = "Go to the dock."
WAIT_S = 60.0


@pytest.fixture(scope="module")
def parameters(embedded: dict[str, Any]) -> dict[str, Any]:
    return embedded


@pytest.fixture
def client(active: NodeProcess) -> Iterator[GenerateClient]:
    with GenerateClient() as client:
        yield client


@pytest.fixture
def slow(active: NodeProcess, driver: Driver) -> Iterator[None]:
    """Answers take seconds: a token a round."""
    assert driver.set(draft__max_length=0) == ""
    yield
    assert driver.set(draft__max_length=4) == ""


class Spun:
    """A node that an executor spins in a thread, as a behaviour's would be."""

    def __init__(self, kind: type[Executor]) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node: Node = rclpy.create_node("behaviour", context=self.context)
        self.executor = kind(context=self.context)
        self.executor.add_node(self.node)
        self.thread = threading.Thread(target=self._spin)
        self.thread.start()

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self.executor.spin()

    def run(self, coroutine: Any) -> Any:
        """What a coroutine returns or raises that runs as a callback of the node."""
        done = threading.Event()
        outcome: list[Any] = []

        async def callback() -> None:
            timer.cancel()
            try:
                outcome.append((await coroutine(), None))
            except Exception as error:
                outcome.append((None, error))
            done.set()

        timer = self.node.create_timer(0.01, callback, ReentrantCallbackGroup())
        assert done.wait(WAIT_S)
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    def end(self) -> bool:
        """Stop; whether the executor span until now."""
        alive = self.thread.is_alive()
        self.executor.shutdown()
        self.thread.join()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context, uninstall_handlers=True)
        return alive


@pytest.fixture(params=[SingleThreadedExecutor, MultiThreadedExecutor])
def spun(request: pytest.FixtureRequest) -> Iterator[Spun]:
    spun = Spun(request.param)
    yield spun
    assert spun.end(), "the executor ended with an exception"


def assert_whole(answer: Answer, pieces: list[Piece]) -> None:
    """Every piece came, in order, and they are the result."""
    result = answer.result(WAIT_S)
    assert answer.done()
    assert (answer.lost, [piece.lost for piece in pieces]) == (0, [0] * len(pieces))
    seqs = [piece.seq for piece in pieces]
    assert seqs == list(range(len(pieces)))
    assert "".join(p.text for p in pieces if p.channel is Channel.TEXT) == result.text
    assert answer.text == result.text != ""
    assert sum(len(p.token_ids) for p in pieces) == result.stats.completion_tokens


def test_pieces_come_whole_and_in_order(client: GenerateClient) -> None:
    with client.ask(CUP, temperature=0.0) as answer:
        pieces = list(answer)
    assert len(pieces) > 5
    assert_whole(answer, pieces)
    result = answer.result()
    assert result.text.startswith("I will bring Anna the red cup")
    assert result.finish_reason is FinishReason.STOP
    assert (result.error_code, result.error_msg) == (ErrorCode.NONE, "")
    assert result.model
    assert result.message == Message(role="assistant", content=result.text)
    assert answer.stage is Stage.ENDED


@pytest.mark.usefixtures("active")
def test_a_new_client_misses_no_first_token() -> None:
    for _ in range(8):
        with GenerateClient() as client:
            answer = client.ask(DOCK, max_new_tokens=4)
            assert_whole(answer, list(answer))


def test_the_uuid_is_chosen_before_the_goal_is_sent(client: GenerateClient, driver: Driver) -> None:
    answer = client.ask(DOCK, max_new_tokens=4)
    chosen = answer.goal_id.bytes
    assert answer.stage is Stage.SENDING
    answer.result(WAIT_S)
    driver.wait_until(lambda: any(c.done for c in driver.chunks))
    assert {bytes(chunk.goal_id.uuid) for chunk in driver.chunks} == {chosen}


def test_two_answers_at_once(client: GenerateClient) -> None:
    with client.ask(CUP, temperature=0.0) as first, client.ask(DOCK, temperature=0.0) as second:
        pieces = {id(answer): list(answer) for answer in (second, first)}
    assert "Anna" in first.result().text
    assert "dock" in second.result().text
    for answer in (first, second):
        assert_whole(answer, pieces[id(answer)])


def test_a_burst_loses_nothing_while_the_executor_is_busy(active: NodeProcess, spun: Spun) -> None:
    with GenerateClient(node=spun.node) as client:
        client.ask(DOCK, max_new_tokens=1).result(WAIT_S)
        answers = [client.ask(DOCK, max_new_tokens=2) for _ in range(20)]
        spun.executor.create_task(lambda: time.sleep(0.5))
        for answer in answers:
            assert_whole(answer, list(answer))


def test_leaving_the_block_cancels(client: GenerateClient, slow: None, driver: Driver) -> None:
    with client.ask(CUP) as answer:
        first = next(iter(answer))
    result = answer.result(timeout_s=0.0, check=False)  # leaving has waited for it
    assert result.finish_reason is FinishReason.CANCELED
    assert result.text.startswith(first.text)
    with pytest.raises(GoalFailedError) as caught:
        answer.result()
    assert caught.value.error_code is ErrorCode.CANCELED
    assert caught.value.result == result
    driver.wait_until(lambda: any(c.done for c in driver.chunks))
    assert driver.chunks[-1].finish_reason == FinishReason.CANCELED


def test_an_exception_in_the_block_cancels_too(client: GenerateClient, slow: None) -> None:
    def behave() -> None:
        with client.ask(CUP) as answer:
            asked.append(answer)
            next(iter(answer))
            raise ZeroDivisionError

    asked: list[Answer] = []
    with pytest.raises(ZeroDivisionError):
        behave()
    (answer,) = asked
    assert answer.result(check=False).finish_reason is FinishReason.CANCELED


def test_closing_the_client_cancels(active: NodeProcess, slow: None) -> None:
    with GenerateClient() as client:
        answers = [client.ask(CUP), client.ask(DOCK)]
        assert answers[0].wait(WAIT_S)
    reasons = [answer.result(0.0, check=False).finish_reason for answer in answers]
    assert reasons == [FinishReason.CANCELED] * 2
    with pytest.raises(ClientError, match="closed"):
        client.ask(CUP).result(WAIT_S)


def test_polling_as_a_behaviour_tree_does(client: GenerateClient) -> None:
    answer = client.ask(CUP, temperature=0.0)
    ended = threading.Event()
    answer.add_done_callback(lambda done: ended.set() if done is answer else None)
    pieces: list[Piece] = []
    stages = [answer.stage]
    while not answer.done():
        pieces += answer.take()
        stages.append(answer.stage)
        answer.wait(0.01)
    pieces += answer.take()
    assert_whole(answer, pieces)
    assert stages == sorted(stages)
    assert Stage.DECODING in stages
    assert ended.wait(WAIT_S)
    assert answer.take() == []


@pytest.mark.usefixtures("active")
def test_awaiting_in_a_callback(spun: Spun) -> None:
    async def behave() -> tuple[Answer, list[Piece]]:
        async with client.ask(CUP, temperature=0.0) as answer:
            pieces = [piece async for piece in answer]
            assert (await answer).text == answer.text
        return answer, pieces

    with GenerateClient(node=spun.node) as client:
        assert_whole(*spun.run(behave))


@pytest.mark.usefixtures("active", "slow")
def test_leaving_an_async_block_cancels(spun: Spun) -> None:
    async def behave() -> Answer:
        async with client.ask(CUP) as answer:
            async for _ in answer:
                break
        return answer

    with GenerateClient(node=spun.node) as client:
        answer = spun.run(behave)
        assert answer.result(0.0, check=False).finish_reason is FinishReason.CANCELED


def test_asyncio(client: GenerateClient) -> None:
    async def one(prompt: str) -> tuple[Answer, list[Piece]]:
        async with client.ask(prompt, temperature=0.0) as answer:
            return answer, [piece async for piece in answer]

    async def both() -> list[tuple[Answer, list[Piece]]]:
        return await asyncio.gather(one(CUP), one(DOCK))

    for answer, pieces in asyncio.run(both()):
        assert_whole(answer, pieces)


def test_a_task_of_asyncio_that_is_canceled_cancels_the_goal(
    client: GenerateClient, slow: None
) -> None:
    async def run() -> Answer:
        async with client.ask(CUP) as answer:
            task = asyncio.ensure_future(answer.result_async())
            await anext(aiter(answer))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return answer

    assert asyncio.run(run()).result(0.0, check=False).finish_reason is FinishReason.CANCELED


@pytest.mark.usefixtures("active")
def test_blocking_in_a_callback_is_refused_where_it_would_never_end() -> None:
    async def behave() -> str:
        return client.ask(DOCK, max_new_tokens=2).result(WAIT_S).text

    spun = Spun(SingleThreadedExecutor)
    with GenerateClient(node=spun.node) as client:
        client.ask(DOCK, max_new_tokens=2).result(WAIT_S)
        with pytest.raises(NotSpunError, match="await"):
            spun.run(behave)
    assert spun.end()


@pytest.mark.usefixtures("active")
def test_clients_come_and_go_while_their_node_is_spun(spun: Spun) -> None:
    before = len(list(spun.node.waitables)), len(list(spun.node.subscriptions))
    for number in range(10):
        client = GenerateClient(node=spun.node)
        with client, client.ask(DOCK, max_new_tokens=20) as answer:
            if number % 2:
                answer.result(WAIT_S)
    assert (len(list(spun.node.waitables)), len(list(spun.node.subscriptions))) == before


def test_a_node_that_nobody_spins(active: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "SPIN_S", 0.5)
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("idle", context=context)
    with GenerateClient(node=node) as client, pytest.raises(NotSpunError, match="/idle"):
        client.ask(DOCK).result()
    node.destroy_node()
    rclpy.shutdown(context=context)


def test_ros_is_shut_down_while_an_answer_is_awaited(slow: None, driver: Driver) -> None:
    spun = Spun(SingleThreadedExecutor)
    client = GenerateClient(node=spun.node)
    answer = client.ask(CUP)
    assert answer.wait(WAIT_S)
    rclpy.shutdown(context=spun.context)
    with pytest.raises(NotSpunError, match="shut down"):
        answer.result()
    client.close()
    spun.thread.join()
    driver.wait_until(lambda: any(chunk.done for chunk in driver.chunks))  # it ran on


def test_no_server(client: GenerateClient) -> None:
    with GenerateClient("/nobody", server_timeout_s=0.5) as lonely:
        answer = lonely.ask(DOCK)
        with pytest.raises(ServerUnavailableError, match="/nobody/generate"):
            answer.result()
        with pytest.raises(ServerUnavailableError):
            list(answer)
        assert answer.done()


def test_a_goal_is_canceled_before_it_is_sent() -> None:
    with GenerateClient("/nobody") as client:
        with client.ask(DOCK) as answer:
            pass
        result = answer.result(0.0, check=False)
    assert result.finish_reason is FinishReason.CANCELED
    assert "before it was sent" in result.error_msg
    assert answer.done()


def test_an_inactive_node_rejects(client: GenerateClient, driver: Driver) -> None:
    assert driver.change("deactivate")
    with pytest.raises(GoalRejectedError, match="active") as caught:
        client.ask(DOCK).result(WAIT_S)
    assert caught.value.error_code is ErrorCode.NOT_ACTIVE


def test_a_goal_that_fails_keeps_its_text(client: GenerateClient, slow: None) -> None:
    answer = client.ask(**ENDLESS, timeout_s=1.0)
    with pytest.raises(GoalFailedError) as caught:
        list(answer)
    failed = caught.value
    assert failed.error_code is failed.result.error_code is ErrorCode.TIMEOUT
    assert failed.error_msg == failed.result.error_msg != ""
    assert failed.result.finish_reason is FinishReason.TIMEOUT
    assert answer.text == failed.result.text != ""


def test_waiting_for_a_result_has_an_end(client: GenerateClient, slow: None) -> None:
    with client.ask(CUP) as answer:
        with pytest.raises(AnswerTimeoutError) as caught:
            answer.result(timeout_s=0.05)
        assert isinstance(caught.value, TimeoutError)
        assert answer.result(WAIT_S).finish_reason is FinishReason.STOP


def test_what_was_lost_on_the_topic_is_told(
    client: GenerateClient, slow: None, driver: Driver
) -> None:
    """A chunk far ahead, as if those between had been dropped; the result has all the text."""
    publisher = driver.node.create_publisher(TokenChunk, "/gemma_mtp/tokens", 10)
    driver.wait_until(lambda: publisher.get_subscription_count() >= 2)
    client.ask(CUP).result(60.0)  # by then both sides know each other
    with client.ask(CUP) as answer:
        pieces = [next(iter(answer))]
        ahead = TokenChunk(goal_id=UUID(uuid=list(answer.goal_id.bytes)), seq=1000, text="?")
        publisher.publish(ahead)
        pieces += answer
    driver.node.destroy_publisher(publisher)
    assert pieces[-1].seq == 1000
    assert pieces[-1].lost == 1000 - pieces[-2].seq - 1
    assert answer.lost >= pieces[-1].lost
    assert answer.result().text.startswith("I will bring Anna")
    assert answer.text.endswith("?")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": "a\0b"}, ["prompt", "NUL"]),
        ({"prompt": "\ud800"}, ["prompt", "Unicode"]),
        ({"prompt": "x", "messages": [{"role": "user", "content": "y"}]}, ["prompt", "messages"]),
        ({"messages": [{"role": "robot"}]}, ["messages.0.role", "robot"]),
        ({"messages": [Message(role="assistant", reasoning="hm")]}, ["reasoning"]),
        ({"prompt": "x", "system": "s", "raw_prompt": True}, ["system", "raw_prompt"]),
        ({"prompt": "x", "temperature": -1.0}, ["temperature", "-1"]),
        ({"prompt": "x", "max_tokens": 3}, ["max_tokens"]),
        ({"prompt": "x", "top_k": 2**31}, ["top_k"]),
        ({"prompt": "x", "timeout_s": -1.0}, ["timeout_s"]),
        ({"prompt": "x", "timeout_s": float("nan")}, ["timeout_s"]),
        ({"prompt": "x", "priority": 256}, ["priority"]),
        ({"prompt": "x", "response_schema": {"a": {1, 2}}}, ["JSON"]),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        goal_message(**fields)
    for word in words:
        assert word in str(caught.value)


def test_everything_that_a_goal_holds_is_sent() -> None:
    class Plan(BaseModel):
        steps: list[str]

    goal = goal_message(
        messages=[Message(role="user", content="hi")],
        system="Be brief.",
        session_id="s",
        enable_thinking=True,
        response_schema=Plan,
        tools=[{"name": "go"}],
        tool_choice="go",
        timeout_s=1.25,
        priority=7,
        max_new_tokens=9,
        temperature=0.0,
        seed=3,
        stop=["END"],
    )
    assert [(turn.role, turn.content) for turn in goal.messages] == [
        ("system", "Be brief."),
        ("user", "hi"),
    ]
    assert goal.prompt == ""
    assert (goal.session_id, goal.enable_thinking, goal.priority) == ("s", True, 7)
    assert '"steps"' in goal.response_schema
    assert (goal.tools, goal.tool_choice) == ('[{"name": "go"}]', "go")
    assert (goal.timeout.sec, goal.timeout.nanosec) == (1, 250_000_000)
    sampling = goal.sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.seed) == (9, 0.0, 3)
    assert list(sampling.stop) == ["END"]
    assert (sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (
        -1,
    ) * 4


def wait_active(client: GenerateClient) -> None:
    """Ask until the node takes goals."""
    give_up_s = time.monotonic() + WAIT_S
    while time.monotonic() < give_up_s:
        with contextlib.suppress(GoalRejectedError):
            client.ask(DOCK, max_new_tokens=1).result(WAIT_S)
            return
    raise AssertionError("the node did not become active")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_that_dies_or_hangs(
    embedded: dict[str, Any], tmp_path: Path, number: signal.Signals
) -> None:
    slow = embedded | {"draft": {"adaptive": False, "max_length": 0}, "autostart": True}
    node = NodeProcess(tmp_path, slow, "-r", "__ns:=/doomed")
    try:
        with GenerateClient("/doomed/gemma_mtp", silence_s=2.0, server_timeout_s=30.0) as client:
            wait_active(client)
            with client.ask(CUP) as answer:
                first = next(iter(answer))
                node.signal(number)
                with pytest.raises(NodeLostError):
                    answer.result(timeout_s=WAIT_S)
            assert answer.text.startswith(first.text)
            assert answer.done()
    finally:
        node.signal(signal.SIGCONT)
        node.end()
