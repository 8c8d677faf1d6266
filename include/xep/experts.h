/* SPDX-License-Identifier: BSD-3-Clause */

/** The weights of all experts, each in the memory of its owner, for every rank to read. */
#ifndef XEP_EXPERTS_H
#define XEP_EXPERTS_H

#include <xep/xep.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct xep_weights xep_weights_t; /* the weights of all experts, each in the memory of its owner */

/** All fields but those marked "per rank" are collective. */
typedef struct xep_weights_params {
    size_t size;
    uint32_t experts;       /* E */
    uint32_t copies;        /* per rank: most copies of experts of ranks that are not mapped; 0: 2 */
    uint64_t bytes;         /* of the weights of one expert */
    const uint32_t *owners; /* [E], as in xep_buffer_params_t; copied by the call */
    uint64_t elements;      /* fp32 elements of the gradient of one expert; 0: none */
    uint32_t gradients;     /* most experts for which a rank has gradients in one xep_weights_reduce(); 0: none */
    int32_t timeout_ms;     /* per rank: deadline of each wait; 0: the group's; < 0: none */
} xep_weights_params_t;

#define XEP_WEIGHTS_PARAMS_INIT XEP_INIT_(xep_weights_params_t)

/**
 * Makes memory for the weights of each rank's experts, which all ranks can read: shared, in huge pages if there are
 * any. Collective, blocking; as with a group, one thread at a time makes calls on the weights. The caller ends them
 * with xep_weights_destroy(), before the group. An error on one rank is an error on all, and nothing is left to free:
 * XEP_ERR_INVALID, XEP_ERR_MISMATCH, XEP_ERR_NO_MEMORY, XEP_ERR_TIMEOUT, XEP_ERR_PEER, XEP_ERR_TRANSPORT,
 * XEP_ERR_ABORTED.
 */
XEP_API xep_status_t xep_weights_create(xep_group_t *group, const xep_weights_params_t *params,
                                        xep_weights_t **weights_p);

/** Frees them. Collective, blocking: waits for the other ranks, at most for the group's timeout. NULL is a no-op. */
XEP_API void xep_weights_destroy(xep_weights_t *weights);

/**
 * Memory for the weights of an expert of this rank, [bytes], zero at first, to be written until xep_weights_publish().
 * Until then, ranks that keep copies wait instead of reading. Ranks that map the memory read it in place: before a
 * program changes weights again, it makes a barrier, so that all ranks have finished. Local. Errors: XEP_ERR_INVALID
 * (also: another rank owns the expert).
 */
XEP_API xep_status_t xep_weights_change(xep_weights_t *weights, uint32_t expert, void **base_p);

/** Ends a change: the weights are whole, and copies of earlier ones are fetched again when asked for. Local. */
XEP_API xep_status_t xep_weights_publish(xep_weights_t *weights, uint32_t expert);

/**
 * The weights of any expert, [bytes], to be read only. If this rank maps the owner: in place, valid until
 * xep_weights_destroy(). Else a copy, valid until params.copies other such experts were asked for: fetched, or, if this
 * rank has it already, compared with the owner's version (one round trip). The owner must make progress meanwhile: by a
 * call of xep that waits, or XEP_PROGRESS=thread. Blocking.
 *
 * Errors: XEP_ERR_INVALID (also: the owner has not filled them yet), XEP_ERR_TIMEOUT (also: they are being changed),
 * XEP_ERR_PEER (the owner has died; what is mapped stays), XEP_ERR_TRANSPORT, XEP_ERR_ABORTED. The sentence names rank
 * and expert.
 */
XEP_API xep_status_t xep_weights_of(xep_weights_t *weights, uint32_t expert, const void **base_p);

/**
 * Begins to fetch weights for a later xep_weights_of(); does nothing if they are mapped. Calls that wait on the group,
 * and the progress thread, continue it. Local, does not block. Errors: XEP_ERR_INVALID, XEP_ERR_BUSY (all copies are
 * being fetched). Weights that are not filled yet are an error of xep_weights_of() only.
 */
XEP_API xep_status_t xep_weights_prefetch(xep_weights_t *weights, uint32_t expert);

/** All fields are per rank. */
typedef struct xep_weights_reduce_args {
    size_t size;
    uint32_t count;          /* experts for which this rank has gradients, at most params.gradients */
    uint32_t reserved;       /* must be 0 */
    const uint32_t *experts; /* [count] global numbers, ascending, of any owner */
    const float *const *x;   /* [count] their gradients, each [elements] */
    float *out; /* [L][elements] of this rank's experts, ascending: the gradients of all ranks are added to it */
} xep_weights_reduce_args_t;

#define XEP_WEIGHTS_REDUCE_ARGS_INIT XEP_INIT_(xep_weights_reduce_args_t)

/**
 * Adds the gradients that ranks have for an expert to those of its owner, in fp32, ranks ascending. Collective,
 * blocking. Invalid arguments on one rank are an error on all, and out is unchanged: XEP_ERR_INVALID. Others:
 * XEP_ERR_TIMEOUT, XEP_ERR_PEER, XEP_ERR_TRANSPORT, XEP_ERR_MISMATCH, XEP_ERR_ABORTED. After these some gradients may
 * have been added to out. The next call waits until nobody is in this reduction any more, and begins a new one: a rank
 * that was late has succeeded in this one, or both calls are XEP_ERR_MISMATCH, and the one after them works.
 */
XEP_API xep_status_t xep_weights_reduce(xep_weights_t *weights, const xep_weights_reduce_args_t *args);

#ifdef __cplusplus
}
#endif

#endif
