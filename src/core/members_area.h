/* SPDX-License-Identifier: BSD-3-Clause */

/** Where the ranks of a buffer tell one another who is out, and what each keeps of it: members.h says how. */
#ifndef XEP_CORE_MEMBERS_AREA_H
#define XEP_CORE_MEMBERS_AREA_H

#include <stdatomic.h>
#include <stdint.h>

#include "ballot.h"

/** One for each rank, in its heap; its ballot follows. Zeros at first. */
typedef struct xep_members_area {
    _Atomic uint64_t bell;     /* counted up by others */
    _Atomic uint64_t left_out; /* by others: 0, or a rank that has gone on without this one, plus 1 */
    uint64_t reserved[6];
    _Atomic uint64_t beat;  /* by this rank */
    _Atomic uint64_t begun; /* by this rank */
    uint64_t reserved_too[6];
} xep_members_area_t;
_Static_assert(sizeof(xep_members_area_t) == 128, "a cache line for others, one for this rank");

/** Of a buffer, in private memory. */
struct xep_members {
    xep_members_area_t *own;
    xep_members_area_t **of; /* [R] */
    xep_ballot_t mine, theirs;
    int open;           /* somebody is suspected, and that is not agreed on */
    uint8_t *out;       /* [R] out of operations that begin: a mode's env has it */
    uint8_t *heard;     /* [R] has the same ballot, as looked at since the own one changed last */
    uint8_t *without;   /* [nrequests + slots][R] for the out of operations, and of handles */
    uint64_t *missing;  /* [nrequests] scratch */
    unsigned seen_outs; /* of the group */
    uint64_t seen_bell;
    uint64_t opened_ns;
    uint64_t *beats;     /* [R] when time was over */
    uint64_t doubted_ns; /* when that was; 0: nobody is doubted */
};

#endif
