# SPDX-License-Identifier: Apache-2.0
# FindLibTorch: LibTorch as imported targets, without its own package config (which insists on CUDA).
#
# Looks in SHARD_LIBTORCH (cache or environment variable: a `torch` folder of the Python package, an unpacked
# `libtorch`, or the folder that holds either); without it in LibTorch_DEFAULT_DIR, which is <source>/.deps/libtorch,
# where scripts/bootstrap.sh puts one, and for an installed shardtensor the LibTorch that it was built with.
#
#   LibTorch::cpu    libtorch_cpu and libc10: all that libshard needs
#   LibTorch::cuda   libtorch_cuda and libc10_cuda, when this LibTorch has them
#   LibTorch::python libtorch_python, when this LibTorch is an importable Python package
#   LibTorch_ROOT_DIR, LibTorch_VERSION, LibTorch_PYTHON_VERSION (of that package, else empty)

set(_libtorch_hint "${LibTorch_DEFAULT_DIR}")
if(SHARD_LIBTORCH)
  set(_libtorch_hint "${SHARD_LIBTORCH}")
elseif(DEFINED ENV{SHARD_LIBTORCH})
  set(_libtorch_hint "$ENV{SHARD_LIBTORCH}")
endif()
set(LibTorch_ROOT_DIR "")
foreach(candidate "${_libtorch_hint}" "${_libtorch_hint}/torch" "${_libtorch_hint}/libtorch")
  if(EXISTS "${candidate}/lib/libtorch_cpu.so" AND EXISTS "${candidate}/include/torch/library.h")
    get_filename_component(LibTorch_ROOT_DIR "${candidate}" ABSOLUTE)
    break()
  endif()
endforeach()

if(LibTorch_ROOT_DIR)
  file(STRINGS "${LibTorch_ROOT_DIR}/include/torch/headeronly/version.h" _libtorch_lines
       REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" _libtorch_numbers "${_libtorch_lines}")
  list(JOIN _libtorch_numbers "." LibTorch_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch
  REQUIRED_VARS LibTorch_ROOT_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE
    "no LibTorch (lib/libtorch_cpu.so and include/torch/library.h) in '${_libtorch_hint}'. \
Run `make bootstrap` (scripts/bootstrap.sh) to install it, or set SHARD_LIBTORCH to an existing one.")

# _libtorch_target(name library...): imports the libraries of one LibTorch part as one target.
function(_libtorch_target name)
  if(TARGET LibTorch::${name})
    return()
  endif()
  set(paths "")
  foreach(library IN LISTS ARGN)
    list(APPEND paths "${LibTorch_ROOT_DIR}/lib/lib${library}.so")
  endforeach()
  list(POP_FRONT paths main)
  add_library(LibTorch::${name} SHARED IMPORTED)
  set_target_properties(LibTorch::${name} PROPERTIES IMPORTED_LOCATION "${main}")
  target_link_libraries(LibTorch::${name} INTERFACE ${paths})
  # Imported targets' include folders are SYSTEM: LibTorch's warnings are not ours.
  target_include_directories(
    LibTorch::${name} INTERFACE "${LibTorch_ROOT_DIR}/include"
                                "${LibTorch_ROOT_DIR}/include/torch/csrc/api/include")
  target_compile_definitions(LibTorch::${name} INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  target_compile_features(LibTorch::${name} INTERFACE cxx_std_20)
endfunction()

if(LibTorch_FOUND)
  _libtorch_target(cpu torch_cpu c10)
  if(EXISTS "${LibTorch_ROOT_DIR}/lib/libtorch_cuda.so")
    _libtorch_target(cuda torch_cuda c10_cuda)
  endif()
  file(GLOB _libtorch_module "${LibTorch_ROOT_DIR}/_C.cpython-*.so")
  set(LibTorch_PYTHON_VERSION "")
  if(_libtorch_module MATCHES "cpython-3([0-9]+)-" AND EXISTS "${LibTorch_ROOT_DIR}/lib/libtorch_python.so")
    set(LibTorch_PYTHON_VERSION "3.${CMAKE_MATCH_1}")
    _libtorch_target(python torch_python torch_cpu c10)
  endif()
endif()
