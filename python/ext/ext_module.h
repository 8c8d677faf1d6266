/* SPDX-License-Identifier: BSD-3-Clause */

/** What files add to the module that no other file calls: types, functions, and methods of the types of others. */
#ifndef EXT_MODULE_H
#define EXT_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/** Add their types. -1: an exception is set. */
int ext_stream_ready(PyObject *module);
int ext_weights_ready(PyObject *module);

extern PyMethodDef ext_experts_functions[], ext_layout_functions[], ext_params_functions[], ext_serve_functions[],
    ext_stream_functions[], ext_view_functions[];

/** Of Group. */
extern PyMethodDef ext_grow_group_methods[];

/** Of Buffer. */
extern PyMethodDef ext_dispatch_methods[], ext_end_methods[], ext_grow_buffer_methods[], ext_in_place_buffer_methods[],
    ext_layout_methods[], ext_park_buffer_methods[], ext_serve_methods[];

/** Of Handle. */
extern PyMethodDef ext_combine_methods[], ext_expand_methods[], ext_in_place_handle_methods[],
    ext_park_handle_methods[], ext_pieces_methods[], ext_show_methods[];
extern PyGetSetDef ext_show_getset[];

#endif
