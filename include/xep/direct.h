/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Direct: rows go from device to device by UCX, and are gathered and summed by kernels there, while the mode is that of
 * host memory. The heap's region of rows has a twin in device memory, laid out alike: of rows that are direct nothing
 * is in the host's heap, and an address in that region stands for the one in the twin.
 *
 *  word           written by                       read by          ordered behind
 *  gather's note  a stream of the buffer           this rank        the rows in the outbox, and its own in their places
 *  done, ready    the host of the sending rank     the peer's host  all direct puts to that rank: these have completed
 *                                                                   and were flushed after that, as UCX orders nothing
 *                                                                   between memory of a device and that of a host
 *  sum's note     a stream of the buffer           this rank        what peers have returned was read
 *  read           the host of the reading rank     the peer's host  that note
 *
 * The outbox of a dispatch is where its rows will be returned: those for a rank lie where that rank will return them,
 * which it does only once it has this rank's done, and by then they have left.
 */
#ifndef XEP_DIRECT_H
#define XEP_DIRECT_H

#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most rows that are summed for a token, biases included. */
enum { XEP_DIRECT_MOST_ROWS = 256 };

/** Kernel "xep_cuda_gather": row i goes behind the others of the rank whose it is. Lists are pinned memory. */
typedef struct xep_direct_gather {
    const char *x;
    uint64_t x_stride, bytes, stride; /* stride: between gathered rows */
    const uint32_t *tokens;           /* [begin[nranks]] whose row it is */
    const uint64_t *begin;            /* [nranks + 1] */
    char *const *to;                  /* [nranks] */
    uint32_t nranks;
    uint32_t reserved;
} xep_direct_gather_t;

/** A token has been to this rank, as this row of what the rank got from here. */
typedef struct xep_direct_term {
    uint32_t rank, row;
} xep_direct_term_t;

/** Where rows lie that a rank has returned. */
typedef struct xep_direct_source {
    const char *x;
    uint64_t stride;
} xep_direct_source_t;

/** Kernels "xep_cuda_sum_bf16" and so on: biases first, then the terms in their order, in fp32. */
typedef struct xep_direct_sum {
    const uint64_t *first; /* [tokens + 1] in terms; pinned, as the next two */
    const xep_direct_term_t *terms;
    const xep_direct_source_t *sources; /* [ranks] */
    const char *bias[2];
    uint64_t bias_stride[2];
    char *out;
    uint64_t out_stride;
    uint32_t tokens, hidden;
} xep_direct_sum_t;

struct xep_env;
struct xep_op;

typedef struct xep_direct_ops {
    /**
     * Enqueue a kernel on a stream of the buffer's, for op's slot alone: gather fills in x; lists are copied, and
     * addresses of the region of rows become those of the twin.
     */
    xep_status_t (*gather)(const struct xep_env *env, const struct xep_op *op, const xep_direct_gather_t *gather);
    xep_status_t (*sum)(const struct xep_env *env, const struct xep_op *op, const xep_direct_sum_t *sum,
                        uint32_t nranks);

    /** XEP_OK: what was enqueued for op last is done; XEP_INPROGRESS: not yet. */
    xep_status_t (*reached)(const struct xep_env *env, const struct xep_op *op);

    /**
     * The wire's put, from device memory into the twin of another rank; it never refuses one, but with bytes 0 says
     * whether the rank can be put to yet (XEP_INPROGRESS: not yet).
     */
    xep_status_t (*put)(const struct xep_env *env, const struct xep_op *op, uint32_t rank, uint64_t offset,
                        const void *src, size_t bytes);
} xep_direct_ops_t;

#ifdef __cplusplus
}
#endif

#endif
