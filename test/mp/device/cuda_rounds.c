/* SPDX-License-Identifier: BSD-3-Clause */

#include "cuda_rounds.h"

#include <string.h>

#include "cuda_rig.h"
#include "mp_rig.h"

enum { HIDDEN = CUDA_ROUND_HIDDEN, TOKENS = CUDA_ROUND_TOKENS, EXPERTS = 16, TOPK = 4, IN_A_ROW = 12 };

mp_case_t cuda_round_case(const char *name, const char *mode)
{
    return (
        mp_case_t){.name = name, .mode = mode, MP_SHAPE(EXPERTS, TOPK, HIDDEN, TOKENS), .mask = 100, MP_FP32, MP_CUDA};
}

void cuda_round_fill(float *x, int round, uint64_t tokens)
{
    for (uint64_t i = 0; i < tokens * HIDDEN; i++) x[i] = (float)((int)(i * 7 + (uint64_t)round * 13 + mp_rank()) % 31);
}

/* Mode normal: from each rank that it went to; ll: from each selection. */
int cuda_round_copies(const mp_job_t *job, uint64_t token)
{
    uint64_t ranks = 0;
    int selections = 0;
    for (uint32_t k = 0; k < job->c->topk; k++) {
        int64_t expert = ((const int64_t *)job->idx)[token * job->c->topk + k];
        if (expert < 0) continue;
        ranks |= UINT64_C(1) << oracle_owner(job->routing, (uint32_t)expert);
        selections++;
    }
    return job->shape.by_expert ? selections : __builtin_popcountll(ranks);
}

void cuda_round_check(const mp_job_t *job, const float *out, int round)
{
    static float x[TOKENS * HIDDEN];
    cuda_round_fill(x, round, job->tokens);
    for (uint64_t t = 0; t < job->tokens; t++)
        for (uint32_t h = 0; h < HIDDEN; h++)
            MP_CHECK(out[t * HIDDEN + h] == x[t * HIDDEN + h] * (float)cuda_round_copies(job, t));
}

void cuda_round_pass_back(xep_handle_t *handle, xep_combine_args_t *b, int named)
{
    const xep_recv_t *recv = mp_recv(handle);
    size_t stride;
    if (named || recv->expert_begin != NULL) {
        b->x = recv->x; /* views of the slot are memory like any other */
        b->x_stride = recv->x_stride;
        return;
    }
    void *y = mp_input(handle, &stride);
    MP_CHECK(y != NULL);
    cuda_rig_copy(y, stride, recv->x, recv->x_stride, HIDDEN * sizeof(float), recv->rows, b->stream);
}

/* ---- one after the other ---- */

/* Of mode ll, in device memory: added up over all rounds; and of the last one. */
typedef struct counters {
    int32_t *stats;
    uint64_t *rows;
} counters_t;

static counters_t open_counters(const cuda_job_t *job)
{
    static const int32_t none[EXPERTS];
    if (!job->host.shape.by_expert) return (counters_t){0};
    return (counters_t){cuda_rig_alloc(none, sizeof none), cuda_rig_alloc(none, sizeof(uint64_t))};
}

static void check_counters(const counters_t *counters, void *stream)
{
    int32_t stats[EXPERTS];
    uint64_t rows, received = 0;
    if (counters->rows == NULL) return;
    cuda_rig_get(stats, counters->stats, sizeof stats, stream);
    cuda_rig_get(&rows, counters->rows, sizeof rows, stream);
    for (int e = 0; e < EXPERTS; e++) received += (uint64_t)stats[e];
    MP_CHECK(received == rows * IN_A_ROW);
    cuda_rig_free(counters->stats);
    cuda_rig_free(counters->rows);
}

static void call(cuda_job_t *job, const counters_t *counters, const void *x, void *out, void *stream)
{
    xep_handle_t *handle;
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    a.x = x;
    a.x_stride = 0;
    a.stream = b.stream = stream; /* the buffer orders its own operations on all streams */
    b.out = out;
    if (counters->rows != NULL) {
        a.expert_stats = counters->stats;
        a.recv_rows_p = counters->rows;
    }
    MP_OK(xep_dispatch(job->host.buffer, &a, &handle, NULL));
    cuda_round_pass_back(handle, &b, 0);
    MP_OK(xep_combine(handle, &b, NULL));
    xep_handle_release(handle); /* its slot is taken again before the combine has begun */
}

void cuda_rounds_in_a_row(xep_group_t *group, const char *mode, void *streams[2])
{
    const mp_case_t c = cuda_round_case("in a row", mode);
    static float host[IN_A_ROW][TOKENS * HIDDEN];
    void *x[IN_A_ROW], *out[IN_A_ROW];
    cuda_job_t job;
    cuda_job_open(&job, &c, 23, group, streams[1]);
    counters_t counters = open_counters(&job);
    cuda_rig_wait(streams[1]);
    for (int i = 0; i < IN_A_ROW; i++) {
        cuda_round_fill(host[i], i, job.host.tokens);
        x[i] = cuda_rig_alloc(host[i], sizeof host[i]);
        out[i] = cuda_rig_alloc(NULL, sizeof host[i]);
    }
    for (int i = 0; i < IN_A_ROW; i++) call(&job, &counters, x[i], out[i], streams[i / 3 % 2]);
    for (int i = 0; i < 2; i++) cuda_rig_wait(streams[i]);
    for (int i = 0; i < IN_A_ROW; i++) {
        cuda_rig_get(host[i], out[i], sizeof host[i], streams[0]);
        cuda_round_check(&job.host, host[i], i);
        cuda_rig_free(x[i]);
        cuda_rig_free(out[i]);
    }
    check_counters(&counters, streams[0]);
    cuda_job_close(&job);
}
