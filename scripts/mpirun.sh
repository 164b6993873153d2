#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# mpirun that also works as root and with more ranks than cores:   scripts/mpirun.sh RANKS PROGRAM [argument...]
set -euo pipefail
if (( $# < 2 )); then
  echo "usage: scripts/mpirun.sh RANKS PROGRAM [argument...]" >&2
  exit 2
fi
ranks=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1       # more ranks than cores
export OMPI_MCA_hwloc_base_binding_policy=none   # the library places its own threads
export OMPI_MCA_mpi_yield_when_idle=1            # a waiting rank leaves its core to a working one
exec mpirun -n "$ranks" "$@"
