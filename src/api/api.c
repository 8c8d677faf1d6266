/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The exported functions of library and buffers: what the user passed is checked, then the core does it. api_group.c
 * has those of groups, api_operations.c those of dispatches and combines.
 */

#include <stdint.h>
#include <string.h>

#include <xep/elastic.h>

#include "announce.h"
#include "api_check.h"
#include "backoff.h"
#include "balance.h"
#include "buffer.h"
#include "buffer_size.h"
#include "cpu.h"
#include "cuda/cuda_device.h"
#include "group_abort.h"
#include "mode.h"
#include "path.h"
#include "plugin_loader.h"
#include "pmix/pmix_boot.h"
#include "process.h"
#include "request.h"
#include "trace.h"
#include "ucp/ucp_transport.h"

/* ---- library ---- */

const char *xep_version_string(void)
{
    return XEP_VERSION;
}

void xep_version(uint32_t *major_p, uint32_t *minor_p, uint32_t *patch_p)
{
    if (major_p != NULL) *major_p = XEP_VERSION_MAJOR;
    if (minor_p != NULL) *minor_p = XEP_VERSION_MINOR;
    if (patch_p != NULL) *patch_p = XEP_VERSION_PATCH;
}

/* The caller's struct may be of another version: only its own size is known to be its own. */
void xep_struct_init(void *params, size_t size)
{
    if (params == NULL || size < sizeof size) return;
    memset(params, 0, size);
    memcpy(params, &size, sizeof size);
}

/*
 * The texts are of the libraries in use and stay as long as these are loaded. Asking for PMIx loads it, which a program
 * that asks what it runs on wants to know.
 */
xep_status_t xep_library_query(xep_library_info_t *info)
{
    xep_library_info_t own = {.version = XEP_VERSION,
                              .build = "compiler " __VERSION__,
                              .library_path = xep_loaded_from((const void *)(uintptr_t)xep_version_string),
                              .ucx_version = xep_ucp_version(),
                              .ucx_path = xep_ucp_path(),
                              .pmix_version = xep_pmix_version(),
                              .pmix_path = xep_pmix_path(),
                              .simd = xep_cpu_simd_name(xep_cpu_simd())};
    return xep_fill_struct("info", info, &own, sizeof own);
}

/* A configuration that cannot be read is no error here: the next create reports it. */
void xep_mode_each(xep_mode_fn fn, void *arg)
{
    xep_config_t config;
    if (fn != NULL && xep_config_read(&config) == XEP_OK) xep_plugin_each(&config, fn, arg);
}

xep_status_t xep_mode_query(const char *mode, xep_memory_t memory, xep_mode_info_t *info)
{
    xep_config_t config;
    xep_plugin_ref_t ref;
    xep_mode_info_t own;
    xep_status_t status = xep_config_read(&config);
    if (status == XEP_OK && (unsigned)memory > XEP_MEMORY_CUDA)
        status = xep_fail(XEP_ERR_INVALID, "invalid memory: %d (XEP_MEMORY_HOST or XEP_MEMORY_CUDA)", (int)memory);
    if (status != XEP_OK) return status;
    if ((status = xep_plugin_load(&config, mode != NULL ? mode : config.mode, memory, &ref)) != XEP_OK) return status;
    own = xep_mode_tell(ref.plugin, memory);
    xep_plugin_unload(&ref);
    return xep_fill_struct("info", info, &own, sizeof own);
}

uint64_t xep_trace_begin(void)
{
    return xep_trace_now();
}

/*
 * A begin of 0 is from before the trace was on; one in the future is invalid, and a viewer would show such a span
 * across everything.
 */
void xep_trace_end(const char *name, uint64_t begin)
{
    if (!xep_trace_is_on() || begin == 0 || name == NULL || begin > xep_clock_ns()) return;
    xep_trace_write_call(XEP_TRACE_SPAN, name, 0, begin);
}

/* ---- buffer ---- */

/*
 * Needs no group, as programs call this before they start their ranks. Loads the mode as for a buffer: only it knows
 * its layout.
 */
