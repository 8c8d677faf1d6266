/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Dispatches and combines of a rank. Arguments are good but for one field at most, and good ones without anything wrong
 * before them must give what the oracle says.
 */
#include <stdlib.h>
#include <string.h>

#include <xep/pieces.h>

#include "fuzz_api.h"
#include "oracle_cast.h"
#include "oracle_check.h"
#include "oracle_combine.h"
#include "oracle_number.h"

enum { ROOMY = 512, POISON = 0xa5 };

/* ---- what is sent ---- */

/* By nodes sums are made in the order of these, and what one of them has for a token is rounded. */
static void learn_nodes(api_rank_t *rank, const api_call_t *call, api_truth_t *truth)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    if (xep_buffer_query(rank->buffers[call->buffer], &info) != XEP_OK) fuzz_fail("no info: %s", xep_last_error());
    if (info.path != XEP_PATH_NODES || truth->shape.by_expert) return;
    for (uint32_t r = 0; r < rank->nranks; r++) {
        xep_peer_info_t peer = XEP_PEER_INFO_INIT;
        if (xep_group_peer(rank->group, r, &peer) != XEP_OK) fuzz_fail("no peer: %s", xep_last_error());
        truth->node[r] = peer.node;
    }
    truth->shape.node = truth->node;
}

/* The same for whoever comes first: it follows from the call alone. */
static const api_truth_t *truth_of(api_rank_t *rank, const api_call_t *call)
{
    api_run_t *run = rank->run;
    api_truth_t *truth = &run->truths[call - run->calls][rank->nranks - 1];
    const xep_buffer_params_t *params = &rank->params[call->buffer];
    int by_expert = strcmp(params->mode, "ll") == 0;
    char why[128];
    if (truth->routing != NULL) return truth;
    oracle_routing_params_t routing = {.spec = {.kind =
                                                    api_number(call, 10, 5) ? ORACLE_ROUTE_UNIFORM : ORACLE_ROUTE_SELF},
                                       .seed = call->choice,
                                       .nranks = rank->nranks,
                                       .experts = params->experts,
                                       .topk = params->topk,
                                       .mask = api_number(call, 11, 3) ? 0 : 300,
                                       .tokens = params->tokens,
                                       .tokens_of = truth->tokens_of};
    for (uint32_t r = 0; r < rank->nranks; r++) truth->tokens_of[r] = api_number(call, 12 + r, params->tokens + 1);
    if (oracle_routing_create(&routing, &truth->routing, why, sizeof why) != 0) fuzz_fail("no routing: %s", why);
    truth->weights = (int)api_number(call, 20, 2);
    truth->shape = (oracle_shape_t){.routing = truth->routing,
                                    .payload = call->choice,
                                    .hidden = params->hidden,
                                    .nscales = (uint32_t)api_number(call, 21, 3),
                                    .dtype = params->dtype,
                                    .combine_dtype = XEP_BF16,
                                    .idx_dtype = api_number(call, 22, 2) ? XEP_INT64 : XEP_INT32,
                                    .scales_dtype = XEP_FP32,
                                    .weights = by_expert ? 0 : truth->weights,
                                    .by_expert = by_expert,
                                    .unweighted = !truth->weights,
                                    .room = params->tokens,
                                    .alignment = by_expert ? 1 : 1 + (uint32_t)api_number(call, 23, 3)};
    /* alignment by expert takes rows, of which a slot may then have too few */
    if (by_expert && api_number(call, 24, 3) == 0) {
        truth->shape.quant = oracle_cast_at(api_number(call, 25, oracle_casts()));
        truth->shape.quant_scale = truth->shape.quant == XEP_QUANT_E4M3_STATIC ? 0.03f : 0;
        truth->shape.nscales = 0;
    }
    learn_nodes(rank, call, truth);
    return truth;
}

