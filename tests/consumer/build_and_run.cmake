# SPDX-License-Identifier: Apache-2.0
# Builds tests/consumer as a user's project would be and runs it.
#   cmake -DWAY=find_package|add_subdirectory -DSHARD_BUILD=... -DSHARD_SOURCE=... -DLIBTORCH=...
#         [-DFULL=ON] -P build_and_run.cmake
# add_subdirectory would compile the whole library once more. Without FULL it stops at what can differ there: the
# configuration below another project, without any optional backend, and the compilation of a source that uses the
# target and of the stubs that stand for the backends.

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed COMMAND_ECHO STDOUT)
  if(failed)
    message(FATAL_ERROR "[consumer] failed: ${ARGN}")
  endif()
endfunction()

set(build "${SHARD_BUILD}/consumer-${WAY}")
file(REMOVE_RECURSE "${build}")
set(arguments -S "${CMAKE_CURRENT_LIST_DIR}" -B "${build}" -G Ninja)
if(WAY STREQUAL "find_package")
  set(prefix "${SHARD_BUILD}/consumer-prefix")
  file(REMOVE_RECURSE "${prefix}")
  step("${CMAKE_COMMAND}" --install "${SHARD_BUILD}" --prefix "${prefix}")
  list(APPEND arguments "-DCMAKE_PREFIX_PATH=${prefix}")
else()
  list(APPEND arguments "-DCONSUMER_SOURCE_DIR=${SHARD_SOURCE}" "-DSHARD_LIBTORCH=${LIBTORCH}" -DSHARD_WITH_MPI=OFF
       -DSHARD_WITH_HDF5=OFF -DSHARD_WITH_CUDA=OFF)
endif()
step("${CMAKE_COMMAND}" ${arguments})
if(WAY STREQUAL "add_subdirectory" AND NOT FULL)
  step("${CMAKE_COMMAND}" --build "${build}" --target CMakeFiles/consumer.dir/main.cpp.o
       shardtensor/src/CMakeFiles/shard.dir/comm/no_mpi.cpp.o shardtensor/src/CMakeFiles/shard_io.dir/io/no_hdf5.cpp.o)
else()
  step("${CMAKE_COMMAND}" --build "${build}" --target consumer)
  step("${build}/consumer")
endif()
