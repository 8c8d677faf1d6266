/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 4, limit: 120 */

/*
 * Rows that are read where their source has them: right in all shapes, nowhere copied where ranks map one another, and
 * in memory that is used again only when all ranks have released them. All of it with checksums (XEP_CHECK_ROWS).
 */

#include <stdlib.h>
#include <string.h>

#include "mp_job.h"
#include "mp_rig.h"

static const mp_case_t shapes[] = {
    {.name = "plain", .experts = 16, .topk = 4, .hidden = 256, .tokens = 96, .weights = 1, .in_place = 1},
    {.name = "odd",
     .experts = 13,
     .topk = 5,
     .hidden = 77,
     .tokens = 61,
     .ragged = 1,
     .mask = 200,
     .nscales = 3,
     .weights = 1,
     .strided = 1,
     .in_place = 1},
    {.name = "one rank sends", .experts = 9, .topk = 9, .hidden = 1, .tokens = 33, .ragged = 2, .in_place = 1},
    {.name = "nobody receives", .experts = 8, .topk = 2, .hidden = 64, .tokens = 10, .mask = 1000, .in_place = 1},
    {.name = "few experts",
     .experts = 2,
     .topk = 1,
     .hidden = 130,
     .tokens = 50,
     .dtype = XEP_FP32,
     .idx_dtype = XEP_INT32,
     .in_place = 1},
    {.name = "elsewhere",
     .experts = 16,
     .topk = 4,
     .hidden = 200,
     .tokens = 64,
     .ragged = 1,
     .strided = 1,
     .weights = 1,
     .biases = 3,
     .threads = 3,
     .fixed_capacity = 1,
     .in_place = 2},
    {.name = "elsewhere, fp8",
     .experts = 24,
     .topk = 6,
     .hidden = 1000,
     .tokens = 70,
     .dtype = XEP_E4M3,
     .nscales = 8,
     .mask = 100,
     .slots = 3,
     .in_place = 2},
};

/* ---- rows are where they should be, and what they should be ---- */

/* Of a mapped source nothing is in this rank's memory; of any other all is. */
static void check_places(xep_group_t *group, const mp_job_t *job, const xep_recv_t *recv)
{
    void *base;
    size_t bytes;
    MP_OK(xep_buffer_memory(job->buffer, &base, &bytes));
    MP_CHECK(recv->x == NULL && recv->row != NULL);
    for (uint32_t r = 0; r < mp_nranks(); r++) {
        xep_peer_info_t peer = XEP_PEER_INFO_INIT;
        MP_OK(xep_group_peer(group, r, &peer));
        for (uint64_t i = recv->src_begin[r]; i < recv->src_begin[r + 1]; i++) {
            int own = (uintptr_t)recv->row[i] - (uintptr_t)base < bytes;
            MP_CHECK(own == (r == mp_rank() || !peer.mapped));
        }
    }
    for (uint64_t i = recv->rows; i < recv->capacity; i++) MP_CHECK(recv->row[i] == NULL);
}

static void check_gather(const mp_job_t *job, const xep_handle_t *handle)
{
    const xep_recv_t *recv = xep_handle_recv(handle);
    size_t bytes = recv->hidden * xep_dtype_size(recv->dtype), stride = bytes + 24;
    char *dense = mp_alloc(recv->rows * bytes, 0), *apart = mp_alloc(recv->rows * stride, 0);
    memset(apart, MP_POISON, recv->rows * stride);
    MP_OK(xep_handle_gather(handle, dense, 0));
    MP_OK(xep_handle_gather(handle, apart, stride));
    for (uint64_t i = 0; i < recv->rows; i++) {
        const void *row = recv->row != NULL ? recv->row[i] : (const char *)recv->x + i * recv->x_stride;
        MP_CHECK(memcmp(dense + i * bytes, row, bytes) == 0 && memcmp(apart + i * stride, row, bytes) == 0);
        for (size_t j = bytes; j < stride; j++) MP_CHECK((unsigned char)apart[i * stride + j] == MP_POISON);
    }
    if (bytes > 1) MP_FAILS(XEP_ERR_INVALID, xep_handle_gather(handle, dense, bytes - 1));
    mp_free(dense, "dense");
    mp_free(apart, job->c->name);
}

static xep_handle_t *dispatch(xep_group_t *group, mp_job_t *job, uint64_t payload)
{
    xep_handle_t *handle;
    mp_job_payload(job, payload);
    xep_dispatch_args_t args = mp_job_dispatch(job);
    mp_job_place(job, &args);
    MP_OK(xep_dispatch(job->buffer, &args, &handle, NULL));
    mp_job_check_recv(job, handle);
    if (group != NULL) check_places(group, job, xep_handle_recv(handle));
    return handle;
}

static void combine(mp_job_t *job, xep_handle_t *handle)
{
    xep_combine_args_t args = mp_job_combine(job, handle);
    MP_OK(xep_combine(handle, &args, NULL));
    mp_job_check_out(job);
}

