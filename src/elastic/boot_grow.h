/* SPDX-License-Identifier: BSD-3-Clause */

/** A bootstrap for the members of a group that grows: over its own allgather, and rank 0's frames with joiners. */
#ifndef XEP_ELASTIC_BOOT_GROW_H
#define XEP_ELASTIC_BOOT_GROW_H

#include "joiners.h"

enum { XEP_GROW_TEXT = 224 };

/** What a member says; all members say something at the same time, and hear what all have said. */
typedef enum xep_grow_step {
    XEP_GROW_WAIT = 1,     /* until the joiners are here; rank 0 says how many */
    XEP_GROW_EXCHANGE = 2, /* there is something to exchange; the number of bytes */
    XEP_GROW_SETTLE = 3    /* it has made the group, or not */
} xep_grow_step_t;

/** Of one call of xep_group_grow(). */
typedef struct xep_grow {
    xep_group_t *group;                 /* that grows */
    const xep_rendezvous_t *rendezvous; /* rank 0 alone */
    xep_joiners_t *joiners;             /* rank 0 alone */
    uint32_t count;                     /* of joiners */
    int32_t patience_ms;                /* for what a joiner is to say */
    /* a member has failed, or all have settled: no more words. The same on all members, unless one of them has died */
    int over;
    int in_doubt;        /* this rank has made the group, and does not know whether all others know that all have */
    xep_status_t status; /* then */
    char text[XEP_GROW_TEXT];
} xep_grow_t;

/**
 * Tells the others how far this member is, and hears them. number: bytes, or the count. XEP_INPROGRESS: rank 0 says so.
 * An error of one member is the result of all, and over is set.
 */
xep_status_t xep_grow_say(xep_grow_t *grow, xep_grow_step_t step, xep_status_t status, uint64_t number);

/** How long rank 0 waits for what joiners say. */
xep_patience_t xep_grow_patience(xep_grow_t *grow, int32_t timeout_ms);

/** Members, then joiners. grow is used until xep_boot_grow_end(). */
xep_status_t xep_boot_grow_open(xep_grow_t *grow, int32_t timeout_ms, xep_boot_t **boot_p);
void xep_boot_grow_end(xep_boot_t *boot);

#endif
