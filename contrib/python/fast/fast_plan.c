/* SPDX-License-Identifier: BSD-3-Clause */

/* Calls that went well, and whether another one is like it. */
#include "fast.h"

#include <stddef.h>
#include <string.h>

/** What an argument has to be, to be like that of the plan. */
typedef enum {
    ROLE_CONSTANT, /* the same value */
    ROLE_TOKENS,   /* an array of the same look with a row for each token */
    ROLE_ROWS,     /* ... for each received row, or more, as far as the slot has room */
    ROLE_WHOLE,    /* an array of the same look and extents */
    ROLE_CACHED    /* a handle of this buffer with as many tokens */
} role_t;

typedef struct parameter {
    const char *name;
    role_t role;   /* where it is an array, or a handle */
    size_t offset; /* of its address in the struct */
} parameter_t;

typedef struct argument {
    role_t role;
    size_t offset;
    PyObject *constant;
    fast_array_t look;
} argument_t;

enum { ARGUMENTS = 20, PARAMETERS = 8 };

struct fast_plan {
    Py_ssize_t count, positional;
    PyObject *names;
    argument_t arguments[ARGUMENTS];
    fast_args_t args;
    /* of the dispatch that is made, or combined */
    Py_ssize_t topk, hidden;
    PyObject *adapter, *native;
    /* of what combine returns */
    Py_ssize_t out, out_weights; /* among the arguments; -1: not given */
    Py_ssize_t width;
    fast_kind_t made_kind;
    PyObject *made_native, *made_weights_native;
};

/* The first ones may come without their names. */
static const parameter_t parameters[FAST_OPERATIONS][PARAMETERS] = {
    [FAST_DISPATCH] = {{"x", ROLE_TOKENS, offsetof(xep_dispatch_args_t, x)},
                       {"topk_idx", ROLE_TOKENS, offsetof(xep_dispatch_args_t, topk_idx)},
                       {"topk_weights", ROLE_TOKENS, offsetof(xep_dispatch_args_t, topk_weights)},
                       {"scales", ROLE_TOKENS, offsetof(xep_dispatch_args_t, scales)},
                       {"expert_stats", ROLE_WHOLE, offsetof(xep_dispatch_args_t, expert_stats)},
                       {"wait_ns", ROLE_WHOLE, offsetof(xep_dispatch_args_t, wait_ns)},
                       {"cached", ROLE_CACHED, offsetof(xep_dispatch_args_t, cached)}},
    [FAST_COMBINE] = {{"x", ROLE_ROWS, offsetof(xep_combine_args_t, x)},
                      {"topk_weights", ROLE_ROWS, offsetof(xep_combine_args_t, topk_weights)},
                      {"weights", ROLE_TOKENS, offsetof(xep_combine_args_t, weights)},
                      {"bias", ROLE_TOKENS, offsetof(xep_combine_args_t, bias)},
                      {"out", ROLE_TOKENS, offsetof(xep_combine_args_t, out)},
                      {"out_weights", ROLE_TOKENS, offsetof(xep_combine_args_t, out_weights)},
                      {"wait_ns", ROLE_WHOLE, offsetof(xep_combine_args_t, wait_ns)}},
};

static const size_t args_sizes[FAST_OPERATIONS] = {
    [FAST_DISPATCH] = sizeof(xep_dispatch_args_t),
    [FAST_COMBINE] = sizeof(xep_combine_args_t),
};

/* ---- finding ---- */

/** The arguments of a call; each is looked at once, for all plans. */
typedef struct looks {
    const fast_call_t *call;
    int known[ARGUMENTS]; /* 0: not looked at, 1: an array, -1: none */
    fast_array_t arrays[ARGUMENTS];
} looks_t;

static const fast_array_t *look_at(looks_t *looks, Py_ssize_t i)
{
    if (looks->known[i] == 0) looks->known[i] = fast_array_look(looks->call->values[i], &looks->arrays[i]) ? 1 : -1;
    return looks->known[i] > 0 ? &looks->arrays[i] : NULL;
}

static int has_names(const fast_plan_t *plan, PyObject *names)
{
    if (plan->names == names) return 1;
    if (plan->names == NULL || names == NULL) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plan->names); i++)
        if (PyTuple_GET_ITEM(plan->names, i) != PyTuple_GET_ITEM(names, i)) return 0;
    return 1;
}