xep_status_t xep_buffer_size(const xep_buffer_params_t *params, uint32_t nranks, xep_buffer_size_t *size)
{
    xep_buffer_params_t own;
    xep_buffer_size_t measured = XEP_BUFFER_SIZE_INIT;
    xep_config_t config;
    xep_status_t status = xep_check_struct("params", params, &own, sizeof own);
    if (status == XEP_OK) status = xep_config_read(&config);
    if (status == XEP_OK) status = xep_check_buffer(&config, nranks, &own);
    if (status == XEP_OK && own.tokens == 0)
        status = xep_fail(XEP_ERR_INVALID, "invalid tokens: 0 (the most of any rank)");
    if (status == XEP_OK) status = xep_buffer_measure(&config, &own, nranks, &measured);
    return status == XEP_OK ? xep_fill_struct("size", size, &measured, sizeof measured) : status;
}

xep_status_t xep_buffer_create(xep_group_t *group, const xep_buffer_params_t *params, xep_buffer_t **buffer_p)
{
    xep_buffer_params_t own = XEP_BUFFER_PARAMS_INIT;
    xep_heap_device_t *device = NULL;
    xep_status_t status;
    if ((status = xep_require_group(group)) != XEP_OK) return status;
    if ((status = xep_group_usable(group)) != XEP_OK) return status;
    /*
     * From here on the other ranks hear of an error of this one: the status goes into the proposal that all exchange,
     * so that a rank with wrong arguments does not leave the others waiting. The device is made here because the core
     * knows no CUDA; xep_buffer_open() closes it, whatever happens.
     */
    status = xep_check_struct("params", params, &own, sizeof own);
    if (status == XEP_OK && buffer_p == NULL) status = xep_fail(XEP_ERR_INVALID, "buffer_p is NULL");
    if (status == XEP_OK) status = xep_check_buffer(&group->config, group->nranks, &own);
    if (status == XEP_OK && own.memory == XEP_MEMORY_CUDA) status = xep_cuda_device_open(&device);
    status = xep_buffer_open(group, &own, device, status, buffer_p);
    if (status == XEP_OK && device == NULL) (*buffer_p)->pointers = xep_cuda_pointers_open();
    return status;
}

/* Params from other ranks are checked like those of a user. */
xep_status_t xep_buffer_follow(const xep_buffer_t *old, xep_group_t *group, xep_buffer_t **buffer_p)
{
    xep_followed_t followed;
    xep_status_t status = xep_require_group(group);
    if (status != XEP_OK) return status;
    status = xep_buffer_find_params(old, group, &followed);
    return status == XEP_OK ? xep_buffer_create(group, &followed.params, buffer_p) : status;
}

/* The function of a rank that serves, or another thread, must not end what xep_serve() goes on with. */
static xep_status_t require_not_served(const xep_buffer_t *buffer)
{
    xep_status_t status = xep_require_buffer(buffer);
    if (status != XEP_OK || buffer->announce == NULL || !atomic_load(&buffer->announce->is_served)) return status;
    return xep_fail(XEP_ERR_INVALID, "invalid buffer: it is served (until xep_serve() has returned)");
}

xep_status_t xep_buffer_destroy(xep_buffer_t *buffer)
{
    if (buffer == NULL) return XEP_OK;
    xep_status_t status = require_not_served(buffer);
    return status == XEP_OK ? xep_buffer_close(buffer) : status;
}

void xep_buffer_abort(xep_buffer_t *buffer)
{
    if (buffer == NULL || xep_group_is_inherited(buffer->group)) return;
    if (!xep_buffer_enter_now(buffer, &buffer->abort_called)) return;
    xep_request_abort_all(buffer);
    xep_buffer_leave(buffer);
}

xep_status_t xep_buffer_reset(xep_buffer_t *buffer)
{
    xep_status_t status = require_not_served(buffer);
    if (status == XEP_OK) status = xep_buffer_claim(buffer);
    if (status != XEP_OK) return status;
    status = xep_buffer_restart(buffer);
    xep_buffer_leave(buffer);
    return status;
}

xep_status_t xep_buffer_memory(xep_buffer_t *buffer, void **base_p, size_t *bytes_p)
{
    xep_status_t status = xep_require_buffer(buffer);
    if (status != XEP_OK) return status;
    if (base_p == NULL || bytes_p == NULL)
        return xep_fail(XEP_ERR_INVALID, "%s is NULL", base_p == NULL ? "base_p" : "bytes_p");
    *base_p = buffer->heap->base;
    *bytes_p = buffer->heap->bytes;
    return XEP_OK;
}

