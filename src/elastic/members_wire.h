/* SPDX-License-Identifier: BSD-3-Clause */

/** How members agree that do not all map one another: the protocol is at the head of members_wire.c. */
#ifndef XEP_ELASTIC_MEMBERS_WIRE_H
#define XEP_ELASTIC_MEMBERS_WIRE_H

#include "members_area.h"

extern const xep_members_ways_t xep_members_wire;

/** An operation ends with status: the others may have to be told. Nothing where all map one another. */
void xep_members_note_ruling(xep_buffer_t *buffer, const xep_op_t *op, xep_status_t status);

#endif
