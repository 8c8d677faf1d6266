/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Members: which ranks each operation of a buffer is with, where params.on_failure is XEP_ON_FAILURE_MASK. All of it
 * happens inside xep_buffer_enter() and leave.
 *
 * Every rank has an area in the buffer's heap, and every other rank loads and stores there:
 *   bell      anybody counts it up after publishing a ballot: for news of the others a rank looks at this word alone
 *   left_out  anybody writes it when it has decided that this rank is out
 *   beat      this rank counts its rounds, so that others can tell whether it is in the library
 *   begun     this rank's last operation
 *   ballot    this rank's (ballot.h)
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

#include "buffer.h"
#include "group_wait.h"
#include "members_area.h"
#include "request.h"

/** Bytes of a rank's area. */
uint64_t xep_members_bytes(const xep_shape_t *shape);

/** The heaps are connected, the areas at offset. XEP_ERR_NO_MEMORY. */
xep_status_t xep_members_open(xep_buffer_t *buffer, uint64_t offset);
void xep_members_close(xep_buffer_t *buffer);

/** Takes the agreement further. Whether operations may be taken further, too. */
int xep_members_advance(xep_buffer_t *buffer);

/** Before the mode begins an operation: whom it is without. */
void xep_members_choose(xep_request_t *req);

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

/** An operation ends with status: the others may have to be told. Nothing where all map one another. */
void xep_members_note_ruling(xep_buffer_t *buffer, const xep_op_t *op, xep_status_t status);

/* ---- members_wait.c ---- */

/* Waits of a buffer in which ranks that die or stay away are left out. */

/** xep_group_wait(), and where the buffer has members, as long as there is somebody to leave out. */
xep_status_t xep_members_wait(xep_buffer_t *buffer, xep_wait_t *wait);

/**
 * What such a wait does when a rank has died, or its deadline has passed. XEP_OK: there is hope, until *deadline_p; an
 * error: there is nobody to leave out for it.
 */
xep_status_t xep_members_bury(xep_buffer_t *buffer);
xep_status_t xep_members_doubt(xep_buffer_t *buffer, uint64_t *deadline_p);

#endif
