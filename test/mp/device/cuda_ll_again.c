/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Combines of ll that use again what others before them used: a handle that is combined several times, a slot whose
 * handle was not combined, a buffer whose ranks combined different things. Each has other outputs, the same in all rows
 * of all ranks, with every kind of NaN: a row that is left from before, or half of one, shows.
 */
#include "cuda_parts.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

enum { TOKENS = 24, EXPERTS = 8, MOST_HIDDEN = 600, POISON = 0xa5 };

typedef struct again {
    xep_buffer_t *buffer;
    xep_dtype_t dtype;
    uint32_t hidden, round;
    int staged;
    char *outputs, *out; /* of the device */
    void *stream;
} again_t;

static size_t row_bytes(const again_t *a)
{
    return a->hidden * xep_dtype_size(a->dtype);
}

/* Element h of the outputs of a round: now and then NaNs, with words of 4 bytes whose bits are all 1 among them. */
static uint32_t output(const again_t *a, uint32_t h)
{
    const uint32_t ones = a->dtype == XEP_FP32 ? UINT32_MAX : UINT16_MAX;
    if (h / 4 % 8 == a->round % 8) return h % 4 == 3 ? ones >> 1 : ones;
    return (a->round * 2654435761u + h * 40503u) & ones;
}

/* What a sum of this element alone is. */
static uint32_t wanted(const again_t *a, uint32_t v)
{
    const uint32_t infinity = a->dtype == XEP_FP32 ? 0x7f800000 : a->dtype == XEP_BF16 ? 0x7f80 : 0x7c00;
    const uint32_t sign = a->dtype == XEP_FP32 ? 0x80000000 : 0x8000;
    const uint32_t quiet = a->dtype == XEP_FP32 ? 0x7fc00000 : a->dtype == XEP_BF16 ? 0x7fc0 : 0x7e00;
    if ((v & ~sign) > infinity) return quiet;
    return v == sign ? 0 : v;
}

static uint32_t element(const again_t *a, const char *row, uint32_t h)
{
    uint32_t v = 0;
    memcpy(&v, row + h * xep_dtype_size(a->dtype), xep_dtype_size(a->dtype)); /* little-endian, as devices are */
    return v;
}

static void fill_outputs(again_t *a)
{
    const size_t row = row_bytes(a), rows = (size_t)mp_nranks() * TOKENS;
    char *outputs = malloc(rows * row);
    MP_CHECK(outputs != NULL);
    a->round++;
    for (size_t r = 0; r < rows; r++)
        for (uint32_t h = 0; h < a->hidden; h++) {
            const uint32_t v = output(a, h);
            memcpy(outputs + r * row + h * xep_dtype_size(a->dtype), &v, xep_dtype_size(a->dtype));
        }
    cuda_rig_put(a->outputs, outputs, rows * row, a->stream);
    cuda_rig_wait(a->stream);
    free(outputs);
}

static xep_handle_t *send(const again_t *a, const void *x, const void *idx)
{
    xep_dispatch_args_t d = XEP_DISPATCH_ARGS_INIT;
    xep_handle_t *handle;
    d.x = x, d.topk_idx = idx, d.tokens = TOKENS, d.stream = a->stream;
    MP_OK(xep_dispatch(a->buffer, &d, &handle, NULL));
    return handle;
}

static xep_combine_args_t outputs_of(again_t *a)
{
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    static char poison[TOKENS * MOST_HIDDEN * 4];
    memset(poison, POISON, sizeof poison);
    fill_outputs(a);
    cuda_rig_put(a->out, poison, TOKENS * row_bytes(a), a->stream);
    cuda_rig_wait(a->stream);
    b.x = a->outputs, b.x_stride = row_bytes(a), b.out = a->out, b.stream = a->stream;
    return b;
}

static void combine(again_t *a, xep_handle_t *handle, uint32_t flags)
{
    static char out[TOKENS * MOST_HIDDEN * 4];
    xep_combine_args_t b = outputs_of(a);
    b.flags = flags;
    MP_OK(xep_combine(handle, &b, NULL));
    cuda_rig_get(out, a->out, TOKENS * row_bytes(a), a->stream);
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < a->hidden; h++) {
            const uint32_t v = element(a, out + t * row_bytes(a), h), want = wanted(a, output(a, h));
            if (v != want)
                mp_fail(__FILE__, __LINE__, "dtype %d, hidden %u, round %u: element %u of token %u is %x, not %x",
                        (int)a->dtype, a->hidden, a->round, h, t, v, want);
        }
}

/* Rows are on their way, and nobody takes them: the reset must clear what they leave. */
static void combine_different_things(again_t *a, xep_handle_t *handle, uint32_t hidden, uint32_t flags)
{
    xep_combine_args_t b = outputs_of(a);
    if (mp_rank() == 1) b.hidden = hidden, b.flags = flags;
    MP_OK(xep_combine(handle, &b, NULL));
    cuda_rig_wait(a->stream);
    MP_SAYS(XEP_ERR_PROTOCOL, "disagreed", xep_combine(handle, &b, NULL));
    MP_OK(xep_buffer_reset(a->buffer));
}

