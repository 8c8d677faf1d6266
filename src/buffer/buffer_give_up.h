/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Word that a rank leaves of a buffer it has given up, so that a rank that comes late ends at once, and not after a
 * deadline of its own:
 *  1. An operation has ended so that the buffer needs a reset. The rank writes into its line in every heap when and
 *     why, and then the epoch of the first operation in which the others will wait for it in vain.
 *  2. A rank that waits looks at these lines every few milliseconds. A word counts for operations from its epoch on.
 *  3. A reset: all go on from an epoch that is no smaller than any word before, and words up to there count no more.
 *
 * So a word has one writer and only grows, and none is cleared. One that is lost costs the deadline that it would have
 * saved. A rank that has died leaves none and needs none. A buffer that goes on without ranks has its ballots.
 */
#ifndef XEP_BUFFER_GIVE_UP_H
#define XEP_BUFFER_GIVE_UP_H

#include "buffer.h"

/** Every heap has one for each rank, at lines_offset of the buffer; only that rank writes it. */
typedef struct xep_buffer_line {
    uint64_t quiet;    /* buffer_end.c: how often it has been */
    uint64_t given_up; /* an epoch; 0: never */
    uint64_t when_ms;  /* by the clock on the wall: ranks of several hosts compare it, for a sentence */
    int64_t why;       /* xep_status_t */
} xep_buffer_line_t;
_Static_assert(sizeof(xep_buffer_line_t) == 32, "written by peers");

/** Leaves word that this rank takes part in no operation from epoch on. Does not wait. */
void xep_buffer_give_up(xep_buffer_t *buffer, uint64_t epoch, xep_status_t why);

/** XEP_INPROGRESS, or why an operation of that epoch will not end: a rank has given it up. A load for each rank. */
xep_status_t xep_buffer_check_given_up(const xep_buffer_t *buffer, uint64_t epoch);

#endif
