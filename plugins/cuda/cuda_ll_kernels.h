/* SPDX-License-Identifier: BSD-3-Clause */

/** Arguments of the kernels of ll (cuda_args.h): the protocol is at the head of cuda_ll.h. */
#ifndef XEP_CUDA_LL_KERNELS_H
#define XEP_CUDA_LL_KERNELS_H

#include <ll_notice.h>

#include "cuda_args.h"

/** A selection as the head of a packet has it: an expert, or -1, and which one of this source's for this expert. */
typedef struct xep_cuda_pick {
    int32_t expert;
    uint32_t ordinal;
} xep_cuda_pick_t;

/** How far a buffer has come: counted by its kernels, so that a replayed graph counts on. */
typedef struct xep_cuda_ll_now {
    uint64_t epoch; /* of the last operation that was begun */
    uint64_t turn;  /* of the next dispatch */
    uint64_t lost;  /* epoch of the first operation in which some word did not come; 0: none. Later ones do nothing */
    uint64_t sent, read; /* epochs at which these words of this rank are (xep_cuda_ll_words_t) */
    uint64_t ended;      /* blocks of a kernel that have nothing left to do; 0 when it has ended */
} xep_cuda_ll_now_t;

/** A line of a device for each source: [ring][nranks]. Words that all blocks tell are those of the first ring entry. */
typedef struct xep_cuda_ll_words {
    uint64_t sent;  /* XEP_CUDA_WHOLE * epoch of the last dispatch whose packets can be read */
    uint64_t read;  /* likewise: of the last combine that has read what it sums */
    uint64_t wrong; /* epoch of the last dispatch of this entry that had an index that is no expert */
    uint64_t reserved[13];
} xep_cuda_ll_words_t;

/**
 * Where rows are pushed, each rank tells all others this about the handle in one of its slots. For each area: the
 * epoch of its last combine, and, written before it, what ranks must agree on, 32 bits to a word, with the low half of
 * the epoch above them. As long as a cache line of a device.
 */
typedef struct xep_cuda_ll_told {
    struct {
        uint64_t ready, offer[4];
    } area[2];
    uint64_t reserved[6];
} xep_cuda_ll_told_t;

enum {
    XEP_CUDA_LL_LOST = -1, /* some notice did not come, or is of another operation */
    XEP_CUDA_LL_REFUSED,   /* all ranks refuse the dispatch */
    XEP_CUDA_LL_HERE
};

enum { XEP_CUDA_LL_NO_ROW = -1 };

/** What kernels know of a slot. */
typedef struct xep_cuda_ll_slot {
    uint64_t epoch, turn; /* of the operation in flight; of its dispatch */
    uint64_t wrong;       /* token * topk + k of the first index that is no expert and not -1; UINT64_MAX: all are */
    uint64_t ready;       /* epoch at which the word of its lines is */
    int32_t verdict;      /* of its dispatch */
    uint32_t area;        /* of the inbox, of the next combine of the handle */
    uint64_t said[2];     /* the offer that its lines have */
} xep_cuda_ll_slot_t;

/** Pinned: why a dispatch was refused; set once, for the next operation to tell. The notices are beside it. */
typedef struct xep_cuda_ll_refusal {
    uint64_t rows;    /* that a rank would get; padded: of one expert */
    uint64_t wrong;   /* as in xep_cuda_ll_slot_t */
    uint32_t rank;    /* which rank that is */
    uint32_t refused; /* 1; all else was written before */
} xep_cuda_ll_refusal_t;

