/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The library sees nothing of a tensor but its memory: a sign that has not been applied to that would be lost, as
 * gradients are. To ask torch for both takes 0.12 us, so a tensor that has passed is not asked again while it lives.
 */
#include "ext_arrays.h"

#include "ext_python.h"

static struct {
    PyObject *is_neg, *needs_grad; /* names of attributes of a tensor */
    int is_warned;                 /* of gradients: they are not asked for any more */
} known;

/* Tensors that have passed: more than the floats of a dispatch and a combine. */
static struct {
    PyObject *tensor; /* not counted */
    PyObject *weak;   /* a reference to it; one that is dead names nothing */
} passed[8];

static int learn_names(void)
{
    known.is_neg = PyUnicode_InternFromString("is_neg");
    known.needs_grad = PyUnicode_InternFromString("requires_grad");
    return known.is_neg != NULL && known.needs_grad != NULL ? 0 : -1;
}

/* ---- those that have passed ---- */

/* A new object may be where another one was: so the address alone says nothing. */
static int is_alive(PyObject *weak, const PyObject *tensor)
{
#if PY_VERSION_HEX >= 0x030d0000
    PyObject *found = NULL;
    if (PyWeakref_GetRef(weak, &found) < 0) PyErr_Clear();
    const int is_same = found == tensor;
    Py_XDECREF(found);
    return is_same;
#else
    return PyWeakref_GET_OBJECT(weak) == tensor;
#endif
}

static int has_passed(const PyObject *tensor)
{
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        if (passed[i].tensor == tensor) return is_alive(passed[i].weak, tensor);
    return 0;
}

/* In the place of one that was at the same address, or of the oldest. One that cannot be referred to does not pass. */
static void note_passed(PyObject *tensor)
{
    static size_t oldest;
    const size_t count = sizeof passed / sizeof *passed;
    PyObject *weak = PyWeakref_NewRef(tensor, NULL);
    size_t place = 0;
    if (weak == NULL) {
        PyErr_Clear();
        return;
    }
    while (place < count && passed[place].tensor != tensor) place++;
    if (place == count) place = oldest++ % count;
    passed[place].tensor = tensor;
    Py_XSETREF(passed[place].weak, weak);
}

/* ---- asking ---- */

/* There is none where gradients are not recorded, as in the functions that make an operation part of autograd. */
static int warn_of_gradients(const char *name)
{
    PyObject *warned = ext_call_helper("warn_of_gradients", "(s)", name);
    if (warned == NULL) return -1;
    known.is_warned = warned == Py_True;
    Py_DECREF(warned);
    return 0;
}

static int refuse_negative(const char *name)
{
    PyErr_Format(PyExc_ValueError, "%s: expected a tensor without the negative bit, got one with it (resolve_neg())",
                 name);
    return -1;
}

/* Integers have neither. A tensor that requires grad does not pass until it has been warned of one. */
int ext_tensor_check(const char *name, PyObject *tensor, xep_dtype_t dtype)
{
    if (dtype == XEP_INT64 || dtype == XEP_INT32 || has_passed(tensor)) return 0;
    if (known.needs_grad == NULL && learn_names() != 0) return -1;
    PyObject *is_neg = PyObject_CallMethodNoArgs(tensor, known.is_neg);
    Py_XDECREF(is_neg);
    if (is_neg == NULL) return -1;
    if (is_neg == Py_True) return refuse_negative(name);
    PyObject *needed = known.is_warned ? NULL : PyObject_GetAttr(tensor, known.needs_grad);
    Py_XDECREF(needed);
    if (needed == Py_True) return warn_of_gradients(name);
    if (needed == NULL && !known.is_warned) return -1;
    note_passed(tensor);
    return 0;
}

int ext_tensor_kind(ext_kind_t *kind_p)
{
    PyObject *met = ext_call_helper("meet_torch", "()");
    Py_XDECREF(met);
    *kind_p = EXT_TORCH;
    return met != NULL ? 0 : -1;
}
