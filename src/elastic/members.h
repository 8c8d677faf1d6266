/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Members: which ranks each operation of a buffer is with, where params.on_failure is XEP_ON_FAILURE_MASK. All of it
 * happens inside xep_buffer_enter() and leave.
 *
 * Every rank has an area in the buffer's heap, and every other rank loads and stores there:
 *   doorbell  anybody counts it up after publishing a ballot: for news of the others a rank looks at this word alone
 *   left_out  anybody writes it when it has decided that this rank is out
 *   beat      this rank counts its rounds, so that others can tell whether it is in the library
 *   begun     this rank's last operation
 *   ballot    this rank's (agreement.h)
 *
 * A rank that has decided that another one is out says so in the other's left_out, and then looks at its own: of two
 * that leave each other out at least one sees it and ends nothing. A rank looks at left_out once more after it has read
 * all that an operation brings: those who left it out may have written over that, but only after they had told it.
 *
 * In ballots an operation has two numbers, for the two words that a rank may have in it: it is with the rank if the
 * last one counts.
 *
 * A rank that comes back can still write the lines that are its own in everybody's heap. Nobody looks there any more.
 */
#ifndef XEP_ELASTIC_MEMBERS_H
#define XEP_ELASTIC_MEMBERS_H

#include <stdatomic.h>

#include "agreement.h"
#include "buffer.h"
#include "group_wait.h"
#include "request.h"

/** One for each rank, in its heap; where all ranks map one another its ballot follows. Zeros at first. */
typedef struct xep_members_area {
    _Atomic uint64_t doorbell; /* counted up by others; mapped ranks alone */
    _Atomic uint64_t left_out; /* by others: 0, or a rank that has gone on without this one, plus 1 */
    uint64_t reserved[6];
    _Atomic uint64_t beat;  /* by this rank; mapped ranks alone, as begun */
    _Atomic uint64_t begun; /* by this rank */
    uint64_t reserved_too[6];
} xep_members_area_t;
_Static_assert(sizeof(xep_members_area_t) == 128, "a cache line for others, one for this rank");

