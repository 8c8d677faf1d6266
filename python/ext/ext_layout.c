/* SPDX-License-Identifier: BSD-3-Clause */

/* The library's arithmetic without a group: nothing here waits, so the GIL is kept. */
#include "ext_layout.h"

#include "ext_args.h"

static PyObject *expert_range(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned experts, nranks, rank, first, count;
    if (!PyArg_ParseTuple(args, "III", &experts, &nranks, &rank)) return NULL;
    lib.expert_range(experts, nranks, rank, &first, &count);
    return Py_BuildValue("(II)", first, count);
}

/* The four arrays of a layout, of the kind of topk_idx, and where they are. */
static PyObject *new_arrays(ext_kind_t kind, const xep_layout_args_t *args, xep_layout_t *out)
{
    const Py_ssize_t nodes = args->ranks_per_node == 0 ? 1 : (args->nranks - 1) / args->ranks_per_node + 1;
    const Py_ssize_t shapes[4][2] = {{args->nranks},
                                     {nodes},
                                     {args->experts},
                                     {(Py_ssize_t)args->tokens, args->nranks}};
    char *data[4];
    PyObject *arrays = PyTuple_New(4);
    for (int i = 0; arrays != NULL && i < 4; i++) {
        const ext_element_t element = {.kind = kind, .dtype = i < 3 ? XEP_INT32 : XEP_U8};
        PyObject *array = ext_array_new(&element, i < 3 ? 1 : 2, shapes[i], &data[i]);
        if (array == NULL) Py_CLEAR(arrays);
        else PyTuple_SET_ITEM(arrays, i, array);
    }
    if (arrays == NULL) return NULL;
    out->tokens_per_rank = (int32_t *)data[0], out->tokens_per_node = (int32_t *)data[1];
    out->tokens_per_expert = (int32_t *)data[2], out->token_in_rank = (uint8_t *)data[3];
    return arrays;
}

/*
 * ranks_per_node of 0 is one node, as in the library. nranks of 0 is refused before the shapes are made of it, all else
 * by the library.
 */
static PyObject *layout(PyObject *Py_UNUSED(module), PyObject *args)
{
    xep_layout_args_t in = XEP_LAYOUT_ARGS_INIT;
    xep_layout_t out = XEP_LAYOUT_INIT;
    ext_matrix_t topk_idx;
    PyObject *array;
    if (!PyArg_ParseTuple(args, "OIII", &array, &in.experts, &in.nranks, &in.ranks_per_node)) return NULL;
    if (ext_args_matrix("topk_idx", array, EXT_HOST, EXT_ANY, EXT_ANY, EXT_INDEX_DTYPES, 0, &topk_idx) != 0)
        return NULL;
    if (in.nranks == 0) return PyErr_Format(PyExc_ValueError, "nranks: expected 1 or more, got 0");
    in.tokens = (uint64_t)topk_idx.rows, in.topk = (uint32_t)topk_idx.columns;
    in.topk_idx = topk_idx.data, in.topk_idx_stride = (size_t)topk_idx.stride, in.topk_idx_dtype = topk_idx.dtype;
    PyObject *arrays = new_arrays(topk_idx.element.kind, &in, &out);
    const xep_status_t status = arrays != NULL ? lib.layout(&in, &out) : XEP_OK;
    if (status >= 0) return arrays;
    Py_XDECREF(arrays);
    return ext_raise(status);
}

static PyMethodDef functions[] = {
    {"expert_range", expert_range, METH_VARARGS, "First expert and number of experts of a rank."},
    {"layout", layout, METH_VARARGS, "The arrays of a Layout."},
    {NULL, NULL, 0, NULL},
};

int ext_layout_ready(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
