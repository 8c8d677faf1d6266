/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The operations have one handle, which is not among those of perf_ops.c: perf_pieces_dispatch() leaves it, everything
 * else needs it, and perf_pieces_release() ends it.
 */
#include "perf_pieces.h"

#include <stdlib.h>
#include <string.h>

#include <xep/pieces.h>

#include "oracle_alloc.h"
#include "oracle_pieces.h"
#include "perf_cuda.h"
#include "perf_ops.h"
#include "perf_say.h"

/* A buffer for one handle: --cached and --slots do not go with this. */
int perf_pieces_open(perf_t *perf)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    xep_buffer_params_t params;
    xep_status_t status;

    perf->pieces = oracle_alloc(sizeof *perf->pieces);
    perf_pieces_params(perf, &params);
    status = xep_buffer_create(perf->group, &params, &perf->pieces->buffer);
    if (status == XEP_OK) status = xep_buffer_query(perf->pieces->buffer, &info);
    perf->pieces->room = info.recv_rows;
    return status == XEP_OK ? 0 : perf_give_up(perf, status);
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
static xep_status_t begin(perf_t *perf)
{
    xep_dispatch_args_t args;
    xep_status_t status;

    perf_dispatch_args(perf, &args);
    args.flags |= XEP_DISPATCH_PIECES;
    status = xep_dispatch(perf->pieces->buffer, &args, &perf->pieces->handle, NULL);
    if (status != XEP_OK) return status;
    perf->pieces->count = perf_received(perf->pieces->handle)->pieces;
    void *y;
    return perf->options.copy_in ? XEP_OK : xep_handle_combine_input(perf->pieces->handle, &y, NULL);
}

/* Outputs are where the combine of a whole slot has them. */
static xep_status_t next(perf_t *perf)
{
    xep_combine_args_t combine;
    xep_next_args_t args = XEP_NEXT_ARGS_INIT;

    perf_combine_args(perf, 0, &combine);
    args.x = combine.x;
    args.wait_ns = combine.wait_ns;
    return xep_handle_next(perf->pieces->handle, &args, NULL);
}

/* What the experts of earlier pieces would write is not written, as it is not timed either: any outputs travel. */
xep_status_t perf_pieces_dispatch(perf_t *perf)
{
    xep_status_t status = begin(perf);

    for (uint64_t piece = 1; status == XEP_OK && piece < perf->pieces->count; piece++) status = next(perf);
    perf->sent_ns = perf->device_ns = 0;
    return status;
}

xep_status_t perf_pieces_experts(perf_t *perf)
{
    size_t stride = perf->sum_bytes;
    void *y = perf->area;
    xep_status_t status = perf->options.copy_in ? XEP_OK : xep_handle_combine_input(perf->pieces->handle, &y, &stride);

    if (status != XEP_OK) return status;
    oracle_fill_outputs(&perf->shape, perf->info.rank, perf_received(perf->pieces->handle), y, stride);
    return XEP_OK;
}

/* With the outputs of the last piece; next() has taken those of the others back already. All sums are made here. */
xep_status_t perf_pieces_combine(perf_t *perf)
{
    xep_combine_args_t args;

    perf_combine_args(perf, 0, &args);
    return xep_combine(perf->pieces->handle, &args, NULL);
}

void perf_pieces_release(perf_t *perf)
{
    xep_handle_release(perf->pieces->handle);
    perf->pieces->handle = NULL;
}

/* ---- checks ------------------------------------------------------------------------ */

/* A difference stays with the rank that has found it until all have come to the last piece. */
static xep_status_t check_rows(perf_t *perf, oracle_difference_t *difference)
{
    oracle_pieces_t all = {0};
    xep_status_t status = begin(perf);

    for (uint64_t piece = 0; status == XEP_OK && piece < perf->pieces->count; piece++) {
        if (piece > 0) status = perf_pieces_experts(perf);
        if (piece > 0 && status == XEP_OK) status = next(perf);
        if (status != XEP_OK || difference->found) continue;
        oracle_pieces_take(&all, &perf->shape, perf->info.rank, perf->pieces->room, perf_received(perf->pieces->handle),
                           difference);
    }
    oracle_pieces_free(&all);
    return status;
}

/* By the flat path, whatever that of the run's buffer is: sums have the order of ranks. */
int perf_pieces_check(perf_t *perf)
{
    oracle_shape_t shape = perf->shape;
    oracle_difference_t difference = {0};
    xep_status_t status = check_rows(perf, &difference);
    int ret;

    shape.node = NULL;
    if (status != XEP_OK) return perf_give_up(perf, status);
    ret = perf_compared(perf, "dispatch in pieces", &difference);
    if (ret) return ret;
    memset(perf->out, 0xa5, perf->tokens * perf->sum_bytes);
    status = perf_pieces_experts(perf);
    if (status == XEP_OK) status = perf_pieces_combine(perf);
    if (status != XEP_OK) return perf_give_up(perf, status);
    oracle_check_combine(&shape, perf->info.rank, 0, perf->out, perf->sum_bytes, &difference);
    perf_pieces_release(perf);
    return perf_compared(perf, "combine of pieces", &difference);
}
