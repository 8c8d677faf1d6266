/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A check fills in defaults as it goes, so that behind api.c no field has to be looked at for 0 again. Strides become
 * bytes, never 0; what a size does not cover was set to 0 before (api_check_require.c). Numbers are compared in 64
 * bits: sums and products of what a user passes may not fit in the type of the field.
 */
#include "api_check.h"

#include <stdio.h>

#include "error.h"
#include "owners.h"
#include "request.h"

/* MULTIPROCESSORS: of a device, where none are asked for. */
enum { MAX_THREADS = 1024, MAX_SLOTS = 4096, MULTIPROCESSORS = 16 };

/* ---- pieces ---- */

/* Comes behind the defaults: XEP_DTYPE_DEFAULT is no element type here, and has no size. */
static xep_status_t check_dtype(const char *name, xep_dtype_t dtype)
{
    if (xep_dtype_size(dtype) != 0) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID, "invalid %s: %d (an element type, XEP_BF16 to XEP_E2M1X2)", name, (int)dtype);
}

/* rows of row_bytes: 0 becomes dense; a stride must hold a row and keep elements aligned */
static xep_status_t check_stride(const char *name, size_t *stride_p, uint64_t row_bytes, size_t elem)
{
    if (*stride_p == 0) *stride_p = row_bytes;
    if (*stride_p < row_bytes)
        return xep_fail(XEP_ERR_INVALID, "invalid %s_stride: %zu bytes (at least the %llu of a row)", name, *stride_p,
                        (unsigned long long)row_bytes);
    if (*stride_p % elem != 0)
        return xep_fail(XEP_ERR_INVALID, "invalid %s_stride: %zu bytes (a multiple of the %zu of an element)", name,
                        *stride_p, elem);
    return XEP_OK;
}

/* An array without rows may be NULL, but not misaligned: that is a mistake, found before there are rows. */
xep_status_t xep_check_array(const char *name, const void *pointer, uint64_t rows, size_t elem)
{
    if (pointer == NULL && rows > 0)
        return xep_fail(XEP_ERR_INVALID, "%s is NULL, with %llu rows", name, (unsigned long long)rows);
    if ((uintptr_t)pointer % elem != 0)
        return xep_fail(XEP_ERR_INVALID, "misaligned %s: %p (its elements have %zu bytes)", name, pointer, elem);
    return XEP_OK;
}

/* No object is larger: a negative stride that became a size_t, or a product that does not fit 64 bits. */
static xep_status_t check_extent(const char *name, size_t stride, uint64_t rows, uint64_t row_bytes)
{
    uint64_t apart;
    if (rows <= 1 || (!__builtin_mul_overflow(rows - 1, stride, &apart) && apart <= PTRDIFF_MAX - row_bytes))
        return XEP_OK;
    return xep_fail(XEP_ERR_INVALID, "invalid %s_stride: %zu bytes (%llu rows must fit in memory)", name, stride,
                    (unsigned long long)rows);
}

xep_status_t xep_check_matrix(const char *name, const void *pointer, size_t *stride_p, uint64_t rows,
                              uint64_t row_bytes, size_t elem)
{
    xep_status_t status = xep_check_array(name, pointer, rows, elem);
    if (status == XEP_OK) status = check_stride(name, stride_p, row_bytes, elem);
    return status == XEP_OK ? check_extent(name, *stride_p, rows, row_bytes) : status;
}

/* Both, because torch has int64 where other frameworks have int32, and a conversion would cost a pass over topk_idx. */
xep_status_t xep_check_topk_idx(const void *topk_idx, size_t *stride_p, xep_dtype_t *dtype_p, uint64_t tokens,
                                uint32_t topk)
{
    if (*dtype_p == XEP_DTYPE_DEFAULT) *dtype_p = XEP_INT64;
    if (*dtype_p != XEP_INT64 && *dtype_p != XEP_INT32)
        return xep_fail(XEP_ERR_INVALID, "invalid topk_idx_dtype: %s (int64 or int32)", xep_dtype_name(*dtype_p));
    const size_t elem = xep_dtype_size(*dtype_p);
    return xep_check_matrix("topk_idx", topk_idx, stride_p, tokens, topk * elem, elem);
}

/* ---- buffer ---- */

