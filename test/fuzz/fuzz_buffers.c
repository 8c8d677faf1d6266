/* SPDX-License-Identifier: BSD-3-Clause */

/* Buffers of a rank: of either mode and many shapes, made with params that are good but for one field at most; and
 * their end. */
#include <string.h>

#include "fuzz_api.h"

static const fuzz_field_t params_fields[] = {
    FUZZ_FIELD(xep_buffer_params_t, size, FUZZ_SIZE),
    FUZZ_FIELD(xep_buffer_params_t, mode, FUZZ_POINTER),
    FUZZ_FIELD(xep_buffer_params_t, experts, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, topk, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, hidden, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, scales, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, tokens, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, recv_rows, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, dtype, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, combine_dtype, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, slots, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, threads, FUZZ_FEW),
    FUZZ_FIELD(xep_buffer_params_t, timeout_ms, FUZZ_TIMEOUT),
    FUZZ_FIELD(xep_buffer_params_t, memory, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, flags, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, on_failure, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, path, FUZZ_NUMBER),
    FUZZ_FIELD(xep_buffer_params_t, pass_rows, FUZZ_NUMBER),
};

static xep_buffer_params_t good_params(const api_call_t *call)
{
    static const uint32_t experts[] = {1, 4, 7, 16}, hiddens[] = {1, 16, 33, 64};
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    params.mode = api_number(call, 0, 2) ? "ll" : "normal";
    params.experts = experts[api_number(call, 1, 4)];
    params.topk = 1 + (uint32_t)api_number(call, 2, params.experts < 3 ? params.experts : 3);
    params.hidden = hiddens[api_number(call, 3, 4)];
    params.tokens = 1 + api_number(call, 4, 8);
    params.dtype = api_number(call, 5, 4) ? XEP_BF16 : XEP_FP32;
    params.slots = API_SLOTS;
    params.scales = 2;
    params.threads = 1;
    params.timeout_ms = 10000;
    params.flags = api_number(call, 6, 2) ? XEP_BUFFER_SEND_MEMORY : 0;
    if (strcmp(params.mode, "normal") == 0 && api_number(call, 7, 3) == 0) {
        params.flags |= XEP_BUFFER_PIECES;
        params.recv_rows = api_number(call, 8, 6);
    }
    if (params.flags == 0 && api_number(call, 9, 2)) params.on_failure = XEP_ON_FAILURE_MASK;
    params.path = (xep_path_t)api_number(call, 120, 3);
    if (api_number(call, 122, 3) == 0) params.pass_rows = FUZZ_MOST_RANKS + api_number(call, 123, 16);
    return params;
}

/* A buffer that was made with a patch is good for calls, not for the oracle. */
void api_create(api_rank_t *rank, api_call_t *call)
{
    xep_buffer_params_t good = good_params(call);
    const fuzz_patch_t *patch = api_patch(rank, call);
    xep_buffer_t *buffer = NULL;
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;
    api_destroy(rank, call->buffer);
    const xep_buffer_params_t *params = FUZZ_PATCHED(good, params_fields, patch);
    xep_status_t fits = xep_buffer_size(params, rank->nranks, &size);
    xep_status_t status = xep_buffer_create(rank->group, params, &buffer);
    api_judge(rank, "xep_buffer_size", fits, patch == NULL);
    api_judge(rank, "xep_buffer_create", status, patch == NULL);
    api_meet(rank, call, status);
    if (status == XEP_OK && fits != XEP_OK && patch == NULL) fuzz_fail("a buffer without a size was made");
    if ((status == XEP_OK) != (buffer != NULL)) fuzz_fail("status %d with buffer %p", status, (void *)buffer);
    if (status == XEP_OK && call->patched) rank->goes_on = -1;
    else if (status == XEP_OK && good.on_failure == XEP_ON_FAILURE_MASK && rank->goes_on == 0) rank->goes_on = 1;
    rank->buffers[call->buffer] = buffer;
    rank->params[call->buffer] = good;
    if (call->patched && status == XEP_OK) api_destroy(rank, call->buffer); /* its limits are not known here */
}

void api_destroy(api_rank_t *rank, uint32_t b)
{
    for (uint32_t i = 0; i < API_SLOTS; i++) rank->handles[b][i] = (api_handle_t){0};
    xep_buffer_destroy(rank->buffers[b]);
    rank->buffers[b] = NULL;
    fuzz_count(1);
}
