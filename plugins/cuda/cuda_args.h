/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What arguments of all kernels are made of: plain structs, the same for the host that fills them and the device that
 * reads them. Memory they name is device memory, of this rank or of a peer, unless it says otherwise.
 *
 * Every rank has one heap of the same layout; peer[r] is rank r's heap as this device reaches it. A word is written by
 * one rank, holds an epoch and only grows, as on the host.
 */
#ifndef XEP_CUDA_ARGS_H
#define XEP_CUDA_ARGS_H

#include <stdint.h>

enum { XEP_CUDA_WHOLE = 1 << 16 /* shares of a word that all blocks of a kernel tell together, in an epoch */ };

/** A wait that has lasted too long says so in pinned host memory, and its kernel ends. */
typedef struct xep_cuda_deadline {
    uint64_t timeout_ns;  /* by the device's clock; 0: none */
    uint32_t *late;       /* rank that did not come, plus 1; 0: all did. Pinned */
    const uint32_t *stop; /* not 0: waits end at once. Pinned */
} xep_cuda_deadline_t;

/**
 * How a kernel knows that its buffer is as it was when the operation was called. A reset is the end of all slots, so a
 * graph that was captured before it, and is launched after it, says so and does nothing else.
 */
typedef struct xep_cuda_life {
    const uint64_t *now; /* another one after each reset. Device memory */
    uint64_t number;     /* at the call */
    uint32_t *stale;     /* 1: a kernel found another one. Pinned */
} xep_cuda_life_t;

/** What a rank says of itself in its own heap, where ranks may be left out. Others write claim alone. */
typedef struct xep_cuda_own_words {
    uint64_t claim;   /* 2 * the last operation whose record is in its heap (normal); odd: others have left it out */
    uint64_t storing; /* operation whose rows it may be storing at others (normal); 0: none */
    uint64_t beat;    /* changes while a kernel of it waits */
    uint64_t reserved[5];
} xep_cuda_own_words_t;

/** How an operation is with a rank. */
enum {
    XEP_CUDA_WITHOUT, /* nothing that it says counts */
    XEP_CUDA_HEARD,   /* its record counts (normal), its last word has not come */
    XEP_CUDA_WITH
};

/** Ranks that are out, where a buffer goes on without them: cuda_outs.cuh. */
typedef struct xep_cuda_outs {
    const uint32_t *gone; /* xep_device_t; NULL: all ranks take part in all operations */
    uint32_t *left;       /* likewise */
    uint64_t *out;        /* [nranks] the first operation that the rank is out of for good; 0: it is not out */
    uint32_t *with;       /* [nranks] XEP_CUDA_WITH.. of the operation that was decided last */
    uint64_t *decided;    /* 2 * its epoch, plus 1 if it goes on */
    uint64_t words;       /* offset of the xep_cuda_own_words_t in every heap */
    uint32_t some_gone;   /* 1: when the operation was called the host had left some rank out */
} xep_cuda_outs_t;

/** Rows that are cast; where the cast rows lie, from the first one on, in bytes. */
typedef struct xep_cuda_cast {
    const char *x;
    uint64_t x_stride;
    uint32_t tokens, hidden;
    uint32_t dtype, quant; /* xep_dtype_t, xep_quant_t */
    float scale;           /* of the caller's; 0: none */
    uint32_t reserved;
    uint64_t row_stride;
    uint64_t scales, scales_stride; /* of row 0, and from those of a row to the next ones */
} xep_cuda_cast_t;

/** How tokens are summed: what all combines have. Shared memory of a stage: xep_cuda_stage_bytes(). */
typedef struct xep_cuda_sum {
    uint32_t tokens, hidden;
    uint32_t warps;    /* of a block, that pull; those behind them do something else */
    uint32_t together; /* 1: warps go through the tokens together, a row each; 0: each through tokens of its own */
    uint32_t beside;   /* blocks that come before those that sum, and do something else */
    uint32_t stages;   /* for each warp, in shared memory; 0: contributions that no bulk copy can move, or too many */
    uint32_t rows;     /* most contributions to a token; with stages 32 at most */
    uint32_t chunk;    /* bytes of a row in a stage: a multiple of 16 */
    const char *bias[2];
    uint64_t bias_stride[2];
    char *out;
    uint64_t out_stride;
} xep_cuda_sum_t;

/** The rows of a chunk, a barrier, a number, and the weights of rows. */
static inline uint32_t xep_cuda_stage_bytes(const xep_cuda_sum_t *sum)
{
    return sum->rows * sum->chunk + 12 + 4 * sum->rows;
}

/**
 * What a warp pulls of a row at once, where so many ranks contribute to a token: of fewer rows more, so that there
 * is room for two stages. Rows are cut where lines of 128 bytes begin: elsewhere copies take half as long again.
 */
static inline uint32_t xep_cuda_sum_chunk(uint32_t ranks)
{
    return ranks <= 2 ? 2048 : 1024;
}

/**
 * Stages of each of so many warps in so many blocks: a second one where so little would be on its way with one that the
 * links are idle while it is summed; where there is more, it would only get in its own way.
 */
static inline uint32_t xep_cuda_sum_stages(const xep_cuda_sum_t *sum, uint32_t warps, uint32_t blocks,
                                           uint32_t shared_bytes)
{
    enum { ENOUGH = 2 << 20 };
    const uint32_t all = warps * xep_cuda_stage_bytes(sum);
    return 2 * all <= shared_bytes && (uint64_t)all * blocks < ENOUGH ? 2 : 1;
}

#endif
