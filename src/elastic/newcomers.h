/* SPDX-License-Identifier: BSD-3-Clause */

/** Processes that want to be ranks of a group: rank 0 lets them in and speaks for the others. */
#ifndef XEP_ELASTIC_NEWCOMERS_H
#define XEP_ELASTIC_NEWCOMERS_H

#include "frames.h"
#include "group.h"
#include "meeting.h"

typedef struct xep_newcomers xep_newcomers_t;

/** Publishes the address of rank 0 by the meeting, whose name and functions stay the caller's until close. */
xep_status_t xep_newcomers_open(const xep_group_t *group, const xep_grow_args_t *args, const xep_meeting_t *meeting,
                                xep_transport_open_fn open_transport, xep_newcomers_t **newcomers_p);

/** Finds out who has come and who has left again; never blocks. Returns how many are here, at most those wanted. */
uint32_t xep_newcomers_look(xep_newcomers_t *newcomers);

/** Nobody else is let in, and those who are here are told their ranks. */
xep_status_t xep_newcomers_welcome(xep_newcomers_t *newcomers);

/** recv[count * bytes]: what each of them gives to an allgather. The reason names who did not. */
xep_status_t xep_newcomers_take(xep_newcomers_t *newcomers, uint32_t number, void *recv, size_t bytes,
                                const xep_patience_t *patience);

/** Sends all of them the bytes of all ranks. */
xep_status_t xep_newcomers_give(xep_newcomers_t *newcomers, uint32_t number, const void *all, size_t bytes);

/** Waits until each has said how far it came. XEP_OK: all have made the group. */
xep_status_t xep_newcomers_settle(xep_newcomers_t *newcomers, const xep_patience_t *patience);

/** Whether one has given up, or is gone, while it is not asked for anything. */
int xep_newcomers_have_failed(const xep_newcomers_t *newcomers);

/** What becomes of the group; best effort. */
void xep_newcomers_tell(xep_newcomers_t *newcomers, xep_status_t status, const char *text);

/** NULL is a no-op. */
void xep_newcomers_close(xep_newcomers_t *newcomers);

#endif
