/* SPDX-License-Identifier: BSD-3-Clause */

#include "buffer.h"

#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "heap.h"
#include "lateness.h"
#include "log.h"
#include "request.h"

enum { REQUESTS_PER_SLOT = 4, MODE_BYTES = 64 };

/* The collective parameters, compared as numbers: X(field of offer_t, name users know). */
#define COLLECTIVE(X)                                                                                              \
    X(experts) X(topk) X(hidden) X(scales) X(tokens) X(recv_rows) X(dtype) X(combine_dtype) X(slots) X(bytes)

/* What a rank says of the buffer it wants to create. */
typedef struct offer {
    int32_t status; /* what checking gave on this rank */
    int32_t reserved;
    char mode[MODE_BYTES];
#define OFFER_FIELD(_name) uint64_t _name;
    COLLECTIVE(OFFER_FIELD)
#undef OFFER_FIELD
} offer_t;
_Static_assert(sizeof(offer_t) == 8 + MODE_BYTES + 10 * 8, "an offer is exchanged as bytes: no padding");

static const struct {
    const char *name;
    size_t offset;
} collective[] = {
#define COLLECTIVE_ROW(_name) {#_name, offsetof(offer_t, _name)},
    COLLECTIVE(COLLECTIVE_ROW)
#undef COLLECTIVE_ROW
};
enum { NCOLLECTIVE = sizeof collective / sizeof collective[0] };

/* ---- shape and size ---- */

static void fill_shape(const xep_buffer_params_t *params, uint32_t rank, uint32_t nranks, xep_shape_t *shape)
{
    *shape = (xep_shape_t){.rank = rank,
                           .nranks = nranks,
                           .experts = params->experts,
                           .topk = params->topk,
                           .hidden = params->hidden,
                           .scales = params->scales,
                           .elem_bytes = (uint32_t)xep_dtype_size(params->dtype),
                           .combine_elem_bytes = (uint32_t)xep_dtype_size(params->combine_dtype),
                           .slots = params->slots,
                           .tokens = params->tokens,
                           .recv_rows = params->recv_rows};
    xep_expert_range(shape->experts, nranks, rank, &shape->first_expert, &shape->local_experts);
}

/* bytes of the mode, rounded so that the fence words begin a line */
static xep_status_t measure(const xep_plugin_t *plugin, const xep_shape_t *shape, uint64_t *fence_offset_p,
                            uint64_t *bytes_p, uint64_t *recv_rows_p)
{
    uint64_t bytes;
    xep_status_t status = plugin->heap_size(shape, &bytes, recv_rows_p);
    if (status != XEP_OK)
        return xep_fail(status, "mode \"%s\" cannot serve this shape: %s", plugin->name,
                        status == XEP_ERR_NO_MEMORY ? "its size does not fit into 64 bits" : xep_status_text(status));
    *fence_offset_p = (bytes + 63) / 64 * 64;
    *bytes_p = *fence_offset_p + (uint64_t)shape->nranks * sizeof(uint64_t);
    return XEP_OK;
}

xep_status_t xep_buffer_measure(const xep_config_t *config, const xep_buffer_params_t *params, uint32_t nranks,
                                xep_buffer_size_t *size)
{
    xep_plugin_ref_t ref;
    xep_shape_t shape;
    uint64_t fence_offset;
    xep_status_t status = xep_plugin_load(config, params->mode, &ref);
    if (status != XEP_OK) return status;
    fill_shape(params, 0, nranks, &shape);
    status = measure(ref.plugin, &shape, &fence_offset, &size->bytes, &size->recv_rows);
    xep_plugin_unload(&ref);
    return status;
}

/* ---- what the mode may call ---- */

static xep_buffer_t *buffer_of(const xep_env_t *env)
{
    return (xep_buffer_t *)(uintptr_t)((const char *)env - offsetof(xep_buffer_t, env));
}

static void env_parallel(const xep_env_t *env, xep_parallel_fn fn, void *arg)
{
    xep_team_run(buffer_of(env)->team, fn, arg);
}

