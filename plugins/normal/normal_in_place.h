/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows that are read in place (kit_in_place.h): with XEP_DISPATCH_IN_PLACE step 4 (normal.h) moves no rows between
 * mapped ranks. A rank's record says where it has its rows.
 */
#ifndef XEP_NORMAL_IN_PLACE_H
#define XEP_NORMAL_IN_PLACE_H

#include "normal_shared.h"

extern const xep_place_ops_t normal_in_place;

/** Decides where the rows of a dispatch will be. Nothing is changed yet, and an error refuses the dispatch. */
xep_status_t normal_in_place_choose(normal_t *mode, xep_op_t *op);

/** What this rank's rows are, where that is checked: they are all in place now. */
void normal_note_rows(normal_t *mode, const xep_op_t *op);

/** Fills row of the slot: all rows are here. XEP_ERR_PROTOCOL: a token that its source does not have. */
xep_status_t normal_point_rows(normal_t *mode, xep_op_t *op);

#endif
