# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What a container's health check says of the real node, from a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driver import REPOSITORY, Driver, running_node

from gemma_mtp_ros.ros.healthcheck import HEALTHY, main, verdict

pytestmark = pytest.mark.timeout(240)


def healthcheck(*arguments: str) -> tuple[int, str]:
    path = f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "gemma_mtp_ros.ros.healthcheck", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": path},
    )
    (line,) = done.stdout.splitlines()
    assert done.stderr == ""
    return done.returncode, line


def test_every_state_has_a_verdict() -> None:
    labels = ("unconfigured", "inactive", "active", "finalized", "configuring", "cleaningup", "")
    assert tuple(sorted(label for label in labels if verdict(label)[0])) == HEALTHY
    assert not verdict("inactive", only_active=True)[0]
    assert verdict("active", only_active=True)[0]


def test_a_name_that_no_node_has_gets_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--node", "a b"])
    assert "--node 'a b' is no name of a node" in capsys.readouterr().err


def test_it_follows_the_lifecycle_and_notices_a_node_that_hangs(
    driver: Driver, parameters: dict[str, Any], tmp_path: Path
) -> None:
    with running_node(tmp_path, driver, parameters) as node:
        assert healthcheck() == (1, "/gemma_mtp is unconfigured: no model is served")
        assert driver.change("configure", 180.0)
        inactive = "/gemma_mtp is inactive: the model is loaded, goals are rejected"
        assert healthcheck("--node", "gemma_mtp") == (0, inactive)
        assert healthcheck("--only-active") == (1, inactive)
        assert driver.change("activate")
        assert healthcheck("--only-active") == (0, "/gemma_mtp is active: takes goals")
        node.signal(signal.SIGSTOP)
        try:
            code, said = healthcheck("--timeout", "2")
        finally:
            node.signal(signal.SIGCONT)
        assert (code, said) == (1, "/gemma_mtp did not answer get_state within 2 s")
        assert healthcheck()[0] == 0


def test_no_node_is_not_healthy() -> None:
    gone = "/nobody/here did not answer get_state within 0.5 s"
    assert healthcheck("--node", "nobody/here", "--timeout", "0.5") == (1, gone)
