# SPDX-License-Identifier: Apache-2.0
include(io/fixtures/fixtures.cmake)
shard_add_io_fixtures(examples)
find_package(CLI11 REQUIRED)
target_include_directories(test_examples_needs INTERFACE "${PROJECT_SOURCE_DIR}/examples")
target_link_libraries(test_examples_needs INTERFACE CLI11::CLI11)
