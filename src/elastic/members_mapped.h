/* SPDX-License-Identifier: BSD-3-Clause */

/** How the members of a buffer agree whose ranks all map one another: members.h. */
#ifndef XEP_ELASTIC_MEMBERS_MAPPED_H
#define XEP_ELASTIC_MEMBERS_MAPPED_H

#include "members_area.h"

extern const xep_members_ways_t xep_members_mapped;

#endif
