# SPDX-License-Identifier: Apache-2.0
# What is needed (LibTorch) and what may be used (MPI, HDF5, CUDA).

find_package(Threads REQUIRED)
set(SHARD_LIBTORCH "$ENV{SHARD_LIBTORCH}" CACHE PATH "An existing LibTorch (empty: the one in .deps)")
set(LibTorch_DEFAULT_DIR "${PROJECT_SOURCE_DIR}/.deps/libtorch")
find_package(LibTorch REQUIRED)

if(NOT SHARD_WITH_MPI STREQUAL "OFF")
  find_package(MPI QUIET COMPONENTS C)
endif()
shard_decide(MPI "${MPI_C_FOUND}" "MPI")

if(NOT SHARD_WITH_HDF5 STREQUAL "OFF")
  find_package(HDF5 QUIET COMPONENTS C)
endif()
shard_decide(HDF5 "${HDF5_FOUND}" "HDF5")

# libshard itself links no CUDA. With it, programs and tests load LibTorch's CUDA library, so that they may use devices.
set(cuda_needs "a LibTorch built with CUDA")
set(cuda_found OFF)
if(TARGET LibTorch::cuda AND NOT SHARD_WITH_CUDA STREQUAL "OFF")
  execute_process(COMMAND ldd "${LibTorch_ROOT_DIR}/lib/libtorch_cuda.so" OUTPUT_VARIABLE loaded ERROR_QUIET)
  string(REGEX MATCHALL "[^ \t\n]+ => not found" missing "${loaded}")
  list(TRANSFORM missing REPLACE " =>.*" "")
  list(JOIN missing ", " missing)
  if(missing)
    set(cuda_needs "libraries that LibTorch's CUDA part loads: ${missing}")
  else()
    set(cuda_found ON)
  endif()
endif()
shard_decide(CUDA ${cuda_found} "${cuda_needs}")