static const fuzz_field_t dispatch_fields[] = {
    FUZZ_FIELD(xep_dispatch_args_t, size, FUZZ_SIZE),
    FUZZ_FIELD(xep_dispatch_args_t, tokens, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, x, FUZZ_POINTER),
    FUZZ_FIELD(xep_dispatch_args_t, x_stride, FUZZ_STRIDE),
    FUZZ_FIELD(xep_dispatch_args_t, dtype, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, hidden, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, topk, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, topk_idx, FUZZ_POINTER),
    FUZZ_FIELD(xep_dispatch_args_t, topk_idx_stride, FUZZ_STRIDE),
    FUZZ_FIELD(xep_dispatch_args_t, topk_idx_dtype, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, topk_weights, FUZZ_POINTER),
    FUZZ_FIELD(xep_dispatch_args_t, topk_weights_stride, FUZZ_STRIDE),
    FUZZ_FIELD(xep_dispatch_args_t, scales, FUZZ_POINTER),
    FUZZ_FIELD(xep_dispatch_args_t, nscales, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, scales_dtype, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, scales_token_stride, FUZZ_STRIDE),
    FUZZ_FIELD(xep_dispatch_args_t, scales_stride, FUZZ_STRIDE),
    FUZZ_FIELD(xep_dispatch_args_t, expert_alignment, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, capacity, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, timeout_ms, FUZZ_TIMEOUT),
    FUZZ_FIELD(xep_dispatch_args_t, quant, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, arrangement, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, flags, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, quant_scale, FUZZ_NUMBER),
    FUZZ_FIELD(xep_dispatch_args_t, stream, FUZZ_POINTER),
};

/* Exactly as long as it must be; with a patch, as long as anything that is taken could ask for. */
static char *input_of(api_rank_t *rank, const api_call_t *call, uint64_t rows, size_t row)
{
    return api_memory(rank->run, call->patched ? (rows + 1) * ROOMY + 64 : rows * row);
}

static xep_dispatch_args_t good_dispatch(api_rank_t *rank, const api_call_t *call, const api_truth_t *truth)
{
    const xep_buffer_params_t *params = &rank->params[call->buffer];
    const oracle_shape_t *shape = &truth->shape;
    uint64_t tokens = truth->tokens_of[rank->rank], rows = call->patched ? params->tokens : tokens;
    xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
    char *x = input_of(rank, call, rows, params->hidden * oracle_element_bytes(shape->dtype));
    char *idx = input_of(rank, call, rows, params->topk * oracle_element_bytes(shape->idx_dtype));
    char *weights = input_of(rank, call, rows, params->topk * sizeof(float));
    char *scales = input_of(rank, call, rows, shape->nscales * sizeof(uint32_t));
    oracle_fill_inputs(shape, rank->rank, x, idx, (void *)weights, shape->nscales ? (void *)scales : NULL);
    args.tokens = tokens;
    args.x = x;
    args.topk_idx = idx;
    args.topk_idx_dtype = shape->idx_dtype;
    if (truth->weights) args.topk_weights = (const float *)(const void *)weights;
    if (shape->nscales) args.scales = scales;
    args.nscales = shape->nscales;
    args.expert_alignment = shape->alignment;
    args.quant = shape->quant;
    args.quant_scale = shape->quant_scale;
    if (params->flags & XEP_BUFFER_PIECES) args.flags = XEP_DISPATCH_PIECES;
    return args;
}

/*
 * Rows in place: of the send memory, from any of its rows on, or of private memory. It is never long until the memory
 * is there: no rank has more handles than slots, it has just released one, and there is an area more.
 */