/* A combine sums rows, so its elements are those that can be summed; a dispatch only moves them and takes any. */
static xep_status_t check_buffer_types(xep_buffer_params_t *p)
{
    if (p->dtype == XEP_DTYPE_DEFAULT) p->dtype = XEP_BF16;
    if (p->combine_dtype == XEP_DTYPE_DEFAULT) p->combine_dtype = XEP_BF16;
    if (p->combine_dtype != XEP_BF16 && p->combine_dtype != XEP_FP16 && p->combine_dtype != XEP_FP32)
        return xep_fail(XEP_ERR_INVALID, "invalid combine_dtype: %s (bf16, fp16 or fp32)",
                        xep_dtype_name(p->combine_dtype));
    return check_dtype("dtype", p->dtype);
}

/* Checks each field alone. Whether the resulting sizes fit in 64 bits shows when a heap is laid out. */
static xep_status_t check_buffer_shape(const xep_buffer_params_t *p, uint32_t nranks)
{
    if (nranks == 0 || nranks > XEP_MOST_RANKS)
        return xep_fail(XEP_ERR_INVALID, "invalid nranks: %u (1 to %d)", nranks, XEP_MOST_RANKS);
    if (p->experts == 0 || p->experts > XEP_MOST_EXPERTS)
        return xep_fail(XEP_ERR_INVALID, "invalid experts: %u (1 to %d)", p->experts, XEP_MOST_EXPERTS);
    if (p->topk == 0 || p->topk > p->experts)
        return xep_fail(XEP_ERR_INVALID, "invalid topk: %u (1 to %u, the experts)", p->topk, p->experts);
    if (p->hidden == 0) return xep_fail(XEP_ERR_INVALID, "invalid hidden: 0 (at least 1)");
    if (p->tokens > XEP_MOST_TOKENS)
        return xep_fail(XEP_ERR_INVALID, "invalid tokens: %llu (at most %d)", (unsigned long long)p->tokens,
                        XEP_MOST_TOKENS);
    if (p->slots > MAX_SLOTS) return xep_fail(XEP_ERR_INVALID, "invalid slots: %u (at most %d)", p->slots, MAX_SLOTS);
    if (p->threads == 0 || p->threads > MAX_THREADS)
        return xep_fail(XEP_ERR_INVALID, "invalid threads: %u (1 to %d)", p->threads, MAX_THREADS);
    if (p->multiprocessors > (p->memory == XEP_MEMORY_CUDA ? MAX_THREADS : 0))
        return xep_fail(XEP_ERR_INVALID, "invalid multiprocessors: %u (%s)", p->multiprocessors,
                        p->memory == XEP_MEMORY_CUDA ? "at most 1024" : "0 in host memory");
    return XEP_OK;
}

/*
 * config: of a buffer that is created that of its group, so that all buffers of a group have the same defaults. They
 * are filled in before the shape is checked, to which 0 is a mistake. A recv_rows of 0 stays: the mode knows what that
 * is. pass_rows is looked at where it is known which ranks pass rows on (path.c).
 */
xep_status_t xep_check_buffer(const xep_config_t *config, uint32_t nranks, xep_buffer_params_t *p)
{
    if (p->mode == NULL) p->mode = config->mode;
    if (p->slots == 0) p->slots = 2;
    if ((unsigned)p->memory > XEP_MEMORY_CUDA)
        return xep_fail(XEP_ERR_INVALID, "invalid memory: %d (XEP_MEMORY_HOST or XEP_MEMORY_CUDA)", (int)p->memory);
    if ((unsigned)p->on_failure > XEP_ON_FAILURE_MASK)
        return xep_fail(XEP_ERR_INVALID, "invalid on_failure: %d (one of XEP_ON_FAILURE_*)", (int)p->on_failure);
    if (p->flags >= 2 * XEP_BUFFER_SUM_BY_SELECTION) /* the highest bit */
        return xep_fail(XEP_ERR_INVALID, "invalid flags: %#x (XEP_BUFFER_*)", p->flags);
    if ((p->flags & XEP_BUFFER_SERVED) != 0 && p->memory != XEP_MEMORY_HOST)
        return xep_fail(XEP_ERR_UNSUPPORTED, "invalid flags: XEP_BUFFER_SERVED (in host memory only)");
    if ((unsigned)p->path > XEP_PATH_NODES)
        return xep_fail(XEP_ERR_INVALID, "invalid path: %d (one of XEP_PATH_*)", (int)p->path);
    if (p->path == XEP_PATH_AUTO) p->path = (xep_path_t)config->path;
    if (p->multiprocessors == 0 && p->memory == XEP_MEMORY_CUDA) p->multiprocessors = MULTIPROCESSORS;
    if (p->threads == 0) p->threads = config->threads;
    if (p->timeout_ms == 0) p->timeout_ms = config->timeout;
    xep_status_t status = check_buffer_types(p);
    if (status == XEP_OK) status = check_buffer_shape(p, nranks);
    if (status == XEP_OK) status = xep_owners_check(p->owners, p->experts, nranks);
    return status == XEP_OK ? xep_instances_check(p, nranks) : status;
}