/* The rows of a handle stay as they are while the next dispatch, cached or not, has come and gone. */
static void overlap(xep_group_t *group, mp_job_t *job, uint64_t payload)
{
    xep_handle_t *first = dispatch(group, job, payload), *second;
    mp_job_payload(job, payload + 1);
    xep_dispatch_args_t args = mp_job_cached(job, first);
    mp_job_place(job, &args);
    MP_OK(xep_dispatch(job->buffer, &args, &second, NULL));
    mp_job_check_recv(job, second);
    combine(job, second);
    xep_handle_release(second);
    mp_job_payload(job, payload);
    (void)mp_job_dispatch(job); /* checks expect the first again */
    mp_job_check_recv(job, first);
    check_gather(job, first);
    combine(job, first);
    xep_handle_release(first);
}

static void shape(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    mp_job_open(&job, c, 5);
    mp_job_buffer(&job, group);
    for (uint64_t round = 0; round < 5; round++) overlap(group, &job, round * 10);
    xep_dispatch_args_t args = mp_job_dispatch(&job); /* the same buffer copies, where it is not told otherwise */
    xep_handle_t *handle;
    mp_job_payload(&job, 99);
    MP_OK(xep_dispatch(job.buffer, &args, &handle, NULL));
    mp_job_check_recv(&job, handle);
    check_gather(&job, handle);
    xep_handle_release(handle);
    mp_job_close(&job);
}

/* ---- memory is used again when all have released, and not before ---- */

static const mp_case_t held =
    {.name = "held", .experts = 8, .topk = 8, .hidden = 64, .tokens = 20, .slots = 2, .in_place = 1};

/* Each of three ranks holds one of three handles: no memory is free on any rank, and rows are copied then. */
static void held_by_others(xep_group_t *group)
{
    mp_job_t job;
    mp_case_t c = held;
    xep_handle_t *handle, *mine = NULL;
    void *base;
    size_t stride;
    uint32_t most = 3;
    c.timeout_ms = mp_rank() == most ? 500 : 60000; /* the one that waits in vain; the others wait for it */
    mp_job_open(&job, &c, 6);
    mp_job_buffer(&job, group);
    for (uint32_t i = 0; i < most; i++) {
        handle = dispatch(group, &job, i);
        if (mp_rank() == i) mine = handle;
        else xep_handle_release(handle);
    }
    MP_OK(xep_group_barrier(group));
    if (mp_rank() == most) {
        MP_FAILS(XEP_ERR_TIMEOUT, xep_buffer_send_memory(job.buffer, &base, &stride));
        MP_CHECK(strstr(xep_last_error(), "peers have not released handles") != NULL);
    }
    MP_OK(xep_group_barrier(group));
    c.in_place = 2; /* the case that the job looks at */
    handle = dispatch(NULL, &job, 50);
    const xep_recv_t *recv = xep_handle_recv(handle);
    MP_OK(xep_buffer_memory(job.buffer, &base, &stride));
    for (uint64_t i = 0; i < recv->rows; i++) MP_CHECK((uintptr_t)recv->row[i] - (uintptr_t)base < stride);
    xep_handle_release(handle);
    c.in_place = 1;
    if (mine != NULL) {
        mp_job_payload(&job, mp_rank());
        mp_job_check_recv(&job, mine);
        xep_handle_release(mine);
    }
    for (uint64_t i = 0; i < 4; i++) xep_handle_release(dispatch(group, &job, 60 + i));
    mp_job_close(&job);
}

/* ---- mistakes ---- */

/* Rank 0 writes a row that others may still read: it is told when that memory comes up again. */
static void changed_too_early(xep_group_t *group)
{
    mp_job_t job;
    void *base;
    size_t stride;
    mp_job_open(&job, &held, 7);
    mp_job_buffer(&job, group);
    MP_OK(xep_buffer_send_memory(job.buffer, &base, &stride));
    xep_handle_t *handle = dispatch(group, &job, 1);
    MP_OK(xep_group_barrier(group));
    ((char *)base)[3 * stride + 1] ^= mp_rank() == 0 ? 0x40 : 0;
    xep_handle_release(handle);
    MP_OK(xep_group_barrier(group));
    xep_status_t status = xep_buffer_send_memory(job.buffer, &base, &stride);
    MP_CHECK(status == (mp_rank() == 0 ? XEP_ERR_INVALID : XEP_OK));
    if (mp_rank() == 0) MP_CHECK(strstr(xep_last_error(), "row 3 of dispatch 1 was changed") != NULL);
    for (uint64_t i = 0; i < 3; i++) xep_handle_release(dispatch(group, &job, i));
    mp_job_close(&job);
}

