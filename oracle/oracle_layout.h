/* SPDX-License-Identifier: BSD-3-Clause */

/** What xep_layout() must say of a rank's tokens. */
#ifndef ORACLE_LAYOUT_H
#define ORACLE_LAYOUT_H

#include "oracle_data.h"
#include "oracle_differ.h"

/** Arrays that are NULL are left out. 0, or 1 and the first difference. */
int oracle_check_layout(const oracle_shape_t *shape, uint32_t rank, uint32_t ranks_per_node, const xep_layout_t *layout,
                        oracle_difference_t *difference_p);

#endif
