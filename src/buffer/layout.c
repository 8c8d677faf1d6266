/* SPDX-License-Identifier: BSD-3-Clause */

/* The layout of a dispatch for callers: counts and membership, computed by plain loops. */

#include <stdlib.h>
#include <string.h>

#include <xep/xep.h>

#include "error.h"
#include "layout.h"
#include "owners.h"

enum { STACK_RANKS = 4096 };

void xep_expert_range(uint32_t experts, uint32_t nranks, uint32_t rank, uint32_t *first_p, uint32_t *count_p)
{
    uint32_t base = nranks == 0 ? 0 : experts / nranks, more = nranks == 0 ? 0 : experts % nranks;
    uint32_t first = rank >= nranks ? experts : rank * base + (rank < more ? rank : more);
    if (first_p != NULL) *first_p = first;
    if (count_p != NULL) *count_p = rank >= nranks ? 0 : base + (rank < more ? 1 : 0);
}

/* The inverse of xep_expert_range(), without a search: the first ranks own one expert more than the others. */
uint32_t xep_expert_owner(uint32_t experts, uint32_t nranks, uint32_t expert)
{
    uint32_t base = experts / nranks, more = experts % nranks;
    uint32_t in_large = more * (base + 1); /* experts of the ranks that own one more */
    return expert < in_large ? expert / (base + 1) : more + (expert - in_large) / base;
}

xep_status_t xep_layout_refuse(uint64_t token, uint32_t k, int64_t expert, uint32_t experts)
{
    return xep_fail(XEP_ERR_INVALID, "invalid topk_idx[%llu][%u]: %lld (-1, or one of %u experts)",
                    (unsigned long long)token, k, (long long)expert, experts);
}

xep_status_t xep_layout_count_selections(const xep_dispatch_args_t *args, uint32_t experts, uint32_t *counts)
{
    if (counts != NULL) memset(counts, 0, experts * sizeof *counts);
    for (uint64_t t = 0; t < args->tokens; t++)
        for (uint32_t k = 0; k < args->topk; k++) {
            const int64_t expert = xep_layout_expert(args->topk_idx, args->topk_idx_stride, args->topk_idx_dtype, t, k);
            if (expert < -1 || expert >= (int64_t)experts) return xep_layout_refuse(t, k, expert, experts);
            if (counts != NULL && expert >= 0) counts[expert]++;
        }
    return XEP_OK;
}

/* seen[rank or node] is the last token counted there, plus one: cleared once and not for each token */
static xep_status_t count_token(const xep_layout_args_t *args, const xep_layout_t *out, uint64_t token,
                                uint64_t *seen_rank, uint64_t *seen_node)
{
    for (uint32_t k = 0; k < args->topk; k++) {
        int64_t expert = xep_layout_expert(args->topk_idx, args->topk_idx_stride, args->topk_idx_dtype, token, k);
        if (expert == -1) continue;
        if (expert < 0 || expert >= (int64_t)args->experts) return xep_layout_refuse(token, k, expert, args->experts);
        uint32_t rank = xep_owner_of(args->owners, args->experts, args->nranks, (uint32_t)expert);
        uint32_t node = rank / args->ranks_per_node;
        if (out->tokens_per_expert != NULL) out->tokens_per_expert[expert]++;
        if (seen_rank[rank] != token + 1) {
            seen_rank[rank] = token + 1;
            if (out->tokens_per_rank != NULL) out->tokens_per_rank[rank]++;
            if (out->token_in_rank != NULL) out->token_in_rank[token * args->nranks + rank] = 1;
        }
        if (seen_node[node] != token + 1) {
            seen_node[node] = token + 1;
            if (out->tokens_per_node != NULL) out->tokens_per_node[node]++;
        }
    }
    return XEP_OK;
}

static void clear(const xep_layout_args_t *args, const xep_layout_t *out)
{
    uint32_t nodes = 1 + (args->nranks - 1) / args->ranks_per_node;
    if (out->tokens_per_rank != NULL) memset(out->tokens_per_rank, 0, sizeof(int32_t) * args->nranks);
    if (out->tokens_per_node != NULL) memset(out->tokens_per_node, 0, sizeof(int32_t) * nodes);
    if (out->tokens_per_expert != NULL) memset(out->tokens_per_expert, 0, sizeof(int32_t) * args->experts);
    if (out->token_in_rank != NULL) memset(out->token_in_rank, 0, args->tokens * args->nranks);
}

/* The stack serves up to 4096 ranks, so that the layout of a step allocates nothing. */
xep_status_t xep_layout_compute(const xep_layout_args_t *args, const xep_layout_t *out)
{
    uint64_t on_stack[2 * STACK_RANKS];
    uint64_t *seen = on_stack;
    xep_status_t status = XEP_OK;
    if (args->nranks > STACK_RANKS) {
        seen = malloc(2 * sizeof *seen * args->nranks);
        if (seen == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the layout of %u ranks", args->nranks);
    }
    /* of ranks, and behind them of nodes, of which there are no more */
    memset(seen, 0, 2 * sizeof *seen * args->nranks);
    clear(args, out);
    for (uint64_t token = 0; token < args->tokens && status == XEP_OK; token++)
        status = count_token(args, out, token, seen, seen + args->nranks);
    if (seen != on_stack) free(seen);
    return status;
}
