# `cmake --install build` and find_package(kv2) from another project (tested by tests/consumer).
include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY KV2_LIBRARIES)
set_target_properties(kv2_eval PROPERTIES EXPORT_NAME kv2)  # links everything below it
foreach(lib ${libraries})
  string(REPLACE "kv2_" "" short ${lib})
  if(NOT lib STREQUAL kv2_eval)
    set_target_properties(${lib} PROPERTIES EXPORT_NAME ${short})
  endif()
endforeach()
install(TARGETS ${libraries} EXPORT kv2Targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/kv2 DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kv2)
install(EXPORT kv2Targets NAMESPACE kv2:: DESTINATION ${config_dir})
configure_package_config_file(cmake/kv2Config.cmake.in ${PROJECT_BINARY_DIR}/kv2Config.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kv2ConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kv2Config.cmake ${PROJECT_BINARY_DIR}/kv2ConfigVersion.cmake
        DESTINATION ${config_dir})