/* But for the first extent; and for the stride along it, where there is nothing along it. */
static int looks_alike(const fast_array_t *a, const fast_array_t *b)
{
    if (a->kind != b->kind || a->type != b->type || a->ndim != b->ndim || a->writable != b->writable) return 0;
    for (int i = 0; i < a->ndim; i++)
        if ((i > 0 && a->shape[i] != b->shape[i]) || (a->strides[i] != b->strides[i] && (i > 0 || b->shape[0] > 1))) return 0;
    return 1;
}

static int has_rows(const fast_array_t *look, const fast_array_t *seen, fast_handle_t *handle)
{
    if (!fast_handle_is_counted(handle)) return 0;
    const xep_recv_t *recv = handle->recv;
    size_t rows = (size_t)seen->shape[0];
    if (seen->ndim == 3)
        return look->shape[0] == seen->shape[0] && rows * (size_t)seen->shape[1] == recv->capacity &&
               recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED;
    return rows <= recv->capacity && rows >= (recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED ? recv->capacity : recv->rows);
}

static int is_handle(PyObject *object, const fast_buffer_t *buffer, Py_ssize_t tokens, Py_ssize_t topk)
{
    fast_handle_t *handle = (fast_handle_t *)object;
    return Py_TYPE(object) == fast_module.handle && handle->buffer == (PyObject *)buffer && handle->memory != NULL &&
           handle->memory->handle != NULL && handle->tokens == tokens && handle->topk == topk;
}

