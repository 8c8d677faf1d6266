/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows that are read in place (kit_in_place.h): with XEP_DISPATCH_IN_PLACE a source has the items of its packet in an
 * area of its own, in place of the ring, and its notice says where. They are the user's rows where it wrote them there,
 * with their scales in the gap behind each, and send memory's stride between them; or what this rank has copied or
 * cast, once. In step 5 mapped receivers copy scales and weights alone, and point to the rows.
 */
#ifndef XEP_LL_IN_PLACE_H
#define XEP_LL_IN_PLACE_H

#include "ll.h"

/** Decides where the rows of a dispatch will be. Nothing is changed yet, and an error refuses the dispatch. */
xep_status_t ll_in_place_choose(ll_t *mode, xep_op_t *op);

/**
 * Steps: the dispatch begins, and its notice and its packet say where rows are; finds the rows of others, behind their
 * notices; at the end shows where rows are.
 */
extern const xep_step_t ll_in_place_steps[];

#endif
