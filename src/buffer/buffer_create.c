/* SPDX-License-Identifier: BSD-3-Clause */

#include "buffer.h"

#include <stdio.h>
#include <stdlib.h>

#include "announce.h"
#include "balance.h"
#include "buffer_agree.h"
#include "buffer_size.h"
#include "group_exchange.h"
#include "heap.h"
#include "log.h"
#include "members.h"
#include "mode.h"
#include "owners.h"
#include "packed_payloads.h"
#include "path.h"
#include "request.h"
#include "room.h"
#include "staging.h"
#include "trace.h"

/*
 * How ranks create a buffer:
 *  1. Each alone: loads the mode, measures the shape, allocates what is its own. All agree that all could, on the same
 *     parameters and sizes.
 *  2. Each opens its heap, if those of its host fit there together. All agree that all could: memory may be short on
 *     one of them.
 *  3. All exchange the keys of their heaps.
 *  4. Each opens its mode, which connects to the peers, and allocates the pages of its own heap that an even load
 *     needs. All agree that all could.
 *  5. Each maps those pages of its peers that it will use: they are all there by now.
 *
 * What can go wrong: an error of one rank between two steps would leave the others waiting for it in the next. So no
 * step returns an error before the agreement behind it, and that gives every rank the same answer. Where that is that
 * memory is short, and less would do, all begin anew with less.
 */

/*
 * Everything that an operation will need is allocated here, so that the data path never does it. States begin at a
 * line, and aligned_alloc() wants whole lines, one at least: a mode may need no state.
 */
static xep_status_t allocate_pools(xep_buffer_t *buffer)
{
    const size_t state_bytes = buffer->plugin.plugin->state_bytes;
    const uint32_t nranks = buffer->shape.nranks;
    uint32_t *ranks = malloc(nranks * sizeof *ranks);
    buffer->everybody = (xep_ranks_t){.count = nranks, .self = buffer->shape.rank, .rank = ranks};
    buffer->nrequests = buffer->shape.slots * XEP_REQUESTS_PER_SLOT;
    buffer->handles = calloc(buffer->shape.slots, sizeof *buffer->handles);
    buffer->requests = calloc(buffer->nrequests, sizeof *buffer->requests);
    buffer->states = aligned_alloc(64, ((size_t)buffer->nrequests * state_bytes + 64) / 64 * 64);
    if (ranks == NULL || buffer->handles == NULL || buffer->requests == NULL || buffer->states == NULL)
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u slots of %u ranks", buffer->shape.slots, nranks);
    for (uint32_t r = 0; r < nranks; r++) ranks[r] = r;
    for (uint32_t i = 0; i < buffer->shape.slots; i++)
        buffer->handles[i] = (xep_handle_t){.buffer = buffer, .slot = i, .state = XEP_HANDLE_FREE};
    for (uint32_t i = 0; i < buffer->nrequests; i++) buffer->requests[i].buffer = buffer;
    return xep_wait_times_open(&buffer->waits, buffer->nrequests, nranks);
}

/* A name that is too long is cut: it is shown to people only. */
static uint32_t add_to_trace(const xep_buffer_t *buffer)
{
    const xep_shape_t *shape = &buffer->shape;
    xep_trace_buffer_t traced = {.experts = shape->experts,
                                 .topk = shape->topk,
                                 .hidden = shape->hidden,
                                 .slots = shape->slots};
    snprintf(traced.mode, sizeof traced.mode, "%s", buffer->plugin.plugin->name);
    return xep_trace_add_buffer(&traced);
}

/* Kernels need none, nor has the host multiprocessors. */
static xep_status_t open_team(xep_buffer_t *buffer, const xep_buffer_params_t *params)
{
    const xep_group_t *group = buffer->group;
    const int on_host = xep_buffer_memory_of_mode(params, group->nnodes) == XEP_MEMORY_HOST;
    const uint32_t threads = on_host ? params->threads : 1;
    buffer->env.threads = threads;
    buffer->env.multiprocessors = on_host ? 0 : params->multiprocessors;
    return xep_team_create(threads, group->here * threads > group->processors, &buffer->team);
}

