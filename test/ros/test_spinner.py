# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The node's process: what a callback that raises does to it, and a signal at any time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import rclpy
from rclpy.node import Node

from gemma_mtp_ros.ros.node import SIGNALS, Alarm, Spinner

WAIT_S = 20.0


@pytest.fixture
def node() -> Iterator[Node]:
    context = rclpy.Context()
    rclpy.init(context=context)
    node = Node("spun", context=context)
    yield node
    node.destroy_node()
    rclpy.shutdown(context=context, uninstall_handlers=True)


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield Alarm()
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_callback_that_raises_ends_nothing(node: Node) -> None:
    raised, served, failed = threading.Event(), threading.Event(), threading.Event()

    def bad() -> None:
        raised.set()
        raise ValueError("on purpose")

    node.create_timer(0.01, bad)
    node.create_timer(0.02, lambda: served.set() if raised.is_set() else None)
    spinner = Spinner(node, failed.set)
    spinner.start()
    assert served.wait(WAIT_S)
    spinner.stop()
    assert not failed.is_set()


def test_an_executor_that_fails_again_and_again_is_told(node: Node) -> None:
    failed = threading.Event()
    node._timers = object()  # what iterates over it raises, at every turn
    spinner = Spinner(node, failed.set)
    spinner.start()
    assert failed.wait(WAIT_S)
    node._timers = []
    spinner.stop()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_wait_whichever_thread_gets_it(alarm: Alarm, number: int) -> None:
    threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), number)).start()
    alarm.wait()
    alarm.silence()
    os.kill(os.getpid(), number)  # ignored from here on


def test_another_thread_can_end_the_wait(alarm: Alarm) -> None:
    threading.Thread(target=alarm.ring).start()
    alarm.wait()
