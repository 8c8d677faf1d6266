/* SPDX-License-Identifier: BSD-3-Clause */

/* Every exported function: checks of what the user passed, and the choice of bootstrap and transport. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "api_check.h"
#include "cpu.h"
#include "lateness.h"
#include "layout.h"
#include "log.h"
#include "pmix/pmix_boot.h"
#include "request.h"
#include "ucp/ucp_transport.h"

/* ---- library ---- */

size_t xep_dtype_size(xep_dtype_t dtype)
{
    static const unsigned char sizes[] = {[XEP_BF16] = 2, [XEP_FP16] = 2,  [XEP_FP32] = 4,  [XEP_E4M3] = 1, [XEP_E5M2] = 1,
                                          [XEP_U8] = 1,   [XEP_INT32] = 4, [XEP_INT64] = 8, [XEP_FP64] = 8};
    unsigned i = (unsigned)dtype;
    return i < sizeof sizes ? sizes[i] : 0;
}

const char *xep_version_string(void)
{
    return XEP_VERSION;
}

static const char *own_path(void)
{
    Dl_info info;
    return dladdr((void *)(uintptr_t)xep_version_string, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "";
}

xep_status_t xep_library_query(xep_library_info_t *info)
{
    xep_library_info_t own = {.version = XEP_VERSION,
                              .build = "compiler " __VERSION__,
                              .library_path = own_path(),
                              .ucx_version = xep_ucp_version(),
                              .ucx_path = xep_ucp_path(),
                              .pmix_version = xep_pmix_version(),
                              .pmix_path = xep_pmix_path(),
                              .simd = xep_cpu_simd_name(xep_cpu_simd())};
    return xep_fill_struct("info", info, &own, sizeof own);
}

void xep_mode_each(xep_mode_fn fn, void *arg)
{
    xep_config_t config;
    if (fn != NULL && xep_config_read(&config) == XEP_OK) xep_plugin_each(&config, fn, arg);
}

/* ---- group ---- */

/* PMIx when there is a server, else a group of one where the environment does not say otherwise. */
static xep_status_t open_boot_auto(int32_t timeout_ms, xep_boot_t **boot_p)
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
    case XEP_BOOT_SINGLE:
        return xep_boot_single_open(timeout_ms, boot_p);
    case XEP_BOOT_PMIX: {
        xep_status_t status = xep_pmix_boot_open(timeout_ms, boot_p);
        return status != XEP_ERR_UNSUPPORTED ? status : xep_fail(XEP_ERR_BOOT, "XEP_BOOT is pmix: %s", xep_last_error());
    }
    case XEP_BOOT_CALLBACK:
        if (params->allgather == NULL)
            return xep_fail(XEP_ERR_BOOT, "XEP_BOOT is callback, and params.allgather is NULL");
        return xep_boot_callback_open(params, timeout_ms, boot_p);
    default:
        return params->allgather != NULL ? xep_boot_callback_open(params, timeout_ms, boot_p)
                                         : open_boot_auto(timeout_ms, boot_p);
    }
}

static xep_status_t check_group(const xep_group_params_t *params)
{
    if (params->allgather == NULL && (params->nranks != 0 || params->rank != 0))
        return xep_fail(XEP_ERR_INVALID, "rank %u of nranks %u needs an allgather; without one both are found out",
                        params->rank, params->nranks);
    if (params->allgather != NULL && params->rank >= params->nranks)
        return xep_fail(XEP_ERR_INVALID, "rank is %u, nranks is %u", params->rank, params->nranks);
    return XEP_OK;
}

