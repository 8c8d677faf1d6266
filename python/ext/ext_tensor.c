/* SPDX-License-Identifier: BSD-3-Clause */

/* The library sees nothing of a tensor but its memory. */
#include "ext_tensor.h"

#include "ext_python.h"

static struct {
    PyObject *is_neg, *needs_grad; /* names of attributes of a tensor */
    int is_warned;                 /* of gradients: they are not asked for any more */
} known;

static int learn_names(void)
{
    known.is_neg = PyUnicode_InternFromString("is_neg");
    known.needs_grad = PyUnicode_InternFromString("requires_grad");
    return known.is_neg != NULL && known.needs_grad != NULL ? 0 : -1;
}

/* There is none where gradients are not recorded, as in the functions that make an operation part of autograd. */
static int warn_of_gradients(const char *name, PyObject *tensor)
{
    PyObject *needed = PyObject_GetAttr(tensor, known.needs_grad), *warned = NULL;
    if (needed == Py_True) warned = ext_call_helper("warn_of_gradients", "(s)", name);
    const int is_wrong = needed == NULL || (needed == Py_True && warned == NULL);
    known.is_warned = warned == Py_True;
    Py_XDECREF(needed);
    Py_XDECREF(warned);
    return is_wrong ? -1 : 0;
}

/*
 * A sign that has not been applied to the memory would be lost, as gradients are. Integers have neither, and each
 * question takes about 0.1 us.
 */
int ext_tensor_check(const char *name, PyObject *tensor, xep_dtype_t dtype)
{
    if (dtype == XEP_INT64 || dtype == XEP_INT32) return 0;
    if (known.needs_grad == NULL && learn_names() != 0) return -1;
    PyObject *is_neg = PyObject_CallMethodNoArgs(tensor, known.is_neg);
    Py_XDECREF(is_neg);
    if (is_neg == NULL) return -1;
    if (is_neg == Py_True) {
        PyErr_Format(PyExc_ValueError,
                     "%s: expected a tensor without the negative bit, got one with it (resolve_neg())", name);
        return -1;
    }
    return known.is_warned ? 0 : warn_of_gradients(name, tensor);
}
