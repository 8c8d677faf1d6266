/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Combines whose rows take fewer bits to ranks that are not mapped (args.quant), or of which each rank sums its own
 * before they are sent (XEP_COMBINE_SUM_AT_OWNER). Transfers and step 5 differ from those of a plain combine (ll.h).
 *
 *  2. owner: copies rows for mapped readers, as ever. For the others it goes through the rows it received from each, by
 *     token and selection, and makes in "coded" of its slot what travels, some while the wire has others: each row
 *     encoded; or the rows of a token summed, and the sum encoded if asked for. That is put at [token][k] of the
 *     reader's "returned", a sum at the first of its selections.
 *  5. reader: decodes what came, in memory of the thread that sums. Where owners sum it sums the rows of each mapped
 *     owner by itself, with the same bits, so that these do not depend on who is mapped.
 *
 * Why "coded" is not written while it is read: puts of a combine are flushed before it ends, and a slot has one
 * operation at a time.
 */
#ifndef XEP_LL_CODED_H
#define XEP_LL_CODED_H

#include "ll.h"

/** Step 5; and, where some ranks are not mapped, the transfers. */
extern const xep_step_t ll_coded_steps[], ll_coded_wired_steps[];

/** Of a combine with flags or quant: refuses what it must, and chooses these steps if they are needed. */
xep_status_t ll_choose_coded(ll_t *mode, xep_op_t *op);

#endif
