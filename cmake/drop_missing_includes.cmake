# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
#
# For the ROS 2 wheels of the Python package index only; scripts/setup.sh passes this file in
# CMAKE_PROJECT_INCLUDE. Imported targets of these wheels name include directories of the machine
# that built them (/opt/python/cp3XX-cp3XX/...). CMake stops at a directory that does not exist, so
# these are taken out; rosidl finds Python's and numpy's headers of this machine by itself.

function(gemma_mtp_ros_drop_missing_includes)
  get_property(targets DIRECTORY "${CMAKE_SOURCE_DIR}" PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(directories "${target}" INTERFACE_INCLUDE_DIRECTORIES)
    if(directories)
      set(kept "")
      foreach(directory IN LISTS directories)
        if(NOT directory MATCHES "^/opt/python/" OR EXISTS "${directory}")
          list(APPEND kept "${directory}")
        endif()
      endforeach()
      set_target_properties("${target}" PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${kept}")
    endif()
  endforeach()
endfunction()

cmake_language(DEFER CALL gemma_mtp_ros_drop_missing_includes)
