/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The module and what all its types share. It has static state, so there is one in a process and none in a
 * subinterpreter.
 */
#include "ext_module.h"

#include "ext_arrays.h"
#include "ext_buffer.h"
#include "ext_device.h"
#include "ext_group.h"
#include "ext_handle.h"
#include "ext_layout.h"
#include "ext_pieces.h"
#include "ext_received.h"
#include "ext_request.h"

/*
 * type_p is borrowed from the module, which lives as long as the process. A type without tp_new cannot be made by a
 * user, whose object would have none of the things that methods count on.
 */
int ext_add_type(PyObject *module, PyType_Spec *spec, int instantiable, PyTypeObject **type_p)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL) return -1;
    if (!instantiable) type->tp_new = NULL;
    const int ret = PyModule_AddType(module, type);
    Py_DECREF(type); /* the module keeps it */
    if (ret == 0 && type_p != NULL) *type_p = type;
    return ret;
}

/*
 * The collector must not see an object that is half gone, so it is told first; weak references go before the contents,
 * as their callbacks may look at the object. Objects hold their type, which a spec has made on the heap.
 */
void ext_dealloc(PyObject *self, PyObject *weak, inquiry clear)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (weak != NULL) PyObject_ClearWeakRefs(self);
    clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Once in a process: numpy's functions, the library's and the types are found through statics. */
static int fill(PyObject *module)
{
    static int is_filled;
    int (*const ready[])(PyObject *) = {ext_library_ready,  ext_arrays_ready, ext_device_ready, ext_layout_ready,
                                        ext_group_ready,    ext_buffer_ready, ext_handle_ready, ext_pieces_ready,
                                        ext_received_ready, ext_request_ready};
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
