/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Buffer and buffer_size() are read by the same function, so a program learns the size of just the buffer that it would
 * make. What was not given stays as the _INIT macro has it, which is the library's default. What is allowed is for the
 * library to say, too: here only what does not fit the type of its field is refused.
 */
#include "ext_params.h"

#include "ext_args.h"
#include "ext_module.h"
#include "ext_python.h"

/* In the order of the signature. */
enum {
    GROUP,
    EXPERTS,
    TOPK,
    HIDDEN,
    TOKENS,
    MODE,
    DTYPE,
    COMBINE_DTYPE,
    SCALES,
    RECV_ROWS,
    SLOTS,
    THREADS,
    MULTIPROCESSORS,
    TIMEOUT,
    MEMORY,
    ON_FAILURE,
    SEND_MEMORY,
    PATH,
    PASS_ROWS,
    PIECES,
    OWNERS,
    REPLICAS,
    BALANCE,
    BY_SELECTION,
    SERVED,
    COUNT
};

_Static_assert(COUNT <= EXT_MOST_PARAMETERS, "no room for a name");
static const char parameters[] =
    "(group, experts, topk, hidden, tokens, *, mode, dtype, combine_dtype, scales, recv_rows, slots, threads, "
    "multiprocessors, timeout, memory, on_failure, send_memory, path, pass_rows, pieces, owners, replicas, "
    "balance, sum_by_selection, served)";

static ext_signature_t signature = {"Buffer", parameters, COUNT, 0, {NULL}};

/* The arrays are bytes, in a list that the caller keeps for the call, and a plan behind them; NULL: there is none. */
static int read_arrays(PyObject *map, PyObject *list, PyObject *plan, PyObject **arrays_p, xep_buffer_params_t *params)
{
    PyObject *owners = NULL, *replicas = NULL;
    *arrays_p = NULL;
    if (map == NULL && list == NULL && plan == NULL) return 0;
    if (ext_args_ranks("owners", map, params->experts, &owners) != 0 ||
        ext_args_replicas("replicas", list, &replicas) != 0) {
        Py_XDECREF(owners);
        return -1;
    }
    if (owners != NULL) params->owners = (const uint32_t *)(const void *)PyBytes_AS_STRING(owners);
    if (replicas != NULL) {
        params->replicas = (const xep_replica_t *)(const void *)PyBytes_AS_STRING(replicas);
        params->nreplicas = (uint32_t)((size_t)PyBytes_GET_SIZE(replicas) / sizeof *params->replicas);
    }
    *arrays_p = Py_BuildValue("[OOO]", owners != NULL ? owners : Py_None, replicas != NULL ? replicas : Py_None,
                              plan != NULL ? plan : Py_None);
    Py_XDECREF(owners);
    Py_XDECREF(replicas);
    return *arrays_p != NULL ? 0 : -1;
}

/*
 * values are the caller's for the length of the call. A group that was not given is NULL in *group_p: create() refuses
 * that, and buffer_size() leaves nranks 0, which the library refuses.
 */
int ext_params_read(PyObject *const *args, Py_ssize_t nargs, PyObject *keywords, PyObject **group_p,
                    PyObject **arrays_p, xep_buffer_params_t *params)
{
    PyObject *values[COUNT], *plan = NULL;
    if (ext_args_read(&signature, args, nargs, keywords, values) != 0) return -1;
    if (values[MODE] != NULL && (params->mode = PyUnicode_AsUTF8(values[MODE])) == NULL) return -1;
    if (ext_args_number32("experts", values[EXPERTS], &params->experts) != 0 ||
        ext_args_number32("topk", values[TOPK], &params->topk) != 0 ||
        ext_args_number32("hidden", values[HIDDEN], &params->hidden) != 0 ||
        ext_args_number32("scales", values[SCALES], &params->scales) != 0 ||
        ext_args_number32("slots", values[SLOTS], &params->slots) != 0 ||
        ext_args_number32("threads", values[THREADS], &params->threads) != 0 ||
        ext_args_number32("multiprocessors", values[MULTIPROCESSORS], &params->multiprocessors) != 0 ||
        ext_args_number("tokens", values[TOKENS], INT64_MAX, &params->tokens) != 0 ||
        ext_args_number("recv_rows", values[RECV_ROWS], INT64_MAX, &params->recv_rows) != 0 ||
        ext_args_dtype("dtype", values[DTYPE], &params->dtype) != 0 ||
        ext_args_dtype("combine_dtype", values[COMBINE_DTYPE], &params->combine_dtype) != 0 ||
        ext_args_word(EXT_MEMORY, values[MEMORY], &params->memory) != 0 ||
        ext_args_word(EXT_ON_FAILURE, values[ON_FAILURE], &params->on_failure) != 0 ||
        ext_args_flag(values[SEND_MEMORY], XEP_BUFFER_SEND_MEMORY, &params->flags) != 0 ||
        ext_args_flag(values[PIECES], XEP_BUFFER_PIECES, &params->flags) != 0 ||
        ext_args_flag(values[BY_SELECTION], XEP_BUFFER_SUM_BY_SELECTION, &params->flags) != 0 ||
        ext_args_flag(values[SERVED], XEP_BUFFER_SERVED, &params->flags) != 0 ||
        ext_args_word(EXT_PATH, values[PATH], &params->path) != 0 ||
        ext_args_number("pass_rows", values[PASS_ROWS], INT64_MAX, &params->pass_rows) != 0 ||
        ext_args_timeout(values[TIMEOUT], &params->timeout_ms) != 0 ||
        ext_plan_read(values[BALANCE], &plan, params) != 0)
        return -1;
    *group_p = values[GROUP];
    const int ret = read_arrays(values[OWNERS], values[REPLICAS], plan, arrays_p, params);
    Py_XDECREF(plan);
    return ret;
}

/* A new tuple. Nothing waits here, so the GIL is kept, also while the library loads the mode. */
static PyObject *buffer_size(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;
    PyObject *count, *arrays;
    uint64_t nranks = 0;
    if (ext_params_read(args, nargs, keywords, &count, &arrays, &params) != 0) return NULL;
    const int is_number = ext_args_number("nranks", count, UINT32_MAX, &nranks) == 0;
    const xep_status_t status = is_number ? lib.buffer_size(&params, (uint32_t)nranks, &size) : XEP_OK;
    Py_XDECREF(arrays);
    if (!is_number) return NULL;
    return status < 0 ? ext_raise(status)
                      : Py_BuildValue("(KKKK)", size.bytes, size.recv_rows, size.node_bytes, size.device_bytes);
}

PyMethodDef ext_params_functions[] = {
    {"buffer_size", EXT_KEYWORDS(buffer_size),
     "(bytes, recv_rows, node_bytes, device_bytes) of a buffer of so many ranks, instead of its group."},
    {NULL, NULL, 0, NULL},
};
