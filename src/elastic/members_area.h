/* SPDX-License-Identifier: BSD-3-Clause */

/** Where the ranks of a buffer tell one another who is out, and what each keeps of it: members.h says how. */
#ifndef XEP_ELASTIC_MEMBERS_AREA_H
#define XEP_ELASTIC_MEMBERS_AREA_H

#include <stdatomic.h>
#include <stdint.h>

#include <xep/plugin.h>

#include "ballot.h"

typedef struct xep_members xep_members_t; /* as in buffer.h */

/** One for each rank, in its heap; its ballot follows, or where the others post theirs. Zeros at first. */
typedef struct xep_members_area {
    _Atomic uint64_t bell;     /* counted up by others; mapped ranks alone */
    _Atomic uint64_t left_out; /* by others: 0, or a rank that has gone on without this one, plus 1 */
    uint64_t reserved[6];
    _Atomic uint64_t beat;  /* by this rank; mapped ranks alone, as begun */
    _Atomic uint64_t begun; /* by this rank */
    uint64_t reserved_too[6];
} xep_members_area_t;
_Static_assert(sizeof(xep_members_area_t) == 128, "a cache line for others, one for this rank");

/** How the members tell one another: through memory that all map, or in messages. No NULL slots. */
typedef struct xep_members_ways {
    /** Of a rank's area. */
    uint64_t (*bytes)(uint32_t nranks, uint32_t most);

    /** Finds what the others write here, and allocates. The area is at members->offset. XEP_ERR_NO_MEMORY. */
    xep_status_t (*open)(xep_buffer_t *buffer);
    void (*close)(xep_members_t *members);

    /** In every round: whether some rank has said something new. Answers those that ask whether this one is there. */
    int (*look)(xep_buffer_t *buffer);

    /** Copies the ballot of rank to members->theirs; 0: there is none, it is being written, or it makes no sense. */
    int (*read)(xep_buffer_t *buffer, uint32_t rank);

    /** While the ranks agree: adds to the own ballot who is known to be gone, where it matters. Whether that is new. */
    int (*learn)(xep_buffer_t *buffer);

    /** Makes the own ballot known to all that it does not suspect. */
    void (*publish)(xep_buffer_t *buffer);

    /** Whether what all have said alike may be decided: of two that leave each other out at most one goes on. */
    int (*may_decide)(const xep_buffer_t *buffer);

    /** Whether it may not, as too few ranks are left that can be reached. */
    int (*is_cut_off)(const xep_buffer_t *buffer);

    /** Tells a rank that it is out; from then on nothing that it sends changes anything here. */
    void (*tell_out)(xep_buffer_t *buffer, uint32_t rank);

    /** Of an operation in flight: how far it counts as being with a suspect, as far as this rank can tell. */
    xep_holds_t (*holds)(xep_request_t *req, uint32_t rank);

    /** The operation is with a rank that is out, says the agreement: finds its word, or does without. */
    xep_status_t (*settle)(xep_request_t *req, uint32_t rank, uint8_t *without_p);

    /** Begins to doubt; then whether rank has made a round in the library since, and has begun an operation. */
    void (*ask)(xep_buffer_t *buffer);
    int (*makes_rounds)(const xep_buffer_t *buffer, uint32_t rank);
    int (*has_begun)(const xep_buffer_t *buffer, uint32_t rank, uint64_t epoch);
    uint32_t least_grace_ms; /* between the two */
} xep_members_ways_t;

/** All of its functions, in a file where they are called as here. */
#define XEP_MEMBERS_WAYS                                                                                          \
    .bytes = bytes, .open = open, .close = close, .look = look, .read = read, .learn = learn, .publish = publish, \
    .may_decide = may_decide, .is_cut_off = is_cut_off, .tell_out = tell_out, .holds = holds, .settle = settle,   \
    .ask = ask, .makes_rounds = makes_rounds, .has_begun = has_begun

typedef struct xep_members_posts xep_members_posts_t; /* members_wire.c */

/** Of a buffer, in private memory. */
struct xep_members {
    const xep_members_ways_t *ways;
    uint64_t offset; /* of the area, in every heap */
    xep_members_area_t *own;
    xep_ballot_t mine, theirs;
    int open;            /* somebody is suspected, and that is not agreed on */
    uint8_t *out;        /* [R] out of operations that begin: a mode's env has it */
    uint64_t *asked_ns;  /* [R] since when it has said nothing new, and not the same as this rank; 0: it has */
    uint8_t *without;    /* [nrequests + slots][R] for the out of operations, and of handles */
    uint32_t *ranks;     /* [nrequests][2][R] for the with and heard of operations */
    uint64_t *missing;   /* [2 * nrequests] scratch: both words of each operation in flight */
    unsigned seen_outs;  /* of the group */
    uint64_t said_ns;    /* when the own ballot changed last */
    uint64_t decided_ns; /* when ranks were left out last; 0: never */
    uint64_t doubted_ns; /* when time was over; 0: nobody is doubted */
    uint32_t input;      /* a slot whose combine input is waited for, plus 1; 0: none */
    /* mapped: */
    xep_members_area_t **of; /* [R] */
    uint64_t seen_bell;
    uint64_t *beats; /* [R] when time was over */
    /* over the wire: */
    xep_members_posts_t *posts;
};

#endif