xep_status_t xep_group_create(const xep_group_params_t *params, xep_group_t **group_p)
{
    xep_group_params_t own = XEP_GROUP_PARAMS_INIT;
    xep_config_t config;
    xep_boot_t *boot;
    xep_transport_t *transport;
    int32_t timeout_ms;
    xep_status_t status = params == NULL ? XEP_OK : xep_check_struct("params", params, &own, sizeof own);
    if (status == XEP_OK && group_p == NULL) status = xep_fail(XEP_ERR_INVALID, "group_p is NULL");
    if (status == XEP_OK) status = check_group(&own);
    if (status == XEP_OK) status = xep_config_read(&config);
    if (status != XEP_OK) return status;
    timeout_ms = own.timeout_ms == 0 ? config.timeout : own.timeout_ms;
    status = open_boot(&config, &own, timeout_ms, &boot);
    if (status != XEP_OK) return status;
    status = xep_ucp_transport_open(&config, &transport);
    if (status != XEP_OK) {
        boot->ops->close(boot);
        return status;
    }
    return xep_group_open(&config, timeout_ms, boot, transport, group_p);
}

void xep_group_destroy(xep_group_t *group)
{
    if (group == NULL) return;
    if (group->buffers != NULL) {
        xep_log(XEP_LOG_ERROR, "xep_group_destroy: a buffer of the group was not destroyed; the group is left as it is");
        return;
    }
    xep_group_close(group);
}

void xep_group_abort(xep_group_t *group)
{
    if (group != NULL) atomic_store(&group->aborted, 1);
}

xep_status_t xep_group_barrier(xep_group_t *group)
{
    if (group == NULL) return xep_fail(XEP_ERR_INVALID, "group is NULL");
    return xep_group_barrier_run(group);
}

xep_status_t xep_group_allgather(xep_group_t *group, const void *send, void *recv, size_t bytes)
{
    if (group == NULL) return xep_fail(XEP_ERR_INVALID, "group is NULL");
    if (send == NULL || recv == NULL) return xep_fail(XEP_ERR_INVALID, "%s is NULL", send == NULL ? "send" : "recv");
    if (bytes == 0) return xep_fail(XEP_ERR_INVALID, "bytes is 0");
    return xep_group_exchange(group, send, recv, bytes);
}

xep_status_t xep_group_query(const xep_group_t *group, xep_group_info_t *info)
{
    if (group == NULL) return xep_fail(XEP_ERR_INVALID, "group is NULL");
    xep_group_info_t own = {.rank = group->rank,
                            .nranks = group->nranks,
                            .node = group->peers[group->rank].node,
                            .nnodes = group->nnodes,
                            .boot = group->boot->ops->name};
    return xep_fill_struct("info", info, &own, sizeof own);
}

xep_status_t xep_group_peer(xep_group_t *group, uint32_t rank, xep_peer_info_t *info)
{
    if (group == NULL) return xep_fail(XEP_ERR_INVALID, "group is NULL");
    if (rank >= group->nranks) return xep_fail(XEP_ERR_INVALID, "rank is %u, the group has %u", rank, group->nranks);
    const xep_peer_t *peer = &group->peers[rank];
    const char *transport = rank == group->rank ? "self"
                            : peer->mapped      ? "mapped"
                                                : group->transport->ops->describe(group->transport, rank);
    xep_peer_info_t own = {.node = peer->node, .mapped = peer->mapped, .transport = transport};
    return xep_fill_struct("info", info, &own, sizeof own);
}

/* ---- layout ---- */

xep_status_t xep_layout(const xep_layout_args_t *args, xep_layout_t *out)
{
    xep_layout_args_t own;
    xep_layout_t arrays;
    xep_status_t status = xep_check_struct("args", args, &own, sizeof own);
    if (status == XEP_OK) status = xep_check_struct("out", out, &arrays, sizeof arrays);
    if (status == XEP_OK) status = xep_check_layout(&own);
    return status == XEP_OK ? xep_layout_compute(&own, &arrays) : status;
}

/* ---- buffer ---- */

xep_status_t xep_buffer_size(const xep_buffer_params_t *params, uint32_t nranks, xep_buffer_size_t *size)
{
    xep_buffer_params_t own;
    xep_buffer_size_t measured = XEP_BUFFER_SIZE_INIT;
    xep_config_t config;
    xep_status_t status = xep_check_struct("params", params, &own, sizeof own);
    if (status == XEP_OK) status = xep_config_read(&config);
    if (status == XEP_OK) status = xep_check_buffer(&config, nranks, &own);
    if (status == XEP_OK) status = xep_buffer_measure(&config, &own, nranks, &measured);
    return status == XEP_OK ? xep_fill_struct("size", size, &measured, sizeof measured) : status;
}

