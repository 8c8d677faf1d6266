/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_wire.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_death.h"

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#else
#define __lsan_ignore_object(_memory) (void)(_memory)
#endif

typedef enum { HELD, POSTED, TAKEN } stage_t; /* source in use, in use, copied */

struct sim_message {
    sim_message_t *next;
    uint32_t from, to;
    stage_t stage;
    int is_get, has_signal, is_later, is_ctl;
    uint64_t offset, signal_offset, value;
    const char *src;   /* of a put: unchanged while not TAKEN */
    char *dst;         /* of a get */
    uint64_t number;   /* of its sender's */
    uint64_t checksum; /* of src when it was posted */
    size_t bytes;
    char *copy;
};

static sim_rank_t *rank_of(xep_wire_t *wire)
{
    return ((sim_wire_t *)wire)->rank;
}

static uint64_t checksum(const char *data, size_t bytes)
{
    uint64_t sum = bytes;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ (unsigned char)data[i]) * UINT64_C(0x100000001b3);
    return sum;
}

static char *heap_at(sim_rank_t *rank, uint64_t offset, uint64_t bytes)
{
    if (bytes <= rank->env.heap_bytes && offset <= rank->env.heap_bytes - bytes) return (char *)rank->env.heap + offset;
    sim_fail(rank->world, "access to bytes %llu .. of rank %u, whose heap ends at %llu", (unsigned long long)offset,
             rank->index, (unsigned long long)rank->env.heap_bytes);
    return NULL;
}

static void word_store(sim_rank_t *rank, uint64_t offset, uint64_t value)
{
    char *at = heap_at(rank, offset, sizeof value);
    if (at != NULL && offset % sizeof value)
        sim_fail(rank->world, "signal word at %llu is not aligned", (unsigned long long)offset);
    if (at != NULL) atomic_store_explicit((_Atomic uint64_t *)at, value, memory_order_release);
}

/* ---- the calls of a mode ---- */

static void *wire_map(xep_wire_t *wire, uint32_t rank)
{
    sim_rank_t *self = rank_of(wire);
    const uint32_t *node = self->world->options.node;
    return node[rank] == node[self->index] ? self->world->ranks[rank].env.heap : NULL;
}

/* Every call of the mode but map comes here first. Once told to fail, the wire is dead unless it fails just once. */
static int is_broken(sim_rank_t *self, const char *call)
{
    const sim_options_t *options = &self->world->options;
    uint64_t number = ++self->wire.calls;
    if (!options->fail_at || self->index != 0 || number < options->fail_at) return 0;
    if (number > options->fail_at && options->fail_once) return 0;
    snprintf(self->told, sizeof self->told, "the simulated wire broke in call %llu, a %s", (unsigned long long)number,
             call);
    if (!self->wire.sentence[0]) memcpy(self->wire.sentence, self->told, sizeof self->told);
    return 1;
}

/*
 * A wire that has too much in flight must send what it holds: the caller only progresses and tries again. Where the
 * others go on, what a rank does not take that is gone keeps nothing back that is for another one.
 */
static int is_refused(sim_rank_t *self, uint32_t rank)
{
    const sim_options_t *options = &self->world->options;
    uint32_t inflight = 0, there = 0;
    for (const sim_message_t *m = self->world->messages; m != NULL; m = m->next) {
        if (m->from != self->index || self->wire.fenced_off[m->to] || m->is_ctl) continue;
        inflight++;
        there += m->to == rank;
    }
    int is_free = inflight < options->inflight || (self->world->around != NULL && there == 0);
    if (is_free) return sim_chance(&self->dice, options->refuse);
    for (sim_message_t *m = self->world->messages; m != NULL; m = m->next)
        if (m->from == self->index && m->stage == HELD) m->stage = POSTED;
    return 1;
}

