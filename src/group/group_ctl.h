/* SPDX-License-Identifier: BSD-3-Clause */

/** Messages from rank to rank beside all heaps: they work when a heap has failed because some rank was lost. */
#ifndef XEP_GROUP_CTL_H
#define XEP_GROUP_CTL_H

#include "group.h"

/** What a message is about; others read it, so values never change. */
typedef enum xep_ctl_kind {
    XEP_CTL_END = 1,   /* a word of group_abort.c */
    XEP_CTL_STATE = 2, /* of group_shrink_ctl.c */
    XEP_CTL_SHARE = 3, /* of group_shrink_boot.c */
    XEP_CTL_FIRST = 4, /* says nothing */
    XEP_CTL_BALLOT = 5 /* of members_wire.c, about a buffer */
} xep_ctl_kind_t;

/** Most bytes of a message: what a rank gives to an allgather while a group is made (group_exchange.c), and a head. */
enum { XEP_CTL_BYTES = 64 * 1024 + 512 };

/** A message that has come, kept until it is taken. */
typedef struct xep_msg {
    struct xep_msg *next;
    uint64_t about; /* the number of a buffer, or of an allgather of a group that shrinks; 0: none */
    uint32_t from;
    uint32_t kind; /* XEP_CTL_STATE, XEP_CTL_SHARE, XEP_CTL_BALLOT */
    size_t bytes;
    _Alignas(8) char data[];
} xep_msg_t;

/**
 * Takes the control messages of the group's transport from now on; before it is connected. close: once the transport
 * is.
 */
xep_status_t xep_ctl_open(xep_group_t *group);
void xep_ctl_close(xep_group_t *group);

/** Hands a message to the transport, which copies it. An error: the rank cannot be reached. Any thread. */
xep_status_t xep_ctl_send(xep_group_t *group, uint32_t rank, xep_ctl_kind_t kind, uint64_t about, const void *data,
                          size_t bytes);

/**
 * Waits until all control messages are on their way, at most so many milliseconds: a rank that has gone or sleeps takes
 * none.
 */
void xep_ctl_leave(xep_group_t *group, int32_t most_ms);

/**
 * Sends a first message to all ranks that are not mapped, while all are well: UCX answers it before it sends any other,
 * and a rank that has died or sleeps does not.
 */
void xep_ctl_begin(xep_group_t *group);

/**
 * The control messages of a kind that have come since the last time and are about first to last, in the order in which
 * they came; the caller frees each.
 */
xep_msg_t *xep_ctl_take(xep_group_t *group, xep_ctl_kind_t kind, uint64_t first, uint64_t last);
void xep_ctl_free(xep_msg_t *first);

/**
 * Of control messages that begin with their number among those of their rank, and have all that it says: the last one
 * that was sent stays in *last, whatever order they come in. Whether this is it; the other one is freed.
 */
int xep_ctl_keep_last(xep_msg_t **last, xep_msg_t *msg);

#endif