static void place_rows(api_rank_t *rank, const api_call_t *call, xep_dispatch_args_t *args)
{
    const xep_buffer_params_t *params = &rank->params[call->buffer];
    const size_t row = params->hidden * xep_dtype_size(params->dtype);
    uint64_t how = api_number(call, 25, 3);
    void *base;
    size_t stride;
    if (call->patched || params->flags != XEP_BUFFER_SEND_MEMORY || how == 0) return;
    args->flags = XEP_DISPATCH_IN_PLACE;
    if (how == 1) return;
    xep_status_t status = xep_buffer_send_memory(rank->buffers[call->buffer], &base, &stride);
    api_judge(rank, "xep_buffer_send_memory", status, 1);
    if (status != XEP_OK) return;
    char *rows = (char *)base + api_number(call, 26, params->tokens - args->tokens + 1) * stride;
    for (uint64_t t = 0; t < args->tokens; t++) memcpy(rows + t * stride, (const char *)args->x + t * row, row);
    args->x = rows;
    args->x_stride = stride;
}

/* ---- dispatch ---- */

/* All rows once more, in an array of exactly their length; alignment leaves some that are nowhere. */
static void check_gathered(const api_rank_t *rank, const xep_handle_t *handle, const xep_recv_t *recv)
{
    const size_t row = recv->hidden * xep_dtype_size(recv->dtype);
    char *dense = api_output(rank->run, recv->rows * row);
    xep_status_t status = xep_handle_gather(handle, dense, 0);
    if (status != XEP_OK) fuzz_fail("xep_handle_gather returned %d: %s", status, xep_last_error());
    for (uint64_t i = 0; i < recv->rows; i++)
        if (oracle_row_at(recv, i) != NULL && memcmp(dense + i * row, oracle_row_at(recv, i), row) != 0)
            fuzz_fail("row %d is gathered wrong", (int)i);
    fuzz_count(1);
}

static void check_recv(const api_rank_t *rank, const api_handle_t *handle)
{
    oracle_difference_t difference;
    char text[256];
    const xep_recv_t *recv = api_recv(handle->handle);
    if (recv == NULL) fuzz_fail("no rows: %s", xep_last_error());
    for (uint32_t r = 0; recv->out != NULL && r < rank->nranks; r++)
        if (recv->out[r] != 0) fuzz_fail("a dispatch is without rank %u", r);
    if (recv->pieces > 1) return; /* the next ones: api_next() */
    if (!oracle_check_recv(&handle->truth->shape, rank->rank, recv, &difference)) {
        check_gathered(rank, handle->handle, recv);
        return;
    }
    oracle_difference_text(&difference, text, sizeof text);
    fuzz_fail("%s", text);
}

static int is_judged(const api_rank_t *rank, const api_handle_t *handle, xep_status_t status)
{
    return status == XEP_OK && !rank->run->dirty && handle->truth != NULL && !handle->released;
}

static uint64_t operations_of(const xep_buffer_t *buffer)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    if (xep_buffer_query(buffer, &info) != XEP_OK) fuzz_fail("no info: %s", xep_last_error());
    return info.operations;
}

/* A slot that is taken is given back first, so that none is ever missing. */
void api_dispatch(api_rank_t *rank, api_call_t *call)
{
    xep_buffer_t *buffer = rank->buffers[call->buffer];
    api_handle_t *handle = &rank->handles[call->buffer][call->slot];
    const fuzz_patch_t *patch = api_patch(rank, call);
    xep_handle_t *made = NULL;
    xep_request_t *req = NULL;
    if (buffer == NULL) return;
    api_wait(rank, handle);
    api_release(rank, handle);
    const api_truth_t *truth = truth_of(rank, call);
    xep_dispatch_args_t good = good_dispatch(rank, call, truth);
    place_rows(rank, call, &good);
    const xep_dispatch_args_t *args = FUZZ_PATCHED(good, dispatch_fields, patch);
    int waits = (int)api_number(call, 30, 2);
    uint64_t before = operations_of(buffer);
    xep_status_t status = xep_dispatch(buffer, args, &made, waits ? NULL : &req);
    api_judge(rank, "xep_dispatch", status, patch == NULL);
    api_meet(rank, call, status);
    if ((status == XEP_OK) != (made != NULL)) fuzz_fail("status %d with handle %p", status, (void *)made);
    if ((status == XEP_ERR_INVALID || status == XEP_ERR_UNSUPPORTED) && operations_of(buffer) != before)
        fuzz_fail("a dispatch that was refused counts");
    for (uint32_t i = 0; made != NULL && i < API_SLOTS; i++) /* the memory of a handle is used again */
        if (rank->handles[call->buffer][i].handle == made) rank->handles[call->buffer][i] = (api_handle_t){0};
    *handle = (api_handle_t){.handle = made,
                             .req = req,
                             .truth = call->patched ? NULL : truth,
                             .kept = api_number(call, 27, 4) != 0};
    if (waits && is_judged(rank, handle, status)) check_recv(rank, handle);
}

