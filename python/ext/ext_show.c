/* SPDX-License-Identifier: BSD-3-Clause */

#include "ext_module.h"

#include "ext_arrays.h"
#include "ext_python.h"
#include "ext_received.h"

static PyObject *get_recv(PyObject *self, void *Py_UNUSED(unused))
{
    return ext_received_of((ext_handle_t *)self, ((ext_handle_t *)self)->element.kind);
}

static PyObject *show_numpy(PyObject *self, PyObject *Py_UNUSED(unused))
{
    if (((ext_handle_t *)self)->buffer->where != EXT_HOST) {
        PyErr_SetString(PyExc_TypeError, "numpy: expected rows in host memory, these are on a device (recv, torch())");
        return NULL;
    }
    return ext_received_of((ext_handle_t *)self, ((ext_handle_t *)self)->element.kind == EXT_ML ? EXT_ML : EXT_NUMPY);
}

static PyObject *show_torch(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ext_kind_t kind;
    return ext_tensor_kind(&kind) == 0 ? ext_received_of((ext_handle_t *)self, kind) : NULL;
}

PyMethodDef ext_show_methods[] = {
    {"numpy", show_numpy, METH_NOARGS,
     "numpy($self)\n--\n\nThe received rows as numpy arrays; bfloat16 as uint16, 8-bit floats as uint8, where they\n"
     "were not dispatched as types of package ml_dtypes."},
    {"torch", show_torch, METH_NOARGS, "torch($self)\n--\n\nThe received rows as tensors."},
    {NULL, NULL, 0, NULL},
};

PyGetSetDef ext_show_getset[] = {
    {"recv", get_recv, NULL, "The received rows, as arrays of the kind that was dispatched (numpy or torch).", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