/* ---- dispatch ---- */

/*
 * Rows that do not fit the buffer's. A dtype that was not given when the buffer was made is what is wrong most often.
 * field: of its params, which is made's; hidden: of the buffer.
 */
static xep_status_t refuse_row(uint32_t given, xep_dtype_t dtype, uint32_t hidden, xep_dtype_t made, const char *field)
{
    char remedy[96] = "";
    size_t elem = xep_dtype_size(dtype);
    if (elem > xep_dtype_size(made))
        snprintf(remedy, sizeof remedy, "%s; make it with params.%s %s", made == XEP_BF16 ? ", the default" : "", field,
                 xep_dtype_name(dtype));
    return xep_fail(XEP_ERR_INVALID,
                    "row too long: %u elements of %s, %llu bytes (at most %llu: the buffer was made for %u of %s%s)",
                    given, xep_dtype_name(dtype), (unsigned long long)given * elem,
                    (unsigned long long)hidden * xep_dtype_size(made), hidden, xep_dtype_name(made), remedy);
}

/* The bytes of a row must fit: a buffer made for bf16 takes fp8 rows of twice the elements. */
static xep_status_t check_rows(const xep_buffer_t *buffer, xep_dispatch_args_t *a)
{
    const xep_shape_t *shape = &buffer->shape;
    if (a->dtype == XEP_DTYPE_DEFAULT) a->dtype = buffer->params.dtype;
    if (a->hidden == 0) a->hidden = shape->hidden;
    xep_status_t status = check_dtype("dtype", a->dtype);
    if (status != XEP_OK) return status;
    if (a->tokens > buffer->most_tokens)
        return xep_fail(XEP_ERR_INVALID, "too many tokens: %llu (the buffer was made for %llu)",
                        (unsigned long long)a->tokens, (unsigned long long)buffer->most_tokens);
    size_t elem = xep_dtype_size(a->dtype);
    uint64_t row = (uint64_t)a->hidden * elem;
    if (row > (uint64_t)shape->hidden * shape->elem_bytes)
        return refuse_row(a->hidden, a->dtype, shape->hidden, buffer->params.dtype, "dtype");
    return xep_check_matrix("x", a->x, &a->x_stride, a->tokens, row, elem);
}

/*
 * [T][topk] both. Weights may be left out altogether: NULL is checked as an array without rows, so that its stride is
 * filled in all the same.
 */
static xep_status_t check_routing(const xep_buffer_t *buffer, xep_dispatch_args_t *a)
{
    if (a->topk == 0) a->topk = buffer->shape.topk;
    if (a->topk > buffer->shape.topk)
        return xep_fail(XEP_ERR_INVALID, "invalid topk: %u (the buffer was made for %u)", a->topk, buffer->shape.topk);
    xep_status_t status = xep_check_topk_idx(a->topk_idx, &a->topk_idx_stride, &a->topk_idx_dtype, a->tokens, a->topk);
    if (status != XEP_OK) return status;
    return xep_check_matrix("topk_weights", a->topk_weights, &a->topk_weights_stride,
                            a->topk_weights == NULL ? 0 : a->tokens, (uint64_t)a->topk * sizeof(float), sizeof(float));
}

