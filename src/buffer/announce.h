/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Announcements: what every rank of a buffer with XEP_BUFFER_SERVED tells the ranks that serve (src/serve/server.h).
 *
 * In every heap each rank has a row, which it alone writes:
 *   entries  a ring; the entry of an operation is at its epoch. It says how to take part in it: its kind, what ranks
 *            must agree on, which dispatch it belongs to, and which handles its rank still has.
 *   word     where this rank's last step has ended: its number, the last epoch in it, and two flags.
 * Ranks that map one another read a row in the heap of its writer; to others it is put.
 *
 *  1. A rank begins an operation: it writes the entry, then the entry's epoch, and wakes ranks that sleep for anybody.
 *     A rank that serves does so, too, for what it begins after others: who serves may have seen another's entry.
 *     xep_announce_dispatch() writes the entry of this rank's next operation before it begins, and nothing else may be
 *     begun then: to the others it is a rank that is ahead.
 *  2. A rank that serves looks for the epoch behind its last one in all rows, and takes part in what it finds. So all
 *     begin the same operations of a buffer in the order of their epochs, whatever the order of kinds and handles is.
 *  3. xep_step_end(): the rank writes its word. What it announces from then on has the number of the next step.
 *  4. A rank that serves and is told to stop begins nothing of a step that it has not begun. It returns where some rank
 *     stands behind what it has begun, in all buffers that are served: at its next operation there, if that is of a
 *     later step, or else at its word, if that has the last epoch that this one has begun. So its first operation is
 *     the first one of that step.
 *
 * Why an entry may be written over: no operation ends anywhere before all ranks have begun it, and the ring has one
 * entry more than a buffer has requests in flight, for what is announced early. A rank that is out may read nonsense;
 * it can do nothing with it.
 *
 * Why the word of one rank is enough: ranks that work end a step behind the same operation, as they call the same
 * operations in the same order. Words with the same step and different epochs, and operations that ranks say are of
 * different steps, are XEP_ERR_MISMATCH as soon as a rank that serves sees both.
 *
 * What can go wrong. A rank dies or stops at the boundary: whoever hears its word returns, whoever does not takes that
 * of another one. Nobody's word comes: the call ends with XEP_ERR_TIMEOUT, or XEP_ERR_PEER if all ranks that worked in
 * the step are out; then this rank is still in the step. A rank does not wait for its operations and ends the next
 * step: its word is another one then, but there is an operation of that step. A word that is late in another buffer:
 * nothing of the next step begins meanwhile, in any buffer. test/model/model_serve.pml has all orders.
 */
#ifndef XEP_BUFFER_ANNOUNCE_H
#define XEP_BUFFER_ANNOUNCE_H

#include <stdatomic.h>

#include "buffer.h"

/** What an operation has, of those things that ranks must agree on. */
enum {
    XEP_ANNOUNCED_CACHED = 1,  /* a dispatch that uses the routing of the dispatch of that turn */
    XEP_ANNOUNCED_WEIGHTS = 2, /* topk_weights */
    XEP_ANNOUNCED_SCALES = 4,  /* scales */
    XEP_ANNOUNCED_OUTPUTS = 8, /* a next piece, with outputs of the one before */
};

/** An operation, as the rank that begins it says. Ranks that serve copy and check it. */
typedef struct xep_announced {
    _Atomic uint64_t epoch; /* written last */
    uint64_t turn;          /* of the dispatch whose handle or routing it uses */
    uint32_t kind;          /* xep_op_kind_t */
    uint32_t step;          /* how many steps its rank had ended */
    uint32_t has;           /* XEP_ANNOUNCED_* */
    /* of the args: */
    uint32_t flags, hidden, topk, nscales, dtype, topk_idx_dtype, scales_dtype, quant, arrangement;
    uint32_t expert_alignment;
    float quant_scale;
    uint32_t npayloads, payload_bytes[XEP_PAYLOADS_MOST];
    uint8_t payload_alignment[XEP_PAYLOADS_MOST]; /* at most 64 */
    uint32_t reserved[3];
    uint64_t held[]; /* [slots] dispatch: 1 + turn of each older handle that its rank still has; 0: none */
} xep_announced_t;
_Static_assert(sizeof(xep_announced_t) == 128, "written by peers");

/** Of a buffer, in private memory. */
struct xep_announce {
    uint64_t offset;      /* of the rows, in every heap */
    uint32_t entry_bytes; /* of the ring */
    char **row;           /* [R] where this rank reads the row of each rank */
    uint64_t word;        /* its own */
    uint32_t step;        /* of what this rank begins */
    uint32_t boundary;    /* the first step with which it has begun nothing: it may go on as a rank that works there */
    uint64_t dispatches;  /* that it has begun in the step */
    uint64_t last;        /* epoch of its last dispatch; 0: none */
    uint64_t early;       /* of a dispatch that was announced before it begins; that is so while it is the next one */
    atomic_int stop;      /* xep_serve_stop() */
};

/** Bytes behind all else in a heap; where they begin: a multiple of 64. */
uint64_t xep_announce_bytes(const xep_shape_t *shape);

/** The heaps are connected, the rows at offset. XEP_ERR_NO_MEMORY. */
xep_status_t xep_announce_open(xep_buffer_t *buffer, uint64_t offset);
void xep_announce_close(xep_announce_t *announce);

/** All ranks begin anew, at step 0, with the epoch of a reset. */
void xep_announce_reset(xep_buffer_t *buffer);

/** buffer->before_mode: the operation begins, unless the mode refuses it. XEP_ERR_INVALID: see xep_announce_early(). */
xep_status_t xep_announce_begin(xep_request_t *req);

/** Announces a dispatch as the last one. XEP_ERR_INVALID, XEP_ERR_BUSY. */
xep_status_t xep_announce_early(xep_buffer_t *buffer);

/** Whether it was and has not begun: XEP_ERR_INVALID for whatever else this rank would begin. */
xep_status_t xep_announce_check(const xep_buffer_t *buffer);

/** Sends what the wire has held back: an announcement that nothing has taken along, or what was read. */
void xep_announce_push(xep_buffer_t *buffer);

/**
 * The operation of an epoch, and the first rank that is in and has announced it, of those from a rank on; NULL: none
 * has. A load for each rank.
 */
const xep_announced_t *xep_announce_find(const xep_buffer_t *buffer, uint64_t epoch, uint32_t from, uint32_t *rank_p);

/** This rank's step ends here; last: ranks that serve need not wait for more. */
void xep_announce_step(xep_buffer_t *buffer, int last);

/** This rank serves, or does so no more: then it is where step has ended. */
void xep_announce_serving(xep_buffer_t *buffer, int serving);
void xep_announce_stand(xep_buffer_t *buffer, uint32_t step);

/** The word of a rank, in parts. */
typedef struct xep_announced_end {
    uint64_t epoch;
    uint32_t step;
    int serving, last;
} xep_announced_end_t;

xep_announced_end_t xep_announce_end_of(const xep_buffer_t *buffer, uint32_t rank);

/** Whether step a comes before b; numbers of steps wrap. */
int xep_step_is_before(uint32_t a, uint32_t b);

#endif
