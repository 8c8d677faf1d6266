/* SPDX-License-Identifier: BSD-3-Clause */

/** Arguments of the kernel that counts what a dispatch would send where (xep_layout()): the same for all modes. */
#ifndef XEP_CUDA_LAYOUT_H
#define XEP_CUDA_LAYOUT_H

#include <stdint.h>

enum { XEP_CUDA_LAYOUT_BLOCKS = 8, XEP_CUDA_LAYOUT_THREADS = 512 };

/** An array that is NULL is left out. XEP_CUDA_LAYOUT_BLOCKS of XEP_CUDA_LAYOUT_THREADS. */
typedef struct xep_cuda_layout {
    const char *topk_idx; /* [tokens] rows of topk indices, topk_idx_stride bytes apart */
    uint64_t topk_idx_stride;
    uint64_t tokens;
    uint32_t wide; /* 1: indices are int64_t, 0: int32_t */
    uint32_t topk, experts, nranks, nodes, ranks_per_node;
    int32_t *tokens_per_rank;   /* [nranks] */
    int32_t *tokens_per_node;   /* [nodes] */
    int32_t *tokens_per_expert; /* [experts] */
    uint8_t *token_in_rank;     /* [tokens][nranks] */
} xep_cuda_layout_t;

/** Dynamic shared memory: an owner and a count of each expert, counts of ranks and nodes. */
static inline uint64_t xep_cuda_layout_bytes(const xep_cuda_layout_t *layout)
{
    return (2 * (uint64_t)layout->experts + layout->nranks + layout->nodes) * sizeof(uint32_t);
}

#endif