/* Arguments that the handle knows may be left out, but must be right if given. */
static xep_status_t check_cached(const xep_buffer_t *buffer, xep_dispatch_args_t *a)
{
    xep_handle_t *h = a->cached;
    xep_status_t status;
    if (h->buffer != buffer) return xep_fail(XEP_ERR_INVALID, "invalid cached: a handle of another buffer");
    if (h->in_flight != NULL && !h->in_flight->kept && (status = xep_request_settle(h)) != XEP_OK) return status;
    if (h->state != XEP_HANDLE_READY || h->released)
        return xep_fail(XEP_ERR_INVALID, "invalid cached: a handle that was released, failed, or is not received yet");
    if (a->topk_idx != NULL)
        return xep_fail(XEP_ERR_INVALID, "topk_idx must be NULL with cached: the handle has the routing");
    if (a->tokens != h->tokens)
        return xep_fail(XEP_ERR_INVALID, "invalid tokens: %llu (the %llu of the cached dispatch)",
                        (unsigned long long)a->tokens, (unsigned long long)h->tokens);
    if (a->topk != 0 && a->topk != h->topk)
        return xep_fail(XEP_ERR_INVALID, "invalid topk: %u (0, or the %u of the cached dispatch)", a->topk, h->topk);
    if (a->topk_weights != NULL)
        return xep_fail(XEP_ERR_INVALID, "topk_weights must be NULL with cached: they travel with indices");
    a->topk = h->topk;
    a->topk_idx_dtype = h->topk_idx_dtype;
    return XEP_OK;
}

static int is_quant_scale_sane(xep_quant_t quant, float scale)
{
    if (scale == 0) return quant != XEP_QUANT_E4M3_STATIC;
    return (quant == XEP_QUANT_E4M3_STATIC || quant == XEP_QUANT_NVFP4) && scale >= 1e-30f && scale <= 1e30f;
}

#define ONE_MORE(_name, _value, _text) +1

/* Which of them a mode has, and for which operation, its table says. */
static xep_status_t check_quant(xep_quant_t quant, float scale)
{
    enum { QUANTS = 0 XEP_QUANT_LIST(ONE_MORE) };
    if ((unsigned)quant >= QUANTS)
        return xep_fail(XEP_ERR_INVALID, "invalid quant: %d (one of XEP_QUANT_*)", (int)quant);
    if (is_quant_scale_sane(quant, scale)) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID,
                    "invalid quant_scale: %g (1e-30 to 1e30 with XEP_QUANT_E4M3_STATIC, which needs one, and "
                    "XEP_QUANT_NVFP4; else 0)",
                    (double)scale);
}

static xep_status_t check_flags(const xep_buffer_t *buffer, const xep_dispatch_args_t *a)
{
    const uint32_t none = buffer->params.balance == XEP_BALANCE_NONE ? XEP_DISPATCH_BALANCE : 0;
    if ((a->flags & none) != 0 || a->flags >= 2 * (uint32_t)XEP_DISPATCH_WILL_EXPAND)
        return xep_fail(XEP_ERR_INVALID, "invalid flags: %#x (bits of XEP_DISPATCH_*)", a->flags);
    if ((a->flags & XEP_DISPATCH_IN_PLACE) != 0 && !buffer->shape.sends_in_place)
        return xep_fail(XEP_ERR_UNSUPPORTED, "invalid flags: XEP_DISPATCH_IN_PLACE (without XEP_BUFFER_SEND_MEMORY)");
    if ((a->flags & XEP_DISPATCH_COUNTS_THERE) != 0 && buffer->device == NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED, "invalid flags: XEP_DISPATCH_COUNTS_THERE (without XEP_MEMORY_CUDA)");
    return XEP_OK;
}

/* checks only for values that have no meaning; the mode says what it supports */
static xep_status_t check_choices(xep_dispatch_args_t *a)
{
    if ((unsigned)a->arrangement > XEP_ROWS_BY_EXPERT_PADDED)
        return xep_fail(XEP_ERR_INVALID, "invalid arrangement: %d (one of XEP_ROWS_*)", (int)a->arrangement);
    xep_status_t status = check_quant(a->quant, a->quant_scale);
    if (status != XEP_OK || a->quant == XEP_QUANT_NONE) return status;
    if (a->dtype != XEP_BF16 && a->dtype != XEP_FP16 && a->dtype != XEP_FP32)
        return xep_fail(XEP_ERR_INVALID, "invalid dtype: %s (with quant: bf16, fp16 or fp32)",
                        xep_dtype_name(a->dtype));
    if (a->nscales != 0)
        return xep_fail(XEP_ERR_INVALID, "invalid nscales: %u (0 with quant: the scales come from the cast)",
                        a->nscales);
    a->scales_dtype = XEP_FP32; /* the mode says which words they are */
    return XEP_OK;
}

