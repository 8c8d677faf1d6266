/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A group of the ranks that are left of another one.
 *
 *  1. agree: the ranks agree on who is gone, as in agreement.h, by control message over the connections of the old
 *     group. A rank that dies is suspected, and one that has said nothing when its time is over.
 *  2. build: those that are left make a group (group_create.c), with control messages as its bootstrap. This is an
 *     attempt; its number is that of the suspects, plus 1. Attempts are the operations that ranks agree on.
 *  3. ready: each says that it has made the group, which is its word for this attempt. A rank that has heard this of
 *     all of them says that it is done, and returns the group.
 *
 * When somebody dies, or suspects another one, the ranks agree once more. If all that are left have made the group of
 * the last attempt, and it is with all that are gone since, some rank may have returned already: so all return it, a
 * rank of which is dead. If not, nobody has returned, and they build again, with a higher number.
 *
 * Why all come to the same: agreement.h. A rank says in one control message whom it suspects and which group it has
 * made; once it suspects a rank it becomes ready for no group with that one. So when all have said the same, they have
 * also said whether they were ready, and none becomes so any more. Two ranks that both begin attempt n leave the same
 * ranks out: each had said what the other one decided on, ballots only grow, and both have n - 1 suspects. A rank that
 * has returned says so, and is done for all. test/model/model_shrink.pml tries all of it.
 *
 * What cannot be helped: a rank that lives but is cut off, or stopped for longer than the deadline, is out. If it was
 * ready, and had heard so of all, it may return a group whose other ranks have gone on in another one. Nobody in it
 * answers: its first call fails. One that sleeps through all of it and shares no memory with the others, which have
 * left when it wakes, finds itself alone; args.least is for that. Two groups that both work and share a rank there are
 * not.
 */
#ifndef XEP_ELASTIC_GROUP_SHRINK_H
#define XEP_ELASTIC_GROUP_SHRINK_H

#include "agreement.h"
#include "group_ctl.h"

enum { XEP_SHRINK_TEXT = 256 };

/** How far a rank is; others read it, so values never change. */
typedef enum xep_shrink_phase {
    XEP_SHRINK_GOES_ON = 1, /* it agrees, or makes a group, or has made one */
    XEP_SHRINK_DONE = 3,    /* it has seen that all have, and gone */
    XEP_SHRINK_FAILED = 4   /* it has given up: status, text */
} xep_shrink_phase_t;

/** Written by its rank, which sends all of it at each change; read by all, checked. The last one sent counts. */
typedef struct xep_state {
    uint64_t sequence; /* xep_ctl_keep_last() */
    uint64_t built;    /* the last attempt whose group it has made; 0: none, or it has begun another one */
    uint32_t phase;    /* xep_shrink_phase_t */
    int32_t status;
    char text[XEP_SHRINK_TEXT];
    uint64_t words[]; /* its ballot */
} xep_state_t;
_Static_assert(sizeof(xep_state_t) == 24 + XEP_SHRINK_TEXT, "wire format");

/** What this rank knows of another one. */
typedef struct xep_shrink_rank {
    xep_msg_t *said; /* its last state, while it was not suspected; NULL: none */
    uint8_t gone;    /* it was gone at the last look */
    uint8_t late;    /* the bootstrap waits for it */
} xep_shrink_rank_t;

typedef struct xep_shrink {
    xep_group_t *group;
    uint32_t nranks;
    xep_agreement_t agreement;
    uint64_t tried, built; /* the last attempt; the last one whose group this rank has made. 0: none */
    int builds;            /* it tries, or waits for the others to be ready: nothing is decided meanwhile */
    xep_state_t *mine;
    xep_shrink_rank_t *of; /* [nranks] */
    int left_out;          /* the others go on without this rank */
    int changed;           /* what this rank says, since it was sent */
} xep_shrink_t;

/** xep_group_shrink(), arguments checked. */
xep_status_t xep_group_make_smaller(xep_group_t *group, const xep_shrink_args_t *args,
                                    xep_transport_open_fn open_transport, xep_group_t **group_p);

/* ---- group_shrink_ctl.c ---- */

/* What ranks say to one another. */

xep_status_t xep_shrink_open(xep_shrink_t *shrink, xep_group_t *group);
void xep_shrink_close(xep_shrink_t *shrink);

static inline int xep_shrink_suspects(const xep_shrink_t *shrink, uint32_t rank)
{
    return xep_ballot_suspects(&shrink->agreement.mine, rank);
}

/** Adds a suspect. */
void xep_shrink_suspect(xep_shrink_t *shrink, uint32_t rank, xep_out_reason_t reason);

/** Whether rank has made the group of the last attempt, as far as this rank has heard. */
int xep_shrink_is_ready(const xep_shrink_t *shrink, uint32_t rank);

/** Sends what this rank says to all others, if it has changed. */
void xep_shrink_say(xep_shrink_t *shrink);

/**
 * Takes what has come, and agrees further. XEP_INPROGRESS: nothing ends it.
 *   XEP_OK        a rank is done with the group that this rank has made too
 *   XEP_ERR_PEER  the others go on without this rank
 *   other         a rank has given up; the reason is its own
 */
xep_status_t xep_shrink_hear(xep_shrink_t *shrink);

/* ---- group_shrink_boot.c ---- */

/* A bootstrap over the control messages of another group, for a group of some of its ranks. */

/**
 * The ranks that shrink does not suspect now, in order. shrink is used until the group is made; then comes
 * xep_boot_follow(). patience: looked at while it waits; an error ends the wait.
 */
xep_status_t xep_boot_ctl_open(xep_shrink_t *shrink, int32_t timeout_ms, xep_status_t (*patience)(void *arg), void *arg,
                               xep_boot_t **boot_p);

/** The number in the group that carries the control messages of a rank of the new one. */
uint32_t xep_boot_ctl_old(const xep_boot_t *boot, uint32_t rank);

#endif
