/* SPDX-License-Identifier: BSD-3-Clause */

/** Allgathers of a group: over its bootstrap until its own connections serve. */
#ifndef XEP_GROUP_EXCHANGE_H
#define XEP_GROUP_EXCHANGE_H

#include "group.h"

/** From now on they belong to this call, which begins; NULL: each is called for itself. */
static inline void xep_group_gathers_for(xep_group_t *group, const char *call)
{
    group->gathers_for = call;
    group->gathers_of = 0;
}

/**
 * Allgather: over the control heap of a connected group, before that by the bootstrap. The former makes progress for
 * the transport and the operations of all buffers: a rank that waits here must not stop ranks that wait for its bytes.
 */
xep_status_t xep_group_exchange(xep_group_t *group, const void *send, void *recv, size_t bytes);

/**
 * As exchange, of structs that begin with how each rank stands: an int32_t, its status. XEP_OK: all stand well. A rank
 * with an error of its own keeps that and its reason, this thread's last; to the others it is a rank that cannot do
 * what.
 */
xep_status_t xep_group_agree(xep_group_t *group, const char *what, const void *mine, void *all, size_t bytes);

/** As exchange, for blobs whose lengths differ: blob[r] points into storage. */
typedef struct xep_blobs {
    const void **blob; /* [nranks] */
    size_t *bytes;     /* [nranks] */
    void *storage;
} xep_blobs_t;
xep_status_t xep_group_exchange_blobs(xep_group_t *group, const void *send, size_t bytes, xep_blobs_t *blobs_p);
void xep_blobs_free(xep_blobs_t *blobs);

/** Gives the peers the key of a heap that every rank has opened, and the heap theirs. Collective. */
xep_status_t xep_group_connect_heap(xep_group_t *group, xep_heap_wire_t *heap);

#endif