/* ---- combine ---- */

static const fuzz_field_t combine_fields[] = {
    FUZZ_FIELD(xep_combine_args_t, size, FUZZ_SIZE),
    FUZZ_FIELD(xep_combine_args_t, x, FUZZ_POINTER),
    FUZZ_FIELD(xep_combine_args_t, x_stride, FUZZ_STRIDE),
    FUZZ_FIELD(xep_combine_args_t, dtype, FUZZ_NUMBER),
    FUZZ_FIELD(xep_combine_args_t, hidden, FUZZ_NUMBER),
    FUZZ_FIELD(xep_combine_args_t, topk_weights, FUZZ_POINTER),
    FUZZ_FIELD(xep_combine_args_t, out, FUZZ_POINTER),
    FUZZ_FIELD(xep_combine_args_t, out_stride, FUZZ_STRIDE),
    FUZZ_FIELD(xep_combine_args_t, out_weights, FUZZ_POINTER),
    FUZZ_FIELD(xep_combine_args_t, timeout_ms, FUZZ_TIMEOUT),
    FUZZ_FIELD(xep_combine_args_t, flags, FUZZ_NUMBER),
    FUZZ_FIELD(xep_combine_args_t, weights_stride, FUZZ_STRIDE),
    FUZZ_FIELD(xep_combine_args_t, stream, FUZZ_POINTER),
    FUZZ_FIELD(xep_combine_args_t, missing, FUZZ_POINTER),
    FUZZ_FIELD(xep_combine_args_t, missing_stride, FUZZ_STRIDE),
};

static void check_sums(const api_rank_t *rank, const api_handle_t *handle)
{
    oracle_difference_t difference;
    char text[256];
    if (!oracle_check_combine(&handle->sum, rank->rank, 0, handle->out, handle->out_stride, &difference)) return;
    oracle_difference_text(&difference, text, sizeof text);
    fuzz_fail("%s", text);
}

/* Nobody is out, so nothing is missing; where somebody is, it is still 0 or 1. */
static void check_missing(const api_rank_t *rank, api_handle_t *handle, xep_status_t status)
{
    for (size_t i = 0; handle->missing != NULL && status == XEP_OK && i < handle->missing_bytes; i++)
        if ((unsigned char)handle->missing[i] > rank->run->dirty)
            fuzz_fail("selection %zu is missing: %d", i, (unsigned char)handle->missing[i]);
    handle->missing = NULL;
}

/* What was refused has written nothing. */
static void check_poison(const api_handle_t *handle)
{
    for (size_t i = 0; i < handle->out_bytes; i++)
        if ((unsigned char)handle->out[i] != POISON) fuzz_fail("byte %zu of a refused combine was written", i);
}

