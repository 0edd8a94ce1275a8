# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Awaiting in an executor's coroutine what another thread completes."""

from __future__ import annotations

import concurrent.futures
from typing import Any, TypeVar

from rclpy.executors import Executor
from rclpy.task import Future

T = TypeVar("T")


def complete(future: Future, result: Any, executor: Executor | None) -> None:
    """Complete `future` from any thread, and let `executor` resume who awaits it.

    Completing alone does not: up to Jazzy rclpy looks at a pending coroutine only when the wait set
    wakes for something else.
    """
    future.set_result(result)
    if executor is not None:
        executor.wake()


async def result_of(future: concurrent.futures.Future[T], executor: Executor | None) -> T:
    """Await a future of another thread; raises what it raises."""
    done = Future(executor=executor)
    future.add_done_callback(lambda _: complete(done, True, executor))
    await done
    return future.result()
