# SPDX-License-Identifier: Apache-2.0
# `cmake --install` and the package `shardtensor` that find_package finds there.

include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/shardtensor")

set(targets shard shard_headers shard_testing)
if(TARGET shard_io)
  list(APPEND targets shard_io)
endif()
set_target_properties(shard_headers PROPERTIES EXPORT_NAME headers)
set_target_properties(${targets} PROPERTIES INSTALL_RPATH "$ORIGIN;${LibTorch_ROOT_DIR}/lib")
install(TARGETS ${targets} EXPORT shardtensorTargets)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT shardtensorTargets NAMESPACE shard:: DESTINATION "${package_dir}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/shardtensorConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/shardtensorConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/shardtensorConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/shardtensorConfig.cmake" "${PROJECT_BINARY_DIR}/shardtensorConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake" DESTINATION "${package_dir}")