/* Whether experts have other ranks than by blocks, or several. */
static int has_instances(const xep_buffer_params_t *params)
{
    return params->owners != NULL || params->nreplicas != 0 || params->balance != XEP_BALANCE_NONE;
}

/* Indices in device memory are numbered by the mode's kernels, or once they have been staged. */
static xep_status_t open_instances(xep_buffer_t *buffer, const xep_buffer_params_t *params, xep_memory_t memory)
{
    xep_status_t status = xep_owners_open(buffer, params);
    if (memory == XEP_MEMORY_HOST) buffer->take_dispatch = xep_owners_take;
    if (status != XEP_OK || params->balance == XEP_BALANCE_NONE) return status;
    return xep_balance_open(buffer, params);
}

/** One attempt to make a buffer; where memory is short another one follows, with less. */
typedef struct attempt {
    const xep_buffer_params_t *params;
    const uint32_t *sends; /* [R] */
    xep_buffer_size_t size;
    int is_prepared;     /* all but the heaps, whose size the caller can change, is there */
    int may_be_smaller;  /* less memory would do */
    xep_agreed_t agreed; /* with is_short the attempt has ended for lack of memory alone */
} attempt_t;

/* all that this rank can do alone before it knows what the others want */
static xep_status_t prepare(xep_buffer_t *buffer, attempt_t *attempt)
{
    xep_group_t *group = buffer->group;
    const xep_buffer_params_t *params = attempt->params;
    xep_buffer_size_t *size = &attempt->size;
    const xep_memory_t memory = xep_buffer_memory_of_mode(params, group->nnodes);
    xep_status_t status = xep_plugin_load(&group->config, params->mode, memory, &buffer->plugin);
    if (status == XEP_OK) status = xep_mode_check_buffer(buffer->plugin.plugin, params, memory);
    if (status == XEP_OK) status = xep_members_check(group, params, buffer->plugin.plugin);
    if (status != XEP_OK) return status;
    status = xep_shape_open(params, group, group->nranks, group->nnodes, attempt->sends, &buffer->shape);
    if (status == XEP_OK) status = xep_path_choose(&group->config, params, buffer->plugin.plugin, &buffer->shape);
    if (status != XEP_OK) return status;
    status = xep_buffer_measure_shape(&group->config, buffer->plugin.plugin, &buffer->shape, params,
                                      buffer->env.regions, &buffer->areas, size);
    if (status != XEP_OK) return status;
    buffer->params = *params;
    buffer->can = xep_mode_tell(buffer->plugin.plugin, params->memory);
    /* the caller's string may be gone after the call; the plugin's is there as long as the buffer */
    buffer->params.mode = buffer->plugin.plugin->name;
    buffer->params.owners = NULL; /* likewise */
    buffer->params.replicas = NULL;
    buffer->shape.recv_rows = size->recv_rows;
    buffer->most_tokens = attempt->sends[group->rank] ? params->tokens : 0;
    buffer->timeout_ms = params->timeout_ms;
    buffer->prefault_left = group->config.prefault;
    status = allocate_pools(buffer);
    if (status == XEP_OK && has_instances(params)) status = open_instances(buffer, params, memory);
    if (status == XEP_OK) status = open_team(buffer, params);
    attempt->is_prepared = status == XEP_OK;
    attempt->may_be_smaller = status == XEP_OK && xep_buffer_may_be_smaller(buffer, params, size->bytes);
    return status;
}

/* status: of this rank so far. room: as in xep_proposal_t. */
static xep_status_t agree(xep_buffer_t *buffer, attempt_t *attempt, const xep_room_view_t *room, xep_status_t status)
{
    const xep_proposal_t mine = {.params = attempt->params,
                                 .by_nodes = buffer->shape.by_nodes,
                                 .bytes = attempt->size.bytes,
                                 .room = room,
                                 .may_be_smaller = attempt->may_be_smaller,
                                 .status = status};
    status = xep_buffer_agree(buffer->group, &mine, &attempt->agreed);
    if (status == XEP_OK) buffer->env.fewest = attempt->agreed.fewest;
    return status;
}

