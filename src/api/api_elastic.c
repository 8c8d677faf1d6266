/* SPDX-License-Identifier: BSD-3-Clause */

/* The exported functions of groups that lose ranks or gain some: as api.c has those of others. */

#include "api_boot.h"
#include "api_check.h"
#include "error.h"
#include "group_grow.h"
#include "group_out.h"
#include "group_shrink.h"
#include "rendezvous.h"
#include "ucp/ucp_transport.h"
#include "watch.h"

/* ---- ranks that are out ---- */

xep_status_t xep_group_mask_set(xep_group_t *group, uint32_t rank)
{
    xep_status_t status = xep_require_group(group);
    if (status != XEP_OK) return status;
    if (rank >= group->nranks || rank == group->rank)
        return xep_fail(XEP_ERR_INVALID, "invalid rank: %u (another one of the group's %u)", rank, group->nranks);
    return xep_group_set_mask(group, rank);
}

xep_status_t xep_group_mask_query(const xep_group_t *group, xep_mask_t *masks, size_t stride, uint32_t capacity,
                                  uint32_t *count_p)
{
    xep_status_t status = xep_require_group(group);
    if (status != XEP_OK) return status;
    if (count_p == NULL) return xep_fail(XEP_ERR_INVALID, "count_p is NULL");
    if (masks == NULL && capacity != 0)
        return xep_fail(XEP_ERR_INVALID, "masks is NULL (needed with a capacity: %u)", capacity);
    if ((capacity != 0 && stride < sizeof(xep_mask_t)) || stride % sizeof(uint64_t) != 0)
        return xep_fail(XEP_ERR_INVALID, "invalid stride: %zu (sizeof(xep_mask_t))", stride);
    status = xep_check_output("masks", masks);
    if (status == XEP_OK) xep_group_list_masks(group, masks, stride, capacity, count_p);
    return status;
}

xep_status_t xep_group_shrink(xep_group_t *group, const xep_shrink_args_t *args, xep_group_t **group_p)
{
    xep_shrink_args_t own = XEP_SHRINK_ARGS_INIT;
    xep_status_t status = xep_require_group(group);
    if (status != XEP_OK) return status;
    if (group_p == NULL) return xep_fail(XEP_ERR_INVALID, "group_p is NULL");
    status = args == NULL ? XEP_OK : xep_check_struct("args", args, &own, sizeof own);
    if (status != XEP_OK) return status;
    if (own.least > group->nranks)
        return xep_fail(XEP_ERR_INVALID, "invalid least: %u (at most the group's %u ranks)", own.least, group->nranks);
    status = xep_check_output("origins", own.origins);
    return status == XEP_OK ? xep_group_make_smaller(group, &own, xep_ucp_transport_open, group_p) : status;
}

/* ---- joiners ---- */

/* Rank 0's args count, so all wait for its word on them. */
static xep_status_t check_grow(const xep_group_t *group, const xep_grow_args_t *args, xep_grow_args_t *own,
                               xep_rendezvous_t *rendezvous)
{
    xep_status_t status = args == NULL ? XEP_OK : xep_check_struct("args", args, own, sizeof *own);
    if (status != XEP_OK || group->rank != 0) return status;
    if (own->joiners == 0) own->joiners = 1;
    if (own->joiners > 1024) return xep_fail(XEP_ERR_INVALID, "invalid joiners: %u (at most 1024)", own->joiners);
    if (own->path != NULL && own->publish != NULL)
        return xep_fail(XEP_ERR_INVALID, "args.path and args.publish are both given (one of them, or none)");
    if ((own->flags & ~(uint32_t)XEP_GROW_ANYWHERE) != 0)
        return xep_fail(XEP_ERR_INVALID, "invalid flags: %#x (XEP_GROW_*)", own->flags);
    if (own->reserved != 0) return xep_fail(XEP_ERR_INVALID, "invalid reserved: %u (0)", own->reserved);
    *rendezvous = xep_rendezvous_by_call(own->publish, NULL, own->publish_ctx);
    return own->publish != NULL ? XEP_OK : xep_api_meet(own->path, group->timeout_ms, rendezvous);
}

xep_status_t xep_group_grow(xep_group_t *group, const xep_grow_args_t *args, xep_group_t **group_p)
{
    xep_grow_args_t own = XEP_GROW_ARGS_INIT;
    xep_rendezvous_t rendezvous = {0};
    xep_status_t status = xep_require_group(group);
    if (status != XEP_OK) return status;
    status = check_grow(group, args, &own, &rendezvous);
    if (group_p == NULL) status = xep_fail(XEP_ERR_INVALID, "group_p is NULL");
    return xep_group_make_larger(group, &own, &rendezvous, status, xep_ucp_transport_open, group_p);
}

xep_status_t xep_group_join(const xep_join_params_t *params, xep_group_t **group_p)
{
    xep_join_params_t own = XEP_JOIN_PARAMS_INIT;
    xep_config_t config;
    xep_status_t status = xep_check_struct("params", params, &own, sizeof own);
    if (status == XEP_OK && group_p == NULL) status = xep_fail(XEP_ERR_INVALID, "group_p is NULL");
    if (status == XEP_OK && own.path != NULL && own.lookup != NULL)
        status = xep_fail(XEP_ERR_INVALID, "params.path and params.lookup are both given (one of them, or none)");
    if (status == XEP_OK && own.reserved != 0)
        status = xep_fail(XEP_ERR_INVALID, "invalid reserved: %u (0)", own.reserved);
    if (status == XEP_OK) status = xep_config_read(&config);
    if (status == XEP_OK) status = xep_watch_listen(config.explain);
    if (status != XEP_OK) return status;
    int32_t timeout_ms = own.timeout_ms == 0 ? config.timeout : own.timeout_ms;
    xep_rendezvous_t rendezvous = xep_rendezvous_by_call(NULL, own.lookup, own.lookup_ctx);
    if (own.lookup == NULL) status = xep_api_meet(own.path, timeout_ms, &rendezvous);
    if (status != XEP_OK) return status;
    return xep_group_come(&config, &own, &rendezvous, timeout_ms, xep_ucp_transport_open, group_p);
}