/** Where things are, in the heaps of all ranks and in this rank's own memory: the same in all kernels. */
typedef struct xep_cuda_ll_heaps {
    xep_cuda_life_t life;
    xep_cuda_outs_t outs;
    char *const *peer; /* [nranks] */
    uint32_t rank, nranks, experts, slots, ring;
    const uint32_t *owner;        /* [experts] rank */
    const uint32_t *first_expert; /* [nranks + 1] */
    uint64_t recv_rows;           /* of a slot */
    uint64_t tokens;              /* most of a rank */
    /* offsets in a heap: */
    uint64_t notices; /* [ring][nranks] ll_notice_t */
    uint64_t heads;   /* [ring][nranks] of head_bytes: picks [tokens][topk], then weights, then counts [experts] */
    uint64_t head_bytes, head_weights, head_counts;
    uint64_t items, items_bytes;  /* [ring] of a rank's own packets */
    uint64_t tables, table_bytes; /* [slots][nranks]: uint32_t first row of each expert of that rank */
    uint64_t line, line_bytes;    /* [slots][nranks]: words of combines */
    uint64_t line_ready, line_said;
    uint64_t words; /* [ring][nranks] xep_cuda_ll_words_t */
    uint64_t told;  /* [slots][nranks] xep_cuda_ll_told_t: by the writer's slot, and writer; 0: no rows are pushed */
    /* own: */
    xep_cuda_ll_now_t *now;
    xep_cuda_ll_slot_t *slot;
    uint32_t *there;      /* [nranks] the slot that each rank chose */
    uint32_t slot_number; /* of this rank */
} xep_cuda_ll_heaps_t;

/** What the handle keeps of its tokens. */
typedef struct xep_cuda_ll_kept {
    xep_cuda_pick_t *picks; /* [tokens][topk] */
    float *weights;         /* [tokens][topk] */
} xep_cuda_ll_kept_t;

/** What the handle keeps of the tokens that came, so that their rows can be summed here, or pushed. */
typedef struct xep_cuda_ll_came {
    uint32_t *tokens; /* [nranks] of each source */
    uint32_t *rows;   /* [nranks][tokens][topk] of each selection; XEP_CUDA_LL_NO_ROW: it is of another rank */
} xep_cuda_ll_came_t;

/** A row and its scales, of a packet. */
typedef struct xep_cuda_ll_item {
    uint64_t row_bytes, scales, scale_words, stride;
} xep_cuda_ll_item_t;

/** The caller's arrays, or those of the handle whose routing is used again. */
typedef struct xep_cuda_ll_given {
    const char *topk_idx;
    uint64_t topk_idx_stride;
    const uint32_t *callers; /* [experts] the caller's number of each of the mode's; NULL: the same */
    const char *weights;     /* NULL: 1 */
    uint64_t weights_stride;
    const char *scales;
    int64_t scales_token_stride, scales_stride;
    uint32_t wide; /* 1: indices are int64_t, 0: int32_t, of xep_cuda_pick_t 8 bytes apart */
    uint32_t idx_bytes;
} xep_cuda_ll_given_t;

/**
 * Both phases of a dispatch, or one. Sends: casts rows into the packet, numbers the selections, tells all ranks.
 * Receives: waits for the packets of all ranks, and copies their rows to where they belong. Any number of blocks.
 */
typedef struct xep_cuda_ll_dispatch {
    xep_cuda_ll_heaps_t at;
    uint32_t sends, receives;
    xep_cuda_ll_item_t item;
    ll_notice_t notice; /* own: that of others must agree; word is filled here */
    /* what is sent: */
    xep_cuda_ll_kept_t kept;
    xep_cuda_ll_given_t given;
    xep_cuda_cast_t cast; /* without a cast its rows alone are read, as they are */
    uint64_t *wrong;      /* UINT64_MAX before and after */
    /* what is received: */
    uint32_t chunk; /* bytes of an item that a warp moves at once: a multiple of 16; 0: nothing is received */
    uint32_t wide;  /* 1: the received indices are int64_t, 0: int32_t */
    char *x;
    uint64_t x_stride;
    int32_t *src_token;
    char *topk_idx;
    float *weights;
    char *scales;
    uint64_t scales_token_stride, scales_stride;
    uint64_t
        scales_expert_stride; /* between the blocks of scales of each expert, of rows_of_expert rows; 0: one block */
    uint64_t capacity;        /* rows of the arrays that may be unused: those that are get the index -1 */
    uint64_t rows_of_expert;  /* padded: the first row of an expert is a multiple of this; else 0 */
    uint64_t *expert_begin, *expert_count, *expert_rows; /* [L] */
    uint32_t *pair_begin, *pair_count;                   /* [L][nranks] */
    int32_t *stats;                                      /* [L] or NULL */
    uint64_t *rows;                                      /* where to tell the number of rows, or NULL */
    uint8_t *out;                                        /* [nranks] 1: without this rank; where ranks may be out */
    xep_cuda_ll_came_t came;
    char *mirror; /* pinned: [nranks] notices, of a dispatch that is refused */
    xep_cuda_ll_refusal_t *refusal;
    xep_cuda_deadline_t deadline;
} xep_cuda_ll_dispatch_t;