static void env_prefault(const xep_env_t *env, void *base, uint64_t bytes)
{
    xep_heap_prefault(base, bytes, &buffer_of(env)->prefault_left);
}

static uint64_t env_now_ns(const xep_env_t *env)
{
    (void)env;
    return xep_clock_ns();
}

__attribute__((format(printf, 4, 5))) static xep_status_t env_fail(const xep_env_t *env, xep_op_t *op,
                                                                  xep_status_t status, const char *format, ...)
{
    va_list args;
    (void)env;
    va_start(args, format);
    if (op == NULL) {
        xep_vfail(status, format, args);
    } else {
        xep_request_t *req = (xep_request_t *)(void *)((char *)op - offsetof(xep_request_t, op));
        vsnprintf(req->reason, sizeof req->reason, format, args);
    }
    va_end(args);
    return status;
}

__attribute__((format(printf, 3, 4))) static void env_log(const xep_env_t *env, xep_log_level_t level,
                                                         const char *format, ...)
{
    char text[1024];
    va_list args;
    if (!xep_log_enabled(level)) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    xep_log(level, "%s: %s", buffer_of(env)->plugin.plugin->name, text);
}

/* All kernels have the same bits: what this CPU has not costs time only, and the user is told. */
static xep_simd_t simd_of(const xep_config_t *config)
{
    static const xep_simd_t asked[] = {[XEP_SIMD_CHOICE_AUTO] = XEP_SIMD_AVX512,
                                       [XEP_SIMD_CHOICE_SCALAR] = XEP_SIMD_SCALAR,
                                       [XEP_SIMD_CHOICE_AVX2] = XEP_SIMD_AVX2,
                                       [XEP_SIMD_CHOICE_AVX512] = XEP_SIMD_AVX512};
    xep_simd_t have = xep_cpu_simd(), want = asked[config->simd];
    if (want > have && config->simd != XEP_SIMD_CHOICE_AUTO)
        xep_log(XEP_LOG_WARN, "XEP_SIMD is %s, this CPU has %s: that is used", xep_cpu_simd_name(want), xep_cpu_simd_name(have));
    return want < have ? want : have;
}

static void fill_env(xep_buffer_t *buffer)
{
    const xep_config_t *config = &buffer->group->config;
    buffer->env = (xep_env_t){.size = sizeof(xep_env_t),
                              .shape = &buffer->shape,
                              .heap = buffer->heap->base,
                              .heap_bytes = buffer->fence_offset,
                              .wire = &buffer->heap->wire,
                              .threads = buffer->env.threads,
                              .simd = simd_of(config),
                              .stream_bytes = config->stream,
                              .parallel = env_parallel,
                              .prefault = env_prefault,
                              .now_ns = env_now_ns,
                              .fail = env_fail,
                              .log = env_log};
}

/* ---- agreement ---- */

static uint64_t collective_value(const offer_t *offer, int i)
{
    uint64_t value;
    memcpy(&value, (const char *)offer + collective[i].offset, sizeof value);
    return value;
}

/* The sentence is the same on every rank but for the rank whose own check failed: that one knows more. */
static xep_status_t compare_offers(const offer_t *offers, uint32_t nranks)
{
    for (uint32_t r = 0; r < nranks; r++)
        if (offers[r].status != XEP_OK)
            return xep_fail((xep_status_t)offers[r].status, "rank %u cannot create its buffer: %s", r,
                            xep_status_text((xep_status_t)offers[r].status));
    for (uint32_t r = 1; r < nranks; r++) {
        if (strncmp(offers[r].mode, offers[0].mode, MODE_BYTES) != 0)
            return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 disagree on mode: %.*s, %.*s", r, MODE_BYTES - 1,
                            offers[r].mode, MODE_BYTES - 1, offers[0].mode);
        for (int i = 0; i < NCOLLECTIVE; i++) {
            uint64_t theirs = collective_value(&offers[r], i), first = collective_value(&offers[0], i);
            if (theirs != first)
                return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 disagree on %s: %llu, %llu", r, collective[i].name,
                                (unsigned long long)theirs, (unsigned long long)first);
        }
    }
    return XEP_OK;
}

