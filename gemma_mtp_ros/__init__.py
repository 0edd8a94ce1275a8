# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 with its multi-token-prediction drafter as a ROS 2 node, thermally aware."""

import os
import pkgutil

__version__ = "0.1.0"

# An installed workspace has msg/ here. The source tree has not: there the generated interfaces
# (gemma_mtp_ros.msg, .action, .srv) are taken from the workspace that is sourced, if any.
if not os.path.isdir(os.path.join(os.path.dirname(__file__), "msg")):
    __path__ = pkgutil.extend_path(__path__, __name__)