/* What was held for a rank goes with what is sent to it. */
static void post_held(const sim_rank_t *self, uint32_t rank)
{
    for (sim_message_t *m = self->world->messages; m != NULL; m = m->next)
        if (m->from == self->index && m->to == rank && m->stage == HELD) m->stage = POSTED;
}

static void copy_source(sim_message_t *m)
{
    m->copy = malloc(m->bytes + 1);
    if (m->bytes) memcpy(m->copy, m->src, m->bytes);
}

static sim_message_t *append(sim_rank_t *self, const sim_message_t *message)
{
    sim_world_t *world = self->world;
    sim_message_t **end = &world->messages, *copy = malloc(sizeof *copy);
    *copy = *message;
    copy->from = self->index;
    while (*end != NULL) end = &(*end)->next;
    *end = copy;
    world->pending++;
    return copy;
}

static xep_status_t post(sim_rank_t *self, const sim_message_t *message)
{
    sim_world_t *world = self->world;
    if (self->wire.fenced_off[message->to]) return XEP_OK;
    if (is_refused(self, message->to)) return XEP_INPROGRESS;
    if (heap_at(&world->ranks[message->to], message->offset, message->bytes) == NULL) return XEP_ERR_TRANSPORT;
    sim_message_t *copy = append(self, message);
    copy->number = self->wire.posted;
    copy->stage = world->options.hold || copy->is_later ? HELD : POSTED;
    if (copy->stage == POSTED) post_held(self, copy->to);
    if (!copy->is_get) copy->checksum = checksum(copy->src, copy->bytes);
    if (world->around != NULL) copy_source(copy);
    self->wire.posted++;
    self->wire.posted_bytes += message->bytes;
    sim_interleave(self);
    return XEP_OK;
}

static xep_status_t put(sim_rank_t *self, uint32_t rank, uint64_t offset, const void *src, size_t bytes)
{
    sim_rank_t *peer = &self->world->ranks[rank];
    if (wire_map(&self->wire.wire, rank) == NULL)
        return post(self, &(sim_message_t){.to = rank, .offset = offset, .src = src, .bytes = bytes});
    char *to = heap_at(peer, offset, bytes);
    if (to != NULL && bytes) memcpy(to, src, bytes);
    return to != NULL ? XEP_OK : XEP_ERR_TRANSPORT;
}

static xep_status_t wire_put(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes)
{
    sim_rank_t *self = rank_of(wire);
    return is_broken(self, "put") ? XEP_ERR_TRANSPORT : put(self, rank, offset, src, bytes);
}

static xep_status_t wire_put_signal(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes,
                                    uint64_t signal_offset, uint64_t value)
{
    sim_rank_t *self = rank_of(wire);
    sim_message_t message = {.to = rank, .offset = offset, .src = src, .bytes = bytes};
    message.has_signal = 1;
    message.signal_offset = signal_offset;
    message.value = value;
    if (is_broken(self, "put_signal")) return XEP_ERR_TRANSPORT;
    if (wire_map(wire, rank) == NULL) return post(self, &message);
    put(self, rank, offset, src, bytes);
    word_store(&self->world->ranks[rank], signal_offset, value);
    return XEP_OK;
}

/* Held, whatever the world's wires do, until the next to that rank goes, or flush is called. */
static xep_status_t wire_signal_later(xep_wire_t *wire, uint32_t rank, uint64_t offset, uint64_t value)
{
    sim_rank_t *self = rank_of(wire);
    sim_message_t message = {.to = rank, .has_signal = 1, .is_later = 1, .signal_offset = offset, .value = value};
    if (is_broken(self, "signal_later")) return XEP_ERR_TRANSPORT;
    if (wire_map(wire, rank) == NULL) return post(self, &message);
    word_store(&self->world->ranks[rank], offset, value);
    return XEP_OK;
}

static xep_status_t wire_get(xep_wire_t *wire, uint32_t rank, uint64_t offset, void *dst, size_t bytes)
{
    sim_message_t message = {.to = rank, .offset = offset, .dst = dst, .bytes = bytes, .is_get = 1};
    return is_broken(rank_of(wire), "get") ? XEP_ERR_TRANSPORT : post(rank_of(wire), &message);
}

