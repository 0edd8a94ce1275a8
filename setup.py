# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Installs the engine and the command line without ROS, as pyproject.toml says."""

from setuptools import setup

setup()
