# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m gemma_mtp_ros``: the command line."""

import sys

from .cli.main import main

sys.exit(main())