/* All ranks make the same mistake, so that they stay in step. */
static void refuse(mp_job_t *job, xep_dispatch_args_t args, const char *why)
{
    xep_handle_t *handle = NULL;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job->buffer, &args, &handle, NULL));
    if (strstr(xep_last_error(), why) == NULL) mp_fail(__FILE__, __LINE__, "%s: %s", why, xep_last_error());
    MP_CHECK(handle == NULL);
}

static void wrong_rows(xep_group_t *group)
{
    mp_job_t job;
    xep_handle_t *handle;
    mp_job_open(&job, &held, 8);
    mp_job_buffer(&job, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job), wrong;
    mp_job_place(&job, &args);
    wrong = args;
    wrong.x_stride = args.x_stride + 64;
    refuse(&job, wrong, "invalid x_stride: 192 (128");
    wrong = args;
    wrong.x = (const char *)args.x + 2 * args.x_stride;
    refuse(&job, wrong, "20 rows (rows of the memory that xep_buffer_send_memory() returned");
    wrong = args;
    wrong.x = (const char *)args.x - args.x_stride; /* in front of it */
    refuse(&job, wrong, "rows of the memory");
    wrong = args;
    wrong.capacity = 1;
    MP_FAILS(XEP_ERR_OVERFLOW, xep_dispatch(job.buffer, &wrong, &handle, NULL));
    MP_OK(xep_dispatch(job.buffer, &args, &handle, NULL)); /* the same rows, not asked for again */
    mp_job_check_recv(&job, handle);
    refuse(&job, args, "rows of the memory"); /* a dispatch has them */
    xep_handle_release(handle);
    args = mp_job_dispatch(&job);
    if (mp_rank() != 0) args.flags |= XEP_DISPATCH_IN_PLACE;
    MP_FAILS(XEP_ERR_MISMATCH, xep_dispatch(job.buffer, &args, &handle, NULL));
    MP_CHECK(strstr(xep_last_error(), "disagree on whether rows are read in place") != NULL);
    for (uint64_t i = 0; i < 4; i++) xep_handle_release(dispatch(group, &job, i));
    mp_job_close(&job);
}

/* Between the rows of one token there are no bytes: what a tensor of one row says there is of no meaning. */
static void one_token(xep_group_t *group)
{
    mp_case_t c = held;
    mp_job_t job;
    xep_handle_t *handle;
    c.tokens = 1, c.hidden = 4096;
    mp_job_open(&job, &c, 12);
    mp_job_buffer(&job, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    mp_job_place(&job, &args);
    args.x_stride += 64;
    MP_OK(xep_dispatch(job.buffer, &args, &handle, NULL));
    mp_job_check_recv(&job, handle);
    xep_handle_release(handle);
    mp_job_close(&job);
}

static void wrong_buffers(xep_group_t *group)
{
    mp_job_t job;
    mp_case_t c = held;
    void *base;
    size_t stride;
    c.mode = "ll";
    mp_job_open(&job, &c, 9);
    MP_FAILS(XEP_ERR_UNSUPPORTED, mp_job_try_buffer(&job, group));
    MP_CHECK(strstr(xep_last_error(), "mode ll copies every row") != NULL);
    mp_job_close(&job);
    c = held;
    c.on_failure = XEP_ON_FAILURE_MASK;
    mp_job_open(&job, &c, 9);
    MP_FAILS(XEP_ERR_UNSUPPORTED, mp_job_try_buffer(&job, group));
    mp_job_close(&job);
    c = held;
    c.in_place = 0;
    mp_job_open(&job, &c, 9);
    mp_job_buffer(&job, group);
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_buffer_send_memory(job.buffer, &base, &stride));
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    xep_handle_t *handle;
    args.flags |= XEP_DISPATCH_IN_PLACE;
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_dispatch(job.buffer, &args, &handle, NULL));
    MP_CHECK(strstr(xep_last_error(), "without XEP_BUFFER_SEND_MEMORY") != NULL);
    mp_job_close(&job);
}

/* A reset ends handles as a release does, and forgets what was handed out. */
static void reset(xep_group_t *group)
{
    mp_job_t job;
    mp_job_open(&job, &held, 11);
    mp_job_buffer(&job, group);
    for (uint64_t round = 0; round < 5; round++) {
        (void)dispatch(group, &job, round);
        (void)dispatch(group, &job, round + 1);
        MP_OK(xep_buffer_reset(job.buffer));
    }
    mp_job_close(&job);
}

int main(void)
{
    setenv("XEP_CHECK_ROWS", "yes", 1);
    xep_group_t *group = mp_group();
    xep_group_info_t info = XEP_GROUP_INFO_INIT;
    MP_OK(xep_group_query(group, &info));
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) shape(group, &shapes[i]);
    wrong_rows(group);
    wrong_buffers(group);
    one_token(group);
    reset(group);
    if (info.nnodes == 1) {
        changed_too_early(group);
        if (mp_nranks() >= 4) held_by_others(group);
    }
    xep_group_destroy(group);
    return 0;
}