/* On a device operations of a buffer come one after the other anyway; behind those of others their stream was put. */
static xep_status_t check_order(const xep_buffer_t *buffer, xep_request_t **after_p, const void *stream)
{
    const xep_request_t *after = *after_p;
    if (stream != NULL && buffer->device == NULL)
        return xep_fail(XEP_ERR_INVALID, "invalid stream: %p (NULL: the buffer is in host memory)", stream);
    if (after == NULL) return XEP_OK;
    if (buffer->announce != NULL) return xep_fail(XEP_ERR_UNSUPPORTED, "after must be NULL with XEP_BUFFER_SERVED");
    if (!after->kept) return xep_fail(XEP_ERR_INVALID, "invalid after: it was freed");
    if (buffer->device != NULL) *after_p = NULL;
    /* a wait on this group would not advance the other group's operation */
    if (after->buffer->group != buffer->group)
        return xep_fail(XEP_ERR_INVALID, "invalid after: a request of another group");
    return XEP_OK;
}

/* In the order in which later checks need what earlier ones have filled in. */
xep_status_t xep_check_dispatch(const xep_buffer_t *buffer, xep_dispatch_args_t *a)
{
    xep_status_t status = check_rows(buffer, a);
    if (status == XEP_OK) status = a->cached != NULL ? check_cached(buffer, a) : check_routing(buffer, a);
    if (a->scales_dtype == XEP_DTYPE_DEFAULT) a->scales_dtype = XEP_FP32;
    if (status == XEP_OK && (a->scales != NULL || (a->nscales | a->npayloads) != 0))
        status = xep_check_beside(buffer, a);
    if (status == XEP_OK && a->flags != 0) status = check_flags(buffer, a);
    if (status == XEP_OK) status = check_choices(a);
    if (status == XEP_OK) status = check_order(buffer, &a->after, a->stream);
    if (status != XEP_OK) return status;
    a->expert_alignment += a->expert_alignment == 0; /* the default is 1 */
    if (a->timeout_ms == 0) a->timeout_ms = buffer->timeout_ms;
    if (a->capacity > buffer->shape.recv_rows)
        return xep_fail(XEP_ERR_INVALID, "invalid capacity: %llu rows (a slot has room for %llu)",
                        (unsigned long long)a->capacity, (unsigned long long)buffer->shape.recv_rows);
    return XEP_OK;
}

/* ---- combine ---- */

/*
 * x and topk_weights have a row for each row received, not for each token. The input that the user was shown is passed
 * on as NULL: rows there need no copy. *row_p: bytes of a row, of which out and bias are, too.
 */
xep_status_t xep_check_outputs(const xep_handle_t *h, xep_combine_args_t *a, uint64_t *row_p)
{
    const xep_shape_t *shape = &h->buffer->shape;
    if (a->dtype == XEP_DTYPE_DEFAULT) a->dtype = h->buffer->params.combine_dtype;
    if (a->dtype != XEP_BF16 && a->dtype != XEP_FP16 && a->dtype != XEP_FP32)
        return xep_fail(XEP_ERR_INVALID, "invalid dtype: %s (bf16, fp16 or fp32)", xep_dtype_name(a->dtype));
    if (a->hidden == 0) a->hidden = shape->hidden;
    size_t elem = xep_dtype_size(a->dtype);
    uint64_t row = (uint64_t)a->hidden * elem;
    if (row > (uint64_t)shape->hidden * shape->combine_elem_bytes)
        return refuse_row(a->hidden, a->dtype, shape->hidden, h->buffer->params.combine_dtype, "combine_dtype");
    *row_p = row;
    xep_status_t status = XEP_OK;
    if (a->x == NULL || a->x == h->combine_input) {
        if (!h->has_input && a->x == NULL && h->recv.rows > 0)
            return xep_fail(XEP_ERR_INVALID,
                            "no outputs for the %llu rows of this handle: x is NULL (give x, or write "
                            "to xep_handle_combine_input())",
                            (unsigned long long)h->recv.rows);
        a->x = NULL;
    } else {
        status = xep_check_matrix("x", a->x, &a->x_stride, h->recv.rows, row, elem);
    }
    if (status != XEP_OK || a->topk_weights == NULL) return status;
    return xep_check_matrix("topk_weights", a->topk_weights, &a->topk_weights_stride, h->recv.rows,
                            (uint64_t)h->topk * sizeof(float), sizeof(float));
}

