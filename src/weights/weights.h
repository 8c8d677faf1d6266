/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The weights of all experts, each in the memory of its owner: xep_weights_t.
 *
 * Every rank has a heap: a word for each of its experts, room for the gradients that it gives to a reduce, and its
 * experts. The word is a sequence lock's: 0 at the beginning, odd while the owner changes the expert, then the next
 * even number, its version. Ranks of the node read an expert where it is. Others keep copies of a few:
 *  1. the word is read. An even one that is the copy's version: the copy is as good as the expert.
 *  2. else the expert is read, then the word again, until it is the same before and after: nothing torn is ever shown.
 * An owner tells nobody of a change, and need not know who has a copy.
 */
#ifndef XEP_WEIGHTS_H
#define XEP_WEIGHTS_H

#include <pthread.h>
#include <stdatomic.h>

#include <xep/experts.h>

#include "group.h"
#include "heap.h"

typedef enum {
    XEP_COPY_IDLE,  /* version says of which state of the expert it is; 0: of none */
    XEP_COPY_WORD,  /* its word is being read */
    XEP_COPY_BYTES, /* then the expert */
    XEP_COPY_AGAIN  /* then its word once more */
} xep_copy_step_t;

/** A copy of an expert of a rank that is not mapped. */
typedef struct xep_copy {
    char *base;
    uint32_t expert;
    xep_copy_step_t step;
    int asked;           /* the read of this step, up to done, has begun */
    uint64_t done;       /* bytes of the expert that were asked for */
    uint64_t word;       /* where it is read to */
    uint64_t version;    /* of the copy, or of what is being read */
    uint64_t used;       /* when it was asked for last, by the count of these */
    xep_status_t status; /* of the last read */
} xep_copy_t;

struct xep_weights {
    xep_group_t *group;
    xep_group_task_t task; /* takes reads that were begun ahead further */
    pthread_mutex_t lock;  /* of the copies; held by the thread that is in a call */
    xep_weights_params_t params;
    uint32_t *owner, *index; /* [E] rank that has it, and its number among those of that rank */
    uint64_t gradients_offset, experts_offset, stride; /* in every heap; from expert to expert */
    xep_heap_wire_t *heap;
    xep_copy_t *copies; /* [params.copies] */
    uint64_t used;
    float *bounce; /* [XEP_BOUNCE] for gradients of ranks that are not mapped; NULL: params.gradients is 0 */
    int may_come;  /* a read into it was given up */
};

enum { XEP_BOUNCE = 1 << 16 };

/** xep_weights_create(); status: of this rank so far. Collective. */
xep_status_t xep_weights_open(xep_group_t *group, const xep_weights_params_t *params, xep_status_t status,
                              xep_weights_t **weights_p);

/** xep_weights_destroy(). */
void xep_weights_close(xep_weights_t *weights);

enum { XEP_WEIGHTS_WORD_STRIDE = 64 }; /* one writer a cache line */

/** The word of an expert in the heap of its owner, and the expert there: offsets. */
static inline uint64_t xep_weights_word_offset(const xep_weights_t *weights, uint32_t expert)
{
    return (uint64_t)weights->index[expert] * XEP_WEIGHTS_WORD_STRIDE;
}

static inline uint64_t xep_weights_offset(const xep_weights_t *weights, uint32_t expert)
{
    return weights->experts_offset + weights->index[expert] * weights->stride;
}

/** Where an offset of its owner's heap is mapped here; NULL: it is not. */
static inline void *xep_weights_at(const xep_weights_t *weights, uint32_t expert, uint64_t offset)
{
    xep_wire_t *wire = &weights->heap->wire;
    char *base = wire->ops->map(wire, weights->owner[expert]);
    return base != NULL ? base + offset : NULL;
}

/* ---- weights_copy.c ---- */

/* Experts of ranks that are not mapped. */

/** Room for the copies; close frees it. */
xep_status_t xep_weights_open_copies(xep_weights_t *weights);
void xep_weights_close_copies(xep_weights_t *weights);

/** xep_weights_of() of an expert that is not mapped, and the begin of it: the task goes on. */
xep_status_t xep_weights_fetch(xep_weights_t *weights, uint32_t expert, const void **base_p);
xep_status_t xep_weights_begin_fetch(xep_weights_t *weights, uint32_t expert);

/** xep_group_task_t.run. */
void xep_weights_run_task(xep_group_task_t *task);

/** XEP_ERR_INVALID: the owner has not filled it. */
xep_status_t xep_weights_refuse_unfilled(const xep_weights_t *weights, uint32_t expert);

/* ---- weights_reduce.c ---- */

/**
 * Before arguments are looked at: ends a reduction that this rank has given up, and waits for the ranks that it waited
 * for. They may still read what it gave to that one, and would take what it gives next for the same.
 */
xep_status_t xep_weights_end_last(xep_weights_t *weights);

/** xep_weights_reduce(), behind that; status: of this rank so far. Collective. */
xep_status_t xep_weights_sum(xep_weights_t *weights, const xep_weights_reduce_args_t *args, xep_status_t status);

#endif