/** How the members tell one another: through memory that all map, or by control message. No NULL slots. */
typedef struct xep_members_ways {
    /** Of a rank's area, of a ballot in words. */
    uint64_t (*bytes)(uint32_t nranks, uint32_t most);
    uint64_t (*words)(uint32_t nranks, uint32_t most);

    /** Finds what the others write here, and allocates. The area is at areas.members. XEP_ERR_NO_MEMORY. */
    xep_status_t (*open)(xep_buffer_t *buffer);
    void (*close)(xep_members_t *members);

    /** In every round: whether some rank has said something new. Answers those that ask whether this one is there. */
    int (*look)(xep_buffer_t *buffer);

    xep_agreement_ops_t agreement; /* with the buffer as arg */

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

typedef struct xep_members_ctl xep_members_ctl_t; /* members_wire.c */

/** Of a buffer, in private memory. */
struct xep_members {
    const xep_members_ways_t *ways;
    xep_members_area_t *own;
    xep_agreement_t agreement; /* whose out are out of operations that begin: a mode's env has it */
    uint8_t *without;          /* [nrequests + slots][R] for the out of operations, and of handles */
    uint32_t *ranks;           /* [nrequests][2][R] for the with and heard of operations */
    uint64_t *missing;         /* [2 * nrequests] scratch: both words of each operation in flight */
    unsigned seen_outs;        /* of the group */
    uint64_t decided_ns;       /* when ranks were left out last; 0: never */
    uint64_t doubted_ns;       /* when time was over; 0: nobody is doubted */
    uint32_t input;            /* a slot whose combine input is waited for, plus 1; 0: none */
    xep_request_t *before;     /* a dispatch that waits for ranks before it begins; NULL: none */
    /* mapped: */
    xep_members_area_t **of; /* [R] */
    uint64_t seen_doorbell;
    uint64_t *beats;   /* [R] when time was over */
    uint64_t *scratch; /* a ballot that is read */
    /* over the wire: */
    xep_members_ctl_t *ctl;
};

/** Whether all ranks are in now, and the group lets a buffer of these params go on without some, if they ask for it. */
xep_status_t xep_members_check(const xep_group_t *group, const xep_buffer_params_t *params, const xep_plugin_t *plugin);

/** Bytes of a rank's area. */
uint64_t xep_members_bytes(const xep_shape_t *shape);

/** The heaps are connected. XEP_ERR_NO_MEMORY. */
xep_status_t xep_members_open(xep_buffer_t *buffer);
void xep_members_close(xep_buffer_t *buffer);

/** Takes the agreement further. Whether operations may be taken further, too. */
int xep_members_advance(xep_buffer_t *buffer);

/** buffer->before_mode: whom an operation is without. */
xep_status_t xep_members_choose(xep_request_t *req);

/** The mode leaves a rank that is out of this operation, too. */
void xep_members_leave_out(xep_request_t *req, uint32_t rank);

/** It has succeeded: out has a 1 for a rank that it is without, which is all that users see. */
void xep_members_show(const xep_request_t *req);

/** Once the mode has begun one that is unsettled, and before it is taken further: fetches the words of who is out. */
xep_status_t xep_members_settle(xep_request_t *req);

/** This rank has called so many operations. */
void xep_members_tell_begun(const xep_buffer_t *buffer);

/* ---- members_mapped.c ---- */

/* How the members of a buffer agree whose ranks all map one another: members.h. */

extern const xep_members_ways_t xep_members_mapped;

/* ---- members_wire.c ---- */

/* How members agree that do not all map one another: the protocol is at the head of members_wire.c. */

extern const xep_members_ways_t xep_members_wire;

/* Nothing where all map one another, whatever ways the buffer has: */

/** Whether nothing may be decided, as too few ranks are left that can be reached. */
int xep_members_has_lost_quorum(const xep_buffer_t *buffer);

/** While the ranks agree: adds to the own ballot who is known to be gone, where it matters. Whether that is new. */
int xep_members_learn_gone(xep_buffer_t *buffer);

/** An operation ends with status: the others may have to be told. */
void xep_members_note_decision(xep_buffer_t *buffer, const xep_op_t *op, xep_status_t status);

/* ---- members_device.c ---- */

/* A buffer in device memory has no members: its kernels leave ranks out, and tell the host. */

/** Before the mode is opened. */
xep_status_t xep_members_open_device(xep_buffer_t *buffer);

/** Whether kernels have found that others have left this rank out. */
static inline int xep_members_is_left_on_device(const xep_buffer_t *buffer)
{
    return buffer->device != NULL && buffer->device->device.left != NULL &&
           __atomic_load_n(&buffer->device->device.left[buffer->shape.rank], __ATOMIC_ACQUIRE) != 0;
}

/** Tells the kernels whom the group has left out, and the group whom they have. Nothing for other buffers. */
void xep_members_look_at_device(xep_buffer_t *buffer);

/* ---- members_wait.c ---- */

/* Waits of a buffer in which ranks that die or stay away are left out. */

/** xep_group_wait(), and where the buffer has members, as long as there is somebody to leave out. */
xep_status_t xep_members_wait(xep_buffer_t *buffer, xep_wait_t *wait);

/** The same, for the rows of the combine before in this slot to be read, where ranks may be left out. */
xep_status_t xep_members_wait_input(xep_buffer_t *buffer, uint32_t slot, xep_wait_t *wait);

/**
 * What such a wait does when a rank has died, or its deadline has passed. XEP_OK: there is hope, until *deadline_p; an
 * error: there is nobody to leave out for it.
 */
xep_status_t xep_members_bury(xep_buffer_t *buffer);
xep_status_t xep_members_doubt(xep_buffer_t *buffer, uint64_t *deadline_p);

#endif
