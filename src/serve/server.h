/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A rank that serves: it begins what others have announced (announce.h), and runs its experts in between. What it calls
 * is what programs call: to modes and to other ranks it is a rank without tokens.
 *
 * Handles. A dispatch that was announced lists the handles that its rank still has: the others are released here, as no
 * rank can use a handle that one of them has released. So there is a slot for it.
 *
 * Outputs are written as soon as the rows are here, before a combine is announced, where they need no copy. A combine
 * begins when it was announced, as nobody knows before what comes next.
 */
#ifndef XEP_SERVER_H
#define XEP_SERVER_H

#include <xep/pieces.h>

#include "announce.h"
#include "request.h"

typedef struct xep_server {
    xep_serve_args_t args;
    xep_group_t *group;
    xep_served_t *due;    /* whose function runs next; NULL: none */
    xep_status_t failure; /* of this rank alone: the others have to be told */
    int is_over;          /* it is between two steps, and was told to return */
    uint64_t stop_ns;     /* deadline, once it was told to; 0: it was not */
    uint64_t polled_ns;   /* when the operations in flight were tested last */
} xep_server_t;

/* ---- server_begin.c ---- */

/* The operations of a buffer that is served. */

/** Ends what is done, and begins what was announced. XEP_INPROGRESS: there is no more to do now. */
xep_status_t xep_server_attend(xep_server_t *server, xep_buffer_t *buffer);

/** Deadlines, and deaths that an operation has to be ended for: every few ms. */
void xep_server_poll(xep_server_t *server);

/** Releases a handle, whatever is in flight on it. */
void xep_served_drop(xep_served_t *served);

/* ---- server_end.c ---- */

/* The end of a step. */

/** Whether this rank's process has told it to return. */
int xep_server_is_told(const xep_server_t *server);

/** Stops it if a rank that works says, for the first time, that it needs nobody behind the last step: then 1. */
int xep_server_is_dismissed(xep_server_t *server);

/** It is to return at the end of the step: the deadline for that counts from now on. */
void xep_server_stop(xep_server_t *server);

/** Whether nothing is in flight and the function need not run. */
int xep_server_is_idle(const xep_server_t *server);

/** The first step with which this rank has begun nothing, in no buffer. */
uint32_t xep_server_boundary(const xep_server_t *server);

/** XEP_OK, or XEP_ERR_MISMATCH: ranks have ended a step behind different operations. */
xep_status_t xep_server_check_ends(const xep_server_t *server);

/** Ends the call if this rank is between two steps. XEP_INPROGRESS: it is not. */
xep_status_t xep_server_try_to_end(xep_server_t *server);

/** The first rank that works; nranks: there is none. *others_p: whether there is another rank than this one. */
uint32_t xep_server_find_worker(const xep_server_t *server, int *others_p);

/** XEP_INPROGRESS, or XEP_ERR_PEER: no rank is there any more that could end the step, or begin one. */
xep_status_t xep_server_check_workers(const xep_server_t *server);

/** XEP_ERR_TIMEOUT, with a rank that works and has not ended the step. */
xep_status_t xep_server_fail_late(const xep_server_t *server);

#endif
