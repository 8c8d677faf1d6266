/* SPDX-License-Identifier: BSD-3-Clause */

/** Words by which the ranks of a group tell one another how far they are, over the wire of any heap. */
#ifndef XEP_GROUP_SIGNAL_H
#define XEP_GROUP_SIGNAL_H

#include "account.h"
#include "group.h"

/**
 * A word at every rank that this rank alone writes; a rank that sees it sees the bytes, too. All ranks have one, in
 * rank order.
 */
typedef struct xep_group_signal {
    uint64_t word;    /* the offset of this rank's */
    size_t stride;    /* from one to that of the next rank */
    uint64_t value;   /* no smaller than any before */
    uint64_t offset;  /* bytes of this rank's region that go to the same offset of all others before */
    size_t bytes;     /* of them; 0: none */
    const char *what; /* for the reason */
    xep_waits_kind_t kind;
    uint32_t buffer;  /* whose they are; 0: the group's */
    const char *call; /* that they are part of, as users know it; NULL: none */
    xep_hope_t hope;  /* of who waits for those of the others */
} xep_group_signal_t;

/** Sends it to every rank, this one included. */
xep_status_t xep_group_signal_all(xep_group_t *group, xep_heap_wire_t *heap, const xep_group_signal_t *signal,
                                  uint64_t deadline_ns);

/** Waits until all that was sent over the heap has left. */
xep_status_t xep_group_flush(xep_group_t *group, xep_heap_wire_t *heap, uint64_t deadline_ns, const char *what);

/** Waits until the words of all have that value in this rank's region; the reason names the ranks that are missing. */
xep_status_t xep_group_wait_words(xep_group_t *group, const xep_heap_wire_t *heap, const xep_group_signal_t *signal,
                                  uint64_t deadline_ns);

#endif
