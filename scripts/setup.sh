#!/usr/bin/env bash
# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
#
# setup.sh run|dev: makes .venv (ROS 2, torch, transformers and the rest from the Python package
# index; dev adds the test tools) and builds the package into .ws. What is up to date is left alone,
# so that a second call takes a second and needs no network.
#
# PYTHON=... chooses the interpreter. pip's own settings and variables count (PIP_INDEX_URL,
# PIP_EXTRA_INDEX_URL, ...).

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
venv=$root/.venv
ws=$root/.ws

case ${1:-} in
  run) requirements=(requirements.txt requirements-ros.txt) ;;
  dev) requirements=(requirements.txt requirements-ros.txt requirements-dev.txt) ;;
  *) echo "usage: scripts/setup.sh run|dev" >&2; exit 2 ;;
esac

say() { printf '%s\n' "$*"; }
fail() { printf 'gemma_mtp_ros: %s\n' "$@" >&2; exit 1; }

# A ROS that is sourced in this shell, or a PYTHONPATH, must not leak into .venv.
# shellcheck source=scripts/clean_env.sh
. "$root/scripts/clean_env.sh"

# --- prerequisites --------------------------------------------------------------------------------

runs() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; }
has_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }
has_headers() {
  "$1" -c 'import os, sys, sysconfig
sys.exit(not os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")))' >/dev/null 2>&1
}

choose_python() {
  local name first=
  if [ -n "${PYTHON:-}" ]; then
    runs "$PYTHON" || fail "PYTHON=$PYTHON does not run, or is not Python 3.10 to 3.13."
    python=$PYTHON
    return
  fi
  for name in python3.12 python3.11 python3.10 python3.13 python3; do
    if runs "$name"; then
      first=${first:-$name}
      if has_venv "$name" && has_headers "$name"; then
        python=$name
        return
      fi
    fi
  done
  python=$first
}

check_prerequisites() {
  local packages=() missing=() version
  case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) ;;
    *) fail "the package index has ROS 2 for Linux on x86-64 only, and this is $(uname -s) on $(uname -m)." \
            "Use ROS from its own packages (README, \"On a Jetson\") or the container in docker/." ;;
  esac
  case $root in
    *:*) fail "the path $root holds a colon, which no search path can express; move the folder." ;;
  esac
  if [ -z "$python" ]; then
    missing+=("Python 3.10 to 3.13") packages+=(python3 python3-venv python3-dev)
  else
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    has_venv "$python" || { missing+=("the venv module of $version"); packages+=("$version-venv"); }
    has_headers "$python" || { missing+=("the C headers of $version (Python.h)"); packages+=("$version-dev"); }
  fi
  "${CXX:-c++}" --version >/dev/null 2>&1 || { missing+=("a C++ compiler (${CXX:-c++})"); packages+=(g++); }
  "${CC:-cc}" --version >/dev/null 2>&1 || { missing+=("a C compiler (${CC:-cc})"); packages+=(gcc); }
  make --version >/dev/null 2>&1 || { missing+=(make); packages+=(make); }
  git --version >/dev/null 2>&1 || { missing+=(git); packages+=(git); }
  if [ ${#missing[@]} -gt 0 ]; then
    printf 'gemma_mtp_ros: missing: %s\n' "${missing[@]}" >&2
    fail "install with: sudo apt install ${packages[*]}"
  fi
}

# --- Python packages ------------------------------------------------------------------------------

digest() { sha256sum | cut -d' ' -f1; }

wanted_environment() { { echo "$venv"; cat "${requirements[@]}" constraints.txt; } | digest; }

environment_is_current() {
  [ -x "$venv/bin/python" ] && [ "$(cat "$venv/installed-$1" 2>/dev/null)" = "$(wanted_environment)" ] || return 1
  # Another interpreter was asked for?
  [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" -c "$python_id" 2>/dev/null)" = "$(cat "$venv/python" 2>/dev/null)" ]
}
python_id='import os, sys; print(os.path.realpath(sys.base_prefix), sys.version.split()[0])'

pip_install() {
  if ! "$venv/bin/python" -m pip install --progress-bar raw --disable-pip-version-check "$@" 2>&1 \
      | tee -a "$ws/log/pip.log" | "$venv/bin/python" -u scripts/pip_progress.py; then
    grep -vi '^warning' "$ws/log/pip.log" | tail -n 15 >&2
    fail "pip failed; the whole output is in .ws/log/pip.log. Without network? Run the same command again to go on."
  fi
}

install() {
  local free_gb
  free_gb=$(df -Pk . | awk 'NR == 2 { printf "%d", $4 / 1e6 }')
  if [ -e "$venv/installed-run" ] && [ "$1" = dev ]; then
    say "gemma_mtp_ros: adding the test tools to .venv (the log is .ws/log/pip.log)."
  else
    say "gemma_mtp_ros: installing ROS 2 Jazzy, torch and transformers into .venv (once; the log is .ws/log/pip.log)."
    say "  torch's usual wheel brings CUDA: up to 2.9 GB to download, 5.3 GB on disk. With PIP_EXTRA_INDEX_URL set to"
    say "  PyTorch's CPU index it is 0.4 GB and 1.7 GB. Free on this disk: $free_gb GB."
  fi
  say "[1/4] $("$python" --version) ($(command -v "$python")): environment .venv"
  if [ ! -x "$venv/bin/python" ] || [ "$(cat "$venv/python" 2>/dev/null)" != "$("$python" -c "$python_id")" ] \
      || ! grep -qF "$venv" "$venv/bin/activate"; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$python" -c "$python_id" > "$venv/python"
  fi
  rm -f "$venv"/installed-*
  : > "$ws/log/pip.log"
  say "[2/4] pip"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=24.1' >> "$ws/log/pip.log" 2>&1 \
    || { tail -n 5 "$ws/log/pip.log" >&2; fail "pip cannot reach the package index; check the network and run again."; }
  say "[3/4] Python packages"
  pip_install --constraint constraints.txt "${requirements[@]/#/--requirement=}"
  wanted_environment > "$venv/installed-$1"
  if [ "$1" = dev ]; then
    requirements=(requirements.txt requirements-ros.txt)
    wanted_environment > "$venv/installed-run"
  fi
}

# --- the workspace --------------------------------------------------------------------------------

# The install is made of links, so a changed Python file needs no build; a new or a renamed one does.
wanted_build() {
  {
    echo "$root"
    cat "$venv/python" "$venv/installed-run" CMakeLists.txt package.xml cmake/* csrc/* msg/* srv/* action/*
    find gemma_mtp_ros launch config examples programs -type f ! -name '*.pyc' | LC_ALL=C sort
  } | digest
}

build() {
  say "[4/4] building the interfaces (about a minute; the log is .ws/log/build.log)"
  if ! (
    # shellcheck source=scripts/activate.sh
    . "$root/scripts/activate.sh" --no-workspace
    colcon --log-base "$ws/log" build --symlink-install --paths . \
      --build-base "$ws/build" --install-base "$ws/install" --event-handlers console_direct+ \
      --cmake-args -G Ninja -DBUILD_TESTING=ON "-DPython3_EXECUTABLE=$venv/bin/python" \
      -DPython3_FIND_VIRTUALENV=ONLY "-DCMAKE_PROJECT_INCLUDE=$root/cmake/drop_missing_includes.cmake"
  ) > "$ws/log/build.log" 2>&1; then
    tail -n 30 "$ws/log/build.log" >&2
    fail "the build failed; the whole output is in .ws/log/build.log."
  fi
  wanted_build > "$ws/built"
}

mkdir -p "$ws/log"
if ! environment_is_current "$1"; then
  choose_python
  check_prerequisites
  install "$1"
fi
if [ "$(cat "$ws/built" 2>/dev/null)" != "$(wanted_build)" ]; then
  build
fi
