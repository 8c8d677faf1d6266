/* SPDX-License-Identifier: BSD-3-Clause */

#include "announce.h"

#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"
#include "group_doorbell.h"
#include "group_out.h"
#include "layout.h"
#include "members.h"
#include "request.h"

enum { LINE = 64, FLAG_BITS = 2, SERVING = 1 << XEP_STEP_BITS, LAST = 2 << XEP_STEP_BITS };
#define EPOCH_BITS 48

/* ---- where things are ---- */

uint32_t xep_announce_entries(const xep_shape_t *shape)
{
    return shape->slots * XEP_REQUESTS_PER_SLOT + 2;
}

uint32_t xep_announce_entry_bytes(const xep_shape_t *shape)
{
    return (uint32_t)((sizeof(xep_announced_t) + shape->slots * sizeof(uint64_t) + LINE - 1) / LINE * LINE);
}

uint64_t xep_announce_row_bytes(const xep_shape_t *shape)
{
    return LINE + (uint64_t)xep_announce_entries(shape) * xep_announce_entry_bytes(shape);
}

uint64_t xep_announce_bytes(const xep_shape_t *shape)
{
    return shape->nranks * xep_announce_row_bytes(shape);
}

/* The word has a line of its own in front of the ring. */
xep_announced_t *xep_announce_entry(const xep_buffer_t *buffer, uint32_t rank, uint64_t epoch)
{
    const uint64_t at = LINE + epoch % xep_announce_entries(&buffer->shape) * buffer->announce->entry_bytes;
    return (xep_announced_t *)(void *)(buffer->announce->row[rank] + at);
}

static _Atomic uint64_t *word_of(const xep_buffer_t *buffer, uint32_t rank)
{
    return (_Atomic uint64_t *)(void *)buffer->announce->row[rank];
}

/* ---- telling ---- */

/* A wire that takes no more does so again when it has moved bytes; else the operation ends by its deadline. */
static int moves(xep_wire_t *wire, xep_status_t status, uint64_t deadline_ns)
{
    return status == XEP_INPROGRESS && wire->ops->progress(wire) == XEP_OK && xep_clock_ns() < deadline_ns;
}

/* Which call an operation of this rank is. */
static uint64_t call_of(const xep_buffer_t *buffer, uint64_t epoch)
{
    return (uint64_t)buffer->refused << EPOCH_BITS | epoch;
}

/* An entry without its first word, which is a signal. Goes along with what the mode sends first, in one message. */
static void put_entry(xep_buffer_t *buffer, uint32_t rank, const xep_announced_t *entry, uint64_t epoch)
{
    const xep_announce_t *announce = buffer->announce;
    xep_wire_t *wire = &buffer->heap->wire;
    const uint32_t self = buffer->shape.rank;
    const uint64_t at = buffer->areas.announce + self * xep_announce_row_bytes(&buffer->shape) +
                        (uint64_t)((const char *)entry - announce->row[self]),
                   behind = sizeof entry->call, deadline_ns = xep_deadline(buffer->timeout_ms);
    xep_status_t status;
    do status = wire->ops->put(wire, rank, at + behind, (const char *)entry + behind, announce->entry_bytes - behind);
    while (moves(wire, status, deadline_ns));
    do status = wire->ops->signal_later(wire, rank, at, call_of(buffer, epoch));
    while (moves(wire, status, deadline_ns));
}

