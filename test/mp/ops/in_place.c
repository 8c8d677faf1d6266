/* SPDX-License-Identifier: BSD-3-Clause */

/* ranks: 1 4, limit: 120 */

/*
 * Rows that are read where their source has them, or has cast them to, in both modes: right in all shapes, nowhere
 * copied where ranks map one another, and in memory that is used again only when all ranks have released them.
 */

#include <stdlib.h>
#include <string.h>

#include "mp_job.h"
#include "mp_rig.h"

/* ---- where rows are, and what they are ---- */

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

/* Rows of mapped sources are in their memory, all others in this rank's. */
static void check_places(xep_group_t *group, const mp_job_t *job, const xep_recv_t *recv)
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
static void check_gather(const mp_job_t *job, const xep_handle_t *handle)
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

/* One dispatch of that payload, its rows in place as the case says; group NULL: wherever they are. */
static xep_handle_t *receive(xep_group_t *group, mp_job_t *job, uint64_t payload)
{
    mp_job_payload(job, payload);
    xep_dispatch_args_t args = mp_job_dispatch(job);
    mp_job_place(job, &args);
    xep_handle_t *handle = mp_job_receive(job, &args);
    if (group != NULL) check_places(group, job, mp_recv(handle));
    return handle;
}

/* So many, each released, of payloads that no earlier dispatch has left in the memory. */
static void rounds(xep_group_t *group, mp_job_t *job, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) xep_handle_release(receive(group, job, 60 + i));
}

/* The rows of a handle do not change while another dispatch, cached, comes and goes. */
static void overlap(xep_group_t *group, mp_job_t *job, uint64_t payload)
{
    xep_handle_t *first = receive(group, job, payload), *second;
    mp_job_payload(job, payload + 1);
    xep_dispatch_args_t args = mp_job_cached(job, first);
    mp_job_place(job, &args);
    second = mp_job_receive(job, &args);
    mp_job_sum(job, second);
    xep_handle_release(second);
    mp_job_payload(job, payload);
    (void)mp_job_dispatch(job); /* checks expect the first again */
    mp_job_check_recv(job, first);
    check_gather(job, first);
    mp_job_sum(job, first);
    xep_handle_release(first);
}

/* In the end the same buffer copies, as it is not told otherwise. */
static void run_shape(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    mp_job_begin(&job, c, 5, group);
    for (uint64_t round = 0; round < 2; round++) overlap(group, &job, round * 10);
    mp_job_payload(&job, 99);
    xep_handle_t *handle = mp_job_receive(&job, NULL);
    check_gather(&job, handle);
    xep_handle_release(handle);
    mp_job_close(&job);
}

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
    c.timeout_ms =
        mp_rank() == most ? 3 * MP_VAIN_MS : MP_FAR_MS; /* the one that waits in vain; the others wait for it */
    mp_job_begin(&job, &c, 6, group);
    for (uint32_t i = 0; i < most; i++) {
        handle = receive(group, &job, i);
        if (mp_rank() == i) mine = handle;
        else xep_handle_release(handle);
    }
    MP_OK(xep_group_barrier(group));
    if (mp_rank() == most) {
        MP_SAYS(XEP_ERR_TIMEOUT, "peers have not released handles", xep_buffer_send_memory(job.buffer, &base, &stride));
    }
    MP_OK(xep_group_barrier(group));
    c.in_place = 2; /* the case that the job looks at */
    handle = receive(NULL, &job, 50);
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
    rounds(group, &job, 4);
    mp_job_close(&job);
}

/* ---- mistakes ---- */

/* All ranks make the same mistake, so that they stay in step. */
static void wrong_rows(xep_group_t *group, const char *mode)
{
    const mp_case_t c = held_in(mode);
    mp_job_t job;
    mp_job_begin(&job, &c, 8, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job), wrong;
    mp_job_place(&job, &args);
    wrong = args;
    wrong.x_stride = args.x_stride + 64;
    MP_REFUSES(&job, &wrong, XEP_ERR_INVALID, "(128, as xep_buffer_send_memory() returned)");
    wrong = args;
    wrong.x = (const char *)args.x + 2 * args.x_stride;
    MP_REFUSES(&job, &wrong, XEP_ERR_INVALID, "20 rows (rows of the memory that xep_buffer_send_memory() returned");
    wrong = args;
    wrong.x = (const char *)args.x - args.x_stride; /* in front of it */
    MP_REFUSES(&job, &wrong, XEP_ERR_INVALID, "rows of the memory");
    wrong = args;
    wrong.capacity = 1;
    MP_REFUSES(&job, &wrong, XEP_ERR_OVERFLOW, "room for 1");
    xep_handle_t *handle = mp_job_receive(&job, &args);             /* the same rows, not asked for again */
    MP_REFUSES(&job, &args, XEP_ERR_INVALID, "rows of the memory"); /* a dispatch has them */
    xep_handle_release(handle);
    args = mp_job_dispatch(&job);
    if (mp_rank() != 0) args.flags |= XEP_DISPATCH_IN_PLACE;
    MP_REFUSES(&job, &args, XEP_ERR_MISMATCH, "disagree on whether rows are read in place");
    rounds(group, &job, 4);
    mp_job_close(&job);
}

