/* SPDX-License-Identifier: BSD-3-Clause */

/* The plan of a dispatch: from topk_idx to the ranks of each token. */
#include <string.h>

#include "normal_steps.h"

/* Copies a token's selections, counts them and marks their ranks; returns k of one that is no expert, or K. */
__attribute__((always_inline)) static inline uint32_t mark_token(const normal_t *mode, const normal_routing_t *routing,
                                                                 const char *row, uint64_t token, uint64_t *marks,
                                                                 int wide, int few)
{
    const uint32_t *owner = mode->kit.owner;
    uint32_t *selections = routing->selections, topk = routing->topk, count = mode->kit.shape->experts;
    int32_t *experts = routing->experts + token * topk;
    for (uint32_t k = 0; k < topk; k++) {
        int64_t expert = xep_idx_at(row, k, wide);
        experts[k] = (int32_t)expert;
        if (expert == -1) continue;
        if ((uint64_t)expert >= count) return k;
        selections[expert]++;
        marks[few ? 0 : owner[expert] / 64] |= UINT64_C(1) << owner[expert] % 64;
    }
    return topk;
}

/*
 * Lists the marked ranks, ascending, and clears the marks; returns the end of dests. A token's row number at each rank
 * is how many of this rank's tokens went there before it: so the places of rows follow from counts alone.
 */
static inline uint64_t list_ranks(const normal_routing_t *routing, uint64_t *marks, uint32_t words, uint64_t end)
{
    normal_dest_t *dests = routing->dests;
    uint32_t *rows = routing->rows;
    for (uint32_t w = 0; w < words; w++) {
        uint64_t left = marks[w];
        marks[w] = 0;
        for (; left; left &= left - 1) {
            uint32_t rank = w * 64 + (uint32_t)__builtin_ctzll(left);
            dests[end++] = (normal_dest_t){rank, rows[rank]++};
        }
    }
    return end;
}

/* A token's ranks in the order of its last selection of each: from the last selection on, those found last. */
static void order_terms(const uint32_t *owner, const int32_t *experts, uint32_t topk, normal_dest_t *terms,
                        uint32_t count)
{
    uint32_t left = count, i;
    for (uint32_t k = topk; k > 0 && left > 0; k--) {
        if (experts[k - 1] < 0) continue;
        for (i = 0; i < left && terms[i].rank != owner[experts[k - 1]]; i++) {}
        if (i == left) continue; /* it is of a rank behind, or of none of them */
        const normal_dest_t last = terms[i];
        terms[i] = terms[--left];
        terms[left] = last;
    }
}

xep_status_t normal_order_by_selection(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    if (op->cached_slot != XEP_NO_SLOT) return XEP_OK; /* it is */
    for (uint64_t t = 0; t < routing->tokens; t++)
        order_terms(mode->kit.owner, routing->experts + t * routing->topk, routing->topk,
                    routing->dests + routing->first[t], (uint32_t)(routing->first[t + 1] - routing->first[t]));
    return XEP_OK;
}

/**
 * Plans tokens up to one that selects what is no expert, whose k goes to *k_p; returns how many. The width of
 * indices and, for few ranks, the one word of marks are known to the compiler: a selection takes 20 instructions, not
 * 36, and in small batches the plan is as long as the copying.
 */
__attribute__((always_inline)) static inline uint64_t plan_tokens(const normal_t *mode, const xep_dispatch_args_t *args,
                                                                  const normal_routing_t *routing, uint32_t *k_p,
                                                                  int wide, int few)
{
    const char *row = args->topk_idx;
    uint32_t words = few ? 1 : (mode->kit.shape->nranks + 63) / 64;
    uint64_t word = 0, *marks = few ? &word : mode->marks, end = 0, t;
    for (t = 0; t < args->tokens; t++, row += args->topk_idx_stride) {
        routing->first[t] = end;
        *k_p = mark_token(mode, routing, row, t, marks, wide, few);
        if (*k_p < args->topk) break;
        end = list_ranks(routing, marks, words, end);
    }
    routing->first[t] = end;
    return t;
}

static uint64_t plan_all(const normal_t *mode, const xep_dispatch_args_t *args, const normal_routing_t *routing,
                         uint32_t *k_p)
{
    int few = mode->kit.shape->nranks <= 64;
    if (args->topk_idx_dtype == XEP_INT64)
        return few ? plan_tokens(mode, args, routing, k_p, 1, 1) : plan_tokens(mode, args, routing, k_p, 1, 0);
    return few ? plan_tokens(mode, args, routing, k_p, 0, 1) : plan_tokens(mode, args, routing, k_p, 0, 0);
}

/*
 * A counting sort of what dests says, by destination: puts go rank by rank, and rows of neighbouring tokens are put as
 * one piece then.
 */
void normal_list_tokens(normal_t *mode, normal_routing_t *routing)
{
    routing->to_begin[0] = 0;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        routing->to_begin[r + 1] = routing->to_begin[r] + routing->rows[r];
    for (uint64_t t = 0; t < routing->tokens; t++)
        for (uint64_t i = routing->first[t]; i < routing->first[t + 1]; i++)
            routing->tokens_to[routing->to_begin[routing->dests[i].rank] + routing->dests[i].row] = (uint32_t)t;
}

/* Nothing was sent yet: an index that is no expert refuses the operation, and the routing stays free. */
xep_status_t normal_make_plan(normal_t *mode, xep_op_t *op, normal_routing_t *routing)
{
    const xep_dispatch_args_t *args = op->dispatch;
    uint32_t k = 0;

    routing->topk = args->topk;
    routing->tokens = args->tokens;
    routing->epoch = op->epoch;
    memset(routing->rows, 0, mode->kit.shape->nranks * sizeof *routing->rows);
    memset(routing->selections, 0, mode->kit.shape->experts * sizeof *routing->selections);
    uint64_t planned = plan_all(mode, args, routing, &k);
    if (planned < args->tokens) {
        memset(mode->marks, 0, (mode->kit.shape->nranks + 63) / 64 * sizeof *mode->marks);
        return xep_kit_refuse_expert(&mode->kit, op, planned, k);
    }
    return XEP_OK;
}
