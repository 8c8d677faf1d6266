/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The ranks that are out of a group: this rank neither waits for them any more nor sends to them. Once out, a rank
 * stays out. From which operation on, the ranks agree for each buffer: members.h.
 */
#ifndef XEP_CORE_GROUP_OUT_H
#define XEP_CORE_GROUP_OUT_H

#include "group.h"

/** Whether it was not before. Any thread. */
int xep_group_put_out(xep_group_t *group, uint32_t rank, xep_out_reason_t reason);

/** Puts the ranks out that are known to have died; how many of them were not before. */
uint32_t xep_group_put_out_dead(xep_group_t *group);

/** "it died" and so on. */
const char *xep_out_reason_text(xep_out_reason_t reason);

/** xep_group_mask_set(), xep_group_mask_query(), arguments checked. */
xep_status_t xep_group_set_mask(xep_group_t *group, uint32_t rank);
void xep_group_list_masks(const xep_group_t *group, xep_mask_t *masks, uint32_t capacity, uint32_t *count_p);

#endif
