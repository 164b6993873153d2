# SPDX-License-Identifier: Apache-2.0
# Optional parts: SHARD_WITH_<NAME> = AUTO (use it when found), ON (required), OFF.

# shard_option(NAME "what it is for"): declares SHARD_WITH_<NAME>.
function(shard_option name help)
  set(SHARD_WITH_${name} AUTO CACHE STRING "${help} (AUTO, ON or OFF)")
  set_property(CACHE SHARD_WITH_${name} PROPERTY STRINGS AUTO ON OFF)
  string(TOUPPER "${SHARD_WITH_${name}}" value)
  if(NOT value MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "SHARD_WITH_${name}: got '${SHARD_WITH_${name}}'; expected AUTO, ON or OFF.")
  endif()
endfunction()

# shard_decide(NAME found "what it needs"): sets SHARD_HAS_<NAME> from the option and what was found, and notes the
# outcome for the summary. ON without the needed part is an error.
function(shard_decide name found needs)
  string(TOUPPER "${SHARD_WITH_${name}}" wanted)
  if(wanted STREQUAL "OFF")
    set(has OFF)
    set(reason "switched off")
  elseif(found)
    set(has ON)
    set(reason "${needs}")
  elseif(wanted STREQUAL "ON")
    message(FATAL_ERROR "SHARD_WITH_${name}=ON needs ${needs}, which was not found. "
                        "Install it (`make bootstrap`) or use SHARD_WITH_${name}=OFF.")
  else()
    set(has OFF)
    set(reason "not found: ${needs}")
  endif()
  set(SHARD_HAS_${name} ${has} PARENT_SCOPE)
  set_property(GLOBAL APPEND PROPERTY SHARD_SUMMARY "${name} ${has} (${reason})")
endfunction()

function(shard_print_summary)
  get_property(lines GLOBAL PROPERTY SHARD_SUMMARY)
  message(STATUS "shardtensor ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}")
  message(STATUS "  LibTorch ${LibTorch_VERSION} in ${LibTorch_ROOT_DIR}")
  foreach(line IN LISTS lines)
    message(STATUS "  ${line}")
  endforeach()
endfunction()
