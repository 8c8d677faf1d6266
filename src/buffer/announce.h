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
 *     xep_announce_dispatch() and xep_announce_layers() write the entry of this rank's next operation before it begins,
 *     and nothing else may be begun then: to the others it is a rank that is ahead. A dispatch that is balanced waits
 *     for all ranks before it begins, so its entry comes before that.
 *  2. A rank that serves looks for the epoch behind its last one in all rows, and takes part in what it finds. So all
 *     begin the same operations of a buffer in the order of their epochs, whatever the order of kinds and handles is.
 *     An entry with layers says what follows it, too: a rank that serves begins those operations one by one, each as
 *     soon as the one before has ended, and needs no other entry for them, until one fails, which it does on all ranks.
 *  3. xep_step_end(): the rank writes its word. What it announces from then on has the number of the next step.
 *  4. A rank that serves and is told to stop begins nothing of a step that it has not begun. It returns where some rank
 *     stands behind what it has begun, in all buffers that are served: at its next operation there, if that is of a
 *     later step, or else at its word, if that has the last epoch that this one has begun. So its first operation is
 *     the first one of that step.
 *
 * Why an entry may be written over: no operation ends anywhere before all ranks have begun it, and the ring has two
 * entries more than a buffer has requests in flight, for what is announced early. A balanced dispatch may fail before
 * it begins, and what has its epoch then is written over its entry: ranks that serve have refused that call, too, and
 * take no entry of one with fewer refused calls than theirs. The combine of announced layers is written behind the
 * entry of their dispatch before that begins, with its call: if the dispatch fails, nobody takes it for an operation. A
 * rank that is out may read nonsense; it can do nothing with it.
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

#include <xep/serve.h>

#include "buffer.h"

enum { XEP_STEP_BITS = 22, XEP_STEP_MASK = (1 << XEP_STEP_BITS) - 1 };

/** What an operation has, of those things that ranks must agree on. */
enum {
    XEP_ANNOUNCED_CACHED = 1,  /* a dispatch that uses the routing of the dispatch of that turn */
    XEP_ANNOUNCED_WEIGHTS = 2, /* topk_weights */
    XEP_ANNOUNCED_SCALES = 4,  /* scales */
    XEP_ANNOUNCED_OUTPUTS = 8, /* a next piece, with outputs of the one before */
};

/** An operation, as the rank that begins it says. Ranks that serve copy and check it. */
typedef struct xep_announced {
    _Atomic uint64_t call; /* written last: its epoch, and above 48 bits how many calls its rank had refused */
    uint64_t turn;         /* of the dispatch whose handle or routing it uses */
    uint32_t kind;         /* xep_op_kind_t */
    uint32_t step;         /* how many steps its rank had ended */
    uint32_t has;          /* XEP_ANNOUNCED_* */
    /* of the args: */
    uint32_t flags, hidden, topk, nscales, dtype, topk_idx_dtype, scales_dtype, quant, arrangement;
    uint32_t expert_alignment;
    float quant_scale;
    uint32_t npayloads, payload_bytes[XEP_PAYLOADS_MOST];
    uint8_t payload_alignment[XEP_PAYLOADS_MOST]; /* at most 64 */
    /* of a dispatch announced early: so many, each with a combine. The next entry, which has the same call, is that of
     * the first combine: an operation of its own only once it has begun */
    uint32_t layers;
    uint32_t reserved[2];
    uint64_t held[]; /* [slots] dispatch: 1 + turn of each older handle that its rank still has; 0: none */
} xep_announced_t;
_Static_assert(sizeof(xep_announced_t) == 128, "written by peers");

/* clang-format off */
/** The args of a dispatch among these. */
#define XEP_ANNOUNCED_ARGS(X) \
    X(flags) X(hidden) X(topk) X(nscales) X(dtype) X(topk_idx_dtype) X(scales_dtype) X(quant) X(arrangement) \
    X(expert_alignment) X(quant_scale) X(npayloads)
/* clang-format on */

/** A dispatch that a rank that serves has taken part in, and may have to combine. */
typedef struct xep_served {
    xep_handle_t *handle; /* NULL: none */
    xep_request_t *req;   /* in flight on it, or NULL */
    int has_outputs;      /* that no operation has taken yet */
    int is_due;           /* the function is to run */
    int is_failed;        /* its dispatch: it is dropped */
    float no_weights;     /* for a combine that has some; this rank has no tokens that they are of */
    xep_serve_call_t call;
} xep_served_t;