/* Step 1. A rank that looks at its own heap alone says nothing of what there is. */
static xep_status_t propose(xep_buffer_t *buffer, attempt_t *attempt)
{
    xep_group_t *group = buffer->group;
    xep_room_view_t room = {0};
    xep_room_space_t space;
    xep_status_t status = prepare(buffer, attempt);
    if (status == XEP_OK && group->config.room == XEP_ROOM_OF_HOST) {
        xep_room_see_space(&space);
        status = xep_room_check_space(&space, group->here, attempt->size.bytes);
        xep_room_view(group->transport, attempt->size.bytes, &room);
    }
    return agree(buffer, attempt, &room, status);
}

/* The device's heap, which other devices reach, or what stands for it where they cannot. */
static xep_status_t open_device(xep_buffer_t *buffer, const xep_buffer_size_t *size)
{
    xep_heap_device_t *device = buffer->device;
    if (device == NULL) return XEP_OK;
    xep_status_t status;
    if (xep_buffer_memory_of_mode(&buffer->params, buffer->group->nnodes) == XEP_MEMORY_HOST) {
        status = xep_staging_open(buffer);
    } else {
        status = device->ops->heap_open(device, size->device_bytes);
        if (status == XEP_OK) status = xep_heap_note(buffer, device->base, device->bytes);
    }
    return status == XEP_OK ? xep_packed_open(buffer) : status;
}

/*
 * Step 2 and 3. An error of this rank goes into its proposal first: the others are on their way into the exchange,
 * and would wait there until their deadline.
 */
static xep_status_t open_heaps(xep_buffer_t *buffer, attempt_t *attempt)
{
    xep_group_t *group = buffer->group;
    const int masks = attempt->params->on_failure == XEP_ON_FAILURE_MASK;
    xep_status_t status = attempt->agreed.room;
    if (status == XEP_OK) status = xep_heap_open(&group->config, group->transport, attempt->size.bytes, &buffer->heap);
    if (status == XEP_OK) buffer->heap->spares = masks && group->nnodes != 1;
    if (status == XEP_OK) status = open_device(buffer, &attempt->size);
    if (status == XEP_OK) buffer->heap->stream_bytes = xep_buffer_stream_bytes(buffer);
    status = agree(buffer, attempt, NULL, status);
    return status == XEP_OK ? xep_group_connect_heap(group, buffer->heap) : status;
}

/* A rank reports devices that it cannot reach when it opens its mode, on which all agree. */
static xep_status_t connect_device(xep_buffer_t *buffer, xep_status_t *reached_p)
{
    xep_group_t *group = buffer->group;
    xep_heap_device_t *device = buffer->device;
    xep_blobs_t keys;
    *reached_p = XEP_OK;
    if (device == NULL || buffer->staging != NULL) return XEP_OK;
    xep_status_t status = xep_group_exchange_blobs(group, device->key, device->key_bytes, &keys);
    if (status != XEP_OK) return status;
    *reached_p = device->ops->heap_connect(device, group->rank, group->nranks, keys.blob, keys.bytes);
    xep_blobs_free(&keys);
    return XEP_OK;
}

/*
 * Every heap must be mapped for the same ranks as the control heap: modes rely on the ranks of a node mapping one
 * another.
 */
