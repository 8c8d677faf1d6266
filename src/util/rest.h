/* SPDX-License-Identifier: BSD-3-Clause */

/** How a loop rests between looks: spins, then yields, then sleeps, until a deadline. */
#ifndef XEP_UTIL_REST_H
#define XEP_UTIL_REST_H

#include <stdint.h>

typedef enum xep_rest_kind {
    XEP_REST_ALONE,   /* every rank of this host has a processor */
    XEP_REST_CROWDED, /* there are more of them */
    XEP_REST_RARE,    /* what nobody is in a hurry for */
} xep_rest_kind_t;

typedef struct xep_rest {
    uint64_t begin_ns;    /* when it began, or something last moved; 0: has not looked at the clock since */
    uint64_t deadline_ns; /* UINT64_MAX: none */
    uint64_t now_ns;      /* when the clock was last looked at */
    uint64_t slow_ns;     /* when a round was last slow; 0: none was */
    uint32_t rounds;
    uint32_t moves; /* of the last round */
    xep_rest_kind_t kind;
} xep_rest_t;

/** The deadline of a wait that begins now, or at a time of xep_clock_ns(), and may take timeout_ms; < 0: none. */
uint64_t xep_deadline(int32_t timeout_ms);
uint64_t xep_deadline_from(uint64_t now_ns, int32_t timeout_ms);

void xep_rest_begin(xep_rest_t *rest, xep_rest_kind_t kind, uint64_t deadline_ns);

/**
 * Rests a little; not at all where moves, any count of what has happened, differs from the last round's: then the
 * wait is as if it had just begun, but for its deadline. Returns 0 once the deadline has passed, else 1.
 */
int xep_rest_round(xep_rest_t *rest, uint32_t moves);

/** The same for a round in which the caller has slept by other means. */
int xep_rest_slept(xep_rest_t *rest);

/** Whether this round is one of the few (about one in a hundred milliseconds) for slow checks. */
int xep_rest_is_slow(xep_rest_t *rest);

#endif
