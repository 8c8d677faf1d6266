/* SPDX-License-Identifier: BSD-3-Clause */

/* The library's arithmetic, and what a device does of it. */
#include "ext_module.h"

#include "ext_args.h"
#include "ext_arrays.h"
#include "ext_buffer.h"
#include "ext_python.h"

/* Without a buffer: a program asks for it while it loads the weights of its experts. */
static PyObject *expert_range(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned experts, nranks, rank, first, count;
    if (!PyArg_ParseTuple(args, "III", &experts, &nranks, &rank)) return NULL;
    lib.expert_range(experts, nranks, rank, &first, &count);
    return Py_BuildValue("(II)", first, count);
}

/*
 * The four arrays of a layout, of the kind of topk_idx, as a new tuple, and where they are: tokens_per_rank [R],
 * tokens_per_node [nodes] and tokens_per_expert [E] int32, token_in_rank [T, R] uint8. What is in the tuple is the
 * tuple's, so an error has only that to drop.
 */
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
    PyObject *array, *map = NULL, *owners;
    if (!PyArg_ParseTuple(args, "OIIIO", &array, &in.experts, &in.nranks, &in.ranks_per_node, &map)) return NULL;
    if (ext_args_matrix("topk_idx", array, EXT_HOST, EXT_ANY, EXT_ANY, EXT_INDEX_DTYPES, 0, &topk_idx) != 0)
        return NULL;
    if (in.nranks == 0) return PyErr_Format(PyExc_ValueError, "nranks: expected 1 or more, got 0");
    in.tokens = (uint64_t)topk_idx.rows, in.topk = (uint32_t)topk_idx.columns;
    in.topk_idx = topk_idx.data, in.topk_idx_stride = (size_t)topk_idx.stride, in.topk_idx_dtype = topk_idx.dtype;
    if (ext_args_ranks("owners", map == Py_None ? NULL : map, in.experts, &owners) != 0) return NULL;
    if (owners != NULL) in.owners = (const uint32_t *)(const void *)PyBytes_AS_STRING(owners);
    PyObject *arrays = new_arrays(topk_idx.element.kind, &in, &out);
    const xep_status_t status = arrays != NULL ? lib.layout(&in, &out) : XEP_OK;
    Py_XDECREF(owners);
    if (status >= 0) return arrays;
    Py_XDECREF(arrays);
    return ext_raise(status);
}

/* ---- on the device of a buffer ---- */

static const char layout_there_doc[] =
    "layout($self, topk_idx, tokens_per_rank=None, tokens_per_expert=None, token_in_rank=None, *,\n"
    "tokens_per_node=None, ranks_per_node=0, stream=None)\n--\n\n"
    "memory=\"cuda\": what xep.layout() counts, of the ranks of the group and the experts of the buffer, by one\n"
    "kernel, on stream (as in dispatch); returns at once. Local.\n\n"
    "topk_idx: [T, K] int64 or int32: expert, or -1; what is neither counts for nobody. Arrays that are filled, or\n"
    "None: tokens_per_rank [R], tokens_per_expert [E], tokens_per_node [M] int32, token_in_rank [T, R] uint8.";

enum { TOPK_IDX, PER_RANK, PER_EXPERT, IN_RANK, PER_NODE, RANKS_PER_NODE, STREAM, COUNT };

_Static_assert(COUNT <= EXT_MOST_PARAMETERS, "no room for a name");
static ext_signature_t signature = {"layout", layout_there_doc, COUNT, 0, {NULL}};

/*
 * The arrays of the caller, of the extents that args have. Where none was given out keeps NULL, and the library leaves
 * that one out. For the stride of token_in_rank out has no field, so its rows are dense. -1: an exception is set.
 */
static int read_outputs(ext_where_t where, PyObject *const *values, const xep_layout_args_t *args, xep_layout_t *out)
{
    const Py_ssize_t ranks = (Py_ssize_t)args->nranks;
    const Py_ssize_t nodes = args->ranks_per_node == 0 ? 1 : (ranks - 1) / args->ranks_per_node + 1;
    ext_matrix_t in_rank = {.data = NULL};
    if (ext_args_vector("tokens_per_rank", values[PER_RANK], where, ranks, XEP_INT32, &out->tokens_per_rank) != 0 ||
        ext_args_vector("tokens_per_node", values[PER_NODE], where, nodes, XEP_INT32, &out->tokens_per_node) != 0 ||
        ext_args_vector("tokens_per_expert", values[PER_EXPERT], where, (Py_ssize_t)args->experts, XEP_INT32,
                        &out->tokens_per_expert) != 0)
        return -1;
    if (values[IN_RANK] == NULL) return 0;
    if (ext_args_output("token_in_rank", values[IN_RANK], where, (Py_ssize_t)args->tokens, ranks, XEP_U8, &in_rank) !=
        0)
        return -1;
    if (in_rank.rows > 1 && in_rank.stride != ranks) {
        PyErr_Format(PyExc_ValueError, "token_in_rank: expected dense rows of %zd, got %zd bytes between them", ranks,
                     in_rank.stride);
        return -1;
    }
    out->token_in_rank = (uint8_t *)in_rank.data;
    return 0;
}

/*
 * Nothing is read back: the counts stay on the device, and the call returns when the kernel is in the stream. Nothing
 * keeps the arrays until it has run, as with any kernel of the program's own.
 */
static PyObject *layout_there(PyObject *self, PyObject *const *given, Py_ssize_t nargs, PyObject *keywords)
{
    const ext_buffer_t *buffer = (const ext_buffer_t *)self;
    xep_layout_args_t args = XEP_LAYOUT_ARGS_INIT;
    xep_layout_t out = XEP_LAYOUT_INIT;
    PyObject *values[COUNT];
    ext_matrix_t topk_idx;
    if (ext_args_read(&signature, given, nargs, keywords, values) != 0) return NULL;
    args.buffer = ext_buffer_get((ext_buffer_t *)self);
    if (args.buffer == NULL) return NULL;
    if (ext_args_matrix("topk_idx", values[TOPK_IDX] != NULL ? values[TOPK_IDX] : Py_None, buffer->where, EXT_ANY,
                        EXT_ANY, EXT_INDEX_DTYPES, 0, &topk_idx) != 0 ||
        ext_args_number32("ranks_per_node", values[RANKS_PER_NODE], &args.ranks_per_node) != 0 ||
        ext_args_stream(values[STREAM], &topk_idx.element, &args.stream) != 0)
        return NULL;
    args.tokens = (uint64_t)topk_idx.rows, args.topk = (uint32_t)topk_idx.columns;
    args.topk_idx = topk_idx.data, args.topk_idx_stride = (size_t)topk_idx.stride, args.topk_idx_dtype = topk_idx.dtype;
    args.experts = buffer->experts, args.nranks = buffer->group->nranks;
    if (read_outputs(buffer->where, values, &args, &out) != 0) return NULL;
    xep_status_t status;
    Py_BEGIN_ALLOW_THREADS
    status = lib.layout(&args, &out);
    Py_END_ALLOW_THREADS
    return ext_none_or_raise(status);
}

PyMethodDef ext_layout_functions[] = {
    {"expert_range", expert_range, METH_VARARGS, "First expert and number of experts of a rank."},
    {"layout", layout, METH_VARARGS, "The arrays of a Layout."},
    {NULL, NULL, 0, NULL},
};

PyMethodDef ext_layout_methods[] = {
    {"layout", EXT_KEYWORDS(layout_there), layout_there_doc},
    {NULL, NULL, 0, NULL},
};