static xep_status_t check_mapped(xep_buffer_t *buffer)
{
    xep_group_t *group = buffer->group;
    xep_wire_t *wire = &buffer->heap->wire;
    for (uint32_t r = 0; r < group->nranks; r++) {
        (void)xep_fail(XEP_OK, "%s", ""); /* the transport may know why not */
        void *base = wire->ops->map(wire, r);
        int mapped = base != NULL;
        xep_status_t status = mapped ? xep_heap_note(buffer, base, buffer->heap->bytes) : XEP_OK;
        if (status != XEP_OK) return status;
        if (mapped == group->peers[r].mapped) continue;
        if (!mapped && xep_last_error()[0] != '\0') return XEP_ERR_TRANSPORT;
        char hint[XEP_SHM_HINT_BYTES] = "";
        if (!mapped) xep_shm_hint(buffer->heap->bytes, hint);
        return xep_fail(XEP_ERR_TRANSPORT, "the %llu bytes of rank %u can%s be mapped, though it is on %s node%s",
                        (unsigned long long)buffer->heap->bytes, r, mapped ? "" : "not", mapped ? "another" : "this",
                        hint);
    }
    return XEP_OK;
}

/* Step 4. An error of the mapping is told to all ranks, as one of the mode is. Less memory would not help here. */
static xep_status_t open_mode(xep_buffer_t *buffer, attempt_t *attempt, xep_status_t status)
{
    const int masks = attempt->params->on_failure == XEP_ON_FAILURE_MASK;
    if (status == XEP_OK) status = check_mapped(buffer);
    if (status == XEP_OK) status = xep_staging_connect_direct(buffer);
    xep_buffer_fill_env(buffer);
    if (status == XEP_OK && masks)
        status = buffer->device != NULL ? xep_members_open_device(buffer) : xep_members_open(buffer);
    if (status == XEP_OK && (attempt->params->flags & XEP_BUFFER_SERVED) != 0) status = xep_announce_open(buffer);
    xep_request_choose_progress(buffer);
    if (status == XEP_OK) status = buffer->plugin.plugin->open(&buffer->env, &buffer->mode);
    attempt->may_be_smaller = 0;
    return agree(buffer, attempt, NULL, status);
}

/* Everything is kept in the buffer as soon as it is made, so that free knows how far this came. */
static xep_status_t open_buffer(xep_group_t *group, xep_heap_device_t *device, attempt_t *attempt,
                                xep_buffer_t **buffer_p)
{
    xep_status_t status, reached;
    xep_buffer_t *buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL) {
        if (device != NULL) device->ops->close(device);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a buffer");
    }
    buffer->group = group;
    buffer->number = group->buffers + 1;
    buffer->device = device;
    buffer->task.run = xep_request_run_task;
    if ((status = propose(buffer, attempt)) != XEP_OK) goto err_free;
    if ((status = open_heaps(buffer, attempt)) != XEP_OK) goto err_free;
    if ((status = connect_device(buffer, &reached)) != XEP_OK) goto err_free;
    if ((status = open_mode(buffer, attempt, reached)) != XEP_OK) goto err_free;
    group->buffers = buffer->number;
    if (xep_trace_is_on()) buffer->trace_number = add_to_trace(buffer);
    xep_group_add_task(group, &buffer->task);
    xep_log(XEP_LOG_INFO, "buffer of mode %s: %llu bytes, %llu of the device, %u slots of %llu rows",
            buffer->plugin.plugin->name, (unsigned long long)attempt->size.bytes,
            (unsigned long long)attempt->size.device_bytes, buffer->shape.slots,
            (unsigned long long)buffer->shape.recv_rows);
    xep_heap_prefault_all(&buffer->peer_pages, &buffer->prefault_left);
    xep_heap_log_pages(buffer->heap);
    *buffer_p = buffer;
    return XEP_OK;

err_free:
    if (buffer->heap != NULL) buffer->heap->exposed = 1; /* others may have made it, and put rows here by address */
    xep_buffer_free(buffer);
    return status;
}

