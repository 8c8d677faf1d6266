/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 4, limit: 120 */

/*
 * Rows that are read where their source has them, in both modes: right in all shapes, nowhere copied where ranks map
 * one another, and in memory that is used again only when all ranks have released them. All of it with checksums
 * (XEP_CHECK_ROWS).
 */

#include <stdlib.h>
#include <string.h>

#include "mp_placed.h"
#include "mp_rig.h"

static const mp_case_t shapes[] = {
    {.name = "plain", MP_SHAPE(16, 4, 256, 96), .weights = 1, .in_place = 1},
    {.name = "odd",
     MP_SHAPE(13, 5, 77, 61),
     .ragged = 1,
     .mask = 200,
     .nscales = 3,
     .scales_dtype = XEP_U8,
     .payloads = 3,
     .weights = 1,
     .strided = 1,
     .in_place = 1},
    {.name = "one rank sends", MP_SHAPE(9, 9, 1, 33), .ragged = 2, .in_place = 1},
    {.name = "mxfp8", MP_SHAPE(13, 5, 77, 61), .weights = 1, .payloads = 8, .quant = XEP_QUANT_MXFP8, .in_place = 1},
    {.name = "nvfp4, elsewhere", MP_SHAPE(16, 4, 200, 64), .strided = 1, .quant = XEP_QUANT_NVFP4, .in_place = 2},
    {.name = "nobody receives", MP_SHAPE(8, 2, 64, 10), .mask = 1000, .in_place = 1},
    {.name = "few experts", MP_SHAPE(2, 1, 130, 50), .dtype = XEP_FP32, .idx_dtype = XEP_INT32, .in_place = 1},
    {.name = "elsewhere",
     MP_SHAPE(16, 4, 200, 64),
     .ragged = 1,
     .strided = 1,
     .weights = 1,
     .biases = 3,
     .threads = 3,
     .fixed_capacity = 1,
     .in_place = 2},
    {.name = "elsewhere, fp8",
     MP_SHAPE(24, 6, 1000, 70),
     .dtype = XEP_E4M3,
     .nscales = 8,
     .mask = 100,
     .slots = 3,
     .in_place = 2},
};

/* ---- memory is used again when all have released, and not before ---- */

static mp_case_t held_in(const char *mode)
{
    return (mp_case_t){.name = "held", .mode = mode, MP_SHAPE(8, 8, 64, 20), .slots = 2, .in_place = 1};
}

