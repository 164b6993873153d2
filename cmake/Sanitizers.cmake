# SPDX-License-Identifier: Apache-2.0
# SHARD_SANITIZER = address | thread: instruments our own code. LibTorch is not instrumented, so what ThreadSanitizer
# cannot see inside it is listed in tests/support/tsan.supp.

set(SHARD_SANITIZER "" CACHE STRING "address, thread or empty")
set_property(CACHE SHARD_SANITIZER PROPERTY STRINGS "" address thread)

set(shard_test_launcher "")      # in front of every test program
set(shard_test_environment "")   # of every test
if(SHARD_SANITIZER)
  if(NOT SHARD_SANITIZER MATCHES "^(address|thread)$")
    message(FATAL_ERROR "SHARD_SANITIZER: got '${SHARD_SANITIZER}'; expected address, thread or nothing.")
  endif()
  add_compile_options(-fsanitize=${SHARD_SANITIZER} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${SHARD_SANITIZER})
endif()
if(SHARD_SANITIZER STREQUAL "address")
  set(shard_test_environment "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1"
                             "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp:print_suppressions=0")
elseif(SHARD_SANITIZER STREQUAL "thread")
  # report_mutex_bugs, detect_deadlocks: mutexes that LibTorch locks in its own, uninstrumented code and unlocks in inlined code, or the
  # other way round, are reported as unlocked twice. Data races are reported as ever.
  set(shard_test_environment
      "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp:report_mutex_bugs=0:detect_deadlocks=0:allocator_may_return_null=1"
      OMP_NUM_THREADS=1)
  # gcc 12's ThreadSanitizer gives up under strong address randomisation; switch it off where that is allowed.
  execute_process(COMMAND setarch -R true RESULT_VARIABLE cannot OUTPUT_QUIET ERROR_QUIET)
  if(cannot EQUAL 0)
    set(shard_test_launcher setarch -R)
  endif()
endif()
