/* SPDX-License-Identifier: BSD-3-Clause */

/* The module xep._fast, and what the package tells it. */
#include "fast.h"

#include <string.h>

fast_module_t fast_module;

/* ---- the library, by the addresses of its functions: it is loaded by the package ---- */

static int set_function(void *field, PyObject *addresses, const char *name)
{
    PyObject *address = PyMapping_GetItemString(addresses, name);
    void *function = address != NULL ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    if (PyErr_Occurred()) return -1;
    memcpy(field, &function, sizeof function);
    return 0;
}

static int set_library(PyObject *addresses)
{
    fast_library_t *library = &fast_module.library;
    if (set_function(&library->dispatch, addresses, "xep_dispatch") != 0) return -1;
    if (set_function(&library->combine, addresses, "xep_combine") != 0) return -1;
    if (set_function(&library->recv, addresses, "xep_handle_recv") != 0) return -1;
    if (set_function(&library->combine_input, addresses, "xep_handle_combine_input") != 0) return -1;
    if (set_function(&library->release, addresses, "xep_handle_release") != 0) return -1;
    return set_function(&library->dtype_size, addresses, "xep_dtype_size");
}

/* A package whose structs are not those of the header this was compiled with must do without. */
static int check_sizes(Py_ssize_t dispatch, Py_ssize_t combine, Py_ssize_t recv)
{
    if (dispatch == sizeof(xep_dispatch_args_t) && combine == sizeof(xep_combine_args_t) && recv == sizeof(xep_recv_t)) return 0;
    PyErr_SetString(PyExc_ImportError, "xep._fast was compiled with another version of xep.h: install the package again");
    return -1;
}

static PyObject *use_library(PyObject *module, PyObject *args)
{
    PyObject *addresses, *numpy_types, *recv_view;
    Py_ssize_t dispatch, combine, recv;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO(nnn)", &addresses, &numpy_types, &recv_view, &dispatch, &combine, &recv)) return NULL;
    if (check_sizes(dispatch, combine, recv) != 0 || set_library(addresses) != 0 || fast_arrays_set_numpy(numpy_types) != 0) return NULL;
    Py_INCREF(recv_view);
    fast_module.recv_view = recv_view;
    Py_RETURN_NONE;
}

static PyObject *use_classes(PyObject *module, PyObject *args)
{
    PyObject *buffer, *handle, *received;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyType_Type, &buffer, &PyType_Type, &handle, &PyType_Type, &received)) return NULL;
    Py_INCREF(buffer);
    Py_INCREF(handle);
    Py_INCREF(received);
    fast_module.buffer = (PyTypeObject *)buffer;
    fast_module.handle = (PyTypeObject *)handle;
    fast_module.received = (PyTypeObject *)received;
    Py_RETURN_NONE;
}

static void set_adapter(fast_kind_t kind, PyObject *adapter)
{
    Py_INCREF(adapter);
    fast_module.adapters[kind] = adapter;
}

static PyObject *use_numpy(PyObject *module, PyObject *adapter)
{
    (void)module;
    set_adapter(FAST_NUMPY, adapter);
    Py_RETURN_NONE;
}

static PyObject *use_torch(PyObject *module, PyObject *args)
{
    PyObject *adapter, *type, *capsule;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO", &adapter, &type, &capsule)) return NULL;
    if (fast_arrays_set_torch(type, capsule) != 0) return NULL;
    set_adapter(FAST_TORCH, adapter);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"use_library", use_library, METH_VARARGS, "Addresses of functions, numpy types, Recv.from_address, sizes of structs."},
    {"use_classes", use_classes, METH_VARARGS, "Buffer, Handle, Received."},
    {"use_numpy", use_numpy, METH_O, "The module that knows numpy arrays."},
    {"use_torch", use_torch, METH_VARARGS, "The module that knows tensors, their type, DLPack's exchange interface."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "xep._fast", .m_doc = "The calls of every step, compiled.",
                                 .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__fast(void);
PyMODINIT_FUNC PyInit__fast(void)
{
    if (fast_arrays_import() != 0) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (fast_slots_ready(module) == 0 && fast_objects_ready(module) == 0 && fast_calls_ready(module) == 0) return module;
    Py_DECREF(module);
    return NULL;
}
