/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The ranks that are out of a group: this rank neither waits for them any more nor sends to them. A rank that is out
 * stays out. For each buffer the ranks agree from which operation on: members.h.
 */
#ifndef XEP_GROUP_OUT_H
#define XEP_GROUP_OUT_H

#include "group.h"

#include <xep/elastic.h>

/** Puts the rank out; returns whether it was in before. Any thread. */
int xep_group_put_out(xep_group_t *group, uint32_t rank, xep_out_reason_t reason);

/** Puts out the ranks that are known to have died; returns how many of them were in before. */
uint32_t xep_group_put_out_dead(xep_group_t *group);

/** "it died" and so on. */
const char *xep_out_reason_text(xep_out_reason_t reason);

/** xep_group_mask_set(), xep_group_mask_query(), arguments checked. */
xep_status_t xep_group_set_mask(xep_group_t *group, uint32_t rank);
void xep_group_list_masks(const xep_group_t *group, xep_mask_t *masks, size_t stride, uint32_t capacity,
                          uint32_t *count_p);

#endif
