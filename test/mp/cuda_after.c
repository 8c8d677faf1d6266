/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Two buffers, each on its own stream, which the stand-in delays as it likes. The second one dispatches what the first
 * one's combine writes, and the first one writes there again once the second one has read it: only "after" says so.
 */
#include "cuda_after.h"

#include <string.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

enum { ROUNDS = 8, COPIES = 40, HIDDEN = 96, TOKENS = 50, EXPERTS = 16, TOPK = 4 };

typedef struct side {
    cuda_job_t job;
    mp_case_t c;
    int by_expert;
} side_t;

static void open_side(side_t *side, const char *mode, uint64_t seed, xep_group_t *group, void *stream)
{
    side->by_expert = strcmp(mode, "ll") == 0;
    side->c = (mp_case_t){.name = "after",
                          .mode = mode,
                          .experts = EXPERTS,
                          .topk = TOPK,
                          .hidden = HIDDEN,
                          .tokens = TOKENS,
                          .mask = 100,
                          .dtype = XEP_FP32,
                          .combine_dtype = XEP_FP32,
                          .memory = XEP_MEMORY_CUDA};
    cuda_job_open(&side->job, &side->c, seed, group, stream);
    cuda_rig_wait(stream);
}

/* Experts that return what they got. Returns the request of the combine, which nobody has waited for. */
static xep_request_t *there_and_back(side_t *side, const void *x, void *out, xep_request_t *after)
{
    xep_dispatch_args_t a = cuda_job_dispatch(&side->job, NULL);
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    xep_handle_t *handle;
    xep_request_t *req;
    size_t stride;
    a.x = x;
    a.x_stride = 0;
    a.after = after;
    MP_OK(xep_dispatch(side->job.host.buffer, &a, &handle, &req));
    if (after != NULL) xep_request_free(after);
    mp_finish(req);
    const xep_recv_t *recv = xep_handle_recv(handle);
    void *y = xep_handle_combine_input(handle, &stride);
    MP_CHECK(recv != NULL && y != NULL);
    for (int i = 0; i < COPIES; i++) /* one would do: so the next operation is there long before this one has ended */
        cuda_rig_copy(y, stride, recv->x, recv->x_stride, HIDDEN * sizeof(float), recv->rows, a.stream);
    b.out = out;
    b.stream = a.stream;
    MP_OK(xep_combine(handle, &b, &req));
    xep_handle_release(handle);
    return req;
}

/* How often a token comes back: once from each of its ranks, or by expert for each selection. */
static float copies(const side_t *side, uint64_t token)
{
    uint64_t ranks = 0;
    int selections = 0;
    for (uint32_t k = 0; k < TOPK; k++) {
        const int64_t expert = ((const int64_t *)side->job.host.idx)[token * TOPK + k];
        if (expert < 0) continue;
        selections++;
        ranks |= UINT64_C(1) << oracle_owner(side->job.host.routing, (uint32_t)expert);
    }
    return (float)(side->by_expert ? selections : __builtin_popcountll(ranks));
}

static float value(int round, uint64_t i)
{
    return (float)((int)(i * 7 + (uint64_t)round * 13 + mp_rank()) % 31);
}

static void chain(xep_group_t *group, const char *first_mode, const char *second_mode, void *streams[2])
{
    static float host[TOKENS * HIDDEN];
    side_t first, second;
    void *x[ROUNDS], *out[ROUNDS];
    xep_request_t *req = NULL;
    open_side(&first, first_mode, 23, group, streams[0]);
    open_side(&second, second_mode, 29, group, streams[1]);
    for (int i = 0; i < ROUNDS; i++) {
        for (uint64_t n = 0; n < TOKENS * HIDDEN; n++) host[n] = value(i, n);
        x[i] = cuda_rig_alloc(host, sizeof host);
        out[i] = cuda_rig_alloc(NULL, sizeof host);
    }
    void *between = cuda_rig_alloc(host, sizeof host);
    for (int i = 0; i < ROUNDS; i++) {
        req = there_and_back(&first, x[i], between, req);
        req = there_and_back(&second, between, out[i], req);
    }
    mp_finish(req);
    for (int i = 0; i < ROUNDS; i++) {
        cuda_rig_get(host, out[i], sizeof host, streams[1]);
        for (uint64_t n = 0; n < TOKENS * HIDDEN; n++)
            MP_CHECK(host[n] == value(i, n) * copies(&first, n / HIDDEN) * copies(&second, n / HIDDEN));
        cuda_rig_free(x[i]);
        cuda_rig_free(out[i]);
    }
    cuda_rig_free(between);
    cuda_job_close(&second.job);
    cuda_job_close(&first.job);
}

/* Of host memory, and of a stream that a graph is made of. */
static void refuse(xep_group_t *group, void *streams[2])
{
    const mp_case_t host_case = {.name = "host", .experts = 8, .topk = 2, .hidden = 64, .tokens = 16};
    side_t side, other;
    mp_job_t host;
    xep_handle_t *handle, *none = NULL;
    xep_request_t *req;
    open_side(&side, "normal", 23, group, streams[0]);
    open_side(&other, "normal", 23, group, streams[1]);
    mp_job_open(&host, &host_case, 5);
    mp_job_buffer(&host, group);
    xep_dispatch_args_t a = mp_job_dispatch(&host), b = cuda_job_dispatch(&side.job, NULL);
    MP_OK(xep_dispatch(host.buffer, &a, &handle, &req));
    b.after = req;
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_dispatch(side.job.host.buffer, &b, &none, NULL));
    MP_REASON("after is a request in host memory");
    mp_finish(req);
    xep_handle_release(handle);
    xep_dispatch_args_t c = cuda_job_dispatch(&other.job, NULL);
    MP_OK(xep_dispatch(other.job.host.buffer, &c, &handle, &req));
    cuda_rig_capture(streams[0]);
    b.after = req;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(side.job.host.buffer, &b, &none, NULL));
    MP_REASON("is being captured");
    cuda_rig_free_graph(cuda_rig_graph(streams[0]));
    mp_finish(req);
    xep_handle_release(handle);
    b.after = NULL;
    MP_OK(xep_dispatch(side.job.host.buffer, &b, &handle, NULL));
    xep_handle_release(handle);
    mp_job_close(&host);
    cuda_job_close(&other.job);
    cuda_job_close(&side.job);
}

void cuda_after(xep_group_t *group, void *streams[2])
{
    chain(group, "normal", "normal", streams);
    chain(group, "ll", "normal", streams);
    chain(group, "normal", "ll", streams);
    refuse(group, streams);
}
