/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Two buffers, each on its own stream, which the stand-in delays as it likes. The second one dispatches what the first
 * one's combine writes, and the first one writes there again once the second one has read it: only "after" says so.
 */
#include "cuda_parts.h"

#include <string.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "cuda_rounds.h"
#include "mp_rig.h"

enum { ROUNDS = 8, COPIES = 40, HIDDEN = CUDA_ROUND_HIDDEN, TOKENS = CUDA_ROUND_TOKENS };

typedef struct side {
    cuda_job_t job;
    mp_case_t c;
} side_t;

static void open_side(side_t *side, const char *mode, uint64_t seed, xep_group_t *group, void *stream)
{
    side->c = cuda_round_case("after", mode);
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
    const xep_recv_t *recv = mp_recv(handle);
    void *y = mp_input(handle, &stride);
    MP_CHECK(recv != NULL && y != NULL);
    for (int i = 0; i < COPIES; i++) /* one would do: so the next operation is there long before this one has ended */
        cuda_rig_copy(y, stride, recv->x, recv->x_stride, HIDDEN * sizeof(float), recv->rows, a.stream);
    b.out = out;
    b.stream = a.stream;
    MP_OK(xep_combine(handle, &b, &req));
    xep_handle_release(handle);
    return req;
}

static void chain(xep_group_t *group, const char *first_mode, const char *second_mode, void *streams[2])
{
    static float host[TOKENS * HIDDEN], expected[TOKENS * HIDDEN];
    side_t first, second;
    void *x[ROUNDS], *out[ROUNDS];
    xep_request_t *req = NULL;
    open_side(&first, first_mode, 23, group, streams[0]);
    open_side(&second, second_mode, 29, group, streams[1]);
    for (int i = 0; i < ROUNDS; i++) {
        cuda_round_fill(host, i, TOKENS);
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
        cuda_round_fill(expected, i, TOKENS);
        for (uint64_t n = 0; n < TOKENS * HIDDEN; n++) {
            const uint64_t token = n / HIDDEN;
            const int copies = cuda_round_copies(&first.job.host, token) * cuda_round_copies(&second.job.host, token);
            MP_CHECK(host[n] == expected[n] * (float)copies);
        }
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
    const mp_case_t host_case = {.name = "host", MP_SHAPE(8, 2, 64, 16)};
    side_t side, other;
    mp_job_t host;
    xep_handle_t *handle;
    xep_request_t *req;
    open_side(&side, "normal", 23, group, streams[0]);
    open_side(&other, "normal", 23, group, streams[1]);
    mp_job_begin(&host, &host_case, 5, group);
    xep_dispatch_args_t a = mp_job_dispatch(&host), b = cuda_job_dispatch(&side.job, NULL);
    MP_OK(xep_dispatch(host.buffer, &a, &handle, &req));
    b.after = req;
    MP_REFUSES(&side.job.host, &b, XEP_ERR_UNSUPPORTED, "after is a request in host memory");
    mp_finish(req);
    xep_handle_release(handle);
    xep_dispatch_args_t c = cuda_job_dispatch(&other.job, NULL);
    MP_OK(xep_dispatch(other.job.host.buffer, &c, &handle, &req));
    cuda_rig_capture(streams[0]);
    b.after = req;
    MP_REFUSES(&side.job.host, &b, XEP_ERR_INVALID, "is being captured");
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
