/* SPDX-License-Identifier: BSD-3-Clause */

/** Arguments of the kernels of normal (cuda_args.h): the protocol is that of plugins/normal. */
#ifndef XEP_CUDA_KERNELS_H
#define XEP_CUDA_KERNELS_H

#include <normal_record.h>

#include "cuda_args.h"

enum {
    XEP_CUDA_NOBODY = -1,   /* rank of a place in the list of a token that goes to fewer ranks */
    XEP_CUDA_CHUNK = 16384, /* most bytes of one bulk copy */
    XEP_CUDA_PLAN_BLOCKS = 8,
    XEP_CUDA_PLAN_THREADS = 512,
    XEP_CUDA_COMBINE_THREADS = 768, /* most: of fewer, each has registers for more that is on its way */
    XEP_CUDA_PARTS = 32,            /* in which outputs that are brought into the input become ready; some at once */
    XEP_CUDA_STEPS = XEP_CUDA_PARTS + 1 /* of the word that says so in an operation: from no part to all */
};

/** How far a buffer has come: counted by its kernels, so that a replayed graph counts on. Device memory. */
typedef struct xep_cuda_now {
    uint64_t epoch;      /* of the last operation that has begun here */
    uint64_t lost;       /* epoch of the first one in which some word did not come; 0: none. Later ones do nothing */
    uint64_t done, read; /* epochs at which these words of this rank are */
} xep_cuda_now_t;

/** A token goes to this rank, as this row of what the rank gets from here. */
typedef struct xep_cuda_dest {
    int32_t rank;
    uint32_t row;
} xep_cuda_dest_t;

/**
 * Who gets what: from topk_idx to the ranks of each token. A kernel of XEP_CUDA_PLAN_BLOCKS of XEP_CUDA_PLAN_THREADS;
 * of few tokens every block of the dispatch makes it by itself.
 */
typedef struct xep_cuda_plan {
    xep_cuda_life_t life;
    const char *topk_idx; /* [tokens] rows of topk indices, topk_idx_stride bytes apart */
    uint64_t topk_idx_stride;
    uint32_t wide; /* 1: indices are int64_t, 0: int32_t */
    uint32_t tokens, topk, experts, nranks;
    uint32_t max_dests;     /* places in the list of a token: min(topk, nranks) */
    const uint32_t *number; /* [experts] the mode's of each of the caller's; NULL: the same */
    const uint32_t *owner;  /* [experts] rank */
    uint32_t *scratch;      /* [2][(tokens + 31) / 32][nranks] */
    uint32_t by_selection;  /* 1: the ranks of a token in the order of its last selection of each, 0: ascending */
    xep_cuda_dest_t *dest;  /* [tokens][max_dests], in the order of sums, nobody last */
    int32_t *chosen;        /* [tokens][topk] or -1 */
    uint32_t *rows;         /* [nranks] to each */
    uint32_t *selections;   /* [experts] */
    uint64_t *wrong;        /* token * topk + k of the first index that is no expert and not -1; UINT64_MAX: all are */
} xep_cuda_plan_t;

/** Casts rows that the dispatch behind it reads in place of the caller's. Any number of blocks. */
typedef struct xep_cuda_cast_rows {
    xep_cuda_life_t life;
    xep_cuda_cast_t cast;
    char *rows;
} xep_cuda_cast_rows_t;

/** An array that every slot has: where that of slot 0 begins in a heap, how far it is to the next, bytes of a row. */
typedef struct xep_cuda_area {
    uint64_t first, stride, row_bytes;
} xep_cuda_area_t;

/** The arrays of a slot. */
enum {
    XEP_CUDA_X,
    XEP_CUDA_SRC_TOKEN,     /* int32_t */
    XEP_CUDA_TOPK_IDX,      /* [topk] as given to dispatch, but local */
    XEP_CUDA_WEIGHTS,       /* [topk] float */
    XEP_CUDA_SCALES,        /* [nscales] 4-byte words */
    XEP_CUDA_INPUT,         /* of combine */
    XEP_CUDA_INPUT_WEIGHTS, /* [topk] float: of combine */
    XEP_CUDA_AREAS
};

