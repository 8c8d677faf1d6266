/* SPDX-License-Identifier: BSD-3-Clause */

/* The plan of a dispatch: from topk_idx to the ranks of each token. */
#include <string.h>

#include "normal.h"

static inline int64_t idx_load(const char *row, uint32_t k, xep_dtype_t dtype)
{
    int64_t wide;
    int32_t narrow;
    if (dtype == XEP_INT64) {
        memcpy(&wide, row + k * sizeof wide, sizeof wide); /* strides are the caller's: any alignment */
        return wide;
    }
    memcpy(&narrow, row + k * sizeof narrow, sizeof narrow);
    return narrow;
}

/* Copies the token's experts, counts them and marks their ranks; returns k of one that is none, or K. */
static inline uint32_t mark_token(normal_t *mode, normal_routing_t *routing, const char *row, int32_t *experts,
                                  xep_dtype_t dtype)
{
    for (uint32_t k = 0; k < routing->topk; k++) {
        int64_t expert = idx_load(row, k, dtype);
        experts[k] = -1;
        if (expert == -1) continue;
        if ((uint64_t)expert >= mode->shape->experts) return k;
        experts[k] = (int32_t)expert;
        routing->selections[expert]++;
        uint32_t rank = mode->owner[expert];
        mode->marks[rank / 64] |= UINT64_C(1) << rank % 64;
    }
    return routing->topk;
}

/* Lists the marked ranks, ascending, and clears the marks. Returns the end of dests. */
static inline uint64_t list_ranks(normal_t *mode, normal_routing_t *routing, uint64_t end)
{
    uint32_t words = (mode->shape->nranks + 63) / 64;
    for (uint32_t w = 0; w < words; w++) {
        uint64_t marks = mode->marks[w];
        mode->marks[w] = 0;
        for (; marks; marks &= marks - 1) {
            uint32_t rank = w * 64 + (uint32_t)__builtin_ctzll(marks);
            routing->dests[end++] = (normal_dest_t){rank, routing->rows[rank]++};
        }
    }
    return end;
}

/* For puts in the order of the destination. */
static void list_tokens(normal_t *mode, normal_routing_t *routing)
{
    routing->to_begin[0] = 0;
    for (uint32_t r = 0; r < mode->shape->nranks; r++)
        routing->to_begin[r + 1] = routing->to_begin[r] + routing->rows[r];
    for (uint64_t t = 0; t < routing->tokens; t++)
        for (uint64_t i = routing->first[t]; i < routing->first[t + 1]; i++)
            routing->tokens_to[routing->to_begin[routing->dests[i].rank] + routing->dests[i].row] = (uint32_t)t;
}

xep_status_t normal_plan_make(normal_t *mode, xep_op_t *op, normal_routing_t *routing)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const char *row = args->topk_idx;
    uint64_t end = 0;

    routing->topk = args->topk;
    routing->tokens = args->tokens;
    routing->epoch = op->epoch;
    memset(routing->rows, 0, mode->shape->nranks * sizeof *routing->rows);
    memset(routing->selections, 0, mode->shape->experts * sizeof *routing->selections);
    for (uint64_t t = 0; t < args->tokens; t++, row += args->topk_idx_stride) {
        uint32_t k = mark_token(mode, routing, row, routing->experts + t * args->topk, args->topk_idx_dtype);
        routing->first[t] = end;
        if (k < args->topk) {
            memset(mode->marks, 0, (mode->shape->nranks + 63) / 64 * sizeof *mode->marks);
            return mode->env->fail(mode->env, op, XEP_ERR_INVALID,
                                   "topk_idx[%llu][%u] is %lld, which is neither -1 nor one of %u experts",
                                   (unsigned long long)t, k, (long long)idx_load(row, k, args->topk_idx_dtype),
                                   mode->shape->experts);
        }
        end = list_ranks(mode, routing, end);
    }
    routing->first[args->tokens] = end;
    if (!mode->all_mapped) list_tokens(mode, routing);
    return XEP_OK;
}

normal_routing_t *normal_routing_unused(normal_t *mode)
{
    normal_routing_t *routing = mode->routings;
    while (routing->refs) routing++;
    return routing;
}
