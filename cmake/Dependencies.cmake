# SPDX-License-Identifier: Apache-2.0
# What is needed (LibTorch) and what may be used (MPI, HDF5, CUDA).

find_package(Threads REQUIRED)
set(SHARD_LIBTORCH "$ENV{SHARD_LIBTORCH}" CACHE PATH "An existing LibTorch (empty: the one in .deps)")
set(LibTorch_DEFAULT_DIR "${PROJECT_SOURCE_DIR}/.deps/libtorch")
if(SKBUILD AND NOT SHARD_LIBTORCH) # a wheel is built against the torch of its Python
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" -c
            "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE LibTorch_DEFAULT_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
find_package(LibTorch REQUIRED)

if(NOT SHARD_WITH_MPI STREQUAL "OFF")
  find_package(MPI QUIET COMPONENTS C)
endif()
shard_decide(MPI "${MPI_C_FOUND}" "MPI")

set(c10d_found OFF)
if(EXISTS "${LibTorch_ROOT_DIR}/include/torch/csrc/distributed/c10d/ProcessGroup.hpp")
  set(c10d_found ON)
endif()
shard_decide(C10D ${c10d_found} "a LibTorch built with c10d")

if(NOT SHARD_WITH_HDF5 STREQUAL "OFF")
  find_package(HDF5 QUIET COMPONENTS C)
endif()
shard_decide(HDF5 "${HDF5_FOUND}" "HDF5")

# libshard itself links no CUDA: the plugin libshard_cuda.so does.
set(cuda_found OFF)
if(TARGET LibTorch::cuda AND NOT SHARD_WITH_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit QUIET)
  find_path(SHARD_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(SHARD_NCCL NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR})
  find_path(SHARD_CUDNN_INCLUDE cudnn_version.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(CUDAToolkit_FOUND AND SHARD_NCCL AND SHARD_NCCL_INCLUDE AND SHARD_CUDNN_INCLUDE)
    set(cuda_found ON)
  endif()
endif()
shard_decide(CUDA ${cuda_found} "the CUDA toolkit, cuDNN, NCCL and a LibTorch built with CUDA")

# The Python module must be built for the Python that this LibTorch was built for.
set(python_found OFF)
if(LibTorch_PYTHON_VERSION AND NOT SHARD_WITH_PYTHON STREQUAL "OFF")
  find_package(Python3 ${LibTorch_PYTHON_VERSION} EXACT QUIET COMPONENTS Interpreter Development.Module)
  set(python_found ${Python3_FOUND})
endif()
shard_decide(PYTHON "${python_found}" "Python ${LibTorch_PYTHON_VERSION} with headers and a LibTorch that Python can import")
