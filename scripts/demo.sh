#!/usr/bin/env bash
# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs the demo from the installed workspace. DEMO_PROMPT: one's own instruction.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
set +u
. scripts/activate.sh
set -u
cd .ws # not the source tree: what runs is what a robot would run
if [ -n "${DEMO_PROMPT:-}" ]; then
  exec python -m gemma_mtp_ros.ros.demo --prompt="$DEMO_PROMPT"
fi
exec python -m gemma_mtp_ros.ros.demo
