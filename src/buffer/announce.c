/* SPDX-License-Identifier: BSD-3-Clause */

#include "announce.h"

#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "error.h"
#include "group_out.h"
#include "group_sleep.h"
#include "handle.h"
#include "layout.h"
#include "members.h"
#include "request.h"

enum { LINE = 64, STEP_BITS = 22, FLAG_BITS = 2, SERVING = 1 << STEP_BITS, LAST = 2 << STEP_BITS };
#define STEP_MASK ((1u << STEP_BITS) - 1)

/* ---- where things are ---- */

static uint32_t ring_entries(const xep_shape_t *shape)
{
    return shape->slots * XEP_REQUESTS_PER_SLOT + 1;
}

static uint32_t entry_bytes(const xep_shape_t *shape)
{
    return (uint32_t)((sizeof(xep_announced_t) + shape->slots * sizeof(uint64_t) + LINE - 1) / LINE * LINE);
}

static uint64_t row_bytes(const xep_shape_t *shape)
{
    return LINE + (uint64_t)ring_entries(shape) * entry_bytes(shape);
}

uint64_t xep_announce_bytes(const xep_shape_t *shape)
{
    return shape->nranks * row_bytes(shape);
}

/* The word has a line of its own in front of the ring. */
static uint64_t entry_at(const xep_buffer_t *buffer, uint64_t epoch)
{
    return LINE + epoch % ring_entries(&buffer->shape) * buffer->announce->entry_bytes;
}

static xep_announced_t *entry_of(const xep_buffer_t *buffer, uint32_t rank, uint64_t epoch)
{
    return (xep_announced_t *)(void *)(buffer->announce->row[rank] + entry_at(buffer, epoch));
}

static _Atomic uint64_t *word_of(const xep_buffer_t *buffer, uint32_t rank)
{
    return (_Atomic uint64_t *)(void *)buffer->announce->row[rank];
}

/* With an owner map this has been done by then. */
static xep_status_t check_indices(xep_request_t *req)
{
    if (req->dispatch.cached != NULL) return XEP_OK;
    return xep_layout_count_selections(&req->dispatch, req->buffer->shape.experts, NULL);
}

xep_status_t xep_announce_open(xep_buffer_t *buffer, uint64_t offset)
{
    const xep_shape_t *shape = &buffer->shape;
    xep_wire_t *wire = &buffer->heap->wire;
    xep_announce_t *announce = calloc(1, sizeof *announce);
    buffer->announce = announce;
    if (announce != NULL) announce->row = calloc(shape->nranks, sizeof *announce->row);
    if (announce == NULL || announce->row == NULL)
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the announcements of %u ranks", shape->nranks);
    for (uint32_t r = 0; r < shape->nranks; r++) {
        char *base = wire->ops->map(wire, r);
        announce->row[r] = (base != NULL ? base : (char *)buffer->heap->base) + offset + r * row_bytes(shape);
    }
    announce->offset = offset;
    announce->entry_bytes = entry_bytes(shape);
    buffer->before_mode = xep_announce_begin;
    if (buffer->take_dispatch == NULL) buffer->take_dispatch = check_indices;
    return XEP_OK;
}

void xep_announce_close(xep_announce_t *announce)
{
    if (announce == NULL) return;
    free(announce->row);
    free(announce);
}

/* ---- telling ---- */

/* A wire that takes no more does so again when it has moved bytes; else the operation ends by its deadline. */
static int moves(xep_wire_t *wire, xep_status_t status, uint64_t deadline_ns)
{
    return status == XEP_INPROGRESS && wire->ops->progress(wire) == XEP_OK && xep_clock_ns() < deadline_ns;
}

/* An entry without its epoch, which is a signal. Goes along with what the mode sends first, in one message. */
static void put_entry(xep_buffer_t *buffer, uint32_t rank, const xep_announced_t *entry, uint64_t epoch)
{
    const xep_announce_t *announce = buffer->announce;
    xep_wire_t *wire = &buffer->heap->wire;
    const uint64_t at = announce->offset + buffer->shape.rank * row_bytes(&buffer->shape) + entry_at(buffer, epoch),
                   behind = sizeof entry->epoch, deadline_ns = xep_deadline(buffer->timeout_ms);
    xep_status_t status;
    do status = wire->ops->put(wire, rank, at + behind, (const char *)entry + behind, announce->entry_bytes - behind);
    while (moves(wire, status, deadline_ns));
    do status = wire->ops->signal_later(wire, rank, at, epoch);
    while (moves(wire, status, deadline_ns));
}

static void put_word(xep_buffer_t *buffer, uint32_t rank)
{
    const xep_announce_t *announce = buffer->announce;
    xep_wire_t *wire = &buffer->heap->wire;
    const uint64_t at = announce->offset + buffer->shape.rank * row_bytes(&buffer->shape),
                   deadline_ns = xep_deadline(buffer->timeout_ms);
    xep_status_t status;
    do status = wire->ops->put_signal(wire, rank, at, NULL, 0, at, announce->word);
    while (moves(wire, status, deadline_ns));
}

