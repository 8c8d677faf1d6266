/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows that are read in place (kit_in_place.h): with XEP_DISPATCH_IN_PLACE a source has the items of its parcel in an
 * area of its own, in place of the ring, and its notice says where. They are the user's rows where it wrote them there,
 * with their scales in the gap behind each, and send memory's stride between them; or what this rank has copied or
 * cast, once. In step 5 mapped receivers copy scales and weights alone, and point to the rows.
 */
#ifndef XEP_LL_IN_PLACE_H
#define XEP_LL_IN_PLACE_H

#include "ll.h"

extern const xep_place_ops_t ll_in_place;

/** Decides where the rows of a dispatch will be. Nothing is changed yet, and an error refuses the dispatch. */
xep_status_t ll_in_place_choose(ll_t *mode, xep_op_t *op);

/** The dispatch begins: its notice and its parcel say where its rows are. */
void ll_in_place_take(ll_t *mode, const xep_op_t *op);

/** Whether there are as many rows as the notice has tokens where it says that they are; it has no more than a rank. */
int ll_in_place_is_sane(const ll_t *mode, const ll_notice_t *notice);

/** Completes the parcel of source, which is made: where its items are if they are in place, and whether they stay. */
void ll_in_place_find(ll_t *mode, const ll_notice_t *notice, uint32_t source);

/** Fills row of the slot, by the list of picks: all rows are here, or stay. */
void ll_point_rows(ll_t *mode, const xep_op_t *op);

#endif