/* Rows by expert are summed into the input, so they are somewhere else; how many there are only the device knows. */
static xep_status_t check_slots(const xep_handle_t *h, const xep_combine_args_t *a)
{
    if (a->x == NULL && h->recv.rows > 0)
        return xep_fail(XEP_ERR_INVALID, "slots without x: its rows are summed into xep_handle_combine_input()");
    return xep_check_array("slots", a->slots, h->recv.capacity, sizeof *a->slots);
}

/* out and bias have a row for each token of this rank. */
static xep_status_t check_combine_rows(const xep_handle_t *h, xep_combine_args_t *a)
{
    uint64_t row;
    xep_status_t status = xep_check_outputs(h, a, &row);
    if (status != XEP_OK) return status;
    size_t elem = xep_dtype_size(a->dtype);
    status = xep_check_matrix("out", a->out, &a->out_stride, h->tokens, row, elem);
    for (int i = 0; i < 2 && status == XEP_OK; i++)
        if (a->bias[i] != NULL) status = xep_check_matrix("bias", a->bias[i], &a->bias_stride[i], h->tokens, row, elem);
    return status == XEP_OK && a->slots != NULL ? check_slots(h, a) : status;
}

/* Weights go back with rows: a rank without rows has none to send, one without tokens has no place for them. */
static xep_status_t check_combine_weights(const xep_handle_t *h, xep_combine_args_t *a)
{
    uint64_t row = (uint64_t)h->topk * sizeof(float);
    if (a->topk_weights == NULL && a->out_weights == NULL) return XEP_OK;
    if (a->topk_weights == NULL && h->recv.rows > 0)
        return xep_fail(XEP_ERR_INVALID, "topk_weights is NULL (needed where out_weights is given)");
    if (a->out_weights == NULL && h->tokens > 0)
        return xep_fail(XEP_ERR_INVALID, "out_weights is NULL (needed where topk_weights are given)");
    return xep_check_matrix("out_weights", a->out_weights, &a->out_weights_stride, h->tokens, row, sizeof(float));
}

/* The weights that ll applies at the rank of the tokens; normal refuses them itself. */
static xep_status_t check_source_weights(const xep_handle_t *h, xep_combine_args_t *a)
{
    if ((a->flags & ~(uint32_t)XEP_COMBINE_SUM_AT_OWNER) != 0)
        return xep_fail(XEP_ERR_INVALID, "invalid flags: %#x (bits of XEP_COMBINE_*)", a->flags);
    xep_status_t status = check_quant(a->quant, a->quant_scale);
    if (status != XEP_OK) return status;
    if (a->quant != XEP_QUANT_NONE && a->dtype != XEP_BF16)
        return xep_fail(XEP_ERR_INVALID, "invalid dtype: %s (with quant: bf16)", xep_dtype_name(a->dtype));
    if (a->weights == NULL) return XEP_OK;
    return xep_check_matrix("weights", a->weights, &a->weights_stride, h->tokens, (uint64_t)h->topk * sizeof(float),
                            sizeof(float));
}

/* h->recv is read for the number of rows, so the handle is checked first. */
xep_status_t xep_check_combine(xep_handle_t *h, xep_combine_args_t *a)
{
    xep_status_t status = xep_require_idle(h);
    if (status == XEP_OK) status = check_combine_rows(h, a);
    if (status == XEP_OK) status = check_combine_weights(h, a);
    if (status == XEP_OK) status = check_source_weights(h, a);
    if (status == XEP_OK && a->missing != NULL)
        status = xep_check_matrix("missing", a->missing, &a->missing_stride, h->tokens, h->topk, 1);
    if (a->timeout_ms == 0) a->timeout_ms = h->buffer->timeout_ms;
    return status == XEP_OK ? check_order(h->buffer, &a->after, a->stream) : status;
}