static void run(again_t *a, const void *x, const void *idx)
{
    static const int at_owner[] = {0, 1, 0, 1, 1, 0, 0, 0, 1}; /* of each kind behind each, in both areas */
    for (int i = 0; i < 4; i++) {
        xep_handle_t *handle = send(a, x, idx);
        for (int n = 0; n < i; n++) combine(a, handle, 0);
        xep_handle_release(handle);
    }
    if (mp_nranks() > 1 && !a->staged) {
        combine_different_things(a, send(a, x, idx), a->hidden / 2, 0);
        combine_different_things(a, send(a, x, idx), a->hidden, XEP_COMBINE_SUM_AT_OWNER);
    }
    xep_handle_t *handle = send(a, x, idx);
    for (int n = 0; n < 9; n++) combine(a, handle, at_owner[n] ? XEP_COMBINE_SUM_AT_OWNER : 0);
    xep_handle_release(handle);
}

/*
 * The last rank postpones its receive phase of a combine. The others end it meanwhile, use their slot again and combine
 * the next handle, with another hidden: it must not take that for what they offered before.
 */
static void combine_late(again_t *a, const void *x, const void *idx, atomic_int *sent)
{
    const int is_late = mp_is_last();
    xep_handle_t *first = send(a, x, idx), *next;
    xep_request_t *combined, *dispatched, *last;
    xep_dispatch_args_t d = XEP_DISPATCH_ARGS_INIT;
    xep_combine_args_t b = outputs_of(a);
    d.x = x, d.topk_idx = idx, d.tokens = TOKENS, d.stream = a->stream;
    MP_OK(xep_combine(first, &b, is_late ? &combined : NULL));
    if (!is_late) xep_handle_release(first);
    MP_OK(xep_dispatch(a->buffer, &d, &next, is_late ? &dispatched : NULL));
    b.hidden = a->hidden / 2;
    if (is_late) {
        while ((uint32_t)*sent != mp_nranks() - 1) continue;
        MP_OK(xep_request_wait(combined));
        MP_OK(xep_request_wait(dispatched));
        xep_request_free(combined);
        xep_request_free(dispatched);
        xep_handle_release(first);
    }
    MP_OK(xep_combine(next, &b, &last));
    cuda_rig_wait(a->stream);
    ++*sent;
    MP_OK(xep_request_wait(last));
    xep_request_free(last);
    xep_handle_release(next);
    cuda_rig_wait(a->stream);
    xep_handle_release(send(a, x, idx)); /* it would say that ranks disagreed */
}

/* multiprocessors: rows are pushed, or, with few, pulled. */
static void run_shape(xep_group_t *group, xep_dtype_t dtype, uint32_t hidden, uint32_t slots, uint32_t multiprocessors,
                      void *stream)
{
    static char zeros[TOKENS * MOST_HIDDEN * 4];
    static int64_t idx[TOKENS];
    again_t a = {.dtype = dtype, .hidden = hidden, .staged = cuda_job_stages(group), .stream = stream};
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    p.mode = "ll", p.experts = EXPERTS, p.topk = 1, p.hidden = hidden, p.tokens = TOKENS, p.slots = slots;
    p.dtype = p.combine_dtype = dtype;
    p.memory = XEP_MEMORY_CUDA, p.multiprocessors = multiprocessors;
    MP_OK(xep_buffer_create(group, &p, &a.buffer));
    for (uint32_t t = 0; t < TOKENS; t++) idx[t] = t % EXPERTS;
    void *x = cuda_rig_alloc(zeros, sizeof zeros), *idx_there = cuda_rig_alloc(idx, sizeof idx);
    a.outputs = cuda_rig_alloc(NULL, (size_t)mp_nranks() * TOKENS * row_bytes(&a));
    a.out = cuda_rig_alloc(NULL, TOKENS * row_bytes(&a));
    if (slots == 1) run(&a, x, idx_there);
    else if (!a.staged) combine_late(&a, x, idx_there, mp_counter(group));
    cuda_rig_free(x);
    cuda_rig_free(idx_there);
    cuda_rig_free(a.outputs);
    cuda_rig_free(a.out);
    xep_buffer_destroy(a.buffer);
}

void cuda_ll_again(xep_group_t *group, void *stream)
{
    const xep_dtype_t dtypes[] = {XEP_BF16, XEP_FP16, XEP_FP32};
    for (int i = 0; i < 3; i++) {
        run_shape(group, dtypes[i], MOST_HIDDEN, 1, 32, stream);
        run_shape(group, dtypes[i], 83, 1, 32, stream);
        run_shape(group, dtypes[i], 83, 1, 16, stream);
    }
    run_shape(group, XEP_BF16, MOST_HIDDEN, 2, 32, stream);
}