static uint64_t wire_mark(xep_wire_t *wire)
{
    return rank_of(wire)->wire.posted;
}

static xep_status_t flush_to(sim_rank_t *self, uint64_t mark)
{
    xep_status_t status = XEP_OK;
    for (sim_message_t *m = self->world->messages; m != NULL; m = m->next) {
        if (m->from != self->index || m->number >= mark || self->wire.fenced_off[m->to]) continue;
        if (m->stage == HELD) m->stage = POSTED;
        if (m->stage == POSTED || m->is_get) status = XEP_INPROGRESS;
    }
    sim_interleave(self);
    return status;
}

static xep_status_t wire_flush(xep_wire_t *wire)
{
    sim_rank_t *self = rank_of(wire);
    return is_broken(self, "flush") ? XEP_ERR_TRANSPORT : flush_to(self, self->wire.posted);
}

static xep_status_t wire_flush_to(xep_wire_t *wire, uint64_t mark)
{
    sim_rank_t *self = rank_of(wire);
    if (is_broken(self, "flush_to")) return XEP_ERR_TRANSPORT;
    xep_status_t status = flush_to(self, mark);
    self->wire.held_up += status == XEP_INPROGRESS;
    return status;
}

static xep_status_t wire_progress(xep_wire_t *wire)
{
    sim_rank_t *self = rank_of(wire);
    if (is_broken(self, "progress")) return XEP_ERR_TRANSPORT;
    if (self->world->still || !sim_chance(&self->dice, 50)) return XEP_OK;
    int watched = sim_death_leave(self, 1); /* what arrives is no store of its own */
    sim_wire_step(self->world, &self->dice);
    if (watched) sim_death_enter(self);
    return XEP_OK;
}

const xep_wire_ops_t sim_wire_ops = {
    .size = sizeof(xep_wire_ops_t),
    .map = wire_map,
    .put = wire_put,
    .put_signal = wire_put_signal,
    .signal_later = wire_signal_later,
    .get = wire_get,
    .flush = wire_flush,
    .mark = wire_mark,
    .flush_to = wire_flush_to,
    .progress = wire_progress,
};

/* ---- what becomes of a message ---- */

static void take(sim_world_t *world, sim_message_t *m)
{
    int may_change = world->options.corrupt || world->options.spoiled; /* a spoiled heap may hold the source */
    if (!may_change && checksum(m->src, m->bytes) != m->checksum)
        sim_fail(world, "rank %u changed the source of a put before it was flushed", m->from);
    if (m->copy == NULL) copy_source(m);
    if (world->options.corrupt && m->bytes && sim_chance(&world->dice, 10))
        m->copy[sim_below(&world->dice, m->bytes)] ^= (char)(1 << sim_below(&world->dice, 8));
    m->stage = TAKEN;
}

/* A signal comes after everything that was sent before it by this rank to that one. */
static int may_deliver(const sim_world_t *world, const sim_message_t *message)
{
    if (!message->has_signal) return 1;
    for (const sim_message_t *m = world->messages; m != message; m = m->next)
        if (m->from == message->from && m->to == message->to && !m->is_get) return 0;
    return 1;
}

static void drop(sim_world_t *world, sim_message_t *message)
{
    sim_message_t **link = &world->messages;
    while (*link != message) link = &(*link)->next;
    *link = message->next;
    world->pending--;
    free(message->copy);
    free(message);
}

