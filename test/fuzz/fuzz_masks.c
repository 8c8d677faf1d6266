/* SPDX-License-Identifier: BSD-3-Clause */

/* Ranks that are out, or say nothing for a while: what is said of masks holds whatever has gone wrong before. */
#include <string.h>

#include "fuzz_api.h"

enum { STEP_MS = 5, SHORT_MS = 1000, LONG_MS = 30000 /* far beyond all timeouts */ };

/* One rank says it, of any rank, also of itself or of nobody. */
static void set_mask(const api_rank_t *rank, const api_call_t *call)
{
    uint32_t who = (uint32_t)api_number(call, 92, rank->nranks),
             whom = (uint32_t)api_number(call, 93, rank->nranks + 1);
    int wrong = whom == who || whom == rank->nranks, works = rank->goes_on;
    int dirty = rank->run->dirty;
    if (!wrong && works) rank->run->dirty = 1;
    if (rank->rank != who) return;
    xep_status_t status = xep_group_mask_set(rank->group, whom);
    api_check_status("xep_group_mask_set", status);
    xep_status_t right = wrong ? XEP_ERR_INVALID : works ? XEP_OK : XEP_ERR_UNSUPPORTED;
    if (!dirty && works >= 0 && status != right)
        fuzz_fail("rank %u leaves out rank %u of %u: %d, not %d", who, whom, rank->nranks, status, right);
}

/* Ascending, with reasons, without this rank; and the array is written no further. */
static void list_masks(const api_rank_t *rank, uint32_t capacity)
{
    xep_mask_t *masks = (void *)api_output(rank->run, capacity * sizeof *masks);
    uint32_t count = 0;
    xep_status_t status =
        xep_group_mask_query(rank->group, capacity == 0 ? NULL : masks, sizeof *masks, capacity, &count);
    if (status != XEP_OK || count >= rank->nranks) fuzz_fail("masks: %d, %u of %u", status, count, rank->nranks);
    for (uint32_t i = 0; i < count && i < capacity; i++)
        if (masks[i].rank >= rank->nranks || masks[i].rank == rank->rank || masks[i].reason < XEP_OUT_DIED ||
            masks[i].reason > XEP_OUT_ASKED || (i > 0 && masks[i].rank <= masks[i - 1].rank))
            fuzz_fail("mask %u of rank %u: rank %u, reason %d", i, rank->rank, masks[i].rank, masks[i].reason);
    if (count > 0 && !rank->run->dirty) fuzz_fail("rank %u has a mask", rank->rank);
}

static void misuse_masks(const api_rank_t *rank)
{
    xep_mask_t mask;
    uint32_t count;
    if (xep_group_mask_query(rank->group, &mask, sizeof mask, 1, NULL) != XEP_ERR_INVALID ||
        xep_group_mask_query(rank->group, NULL, sizeof mask, 1, &count) != XEP_ERR_INVALID ||
        xep_group_mask_query(NULL, &mask, sizeof mask, 1, &count) != XEP_ERR_INVALID ||
        xep_group_mask_set(NULL, 0) != XEP_ERR_INVALID)
        fuzz_fail("a wrong call on masks was taken");
}

void api_mask(api_rank_t *rank, const api_call_t *call)
{
    list_masks(rank, (uint32_t)api_number(call, 91, rank->nranks + 1));
    if (api_number(call, 90, 4) < 2) set_mask(rank, call);
    else misuse_masks(rank);
    fuzz_count(2);
}

/* ---- silence ---- */

/* A second is less than all timeouts: nothing has gone wrong then. */
void api_fall_silent(api_rank_t *rank, const api_call_t *call)
{
    uint64_t how = api_number(call, 94, 4), ms = how == 0 ? SHORT_MS : LONG_MS;
    if (how > 0) rank->run->dirty = 1;
    if (rank->rank != call->choice % rank->nranks) return;
    fuzz_world_stop(1, how == 3);
    for (uint64_t t = 0; t < ms; t += STEP_MS) fuzz_turn(STEP_MS * 1000 * 1000);
    rank->is_dead = how == 3;
    rank->run->alive -= (uint32_t)rank->is_dead;
    while (rank->is_dead && rank->run->alive > 0) fuzz_turn(STEP_MS * 1000 * 1000);
    fuzz_world_stop(0, rank->is_dead);
    fuzz_count(1);
}