static int is_put_to(const xep_buffer_t *buffer, uint32_t rank)
{
    return !buffer->group->peers[rank].mapped && rank != buffer->shape.rank && !xep_group_is_out(buffer->group, rank);
}

/*
 * Ranks that map this one read it here. What a rank that serves begins others have announced, so it need not travel:
 * but where they may die and leave the others to go on, it may be the only one that some rank hears of it from.
 */
static void tell_entry(xep_buffer_t *buffer, xep_announced_t *entry, uint64_t epoch)
{
    const xep_group_t *group = buffer->group;
    const int travels = group->nnodes != 1 && (!(buffer->announce->word & SERVING) || buffer->members != NULL);
    atomic_store_explicit(&entry->epoch, epoch, memory_order_release);
    for (uint32_t r = 0; travels && r < group->nranks; r++)
        if (is_put_to(buffer, r)) put_entry(buffer, r, entry, epoch);
    if (travels && buffer->shape.by_nodes) xep_announce_push(buffer); /* what is sent first goes to forwarders alone */
    if (xep_group_sleeps(group)) xep_group_wake_idle(group);
}

void xep_announce_push(xep_buffer_t *buffer)
{
    xep_wire_t *wire = &buffer->heap->wire;
    (void)wire->ops->flush(wire);
}

/* One that waits until the ranks agree on who is out has no turn yet: its slot has that of an older dispatch. */
static uint64_t held(const xep_handle_t *handle, const xep_handle_t *begun)
{
    const int waits = handle->in_flight != NULL && handle->in_flight->state == XEP_REQUEST_DEFERRED;
    if (handle == begun || waits || handle->released || handle->state == XEP_HANDLE_FREE) return 0;
    return handle->turn + 1;
}

/* Returns how many slots hold no handle. */
static uint32_t fill_held(const xep_buffer_t *buffer, const xep_handle_t *begun, xep_announced_t *entry)
{
    uint32_t none = 0;
    for (uint32_t s = 0; s < buffer->shape.slots; s++) {
        entry->held[s] = held(&buffer->handles[s], begun);
        none += buffer->handles[s].state == XEP_HANDLE_FREE;
    }
    return none;
}

static void fill_dispatch(const xep_request_t *req, xep_announced_t *entry)
{
    const xep_dispatch_args_t *args = &req->dispatch;
    entry->has = (args->cached != NULL) * XEP_ANNOUNCED_CACHED | (args->topk_weights != NULL) * XEP_ANNOUNCED_WEIGHTS |
                 (args->nscales != 0) * XEP_ANNOUNCED_SCALES;
    entry->turn = args->cached != NULL ? args->cached->turn : 0;
    entry->flags = args->flags;
    entry->hidden = args->hidden;
    entry->topk = args->topk;
    entry->nscales = args->nscales;
    entry->dtype = args->dtype;
    entry->topk_idx_dtype = args->topk_idx_dtype;
    entry->scales_dtype = args->scales_dtype;
    entry->quant = args->quant;
    entry->quant_scale = args->quant_scale;
    entry->arrangement = args->arrangement;
    entry->expert_alignment = args->expert_alignment;
    entry->npayloads = args->npayloads;
    for (uint32_t i = 0; i < args->npayloads; i++) {
        entry->payload_bytes[i] = args->payloads[i].bytes;
        entry->payload_alignment[i] = (uint8_t)args->payloads[i].alignment;
    }
    fill_held(req->buffer, req->handle, entry);
}

/* The outputs of a next piece are those of a combine. */
static void fill_combine(const xep_request_t *req, xep_announced_t *entry)
{
    const xep_combine_args_t *args = &req->combine;
    const int weights = args->topk_weights != NULL || args->out_weights != NULL;
    entry->has = weights * XEP_ANNOUNCED_WEIGHTS | (req->op.combine != NULL) * XEP_ANNOUNCED_OUTPUTS;
    entry->turn = req->handle->turn;
    entry->flags = args->flags;
    entry->hidden = args->hidden;
    entry->dtype = args->dtype;
    entry->quant = args->quant;
    entry->quant_scale = args->quant_scale;
}

static void tell(const xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    xep_announced_t *entry = entry_of(buffer, buffer->shape.rank, req->op.epoch);
    entry->kind = req->op.kind;
    entry->step = buffer->announce->step;
    if (req->op.kind == XEP_OP_DISPATCH) fill_dispatch(req, entry);
    else fill_combine(req, entry);
    tell_entry(buffer, entry, req->op.epoch);
}

