/* SPDX-License-Identifier: BSD-3-Clause */

/** What ranks say of themselves first, and what all conclude from it. */
#ifndef XEP_CORE_GROUP_HELLO_H
#define XEP_CORE_GROUP_HELLO_H

#include "group.h"
#include "transport.h"

/**
 * Collective. Fills in group->peers and group->out. Afterwards this rank's word is shown until xep_host_hide().
 * XEP_ERR_MISMATCH, with a sentence: ranks disagree on a setting or run different versions.
 */
xep_status_t xep_group_hello(xep_group_t *group, xep_neighbours_t *neighbours, xep_whereabouts_t *where);

#endif
