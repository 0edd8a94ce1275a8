#!/usr/bin/env bash
# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
#
# build_interfaces.sh FOLDER: builds what the example imports beside this package into FOLDER/install
# with colcon: arm_msgs, and the stand-in for nav2_msgs where Nav2 is not installed. Where they are
# up to date nothing is done. A ROS environment must be sourced.

set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -eq 1 ] || { echo "usage: build_interfaces.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
into=$(cd "$1" && pwd)

packages=("$here/interfaces/arm_msgs")
if ! python3 -c 'from nav2_msgs.action import NavigateToPose' 2>/dev/null; then
  packages+=("$here/interfaces/nav2_msgs")
fi

wanted=$({ echo "${packages[@]}" "$(command -v python3)"; find "${packages[@]}" -type f -exec cat {} +; } | sha256sum)
[ "$(cat "$into/built" 2>/dev/null)" != "$wanted" ] || exit 0

rm -rf "$into/build" "$into/install"
options=("-DPython3_EXECUTABLE=$(command -v python3)" -DBUILD_TESTING=OFF)
drop=$here/../../cmake/drop_missing_includes.cmake # for ROS from the Python package index
[ ! -e "$drop" ] || options+=("-DCMAKE_PROJECT_INCLUDE=$drop")
if ! colcon --log-base "$into/log" build --merge-install --paths "${packages[@]}" \
    --build-base "$into/build" --install-base "$into/install" \
    --cmake-args "${options[@]}" > "$into/build.log" 2>&1; then
  tail -n 30 "$into/build.log" >&2
  echo "the interfaces of the example could not be built; the whole output is in $into/build.log" >&2
  exit 1
fi
echo "$wanted" > "$into/built"
