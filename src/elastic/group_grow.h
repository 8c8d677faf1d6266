/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A group of another one's ranks, its members, and of processes that are new: the members' side; the joiners' is
 * in group_grow_join.c.
 *
 *  1. wait: rank 0 listens, makes known where (rendezvous.h), and tells the other members ten times a second whether
 *     all joiners are here, over the old group's allgather. So all come to the same deadline.
 *  2. build: all make a group (group_create.c). Its bootstrap is, among members, the old group's allgather; rank 0
 *     speaks for the joiners, which it has connections to.
 *  3. settle: joiners tell rank 0, and members all others, whether they have made it. If all have, all return it;
 *     else nobody does, and the old group goes on.
 *
 * A member may have given up a call in step 1 and call it again, and then hear what rank 0 has said to that first call:
 * that all are here, say, when rank 0 has given up as well and waits anew. So all words of step 1 count as the first
 * allgather of their call, whenever they are said, and where other members find rank 0 there, they go back to step 1,
 * too. Nothing is lost: rank 0 alone knows joiners.
 *
 * A joiner that dies is an error for all, at whichever step. A member that dies in the middle is one, too, and then
 * the old group needs a smaller one anyway.
 *
 * A member that dies while it sends its last word of step 3 may have reached some and not others. Those that have it
 * return the new group, the others an error: but they have made the group, too, and end it in doubt (group_abort.h)
 * before they return. So does a joiner that has made it and hears no verdict, as rank 0 died behind step 3, or that
 * there is none, as rank 0 may die before it has told the members. Whoever has got the group hears it at once, by every
 * call on it, and nobody can shrink it: all members have the old group, and go on with that. If those in doubt die,
 * too, before they have told any rank, no rank is left that lacks the group. test/model/model_grow.pml tries all
 * orders.
 */
#ifndef XEP_ELASTIC_GROUP_GROW_H
#define XEP_ELASTIC_GROUP_GROW_H

#include "frames.h"
#include "group.h"
#include "rendezvous.h"

/** What a member says; all members say something at the same time, and hear what all have said. */
typedef enum xep_grow_step {
    XEP_GROW_WAIT = 1,     /* until the joiners are here; rank 0 says how many */
    XEP_GROW_EXCHANGE = 2, /* there is something to exchange; the number of bytes */
    XEP_GROW_SETTLE = 3    /* it has made the group, or not */
} xep_grow_step_t;

/**
 * xep_group_grow(). rendezvous: of rank 0. status: what this rank's arguments have come to, which all members hear of.
 */
xep_status_t xep_group_make_larger(xep_group_t *group, const xep_grow_args_t *args, const xep_rendezvous_t *rendezvous,
                                   xep_status_t status, xep_transport_open_fn open_transport, xep_group_t **group_p);

/* ---- group_grow_join.c ---- */

/* A process that is new in a group that grows: the joiner's side of group_grow.h. */

/** Of one call of xep_group_join(). */
typedef struct xep_join {
    const xep_config_t *config;
    const xep_join_params_t *params;
    const xep_rendezvous_t *rendezvous;
    xep_transport_open_fn open_transport;
    int32_t timeout_ms;   /* of each wait */
    xep_frames_t *frames; /* with rank 0; NULL: none is known */
    uint32_t rank, nranks;
} xep_join_t;

/** How long the joiner waits, and what ends it: the caller's interrupted. */
xep_patience_t xep_join_patience(xep_join_t *join, uint64_t deadline_ns);

/**
 * The next frame of rank 0, which the caller frees, also after an error; NULL: nothing came. An error also if it is the
 * verdict that there will be no group.
 */
xep_status_t xep_join_hear(xep_join_t *join, xep_frame_kind_t kind, const xep_patience_t *patience,
                           xep_message_t **message_p);

/** xep_group_join(), arguments checked; timeout_ms is never 0. */
xep_status_t xep_group_come(const xep_config_t *config, const xep_join_params_t *params,
                            const xep_rendezvous_t *rendezvous, int32_t timeout_ms,
                            xep_transport_open_fn open_transport, xep_group_t **group_p);

#endif