/* A snapshot: with a progress thread the next call may differ. */
xep_status_t xep_buffer_query(const xep_buffer_t *buffer, xep_buffer_info_t *info)
{
    xep_status_t status = xep_require_buffer(buffer);
    if (status != XEP_OK) return status;
    const xep_shape_t *shape = &buffer->shape;
    xep_buffer_info_t own = {.mode = buffer->plugin.plugin->name,
                             .bytes = buffer->heap->bytes,
                             .recv_rows = buffer->shape.recv_rows,
                             .slots = buffer->shape.slots,
                             .threads = buffer->env.threads,
                             .multiprocessors = buffer->env.multiprocessors,
                             .operations = buffer->epoch,
                             .memory = buffer->device != NULL ? XEP_MEMORY_CUDA : XEP_MEMORY_HOST,
                             .device = buffer->device != NULL ? buffer->device->number : -1,
                             .experts = buffer->params.experts,
                             .topk = buffer->params.topk,
                             .hidden = buffer->params.hidden,
                             .scales = buffer->params.scales,
                             .tokens = buffer->most_tokens,
                             .dtype = buffer->params.dtype,
                             .combine_dtype = buffer->params.combine_dtype,
                             .on_failure = buffer->params.on_failure,
                             .timeout_ms = buffer->params.timeout_ms,
                             .path = shape->by_nodes ? XEP_PATH_NODES : XEP_PATH_FLAT,
                             .pass_rows = shape->feed_rows * (shape->by_nodes ? shape->upstreams : shape->nranks),
                             .flags = buffer->params.flags,
                             .local_experts = shape->local_experts};
    for (uint32_t s = 0; s < own.slots; s++) own.free_slots += buffer->handles[s].state == XEP_HANDLE_FREE;
    for (uint32_t r = 0; r < buffer->group->nranks; r++) own.mapped_peers += (uint32_t)buffer->group->peers[r].mapped;
    return xep_fill_struct("info", info, &own, sizeof own);
}

/* Numbers of the last dispatch that has begun, and of those before it. */
xep_status_t xep_buffer_loads(const xep_buffer_t *buffer, xep_loads_t *loads)
{
    xep_status_t status = xep_require_buffer(buffer);
    if (status != XEP_OK) return status;
    const xep_loads_t none = XEP_LOADS_INIT;
    return xep_fill_struct("loads", loads, buffer->balancer != NULL ? &buffer->balancer->loads : &none, sizeof none);
}

static xep_status_t check_kind(const xep_buffer_t *buffer, xep_op_kind_t kind)
{
    xep_status_t status = xep_require_buffer(buffer);
    if (status != XEP_OK || (unsigned)kind < XEP_OP_KINDS) return status;
    return xep_fail(XEP_ERR_INVALID, "invalid kind: %d (one of XEP_OP_*)", (int)kind);
}

/* As xep_buffer_waits(). */
xep_status_t xep_buffer_counters(const xep_buffer_t *buffer, xep_op_kind_t kind, xep_counters_t *counters)
{
    xep_counters_t own;
    xep_status_t status = check_kind(buffer, kind);
    if (status != XEP_OK) return status;
    xep_counts_read(buffer->waits.counts, kind, &own);
    return xep_fill_struct("counters", counters, &own, sizeof own);
}

/*
 * Does not enter the buffer: a thread that looks for a hanging rank must get an answer while another one waits in a
 * call.
 */
xep_status_t xep_buffer_waits(const xep_buffer_t *buffer, xep_op_kind_t kind, xep_waits_t *waits)
{
    xep_waits_t arrays;
    xep_status_t status = check_kind(buffer, kind);
    if (status == XEP_OK) status = xep_check_struct("waits", waits, &arrays, sizeof arrays);
    if (status == XEP_OK) status = xep_check_waits_memory(&arrays);
    if (status == XEP_OK) xep_wait_times_read(&buffer->waits, kind, &arrays);
    return status;
}
