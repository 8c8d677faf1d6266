/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The mode "normal" for rows in device memory: the same routing, records, verdicts and results as plugins/normal, with
 * which it shares its code; rows, metadata and words lie in device memory, and kernels move them.
 *
 * Everything of an operation is enqueued when it begins, behind the buffer's last one and on the caller's stream:
 *
 * dispatch: plan (who gets what, from topk_idx), counts (records to all, places from theirs), rows. One kernel has all
 *     of it: one block tells the records, every block waits for those of all ranks, judges them, and makes the plan of
 *     few tokens by itself; that of many is a kernel before this one. The host waits for the counts, which show it all
 *     records in pinned memory beside the rows; it checks and compares them by the code of the host mode, and finds the
 *     sentence for what is wrong. The device has come to the same verdict alone, and moves rows or none.
 *     Rows that are cast are made by a kernel before: the dispatch is one of those.
 * combine: one kernel: ready to all, wait for theirs, pull and sum, read to all, wait for theirs. Rows that are not in
 *     the slot's input yet (zero copy: they are there) are brought there by blocks of the same kernel, in parts, those
 *     of each reader in the order in which it wants them: copied, or summed from rows by expert. Each of these blocks
 *     counts itself (copied) when it is done with a part; a warp of another block tells the readers when all are, and
 *     they wait for the part of the row that they pull. These blocks are the first of the grid and wait for nobody, so
 *     all parts come, whatever the readers do. Where ranks may be out, of few rows, or if they are no packs of 16
 *     bytes, they are brought before the kernel.
 *
 * Epochs are counted by the kernels, in device memory (xep_cuda_now_t): each adds one, when all of its blocks have
 * told, to that of the operation before. No launch has a number of its own, so a graph of operations can be replayed: a
 * replay is further operations, the same on all ranks. The host's epochs are for the host alone: a kernel gives back
 * the one that it was launched with (counted), and shows records with it.
 *
 * Words. A rank has one line for each other rank in every heap. All operations of a buffer run one after the other on
 * a device, in the order of their epochs on every rank, so a line, with one record, serves all slots: a word at epoch n
 * or later says that its writer has come so far in operation n. A record needs no word, and no fence before one: each
 * of its numbers is stored at once with the low half of n beside it, so a reader that sees that has the number.
 *
 * operation n   writer r, in every heap       reader                  before that word
 * counts        record[r], n at each number   counts of a dispatch    nothing
 *               line[r].counts = n            where ranks may be out  the record of r
 * done          line[r].done = n              rows of a dispatch      all rows of r; r has looked at all records
 * ready         line[r].ready = n * steps     combine                 the offer of r, and so many parts of its input
 *               and parts that are there                              (XEP_CUDA_STEPS)
 * read          combine line[r].read = n      end of the combine      r has read what it sums, and all offers
 *
 * "Done" and "read" are sums of what the blocks of their writer add: XEP_CUDA_WHOLE * n when all have. A dispatch that
 * will be expanded is two kernels: the first one tells half of its "done" when the rows of its first tokens, and what
 * belongs to all rows, are there, and ends when all ranks have; the second one takes the same records again, moves the
 * rest and tells the other half. What a rank's first tokens are, its record says (first); 0: it tells all at once.
 *
 * Why nothing is overwritten before it was read. Records and offers: their writer's next operation begins when it has
 * the "done" or "read" of all ranks of this one, which they send after they have looked. Slots: a rank names its slot
 * in the record, which its stream sends after the work that was enqueued before, so also after that which reads the old
 * rows. The input: a combine ends when all have read it.
 *
 * Where a word does not come in time its reader has lost step: it notes the epoch, and all that its stream has of this
 * buffer behind that does nothing, replays too. It tells no words, so that ranks that go on wait for it in vain, and
 * name it, before they take rows for its that are not. Nothing but a reset, which opens the mode anew, ends that. After
 * it, words and epochs begin at 0: every rank clears its own while no device does anything for the buffer.
 *
 * With XEP_DISPATCH_COUNTS_THERE the host waits for nothing: the kernel shows counts in device memory, and marks the
 * rows behind those that came. Where all ranks conclude that nothing moves, it keeps the records in pinned memory,
 * combines of the handle sum nothing, and the next call tells why.
 *
 * A graph can have what the host does not wait for: dispatches with XEP_DISPATCH_COUNTS_THERE, of cached handles too,
 * and combines. What a launch has is what does not change from replay to replay: addresses, the slot, its routing. One
 * from before a reset has those of a slot that may be another handle's by now: its kernels find another number of the
 * buffer's life in device memory than they were launched with (xep_cuda_life_t), and do nothing but tell the host.
 *
 * Where ranks may be left out (cuda_outs.cuh), a rank claims a dispatch before it tells its record, a record of a rank
 * that is out is as if it had no rows and room for all, and its address in "there" is NULL: nothing is stored to it.
 *
 * What can go wrong: a rank that does not come. The kernel that waits for it writes who that is into pinned memory and
 * ends; the dispatch whose counts are waited for fails, or else the next operation does. After stop all waits end.
 */