/* Between the rows of one token there are no bytes: what a tensor of one row says there is of no meaning. */
static void one_token(xep_group_t *group, const char *mode)
{
    mp_case_t c = held_in(mode);
    mp_job_t job;
    c.tokens = 1, c.hidden = 4096;
    mp_job_begin(&job, &c, 12, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    mp_job_place(&job, &args);
    args.x_stride += 64;
    xep_handle_release(mp_job_receive(&job, &args));
    mp_job_close(&job);
}

/* Rows of a dispatch that has not begun are its own already: what may be written then is other memory. */
static void before_begun(xep_group_t *group, const char *mode)
{
    const mp_case_t c = held_in(mode);
    mp_job_t job;
    xep_handle_t *first, *second;
    xep_request_t *before, *req;
    void *again;
    size_t stride;
    mp_job_begin(&job, &c, 14, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &args, &first, &before));
    mp_job_place(&job, &args);
    args.after = before;
    MP_OK(xep_dispatch(job.buffer, &args, &second, &req));
    MP_OK(xep_buffer_send_memory(job.buffer, &again, &stride));
    MP_CHECK(again != args.x);
    memset(again, MP_POISON, c.tokens * stride);
    mp_finish(before);
    mp_finish(req);
    mp_job_check_recv(&job, second);
    xep_handle_release(second);
    xep_handle_release(first);
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
    MP_SAYS(XEP_ERR_UNSUPPORTED, "invalid flags: XEP_BUFFER_SEND_MEMORY with XEP_ON_FAILURE_MASK",
            mp_job_try_buffer(&job, group));
    mp_job_close(&job);
    c = held_in(mode);
    c.in_place = 0;
    mp_job_begin(&job, &c, 9, group);
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_buffer_send_memory(job.buffer, &base, &stride));
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    args.flags |= XEP_DISPATCH_IN_PLACE;
    MP_REFUSES(&job, &args, XEP_ERR_UNSUPPORTED, "without XEP_BUFFER_SEND_MEMORY");
    mp_job_close(&job);
}

/* A reset ends handles as a release does, and forgets what was handed out. */
static void reset(xep_group_t *group, const char *mode)
{
    const mp_case_t c = held_in(mode);
    mp_job_t job;
    mp_job_begin(&job, &c, 11, group);
    for (uint64_t round = 0; round < 5; round++) {
        (void)receive(group, &job, round);
        (void)receive(group, &job, round + 1);
        MP_OK(xep_buffer_reset(job.buffer));
    }
    mp_job_close(&job);
}

/* ---- mode ll: received in another order than sent ---- */

/*
 * Rows that are cast are other rows than the user's: send memory stays the user's. Padded and compact, received in
 * another order than sent, and summed.
 */
static void in_flight(xep_group_t *group, xep_quant_t quant)
{
    mp_case_t c = {.name = "in flight", .mode = "ll", .experts = 8, .topk = 8, .tokens = 20, .in_place = 1};
    mp_job_t job;
    xep_handle_t *handle[2];
    xep_request_t *req[2];
    void *base, *again;
    size_t stride;
    c.quant = quant, c.weights = 1, c.hidden = 300, c.ragged = 1, c.slots = 3;
    mp_job_begin(&job, &c, 13, group);
    for (uint64_t round = 0; round < 4; round++) {
        for (uint64_t i = 0; i < 2; i++) {
            mp_job_payload(&job, 2 * round + i);
            xep_dispatch_args_t args = mp_job_dispatch(&job);
            mp_job_place(&job, &args);
            MP_OK(xep_buffer_send_memory(job.buffer, &base, &stride));
            args.arrangement = i == 0 ? XEP_ROWS_BY_EXPERT_PADDED : XEP_ROWS_BY_EXPERT_COMPACT;
            MP_OK(xep_dispatch(job.buffer, &args, &handle[i], &req[i]));
            MP_OK(xep_buffer_send_memory(job.buffer, &again, &stride));
            MP_CHECK((again == base) == (quant != XEP_QUANT_NONE || job.tokens == 0));
            memset(again, MP_POISON, c.tokens * stride);
        }
        for (uint64_t i = 2; i-- > 0;) {
            MP_OK(xep_request_wait(req[i]));
            xep_request_free(req[i]);
            mp_job_payload(&job, 2 * round + i);
            (void)mp_job_dispatch(&job);
            job.shape.padded = i == 0, job.shape.room = c.tokens;
            mp_job_check_recv(&job, handle[i]);
            check_places(group, &job, mp_recv(handle[i]));
            check_gather(&job, handle[i]);
            mp_job_sum(&job, handle[i]);
            xep_handle_release(handle[i]);
        }
    }
    mp_job_close(&job);
}

static void every_mode(xep_group_t *group, const char *mode, int one_node)
{
    wrong_rows(group, mode);
    wrong_buffers(group, mode);
    one_token(group, mode);
    before_begun(group, mode);
    reset(group, mode);
    if (!one_node) return;
    if (mp_nranks() >= 4) held_by_others(group, mode);
}

int main(void)
{
    xep_group_t *group = mp_group();
    for (uint32_t m = 0; m < 2; m++) {
        for (uint32_t i = 0; i < MP_SHAPES; i = mp_next_shape(i)) {
            mp_case_t c = mp_shape(i, mp_modes[m]);
            c.in_place = 1 + (i + m) % 2;
            run_shape(group, &c);
        }
        if (mp_nranks() > 1) every_mode(group, mp_modes[m], mp_group_info(group).nnodes == 1);
    }
    in_flight(group, XEP_QUANT_NONE);
    in_flight(group, XEP_QUANT_E4M3);
    return mp_end(group);
}
