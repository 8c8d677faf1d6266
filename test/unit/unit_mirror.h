/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A group of two ranks in one process, over a transport that only seems to be one: rank 0 is the test, rank 1 is a
 * mirror, which does at once what rank 0 does, until it falls silent or takes nothing any more.
 */
#ifndef TEST_UNIT_MIRROR_H
#define TEST_UNIT_MIRROR_H

#include <stdatomic.h>

#include "group.h"

enum { MIRROR_RANKS = 2 };

typedef enum unit_mirror_how {
    MIRROR_FINE,
    MIRROR_SILENT,
    MIRROR_TAKES_NO_SIGNAL,
    MIRROR_NEVER_FLUSHED,
    MIRROR_UNREACHABLE
} unit_mirror_how_t;

extern struct unit_mirror {
    unit_mirror_how_t how;
    int silent_after;       /* signals that it answers before it falls silent; 0: all */
    _Atomic uint32_t dead;  /* set by the test to 1: the bootstrap says that this rank is dead */
    atomic_int interrupted; /* set by the test: the caller of a wait is interrupted */
    atomic_int unflushed;   /* set by the mirror: a flush has been asked for that does not end */
} unit_mirror;

/** Without a deadline; the mirror is fine again, and alive. */
xep_group_t *unit_mirror_open_group(void);

#endif
