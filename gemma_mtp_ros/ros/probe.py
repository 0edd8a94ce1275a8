# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What of ROS this Python can load, as JSON, for ``gemma-mtp doctor``.

A program of its own, ``python -m gemma_mtp_ros.ros.probe``. It joins no network.
"""

from __future__ import annotations

import importlib
import json
import traceback
from typing import Any

INTERFACES = ("gemma_mtp_ros.action", "gemma_mtp_ros.msg", "gemma_mtp_ros.srv")
MESSAGES = ("sensor_msgs.msg", "std_msgs.msg", "diagnostic_msgs.msg", "lifecycle_msgs.srv")


def probe() -> dict[str, Any]:
    """``rclpy``: where it lies; ``rmw``; for each step that fails, why."""
    found: dict[str, Any] = {"rclpy": "", "rmw": "", "errors": {}}

    def attempt(step: str, module: str) -> Any:
        try:
            return importlib.import_module(module)
        except Exception as error:  # a library that is built for another Python or numpy
            last = traceback.format_exception_only(type(error), error)[-1]
            found["errors"].setdefault(step, " ".join(last.split())[:300])
            return None

    rclpy = attempt("rclpy", "rclpy")
    if rclpy is None:
        return found
    found["rclpy"] = rclpy.__file__
    try:
        found["rmw"] = rclpy.get_rmw_implementation_identifier()
    except Exception as error:
        found["errors"]["rmw"] = " ".join(str(error).split())[:300]
    for module in MESSAGES:
        attempt("messages", module)
    for module in INTERFACES:
        attempt("interfaces", module)
    if "interfaces" not in found["errors"]:
        from gemma_mtp_ros.action import Generate

        try:
            Generate.Goal()  # loads the type support
        except Exception as error:
            found["errors"]["interfaces"] = " ".join(str(error).split())[:300]
    return found


if __name__ == "__main__":
    print(json.dumps(probe()))
