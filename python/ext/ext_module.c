/* SPDX-License-Identifier: BSD-3-Clause */

/* The module xep._ext. It has static state, so there is one in a process and none in a subinterpreter. */
#include "ext_arrays.h"
#include "ext_combine.h"
#include "ext_device.h"
#include "ext_dispatch.h"
#include "ext_end.h"
#include "ext_expand.h"
#include "ext_experts.h"
#include "ext_grow.h"
#include "ext_in_place.h"
#include "ext_layout.h"
#include "ext_park.h"
#include "ext_pieces.h"
#include "ext_received.h"
#include "ext_request.h"
#include "ext_serve.h"
#include "ext_show.h"
#include "ext_stream.h"
#include "ext_weights.h"

/*
 * Types come before what is added to them. Once in a process: numpy's functions, the library's and the types are found
 * through statics.
 */
static int fill(PyObject *module)
{
    static int is_filled;
    int (*const ready[])(PyObject *) = {
        ext_library_ready,  ext_arrays_ready,   ext_device_ready,  ext_group_ready,  ext_buffer_ready,
        ext_handle_ready,   ext_request_ready,  ext_end_ready,     ext_grow_ready,   ext_layout_ready,
        ext_received_ready, ext_dispatch_ready, ext_combine_ready, ext_pieces_ready, ext_in_place_ready,
        ext_show_ready,     ext_experts_ready,  ext_park_ready,    ext_stream_ready, ext_expand_ready,
        ext_serve_ready,    ext_weights_ready,
    };
    if (is_filled) {
        PyErr_SetString(PyExc_ImportError, "xep._ext cannot be loaded twice in a process");
        return -1;
    }
    is_filled = 1;
    for (size_t i = 0; i < sizeof ready / sizeof *ready; i++)
        if (ready[i](module) != 0) return -1;
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
