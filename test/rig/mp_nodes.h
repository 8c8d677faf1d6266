/* SPDX-License-Identifier: BSD-3-Clause */

/** The begin and the end of tests of paths by nodes, in any mode. */
#ifndef TEST_MP_NODES_H
#define TEST_MP_NODES_H

#include <xep/xep.h>

/**
 * A group of all ranks, on nodes of two if there are five ranks, else of three (XEP_NODE_RANKS); every other rank sends
 * its rows of ll in many small parts. NULL: no two ranks map one another.
 */
xep_group_t *mp_nodes_group(void);

/** Checks that a buffer with masks is flat, whatever was asked for. */
void mp_nodes_check_masks(xep_group_t *group, const char *mode);

#endif