xep_status_t xep_buffer_create(xep_group_t *group, const xep_buffer_params_t *params, xep_buffer_t **buffer_p)
{
    xep_buffer_params_t own;
    xep_status_t status;
    if (group == NULL) return xep_fail(XEP_ERR_INVALID, "group is NULL");
    if ((status = xep_group_usable(group)) != XEP_OK) return status;
    /* from here on the other ranks hear of an error of this one */
    status = xep_check_struct("params", params, &own, sizeof own);
    if (status == XEP_OK && buffer_p == NULL) status = xep_fail(XEP_ERR_INVALID, "buffer_p is NULL");
    if (status == XEP_OK) status = xep_check_buffer(&group->config, group->nranks, &own);
    return xep_buffer_open(group, &own, status, buffer_p);
}

void xep_buffer_destroy(xep_buffer_t *buffer)
{
    if (buffer != NULL) xep_buffer_close(buffer);
}

xep_status_t xep_buffer_reset(xep_buffer_t *buffer)
{
    if (buffer == NULL) return xep_fail(XEP_ERR_INVALID, "buffer is NULL");
    xep_buffer_enter(buffer);
    xep_status_t status = xep_buffer_restart(buffer);
    xep_buffer_leave(buffer);
    return status;
}

xep_status_t xep_buffer_memory(xep_buffer_t *buffer, void **base_p, size_t *bytes_p)
{
    if (buffer == NULL) return xep_fail(XEP_ERR_INVALID, "buffer is NULL");
    if (base_p == NULL || bytes_p == NULL) return xep_fail(XEP_ERR_INVALID, "%s is NULL", base_p == NULL ? "base_p" : "bytes_p");
    *base_p = buffer->heap->base;
    *bytes_p = buffer->heap->bytes;
    return XEP_OK;
}

xep_status_t xep_buffer_query(const xep_buffer_t *buffer, xep_buffer_info_t *info)
{
    if (buffer == NULL) return xep_fail(XEP_ERR_INVALID, "buffer is NULL");
    xep_buffer_info_t own = {.mode = buffer->plugin.plugin->name,
                             .bytes = buffer->heap->bytes,
                             .recv_rows = buffer->shape.recv_rows,
                             .slots = buffer->shape.slots,
                             .threads = buffer->env.threads,
                             .operations = buffer->epoch};
    for (uint32_t s = 0; s < own.slots; s++) own.free_slots += buffer->handles[s].state == XEP_HANDLE_FREE;
    for (uint32_t r = 0; r < buffer->group->nranks; r++) own.mapped_peers += (uint32_t)buffer->group->peers[r].mapped;
    return xep_fill_struct("info", info, &own, sizeof own);
}

xep_status_t xep_buffer_waits(const xep_buffer_t *buffer, xep_op_kind_t kind, xep_waits_t *waits)
{
    xep_waits_t arrays;
    if (buffer == NULL) return xep_fail(XEP_ERR_INVALID, "buffer is NULL");
    if ((unsigned)kind >= XEP_OP_KINDS) return xep_fail(XEP_ERR_INVALID, "kind is %d, which is none of XEP_OP_*", (int)kind);
    xep_status_t status = xep_check_struct("waits", waits, &arrays, sizeof arrays);
    if (status == XEP_OK) xep_lateness_read(buffer, kind, &arrays);
    return status;
}

/* ---- operations ---- */

/* hands the request out, or waits for it */
static xep_status_t deliver(xep_request_t *req, xep_request_t **req_p)
{
    xep_status_t status;
    if (req_p != NULL) {
        *req_p = req;
        return XEP_OK;
    }
    status = xep_request_finish(req);
    xep_request_drop(req);
    return status;
}

