/* SPDX-License-Identifier: BSD-3-Clause */

/** The ranks of one host, before they open a transport: which shared memory all of them can have. */
#ifndef XEP_CORE_NEIGHBOURS_H
#define XEP_CORE_NEIGHBOURS_H

#include "transport.h"

/** What a rank says of itself. Exchanged as bytes. */
typedef struct xep_neighbour {
    uint64_t ranks[XEP_SHARED_KINDS]; /* for how many each kind of shared memory has room */
    uint64_t users;                   /* its user namespace */
} xep_neighbour_t;
_Static_assert(sizeof(xep_neighbour_t) == XEP_SHARED_KINDS * 8 + 8, "exchanged as bytes");

void xep_neighbour_look(xep_transport_t *transport, xep_neighbour_t *mine);

/** Adds a rank of this host, in the order of ranks, this one included; neighbours: zeroed at first. */
void xep_neighbours_add(xep_neighbours_t *neighbours, uint32_t rank, int32_t pid, const xep_neighbour_t *said);

#endif