/* If there is no room for every routing, and the params do not ask for it: makes room for an even load, and pieces. */
static xep_status_t open_smaller(xep_group_t *group, const xep_buffer_params_t *params, const uint32_t *sends,
                                 xep_buffer_t **buffer_p)
{
    xep_buffer_params_t smaller = *params;
    attempt_t attempt = {.params = &smaller, .sends = sends, .size = XEP_BUFFER_SIZE_INIT};
    smaller.flags |= XEP_BUFFER_PIECES;
    xep_status_t status = open_buffer(group, NULL, &attempt, buffer_p);
    if (status == XEP_OK && group->rank == 0)
        xep_log(XEP_LOG_WARN,
                "no memory for the rows of any routing: this buffer of mode %s has room for %llu rows a rank, and more "
                "of them are an error or, with XEP_DISPATCH_PIECES, come in pieces (params.recv_rows)",
                (*buffer_p)->plugin.plugin->name, (unsigned long long)(*buffer_p)->shape.recv_rows);
    return status;
}

/* Ranks see different amounts of memory; the remedy is the same on all of them. */
static xep_status_t add_remedy(const xep_buffer_params_t *params)
{
    int whole = (params->flags & XEP_BUFFER_PIECES) == 0 && params->on_failure == XEP_ON_FAILURE_FAIL;
    return xep_fail(XEP_ERR_NO_MEMORY, "%s; less is needed with fewer tokens, slots or recv_rows%s", xep_last_error(),
                    whole && params->memory == XEP_MEMORY_HOST ? ", or rows in pieces (XEP_BUFFER_PIECES)" : "");
}

/** What a rank says before all else; exchanged as bytes. */
typedef struct call {
    int32_t status;   /* of its arguments */
    uint32_t buffers; /* that it has created: fewer than another one where it has given up a creation at its end */
    uint64_t tokens;
} call_t;

/*
 * What the others say: who sends; what a rank that never has tokens makes its buffer for, the most of any rank; and how
 * many buffers there were, as all go on from the most.
 */
static xep_status_t hear_calls(xep_group_t *group, xep_status_t own, uint64_t *tokens_p, uint32_t *sends)
{
    const call_t mine = {.status = own, .buffers = group->buffers, .tokens = own == XEP_OK ? *tokens_p : 0};
    uint64_t most = 0;
    call_t *all = calloc(group->nranks, sizeof *all);
    if (all == NULL || sends == NULL) {
        free(all);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the tokens of %u ranks", group->nranks);
    }
    xep_status_t status = xep_group_agree(group, "create its buffer", &mine, all, sizeof mine);
    for (uint32_t r = 0; r < group->nranks; r++) {
        sends[r] = all[r].tokens != 0;
        if (all[r].tokens > most) most = all[r].tokens;
        if (all[r].buffers > group->buffers) group->buffers = all[r].buffers;
    }
    if (status == XEP_OK && most == 0)
        status = xep_fail(XEP_ERR_INVALID, "invalid tokens: 0 on all ranks (at least 1 on one of them)");
    if (mine.tokens == 0) *tokens_p = most;
    free(all);
    return status;
}

/* Less where all ranks lack memory for all; the device is the buffer's by then. */
static xep_status_t open_agreed(xep_group_t *group, const xep_buffer_params_t *params, const uint32_t *sends,
                                xep_heap_device_t *device, xep_buffer_t **buffer_p)
{
    attempt_t attempt = {.params = params, .sends = sends, .size = XEP_BUFFER_SIZE_INIT};
    xep_status_t status = open_buffer(group, device, &attempt, buffer_p);
    if (attempt.agreed.is_short) status = open_smaller(group, params, sends, buffer_p);
    return status == XEP_ERR_NO_MEMORY && attempt.is_prepared ? add_remedy(params) : status;
}

xep_status_t xep_buffer_open(xep_group_t *group, const xep_buffer_params_t *params, xep_heap_device_t *device,
                             xep_status_t status, xep_buffer_t **buffer_p)
{
    xep_buffer_params_t own = *params;
    uint32_t *sends = calloc(group->nranks, sizeof *sends);
    xep_group_gathers_for(group, "xep_buffer_create");
    status = hear_calls(group, status, &own.tokens, sends);
    if (status == XEP_OK) status = open_agreed(group, &own, sends, device, buffer_p);
    else if (device != NULL) device->ops->close(device);
    xep_group_gathers_for(group, NULL);
    free(sends);
    return status;
}
