/* SPDX-License-Identifier: BSD-3-Clause */

/** What tests of paths by nodes begin and end with, in any mode. */
#ifndef TEST_MP_NODES_H
#define TEST_MP_NODES_H

#include <xep/xep.h>

/** All ranks, on nodes of two where they are five, else of three, drawn by force. NULL: no two map one another. */
xep_group_t *mp_nodes_group(void);

/** Where ranks may be left out it is flat, whatever was asked for. */
void mp_nodes_check_masks(xep_group_t *group, const char *mode);

#endif
