#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Python with the package of a build folder, LibTorch and what the tests import:
#   scripts/python.sh BUILD FILE [argument...]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$1
shift
[[ "$build" == /* ]] || build=$root/$build
export PYTHONPATH="$build/python:$root/.deps/libtorch:$root/.deps/python${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" "$@"
