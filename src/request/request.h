/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Requests: the operations of a buffer, in a pool. Called between xep_buffer_enter() and leave.
 *
 * FREE -> DEFERRED -> ACTIVE -> DONE -> FREE. DEFERRED is left out by an operation that comes after no other, DONE by
 * one whose user has freed the request already. The memory is the buffer's and stays, so that a request that was freed
 * can still be told, and so that one of another buffer may look up how the request that it comes after has ended.
 */
#ifndef XEP_REQUEST_H
#define XEP_REQUEST_H

#include <stdatomic.h>

#include <xep/plugin.h>

#include "error.h"
#include "watch.h"

typedef enum {
    XEP_REQUEST_FREE,
    XEP_REQUEST_DEFERRED, /* begins when the request it comes after is done and, no combine, when its turn has come */
    XEP_REQUEST_ACTIVE,
    XEP_REQUEST_DONE
} xep_request_state_t;

struct xep_request {
    xep_buffer_t *buffer;
    _Atomic int state;     /* xep_request_state_t; read by requests of other buffers that come after this one */
    int kept;              /* by the user: freed when it is dropped and done */
    atomic_uint followers; /* requests that have still to see how this one ended: it is not used again before */
    xep_status_t status;   /* when done */
    xep_handle_t *handle;
    xep_handle_t *cached; /* whose routing it will use, while it is deferred */
    xep_request_t *after; /* what it comes after, while it is deferred; NULL: only dispatches called before it */
    int32_t timeout_ms;
    uint64_t test_deadline_ns; /* 0: not tested yet */
    xep_watch_t test_watch;    /* since the first test */
    uint64_t test_peers_ns;    /* when a test looks next whether a peer has died */
    int unsettled;             /* it is with ranks that are out, whose words have to be fetched */
    int peer_gone;             /* it had when a test looked last */
    uint64_t begin_ns;         /* when it was called, for the trace; 0: there is none */
    xep_op_t op;
    xep_dispatch_args_t dispatch;
    xep_combine_args_t combine;
    char reason[XEP_REASON_BYTES];
};

/** A free one, for an operation that begins; NULL, with the reason: all are in use. */
xep_request_t *xep_request_take(xep_buffer_t *buffer);

/** Drops the user's reference. */
void xep_request_drop(xep_request_t *req);

/**
 * Makes it come after another, which may be of another buffer, or NULL: it is deferred for other reasons. The routing
 * of cached is looked at only when it begins.
 */
void xep_request_follow(xep_request_t *req, xep_request_t *after, xep_handle_t *cached);

/** Forgets what it came after, which may be used again then. */
void xep_request_unfollow(xep_request_t *req);

/** XEP_INPROGRESS, or how the request it comes after ended, which may have been freed meanwhile; XEP_OK: after none. */
xep_status_t xep_request_after_status(const xep_request_t *req);

/**
 * The dispatch, or next piece, that the next one must wait for, or NULL. A mode counts on it that turn n begins only
 * after turn n - slots is complete here: what it keeps for a turn is used again then, and the peers know that it is.
 */
const xep_request_t *xep_request_in_turn(const xep_buffer_t *buffer);

/**
 * The dispatch that a deferred one waits for though what it comes after is done, so that dispatches begin in the order
 * of their calls; NULL: none.
 */
const xep_request_t *xep_request_held_by(const xep_request_t *req);

/** Whether it is deferred or active. */
int xep_request_in_flight(const xep_request_t *req);

/** "dispatch", "combine", "next piece". */
const char *xep_request_name(const xep_request_t *req);

/** Its status when it is done, and its reason as this thread's. */
xep_status_t xep_request_outcome(const xep_request_t *req);

#endif
