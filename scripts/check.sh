#!/usr/bin/env bash
# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
#
# check.sh lint|fast|slow|format: the checks, in the environment of scripts/activate.sh.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
set +u
. scripts/activate.sh
set -u

case ${1:-} in
  lint)
    status=0
    ruff check --output-format=concise . || status=1
    ruff format --check . || status=1
    mypy || status=1
    exit $status
    ;;
  format)
    ruff check --fix --exit-zero .
    ruff format .
    ;;
  fast|slow)
    export GEMMA_MTP_REQUIRE_ROS=1
    [ "$1" = slow ] && chosen="slow" || chosen="not slow"
    status=0
    # Engines compute on one thread each, so tests run side by side; those of nodes mostly wait.
    cores=$(nproc)
    jobs=$((cores < 4 ? cores : 4))
    python -m pytest -m "$chosen" --ignore test/ros -n "$jobs" --dist worksteal || status=1
    python -m pytest -m "$chosen" test/ros -n "$jobs" --dist loadfile || status=1
    exit $status
    ;;
  *) echo "usage: scripts/check.sh lint|format|fast|slow" >&2; exit 2 ;;
esac