/** Copies outputs into the input where they are elsewhere, and tells all ranks. Any number of blocks. */
typedef struct xep_cuda_ll_offer {
    xep_cuda_ll_heaps_t at;
    const char *x; /* NULL: outputs are in the input */
    uint64_t x_stride, row_bytes, row_stride;
    char *input;
    uint32_t pairs;                          /* L * nranks */
    const uint32_t *pair_begin, *pair_count; /* [L][nranks] */
    uint64_t offer[2];                       /* what ranks must agree on */
} xep_cuda_ll_offer_t;

/** Sums the rows of each token here and stores the sum where its source reads it; then as an offer. A kernel a type. */
typedef struct xep_cuda_ll_push {
    xep_cuda_ll_offer_t offer; /* first; x: outputs, wherever they are */
    xep_cuda_ll_came_t came;
    uint32_t topk, hidden;
    uint64_t sums; /* offset in a heap: [slots][nranks][tokens] rows of offer.row_stride: by slot, owner, token */
} xep_cuda_ll_push_t;

/** Pulls and sums the rows of each token; ends when all have read what is here. A kernel a type. */
typedef struct xep_cuda_ll_sums {
    xep_cuda_sum_t sum; /* first */
    xep_cuda_ll_heaps_t at;
    uint32_t topk;
    xep_cuda_ll_kept_t kept;
    const char *weights; /* of the tokens; NULL: 1 */
    uint64_t weights_stride;
    uint64_t input, input_bytes; /* offset of that of slot 0 in a heap; to the next slot's */
    uint64_t row_stride;
    const char *own; /* outputs of this rank */
    uint64_t own_stride;
    uint32_t offers;   /* 1: no send phase was before: this kernel makes the offer, too */
    uint32_t at_owner; /* 1: of each rank its sum, in this rank's heap; row_stride is that of sums */
    uint64_t sums;     /* xep_cuda_ll_push_t */
    uint64_t offer[2]; /* xep_cuda_ll_offer_t */
    uint8_t *missing;  /* [tokens] rows of topk, 1: not in the sum; NULL: nobody asks */
    uint64_t missing_stride;
    xep_cuda_deadline_t deadline, at_the_end; /* of ready, of read */
    uint32_t *differs;                        /* rank whose offer is another, plus 1. Pinned */
} xep_cuda_ll_sums_t;

/** Pushes the rows of others' tokens to them, and sums those that come; or one of both. A kernel a type. */
typedef struct xep_cuda_ll_rows {
    xep_cuda_ll_sums_t sums; /* row_stride is that of the inbox, too; its offers and sums of owners are not used */
    xep_cuda_ll_came_t came;
    uint32_t topk, row_bytes;
    uint32_t sends, receives;
    uint32_t pushing; /* warps of a block; those behind them sum */
    uint32_t odd;     /* 1: some array is not made of packs of 16 bytes */
    /* offset in a heap: */
    uint64_t inbox; /* [slots][2][tokens][topk] rows: by slot, area, token, selection */
} xep_cuda_ll_rows_t;

#endif