/* Types of which a value cannot change; others (enumerations) are the same object or none. */
static int is_same(PyObject *a, PyObject *b)
{
    if (a == b) return 1;
    if (Py_TYPE(a) != Py_TYPE(b) || !(PyLong_CheckExact(a) || PyFloat_CheckExact(a) || PyUnicode_CheckExact(a))) return 0;
    return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

static void put(fast_args_t *args, size_t offset, const void *address)
{
    memcpy((char *)args + offset, &address, sizeof address);
}

/* tokens: -1 before the first array that says how many there are. */
static int fits(const fast_plan_t *plan, looks_t *looks, const fast_buffer_t *buffer, fast_handle_t *handle, Py_ssize_t tokens,
                fast_args_t *args)
{
    memcpy(args, &plan->args, sizeof *args);
    for (Py_ssize_t i = 0; i < plan->count; i++) {
        const argument_t *argument = &plan->arguments[i];
        PyObject *value = looks->call->values[i];
        if (argument->role == ROLE_CONSTANT) {
            if (!is_same(argument->constant, value)) return 0;
            continue;
        }
        if (argument->role == ROLE_CACHED) {
            if (!is_handle(value, buffer, tokens, plan->topk)) return 0;
            put(args, argument->offset, ((fast_handle_t *)value)->memory->handle);
            continue;
        }
        const fast_array_t *seen = look_at(looks, i);
        if (seen == NULL || !looks_alike(&argument->look, seen)) return 0;
        if (argument->role == ROLE_TOKENS && tokens < 0) tokens = seen->shape[0];
        if (argument->role == ROLE_TOKENS && seen->shape[0] != tokens) return 0;
        if (argument->role == ROLE_WHOLE && seen->shape[0] != argument->look.shape[0]) return 0;
        if (argument->role == ROLE_ROWS && !has_rows(&argument->look, seen, handle)) return 0;
        put(args, argument->offset, seen->data);
    }
    if (handle == NULL) args->dispatch.tokens = (uint64_t)tokens;
    return 1;
}

static int is_of(const fast_plan_t *plan, const fast_handle_t *handle)
{
    return handle == NULL || (plan->topk == handle->topk && plan->hidden == handle->hidden && plan->adapter == handle->adapter);
}

const fast_plan_t *fast_plan_find(const fast_buffer_t *buffer, fast_operation_t operation, const fast_call_t *call,
                                  fast_handle_t *handle, fast_args_t *args_p)
{
    looks_t looks;
    if (call->count > ARGUMENTS || (handle != NULL && handle->tokens == 0)) return NULL;
    looks.call = call;
    memset(looks.known, 0, sizeof looks.known);
    for (int i = 0; i < FAST_PLANS; i++) {
        const fast_plan_t *plan = buffer->plans[operation][i];
        if (plan == NULL || plan->count != call->count || plan->positional != call->positional) continue;
        if (!has_names(plan, call->names) || !is_of(plan, handle)) continue;
        if (fits(plan, &looks, buffer, handle, handle != NULL ? handle->tokens : -1, args_p)) return plan;
    }
    return NULL;
}

/* ---- learning ---- */

static const parameter_t *parameter_of(fast_operation_t operation, const fast_call_t *call, Py_ssize_t i)
{
    const parameter_t *known = parameters[operation];
    if (i < call->positional) return i < PARAMETERS && known[i].name != NULL ? &known[i] : NULL;
    PyObject *name = PyTuple_GET_ITEM(call->names, i - call->positional);
    for (int p = 0; p < PARAMETERS && known[p].name != NULL; p++)
        if (PyUnicode_CompareWithASCIIString(name, known[p].name) == 0) return &known[p];
    return NULL;
}

/* Python took the stride of a single row for the dense one, whatever it is. */
static int has_true_stride(const fast_array_t *look)
{
    return look->shape[0] > 1 || look->ndim != 2 || look->strides[0] == look->shape[1] * look->unit;
}

static int is_constant(PyObject *value)
{
    return value == Py_None || PyLong_Check(value) || PyFloat_CheckExact(value) || PyUnicode_CheckExact(value);
}

static int learn_argument(argument_t *argument, const parameter_t *parameter, PyObject *value, const void *filled)
{
    const void *address = NULL;
    if (is_constant(value)) {
        Py_INCREF(value);
        *argument = (argument_t){.role = ROLE_CONSTANT, .constant = value};
        return 1;
    }
    if (parameter == NULL) return 0;
    argument->role = parameter->role;
    argument->offset = parameter->offset;
    memcpy(&address, (const char *)filled + parameter->offset, sizeof address);
    if (parameter->role == ROLE_CACHED) return Py_TYPE(value) == fast_module.handle;
    if (!fast_array_look(value, &argument->look) || argument->look.data != address || !has_true_stride(&argument->look)) return 0;
    fast_type_keep(argument->look.kind, argument->look.type);
    return 1;
}

static void forget_argument(argument_t *argument)
{
    if (argument->role == ROLE_CONSTANT)
        Py_XDECREF(argument->constant);
    else if (argument->role != ROLE_CACHED)
        fast_type_drop(argument->look.kind, argument->look.type);
}

static int learn_arguments(fast_plan_t *plan, fast_operation_t operation, const fast_call_t *call)
{
    plan->positional = call->positional;
    Py_XINCREF(call->names);
    plan->names = call->names;
    for (; plan->count < call->count; plan->count++) {
        const parameter_t *parameter = parameter_of(operation, call, plan->count);
        if (!learn_argument(&plan->arguments[plan->count], parameter, call->values[plan->count], &plan->args)) return 0;
    }
    return 1;
}

static void learn_handle(fast_plan_t *plan, const fast_handle_t *handle)
{
    plan->topk = handle->topk;
    plan->hidden = handle->hidden;
    plan->adapter = handle->adapter;
    plan->native = handle->native;
    Py_XINCREF(plan->adapter);
    Py_XINCREF(plan->native);
}

/** Where the argument is that is put at the offset; -1: nowhere. */
static Py_ssize_t find_argument(const fast_plan_t *plan, size_t offset)
{
    for (Py_ssize_t i = 0; i < plan->count; i++)
        if (plan->arguments[i].role != ROLE_CONSTANT && plan->arguments[i].offset == offset) return i;
    return -1;
}

static PyObject *learn_native(PyObject *array, fast_array_t *look)
{
    if (!fast_array_look(array, look)) return NULL;
    return PyObject_GetAttrString(array, "dtype");
}

/* What is made for one call is made alike for the next. */
static int learn_result(fast_plan_t *plan, PyObject *result)
{
    const int has_weights = plan->args.combine.topk_weights != NULL;
    fast_array_t look;
    plan->out = find_argument(plan, offsetof(xep_combine_args_t, out));
    plan->out_weights = find_argument(plan, offsetof(xep_combine_args_t, out_weights));
    if (has_weights != (PyTuple_CheckExact(result) && PyTuple_GET_SIZE(result) == 2)) return 0;
    if (plan->out < 0) {
        plan->made_native = learn_native(has_weights ? PyTuple_GET_ITEM(result, 0) : result, &look);
        if (plan->made_native == NULL || look.ndim != 2) return 0;
        plan->made_kind = look.kind;
        plan->width = look.shape[1];
    }
    if (has_weights && plan->out_weights < 0) {
        plan->made_weights_native = learn_native(PyTuple_GET_ITEM(result, 1), &look);
        if (plan->made_weights_native == NULL || look.ndim != 2) return 0;
        plan->made_kind = look.kind;
    }
    return 1;
}

static int learn(fast_plan_t *plan, fast_operation_t operation, const fast_call_t *call, const fast_handle_t *handle, PyObject *result)
{
    if (plan->args.dispatch.size != args_sizes[operation] || !learn_arguments(plan, operation, call)) return 0;
    learn_handle(plan, handle);
    if (operation == FAST_COMBINE) return learn_result(plan, result);
    plan->args.dispatch.recv_rows_p = NULL;
    return find_argument(plan, offsetof(xep_dispatch_args_t, x)) == 0; /* the first to say T, and what is sent */
}

void fast_plan_learn(fast_buffer_t *buffer, fast_operation_t operation, const fast_call_t *call, fast_handle_t *handle,
                     PyObject *result)
{
    if (call->count > ARGUMENTS || buffer->structs[operation] == NULL) return;
    fast_plan_t *plan = PyMem_Calloc(1, sizeof *plan);
    if (plan == NULL) return;
    memcpy(&plan->args, buffer->structs[operation], args_sizes[operation]);
    if (!learn(plan, operation, call, handle, result)) {
        PyErr_Clear();
        fast_plan_free(plan);
        return;
    }
    fast_plan_t **place = &buffer->plans[operation][buffer->next_plan[operation]++ % FAST_PLANS], *old = *place;
    *place = plan;
    fast_plan_free(old);
}

void fast_plan_free(fast_plan_t *plan)
{
    if (plan == NULL) return;
    for (Py_ssize_t i = 0; i < plan->count; i++) forget_argument(&plan->arguments[i]);
    Py_XDECREF(plan->names);
    Py_XDECREF(plan->adapter);
    Py_XDECREF(plan->native);
    Py_XDECREF(plan->made_native);
    Py_XDECREF(plan->made_weights_native);
    PyMem_Free(plan);
}

/* ---- what a call makes ---- */

PyObject *fast_plan_handle(const fast_plan_t *plan, fast_buffer_t *buffer, fast_memory_t *memory, Py_ssize_t tokens)
{
    fast_handle_t *handle = (fast_handle_t *)fast_module.handle->tp_alloc(fast_module.handle, 0);
    if (handle == NULL) {
        Py_DECREF(memory);
        return NULL;
    }
    memory->owner = handle;
    handle->memory = memory;
    handle->buffer = (PyObject *)buffer;
    handle->tokens = tokens;
    handle->topk = plan->topk;
    handle->hidden = plan->hidden;
    handle->nranks = buffer->nranks;
    handle->adapter = plan->adapter;
    handle->native = plan->native;
    handle->kind = plan->arguments[0].look.kind; /* x */
    handle->type = plan->arguments[0].look.type;
    Py_INCREF(handle->buffer);
    Py_INCREF(handle->adapter);
    Py_INCREF(handle->native);
    return (PyObject *)handle;
}

/* The array of the call, or a new one. */
static PyObject *take(const fast_plan_t *plan, const fast_call_t *call, Py_ssize_t given, PyObject *native, Py_ssize_t rows,
                      Py_ssize_t columns, const void **address_p)
{
    fast_array_t look;
    if (given >= 0) {
        Py_INCREF(call->values[given]);
        return call->values[given];
    }
    PyObject *array = fast_array_empty(plan->made_kind, fast_module.adapters[plan->made_kind], native, rows, columns);
    if (array == NULL) return NULL;
    if (!fast_array_look(array, &look)) {
        Py_DECREF(array);
        PyErr_SetString(PyExc_SystemError, "xep: a new array is not of the kind that was asked for");
        return NULL;
    }
    *address_p = look.data;
    return array;
}

PyObject *fast_plan_result(const fast_plan_t *plan, const fast_call_t *call, const fast_handle_t *handle, xep_combine_args_t *args)
{
    const void *address = args->out;
    PyObject *out = take(plan, call, plan->out, plan->made_native, handle->tokens, plan->width, &address);
    if (out == NULL) return NULL;
    args->out = (void *)(uintptr_t)address;
    if (args->topk_weights == NULL) return out;
    address = args->out_weights;
    PyObject *weights = take(plan, call, plan->out_weights, plan->made_weights_native, handle->tokens, plan->topk, &address);
    args->out_weights = (void *)(uintptr_t)address;
    PyObject *result = weights != NULL ? PyTuple_Pack(2, out, weights) : NULL;
    Py_DECREF(out);
    Py_XDECREF(weights);
    return result;
}
