/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Arguments of the kernels that move rows between devices of one host: plain structs, the same for the host that fills
 * them and the device that reads them. Memory they name is device memory, of this rank or of a peer, unless it says
 * otherwise.
 *
 * Every rank has one heap of the same layout; peer[r] is rank r's heap as this device reaches it. A word is written by
 * one rank, holds an epoch and only grows, as on the host: the protocol is that of plugins/normal.
 */
#ifndef XEP_CUDA_KERNELS_H
#define XEP_CUDA_KERNELS_H

#include <stdint.h>

enum {
    XEP_CUDA_NOBODY = -1,   /* rank of a place in the list of a token that goes to fewer ranks */
    XEP_CUDA_CHUNK = 16384, /* most bytes of one bulk copy */
    XEP_CUDA_PLAN_BLOCKS = 8,
    XEP_CUDA_PLAN_THREADS = 512
};

/** A token goes to this rank, as this row of what the rank gets from here. */
typedef struct xep_cuda_dest {
    int32_t rank;
    uint32_t row;
} xep_cuda_dest_t;

/** A wait that has lasted too long says so in pinned host memory, and its kernel ends. */
typedef struct xep_cuda_deadline {
    uint64_t timeout_ns; /* by the device's clock; 0: none */
    uint32_t *late;      /* rank that did not come, plus 1; 0: all did. One word in pinned host memory */
} xep_cuda_deadline_t;

/** Who gets what: from topk_idx to the ranks of each token. XEP_CUDA_PLAN_BLOCKS of XEP_CUDA_PLAN_THREADS. */
typedef struct xep_cuda_plan {
    const char *topk_idx; /* [tokens] rows of topk indices, topk_idx_stride bytes apart */
    uint64_t topk_idx_stride;
    uint32_t wide; /* 1: indices are int64_t, 0: int32_t */
    uint32_t tokens, topk, experts, nranks;
    uint32_t max_dests;    /* places in the list of a token: min(topk, nranks) */
    const uint32_t *owner; /* [experts] rank */
    uint32_t *scratch;     /* [2][(tokens + 31) / 32][nranks] */
    xep_cuda_dest_t *dest; /* [tokens][max_dests], ranks ascending, nobody last */
    uint32_t *rows;        /* [nranks] to each */
    uint32_t *selections;  /* [experts] */
    uint64_t *wrong;       /* token * topk + k of the first index that is no expert and not -1; UINT64_MAX: all are */
} xep_cuda_plan_t;

/** Tells all ranks the counts and learns theirs; then all know the matrix of rows and so every place. One block. */
typedef struct xep_cuda_counts {
    char *const *peer; /* [nranks] */
    uint32_t rank, nranks;
    uint64_t epoch;
    uint64_t record, record_bytes; /* offset of the [nranks] records in a heap; a record: rows [nranks], selections */
    uint64_t word, word_stride;    /* offset of the word that rank 0 writes; bytes to that of the next rank */
    const uint32_t *rows;          /* [nranks] of this rank to each */
    const uint32_t *selections;    /* [experts] of this rank */
    const uint32_t *first_expert;  /* [nranks + 1] */
    uint64_t capacity;             /* rows there is room for, on every rank */
    uint32_t *rank_rows;           /* [nranks][nranks] rows from i to j */
    uint64_t *src_begin;           /* [nranks + 1] first row of each source, here */
    uint64_t *place;               /* [nranks] first row of this rank, there */
    uint64_t *expert_rows;         /* [local experts] selections, of all sources */
    uint64_t *counted;             /* pinned: rows received here, plus 1; UINT64_MAX: some rank has no room */
    xep_cuda_deadline_t deadline;
} xep_cuda_counts_t;

/** Offsets of the arrays of a slot in a heap. */
typedef struct xep_cuda_area {
    uint64_t x;         /* [recv_rows] rows, row_stride bytes apart */
    uint64_t src_token; /* [recv_rows] int32_t */
    uint64_t topk_idx;  /* [recv_rows][topk] as given to dispatch, but local */
    uint64_t weights;   /* [recv_rows][topk] float */
    uint64_t scales;    /* [recv_rows][nscales] 4-byte words */
} xep_cuda_area_t;

/** Moves rows and what belongs to them to their final places, then tells every rank. */
typedef struct xep_cuda_dispatch {
    char *const *peer; /* [nranks] */
    uint32_t rank, nranks;
    uint32_t tokens, topk, max_dests, nscales;
    uint32_t wide;
    uint32_t copying; /* warps of a block that move rows; the others move what belongs to them */
    uint32_t stages;  /* of a chunk each, for each copying warp, in shared memory; 0: rows that no bulk copy can move */
    uint64_t epoch;
    const char *x;
    uint64_t x_stride, row_bytes, row_stride;
    const char *topk_idx;
    uint64_t topk_idx_stride;
    const char *weights; /* NULL: none are sent */
    uint64_t weights_stride;
    const char *scales;
    int64_t scales_token_stride, scales_stride;
    const xep_cuda_dest_t *dest;
    const uint64_t *place;        /* [nranks] */
    const uint32_t *first_expert; /* [nranks + 1] */
    xep_cuda_area_t area;
    uint64_t word, word_stride; /* as in xep_cuda_counts_t */
    uint32_t *blocks_done;      /* 0 before and after */
    xep_cuda_deadline_t deadline;
} xep_cuda_dispatch_t;

/** Pulls and sums what ranks contribute to each token, in fp32, ranks ascending, and tells owners. A kernel a type. */
typedef struct xep_cuda_combine {
    char *const *peer; /* [nranks] */
    uint32_t rank, nranks;
    uint32_t tokens, hidden, max_dests;
    uint32_t stages; /* for each warp, in shared memory; 0: contributions that no bulk copy can move, or too many */
    uint32_t rows;   /* of a stage: max_dests and the biases given, 32 at most */
    uint32_t chunk;  /* bytes of a row in a stage: a multiple of 16 */
    uint64_t epoch;
    uint64_t input, row_stride; /* offset of the [recv_rows] expert outputs in a heap */
    const xep_cuda_dest_t *dest;
    const uint64_t *place; /* [nranks] */
    const char *bias[2];
    uint64_t bias_stride[2];
    char *out;
    uint64_t out_stride;
    uint64_t ready, read, word_stride; /* words: input may be read; input was read */
    uint32_t *blocks_done;             /* 0 before and after */
    xep_cuda_deadline_t deadline;
} xep_cuda_combine_t;

#endif
