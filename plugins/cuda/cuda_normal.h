/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The mode "normal" for rows in device memory: the same routing, records, verdicts and results as plugins/normal, with
 * which it shares its code; rows, metadata and words lie in device memory, and kernels move them.
 *
 * Everything of an operation is enqueued when it begins, behind the buffer's last one and on the caller's stream:
 *
 * dispatch: plan (who gets what, from topk_idx), counts (records to all, places from theirs), rows. The host waits for
 *     the counts, which show it all records in pinned memory; it checks and compares them by the code of the host mode,
 *     and finds the sentence for what is wrong. The device has come to the same verdict alone, and moves rows or none.
 * combine: rows into the slot's input (zero copy: they are there), then one kernel: ready to all, wait for theirs, pull
 *     and sum, read to all, wait for theirs.
 *
 * Words. A rank has one line for each other rank in every heap. All operations of a buffer run one after the other on a
 * device, in the order of their epochs on every rank, so a line serves all slots: a word at epoch n or later says that
 * its writer has come so far in operation n.
 *
 * Why nothing is overwritten before it was read. Records and offers: their writer's next operation begins when it has
 * the "done" or "read" of all ranks of this one, which they send after they have looked. Slots: a rank names its slot
 * in the record, which its stream sends after the work that was enqueued before, so also after that which reads the old
 * rows. The input: a combine ends when all have read it.
 *
 * What can go wrong: a rank that does not come. The kernel that waits for it writes who that is into pinned memory and
 * ends; the dispatch whose counts are waited for fails, or else the next operation does. After stop all waits end.
 */
#ifndef XEP_CUDA_NORMAL_H
#define XEP_CUDA_NORMAL_H

#include <normal.h>

#include "cuda_kernels.h"
#include "cuda_mode.h"

/** For what a kernel waits: it has a word for each, beside that in which ranks differ. */
typedef enum { CUDA_COUNTS, CUDA_ROWS, CUDA_OFFERS, CUDA_READERS, CUDA_DIFFERS, CUDA_LATE_WORDS } cuda_late_t;

typedef enum {
    CUDA_PLAN,
    CUDA_EXCHANGE,
    CUDA_MOVE,
    CUDA_SUM_BF16,
    CUDA_SUM_FP16,
    CUDA_SUM_FP32,
    CUDA_LAYOUT,
    CUDA_KERNELS
} cuda_kernel_t;

/** Beside a normal_routing_t, in device memory. */
typedef struct cuda_routing {
    xep_cuda_dest_t *dest; /* [T][max_dests] */
    int32_t *chosen;       /* [T][K] experts */
    uint32_t *rows;        /* [R] */
    uint32_t *selections;  /* [E] */
    uint32_t *rank_rows;   /* [R][R] */
} cuda_routing_t;

/** Beside a normal_slot_t. */
typedef struct cuda_slot {
    xep_cuda_there_t *there; /* [R] device memory */
    uint64_t *counted;       /* pinned: epoch of the last counts */
    uint64_t *wrong_first;   /* pinned */
} cuda_slot_t;

typedef struct cuda_normal {
    normal_t normal; /* first */
    cuda_mode_t cuda;
    cuda_routing_t *routings; /* [slots] */
    cuda_slot_t *slots;       /* [slots] */
    /* device memory: */
    uint32_t *scratch; /* of the plan */
    uint64_t *wrong;
    int32_t *verdict;
    /* pinned: */
    char *mirror; /* ring of records, as the device has read them */
} cuda_normal_t;

extern const xep_step_t cuda_dispatch_steps[], cuda_combine_steps[];

/* ---- cuda_normal_dispatch.c, cuda_normal_combine.c ---- */

xep_status_t cuda_normal_dispatch(void *mode, xep_op_t *op);
xep_status_t cuda_normal_combine(void *mode, xep_op_t *op);

#endif
