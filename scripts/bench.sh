#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every benchmark: scripts/bench.sh BUILD. stdout: one JSON object a line; exit 1 when a limit is missed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

status=0
for source in bench/*.cpp; do
  name=$(basename "$source" .cpp)
  echo "[bench] $name ..." >&2
  case "$name" in
    mpi_*) scripts/mpirun.sh 2 "$1/bin/$name" ;;
    *) "$1/bin/$name" ;;
  esac || status=1
done
if compgen -G "$1/python/shardtensor/_C*.so" >/dev/null; then
  for source in bench/*.py; do
    echo "[bench] $(basename "$source" .py) ..." >&2
    scripts/python.sh "$1" "$source" || status=1
  done
fi
exit $status
