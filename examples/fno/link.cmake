# SPDX-License-Identifier: Apache-2.0
# The reader of the global field.
target_sources(fno PRIVATE $<TARGET_OBJECTS:global_field_parts>)
target_include_directories(fno PRIVATE "${PROJECT_SOURCE_DIR}/examples")
