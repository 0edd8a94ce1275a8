# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Source this in bash with a folder: builds the example's interfaces there unless they are up to date
# (build_interfaces.sh) and puts them on the paths. colcon's own file fails in a path with a space.

_example_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1" && _example_prefix=$(cd "$1" && pwd)/install
bash "$_example_here/build_interfaces.sh" "$1" || return 1
export AMENT_PREFIX_PATH=$_example_prefix${AMENT_PREFIX_PATH:+:$AMENT_PREFIX_PATH}
export LD_LIBRARY_PATH=$_example_prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
for _example_site in "$_example_prefix"/{,local/}lib/python3*/*-packages; do
  [ ! -d "$_example_site" ] || export PYTHONPATH=$_example_site${PYTHONPATH:+:$PYTHONPATH}
done
unset _example_here _example_prefix _example_site
