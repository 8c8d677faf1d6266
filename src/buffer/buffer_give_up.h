/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A rank that gives up a buffer says so, so that a late rank ends at once, and not after its own deadline:
 *  1. An operation has ended in a way that needs a reset. The rank writes into its line in every heap when and why, and
 *     then the epoch of the first operation in which the others would wait for it in vain.
 *  2. A rank that waits checks these lines every few milliseconds. A word counts for operations from its epoch on.
 *  3. A reset: all continue from an epoch that is no smaller than any word, and older words no longer count.
 *
 * So a word has one writer, only grows, and is never cleared. A lost word costs the deadline that it would have saved.
 * A dead rank leaves none and needs none. A buffer that goes on without ranks has ballots instead.
 */
#ifndef XEP_BUFFER_GIVE_UP_H
#define XEP_BUFFER_GIVE_UP_H

#include "buffer.h"

/** Every heap has one for each rank, at areas.lines of the buffer; only that rank writes it. */
typedef struct xep_buffer_line {
    uint64_t quiet;    /* buffer_end.c: how often it has been, in resets */
    uint64_t left;     /* 1: it frees the buffer, or waits for the others to do so */
    uint64_t given_up; /* an epoch; 0: never */
    uint64_t when_ms;  /* wall clock: ranks of several hosts compare it, for a sentence */
    int32_t why;       /* xep_status_t */
    uint32_t expert;   /* 1 + global number of the expert that failed; 0: of none */
    uint64_t came;     /* buffer_end.c: the last reset that it has come to, from 1 */
    /* what it had reached then: of reset n in reached[n % 2] */
    struct {
        uint64_t epoch, turn, quiesces;
    } reached[2];
} xep_buffer_line_t;
_Static_assert(sizeof(xep_buffer_line_t) == 96, "written by peers");

/** [nranks] as this rank has them. */
static inline xep_buffer_line_t *xep_buffer_lines(const xep_buffer_t *buffer)
{
    return (xep_buffer_line_t *)(void *)((char *)buffer->heap->base + buffer->areas.lines);
}

/** What the next call of xep_buffer_give_up() tells beside a status: the global number of an expert. */
void xep_buffer_blame_expert(xep_buffer_t *buffer, uint32_t expert);

/** Tells the others that this rank takes part in no operation from epoch on. Does not wait. */
void xep_buffer_give_up(xep_buffer_t *buffer, uint64_t epoch, xep_status_t why);

/** XEP_INPROGRESS; XEP_ERR_BROKEN: a rank leaves that has not been quiet so often. A load for each rank. */
xep_status_t xep_buffer_check_left(const xep_buffer_t *buffer, uint64_t quiet);

/** XEP_INPROGRESS, or why an operation of that epoch will not end: a rank has given it up. A load for each rank. */
xep_status_t xep_buffer_check_given_up(const xep_buffer_t *buffer, uint64_t epoch);

#endif
