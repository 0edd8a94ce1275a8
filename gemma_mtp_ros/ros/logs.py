# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Log lines of Python's logging, and of the engine process, into the node's log and /rosout."""

from __future__ import annotations

import logging
from typing import Any

PACKAGE = "gemma_mtp_ros"


def log(logger: Any, level: int, message: str) -> None:
    """Log `message` at a level of :mod:`logging`.

    One call per severity: rclpy raises where one line of code logs at two severities.
    """
    if level >= logging.CRITICAL:
        logger.fatal(message)
    elif level >= logging.ERROR:
        logger.error(message)
    elif level >= logging.WARNING:
        logger.warning(message)
    elif level >= logging.INFO:
        logger.info(message)
    else:
        logger.debug(message)


class RosHandler(logging.Handler):
    """Hands the package's log records to a ROS logger, tracebacks included."""

    def __init__(self, logger: Any) -> None:
        super().__init__(logging.INFO)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        try:
            log(self._logger, record.levelno, self.format(record))
        except Exception:
            self.handleError(record)

    def install(self) -> None:
        """Take the records of this package from now on."""
        logging.getLogger(PACKAGE).addHandler(self)

    def remove(self) -> None:
        """Take no more."""
        logging.getLogger(PACKAGE).removeHandler(self)