static void deliver(sim_world_t *world, sim_message_t *message)
{
    sim_rank_t *to = &world->ranks[message->to];
    if (message->is_ctl) {
        world->around->on_ctl(to, message->from, message->copy, message->bytes);
        drop(world, message);
        return;
    }
    char *there = heap_at(to, message->offset, message->bytes);
    if (to->wire.fenced_off[message->from]) there = NULL; /* of a rank that is out nothing is stored */
    if (there != NULL && message->bytes)
        memcpy(message->is_get ? message->dst : there, message->is_get ? there : message->copy, message->bytes);
    if (there != NULL && message->has_signal) word_store(to, message->signal_offset, message->value);
    drop(world, message);
}

/* By messages, as a process that is stopped stores none. */
static int takes_nothing(const sim_world_t *world, uint32_t rank)
{
    return world->around != NULL && (world->ranks[rank].dead || world->ranks[rank].stopped);
}

void sim_wire_step(sim_world_t *world, sim_dice_t *dice)
{
    sim_message_t *m = world->messages;
    if (m == NULL) return;
    for (uint64_t n = sim_below(dice, world->pending); n > 0; n--) m = m->next;
    if (m->stage == HELD || takes_nothing(world, m->to)) return;
    if (m->stage == POSTED && !m->is_get) take(world, m);
    else if (may_deliver(world, m)) deliver(world, m);
}

/* data is allocated memory, which its owner does not free if it dies in the call. */
void sim_wire_ctl(sim_rank_t *self, uint32_t rank, const void *data, size_t bytes)
{
    __lsan_ignore_object(data);
    if (self->wire.fenced_off[rank]) return;
    copy_source(append(self, &(sim_message_t){.to = rank, .src = data, .bytes = bytes, .stage = TAKEN, .is_ctl = 1}));
    sim_interleave(self);
}

uint64_t sim_wire_take(sim_world_t *world, uint32_t rank)
{
    uint64_t left = 0;
    int taken = 0;
    for (sim_message_t *m = world->messages; m != NULL; m = m->next) {
        if (m->from != rank || m->stage == TAKEN) continue;
        if (taken++ == 0) take(world, m);
        else left++;
    }
    return left;
}

uint64_t sim_wire_posted(const sim_world_t *world, uint32_t rank)
{
    uint64_t count = 0;
    for (const sim_message_t *m = world->messages; m != NULL; m = m->next) count += m->from == rank;
    return count;
}

/* Messages of one rank to another; of those that are kept, most of the first ones. */
static void drop_between(sim_world_t *world, uint32_t from, uint32_t to, uint64_t keep)
{
    for (sim_message_t *m = world->messages, *next; m != NULL; m = next) {
        next = m->next;
        if (m->from != from || m->to != to) continue;
        if (keep == 0 || m->stage == HELD) drop(world, m), keep = 0;
        else keep--;
    }
}

void sim_wire_bury(sim_world_t *world, uint32_t rank)
{
    for (uint32_t to = 0; to < world->options.nranks; to++) {
        uint64_t count = 0;
        for (const sim_message_t *m = world->messages; m != NULL; m = m->next) count += m->from == rank && m->to == to;
        drop_between(world, rank, to, sim_below(&world->dice, count + 1));
    }
}

/* What is held of its own never leaves; the rest the other may still take, if it lives. */
void sim_wire_fence_off(sim_rank_t *self, uint32_t rank)
{
    if (self->wire.fenced_off[rank]) return;
    drop_between(self->world, rank, self->index, 0);
    drop_between(self->world, self->index, rank, self->world->ranks[rank].dead ? 0 : UINT64_MAX);
    self->wire.fenced_off[rank] = 1;
}

int sim_wire_is_behind(const sim_rank_t *self, uint32_t rank)
{
    const sim_message_t *m = self->world->messages;
    if (self->wire.fenced_off[rank]) return 0;
    while (m != NULL && (m->from != self->index || m->to != rank || m->stage == TAKEN)) m = m->next;
    return m != NULL;
}

void sim_wire_clear(sim_world_t *world)
{
    while (world->messages != NULL) {
        sim_message_t *m = world->messages;
        world->messages = m->next;
        free(m->copy);
        free(m);
    }
    world->pending = 0;
}
