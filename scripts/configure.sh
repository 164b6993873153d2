#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures a build folder once, and again when LibTorch has become importable from Python; afterwards ninja
# reconfigures by itself when a CMake file changes.
#   scripts/configure.sh BUILD [cmake argument...]      the preset is the folder's: build -> default, build-asan -> asan
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=$1
shift
if [[ -f $build/build.ninja && $# == 0 && ! .deps/python/installed.txt -nt $build/build.ninja ]]; then exit 0; fi
preset=default
case "$build" in build-debug | build-asan | build-tsan | build-cuda) preset=${build#build-} ;; esac
echo "[configure] $build (preset $preset) ..." >&2
cmake --preset "$preset" -B "$build" "$@" >&2
