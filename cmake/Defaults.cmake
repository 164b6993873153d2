# SPDX-License-Identifier: Apache-2.0
# Language, optimisation, warnings and where binaries go.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Debug, Release, RelWithDebInfo or Sanitizer" FORCE)
  endif()
  # Full debug information of LibTorch's templates costs half the build time; lines are enough.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
  set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")
  set(CMAKE_CXX_FLAGS_SANITIZER "-O1 -g1 -DNDEBUG")
endif()

# -Wmaybe-uninitialized: gcc 12 reports it inside LibTorch's inlined containers. -fPIC for programs too: they share
# precompiled headers with the library.
add_compile_options(-Wall -Wextra -Wconversion -Wno-maybe-uninitialized -fPIC)
if(SHARD_ERROR)
  add_compile_options(-Werror)
endif()
set(CMAKE_PCH_WARN_INVALID ON)