/** Of a buffer, in private memory. */
struct xep_announce {
    uint32_t entry_bytes; /* of the ring */
    char **row;           /* [R] where this rank reads the row of each rank */
    uint64_t word;        /* its own */
    uint32_t step;        /* of what this rank begins */
    uint32_t boundary;    /* the first step with which it has begun nothing: it may go on as a rank that works there */
    uint64_t dispatches;  /* that it has begun in the step */
    uint64_t last[2];     /* epochs of its last dispatch and combine, by their kinds; 0: none */
    uint64_t told;        /* entries are written up to this epoch, */
    uint64_t untold;      /* and need not be up to this one: this rank works alone, and has announced layers */
    uint64_t first;       /* epoch of the first operation that this rank, or one it serves, has announced early, */
    uint64_t early;       /* and of the last one, of this rank */
    int in_layers;        /* these end with a combine; else it is a dispatch alone */
    uint64_t oldest;      /* turn of the first handle that ranks that serve still have */
    uint32_t dismissed;   /* the step, if any, whose XEP_STEP_LAST has ended xep_serve(); it does so once */
    atomic_int stop;      /* xep_serve_stop() */
    /* of a rank that serves: */
    atomic_int is_served;      /* it is in xep_serve() */
    int holds_back;            /* what nobody waited for when an operation ended may not have left this rank */
    uint64_t follows;          /* epoch of the last operation of the layers that another rank has announced */
    xep_announced_t *layer[2]; /* their dispatch and their combine */
    xep_served_t *served;      /* [slots] of each slot; xep_serve() may return in a step: the next call goes on */
    xep_status_t (*take)(xep_request_t *req); /* buffer->take_dispatch of balanced ones */
};

/** Bytes behind all else in a heap; where they begin: a multiple of 64. */
uint64_t xep_announce_bytes(const xep_shape_t *shape);

/** The heaps are connected; take_dispatch is the buffer's. XEP_ERR_NO_MEMORY. */
xep_status_t xep_announce_open(xep_buffer_t *buffer);
void xep_announce_close(xep_announce_t *announce);

/** All ranks begin anew, at step 0, with the epoch of a reset. */
void xep_announce_reset(xep_buffer_t *buffer);

/** Announces a dispatch like the last one, or layers like the last dispatch and combine. XEP_ERR_INVALID, _BUSY. */
xep_status_t xep_announce_early(xep_buffer_t *buffer, uint32_t layers);

/** XEP_ERR_INVALID: something was, and has not begun. */
xep_status_t xep_announce_check(const xep_buffer_t *buffer);

/**
 * The operation of an epoch has failed, on all ranks. If it was announced early, so is no more what was announced with
 * it. Operations that were announced while it was in flight still are: ranks that serve may have begun them.
 */
static inline void xep_announce_failed(xep_buffer_t *buffer, uint64_t epoch)
{
    xep_announce_t *announce = buffer->announce;
    if (epoch < announce->first) return;
    if (announce->told > buffer->epoch) announce->told = buffer->epoch;
    announce->early = announce->untold = announce->follows = 0;
}

/** Sends what the wire has held back: an announcement that nothing has taken along, or what was read. */
void xep_announce_push(xep_buffer_t *buffer);

/**
 * The operation of an epoch, and the first rank that is in and has announced it, of those from a rank on; NULL: none
 * has. A load for each rank.
 */
const xep_announced_t *xep_announce_find(const xep_buffer_t *buffer, uint64_t epoch, uint32_t from, uint32_t *rank_p);

/**
 * What a rank that serves begins next, if somebody has announced it; *follows_p: whether that was in layers, so that it
 * comes behind the end of the operation before.
 */
const xep_announced_t *xep_announce_next(xep_buffer_t *buffer, int *follows_p);

/** This rank serves, or does so no more. */
void xep_announce_serving(xep_buffer_t *buffer, int serving);

/** This rank is where the step before this one has ended; last: ranks that serve need not wait for more. */
void xep_announce_stand(xep_buffer_t *buffer, uint32_t step, int last);

/** The word of a rank, in parts. */
typedef struct xep_announced_end {
    uint64_t epoch;
    uint32_t step;
    int serving, last;
} xep_announced_end_t;

xep_announced_end_t xep_announce_end_of(const xep_buffer_t *buffer, uint32_t rank);

/** Whether step a comes before b; numbers of steps wrap. */
int xep_step_is_before(uint32_t a, uint32_t b);

/* ---- between announce*.c ---- */

/** Bytes of a row and of an entry; entries of a ring; that of an epoch, of a rank. */
uint64_t xep_announce_row_bytes(const xep_shape_t *shape);
uint32_t xep_announce_entry_bytes(const xep_shape_t *shape);
uint32_t xep_announce_entries(const xep_shape_t *shape);
xep_announced_t *xep_announce_entry(const xep_buffer_t *buffer, uint32_t rank, uint64_t epoch);

/** The handles that this rank has but begun; returns how many slots hold none. */
uint32_t xep_announce_fill_held(const xep_buffer_t *buffer, const xep_handle_t *begun, xep_announced_t *entry);

/** Tells an entry of this rank, which is filled, as that of an epoch's call. */
void xep_announce_put(xep_buffer_t *buffer, xep_announced_t *entry, uint64_t epoch);

/** Whether it has the operation of an epoch that this rank can take part in. */
int xep_announce_is_of(const xep_buffer_t *buffer, const xep_announced_t *entry, uint64_t epoch);

/** Whether an operation that begins needs no entry, as one of layers that all others follow. */
int xep_announce_is_spared(const xep_buffer_t *buffer, uint64_t epoch);

/** Refuses, XEP_ERR_INVALID, what comes before what was announced, or uses a handle that was released for that. */
xep_status_t xep_announce_check_begin(const xep_request_t *req);

#endif
