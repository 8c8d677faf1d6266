/* SPDX-License-Identifier: BSD-3-Clause */

/** Whether the heaps of all ranks of a host fit there together: all ranks of the group come to the same verdict. */
#ifndef XEP_BUFFER_ROOM_TOGETHER_H
#define XEP_BUFFER_ROOM_TOGETHER_H

#include "room.h"
#include "transport.h"

/** What a rank sees before any heap is opened; written by each, read by all. Zeros: not checked. */
typedef struct xep_room_view {
    xep_room_t room;
    xep_shared_room_t shared[XEP_SHARED_KINDS];
    xep_room_space_t space;
    uint64_t heaps; /* that this rank maps: of the ranks of its host */
} xep_room_view_t;
_Static_assert(sizeof(xep_room_view_t) == XEP_ROOM_SOURCES * 16 + XEP_SHARED_KINDS * 24 + 24, "exchanged as bytes");

/** here: ranks of this host, this one included. */
void xep_room_view(xep_transport_t *transport, uint64_t bytes, uint32_t here, xep_room_view_t *view);

/**
 * XEP_ERR_NO_MEMORY if heaps of so many bytes fit one by one but not together, with ranks, bytes and kind of memory. If
 * one alone does not fit, its own rank says so, which knows more.
 */
xep_status_t xep_room_check_together(const xep_room_view_t *views, uint32_t nranks, uint64_t bytes);

#endif
