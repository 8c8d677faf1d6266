/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Handles: the slots of a buffer, each with one dispatch. Requests: its operations, in a pool. Called between
 * xep_buffer_enter() and leave.
 *
 * FREE -> DEFERRED -> ACTIVE -> DONE -> FREE. An operation that comes after no other skips DEFERRED; one whose user has
 * freed the request already skips DONE. The memory belongs to the buffer and stays, so that a freed request can be
 * recognised, and so that a follower in another buffer can look up how its request has ended.
 */
#ifndef XEP_REQUEST_H
#define XEP_REQUEST_H

#include <stdatomic.h>
#include <stddef.h>

#include <xep/plugin.h>

#include "account.h"
#include "error.h"
#include "group.h"
#include "trace.h"
#include "watch.h"

typedef enum {
    XEP_HANDLE_FREE,    /* the slot may be taken */
    XEP_HANDLE_SENT,    /* its dispatch is in flight */
    XEP_HANDLE_COUNTED, /* likewise, and the user was told how many rows there will be, and where */
    XEP_HANDLE_READY,   /* rows are here */
    XEP_HANDLE_FAILED   /* its dispatch failed; waits for the release */
} xep_handle_state_t;

/** What outputs the pieces of a dispatch have: the first ones that are taken decide. */
typedef struct xep_outputs {
    enum { XEP_OUTPUTS_UNKNOWN, XEP_OUTPUTS_NONE, XEP_OUTPUTS_TAKEN } state;
    xep_dtype_t dtype;
    uint32_t hidden;
    int weighted; /* means nothing on a rank without rows */
} xep_outputs_t;

/** A dispatch whose payloads are packed behind its scales (packed_payloads.h). */
typedef struct xep_packed {
    uint32_t nscales, npayloads; /* the caller's; npayloads 0: none are */
    xep_recv_t shown;
} xep_packed_t;

struct xep_handle {
    xep_buffer_t *buffer;
    uint32_t slot;       /* index in buffer->handles */
    _Atomic int state;   /* xep_handle_state_t; looked at by calls that do not enter the buffer */
    atomic_int released; /* by the user, in any thread: given back once nothing needs it, by who holds the buffer */
    uint32_t times_free; /* how often the slot was given back: whether it is still the same dispatch's */
    uint32_t awaited;    /* by operations that will use its slot and have not begun */
    xep_request_t *in_flight; /* dispatch or combine, or NULL */
    atomic_int abandoned;     /* whether its request was freed */
    uint64_t turn;
    uint64_t tokens; /* T of the dispatch */
    uint32_t topk;   /* K of the routing */
    xep_dtype_t topk_idx_dtype;
    const void *combine_input; /* what the user was told it is, or NULL */
    int has_input;             /* the user may have outputs there: it was asked for, and not overwritten since */
    xep_recv_t recv;
    xep_payload_t payloads[XEP_PAYLOADS_MOST]; /* of the dispatch, defaults filled in */
    xep_packed_t packed;
    xep_dispatch_args_t sent; /* of one in pieces: what the next ones are taken from */
    xep_outputs_t outputs;
    int combined;
};

typedef enum {
    XEP_REQUEST_FREE,
    XEP_REQUEST_DEFERRED, /* begins when the request it comes after is done and, no combine, when its turn has come */
    XEP_REQUEST_ACTIVE,
    XEP_REQUEST_DONE
} xep_request_state_t;

struct xep_request {
    xep_buffer_t *buffer;
    _Atomic int state; /* xep_request_state_t; read by requests of other buffers that come after this one */
    int kept;          /* by the user: freed when it is dropped and done */
    atomic_int freed;  /* by the user, in any thread, while another one held the buffer: it is still to be dropped */
    atomic_uint followers; /* requests that have still to see how this one ended: it is not used again before */
    xep_status_t status;   /* when done */
    xep_handle_t *handle;
    xep_handle_t *cached; /* whose routing it will use, while it is deferred */
    xep_request_t *after; /* what it comes after, while it is deferred; NULL: only dispatches called before it */
    int (*reached)(const xep_request_t *req); /* what a thread waits for */
    int given_up;              /* by another rank, as that thread has heard: that rank has said which ones are late */
    uint64_t test_deadline_ns; /* 0: not tested yet */
    xep_watch_t test_watch;    /* since the first test */
    uint64_t test_peers_ns;    /* when a test looks next whether a peer has died */
    int unsettled;             /* ranks that are out take part in it, whose words have to be fetched */
    int peer_gone;             /* it had when a test looked last */
    uint64_t begin_ns;         /* when it was called, for the trace; 0: there is none */
    xep_op_t op;
    xep_dispatch_args_t dispatch;
    xep_combine_args_t combine;
    char reason[XEP_REASON_BYTES];
};

