/* SPDX-License-Identifier: BSD-3-Clause */

/* Layouts of indices in device memory, counted by the host. They belong to no slot and may have any shape. */
#include "layout.h"
#include "staging.h"
#include "staging_slots.h"

/* What is in the memory of layouts: indices, and the arrays that are wanted. */
typedef struct layout_copies {
    uint64_t bytes[5], begin[5], end;
} layout_copies_t;

/* An array that is not wanted takes no bytes. Each begins at a multiple of 8 bytes, as indices of 64 bits need it. */
static layout_copies_t lay_copies(const xep_layout_args_t *args, const xep_layout_t *out)
{
    const uint64_t nodes = 1 + (args->nranks - 1) / args->ranks_per_node;
    const uint64_t elem = args->topk_idx_dtype == XEP_INT64 ? sizeof(int64_t) : sizeof(int32_t);
    layout_copies_t c = {.bytes = {args->tokens * args->topk * elem,
                                   out->tokens_per_rank == NULL ? 0 : args->nranks * sizeof(int32_t),
                                   out->tokens_per_node == NULL ? 0 : nodes * sizeof(int32_t),
                                   out->tokens_per_expert == NULL ? 0 : args->experts * sizeof(int32_t),
                                   out->token_in_rank == NULL ? 0 : args->tokens * args->nranks}};
    for (int i = 0; i < 5; i++) {
        c.begin[i] = c.end;
        c.end += (c.bytes[i] + 7) / 8 * 8;
    }
    return c;
}

/*
 * Kept as large as the largest layout so far, as programs ask for one in each step. After a failure there is no memory,
 * and the next layout tries again.
 */
static xep_status_t get_memory(xep_buffer_t *buffer, uint64_t bytes)
{
    xep_staging_t *staging = buffer->staging;
    xep_device_t *device = &buffer->device->device;
    if (staging->layout_bytes >= bytes && staging->layout != NULL) return XEP_OK;
    device->ops->release(device, XEP_MEMORY_HOST, staging->layout);
    staging->layout = NULL;
    staging->layout_bytes = bytes;
    return device->ops->allocate(device, XEP_MEMORY_HOST, bytes, &staging->layout);
}

/* Masks indices that are not experts: layouts in device memory ignore them, and the dispatch refuses them. */
static void mask_wrong(const xep_layout_args_t *args, void *idx)
{
    const uint64_t selections = args->tokens * args->topk;
    int64_t *wide = idx;
    int32_t *narrow = idx;
    for (uint64_t i = 0; i < selections; i++) {
        const int64_t expert = args->topk_idx_dtype == XEP_INT64 ? wide[i] : narrow[i];
        if (expert >= 0 && expert < args->experts) continue;
        if (args->topk_idx_dtype == XEP_INT64) wide[i] = -1;
        else narrow[i] = -1;
    }
}

static xep_status_t check_arrays(const xep_buffer_t *buffer, const xep_layout_args_t *args, const xep_layout_t *out)
{
    xep_status_t status = xep_staging_check(buffer, "topk_idx", args->topk_idx, args->tokens);
    if (status == XEP_OK) status = xep_staging_check(buffer, "tokens_per_rank", out->tokens_per_rank, 1);
    if (status == XEP_OK) status = xep_staging_check(buffer, "tokens_per_node", out->tokens_per_node, 1);
    if (status == XEP_OK) status = xep_staging_check(buffer, "tokens_per_expert", out->tokens_per_expert, 1);
    if (status == XEP_OK) status = xep_staging_check(buffer, "token_in_rank", out->token_in_rank, args->tokens);
    return status == XEP_OK ? xep_staging_check_stream(buffer, args->stream) : status;
}

static void *at(const xep_buffer_t *buffer, const layout_copies_t *c, int i)
{
    return c->bytes[i] == 0 ? NULL : (char *)buffer->staging->layout + c->begin[i];
}

static xep_status_t send_counts(xep_buffer_t *buffer, const layout_copies_t *c, const xep_layout_t *out, void *stream)
{
    void *const to[] = {NULL, out->tokens_per_rank, out->tokens_per_node, out->tokens_per_expert, out->token_in_rank};
    staged_matrix_t copies[5] = {0};
    for (int i = 1; i < 5; i++)
        copies[i] = (staged_matrix_t){NULL, to[i], c->bytes[i], at(buffer, c, i), c->bytes[i], c->bytes[i], 1};
    xep_status_t status = xep_staging_copy(buffer, copies, 5, stream);
    /* the next one writes here, and may be on another stream */
    if (status == XEP_OK) status = xep_staging_note(buffer, stream);
    return status == XEP_OK ? xep_staging_wait(buffer, XEP_WAITS_NOWHERE, buffer->timeout_ms) : status;
}

/*
 * Waits for the stream twice: before it counts the indices, and until the counts have left (send_counts). Operations of
 * the buffer go on meanwhile. A layout is not an operation: it takes no slot and no epoch.
 */
xep_status_t xep_staging_layout(xep_buffer_t *buffer, const xep_layout_args_t *args, const xep_layout_t *out)
{
    const layout_copies_t c = lay_copies(args, out);
    const uint64_t row = args->tokens == 0 ? 0 : c.bytes[0] / args->tokens;
    xep_status_t status = check_arrays(buffer, args, out);
    if (status == XEP_OK) status = xep_staging_come(buffer, args->stream, 0); /* CUDA may wait in an allocation */
    if (status == XEP_OK) status = get_memory(buffer, c.end);
    if (status != XEP_OK) return status;
    const staged_matrix_t idx = {NULL, at(buffer, &c, 0), row, args->topk_idx, args->topk_idx_stride,
                                 row,  args->tokens};
    status = xep_staging_copy(buffer, &idx, 1, args->stream);
    if (status == XEP_OK) status = xep_staging_note(buffer, args->stream);
    if (status == XEP_OK) status = xep_staging_wait(buffer, XEP_WAITS_NOWHERE, buffer->timeout_ms);
    if (status != XEP_OK) return status;
    xep_layout_args_t own = *args;
    const xep_layout_t counts = {.size = sizeof counts,
                                 .tokens_per_rank = at(buffer, &c, 1),
                                 .tokens_per_node = at(buffer, &c, 2),
                                 .tokens_per_expert = at(buffer, &c, 3),
                                 .token_in_rank = at(buffer, &c, 4)};
    own.topk_idx = idx.to;
    own.topk_idx_stride = row;
    mask_wrong(args, idx.to);
    status = xep_layout_compute(&own, &counts);
    return status == XEP_OK ? send_counts(buffer, &c, out, args->stream) : status;
}