/* Each of three ranks holds one of three handles: no memory is free on any rank, and rows are copied then. */
static void held_by_others(xep_group_t *group, const char *mode)
{
    mp_job_t job;
    mp_case_t c = held_in(mode);
    xep_handle_t *handle, *mine = NULL;
    void *base;
    size_t stride;
    uint32_t most = 3;
    c.timeout_ms = mp_rank() == most ? 500 : 60000; /* the one that waits in vain; the others wait for it */
    mp_job_begin(&job, &c, 6, group);
    for (uint32_t i = 0; i < most; i++) {
        handle = mp_placed_dispatch(group, &job, i);
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
    handle = mp_placed_dispatch(NULL, &job, 50);
    const xep_recv_t *recv = mp_recv(handle);
    MP_OK(xep_buffer_memory(job.buffer, &base, &stride));
    for (uint64_t i = 0; i < recv->rows; i++) MP_CHECK((uintptr_t)recv->row[i] - (uintptr_t)base < stride);
    xep_handle_release(handle);
    c.in_place = 1;
    if (mine != NULL) {
        mp_job_payload(&job, mp_rank());
        mp_job_check_recv(&job, mine);
        xep_handle_release(mine);
    }
    for (uint64_t i = 0; i < 4; i++) xep_handle_release(mp_placed_dispatch(group, &job, 60 + i));
    mp_job_close(&job);
}

/* ---- mistakes ---- */

/* Rank 0 writes a row that others may still read: it is told when that memory comes up again. */
static void changed_too_early(xep_group_t *group, const char *mode)
{
    const mp_case_t c = held_in(mode);
    mp_job_t job;
    void *base;
    size_t stride;
    mp_job_begin(&job, &c, 7, group);
    MP_OK(xep_buffer_send_memory(job.buffer, &base, &stride));
    xep_handle_t *handle = mp_placed_dispatch(group, &job, 1);
    MP_OK(xep_group_barrier(group));
    ((char *)base)[3 * stride + 1] ^= mp_rank() == 0 ? 0x40 : 0;
    xep_handle_release(handle);
    MP_OK(xep_group_barrier(group));
    xep_status_t status = xep_buffer_send_memory(job.buffer, &base, &stride);
    MP_CHECK(status == (mp_rank() == 0 ? XEP_ERR_INVALID : XEP_OK));
    if (mp_rank() == 0) MP_CHECK(strstr(xep_last_error(), "row 3 of dispatch 1 was changed") != NULL);
    for (uint64_t i = 0; i < 3; i++) xep_handle_release(mp_placed_dispatch(group, &job, i));
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

static void wrong_rows(xep_group_t *group, const char *mode)
{
    const mp_case_t c = held_in(mode);
    mp_job_t job;
    xep_handle_t *handle;
    mp_job_begin(&job, &c, 8, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job), wrong;
    mp_job_place(&job, &args);
    wrong = args;
    wrong.x_stride = args.x_stride + 64;
    refuse(&job, wrong, "(128, as xep_buffer_send_memory() returned)");
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
    for (uint64_t i = 0; i < 4; i++) xep_handle_release(mp_placed_dispatch(group, &job, i));
    mp_job_close(&job);
}

/* Between the rows of one token there are no bytes: what a tensor of one row says there is of no meaning. */
static void one_token(xep_group_t *group, const char *mode)
{
    mp_case_t c = held_in(mode);
    mp_job_t job;
    xep_handle_t *handle;
    c.tokens = 1, c.hidden = 4096;
    mp_job_begin(&job, &c, 12, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    mp_job_place(&job, &args);
    args.x_stride += 64;
    MP_OK(xep_dispatch(job.buffer, &args, &handle, NULL));
    mp_job_check_recv(&job, handle);
    xep_handle_release(handle);
    mp_job_close(&job);
}

static void wrong_buffers(xep_group_t *group, const char *mode)
{
    mp_job_t job;
    mp_case_t c = held_in(mode);
    void *base;
    size_t stride;
    c.on_failure = XEP_ON_FAILURE_MASK;
    mp_job_open(&job, &c, 9);
    MP_FAILS(XEP_ERR_UNSUPPORTED, mp_job_try_buffer(&job, group));
    MP_REASON("invalid flags: XEP_BUFFER_SEND_MEMORY with XEP_ON_FAILURE_MASK");
    mp_job_close(&job);
    c = held_in(mode);
    c.in_place = 0;
    mp_job_begin(&job, &c, 9, group);
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_buffer_send_memory(job.buffer, &base, &stride));
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    xep_handle_t *handle;
    args.flags |= XEP_DISPATCH_IN_PLACE;
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_dispatch(job.buffer, &args, &handle, NULL));
    MP_CHECK(strstr(xep_last_error(), "without XEP_BUFFER_SEND_MEMORY") != NULL);
    mp_job_close(&job);
}

/* A reset ends handles as a release does, and forgets what was handed out. */
static void reset(xep_group_t *group, const char *mode)
{
    const mp_case_t c = held_in(mode);
    mp_job_t job;
    mp_job_begin(&job, &c, 11, group);
    for (uint64_t round = 0; round < 5; round++) {
        (void)mp_placed_dispatch(group, &job, round);
        (void)mp_placed_dispatch(group, &job, round + 1);
        MP_OK(xep_buffer_reset(job.buffer));
    }
    mp_job_close(&job);
}

static void every_mode(xep_group_t *group, const char *mode, int one_node)
{
    wrong_rows(group, mode);
    wrong_buffers(group, mode);
    one_token(group, mode);
    reset(group, mode);
    if (!one_node) return;
    changed_too_early(group, mode);
    if (mp_nranks() >= 4) held_by_others(group, mode);
}

int main(void)
{
    setenv("XEP_CHECK_ROWS", "yes", 1);
    xep_group_t *group = mp_group();
    xep_group_info_t info = XEP_GROUP_INFO_INIT;
    MP_OK(xep_group_query(group, &info));
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) mp_placed_shape(group, &shapes[i]);
    every_mode(group, "normal", info.nnodes == 1);
    every_mode(group, "ll", info.nnodes == 1);
    xep_group_destroy(group);
    return 0;
}