/** Where the rows of this rank begin in the slot that another one chose. */
typedef struct xep_cuda_there {
    char *area[XEP_CUDA_AREAS]; /* NULL: the dispatch is without the rank */
} xep_cuda_there_t;

/** What all ranks conclude alike from the records. */
enum {
    XEP_CUDA_LOST = -1, /* nothing: some record did not come */
    XEP_CUDA_STAY,      /* nothing moves */
    XEP_CUDA_GO
};

/** What was wrong with the first dispatch that moved nothing and whose counts no host waited for. Pinned. */
typedef struct xep_cuda_refusal {
    uint64_t refused; /* 1: the rest is there */
    uint64_t wrong;   /* of the plan: first index that is no expert, or UINT64_MAX */
    uint64_t rows;    /* that the rank would get which has too little room */
    uint32_t rank;    /* which that is; nranks: all have room */
    uint32_t reserved;
} xep_cuda_refusal_t;

/** The record to all ranks, and what is made of theirs: then all know the matrix of rows and so every place. */
typedef struct xep_cuda_counts {
    normal_record_t header;         /* of the own record, with the host's epoch; that and wrong are filled here */
    uint64_t records, record_bytes; /* offset of the [nranks] records in a heap, with twice as many bytes each */
    uint64_t word;                  /* offset of the word that rank 0 writes, where ranks may be out */
    uint32_t slots;                 /* of every rank */
    uint64_t recv_rows;             /* of a slot */
    xep_cuda_area_t area[XEP_CUDA_AREAS];
    uint32_t *rank_rows;     /* [nranks][nranks] rows from i to j: made, or that of the cached routing */
    xep_cuda_there_t *there; /* [nranks] made */
    int32_t *verdict;        /* made */
    char *mirror;            /* pinned: [nranks] the records as they came, with the host's epoch for this one's */
    uint64_t *wrong_first;   /* pinned: *wrong of the plan */
    uint64_t *counted;       /* pinned: the host's epoch, once all of this is there */
    uint32_t *local;         /* [experts of this rank] made: selections, or those of the cached routing */
    uint32_t counts_there;   /* 1: no host waits; the next two are made, and the pinned ones above are not */
    uint32_t alignment;      /* of expert_rows */
    uint64_t *src_begin;     /* [nranks + 1]; made in two parts, too */
    uint64_t *expert_rows;   /* [experts of this rank] */
    uint32_t *first;         /* [nranks] made in two parts: header.first */
    char *refused;           /* pinned: [nranks] records, if this dispatch is the first that moves nothing */
    xep_cuda_refusal_t *refusal;
    xep_cuda_deadline_t deadline;
} xep_cuda_counts_t;

/** Which tokens' rows a launch moves. The first ones tell XEP_CUDA_WHOLE / 2 of "done", and the rest the other half. */
enum { XEP_CUDA_ALL, XEP_CUDA_FIRST, XEP_CUDA_REST };

/**
 * Exchanges counts, moves rows and what belongs to them to their final places, then tells every rank. Every block finds
 * out by itself what all ranks have told, so that no kernel has to end before rows may move.
 */
typedef struct xep_cuda_dispatch {
    xep_cuda_plan_t plan;
    xep_cuda_counts_t counts;
    char *const *peer; /* [nranks] */
    uint32_t rank, nscales;
    uint32_t part;     /* the first ones of header.first tokens, and with them what belongs to all rows; or the rest */
    uint32_t planning; /* 1: every block makes the plan; 0: it is there, by a kernel before or of a cached routing */
    uint32_t wide;     /* 1: the received indices are int64_t, 0: int32_t */
    uint32_t copying;  /* warps of a block that move rows; the others move what belongs to them */
    uint32_t stages; /* of a chunk each, for each copying warp, in shared memory; 0: rows that no bulk copy can move */
    xep_cuda_now_t *now;
    const char *x;
    uint64_t x_stride, row_bytes, row_stride;
    const char *weights; /* NULL: none are sent */
    uint64_t weights_stride;
    const char *scales;
    int64_t scales_token_stride, scales_stride;
    const uint32_t *first_expert; /* [nranks + 1] */
    uint32_t *tail;               /* the received indices of this rank: -1 behind the rows; NULL: the host sees to it */
    uint64_t tail_words;          /* of all rows that there is room for */
    uint64_t done, word_stride;   /* offset of the word that rank 0 writes; bytes to that of the next rank */
    xep_cuda_deadline_t deadline;
    xep_cuda_outs_t outs;
    uint8_t *out; /* [nranks] made, where ranks may be out: 1: its rows are not here */
} xep_cuda_dispatch_t;

