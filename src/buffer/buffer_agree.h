/* SPDX-License-Identifier: BSD-3-Clause */

/** The agreement of all ranks on a buffer that is being created: they want the same, and each can go on. */
#ifndef XEP_BUFFER_AGREE_H
#define XEP_BUFFER_AGREE_H

#include "group.h"
#include "room.h"
#include "transport.h"

/** The room that a rank sees before any heap is opened: each rank writes its own, all read it. Zeros: not looked at. */
typedef struct xep_room_view {
    xep_room_t room;
    xep_shared_room_t shared[XEP_SHARED_KINDS];
} xep_room_view_t;
_Static_assert(sizeof(xep_room_view_t) == XEP_ROOM_SOURCES * 16 + XEP_SHARED_KINDS * 24, "exchanged as bytes");

/** What a rank says of the buffer it wants to create. */
typedef struct xep_proposal {
    const xep_buffer_params_t *params; /* looked at only where status is XEP_OK */
    int by_nodes;                      /* the path it has chosen */
    uint64_t bytes;                    /* of its heap */
    const xep_room_view_t *room;       /* what there is for all heaps, before they are opened; NULL: checked before */
    int may_be_smaller;                /* recv_rows was not given, and fewer rows would take less memory */
    xep_status_t status;               /* the rank's own status; its reason is the thread's last */
} xep_proposal_t;

/** What follows from what all have said. */
typedef struct xep_agreed {
    int is_short;      /* the same on all ranks: they lack only memory, and all may do with less */
    uint32_t fewest;   /* where they agree: the fewest multiprocessors that any rank asks for */
    xep_status_t room; /* where they agree: of this rank's proposal that comes next, xep_room_check_together() */
} xep_agreed_t;

/**
 * Every rank learns whether all ranks may go on. XEP_ERR_MISMATCH names the parameter, the ranks and both values; a
 * rank with an error of its own keeps it. *agreed_p is always written. Collective.
 */
xep_status_t xep_buffer_agree(xep_group_t *group, const xep_proposal_t *proposal, xep_agreed_t *agreed_p);

/* ---- buffer_agree_room.c ---- */

/* Whether the heaps of all ranks of a host fit there together. */

void xep_room_view(xep_transport_t *transport, uint64_t bytes, xep_room_view_t *view);

/**
 * XEP_ERR_NO_MEMORY if heaps of so many bytes, of the ranks that draw from the same as this one, fit one by one but not
 * together, with ranks, bytes and kind of memory. If one alone does not fit, its own rank says so, which knows more.
 */
xep_status_t xep_room_check_together(const xep_room_view_t *views, uint32_t nranks, uint32_t rank, uint64_t bytes);

/** XEP_ERR_NO_MEMORY: this process cannot map so many heaps. bytes: of one, at least 1. */
xep_status_t xep_room_check_space(const xep_room_space_t *space, uint32_t heaps, uint64_t bytes);

#endif
