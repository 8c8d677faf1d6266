/* SPDX-License-Identifier: BSD-3-Clause */

/** Arguments of the kernels of xep_handle_expand() and xep_handle_reduce(). */
#ifndef XEP_CUDA_EXPERTS_H
#define XEP_CUDA_EXPERTS_H

#include <stdint.h>

#include <xep/xep.h>

#include "cuda_kernels.h"

enum {
    XEP_CUDA_SLOTS_BLOCKS = 8,
    XEP_CUDA_SLOTS_WARPS = 32, /* of a block, at most */
    XEP_CUDA_EXPAND_THREADS = 1024,
    XEP_CUDA_REDUCE_THREADS = 768
};

/**
 * Finds the slot of each selection (xep_cuda_slots, XEP_CUDA_SLOTS_BLOCKS), then moves rows and what belongs to them
 * there (xep_cuda_expand, any number of blocks). An array that is NULL is left out.
 */
typedef struct xep_cuda_expand {
    const char *topk_idx; /* [rows][topk] local expert, or -1 */
    uint32_t wide;        /* 1: indices are int64_t, 0: int32_t */
    uint32_t topk, experts, alignment;
    uint64_t rows, capacity;
    int32_t *slots;          /* [rows][topk] made */
    uint64_t *begin, *count; /* [experts] made */
    const char *x;
    uint64_t x_stride, row_bytes;
    char *to;
    uint64_t to_stride;
    const float *weights; /* [rows][topk] */
    float *to_weights;    /* [capacity] */
    const char *scales;   /* [rows][nscales] words */
    int64_t scales_token_stride, scales_stride;
    char *to_scales; /* [capacity][nscales] */
    int64_t to_scales_token_stride, to_scales_stride;
    uint32_t nscales;
    uint32_t zero; /* 1: slots that no selection has become 0 */
    uint32_t part; /* XEP_CUDA_FIRST: the rows of the ranks' first tokens; XEP_CUDA_REST: the others; XEP_CUDA_ALL */
    /* in two parts: */
    uint32_t nranks;
    const uint64_t *src_begin; /* [nranks + 1] */
    const uint32_t *first;     /* [nranks] how many tokens are a rank's first ones; 0: all */
    const int32_t *src_token;  /* ascending in the rows of each rank */
    uint64_t *first_end;       /* [nranks] made by the slots: where the rows of the first tokens end */
} xep_cuda_expand_t;

/** Sums the slots of each row, k ascending, in fp32, and rounds the sum once. Any number of blocks. */
typedef struct xep_cuda_reduce {
    const int32_t *slots; /* [rows][topk] */
    uint64_t rows;
    uint32_t topk, hidden;
    const char *x;
    uint64_t x_stride;
    char *out;
    uint64_t out_stride;
    const float *weights; /* of slots; NULL: none */
    float *out_weights;   /* [rows][topk] */
    xep_dtype_t dtype;
    uint32_t wide; /* 1: out is fp32, whatever dtype is */
} xep_cuda_reduce_t;

/** Dynamic shared memory of the slots: the counts of each warp; of a block and of all; where experts begin. */
static inline uint64_t xep_cuda_slots_bytes(uint32_t experts, uint32_t warps)
{
    return (warps + UINT64_C(3)) * experts * sizeof(uint32_t);
}

#endif
