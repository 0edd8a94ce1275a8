# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The inference engine: Gemma 4 text target and MTP drafter; knows no ROS and no temperature."""
