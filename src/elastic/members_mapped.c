/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * All ranks map one another. What a rank brings lies in its own memory, or is the same line at all: so an operation is
 * with a rank that is gone if anybody has its word, and whoever lacks it copies it from there.
 */
#include "members.h"

#include <stdlib.h>

#include "buffer.h"
#include "request.h"

static uint64_t words(uint32_t nranks, uint32_t most)
{
    return xep_ballot_words(nranks, most);
}

static uint64_t bytes(uint32_t nranks, uint32_t most)
{
    return (sizeof(xep_members_area_t) + words(nranks, most) * sizeof(uint64_t) + 63) / 64 * 64;
}

static xep_status_t open(xep_buffer_t *buffer)
{
    xep_members_t *members = buffer->members;
    xep_wire_t *wire = &buffer->heap->wire;
    uint32_t nranks = buffer->shape.nranks;
    members->of = calloc(nranks, sizeof *members->of);
    members->beats = calloc(nranks, sizeof *members->beats);
    members->scratch = calloc(members->agreement.capacity, sizeof *members->scratch);
    if (members->of == NULL || members->beats == NULL || members->scratch == NULL) return XEP_ERR_NO_MEMORY;
    for (uint32_t r = 0; r < nranks; r++)
        members->of[r] = (xep_members_area_t *)(void *)((char *)wire->ops->map(wire, r) + buffer->areas.members);
    return XEP_OK;
}

static void close(xep_members_t *members)
{
    free(members->scratch);
    free(members->beats);
    free(members->of);
}

/* The beat has one writer: a load and a store. */
static int look(xep_buffer_t *buffer)
{
    xep_members_t *members = buffer->members;
    xep_members_area_t *own = members->own;
    atomic_store_explicit(&own->beat, atomic_load_explicit(&own->beat, memory_order_relaxed) + 1, memory_order_relaxed);
    uint64_t doorbell = atomic_load_explicit(&own->doorbell, memory_order_acquire);
    if (doorbell == members->seen_doorbell) return 0;
    members->seen_doorbell = doorbell;
    return 1;
}

/* Relaxed, between fences: the sum tells whether all words are of one ballot. */
static int read(void *arg, uint32_t rank)
{
    xep_members_t *members = ((xep_buffer_t *)arg)->members;
    xep_agreement_t *agreement = &members->agreement;
    const _Atomic uint64_t *said = (const _Atomic uint64_t *)(const void *)(members->of[rank] + 1);
    for (uint64_t i = 0; i < agreement->capacity; i++)
        members->scratch[i] = atomic_load_explicit(&said[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    return xep_ballot_read(&agreement->theirs, members->scratch, agreement->capacity);
}

/*
 * Behind all that it has of the suspects, for whoever reads it and fetches that; and before the doorbells: whoever
 * hears one finds what it was rung for.
 */
static void publish(void *arg)
{
    const xep_buffer_t *buffer = arg;
    const xep_members_t *members = buffer->members;
    _Atomic uint64_t *said = (_Atomic uint64_t *)(void *)(members->own + 1);
    atomic_thread_fence(memory_order_release);
    for (uint64_t i = 0; i < members->agreement.length; i++)
        atomic_store_explicit(&said[i], members->agreement.said[i], memory_order_relaxed);
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (r != buffer->shape.rank && !xep_ballot_suspects(&members->agreement.mine, r))
            atomic_fetch_add_explicit(&members->of[r]->doorbell, 1, memory_order_release);
}

/* Each looks whether it is out itself after it has told the others: memory that both see makes at most one go on. */
static int may_decide(const void *arg)
{
    (void)arg;
    return 1;
}

/* Relaxed, as a decision has a fence behind all of these stores. */
static void tell_out(void *arg, uint32_t rank)
{
    const xep_buffer_t *buffer = arg;
    atomic_store_explicit(&buffer->members->of[rank]->left_out, buffer->shape.rank + UINT64_C(1), memory_order_relaxed);
}

/* Of a mapped group the words lie in memory, so the mode itself can say what is there of a rank. */
static xep_holds_t holds(xep_request_t *req, uint32_t rank)
{
    const xep_buffer_t *buffer = req->buffer;
    return buffer->plugin.plugin->masks->holds(buffer->mode, &req->op, rank);
}

static xep_status_t settle(xep_request_t *req, uint32_t rank, uint8_t *without_p)
{
    const xep_buffer_t *buffer = req->buffer;
    (void)without_p;
    return buffer->plugin.plugin->masks->fetch(buffer->mode, &req->op, rank);
}

static uint64_t beat_of(const xep_members_t *members, uint32_t rank)
{
    return atomic_load_explicit(&members->of[rank]->beat, memory_order_relaxed);
}

/* To ask is to remember: a rank that has made a round since then counts another beat. */
static void ask(xep_buffer_t *buffer)
{
    xep_members_t *members = buffer->members;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++) members->beats[r] = beat_of(members, r);
}

static int makes_rounds(const xep_buffer_t *buffer, uint32_t rank)
{
    return beat_of(buffer->members, rank) != buffer->members->beats[rank];
}

static int has_begun(const xep_buffer_t *buffer, uint32_t rank, uint64_t epoch)
{
    return atomic_load_explicit(&buffer->members->of[rank]->begun, memory_order_relaxed) >= epoch;
}

const xep_members_ways_t xep_members_mapped = {
    .bytes = bytes,
    .words = words,
    .open = open,
    .close = close,
    .look = look,
    .agreement = {.read = read, .publish = publish, .may_decide = may_decide, .tell_out = tell_out},
    .holds = holds,
    .settle = settle,
    .ask = ask,
    .makes_rounds = makes_rounds,
    .has_begun = has_begun,
    .least_grace_ms = 5,
};
