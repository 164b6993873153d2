#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds with CUDA and runs what needs a GPU; without one it says SKIP:   scripts/gpu_test.sh [JOBS]
# As many processes as wanted may share one GPU: their tensors then travel over the host. NCCL is used with a GPU a rank.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! compgen -G "/dev/nvidia[0-9]*" >/dev/null; then
  echo "SKIP gpu-test: no NVIDIA device (/dev/nvidia*) on this machine"
  exit 0
fi
readonly build=build-cuda
scripts/bootstrap.sh --python || scripts/bootstrap.sh --cuda # with what the Python tests need, where it can be had
scripts/configure.sh $build
targets=(test_mpi test_launch test_runtime global_field shard_tool shard_cuda)
if [[ -d $build/python ]]; then targets+=(shard_python); fi
echo "[build] with CUDA ..." >&2
cmake --build $build --parallel "${1:-2}" --target "${targets[@]}"

# Exact arithmetic: no TF32, no autotuned and no atomic algorithms.
export SHARD_TEST_DEVICE=cuda SHARD_CONFORMANCE=full NVIDIA_TF32_OVERRIDE=0 CUBLAS_WORKSPACE_CONFIG=:4096:8
failures=0
check() {
  echo "=== $*"
  "$@" || { echo "FAILED: $*"; failures=$((failures + 1)); }
}

check $build/bin/shard info
check $build/bin/test_runtime --file cuda_test
# Faults: processes that throw, die, come late or disagree. Thread ranks would need a GPU each, and NCCL notices by its
# timeout only (docs/limits.md).
check env SHARD_DEVICE_COMM=staged $build/bin/test_launch --gtest_filter='MpiJob.*-*ShardRanks'
for ranks in 2 4; do
  for file in mpi_networks_test mpi_samples_test mpi_random_test; do
    check scripts/mpirun.sh $ranks $build/bin/test_mpi --file $file
  done
done
for ranks in 1 2 4; do
  check scripts/mpirun.sh $ranks $build/bin/global_field --device cuda --quiet --steps 3 --verify
done
if [[ -d $build/python ]]; then
  check scripts/python.sh $build -m pytest -q -p no:cacheprovider tests/python/test_gpu.py
else
  echo "SKIP the Python tests: built without Python"
fi
echo "gpu-test: $failures failures"
exit $((failures > 0))
