/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 3 5, brief: 1 3, limit: 180 */

/*
 * Dispatches that come in pieces: all rows of all pieces, and the sums of their outputs, against the oracle, which
 * knows of no pieces.
 */

#include <stdlib.h>
#include <string.h>

#include "mp_pieces.h"
#include "mp_rig.h"

/* In both modes, where none is named: ll has a row for each selection, and these follow the alignment of their rank. */
static const mp_case_t cases[] = {
    {.name = "even", MP_SHAPE(16, 4, 128, 37), .weights = 1, .recv_rows = 16},
    {.name = "owners", .owners = "random:2", MP_SHAPE(16, 6, 40, 50), .weights = 1, .recv_rows = 19},
    {.name = "by default", MP_SHAPE(16, 2, 64, 50), .weights = 1, .routing = "zipf:1.2"},
    {.name = "a row at a time", MP_SHAPE(7, 3, 5, 5), .ragged = 1, .weights = 1, .recv_rows = 1},
    {.name = "all to one rank, aligned",
     .routing = "one-rank",
     MP_SHAPE(48, 2, 96, 50),
     .weights = 1,
     .alignment = 8,
     .recv_rows = 43,
     .copy_in = 1},
    {.name = "one rank sends",
     .mode = "normal",
     MP_SHAPE(9, 9, 33, 40),
     .ragged = 2,
     .nscales = 3,
     .scales_dtype = XEP_U8,
     .payloads = 5,
     .weights = 1,
     .recv_rows = 7},
    {.name = "odd, strided",
     MP_SHAPE(13, 5, 127, 33),
     .ragged = 1,
     .mask = 300,
     .idx_dtype = XEP_INT32,
     .strided = 1,
     .weights = 1,
     .nscales = 3,
     .payloads = 8,
     .biases = 3,
     .alignment = 4,
     .copy_in = 1,
     .recv_rows = 13},
    {.name = "e4m3, weights sent",
     .mode = "ll",
     MP_SHAPE(9, 9, 1000, 30),
     .ragged = 2,
     .weights = 1,
     .sent = 1,
     .quant = XEP_QUANT_E4M3,
     .recv_rows = 37},
    {.name = "fp8 with scales",
     .mode = "normal",
     MP_SHAPE(16, 4, 256, 30),
     .dtype = XEP_E4M3,
     .nscales = 2,
     .copy_in = 1,
     .recv_rows = 13},
    {.name = "fp32, threads",
     .mode = "normal",
     MP_SHAPE(16, 4, 100, 61),
     MP_FP32,
     .biases = 1,
     .threads = 3,
     .weights = 1,
     .recv_rows = 50},
    {.name = "ue8m0, threads",
     .mode = "ll",
     MP_SHAPE(16, 4, 520, 61),
     MP_FP32,
     .quant = XEP_QUANT_UE8M0,
     .payloads = 2,
     .threads = 3,
     .recv_rows = 50},
    {.name = "streaming", .mode = "normal", MP_SHAPE(32, 8, 2048, 300), .weights = 1, .recv_rows = 170},
    {.name = "nvfp4", MP_SHAPE(16, 4, 77, 37), .weights = 1, .quant = XEP_QUANT_NVFP4, .recv_rows = 13},
    {.name = "all -1", MP_SHAPE(16, 8, 64, 17), .mask = 1000, .weights = 1, .recv_rows = 1},
};

/* As many as there are: rows in one go, with room for all but one row of the rank that gets most. */
static uint64_t count_most(mp_job_t *job)
{
    uint64_t most = 0;
    xep_handle_t *handle;
    xep_dispatch_args_t args = mp_job_dispatch(job);
    MP_OK(xep_dispatch(job->buffer, &args, &handle, NULL));
    const xep_recv_t *recv = mp_recv(handle);
    for (uint32_t d = 0; d < mp_nranks(); d++) {
        uint64_t rows = 0;
        for (uint32_t r = 0; r < mp_nranks(); r++) rows += recv->rank_rows[(size_t)r * mp_nranks() + d];
        if (rows > most) most = rows;
    }
    xep_handle_release(handle);
    return most;
}

/* With exactly the room there is one piece, and what pieces cannot do goes on: several combines. With a row less, 2. */
static void one_row_less(xep_group_t *group)
{
    mp_case_t c = {.name = "room", MP_SHAPE(8, 2, 64, 30), .weights = 1, .pieces = 2};
    mp_job_t job;
    c.recv_rows = (uint64_t)c.tokens * mp_nranks();
    mp_job_begin(&job, &c, 3, group);
    uint64_t most = count_most(&job);
    mp_job_close(&job);
    for (uint64_t less = 0; less < 2 && most > 1; less++) {
        c.recv_rows = most - less;
        c.pieces = 1;
        mp_job_begin(&job, &c, 3, group);
        xep_dispatch_args_t args = mp_job_dispatch(&job);
        xep_handle_t *handle = mp_pieces_receive(&job, &args, 1);
        MP_CHECK(mp_recv(handle)->pieces == 1 + less);
        for (uint64_t i = less; i < 2; i++) mp_pieces_combine(&job, handle);
        xep_handle_release(handle);
        mp_job_close(&job);
    }
}

int main(void)
{
    xep_group_t *group = mp_group();
    static const char *const modes[] = {"normal", "ll"};
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof cases[0]); i++) {
        mp_case_t c = cases[i / 2];
        if (c.mode != NULL && strcmp(c.mode, modes[i % 2]) != 0) continue;
        c.mode = modes[i % 2];
        c.pieces = 1;
        mp_pieces_run(group, &c);
    }
    one_row_less(group);
    xep_group_destroy(group);
    return 0;
}
