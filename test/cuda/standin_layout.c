/* SPDX-License-Identifier: BSD-3-Clause */

/* The kernel of xep_layout() in plain C. */
#include <string.h>

#include "cuda_layout.h"
#include "standin.h"

static int64_t index_in(const xep_cuda_layout_t *l, uint64_t token, uint32_t k)
{
    const char *row = l->topk_idx + token * l->topk_idx_stride;
    int64_t wide;
    int32_t narrow;
    if (l->wide) memcpy(&wide, row + k * sizeof wide, sizeof wide);
    else memcpy(&narrow, row + k * sizeof narrow, sizeof narrow);
    return l->wide ? wide : narrow;
}

/* The first E % R ranks own one expert more than the others. */
static int64_t first_of(const xep_cuda_layout_t *l, uint32_t rank)
{
    const uint32_t more = l->experts % l->nranks;
    return (int64_t)rank * (l->experts / l->nranks) + (rank < more ? rank : more);
}

static int selects_one_of(const xep_cuda_layout_t *l, uint64_t token, uint32_t rank, uint32_t count)
{
    for (uint32_t k = 0; k < l->topk; k++)
        for (uint32_t r = rank; r < rank + count && r < l->nranks; r++) {
            int64_t expert = index_in(l, token, k);
            if (expert >= first_of(l, r) && expert < first_of(l, r + 1)) return 1;
        }
    return 0;
}

static void count_groups(const xep_cuda_layout_t *l, uint32_t groups, uint32_t ranks, int32_t *counts)
{
    for (uint32_t g = 0; g < groups && counts != NULL; g++) {
        counts[g] = 0;
        for (uint64_t t = 0; t < l->tokens; t++) counts[g] += selects_one_of(l, t, g * ranks, ranks);
    }
}

void standin_layout(const void *args)
{
    const xep_cuda_layout_t *l = args;
    count_groups(l, l->nranks, 1, l->tokens_per_rank);
    count_groups(l, l->nodes, l->ranks_per_node, l->tokens_per_node);
    for (uint64_t i = 0; l->token_in_rank != NULL && i < l->tokens * l->nranks; i++)
        l->token_in_rank[i] = (uint8_t)selects_one_of(l, i / l->nranks, (uint32_t)(i % l->nranks), 1);
    if (l->tokens_per_expert == NULL) return;
    memset(l->tokens_per_expert, 0, l->experts * sizeof *l->tokens_per_expert);
    for (uint64_t i = 0; i < l->tokens * l->topk; i++) {
        int64_t expert = index_in(l, i / l->topk, (uint32_t)(i % l->topk));
        if (expert >= 0 && expert < l->experts) l->tokens_per_expert[expert]++;
    }
}
