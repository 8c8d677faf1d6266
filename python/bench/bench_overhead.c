/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch and combine in a loop, by the functions of a library that somebody else has loaded. */

#include <stdint.h>
#include <string.h>
#include <time.h>
#include <xep/xep.h>

typedef struct calls {
    xep_status_t (*dispatch)(xep_buffer_t *, const xep_dispatch_args_t *, xep_handle_t **, xep_request_t **);
    xep_status_t (*recv)(const xep_handle_t *, const xep_recv_t **);
    xep_status_t (*combine_input)(xep_handle_t *, void **, size_t *);
    xep_status_t (*combine)(xep_handle_t *, const xep_combine_args_t *, xep_request_t **);
    void (*release)(xep_handle_t *);
} calls_t;

/* what Python passes in one piece */
typedef struct work {
    xep_buffer_t *buffer;
    uint64_t tokens;
    uint32_t topk;
    const void *x;
    const int64_t *topk_idx;
    const float *topk_weights;
    void *out;
} work_t;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static xep_status_t once(const calls_t *calls, const work_t *work)
{
    xep_dispatch_args_t send = XEP_DISPATCH_ARGS_INIT;
    xep_combine_args_t back = XEP_COMBINE_ARGS_INIT;
    xep_handle_t *handle;
    send.tokens = work->tokens, send.x = work->x, send.topk = work->topk;
    send.topk_idx = work->topk_idx, send.topk_weights = work->topk_weights;
    back.out = work->out;
    xep_status_t status = calls->dispatch(work->buffer, &send, &handle, NULL);
    if (status != XEP_OK) return status;
    const xep_recv_t *recv;
    void *y;
    if ((status = calls->recv(handle, &recv)) != XEP_OK) return status;
    if ((status = calls->combine_input(handle, &y, NULL)) != XEP_OK) return status;
    status = calls->combine(handle, &back, NULL);
    calls->release(handle);
    return status;
}

/* ns[i] is the time of the i-th dispatch and combine */
xep_status_t bench_run(const calls_t *calls, const work_t *work, uint32_t count, uint64_t *ns);
xep_status_t bench_run(const calls_t *calls, const work_t *work, uint32_t count, uint64_t *ns)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t begin = now_ns();
        xep_status_t status = once(calls, work);
        if (status != XEP_OK) return status;
        ns[i] = now_ns() - begin;
    }
    return XEP_OK;
}
