/* SPDX-License-Identifier: BSD-3-Clause */

/* The exported functions of groups: as api.c has those of buffers. */

#include <string.h>

#include "api_check.h"
#include "boot.h"
#include "error.h"
#include "group_abort.h"
#include "group_control.h"
#include "group_exchange.h"
#include "group_grow.h"
#include "group_out.h"
#include "group_shrink.h"
#include "log.h"
#include "pmix/pmix_boot.h"
#include "pmix/pmix_names.h"
#include "rendezvous.h"
#include "ucp/ucp_transport.h"
#include "watch.h"

/* ---- making a group ---- */

/* A rank without an allgather is most likely a mistake: a group of one would silently compute something else. */
static xep_status_t check_group(const xep_group_params_t *params)
{
    if (params->reserved != 0) return xep_fail(XEP_ERR_INVALID, "invalid reserved: %u (0)", params->reserved);
    if (params->allgather == NULL && (params->nranks != 0 || params->rank != 0))
        return xep_fail(XEP_ERR_INVALID, "rank %u and nranks %u without an allgather (0 and 0: the launcher sets them)",
                        params->rank, params->nranks);
    if (params->allgather != NULL && params->rank >= params->nranks)
        return xep_fail(XEP_ERR_INVALID, "invalid rank: %u (below nranks, %u)", params->rank, params->nranks);
    return XEP_OK;
}

/*
 * PMIx if a launcher serves it, else a group of one. Only XEP_ERR_UNSUPPORTED means that no launcher does: any other
 * failure of PMIx must not silently turn R ranks into R groups of one. For the same reason the environment is checked
 * for signs of a job.
 */
static xep_status_t open_auto(int32_t timeout_ms, xep_boot_t **boot_p)
{
    xep_status_t status = xep_pmix_boot_open(timeout_ms, boot_p);
    if (status != XEP_ERR_UNSUPPORTED) return status;
    status = xep_boot_single_allowed();
    return status == XEP_OK ? xep_boot_single_open(timeout_ms, boot_p) : status;
}

static xep_status_t open_boot(const xep_config_t *config, const xep_group_params_t *params, int32_t timeout_ms,
                              xep_boot_t **boot_p)
{
    switch (config->boot) {
    case XEP_BOOT_SINGLE: return xep_boot_single_open(timeout_ms, boot_p);
    case XEP_BOOT_PMIX: {
        xep_status_t status = xep_pmix_boot_open(timeout_ms, boot_p);
        return status != XEP_ERR_UNSUPPORTED
                   ? status
                   : xep_fail(XEP_ERR_BOOT, "no PMIx for XEP_BOOT=pmix: %s", xep_last_error());
    }
    case XEP_BOOT_CALLBACK:
        if (params->allgather == NULL)
            return xep_fail(XEP_ERR_BOOT, "params.allgather is NULL (needed by XEP_BOOT=callback)");
        return xep_boot_callback_open(params, timeout_ms, boot_p);
    default:
        return params->allgather != NULL ? xep_boot_callback_open(params, timeout_ms, boot_p)
                                         : open_auto(timeout_ms, boot_p);
    }
}

/*
 * Boot belongs to the group from xep_group_open() on, also when that fails. Errors up to there are not told to the
 * other ranks, which wait for this one at most until their deadline: to find one another is what has failed.
 * interrupted is set before the first wait.
 */
xep_status_t xep_group_create(const xep_group_params_t *params, xep_group_t **group_p)
{
    xep_group_params_t own = XEP_GROUP_PARAMS_INIT;
    xep_config_t config;
    xep_boot_t *boot;
    int32_t timeout_ms;
    xep_status_t status = params == NULL ? XEP_OK : xep_check_struct("params", params, &own, sizeof own);
    if (status == XEP_OK && group_p == NULL) status = xep_fail(XEP_ERR_INVALID, "group_p is NULL");
    if (status == XEP_OK) status = check_group(&own);
    if (status == XEP_OK) status = xep_config_read(&config);
    if (status != XEP_OK) return status;
    if ((status = xep_watch_listen(config.explain)) != XEP_OK) return status;
    timeout_ms = own.timeout_ms == 0 ? config.timeout : own.timeout_ms;
    if ((status = open_boot(&config, &own, timeout_ms, &boot)) != XEP_OK) return status;
    boot->ignores_processes = config.liveness == XEP_LIVENESS_HEARTBEAT;
    boot->interrupted = own.interrupted;
    boot->interrupted_ctx = own.interrupted_ctx;
    return xep_group_open(&config, timeout_ms, boot, xep_ucp_transport_open, group_p);
}

/* ---- a group ---- */

