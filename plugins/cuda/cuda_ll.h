/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The mode "ll" for rows in device memory: the same rows, places and sums as plugins/ll, with which it shares its
 * layout, notices, packets and what users see. Everything is enqueued on the caller's stream, and the host waits for
 * nothing: what a dispatch brought is counted in device memory. Each phase is one launch, so that nothing of an
 * operation runs between them.
 *
 * dispatch, turn q; i = q % ring:
 *  1. send: casts the rows once into entry i of its own ring; numbers the selections of each expert in the order of
 *     tokens; writes these, the number of each expert's selections and the notice to all ranks, then the word "sent".
 *  2. receive: waits for these words; all blocks find the places of all rows from the counts, which all ranks have
 *     alike, and so the verdict; copies each row from its source's ring; tells each source where its rows begin.
 * combine of a handle, where the buffer leaves no rank out and has multiprocessors enough (cuda_ll_rows.cuh):
 *  1. send: stores each row in the heap of its token's source, wherever outputs are.
 *  2. receive: sums the rows of each token as they come.
 * else, and with XEP_COMBINE_SUM_AT_OWNER:
 *  1. send: copies outputs into the input if they are elsewhere (this rank's own stay), then "ready"; before it the
 *     offer, unless that is what the lines of the slot have from its last combine. XEP_COMBINE_SUM_AT_OWNER: stores the
 *     sum of each token's rows here into its source's heap, in place of the copy; where others may push rows, tells
 *     them first what it offers (cuda_ll_offers.cuh).
 *  2. receive: waits for all words, begins to pull each token's rows where they are, sums them if the offers agree,
 *     tells all that it has read ("read"), and ends when all have read what is here. Sums of owners are in its own
 *     heap.
 * All blocks of a kernel tell these words together: each adds its share, XEP_CUDA_WHOLE * epoch when all have. A share
 * of "sent" or "ready" is a release of all that the block has written; one of "read" orders nothing, as it is told when
 * the last value that was pulled is in a register or in shared memory, and nothing is written that it announces.
 *
 * Where the call waits for the end of a dispatch, or of a combine that neither copies outputs nor sums them first, one
 * launch makes both phases.
 *
 * Where ranks may be left out (cuda_outs.cuh), one that is out counts as a source without tokens.
 *
 * Epochs and turns are counted by the kernels, in device memory, and a slot remembers those of its operation. So a
 * graph of operations can be replayed: a replay is further operations, the same on all ranks. One from before a reset
 * does nothing, as in normal_cuda.
 *
 * Why nothing is overwritten before it was read. All operations of a buffer run one after the other on a device, and
 * receive phases in the order in which their operations began, so that each rank's device has the same order of them.
 * Entry i: notices.h has the argument; "complete" is that the receive phase was enqueued. Input, offers: a combine
 * that pulls ends when all have read. Tables: a reader's next dispatch into the slot comes after its combines, and the
 * owner writes the table when it has that dispatch's notice. What is pushed: cuda_ll_rows.cuh.
 *
 * After a reset words and counts begin at 0: every rank clears its own while no device does anything for the buffer.
 *
 * What can go wrong: as in normal_cuda: a rank that has waited in vain notes the epoch, and all phases of operations
 * behind it are left out. A send phase that is left out gives its slot an epoch behind that one, for the receive phase
 * to find. Nothing is sent and no epoch is counted, so ranks that go on wait for this one in vain. A dispatch that
 * ranks refuse (they disagree; too little room; an index that is no expert) moves nothing on any rank, combines of its
 * handle do nothing, and the next operation says why.
 */
#ifndef XEP_CUDA_LL_H
#define XEP_CUDA_LL_H

#include <ll.h>

#include "cuda_ll_kernels.h"
#include "cuda_mode.h"

/** For what a kernel waits: it has a word for each, beside that in which ranks differ. */
typedef enum { CUDA_LL_NOTICES, CUDA_LL_OFFERS, CUDA_LL_READERS, CUDA_LL_DIFFERS, CUDA_LL_LATE_WORDS } cuda_ll_late_t;

typedef enum {
    CUDA_LL_DISPATCH,
    CUDA_LL_DISPATCH_USUAL, /* rows as they are, or bf16 cast to e4m3 */
    CUDA_LL_OFFER,
    CUDA_LL_PUSH_BF16,
    CUDA_LL_PUSH_FP16,
    CUDA_LL_PUSH_FP32,
    CUDA_LL_SUM_BF16,
    CUDA_LL_SUM_FP16,
    CUDA_LL_SUM_FP32,
    CUDA_LL_ROWS_BF16,
    CUDA_LL_ROWS_FP16,
    CUDA_LL_ROWS_FP32,
    CUDA_LL_LAYOUT,
    CUDA_LL_KERNELS
} cuda_ll_kernel_t;

/** Where things are in a heap, beside what the host mode has. */
typedef struct cuda_ll_layout {
    ll_layout_t ll; /* first */
    /* XEP_REGION_METADATA: [ring][R] heads of packets, delivered to every rank; offsets in a head */
    uint64_t heads, head_bytes, head_weights, head_counts;
    uint64_t own_words; /* XEP_REGION_CONTROL: xep_cuda_own_words_t */
    uint64_t words;     /* XEP_REGION_CONTROL: [ring][R] xep_cuda_ll_words_t */
    uint64_t sums;      /* XEP_REGION_ROWS: xep_cuda_ll_push_t */
    uint64_t inbox;     /* likewise: xep_cuda_ll_rows_t; its bytes */
    uint64_t inbox_bytes;
    uint64_t told; /* XEP_REGION_CONTROL: xep_cuda_ll_heaps_t */
} cuda_ll_layout_t;

/** Beside an ll_slot_t, whose arrays are device memory, in device memory too. */
typedef struct cuda_ll_slot {
    xep_cuda_ll_slot_t *state;
    xep_cuda_ll_kept_t kept;
    xep_cuda_ll_came_t came;
    uint32_t *there; /* [R] */
    uint8_t *out;    /* [R] xep_recv_t.out */
} cuda_ll_slot_t;

typedef struct cuda_ll {
    ll_t ll; /* first; its layout is that of cuda_ll_layout_t */
    cuda_ll_layout_t layout;
    cuda_mode_t cuda;
    cuda_ll_slot_t *slots;          /* [slots] */
    int pushes;                     /* combines push rows (cuda_ll_rows.cuh): the same on all ranks */
    uint64_t begun, received;       /* operations; receive phases that were enqueued */
    xep_cuda_ll_now_t *now;         /* device memory */
    uint64_t *wrong;                /* likewise */
    xep_cuda_ll_refusal_t *refusal; /* pinned */
    ll_notice_t *refused;           /* pinned: [R] */
} cuda_ll_t;

/** Private state of an operation. */
typedef struct cuda_ll_state {
    ll_state_t ll;   /* first */
    uint64_t number; /* among the operations of the buffer */
} cuda_ll_state_t;

extern const xep_step_t cuda_ll_dispatch_steps[], cuda_ll_combine_steps[];

/* ---- cuda_ll_turns.c ---- */

/** Where things are for the kernels of an operation. */
xep_cuda_ll_heaps_t cuda_ll_heaps(const cuda_ll_t *mode, const xep_op_t *op);

/** Begins the operation: its place among those of the buffer is known, and the send phase is enqueued. */
xep_status_t cuda_ll_begin(cuda_ll_t *mode, xep_op_t *op);

/**
 * Enqueues the receive phase of an operation, by launch, between the device's marks; XEP_INPROGRESS until those of all
 * operations that began earlier are enqueued.
 */
xep_status_t cuda_ll_receive_in_turn(cuda_ll_t *mode, xep_op_t *op,
                                     xep_status_t (*launch)(cuda_ll_t *mode, const xep_op_t *op));

/* ---- cuda_ll_dispatch.c, cuda_ll_combine.c ---- */

xep_status_t cuda_ll_dispatch(void *mode, xep_op_t *op);
xep_status_t cuda_ll_combine(void *mode, xep_op_t *op);

#endif