/** Where the rows of this rank begin at another, and what that one's experts are: at hand for each token. */
typedef struct xep_cuda_rank {
    xep_cuda_there_t at;
    char *heap;
    uint32_t first_expert, end_expert;
} xep_cuda_rank_t;

/** Words of 4 bytes for a rank's header and rows in shared memory. */
static inline uint64_t xep_cuda_board_words(uint32_t nranks)
{
    return (sizeof(normal_record_t) / 4 + nranks + 1) & ~UINT64_C(1);
}

/** Shared memory of a block, behind its stages, for what all ranks have told. */
static inline uint64_t xep_cuda_board_bytes(uint32_t nranks)
{
    return nranks * (xep_cuda_board_words(nranks) * 4 + sizeof(xep_cuda_rank_t));
}

/** And behind that, for a plan that is made in every block. */
static inline uint64_t xep_cuda_plan_bytes(const xep_cuda_plan_t *plan)
{
    return sizeof(uint64_t) +
           plan->tokens * (plan->max_dests * sizeof(xep_cuda_dest_t) + plan->topk * sizeof(int32_t)) +
           ((plan->tokens + UINT64_C(31)) / 32 * 2 * plan->nranks + plan->nranks + 2 * plan->experts) *
               sizeof(uint32_t);
}

/**
 * Outputs that lie elsewhere: the first blocks of the grid bring them into the input, those of all readers at the same
 * pace, while the others pull.
 */
typedef struct xep_cuda_input {
    const char *x; /* NULL: all are in the input */
    uint64_t x_stride;
    const int32_t *slots; /* [rows][topk] x has rows by expert, of which these are summed; NULL: rows as received, of
                           * which those for this rank itself stay here */
    char *input;
    uint64_t *copied; /* [XEP_CUDA_PARTS] blocks that have brought so many parts and one more; 0 before and after */
} xep_cuda_input_t;

/**
 * Pulls and sums what ranks contribute to each token, in fp32, ranks ascending, and tells owners; ends when all have
 * read what is here. A kernel a type. "Ready" is epoch * XEP_CUDA_STEPS and how many parts of the rows to its reader
 * are there: of n rows the first n * parts / XEP_CUDA_PARTS.
 */
typedef struct xep_cuda_combine {
    xep_cuda_life_t life;
    char *const *peer; /* [nranks] */
    uint32_t rank, nranks;
    xep_cuda_sum_t sum;
    uint32_t max_dests;
    xep_cuda_now_t *now;
    uint64_t row_stride;
    const xep_cuda_dest_t *dest;
    const xep_cuda_there_t *there; /* [nranks] */
    const int32_t *verdict;        /* of the dispatch: nothing is summed where it moved nothing */
    const uint32_t *rank_rows;     /* [nranks][nranks] */
    xep_cuda_input_t input;
    uint32_t topk;
    char *out_weights; /* [tokens][topk] float: sums of what was sent back; NULL: nothing was */
    uint64_t out_weights_stride;
    uint64_t offer[2]; /* what ranks must agree on; UINT64_MAX agrees with all. Lies beside ready */
    uint64_t ready, said, read, word_stride;  /* words: input may be read; the offer; input was read */
    xep_cuda_deadline_t deadline, at_the_end; /* of ready, of read */
    uint32_t *differs;                        /* rank whose offer is another, plus 1. Pinned */
    xep_cuda_outs_t outs;
    const int32_t *chosen; /* [tokens][topk] */
    const uint32_t *owner; /* [experts] rank */
    uint8_t *missing;      /* [tokens] rows of topk, 1: not in the sum; NULL: nobody asks */
    uint64_t missing_stride;
} xep_cuda_combine_t;

#endif