xep_status_t xep_announce_begin(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    xep_announce_t *announce = buffer->announce;
    const int is_dispatch = req->op.kind == XEP_OP_DISPATCH, is_early = announce->early == req->op.epoch;
    if (!is_dispatch && is_early) return xep_announce_check(buffer);
    if (!is_early) tell(req);
    announce->boundary = (announce->step + 1) & STEP_MASK;
    announce->dispatches += is_dispatch;
    if (is_dispatch) announce->last = req->op.epoch;
    return buffer->members != NULL ? xep_members_choose(req) : XEP_OK;
}

xep_status_t xep_announce_check(const xep_buffer_t *buffer)
{
    if (buffer->announce->early != buffer->epoch + 1) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID, "this rank has announced a dispatch (xep_announce_dispatch()): begin it first");
}

xep_status_t xep_announce_early(xep_buffer_t *buffer)
{
    xep_announce_t *announce = buffer->announce;
    const uint64_t epoch = buffer->epoch + 1;
    xep_announced_t *last = entry_of(buffer, buffer->shape.rank, announce->last), *entry;
    xep_status_t status = xep_announce_check(buffer);
    if (status != XEP_OK) return status;
    if (announce->last == 0 || epoch - announce->last >= ring_entries(&buffer->shape))
        return xep_fail(XEP_ERR_INVALID, "the last %u operations of this rank have no dispatch",
                        ring_entries(&buffer->shape) - 1);
    if (last->has & XEP_ANNOUNCED_CACHED)
        return xep_fail(XEP_ERR_INVALID, "the last dispatch of this rank has the routing of a handle");
    entry = entry_of(buffer, buffer->shape.rank, epoch);
    if (fill_held(buffer, NULL, entry) == 0)
        return xep_fail(XEP_ERR_BUSY, "all %u slots hold handles (release one first)", buffer->shape.slots);
    entry->turn = 0;
    memcpy(&entry->kind, &last->kind, offsetof(xep_announced_t, held) - offsetof(xep_announced_t, kind));
    entry->step = announce->step;
    announce->early = epoch;
    tell_entry(buffer, entry, epoch);
    if (buffer->group->nnodes != 1) xep_announce_push(buffer);
    return XEP_OK;
}

static void tell_word(xep_buffer_t *buffer, uint64_t word)
{
    const xep_group_t *group = buffer->group;
    buffer->announce->word = word;
    atomic_store_explicit(word_of(buffer, group->rank), word, memory_order_release);
    for (uint32_t r = 0; group->nnodes != 1 && r < group->nranks; r++)
        if (is_put_to(buffer, r)) put_word(buffer, r);
    if (xep_group_sleeps(group)) xep_group_wake_idle(group);
}

/* This rank is where the step with the number before this one has ended. */
static void stand(xep_buffer_t *buffer, uint32_t step, uint32_t flags)
{
    xep_announce_t *announce = buffer->announce;
    announce->step = announce->boundary = step & STEP_MASK;
    announce->dispatches = 0;
    tell_word(buffer, buffer->epoch << (STEP_BITS + FLAG_BITS) | announce->step | flags);
}

void xep_announce_step(xep_buffer_t *buffer, int last)
{
    stand(buffer, buffer->announce->step + 1, last ? LAST : 0);
}

void xep_announce_stand(xep_buffer_t *buffer, uint32_t step)
{
    stand(buffer, step, 0);
}

void xep_announce_reset(xep_buffer_t *buffer)
{
    buffer->announce->last = buffer->announce->early = 0;
    stand(buffer, 0, 0);
}

void xep_announce_serving(xep_buffer_t *buffer, int serving)
{
    const uint64_t word = buffer->announce->word & ~(uint64_t)SERVING;
    tell_word(buffer, serving ? word | SERVING : word);
}

/* ---- hearing ---- */

/* acquire: the rest of the entry was written before its epoch */
const xep_announced_t *xep_announce_find(const xep_buffer_t *buffer, uint64_t epoch, uint32_t from, uint32_t *rank_p)
{
    for (uint32_t r = from; r < buffer->shape.nranks; r++) {
        const xep_announced_t *entry = entry_of(buffer, r, epoch);
        if (atomic_load_explicit(&entry->epoch, memory_order_acquire) != epoch) continue;
        if (xep_group_is_out(buffer->group, r)) continue;
        *rank_p = r;
        return entry;
    }
    return NULL;
}

xep_announced_end_t xep_announce_end_of(const xep_buffer_t *buffer, uint32_t rank)
{
    const uint64_t word = atomic_load_explicit(word_of(buffer, rank), memory_order_acquire);
    return (xep_announced_end_t){.epoch = word >> (STEP_BITS + FLAG_BITS),
                                 .step = (uint32_t)word & STEP_MASK,
                                 .serving = (word & SERVING) != 0,
                                 .last = (word & LAST) != 0};
}

int xep_step_is_before(uint32_t a, uint32_t b)
{
    return ((a - b) & STEP_MASK) > STEP_MASK / 2;
}