/* Expert outputs of a handle with rows; without, the library says that it has none. */
static xep_combine_args_t good_combine(api_rank_t *rank, const api_call_t *call, api_handle_t *handle)
{
    const xep_buffer_params_t *params = &rank->params[call->buffer];
    const xep_recv_t *recv = api_recv(handle->handle);
    size_t row = params->hidden * sizeof(uint16_t);
    xep_combine_args_t args = XEP_COMBINE_ARGS_INIT;
    uint64_t tokens = handle->truth == NULL ? params->tokens : handle->truth->tokens_of[rank->rank];
    char *y = input_of(rank, call, recv == NULL ? 0 : recv->rows, row);
    if (recv != NULL && handle->truth != NULL) {
        handle->sum = handle->truth->shape;
        oracle_fill_outputs(&handle->sum, rank->rank, recv, y, row);
    }
    handle->out_stride = row;
    handle->out_bytes = call->patched ? (params->tokens + 1) * ROOMY : tokens * row;
    handle->out = api_output(rank->run, handle->out_bytes);
    handle->missing_bytes = tokens * params->topk;
    handle->missing = call->patched || handle->truth == NULL || api_number(call, 33, 2)
                          ? NULL
                          : api_output(rank->run, handle->missing_bytes);
    args.missing = (void *)(call->patched ? api_output(rank->run, (params->tokens + 1) * ROOMY) : handle->missing);
    args.x = y;
    args.out = handle->out;
    return args;
}

static int may_combine(const api_handle_t *handle)
{
    return handle->handle != NULL && !handle->released && handle->truth != NULL;
}

/* Of several pieces the last, once, if all before it had outputs. Else it is refused, on all ranks. */
static int is_due(const api_handle_t *handle)
{
    const xep_recv_t *recv = api_recv(handle->handle);
    if (recv == NULL || recv->pieces <= 1) return 1;
    return recv->piece + 1 == recv->pieces && handle->kept && !handle->combined;
}

/* A handle whose rows nobody has looked at is combined, too: ranks may then go apart. */
void api_combine(api_rank_t *rank, api_call_t *call)
{
    api_handle_t *handle = &rank->handles[call->buffer][call->slot];
    const fuzz_patch_t *patch = api_patch(rank, call);
    xep_request_t *req = NULL;
    if (rank->buffers[call->buffer] == NULL) return;
    api_wait(rank, handle);
    int good = may_combine(handle), due = is_due(handle);
    if (!good) rank->run->dirty = 1;
    xep_combine_args_t args = good_combine(rank, call, handle);
    if (!may_combine(handle) && handle->handle != NULL && !call->patched)
        args.x = NULL; /* how many rows is not known */
    int waits = (int)api_number(call, 31, 2);
    xep_status_t status = xep_combine(handle->handle, FUZZ_PATCHED(args, combine_fields, patch), waits ? NULL : &req);
    api_judge(rank, "xep_combine", status, good && due && patch == NULL);
    if (good && !due && status != XEP_ERR_INVALID && !rank->run->dirty)
        fuzz_fail("a combine of pieces that was not due gave %d", status);
    handle->combined |= status == XEP_OK;
    api_meet(rank, call, status);
    if (status == XEP_ERR_INVALID || status == XEP_ERR_UNSUPPORTED) check_poison(handle);
    handle->req = status == XEP_OK ? req : NULL;
    if (call->patched) handle->sum.routing = NULL; /* nobody knows what comes out */
    if (waits && handle->sum.routing != NULL && is_judged(rank, handle, status)) check_sums(rank, handle);
    if (waits || status != XEP_OK) check_missing(rank, handle, status);
    if (waits) handle->out = NULL;
}

/* ---- ends ---- */

void api_wait(api_rank_t *rank, api_handle_t *handle)
{
    if (handle->req == NULL) return;
    xep_status_t status = xep_request_wait(handle->req);
    api_judge(rank, "xep_request_wait", status, handle->truth != NULL);
    if (is_judged(rank, handle, status)) {
        if (handle->out == NULL) check_recv(rank, handle);
        else if (handle->sum.routing != NULL) check_sums(rank, handle);
    }
    if (handle->truth != NULL) check_missing(rank, handle, status);
    xep_request_free(handle->req);
    fuzz_count(1);
    handle->req = NULL;
    handle->missing = NULL;
    handle->out = NULL;
}

void api_release(api_rank_t *rank, api_handle_t *handle)
{
    (void)rank;
    xep_handle_release(handle->handle);
    handle->released = 1;
    fuzz_count(1);
}