/* Every rank learns whether every rank may go on. A rank with a reason of its own keeps it. */
static xep_status_t agree(xep_group_t *group, offer_t *mine)
{
    char own_reason[XEP_REASON_BYTES];
    offer_t *offers = calloc(group->nranks, sizeof *offers);
    xep_status_t status;
    if (offers == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    snprintf(own_reason, sizeof own_reason, "%s", xep_last_error());
    status = xep_group_exchange(group, mine, offers, sizeof *mine);
    if (status == XEP_OK) status = compare_offers(offers, group->nranks);
    if (status != XEP_OK && mine->status != XEP_OK) status = xep_fail((xep_status_t)mine->status, "%s", own_reason);
    free(offers);
    return status;
}

static offer_t offer_of(const xep_buffer_params_t *params, uint64_t bytes, xep_status_t status)
{
    offer_t offer;
    memset(&offer, 0, sizeof offer);
    offer.status = status;
    if (status != XEP_OK) return offer;
    snprintf(offer.mode, sizeof offer.mode, "%s", params->mode);
    offer.experts = params->experts;
    offer.topk = params->topk;
    offer.hidden = params->hidden;
    offer.scales = params->scales;
    offer.tokens = params->tokens;
    offer.recv_rows = params->recv_rows;
    offer.dtype = params->dtype;
    offer.combine_dtype = params->combine_dtype;
    offer.slots = params->slots;
    offer.bytes = bytes;
    return offer;
}

/* ---- create ---- */

static xep_status_t allocate_pools(xep_buffer_t *buffer)
{
    size_t op_size = buffer->plugin.plugin->op_size;
    buffer->nrequests = buffer->shape.slots * REQUESTS_PER_SLOT;
    buffer->handles = calloc(buffer->shape.slots, sizeof *buffer->handles);
    buffer->requests = calloc(buffer->nrequests, sizeof *buffer->requests);
    buffer->states = aligned_alloc(64, ((size_t)buffer->nrequests * op_size + 64) / 64 * 64);
    if (buffer->handles == NULL || buffer->requests == NULL || buffer->states == NULL)
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u slots", buffer->shape.slots);
    for (uint32_t i = 0; i < buffer->shape.slots; i++)
        buffer->handles[i] = (xep_handle_t){.buffer = buffer, .slot = i, .state = XEP_HANDLE_FREE};
    for (uint32_t i = 0; i < buffer->nrequests; i++) buffer->requests[i].buffer = buffer;
    return xep_lateness_open(buffer);
}

/* all that this rank can do alone before it knows what the others want */
static xep_status_t prepare(xep_buffer_t *buffer, const xep_buffer_params_t *params, uint64_t *bytes_p)
{
    uint64_t recv_rows;
    xep_group_t *group = buffer->group;
    xep_status_t status = xep_plugin_load(&group->config, params->mode, &buffer->plugin);
    if (status != XEP_OK) return status;
    fill_shape(params, group->rank, group->nranks, &buffer->shape);
    status = measure(buffer->plugin.plugin, &buffer->shape, &buffer->fence_offset, bytes_p, &recv_rows);
    if (status != XEP_OK) return status;
    buffer->shape.recv_rows = recv_rows;
    buffer->dtype = params->dtype;
    buffer->combine_dtype = params->combine_dtype;
    buffer->timeout_ms = params->timeout_ms;
    buffer->env.threads = params->threads;
    buffer->prefault_left = group->config.prefault;
    status = allocate_pools(buffer);
    return status == XEP_OK ? xep_team_create(params->threads, &buffer->team) : status;
}

static xep_status_t open_heap(xep_buffer_t *buffer, const xep_buffer_params_t *params, uint64_t bytes)
{
    xep_group_t *group = buffer->group;
    xep_blobs_t blobs;
    xep_status_t status = xep_heap_open(&group->config, group->transport, bytes, &buffer->heap);
    offer_t mine = offer_of(params, bytes, status);
    status = agree(group, &mine);
    if (status != XEP_OK) return status;
    status = xep_group_exchange_blobs(group, buffer->heap->key, buffer->heap->key_bytes, &blobs);
    if (status != XEP_OK) return status;
    status = group->transport->ops->heap_connect(buffer->heap, blobs.blob, blobs.bytes);
    xep_blobs_free(&blobs);
    return status;
}

/* What the control heap could map, every heap must: both sides of a pair rely on the same answer. */
static xep_status_t check_mapped(xep_buffer_t *buffer)
{
    xep_group_t *group = buffer->group;
    xep_wire_t *wire = &buffer->heap->wire;
    for (uint32_t r = 0; r < group->nranks; r++)
        if (group->peers[r].mapped && wire->ops->map(wire, r) == NULL)
            return xep_fail(XEP_ERR_TRANSPORT, "the %llu bytes of rank %u cannot be mapped, though they can share memory",
                            (unsigned long long)buffer->heap->bytes, r);
    return XEP_OK;
}

static xep_status_t open_mode(xep_buffer_t *buffer, const xep_buffer_params_t *params)
{
    xep_status_t status = check_mapped(buffer);
    fill_env(buffer);
    if (status == XEP_OK) status = buffer->plugin.plugin->open(&buffer->env, &buffer->mode);
    offer_t mine = offer_of(params, buffer->heap->bytes, status);
    return agree(buffer->group, &mine);
}

void xep_buffer_free(xep_buffer_t *buffer)
{
    if (buffer->mode != NULL) buffer->plugin.plugin->close(buffer->mode);
    if (buffer->heap != NULL) buffer->group->transport->ops->heap_close(buffer->heap);
    xep_team_destroy(buffer->team);
    xep_lateness_close(buffer);
    free(buffer->states);
    free(buffer->requests);
    free(buffer->handles);
    xep_plugin_unload(&buffer->plugin);
    free(buffer);
}

xep_status_t xep_buffer_open(xep_group_t *group, const xep_buffer_params_t *params, xep_status_t status,
                             xep_buffer_t **buffer_p)
{
    uint64_t bytes = 0;
    xep_buffer_t *buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a buffer");
    buffer->group = group;
    atomic_flag_clear(&buffer->entered);
    if (status == XEP_OK) status = prepare(buffer, params, &bytes);
    offer_t mine = offer_of(params, bytes, status);
    if ((status = agree(group, &mine)) != XEP_OK) goto err_free;
    if ((status = open_heap(buffer, params, bytes)) != XEP_OK) goto err_free;
    if ((status = open_mode(buffer, params)) != XEP_OK) goto err_free;
    xep_group_add_buffer(group, buffer);
    xep_log(XEP_LOG_INFO, "buffer of mode %s: %llu bytes, %u slots of %llu rows", buffer->plugin.plugin->name,
            (unsigned long long)bytes, buffer->shape.slots, (unsigned long long)buffer->shape.recv_rows);
    *buffer_p = buffer;
    return XEP_OK;

err_free:
    xep_buffer_free(buffer);
    return status;
}

void xep_buffer_enter(xep_buffer_t *buffer)
{
    while (atomic_flag_test_and_set_explicit(&buffer->entered, memory_order_acquire)) sched_yield();
}

void xep_buffer_leave(xep_buffer_t *buffer)
{
    atomic_flag_clear_explicit(&buffer->entered, memory_order_release);
}

void xep_group_add_buffer(xep_group_t *group, xep_buffer_t *buffer)
{
    pthread_mutex_lock(&group->buffers_lock);
    buffer->next = group->buffers;
    group->buffers = buffer;
    pthread_mutex_unlock(&group->buffers_lock);
}

void xep_group_remove_buffer(xep_group_t *group, xep_buffer_t *buffer)
{
    pthread_mutex_lock(&group->buffers_lock);
    for (xep_buffer_t **link = &group->buffers; *link != NULL; link = &(*link)->next)
        if (*link == buffer) {
            *link = buffer->next;
            break;
        }
    pthread_mutex_unlock(&group->buffers_lock);
}