/** The request that an operation, which a mode was given, is part of. */
static inline xep_request_t *xep_request_of(const xep_op_t *op)
{
    return (xep_request_t *)((uintptr_t)op - offsetof(xep_request_t, op));
}

/** A free one for an operation that begins, with what its kind and handle say; NULL: all are in use, it says so. */
xep_request_t *xep_request_take(xep_op_kind_t kind, xep_handle_t *handle);

/** Drops the user's reference. */
void xep_request_drop(xep_request_t *req);

/**
 * Defers it: it comes after another request, which may be of another buffer; NULL: it is deferred for other reasons.
 * The routing of cached is not used before it begins.
 */
void xep_request_follow(xep_request_t *req, xep_request_t *after, xep_handle_t *cached);

/** Defers it no longer, and forgets what it came after, which may be used again then. */
void xep_request_unfollow(xep_request_t *req);

/** XEP_INPROGRESS, or how the request it comes after has ended, even if that was freed; XEP_OK: after none. */
xep_status_t xep_request_after_status(const xep_request_t *req);

/**
 * The dispatch, or next piece, that the next one must wait for, or NULL. Modes rely on it that turn n begins only after
 * turn n - slots is complete here: then its memory is used again, and the peers know that.
 */
const xep_request_t *xep_request_in_turn(const xep_buffer_t *buffer);

/**
 * The dispatch that a deferred one waits for although its own predecessor is done, as dispatches begin in the order of
 * their calls; NULL: none.
 */
const xep_request_t *xep_request_held_by(const xep_request_t *req);

/** Whether it is deferred or active. */
int xep_request_in_flight(const xep_request_t *req);

/** "dispatch", "combine", "next piece". */
const char *xep_request_name(const xep_request_t *req);

/** Its status when it is done, and its reason as this thread's. */
xep_status_t xep_request_outcome(const xep_request_t *req);

/* ---- handles: request.c ---- */

/** Behind all that the state says is there: the user may see it at once. */
void xep_handle_set_state(xep_handle_t *handle, xep_handle_state_t state);

void xep_handle_give_back(xep_handle_t *handle);

/** Gives the slot of a released handle back, unless an operation still needs it. */
void xep_handle_give_back_if_unused(xep_handle_t *handle);

/* ---- request_advance.c ---- */

/** Calls the mode for an operation that begins; a dispatch has a turn from then on. */
xep_status_t xep_request_call_mode(xep_request_t *req);

/** All that are in flight; they end where the group was aborted. Inside xep_buffer_enter(). */
void xep_request_advance_all(xep_buffer_t *buffer);

/** Chooses how operations of a buffer go on, when it is opened. */
void xep_request_choose_progress(xep_buffer_t *buffer);

/**
 * What a wait in a buffer asks every few ms, beside what it waits for: heeds marks. XEP_INPROGRESS, or why there is no
 * point in waiting for an operation of that epoch: it was aborted here, or another rank has given it up.
 */
xep_status_t xep_request_hope(xep_buffer_t *buffer, uint64_t epoch);

/** xep_request_advance_all() as the task of a buffer: nothing where another thread is in the buffer. */
void xep_request_run_task(xep_group_task_t *task);

/* ---- request_begin.c ---- */

/**
 * Begins a dispatch or combine. args are checked, defaults filled in. On success *req_p is
 * the caller's and the buffer's epoch (and turn) is used; on error nothing has changed.
 */
xep_status_t xep_request_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *args, int waits,
                                  xep_request_t **req_p);
xep_status_t xep_request_combine(xep_handle_t *handle, const xep_combine_args_t *args, int waits,
                                 xep_request_t **req_p);

/** The next piece of a handle; outputs: of the one that it shows, or NULL. */
xep_status_t xep_request_next(xep_handle_t *handle, const xep_combine_args_t *outputs, int32_t timeout_ms,
                              xep_request_t **req_p);

/**
 * Begins an operation once more, in the slot of its handle, where nothing is in flight; req is taken and has its
 * arguments, and the recv of a dispatch is zeroed. XEP_ERR_BUSY: not yet, with nothing changed.
 */
xep_status_t xep_request_replay(xep_request_t *req);

/* ---- request_trace.c ---- */

/* What the trace says of a request. Called inside xep_buffer_enter(), and only while a trace is written. */

/** xep_env_t.span. */
void xep_request_trace_span(const xep_request_t *req, const char *name, uint32_t rank, uint64_t begin_ns,
                            uint64_t end_ns);

/** The waits for the ranks that are late, until now: before xep_wait_times_pause() forgets since when. */
void xep_request_trace_waits(const xep_request_t *req);

/** The operation, which ends: its waits, and itself from the call until now. */
void xep_request_trace_end(const xep_request_t *req);

