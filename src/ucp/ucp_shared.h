/* SPDX-License-Identifier: BSD-3-Clause */

/** Which kinds of shared memory this process can have: UCX gives up if it opens one that is refused. */
#ifndef XEP_UCP_SHARED_H
#define XEP_UCP_SHARED_H

#include <stdbool.h>
#include <stdint.h>

#include <xep/xep.h>

#include "transport.h"

typedef struct xep_ucp_shared {
    const char *transports;        /* of UCX to leave out, as UCX_TLS has them; NULL: none */
    bool opened[XEP_SHARED_KINDS]; /* by UCX; none if the user says what it opens */
    bool expected;                 /* heaps are shared memory, or there is an error */
    bool meets;                    /* there are no heaps: ucp_transport_unranked.c */
} xep_ucp_shared_t;

/** The folder of POSIX shared memory. */
const char *xep_ucp_shared_folder(void);

/** The kinds that all ranks of this host can have. Logs what is left out, and why. */
xep_ucp_shared_t xep_ucp_shared_agree(const xep_neighbours_t *neighbours);

/** XEP_OK, or XEP_ERR_NO_MEMORY: no kind has room for a heap of so many bytes. Allocates nothing that stays. */
xep_status_t xep_ucp_shared_check(const xep_ucp_shared_t *shared, uint64_t bytes);

/** How many heaps of so many bytes each kind has room for. */
void xep_ucp_shared_room(const xep_ucp_shared_t *shared, uint64_t bytes, xep_shared_room_t rooms[XEP_SHARED_KINDS]);

/** Before a transport is opened: for how many ranks, with all that each needs to begin, each kind has room. */
void xep_ucp_shared_look(uint64_t ranks[XEP_SHARED_KINDS]);

/** XEP_ERR_NO_MEMORY, with what each kind says. */
xep_status_t xep_ucp_shared_refuse(const xep_ucp_shared_t *shared, uint64_t bytes);

/* ---- of processes that were killed while UCX made it ---- */

/**
 * Removes the files that UCX has made in folder for this user and that no process has open or mapped any more. Called
 * before this process checks how much room there is.
 */
void xep_ucp_leftovers_remove(const char *folder);

#endif
