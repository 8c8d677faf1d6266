/* SPDX-License-Identifier: BSD-3-Clause */

#include "mp_pieces.h"

#include <string.h>

#include "mp_rig.h"

uint64_t mp_pieces_room(const mp_case_t *c)
{
    const int by_expert = c->mode != NULL && strcmp(c->mode, "ll") == 0;
    const uint64_t rows = by_expert || c->topk < mp_nranks() ? c->topk : mp_nranks(); /* of a token */
    return 1 + c->tokens * rows / 3 + c->alignment;
}

static void take(mp_pieces_t *pieces, const mp_job_t *job, const xep_handle_t *handle)
{
    oracle_difference_t difference;
    char text[256];
    const xep_recv_t *recv = mp_recv(handle);
    MP_CHECK(recv != NULL);
    if (oracle_pieces_take(&pieces->all, &job->shape, mp_rank(), pieces->room, recv, &difference) != 0) {
        oracle_difference_text(&difference, text, sizeof text);
        mp_fail(__FILE__, __LINE__, "case %s, piece %d: %s", job->c->name, (int)recv->piece, text);
    }
    pieces->pieces = recv->pieces;
    if (recv->piece + 1 == recv->pieces) oracle_pieces_free(&pieces->all);
}

static void begin(mp_pieces_t *pieces, const mp_job_t *job)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    MP_OK(xep_buffer_query(job->buffer, &info));
    *pieces = (mp_pieces_t){.room = info.recv_rows};
}

void mp_pieces_served(mp_pieces_t *pieces, const mp_job_t *job, const xep_handle_t *handle)
{
    if (mp_recv(handle)->piece == 0) begin(pieces, job);
    take(pieces, job, handle);
}

xep_handle_t *mp_pieces_begin(mp_pieces_t *pieces, mp_job_t *job, const xep_dispatch_args_t *args)
{
    xep_dispatch_args_t own = *args;
    xep_handle_t *handle;
    uint64_t rows = 0;
    begin(pieces, job);
    own.recv_rows_p = &rows;
    MP_OK(xep_dispatch(job->buffer, &own, &handle, NULL));
    take(pieces, job, handle);
    MP_CHECK(rows == mp_recv(handle)->all_rows);
    return handle;
}

/* The part of mp_job_combine()'s args that concerns the next piece; outputs are poisoned and filled there. */
xep_next_args_t mp_pieces_outputs(mp_job_t *job, xep_handle_t *handle)
{
    xep_combine_args_t combine = mp_job_combine(job, handle);
    xep_next_args_t args = XEP_NEXT_ARGS_INIT;
    args.x = combine.x;
    args.x_stride = combine.x_stride;
    args.dtype = combine.dtype;
    args.topk_weights = combine.topk_weights;
    return args;
}

void mp_pieces_next(mp_pieces_t *pieces, mp_job_t *job, xep_handle_t *handle, int outputs, int asynchronous)
{
    uint64_t piece = mp_recv(handle)->piece;
    xep_request_t *req = NULL;
    xep_next_args_t args = XEP_NEXT_ARGS_INIT;
    if (outputs) args = mp_pieces_outputs(job, handle);
    MP_OK(xep_handle_next(handle, outputs ? &args : NULL, asynchronous ? &req : NULL));
    if (asynchronous) {
        MP_CHECK(mp_recv(handle) == NULL || mp_recv(handle)->piece == piece + 1);
        mp_finish(req);
    }
    take(pieces, job, handle);
}

void mp_pieces_rest(mp_pieces_t *pieces, mp_job_t *job, xep_handle_t *handle, int outputs)
{
    for (uint64_t i = mp_recv(handle)->piece + 1; i < pieces->pieces; i++)
        mp_pieces_next(pieces, job, handle, outputs, (int)(i % 2));
}

xep_handle_t *mp_pieces_receive(mp_job_t *job, const xep_dispatch_args_t *args, int outputs)
{
    mp_pieces_t all;
    xep_handle_t *handle = mp_pieces_begin(&all, job, args);
    mp_pieces_rest(&all, job, handle, outputs);
    return handle;
}

/*
 * Uses the routing again while the first handle shows its first piece; then both go on in turn. A third handle, between
 * two pieces of the first one, gets the turn that the first one had.
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
    mp_job_sum(job, b);
    xep_handle_release(b);
    mp_job_payload(job, 78);
    args = mp_job_cached(job, a);
    b = mp_pieces_receive(job, &args, 1);
    mp_job_sum(job, b);
    xep_handle_release(b);
    mp_job_payload(job, 76); /* x must not have changed since: restores it */
    args = mp_job_dispatch(job);
    mp_pieces_rest(&first, job, a, 1);
    mp_job_sum(job, a);
    xep_handle_release(a);
}

void mp_pieces_run(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    mp_job_begin(&job, c, 1, group);
    for (uint64_t round = 0; round < 3; round++) {
        mp_job_payload(&job, round + 100);
        xep_dispatch_args_t args = mp_job_dispatch(&job);
        xep_handle_t *handle = mp_pieces_receive(&job, &args, round != 1);
        if (round != 1) mp_job_sum(&job, handle);
        xep_handle_release(handle);
    }
    mp_job_payload(&job, 76);
    interleave(&job);
    mp_job_close(&job);
}
