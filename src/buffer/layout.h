/* SPDX-License-Identifier: BSD-3-Clause */

/** Which rank owns an expert, and the layout that xep_layout() returns. */
#ifndef XEP_BUFFER_LAYOUT_H
#define XEP_BUFFER_LAYOUT_H

#include <xep/inspect.h>
#include <xep/xep.h>

/** Selection k of a token, int32 or int64, rows stride bytes apart. */
static inline int64_t xep_layout_expert(const void *topk_idx, size_t stride, xep_dtype_t dtype, uint64_t token,
                                        uint32_t k)
{
    const void *row = (const char *)topk_idx + token * stride;
    return dtype == XEP_INT32 ? ((const int32_t *)row)[k] : ((const int64_t *)row)[k];
}

/** XEP_ERR_INVALID: topk_idx has an index that is neither -1 nor an expert. */
xep_status_t xep_layout_refuse(uint64_t token, uint32_t k, int64_t expert, uint32_t experts);

/** Selections of each expert, [experts]; NULL: only checks them. XEP_ERR_INVALID as above. Not of a cached dispatch. */
xep_status_t xep_layout_count_selections(const xep_dispatch_args_t *args, uint32_t experts, uint32_t *counts);

/** Owner of an expert, by blocks; expert < experts, nranks > 0. */
uint32_t xep_expert_owner(uint32_t experts, uint32_t nranks, uint32_t expert);

/** xep_layout() with checked arguments and defaults filled in. */
xep_status_t xep_layout_compute(const xep_layout_args_t *args, const xep_layout_t *out);

#endif