static void put_word(xep_buffer_t *buffer, uint32_t rank)
{
    const xep_announce_t *announce = buffer->announce;
    xep_wire_t *wire = &buffer->heap->wire;
    const uint64_t at = buffer->areas.announce + buffer->shape.rank * xep_announce_row_bytes(&buffer->shape),
                   deadline_ns = xep_deadline(buffer->timeout_ms);
    xep_status_t status;
    do status = xep_heap_tell(buffer->heap, rank, at, 0, at, announce->word);
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
void xep_announce_put(xep_buffer_t *buffer, xep_announced_t *entry, uint64_t epoch)
{
    const xep_group_t *group = buffer->group;
    const int travels = group->nnodes != 1 && (!(buffer->announce->word & SERVING) || buffer->members != NULL);
    atomic_store_explicit(&entry->call, call_of(buffer, epoch), memory_order_release);
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

uint32_t xep_announce_fill_held(const xep_buffer_t *buffer, const xep_handle_t *begun, xep_announced_t *entry)
{
    uint32_t none = 0;
    for (uint32_t s = 0; s < buffer->shape.slots; s++) {
        entry->held[s] = held(&buffer->handles[s], begun);
        none += buffer->handles[s].state == XEP_HANDLE_FREE;
    }
    return none;
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
void xep_announce_stand(xep_buffer_t *buffer, uint32_t step, int last)
{
    xep_announce_t *announce = buffer->announce;
    announce->step = announce->boundary = step & XEP_STEP_MASK;
    announce->dispatches = 0;
    tell_word(buffer, buffer->epoch << (XEP_STEP_BITS + FLAG_BITS) | announce->step | (last ? LAST : 0));
}

/*
 * A dispatch that was announced but never began has left an entry under an epoch that a later operation will use. The
 * entries can be cleared here: no rank announces again before every rank is in the reset, and no entry is in flight.
 */
static void forget_entries(xep_buffer_t *buffer)
{
    const uint64_t bytes = xep_announce_row_bytes(&buffer->shape);
    char *rows = (char *)buffer->heap->base + buffer->areas.announce;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++) memset(rows + r * bytes + LINE, 0, bytes - LINE);
}

void xep_announce_reset(xep_buffer_t *buffer)
{
    xep_announce_t *announce = buffer->announce;
    forget_entries(buffer);
    announce->told = 0;
    announce->last[XEP_OP_DISPATCH] = announce->last[XEP_OP_COMBINE] = announce->dismissed = 0;
    announce->first = announce->early = announce->untold = announce->follows = 0;
    for (uint32_t s = 0; s < buffer->shape.slots; s++) {
        if (announce->served[s].req != NULL) xep_request_drop(announce->served[s].req);
        announce->served[s] = (xep_served_t){0};
    }
    xep_announce_stand(buffer, 0, 0);
}

void xep_announce_serving(xep_buffer_t *buffer, int serving)
{
    const uint64_t word = buffer->announce->word & ~(uint64_t)SERVING;
    tell_word(buffer, serving ? word | SERVING : word);
}

/* ---- hearing ---- */

/*
 * Whether an entry has an operation that this rank can take part in: not one of a balanced dispatch that has failed. A
 * difference of counts, which wrap. Acquire: the rest of the entry was written before.
 */
int xep_announce_is_of(const xep_buffer_t *buffer, const xep_announced_t *entry, uint64_t epoch)
{
    const uint64_t call = atomic_load_explicit(&entry->call, memory_order_acquire);
    return call << (64 - EPOCH_BITS) >> (64 - EPOCH_BITS) == epoch &&
           (int16_t)(uint16_t)(buffer->refused - (uint32_t)(call >> EPOCH_BITS)) <= 0;
}

const xep_announced_t *xep_announce_find(const xep_buffer_t *buffer, uint64_t epoch, uint32_t from, uint32_t *rank_p)
{
    for (uint32_t r = from; r < buffer->shape.nranks; r++) {
        const xep_announced_t *entry = xep_announce_entry(buffer, r, epoch);
        if (!xep_announce_is_of(buffer, entry, epoch)) continue;
        if (xep_group_is_out(buffer->group, r)) continue;
        *rank_p = r;
        return entry;
    }
    return NULL;
}

xep_announced_end_t xep_announce_end_of(const xep_buffer_t *buffer, uint32_t rank)
{
    const uint64_t word = atomic_load_explicit(word_of(buffer, rank), memory_order_acquire);
    return (xep_announced_end_t){.epoch = word >> (XEP_STEP_BITS + FLAG_BITS),
                                 .step = (uint32_t)word & XEP_STEP_MASK,
                                 .serving = (word & SERVING) != 0,
                                 .last = (word & LAST) != 0};
}

int xep_step_is_before(uint32_t a, uint32_t b)
{
    return ((a - b) & XEP_STEP_MASK) > XEP_STEP_MASK / 2;
}
