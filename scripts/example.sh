#!/usr/bin/env bash
# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs examples/plan_to_goals with a mock robot. DEMO_PROMPT: one's own instruction.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
set +u
. scripts/activate.sh
set -u
. examples/plan_to_goals/interfaces.sh .ws/example
if [ -n "${DEMO_PROMPT:-}" ]; then
  exec python examples/plan_to_goals/demo.py --prompt="$DEMO_PROMPT"
fi
exec python examples/plan_to_goals/demo.py
