/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The operations have one handle, which is not among those of perf_ops.c: perf_pieces_dispatch() leaves it, everything
 * else needs it, and perf_pieces_release() ends it.
 */

#include <stdlib.h>
#include <string.h>

#include <xep/pieces.h>

#include "oracle_alloc.h"
#include "oracle_pieces.h"
#include "perf_cuda.h"
#include "perf_ops.h"
#include "perf_say.h"

/* A buffer for one handle: --cached and --slots do not go with this. */
void perf_pieces_open(perf_t *perf)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    xep_buffer_params_t params;

    perf->pieces = oracle_alloc(sizeof *perf->pieces);
    perf_buffer_params(perf, 1, &params);
    perf_must(perf, xep_buffer_create(perf->group, &params, &perf->pieces->buffer));
    perf_must(perf, xep_buffer_query(perf->pieces->buffer, &info));
    perf->pieces->room = info.recv_rows;
}

void perf_pieces_close(perf_pieces_t *pieces)
{
    if (pieces == NULL) return;
    xep_buffer_destroy(pieces->buffer);
    free(pieces);
}

/* ---- operations -------------------------------------------------------------------- */

/*
 * The handle shows piece 0 then. The count is the same on all ranks, so that all of them call next() as often, also
 * those that get no rows any more.
 */
static void begin(perf_t *perf)
{
    xep_dispatch_args_t args;
    void *y;

    perf_dispatch_args(perf, &args);
    args.flags |= XEP_DISPATCH_PIECES;
    perf_must(perf, xep_dispatch(perf->pieces->buffer, &args, &perf->pieces->handle, NULL));
    perf->pieces->count = perf_received(perf->pieces->handle)->pieces;
    if (!perf->options.copy_in) perf_must(perf, xep_handle_combine_input(perf->pieces->handle, &y, NULL));
}

/* Outputs are where the combine of a whole slot has them. */
static void next(perf_t *perf)
{
    xep_combine_args_t combine;
    xep_next_args_t args = XEP_NEXT_ARGS_INIT;

    perf_combine_args(perf, 0, &combine);
    args.x = combine.x;
    args.wait_ns = combine.wait_ns;
    perf_must(perf, xep_handle_next(perf->pieces->handle, &args, NULL));
}

/* What the experts of earlier pieces would write is not written, as it is not timed either: any outputs travel. */
void perf_pieces_dispatch(perf_t *perf)
{
    begin(perf);
    for (uint64_t piece = 1; piece < perf->pieces->count; piece++) next(perf);
    perf->sent_ns = perf->device_ns = 0;
}

void perf_pieces_experts(perf_t *perf)
{
    size_t stride = perf->sum_bytes;
    void *y = perf->area;

    if (!perf->options.copy_in) perf_must(perf, xep_handle_combine_input(perf->pieces->handle, &y, &stride));
    oracle_fill_outputs(&perf->shape, perf->info.rank, perf_received(perf->pieces->handle), y, stride);
}

/* With the outputs of the last piece; next() has taken those of the others back already. All sums are made here. */
void perf_pieces_combine(perf_t *perf)
{
    xep_combine_args_t args;

    perf_combine_args(perf, 0, &args);
    perf_must(perf, xep_combine(perf->pieces->handle, &args, NULL));
}

void perf_pieces_release(perf_t *perf)
{
    xep_handle_release(perf->pieces->handle);
    perf->pieces->handle = NULL;
}

/* ---- checks ------------------------------------------------------------------------ */

/* A difference stays with the rank that has found it until all have come to the last piece. */
static void check_rows(perf_t *perf, oracle_difference_t *difference)
{
    oracle_pieces_t all = {0};

    begin(perf);
    for (uint64_t piece = 0; piece < perf->pieces->count; piece++) {
        if (piece > 0) perf_pieces_experts(perf);
        if (piece > 0) next(perf);
        if (difference->found) continue;
        oracle_pieces_take(&all, &perf->shape, perf->info.rank, perf->pieces->room, perf_received(perf->pieces->handle),
                           difference);
    }
    oracle_pieces_free(&all);
}

/* By the flat path, whatever that of the run's buffer is: sums have the order of ranks. */
void perf_pieces_check(perf_t *perf)
{
    oracle_shape_t shape = perf->shape;
    oracle_difference_t difference = {0};

    shape.node = NULL;
    check_rows(perf, &difference);
    perf_compared(perf, "dispatch in pieces", &difference);
    memset(perf->out, 0xa5, perf->tokens * perf->sum_bytes);
    perf_pieces_experts(perf);
    perf_pieces_combine(perf);
    oracle_check_combine(&shape, perf->info.rank, 0, perf->out, perf->sum_bytes, &difference);
    perf_pieces_release(perf);
    perf_compared(perf, "combine of pieces", &difference);
}
