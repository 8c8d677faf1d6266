/* SPDX-License-Identifier: BSD-3-Clause */

/* Several threads may use buffers of one group, and each may find a rank dead: the first one counts. */
#include "group_out.h"

#include <string.h>

#include "backoff.h"
#include "error.h"

/* The time is written before the reason, which tells others that the rank is out. */
int xep_group_put_out(xep_group_t *group, uint32_t rank, xep_out_reason_t reason)
{
    xep_group_out_t *out = &group->out[rank];
    uint64_t never = 0;
    if (!atomic_compare_exchange_strong(&out->since_ns, &never, xep_clock_ns())) return 0;
    atomic_store_explicit(&out->reason, (int)reason, memory_order_release);
    atomic_fetch_add_explicit(&group->outs, 1, memory_order_release);
    if (group->control->spares) group->transport->ops->heap_fence_off(group->control, rank);
    return 1;
}

/* Called where a wait has failed or is about to: asking the system for the life of a process costs a call for each. */
uint32_t xep_group_put_out_dead(xep_group_t *group)
{
    uint32_t found = 0;
    for (uint32_t r = 0; r < group->nranks; r++)
        if (!xep_group_is_out(group, r) && xep_group_has_died(group, r))
            found += (uint32_t)xep_group_put_out(group, r, XEP_OUT_DIED);
    return found;
}

const char *xep_out_reason_text(xep_out_reason_t reason)
{
    switch (reason) {
    case XEP_OUT_DIED: return "it died";
    case XEP_OUT_LATE: return "it did not answer in time";
    case XEP_OUT_ASKED: return "a rank asked for it";
    default: return "for no reason";
    }
}

xep_status_t xep_group_set_mask(xep_group_t *group, uint32_t rank)
{
    if (!group->goes_on)
        return xep_fail(XEP_ERR_UNSUPPORTED,
                        "no buffer of this group goes on without ranks (params.on_failure: XEP_ON_FAILURE_MASK)");
    xep_group_put_out(group, rank, XEP_OUT_ASKED);
    return XEP_OK;
}

/* Counts all, even those that the caller's array has no room for: it can ask again with a larger one. What a caller's
 * longer struct has beyond is 0. */
void xep_group_list_masks(const xep_group_t *group, xep_mask_t *masks, size_t stride, uint32_t capacity,
                          uint32_t *count_p)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < group->nranks; r++) {
        if (!xep_group_is_out(group, r)) continue;
        const xep_group_out_t *out = &group->out[r];
        xep_mask_t mask = {.rank = r,
                           .reason = (xep_out_reason_t)atomic_load(&out->reason),
                           .since_ns = atomic_load(&out->since_ns)};
        if (count < capacity) {
            memset((char *)masks + count * stride, 0, stride);
            memcpy((char *)masks + count * stride, &mask, sizeof mask);
        }
        count++;
    }
    *count_p = count;
}
