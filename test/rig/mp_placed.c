/* SPDX-License-Identifier: BSD-3-Clause */

#include "mp_placed.h"

#include <stdlib.h>
#include <string.h>

#include "mp_rig.h"

typedef struct placed {
    const xep_recv_t *recv;
    uintptr_t own; /* memory of this rank's buffer, */
    size_t bytes;  /* so much */
    uint8_t *seen; /* [capacity] rows that came from some rank */
} placed_t;

/* Rows of a mapped source are not in this rank's memory; all others are. */
static void check_source(const placed_t *placed, int stays, uint64_t begin, uint64_t end)
{
    for (uint64_t i = begin; i < end; i++) {
        int own = (uintptr_t)placed->recv->row[i] - placed->own < placed->bytes;
        MP_CHECK(placed->recv->row[i] != NULL && own == !stays);
        placed->seen[i] = 1;
    }
}

void mp_placed_check(xep_group_t *group, const mp_job_t *job, const xep_recv_t *recv)
{
    placed_t placed = {.recv = recv, .seen = calloc(recv->capacity + 1, 1)};
    void *base;
    MP_OK(xep_buffer_memory(job->buffer, &base, &placed.bytes));
    placed.own = (uintptr_t)base;
    MP_CHECK(recv->x == NULL && recv->row != NULL);
    for (uint32_t r = 0; r < mp_nranks(); r++) {
        int stays = r != mp_rank() && mp_is_mapped(group, r);
        if (recv->src_begin != NULL) check_source(&placed, stays, recv->src_begin[r], recv->src_begin[r + 1]);
        for (uint32_t e = 0; recv->src_begin == NULL && e < recv->local_experts; e++) {
            uint64_t pair = (uint64_t)e * mp_nranks() + r, begin = recv->pair_begin[pair];
            check_source(&placed, stays, begin, begin + recv->pair_count[pair]);
        }
    }
    for (uint64_t i = 0; i < recv->capacity; i++) MP_CHECK(placed.seen[i] || recv->row[i] == NULL);
    free(placed.seen);
}

/* Unused rows of the array stay as they were. */
void mp_placed_check_gather(const mp_job_t *job, const xep_handle_t *handle)
{
    const xep_recv_t *recv = mp_recv(handle);
    const uint64_t rows = recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED ? recv->capacity : recv->rows;
    size_t bytes = recv->hidden * xep_dtype_size(recv->dtype), stride = bytes + 24;
    char *dense = mp_alloc(rows * bytes, 0), *apart = mp_alloc(rows * stride, 0), none[4096];
    MP_CHECK(bytes <= sizeof none);
    memset(none, MP_POISON, sizeof none);
    memset(dense, MP_POISON, rows * bytes);
    memset(apart, MP_POISON, rows * stride);
    MP_OK(xep_handle_gather(handle, dense, 0));
    MP_OK(xep_handle_gather(handle, apart, stride));
    for (uint64_t i = 0; i < rows; i++) {
        const void *row = recv->row != NULL ? recv->row[i] : (const char *)recv->x + i * recv->x_stride;
        if (row == NULL) row = none;
        MP_CHECK(memcmp(dense + i * bytes, row, bytes) == 0 && memcmp(apart + i * stride, row, bytes) == 0);
        for (size_t j = bytes; j < stride; j++) MP_CHECK((unsigned char)apart[i * stride + j] == MP_POISON);
    }
    if (bytes > 1) MP_FAILS(XEP_ERR_INVALID, xep_handle_gather(handle, dense, bytes - 1));
    mp_free(dense, "dense");
    mp_free(apart, job->c->name);
}

xep_handle_t *mp_placed_dispatch(xep_group_t *group, mp_job_t *job, uint64_t payload)
{
    xep_handle_t *handle;
    mp_job_payload(job, payload);
    xep_dispatch_args_t args = mp_job_dispatch(job);
    mp_job_place(job, &args);
    MP_OK(xep_dispatch(job->buffer, &args, &handle, NULL));
    mp_job_check_recv(job, handle);
    if (group != NULL) mp_placed_check(group, job, mp_recv(handle));
    return handle;
}

void mp_placed_combine(mp_job_t *job, xep_handle_t *handle)
{
    xep_combine_args_t args = mp_job_combine(job, handle);
    MP_OK(xep_combine(handle, &args, NULL));
    mp_job_check_out(job);
}

/* The rows of a handle do not change while another dispatch, cached or not, comes and goes. */
static void overlap(xep_group_t *group, mp_job_t *job, uint64_t payload)
{
    xep_handle_t *first = mp_placed_dispatch(group, job, payload), *second;
    mp_job_payload(job, payload + 1);
    xep_dispatch_args_t args = mp_job_cached(job, first);
    mp_job_place(job, &args);
    MP_OK(xep_dispatch(job->buffer, &args, &second, NULL));
    mp_job_check_recv(job, second);
    mp_placed_combine(job, second);
    xep_handle_release(second);
    mp_job_payload(job, payload);
    (void)mp_job_dispatch(job); /* checks expect the first again */
    mp_job_check_recv(job, first);
    mp_placed_check_gather(job, first);
    mp_placed_combine(job, first);
    xep_handle_release(first);
}

void mp_placed_shape(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    mp_job_begin(&job, c, 5, group);
    for (uint64_t round = 0; round < 5; round++) overlap(group, &job, round * 10);
    xep_dispatch_args_t args = mp_job_dispatch(&job); /* the same buffer copies, where it is not told otherwise */
    xep_handle_t *handle;
    mp_job_payload(&job, 99);
    MP_OK(xep_dispatch(job.buffer, &args, &handle, NULL));
    mp_job_check_recv(&job, handle);
    mp_placed_check_gather(&job, handle);
    xep_handle_release(handle);
    mp_job_close(&job);
}
