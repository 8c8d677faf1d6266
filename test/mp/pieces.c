/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 3 5, limit: 180 */

/*
 * Dispatches that come in pieces: all rows of all pieces, and the sums of their outputs, against the oracle, which
 * knows of no pieces.
 */

#include <stdlib.h>
#include <string.h>

#include "mp_pieces.h"
#include "mp_rig.h"

static const mp_case_t cases[] = {
    {.name = "even", .experts = 16, .topk = 4, .hidden = 128, .tokens = 37, .weights = 1, .recv_rows = 16},
    {.name = "by default", .experts = 16, .topk = 2, .hidden = 64, .tokens = 50, .weights = 1, .routing = "zipf:1.2"},
    {.name = "a row at a time",
     .experts = 7,
     .topk = 3,
     .hidden = 5,
     .tokens = 6,
     .ragged = 1,
     .weights = 1,
     .recv_rows = 1},
    {.name = "all to one rank",
     .routing = "one-rank",
     .experts = 64,
     .topk = 2,
     .hidden = 96,
     .tokens = 50,
     .weights = 1,
     .recv_rows = 40,
     .copy_in = 1},
    {.name = "one rank sends",
     .experts = 9,
     .topk = 9,
     .hidden = 33,
     .tokens = 40,
     .ragged = 2,
     .nscales = 3,
     .weights = 1,
     .recv_rows = 7},
    {.name = "odd, strided",
     .experts = 13,
     .topk = 5,
     .hidden = 127,
     .tokens = 33,
     .ragged = 1,
     .mask = 300,
     .idx_dtype = XEP_INT32,
     .strided = 1,
     .weights = 1,
     .biases = 3,
     .alignment = 4,
     .copy_in = 1,
     .recv_rows = 11},
    {.name = "fp8 with scales",
     .experts = 16,
     .topk = 4,
     .hidden = 256,
     .tokens = 30,
     .dtype = XEP_E4M3,
     .nscales = 2,
     .copy_in = 1,
     .recv_rows = 13},
    {.name = "fp32, threads",
     .experts = 16,
     .topk = 4,
     .hidden = 100,
     .tokens = 61,
     .dtype = XEP_FP32,
     .combine_dtype = XEP_FP32,
     .biases = 1,
     .threads = 3,
     .weights = 1,
     .recv_rows = 50},
    {.name = "streaming", .experts = 32, .topk = 8, .hidden = 2048, .tokens = 300, .weights = 1, .recv_rows = 170},
    {.name = "all -1",
     .experts = 16,
     .topk = 8,
     .hidden = 64,
     .tokens = 17,
     .mask = 1000,
     .weights = 1,
     .recv_rows = 1},
};

static void combine(mp_job_t *job, xep_handle_t *handle)
{
    xep_combine_args_t args = mp_job_combine(job, handle);
    MP_OK(xep_combine(handle, &args, NULL));
    mp_job_check_out(job);
    mp_job_check_inputs(job);
}

static xep_handle_t *receive(mp_job_t *job, const xep_dispatch_args_t *args, int outputs)
{
    mp_pieces_t all;
    xep_handle_t *handle = mp_pieces_begin(&all, job, args);
    mp_pieces_rest(&all, job, handle, outputs);
    return handle;
}

/*
 * The routing is used again while the first handle shows its first piece; then both go on in turn, and a third one,
 * between two pieces of the first one, has the turn that the first one had.
 */
static void interleave(mp_job_t *job)
{
    mp_pieces_t first, second;
    xep_dispatch_args_t args = mp_job_dispatch(job);
    xep_handle_t *a = mp_pieces_begin(&first, job, &args);
    mp_job_payload(job, 77);
    args = mp_job_cached(job, a);
    xep_handle_t *b = mp_pieces_begin(&second, job, &args);
    mp_pieces_rest(&second, job, b, 1);
    combine(job, b);
    xep_handle_release(b);
    mp_job_payload(job, 78);
    args = mp_job_cached(job, a);
    b = receive(job, &args, 1);
    combine(job, b);
    xep_handle_release(b);
    mp_job_payload(job, 76); /* the caller must not have changed it: here it is what it was */
    args = mp_job_dispatch(job);
    mp_pieces_rest(&first, job, a, 1);
    combine(job, a);
    xep_handle_release(a);
}

/* As many as there are: rows in one go, with room for all but one row of the rank that gets most. */
static uint64_t count_most(mp_job_t *job)
{
    uint64_t most = 0;
    xep_handle_t *handle;
    xep_dispatch_args_t args = mp_job_dispatch(job);
    MP_OK(xep_dispatch(job->buffer, &args, &handle, NULL));
    const xep_recv_t *recv = xep_handle_recv(handle);
    for (uint32_t d = 0; d < mp_nranks(); d++) {
        uint64_t rows = 0;
        for (uint32_t r = 0; r < mp_nranks(); r++) rows += recv->rank_rows[(size_t)r * mp_nranks() + d];
        if (rows > most) most = rows;
    }
    xep_handle_release(handle);
    return most;
}

static void run(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    mp_job_open(&job, c, 1);
    mp_job_buffer(&job, group);
    for (uint64_t round = 0; round < 3; round++) {
        mp_job_payload(&job, round + 100);
        xep_dispatch_args_t args = mp_job_dispatch(&job);
        xep_handle_t *handle = receive(&job, &args, round != 1);
        if (round != 1) combine(&job, handle);
        xep_handle_release(handle);
    }
    mp_job_payload(&job, 76);
    interleave(&job);
    mp_job_close(&job);
}

/* With exactly the room there is one piece, and what pieces cannot do goes on: several combines. With a row less, 2. */
static void one_row_less(xep_group_t *group)
{
    mp_case_t c = {.name = "room", .experts = 8, .topk = 2, .hidden = 64, .tokens = 30, .weights = 1, .pieces = 2};
    mp_job_t job;
    c.recv_rows = (uint64_t)c.tokens * mp_nranks();
    mp_job_open(&job, &c, 3);
    mp_job_buffer(&job, group);
    uint64_t most = count_most(&job);
    mp_job_close(&job);
    for (uint64_t less = 0; less < 2 && most > 1; less++) {
        c.recv_rows = most - less;
        c.pieces = 1;
        mp_job_open(&job, &c, 3);
        mp_job_buffer(&job, group);
        xep_dispatch_args_t args = mp_job_dispatch(&job);
        xep_handle_t *handle = receive(&job, &args, 1);
        MP_CHECK(xep_handle_recv(handle)->pieces == 1 + less);
        for (uint64_t i = less; i < 2; i++) combine(&job, handle);
        xep_handle_release(handle);
        mp_job_close(&job);
    }
}

int main(void)
{
    xep_group_t *group = mp_group();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mp_case_t c = cases[i];
        c.pieces = 1;
        run(group, &c);
    }
    one_row_less(group);
    xep_group_destroy(group);
    return 0;
}
