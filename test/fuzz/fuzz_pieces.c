/* SPDX-License-Identifier: BSD-3-Clause */

/* The next piece of a dispatch that came in several: with outputs or without, as its handle has it; or too often. */
#include "fuzz_api.h"

#include "oracle_number.h"
#include <xep/pieces.h>

enum { ROOMY = 512 };

static const fuzz_field_t next_fields[] = {
    FUZZ_FIELD(xep_next_args_t, size, FUZZ_SIZE),
    FUZZ_FIELD(xep_next_args_t, x, FUZZ_POINTER),
    FUZZ_FIELD(xep_next_args_t, x_stride, FUZZ_STRIDE),
    FUZZ_FIELD(xep_next_args_t, dtype, FUZZ_NUMBER),
    FUZZ_FIELD(xep_next_args_t, hidden, FUZZ_NUMBER),
    FUZZ_FIELD(xep_next_args_t, topk_weights, FUZZ_POINTER),
    FUZZ_FIELD(xep_next_args_t, topk_weights_stride, FUZZ_STRIDE),
    FUZZ_FIELD(xep_next_args_t, timeout_ms, FUZZ_TIMEOUT),
    FUZZ_FIELD(xep_next_args_t, reserved, FUZZ_NUMBER),
};

/* What combines of the handle are compared with: all pieces have outputs of this. */
static xep_next_args_t good_next(api_rank_t *rank, const api_call_t *call, const api_handle_t *handle,
                                 const xep_recv_t *recv)
{
    size_t row = rank->params[call->buffer].hidden * sizeof(uint16_t);
    uint64_t rows = recv == NULL ? 0 : recv->rows;
    xep_next_args_t args = XEP_NEXT_ARGS_INIT;
    char *y = api_memory(rank->run, call->patched ? (rows + 1) * ROOMY + 64 : rows * row);
    if (recv != NULL && handle->truth != NULL) oracle_fill_outputs(&handle->truth->shape, rank->rank, recv, y, row);
    args.x = y;
    return args;
}

void api_next(api_rank_t *rank, api_call_t *call)
{
    api_handle_t *handle = &rank->handles[call->buffer][call->slot];
    const fuzz_patch_t *patch = api_patch(rank, call);
    if (rank->buffers[call->buffer] == NULL) return;
    api_wait(rank, handle);
    int known = handle->handle != NULL && !handle->released && handle->truth != NULL;
    if (!known) rank->run->dirty = 1;
    const xep_recv_t *recv = api_recv(handle->handle);
    int good = known && recv != NULL && recv->piece + 1 < recv->pieces;
    xep_next_args_t args = good_next(rank, call, handle, recv);
    const void *given = FUZZ_PATCHED(args, next_fields, patch);
    xep_status_t status = xep_handle_next(handle->handle, handle->kept ? given : NULL, NULL);
    api_judge(rank, "xep_handle_next", status, good && patch == NULL);
    api_meet(rank, call, status);
    if (known && !good && status != XEP_ERR_INVALID && !rank->run->dirty)
        fuzz_fail("a piece more than there are gave %d", status);
    if (status == XEP_OK && call->patched) handle->truth = NULL; /* nobody knows what comes out */
}
