# SPDX-License-Identifier: BSD-3-Clause
# find_package(xep) defines the target xep::xep: the library of the folder that this file is in, and its headers. Paths
# are relative to this file, so that an installation can be moved.
get_filename_component(_xep_libdir "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
find_path(_xep_include xep/xep.h HINTS "${_xep_libdir}/../include" "${_xep_libdir}/../../include" NO_DEFAULT_PATH)
find_path(_xep_include xep/xep.h) # only if they are not there
if(NOT _xep_include)
  set(xep_FOUND FALSE)
  set(xep_NOT_FOUND_MESSAGE "there is no xep/xep.h near ${_xep_libdir}, nor where CMake looks")
elseif(NOT TARGET xep::xep)
  add_library(xep::xep SHARED IMPORTED GLOBAL)
  set_target_properties(xep::xep PROPERTIES
    IMPORTED_LOCATION "${_xep_libdir}/libxep.so" INTERFACE_INCLUDE_DIRECTORIES "${_xep_include}")
endif()
unset(_xep_include CACHE)
