/* SPDX-License-Identifier: BSD-3-Clause */

/* Every byte as with counts that are waited for, and no call that waits. */
#include "cuda_parts.h"

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

enum { ROUNDS = 3 };

#define FIXED .memory = XEP_MEMORY_CUDA, .fixed_capacity = 1
static const mp_case_t cases[] = {
    {.name = "plain there", MP_SHAPE(32, 4, 256, 65), FIXED},
    {.name = "ragged there",
     MP_SHAPE(24, 6, 200, 40),
     .ragged = 1,
     .mask = 50,
     .weights = 1,
     .alignment = 8,
     .copy_in = 1,
     FIXED},
    {.name = "only rank 0 there", MP_SHAPE(9, 3, 72, 33), .ragged = 2, .weights = 1, FIXED},
    {.name = "no weights there", MP_SHAPE(9, 3, 72, 33), .ragged = 2, FIXED},
    {.name = "odd there",
     MP_SHAPE(61, 5, 333, 70),
     .nscales = 3,
     .dtype = XEP_E4M3,
     .combine_dtype = XEP_FP32,
     .idx_dtype = XEP_INT32,
     .biases = 1,
     .weights = 1,
     .strided = 1,
     FIXED},
    {.name = "cast there", MP_SHAPE(24, 6, 1024, 40), .ragged = 1, .quant = XEP_QUANT_INT8, .weights = 1, FIXED},
};

/* A dispatch, one with its routing, and combines of both. Every other round waits for counts. */
static void run_case(xep_group_t *group, const mp_case_t *c, void *streams[2])
{
    cuda_job_t job;
    xep_handle_t *first, *again;
    cuda_job_open(&job, c, 17, group, streams[0]);
    for (int i = 0; i < 2 * ROUNDS; i++) {
        cuda_job_payload(&job, 100 + (uint64_t)i);
        cuda_rig_wait(job.stream);
        job.stream = streams[i % 2];
        job.counts_there = i % 3 != 0;
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        MP_OK(xep_dispatch(job.host.buffer, &a, &first, NULL));
        cuda_job_check_recv(&job, first);
        cuda_job_combine(&job, first);
        cuda_job_payload(&job, 200 + (uint64_t)i);
        job.counts_there = 1; /* the routing of one whose counts the host knows will do, too */
        a = cuda_job_dispatch(&job, first);
        MP_OK(xep_dispatch(job.host.buffer, &a, &again, NULL));
        cuda_job_check_recv(&job, again);
        xep_handle_release(first);
        cuda_job_combine(&job, again);
        xep_handle_release(again);
    }
    cuda_job_close(&job);
}

/* ---- what is refused ---- */

static void refused_at_once(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "at once", MP_SHAPE(8, 2, 64, 16), FIXED};
    cuda_job_t job;
    xep_handle_t *handle, *none = NULL;
    uint64_t rows;
    cuda_job_open(&job, &c, 5, group, stream);
    job.counts_there = 1;
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.recv_rows_p = &rows;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job.host.buffer, &a, &none, NULL));
    MP_REASON("recv_rows_p must be NULL");
    a = cuda_job_dispatch(&job, NULL);
    a.capacity = 0;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job.host.buffer, &a, &none, NULL));
    MP_REASON("invalid capacity: 0");
    a = cuda_job_dispatch(&job, NULL);
    MP_OK(xep_dispatch(job.host.buffer, &a, &handle, NULL));
    a = cuda_job_dispatch(&job, handle);
    a.flags = 0;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job.host.buffer, &a, &none, NULL));
    MP_REASON("XEP_DISPATCH_COUNTS_THERE, as the cached handle has");
    cuda_job_check_recv(&job, handle);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

/* Rows have no experts and a combine writes nothing; then all are told why, and go on after a reset. */
static void told_later(cuda_job_t *job, const xep_dispatch_args_t *a, const char *reason)
{
    xep_handle_t *handle, *next = NULL;
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    b.out = job->out;
    b.stream = job->stream;
    MP_OK(xep_dispatch(job->host.buffer, a, &handle, NULL));
    const xep_recv_t *recv = mp_recv(handle);
    int64_t first = 0;
    uint64_t came = 1;
    cuda_rig_get(&first, recv->topk_idx, sizeof first, job->stream);
    cuda_rig_get(&came, recv->src_begin + mp_nranks(), sizeof came, job->stream);
    MP_CHECK(first == -1 && came == 0);
    MP_CHECK(mp_input(handle, NULL) != NULL);
    MP_FAILS(XEP_ERR_PROTOCOL, xep_combine(handle, &b, NULL));
    MP_REASON(reason);
    MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(job->host.buffer, a, &next, NULL));
    MP_OK(xep_buffer_reset(job->host.buffer));
    cuda_job_round(job);
}

static void refused_later(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "later", MP_SHAPE(8, 2, 64, 16), FIXED};
    cuda_job_t job;
    cuda_job_open(&job, &c, 5, group, stream);
    job.counts_there = 1;
    cuda_job_round(&job);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.capacity = 1;
    told_later(&job, &a, "it has room for 1");
    a = cuda_job_dispatch(&job, NULL);
    a.hidden = 32 + mp_rank() % 2;
    if (mp_nranks() > 1) told_later(&job, &a, "rank 0 and rank 1 disagree on hidden: 32, 33");
    cuda_job_wrong_index(&job);
    cuda_job_close(&job);
}

static void late_rank(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "late there", MP_SHAPE(8, 2, 64, 16), FIXED};
    cuda_job_t job;
    if (mp_nranks() == 1) return;
    cuda_job_open(&job, &c, 5, group, stream);
    job.counts_there = 1;
    cuda_job_late_rank(&job);
    cuda_job_close(&job);
}

void cuda_there(xep_group_t *group, void *streams[2])
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(group, &cases[i], streams);
    refused_at_once(group, streams[0]);
    refused_later(group, streams[0]);
    late_rank(group, streams[0]);
}
