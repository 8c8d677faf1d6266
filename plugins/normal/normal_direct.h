/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Flat, where no rank is mapped and rows stay on devices (xep/direct.h): the protocol of normal.h, with rows that are
 * gathered by a kernel and put in one piece for each rank, and sums made by a kernel. All else is as it is on hosts.
 */
#ifndef XEP_NORMAL_DIRECT_H
#define XEP_NORMAL_DIRECT_H

#include "normal.h"

/** Step 4 and 5 of a dispatch: rows of all ranks; then metadata and done, which the second one lists. */
xep_status_t normal_move_direct(void *mode, xep_op_t *op);
int normal_direct_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                           xep_transfer_t *transfer);

/** Steps of a combine: rows, all in one go; weights and the offer; sums. */
xep_status_t normal_return_direct(void *mode, xep_op_t *op);
int normal_direct_offer_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                                 xep_transfer_t *transfer);
xep_status_t normal_sum_direct(void *mode, xep_op_t *op);

#endif
