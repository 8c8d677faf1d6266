/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Owner maps: which rank has which expert, where the caller says so (xep_buffer_params_t.owners). Modes number experts
 * by rank and know no map; a buffer that has one puts those numbers in place of the caller's when a dispatch begins.
 */
#ifndef XEP_BUFFER_OWNERS_H
#define XEP_BUFFER_OWNERS_H

#include "buffer.h"
#include "layout.h"

/** Owner of an expert by a map [E], or by blocks: NULL. */
static inline uint32_t xep_owner_of(const uint32_t *owners, uint32_t experts, uint32_t nranks, uint32_t expert)
{
    return owners != NULL ? owners[expert] : xep_expert_owner(experts, nranks, expert);
}

/** XEP_ERR_INVALID: an owner that is no rank. owners: [experts], or NULL. */
xep_status_t xep_owners_check(const uint32_t *owners, uint32_t experts, uint32_t nranks);

/** A number that is another one for another map, as good as certainly. */
uint64_t xep_owners_digest(const xep_buffer_params_t *params, uint32_t nranks);

/**
 * Of maps that rank and rank 0 have differently, as their digests say: XEP_ERR_MISMATCH with the first expert that
 * differs, and both owners. Collective, with the same rank on all.
 */
xep_status_t xep_owners_refuse(xep_group_t *group, const xep_buffer_params_t *params, uint32_t rank);

struct xep_owners {
    uint32_t *number;   /* [E] what the mode calls each expert */
    int64_t *topk_idx;  /* [slots][tokens * topk] of the dispatch in each slot, by these numbers, of its type */
    uint64_t slot_size; /* elements of a slot there */
};

/** For a buffer that is made with a map, and has its shape; close(NULL) is a no-op. */
xep_status_t xep_owners_open(xep_buffer_t *buffer);
void xep_owners_close(xep_owners_t *owners);

/**
 * buffer->take_dispatch: puts the mode's numbers in place of the caller's topk_idx, in memory that is the slot's until
 * its next dispatch. XEP_ERR_INVALID: an index that is neither -1 nor an expert.
 */
xep_status_t xep_owners_take(xep_request_t *req);

#endif
