/* SPDX-License-Identifier: BSD-3-Clause */

/** Processes that want to be ranks of a group: rank 0 lets them in and speaks for the others. */
#ifndef XEP_ELASTIC_JOINERS_H
#define XEP_ELASTIC_JOINERS_H

#include "frames.h"
#include "group.h"
#include "rendezvous.h"

typedef struct xep_joiners xep_joiners_t;

/** Publishes the address of rank 0 by the rendezvous, whose name and functions stay the caller's until close. */
xep_status_t xep_joiners_open(const xep_group_t *group, const xep_grow_args_t *args, const xep_rendezvous_t *rendezvous,
                              xep_transport_open_fn open_transport, xep_joiners_t **joiners_p);

/** Finds out who has come and who has left again; never blocks. Returns how many are here, at most those wanted. */
uint32_t xep_joiners_poll(xep_joiners_t *joiners);

/** Nobody else is let in, and those who are here are told their ranks. */
xep_status_t xep_joiners_welcome(xep_joiners_t *joiners);

/** recv[count * bytes]: what each of them gives to an allgather. The reason names who did not. */
xep_status_t xep_joiners_take(xep_joiners_t *joiners, uint32_t number, void *recv, size_t bytes,
                              const xep_patience_t *patience);

/** Sends all of them the bytes of all ranks. */
xep_status_t xep_joiners_give(xep_joiners_t *joiners, uint32_t number, const void *all, size_t bytes);

/** Waits until each has said how far it came. XEP_OK: all have made the group. */
xep_status_t xep_joiners_settle(xep_joiners_t *joiners, const xep_patience_t *patience);

/** Whether one has given up, or is gone, while it is not asked for anything. */
int xep_joiners_have_failed(const xep_joiners_t *joiners);

/** What becomes of the group; best effort. */
void xep_joiners_tell(xep_joiners_t *joiners, xep_status_t status, const char *text);

/** NULL is a no-op. */
void xep_joiners_close(xep_joiners_t *joiners);

#endif
