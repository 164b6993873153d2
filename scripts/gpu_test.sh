#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds with CUDA and runs the tests that need a GPU; without one it says SKIP:   scripts/gpu_test.sh [JOBS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! compgen -G "/dev/nvidia[0-9]*" >/dev/null; then
  echo "SKIP gpu-test: no NVIDIA device (/dev/nvidia*) on this machine"
  exit 0
fi
scripts/configure.sh build-cuda
echo "[build] with CUDA ..." >&2
cmake --build build-cuda --parallel "${1:-2}"
ctest --test-dir build-cuda --label-regex gpu --output-on-failure --no-tests=ignore