#ifndef XEP_CUDA_NORMAL_H
#define XEP_CUDA_NORMAL_H

#include <normal_shared.h>

#include "cuda_kernels.h"
#include "cuda_mode.h"

/** For what a kernel waits: it has a word for each, beside that in which ranks differ. */
typedef enum { CUDA_COUNTS, CUDA_ROWS, CUDA_OFFERS, CUDA_READERS, CUDA_DIFFERS, CUDA_LATE_WORDS } cuda_late_t;

typedef enum {
    CUDA_PLAN,
    CUDA_MOVE,
    CUDA_MOVE_WITH_ALL,
    CUDA_SUM_BF16,
    CUDA_SUM_FP16,
    CUDA_SUM_FP32,
    CUDA_LAYOUT,
    CUDA_SLOTS,
    CUDA_EXPAND,
    CUDA_REDUCE,
    CUDA_CAST,
    CUDA_KERNELS
} cuda_kernel_t;

/** Beside a normal_routing_t, in device memory. */
typedef struct cuda_routing {
    xep_cuda_dest_t *dest; /* [T][max_dests] */
    int32_t *chosen;       /* [T][K] experts */
    uint32_t *rows;        /* [R] */
    uint32_t *selections;  /* [E] */
    uint32_t *rank_rows;   /* [R][R] */
    uint32_t *local;       /* [L] selections of the local experts */
    int counts_there;      /* the host does not know them */
} cuda_routing_t;

/** Beside a normal_slot_t. */
typedef struct cuda_slot {
    /* device memory: */
    xep_cuda_there_t *there;           /* [R] */
    int32_t *verdict;                  /* [1] */
    uint64_t *src_begin, *expert_rows; /* [R + 1], [L] of a dispatch whose counts stay there */
    uint32_t *first;                   /* [R] of a dispatch in two parts: xep_cuda_counts_t.first */
    uint64_t *first_end;               /* [R] likewise, xep_cuda_expand_t */
    uint8_t *out;                      /* [R] xep_recv_t.out */
    /* pinned: */
    uint64_t *counted; /* epoch of the last counts */
    uint64_t *wrong_first;
} cuda_slot_t;

typedef struct cuda_normal {
    normal_t normal; /* first */
    cuda_mode_t cuda;
    cuda_routing_t *routings; /* [slots] */
    cuda_slot_t *slots;       /* [slots] */
    /* device memory: */
    xep_cuda_now_t *now;
    uint32_t *scratch; /* of the plan */
    char *casts;       /* rows that were cast, and their scales: of one dispatch, as they run one after the other */
    uint64_t *copied;  /* xep_cuda_input_t */
    uint64_t *wrong;
    /* pinned: */
    char *mirror;  /* ring of records, as the device has read them */
    char *refused; /* [R] records of the first dispatch that moved nothing, and nobody waited for its counts */
    xep_cuda_refusal_t *refusal;
    /* of the last dispatch, if it is in two parts, and was not expanded; else x is NULL */
    struct {
        const void *x; /* where its rows come */
        const cuda_slot_t *slot;
        void *stream;
        int captured;
    } parted;
} cuda_normal_t;

/** Which slot's own routing it is. */
static inline uint32_t cuda_routing_index(const normal_t *mode, const normal_routing_t *routing)
{
    return (uint32_t)((const normal_slot_t *)(const void *)routing - normal_slot(mode, 0));
}

extern const xep_step_t cuda_dispatch_steps[], cuda_combine_steps[];

/** Whether nobody waits for the counts of a dispatch. */
static inline int cuda_counts_there(const xep_op_t *op)
{
    return (op->dispatch->flags & XEP_DISPATCH_COUNTS_THERE) != 0;
}

/* ---- cuda_normal_there.c ---- */

/* Dispatches whose counts stay on the device. */

/** XEP_ERR_INVALID for arguments that ask the host for counts that it does not know. */
xep_status_t cuda_normal_check_there(const cuda_normal_t *mode, xep_op_t *op);

/** Fills recv, in place of the counts and the agreement. */
void cuda_normal_show_there(cuda_normal_t *mode, const xep_op_t *op);

/** XEP_ERR_PROTOCOL, and why, once such a dispatch has moved nothing. */
xep_status_t cuda_normal_check_refusal(void *mode, xep_op_t *op);

/* ---- cuda_normal_dispatch.c, cuda_normal_combine.c ---- */

xep_status_t cuda_normal_dispatch(void *mode, xep_op_t *op);
xep_status_t cuda_normal_combine(void *mode, xep_op_t *op);

/* ---- cuda_experts.c ---- */

/**
 * For a dispatch: how many of its tokens have their rows in a first part, which is expanded while the others come; 0:
 * all come at once. What it is remembered by is the next expansion's, if that comes right behind it.
 */
uint32_t cuda_normal_part(cuda_normal_t *mode, const xep_op_t *op);

xep_status_t cuda_normal_expand(void *mode, const xep_recv_t *recv, const xep_expand_args_t *args);
xep_status_t cuda_normal_reduce(void *mode, const xep_recv_t *recv, const xep_reduce_args_t *args);

#endif