/* ---- request_end.c ---- */

/**
 * Ends a request with its mode's status: XEP_OK, an error that every rank gets and that leaves nothing half done, or
 * any other, which breaks the buffer.
 */
void xep_request_end(xep_request_t *req, xep_status_t status);

/** Ends it without asking the mode: the state of the peers is unknown then, so all other requests end, too. */
void xep_request_break(xep_request_t *req, xep_status_t status, const char *reason);

/** "dispatch 17 of mode normal", then before and what it waits for. */
void xep_request_explain(const xep_request_t *req, const char *before, char *text, size_t bytes);

/** The same for the others, if they ask. */
void xep_request_account(const xep_request_t *req, xep_account_t *account);

/** Breaks a request after a timeout; the reason is why, and then what it waits for. */
void xep_request_expire(xep_request_t *req, xep_status_t status, const char *why);

/** Ends all that is in flight, breaks the buffer, and tells the others (buffer_give_up.h). */
void xep_request_give_up_all(xep_buffer_t *buffer, xep_status_t why, const char *reason);

/** xep_buffer_abort(), of a thread that holds the buffer. */
void xep_request_abort_all(xep_buffer_t *buffer);

/** Ends all that is in flight with status and reason; marks the buffer broken unless status is XEP_ERR_ABORTED. */
void xep_request_end_all(xep_buffer_t *buffer, xep_status_t status, const char *reason);

/*
 * Calls that do not wait leave marks where another thread has the buffer (xep_buffer_enter_now()): handles that were
 * released, requests that were freed, and an abort. heed is for that thread while it waits: a peer may wait for what is
 * given back. What was freed it leaves, as it may wait for that itself: take_over is for when it leaves the buffer. The
 * flag of marks is down by then: who sets one after that raises it again.
 */
void xep_request_heed_marks(xep_buffer_t *buffer);
void xep_request_take_over(xep_buffer_t *buffer);

/** Where the mode has given no reason it passes on an error of the wire, which has just told this thread. */
void xep_request_keep_reason(xep_request_t *req);

/* ---- calls that are refused: request.c ---- */

/*
 * Calls that a rank refuses: nothing of them is sent, and no epoch is used, so that what all ranks refuse alike costs
 * nothing. Where one rank alone refuses a call and goes on to its next one, that would pair with the call that the
 * others are in. So ranks say with every operation how many calls they have refused: with its epoch, that is the number
 * of the call. Where the counts differ, the operation is none: it ends with XEP_ERR_MISMATCH on all ranks. Those that
 * have refused fewer calls then refuse as many of their next ones as they are behind, and after that all are in the
 * same call again.
 */

/* Above the count op.refused says which launch of a graph it is, so that ranks in other ones differ; 0: a call. */
enum { XEP_REFUSED_BITS = 16 };

/** XEP_ERR_MISMATCH: this call is one of those by which this rank is behind. */
xep_status_t xep_request_keep_pace(const xep_buffer_t *buffer);

/** Counts a call that has come to status before anything was sent, if that refuses it for good; returns status. */
xep_status_t xep_request_count_refused(xep_buffer_t *buffer, xep_status_t status);

/** Of an operation that ends with XEP_ERR_MISMATCH and a reason: notes whether this rank is behind. */
void xep_request_note_pace(const xep_request_t *req);

/* ---- request_wait.c ---- */

/** Blocks until the request is done; its status, and its reason as this thread's. */
xep_status_t xep_request_finish(xep_request_t *req);

/**
 * An operation whose request was freed is nobody's to wait for, so the next call on its handle does. XEP_ERR_INVALID:
 * the handle has one whose request the user still has; else as xep_buffer_usable().
 */
xep_status_t xep_request_settle(xep_handle_t *handle);

/** Blocks until a dispatch's rows are counted. XEP_OK, or how it ended. Of a combine: as finish. */
xep_status_t xep_request_finish_counts(xep_request_t *req);

/** XEP_INPROGRESS, or as finish. Does not block, but has a wait's rules for deadline and deaths. */
xep_status_t xep_request_poll(xep_request_t *req);

/**
 * xep_handle_combine_input(), arguments checked: blocks until peers have read what an earlier combine left there; or,
 * with handle NULL, xep_buffer_send_memory(), likewise.
 */
xep_status_t xep_request_wait_memory(xep_buffer_t *buffer, const xep_handle_t *handle, void **base_p, size_t *stride_p);

/**
 * Orders later work on stream, of the device of req's buffer, after req's operation and all operations of its buffer
 * before it; enqueues what is left of these, which with staging waits for their end. Enters that buffer: the caller
 * holds none.
 */
xep_status_t xep_request_order_stream(xep_request_t *req, void *stream);

#endif
