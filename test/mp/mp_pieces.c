/* SPDX-License-Identifier: BSD-3-Clause */

#include "mp_pieces.h"

#include "mp_rig.h"

static void take(mp_pieces_t *pieces, const mp_job_t *job, const xep_handle_t *handle)
{
    oracle_difference_t difference;
    char text[256];
    const xep_recv_t *recv = xep_handle_recv(handle);
    MP_CHECK(recv != NULL);
    if (oracle_pieces_take(&pieces->all, &job->shape, mp_rank(), pieces->room, recv, &difference) != 0) {
        oracle_difference_text(&difference, text, sizeof text);
        mp_fail(__FILE__, __LINE__, "case %s, piece %d: %s", job->c->name, (int)recv->piece, text);
    }
    pieces->pieces = recv->pieces;
    if (recv->piece + 1 == recv->pieces) oracle_pieces_free(&pieces->all);
}

xep_handle_t *mp_pieces_begin(mp_pieces_t *pieces, mp_job_t *job, const xep_dispatch_args_t *args)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    xep_dispatch_args_t own = *args;
    xep_handle_t *handle;
    uint64_t rows = 0;
    MP_OK(xep_buffer_query(job->buffer, &info));
    *pieces = (mp_pieces_t){.room = info.recv_rows};
    own.recv_rows_p = &rows;
    MP_OK(xep_dispatch(job->buffer, &own, &handle, NULL));
    take(pieces, job, handle);
    MP_CHECK(rows == xep_handle_recv(handle)->all_rows);
    return handle;
}

/* mp_job_combine() has poisoned and filled what it needs: of that the part that is the next piece's. */
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
    uint64_t piece = xep_handle_recv(handle)->piece;
    xep_request_t *req = NULL;
    xep_next_args_t args = XEP_NEXT_ARGS_INIT;
    if (outputs) args = mp_pieces_outputs(job, handle);
    MP_OK(xep_handle_next(handle, outputs ? &args : NULL, asynchronous ? &req : NULL));
    if (asynchronous) {
        MP_CHECK(xep_handle_recv(handle) == NULL || xep_handle_recv(handle)->piece == piece + 1);
        mp_finish(req);
    }
    take(pieces, job, handle);
}

void mp_pieces_rest(mp_pieces_t *pieces, mp_job_t *job, xep_handle_t *handle, int outputs)
{
    for (uint64_t i = xep_handle_recv(handle)->piece + 1; i < pieces->pieces; i++)
        mp_pieces_next(pieces, job, handle, outputs, (int)(i % 2));
}