xep_status_t xep_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *args, xep_handle_t **handle_p,
                          xep_request_t **req_p)
{
    xep_dispatch_args_t own;
    xep_request_t *req;
    if (buffer == NULL) return xep_fail(XEP_ERR_INVALID, "buffer is NULL");
    if (handle_p == NULL) return xep_fail(XEP_ERR_INVALID, "handle_p is NULL");
    xep_buffer_enter(buffer);
    xep_status_t status = xep_request_admit(buffer);
    if (status == XEP_OK) status = xep_check_struct("args", args, &own, sizeof own);
    if (status == XEP_OK) status = xep_check_dispatch(buffer, &own);
    if (status == XEP_OK) status = xep_request_dispatch(buffer, &own, &req);
    if (status == XEP_OK) {
        xep_handle_t *handle = req->handle;
        status = deliver(req, req_p);
        if (status == XEP_OK) *handle_p = handle;
        else xep_handle_give_back(handle);
    }
    xep_buffer_leave(buffer);
    return status;
}

xep_status_t xep_combine(xep_handle_t *handle, const xep_combine_args_t *args, xep_request_t **req_p)
{
    xep_combine_args_t own;
    xep_request_t *req;
    if (handle == NULL) return xep_fail(XEP_ERR_INVALID, "handle is NULL");
    xep_buffer_enter(handle->buffer);
    xep_status_t status = xep_request_admit(handle->buffer);
    if (status == XEP_OK) status = xep_check_struct("args", args, &own, sizeof own);
    if (status == XEP_OK) status = xep_check_combine(handle, &own);
    if (status == XEP_OK) status = xep_request_combine(handle, &own, &req);
    if (status == XEP_OK) status = deliver(req, req_p);
    xep_buffer_leave(handle->buffer);
    return status;
}

const xep_recv_t *xep_handle_recv(const xep_handle_t *handle)
{
    if (handle == NULL || handle->released || (handle->state != XEP_HANDLE_READY && handle->state != XEP_HANDLE_COUNTED)) {
        xep_fail(XEP_ERR_INVALID, handle == NULL ? "handle is NULL" : "the handle has no rows: in flight, failed or released");
        return NULL;
    }
    return &handle->recv;
}

static xep_status_t combine_input(xep_handle_t *handle, void **base_p, size_t *stride_p)
{
    xep_buffer_t *buffer = handle->buffer;
    xep_waiting_t waiting;
    uint64_t slow = 0;
    xep_status_t status = xep_request_admit(buffer);
    if (status != XEP_OK) return status;
    if (handle->state != XEP_HANDLE_READY || handle->released || handle->in_flight != NULL)
        return xep_fail(XEP_ERR_INVALID, "the handle was released, failed, or has an operation in flight");
    xep_waiting_begin(&waiting, buffer->group->spins, xep_deadline(buffer->timeout_ms));
    while ((status = buffer->plugin.plugin->input(buffer->mode, handle->slot, base_p, stride_p)) == XEP_INPROGRESS) {
        xep_request_advance_all(buffer);
        xep_group_progress(buffer->group);
        if (!xep_group_rest(buffer->group, &waiting))
            return xep_fail(XEP_ERR_TIMEOUT, "a peer still reads the rows of the last combine of this handle");
        if ((status = xep_request_admit(buffer)) != XEP_OK) return status;
        if (xep_waiting_slow(&waiting, &slow) && (status = xep_group_check_peers(buffer->group)) != XEP_OK) return status;
    }
    return status;
}

void *xep_handle_combine_input(xep_handle_t *handle, size_t *stride_p)
{
    void *base = NULL;
    size_t stride = 0;
    if (handle == NULL) {
        xep_fail(XEP_ERR_INVALID, "handle is NULL");
        return NULL;
    }
    xep_buffer_enter(handle->buffer);
    xep_status_t status = combine_input(handle, &base, &stride);
    xep_buffer_leave(handle->buffer);
    if (status != XEP_OK) return NULL;
    handle->combine_input = base;
    if (stride_p != NULL) *stride_p = stride;
    return base;
}

void xep_handle_release(xep_handle_t *handle)
{
    if (handle == NULL) return;
    xep_buffer_enter(handle->buffer);
    handle->released = 1;
    xep_handle_settle(handle);
    xep_buffer_leave(handle->buffer);
}
