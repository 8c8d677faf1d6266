/* SPDX-License-Identifier: BSD-3-Clause */

/* The module xep._ext. It has static state, so there is one in a process and none in a subinterpreter. */
#include "ext_module.h"

#include "ext_arrays.h"
#include "ext_python.h"
#include "ext_received.h"
#include "ext_request.h"

/* Types come before what is added to them. */
static int (*const ready[])(PyObject *) = {
    ext_library_ready, ext_arrays_ready,  ext_device_ready,   ext_group_ready,  ext_buffer_ready,
    ext_handle_ready,  ext_request_ready, ext_received_ready, ext_stream_ready, ext_weights_ready,
};

static PyMethodDef *const functions[] = {
    ext_experts_functions, ext_layout_functions, ext_params_functions,
    ext_serve_functions,   ext_stream_functions, ext_view_functions,
};

static const struct {
    const char *type;
    PyMethodDef *methods;
    PyGetSetDef *getset;
} added[] = {
    {"Group", ext_grow_group_methods, NULL},
    {"Buffer", ext_dispatch_methods, NULL},
    {"Buffer", ext_end_methods, NULL},
    {"Buffer", ext_grow_buffer_methods, NULL},
    {"Buffer", ext_in_place_buffer_methods, NULL},
    {"Buffer", ext_layout_methods, NULL},
    {"Buffer", ext_park_buffer_methods, NULL},
    {"Buffer", ext_serve_methods, NULL},
    {"Handle", ext_combine_methods, NULL},
    {"Handle", ext_expand_methods, NULL},
    {"Handle", ext_in_place_handle_methods, NULL},
    {"Handle", ext_park_handle_methods, NULL},
    {"Handle", ext_pieces_methods, NULL},
    {"Handle", ext_show_methods, ext_show_getset},
};

/* Once in a process: numpy's functions, the library's and the types are found through statics. */
static int fill(PyObject *module)
{
    static int is_filled;
    if (is_filled) {
        PyErr_SetString(PyExc_ImportError, "xep._ext cannot be loaded twice in a process");
        return -1;
    }
    is_filled = 1;
    for (size_t i = 0; i < sizeof ready / sizeof *ready; i++)
        if (ready[i](module) != 0) return -1;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (PyModule_AddFunctions(module, functions[i]) != 0) return -1;
    for (size_t i = 0; i < sizeof added / sizeof *added; i++)
        if (ext_add_methods(module, added[i].type, added[i].methods, added[i].getset) != 0) return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "xep._ext",
                                 .m_doc = "All calls of the library, and the objects of every step.", .m_slots = slots};

PyMODINIT_FUNC PyInit__ext(void);
PyMODINIT_FUNC PyInit__ext(void)
{
    return PyModuleDef_Init(&definition);
}
