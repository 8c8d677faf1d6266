/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows that are read in place (kit_in_place.h): with XEP_DISPATCH_IN_PLACE step 4 (normal.h) moves no rows between
 * mapped ranks. A rank's record says where it has its rows.
 */
#ifndef XEP_NORMAL_IN_PLACE_H
#define XEP_NORMAL_IN_PLACE_H

#include "normal_shared.h"

/** Steps: the records say where rows are in place; no rows are stored; they are in place; row of the slot is filled. */
xep_status_t normal_check_places(void *mode, xep_op_t *op);
xep_status_t normal_leave_rows(void *mode, xep_op_t *op);
xep_status_t normal_note_rows(void *mode, xep_op_t *op);
xep_status_t normal_point_rows(void *mode, xep_op_t *op);

#endif