/*
 * With a buffer left, freeing the group would pull the connections from under it: leaking is the smaller harm. What a
 * fork has inherited is its parent's: taking it apart would reach the peers.
 */
xep_status_t xep_group_destroy(xep_group_t *group)
{
    if (group == NULL) return XEP_OK;
    xep_status_t status = xep_require_group(group);
    if (status != XEP_OK) return status;
    if (group->tasks != NULL) {
        status = xep_fail(XEP_ERR_INVALID, "the group still has buffers (destroy them first)");
        xep_log(XEP_LOG_ERROR, "xep_group_destroy: %s", xep_last_error());
        return status;
    }
    return xep_group_close(group);
}

/* Only stores, as a signal handler may call it. Waits check them in every round. */
void xep_group_abort(xep_group_t *group)
{
    if (group != NULL && !xep_group_is_inherited(group)) xep_group_end(group, XEP_END_ASKED);
}

xep_status_t xep_group_event_fd(xep_group_t *group, int *fd_p)
{
    xep_status_t status = xep_require_group(group);
    if (status != XEP_OK) return status;
    if (fd_p == NULL) return xep_fail(XEP_ERR_INVALID, "fd_p is NULL");
    return xep_progress_open_event(group->progress_thread, fd_p);
}

xep_status_t xep_group_barrier(xep_group_t *group)
{
    xep_status_t status = xep_require_group(group);
    return status == XEP_OK ? xep_group_run_barrier(group) : status;
}

xep_status_t xep_group_allgather(xep_group_t *group, const void *send, void *recv, size_t bytes)
{
    xep_status_t status = xep_require_group(group);
    if (status != XEP_OK) return status;
    if (send == NULL || recv == NULL) return xep_fail(XEP_ERR_INVALID, "%s is NULL", send == NULL ? "send" : "recv");
    if (bytes == 0 || bytes > PTRDIFF_MAX / group->nranks)
        return xep_fail(XEP_ERR_INVALID, "invalid bytes: %zu (1 to %zu)", bytes, (size_t)PTRDIFF_MAX / group->nranks);
    status = xep_check_output("recv", recv);
    return status == XEP_OK ? xep_group_exchange(group, send, recv, bytes) : status;
}

/*
 * The size of the caller's struct decides how much is written: in all queries the library fills its own struct first.
 */
xep_status_t xep_group_query(const xep_group_t *group, xep_group_info_t *info)
{
    xep_status_t status = xep_require_group(group);
    if (status != XEP_OK) return status;
    xep_group_info_t own = {.rank = group->rank,
                            .nranks = group->nranks,
                            .node = group->peers[group->rank].node,
                            .nnodes = group->nnodes,
                            .boot = group->boot->name};
    return xep_fill_struct("info", info, &own, sizeof own);
}

/* Each rank was reached when the group was made. */
xep_status_t xep_group_peer(xep_group_t *group, uint32_t rank, xep_peer_info_t *info)
{
    xep_status_t status = xep_require_group(group);
    if (status != XEP_OK) return status;
    if (rank >= group->nranks)
        return xep_fail(XEP_ERR_INVALID, "invalid rank: %u (the group has %u)", rank, group->nranks);
    const xep_peer_t *peer = &group->peers[rank];
    const char *transport = rank == group->rank ? "self"
                            : peer->mapped      ? "mapped"
                                                : group->transport->ops->describe(group->transport, rank);
    xep_peer_info_t own = {.node = peer->node, .mapped = peer->mapped, .transport = transport};
    return xep_fill_struct("info", info, &own, sizeof own);
}

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

/*
 * By a file, or, where the path begins with "pmix:", by a name that the launcher keeps; it stays the caller's. A file
 * is not opened here: rank 0 makes it later, and joiners wait for it.
 */
static xep_status_t meet(const char *path, int32_t timeout_ms, xep_rendezvous_t *rendezvous_p)
{
    if (path == NULL) path = XEP_PMIX_DEFAULT_NAME;
    if (strncmp(path, XEP_PMIX_NAME_PREFIX, strlen(XEP_PMIX_NAME_PREFIX)) == 0)
        return xep_pmix_rendezvous(path, timeout_ms, rendezvous_p);
    *rendezvous_p = xep_rendezvous_by_file(path);
    return XEP_OK;
}

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
    return own->publish != NULL ? XEP_OK : meet(own->path, group->timeout_ms, rendezvous);
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
    if (own.lookup == NULL) status = meet(own.path, timeout_ms, &rendezvous);
    if (status != XEP_OK) return status;
    return xep_group_come(&config, &own, &rendezvous, timeout_ms, xep_ucp_transport_open, group_p);
}
