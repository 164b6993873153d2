# SPDX-License-Identifier: Apache-2.0
# Compiles through ccache when there is one, so that clones in different folders share their results. Everything
# that would tie a result to its folder is relative (CCACHE_BASEDIR) or left out (CCACHE_NOHASHDIR); the sloppiness is
# what ccache asks for with precompiled headers.

find_program(SHARD_CCACHE ccache DOC "ccache, the compiler cache (empty: compile without)")
if(SHARD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      /usr/bin/env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${SHARD_CCACHE}")
endif()
