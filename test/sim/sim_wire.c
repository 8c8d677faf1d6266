/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_wire.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_hash.h"
#include "sim_world.h"

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#else
#define __lsan_ignore_object(_memory) (void)(_memory)
#endif

typedef enum { HELD, POSTED, TAKEN } stage_t; /* source in use, in use, copied */

struct sim_message {
    sim_message_t *next;
    sim_wire_t *from, *to;
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

__attribute__((format(printf, 2, 3))) static void fail(sim_wire_t *self, const char *format, ...)
{
    char text[SIM_SENTENCE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    self->net->ops->fail(self, text);
}

/* of the source of a put */
static uint64_t checksum(const sim_message_t *m)
{
    return m->bytes == 0 ? 0 : oracle_hash_row(m->src, m->bytes, 0);
}

static char *heap_at(sim_wire_t *of, uint64_t offset, uint64_t bytes)
{
    if (bytes <= of->super.bytes && offset <= of->super.bytes - bytes) return (char *)of->super.base + offset;
    fail(of, "access to bytes %llu .. of rank %u, whose heap ends at %llu", (unsigned long long)offset, of->rank,
         (unsigned long long)of->super.bytes);
    return NULL;
}

static void word_store(sim_wire_t *of, uint64_t offset, uint64_t value)
{
    char *at = heap_at(of, offset, sizeof value);
    if (at != NULL && offset % sizeof value) fail(of, "signal word at %llu is not aligned", (unsigned long long)offset);
    if (at != NULL) atomic_store_explicit((_Atomic uint64_t *)(void *)at, value, memory_order_release);
}

/* ---- the calls of a mode ---- */

static sim_wire_t *wire_of(xep_wire_t *wire)
{
    return (sim_wire_t *)(void *)wire;
}

static void *wire_map(xep_wire_t *wire, uint32_t rank)
{
    const sim_wire_t *self = wire_of(wire);
    return self->is_mapped[rank] ? self->of[rank]->super.base : NULL;
}

/* Every call of the mode but map comes here first. Once told to fail, the wire is dead unless it fails just once. */
static int is_broken(sim_wire_t *self, const char *call)
{
    const sim_options_t *options = self->net->options;
    uint64_t number = ++self->calls;
    if (!options->fail_at || self->rank != 0 || number < options->fail_at) return 0;
    if (number > options->fail_at && options->fail_once) return 0;
    snprintf(self->told, sizeof self->told, "the simulated wire broke in call %llu, a %s", (unsigned long long)number,
             call);
    if (!self->sentence[0]) memcpy(self->sentence, self->told, sizeof self->told);
    return 1;
}

/* Posts the messages held for a rank; to is NULL: for all ranks. */
static void post_held(const sim_wire_t *self, const sim_wire_t *to)
{
    for (sim_message_t *m = self->net->messages; m != NULL; m = m->next)
        if (m->from == self && m->stage == HELD && (to == NULL || m->to == to)) m->stage = POSTED;
}

/*
 * A wire that has too much in flight must send what it holds: the caller only progresses and tries again. Where the
 * others go on, what a rank does not take that is gone keeps nothing back that is for another one.
 */
static int is_refused(sim_wire_t *self, const sim_wire_t *to)
{
    const sim_options_t *options = self->net->options;
    uint32_t inflight = 0, there = 0;
    for (const sim_message_t *m = self->net->messages; m != NULL; m = m->next) {
        if (m->from != self || self->fenced_off[m->to->rank] || m->is_ctl) continue;
        inflight++;
        there += m->to == to;
    }
    int is_free = inflight < options->inflight || (atomic_load(&self->super.spares) && there == 0);
    if (is_free) return sim_chance(self->dice, options->refuse);
    post_held(self, NULL);
    return 1;
}

static void copy_source(sim_message_t *m)
{
    m->copy = malloc(m->bytes + 1);
    if (m->bytes) memcpy(m->copy, m->src, m->bytes);
}

static sim_message_t *append(sim_wire_t *self, const sim_message_t *message)
{
    sim_message_t **end = &self->net->messages, *copy = malloc(sizeof *copy);
    *copy = *message;
    copy->from = self;
    while (*end != NULL) end = &(*end)->next;
    *end = copy;
    self->net->pending++;
    return copy;
}

static xep_status_t post(sim_wire_t *self, const sim_message_t *message)
{
    if (self->fenced_off[message->to->rank]) return XEP_OK;
    if (is_refused(self, message->to)) return XEP_INPROGRESS;
    if (heap_at(message->to, message->offset, message->bytes) == NULL) return XEP_ERR_TRANSPORT;
    sim_message_t *copy = append(self, message);
    copy->number = self->posted;
    copy->stage = self->net->options->hold || copy->is_later ? HELD : POSTED;
    if (copy->stage == POSTED) post_held(self, copy->to); /* it goes with this */
    if (!copy->is_get) copy->checksum = checksum(copy);
    if (!copy->is_get && atomic_load(&self->super.spares)) copy_source(copy);
    self->posted++;
    self->posted_bytes += message->bytes;
    self->net->ops->pause(self);
    return XEP_OK;
}

/* Any call that moves bytes. To a rank that is mapped they are there at once, but for what a get fetches. */
static xep_status_t send_message(xep_wire_t *wire, const char *call, const sim_message_t *message)
{
    sim_wire_t *self = wire_of(wire);
    if (is_broken(self, call)) return XEP_ERR_TRANSPORT;
    if (message->is_get || !self->is_mapped[message->to->rank]) return post(self, message);
    char *to = heap_at(message->to, message->offset, message->bytes);
    if (to != NULL && message->bytes) memcpy(to, message->src, message->bytes);
    if (message->has_signal) word_store(message->to, message->signal_offset, message->value);
    return to != NULL ? XEP_OK : XEP_ERR_TRANSPORT;
}

static xep_status_t wire_put(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes)
{
    const sim_message_t message = {.to = wire_of(wire)->of[rank], .offset = offset, .src = src, .bytes = bytes};
    return send_message(wire, "put", &message);
}

static xep_status_t wire_put_signal(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes,
                                    uint64_t signal_offset, uint64_t value)
{
    sim_message_t message = {.to = wire_of(wire)->of[rank], .offset = offset, .src = src, .bytes = bytes};
    message.has_signal = 1;
    message.signal_offset = signal_offset;
    message.value = value;
    return send_message(wire, "put_signal", &message);
}

/* Held, whatever the world's wires do, until the next to that rank goes, or flush is called. */
static xep_status_t wire_signal_later(xep_wire_t *wire, uint32_t rank, uint64_t offset, uint64_t value)
{
    sim_message_t message = {.to = wire_of(wire)->of[rank], .has_signal = 1, .is_later = 1};
    message.signal_offset = offset;
    message.value = value;
    return send_message(wire, "signal_later", &message);
}

static xep_status_t wire_get(xep_wire_t *wire, uint32_t rank, uint64_t offset, void *dst, size_t bytes)
{
    sim_message_t message = {.to = wire_of(wire)->of[rank], .offset = offset, .dst = dst, .bytes = bytes};
    message.is_get = 1;
    return send_message(wire, "get", &message);
}

static uint64_t wire_mark(xep_wire_t *wire)
{
    return wire_of(wire)->posted;
}

static xep_status_t flush_to(sim_wire_t *self, uint64_t mark)
{
    xep_status_t status = XEP_OK;
    for (sim_message_t *m = self->net->messages; m != NULL; m = m->next) {
        if (m->from != self || m->number >= mark || self->fenced_off[m->to->rank]) continue;
        if (m->stage == HELD) m->stage = POSTED;
        if (m->stage == POSTED || m->is_get) status = XEP_INPROGRESS;
    }
    self->net->ops->pause(self);
    return status;
}

static xep_status_t wire_flush(xep_wire_t *wire)
{
    sim_wire_t *self = wire_of(wire);
    return is_broken(self, "flush") ? XEP_ERR_TRANSPORT : flush_to(self, self->posted);
}

static xep_status_t wire_flush_to(xep_wire_t *wire, uint64_t mark)
{
    sim_wire_t *self = wire_of(wire);
    if (is_broken(self, "flush_to")) return XEP_ERR_TRANSPORT;
    xep_status_t status = flush_to(self, mark);
    self->held_up += status == XEP_INPROGRESS;
    return status;
}

static xep_status_t wire_progress(xep_wire_t *wire)
{
    sim_wire_t *self = wire_of(wire);
    if (is_broken(self, "progress")) return XEP_ERR_TRANSPORT;
    self->net->ops->progress(self);
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

static void take(sim_net_t *net, sim_message_t *m)
{
    const sim_options_t *options = net->options;
    int may_change = options->corrupt || options->spoiled; /* a spoiled heap may hold the source */
    if (!may_change && checksum(m) != m->checksum)
        fail(m->from, "rank %u changed the source of a put before it was flushed", m->from->rank);
    if (m->copy == NULL) copy_source(m);
    if (options->corrupt && m->bytes && sim_chance(net->dice, 10))
        m->copy[sim_below(net->dice, m->bytes)] ^= (char)(1 << sim_below(net->dice, 8));
    m->stage = TAKEN;
}

/* A signal comes after everything that was sent before it by this rank to that one. */
static int may_deliver(const sim_net_t *net, const sim_message_t *message)
{
    if (!message->has_signal) return 1;
    for (const sim_message_t *m = net->messages; m != message; m = m->next)
        if (m->from == message->from && m->to == message->to && !m->is_get) return 0;
    return 1;
}

static void drop(sim_net_t *net, sim_message_t *message)
{
    sim_message_t **link = &net->messages;
    while (*link != message) link = &(*link)->next;
    *link = message->next;
    net->pending--;
    free(message->copy);
    free(message);
}

/* Copies what is put or got; a put or get of a rank that is out does nothing. */
static void store(const sim_message_t *m)
{
    char *there = heap_at(m->to, m->offset, m->bytes);
    if (there == NULL || m->to->fenced_off[m->from->rank]) return;
    if (m->bytes) memcpy(m->is_get ? m->dst : there, m->is_get ? there : m->copy, m->bytes);
    if (m->has_signal) word_store(m->to, m->signal_offset, m->value);
}

static void deliver(sim_net_t *net, sim_message_t *m)
{
    if (m->is_ctl) net->ops->on_ctl(m->to, m->from->rank, m->copy, m->bytes);
    else store(m);
    drop(net, m);
}

/* from: only this one's are taken from their source; NULL: all are. */
static void move_one(sim_net_t *net, sim_dice_t *dice, const sim_wire_t *from)
{
    sim_message_t *m = net->messages;
    if (m == NULL) return;
    for (uint64_t n = sim_below(dice, net->pending); n > 0; n--) m = m->next;
    if (m->stage == HELD || net->ops->presence(m->to) != SIM_PRESENT) return;
    if (m->stage == POSTED && from != NULL && m->from != from) return;
    if (m->stage == POSTED && !m->is_get) take(net, m);
    else if (may_deliver(net, m)) deliver(net, m);
}

void sim_wire_step(sim_net_t *net, sim_dice_t *dice)
{
    move_one(net, dice, NULL);
}

void sim_wire_move(const sim_wire_t *self)
{
    move_one(self->net, self->dice, self);
}

/* data is allocated memory, which its owner does not free if it dies in the call. */
void sim_wire_ctl(sim_wire_t *self, uint32_t rank, const void *data, size_t bytes)
{
    const sim_message_t message = {.to = self->of[rank], .src = data, .bytes = bytes, .stage = TAKEN, .is_ctl = 1};
    __lsan_ignore_object(data);
    if (self->fenced_off[rank]) return;
    copy_source(append(self, &message));
    self->net->ops->pause(self);
}

uint64_t sim_wire_take(sim_wire_t *self)
{
    uint64_t left = 0;
    int taken = 0;
    for (sim_message_t *m = self->net->messages; m != NULL; m = m->next) {
        if (m->from != self || m->stage == TAKEN) continue;
        if (taken++ == 0) take(self->net, m);
        else left++;
    }
    return left;
}

uint64_t sim_wire_count(const sim_wire_t *self, const sim_wire_t *to)
{
    uint64_t count = 0;
    for (const sim_message_t *m = self->net->messages; m != NULL; m = m->next)
        count += m->from == self && (to == NULL || m->to == to);
    return count;
}

void sim_wire_finish(sim_wire_t *self)
{
    for (sim_message_t *m = self->net->messages, *next; m != NULL; m = next) {
        next = m->next;
        if (m->from != self) continue;
        if (m->stage != TAKEN && !m->is_get) take(self->net, m);
        deliver(self->net, m);
    }
}

/* Messages of one rank to another; of those that are kept, most of the first ones. */
static void drop_between(sim_wire_t *from, const sim_wire_t *to, uint64_t keep)
{
    for (sim_message_t *m = from->net->messages, *next; m != NULL; m = next) {
        next = m->next;
        if (m->from != from || m->to != to) continue;
        if (keep == 0 || m->stage == HELD) drop(from->net, m), keep = 0;
        else keep--;
    }
}

void sim_wire_bury(sim_wire_t *self)
{
    for (uint32_t r = 0; r < self->nranks; r++)
        drop_between(self, self->of[r], sim_below(self->net->dice, sim_wire_count(self, self->of[r]) + 1));
}

/* What is held of its own never leaves; the rest the other may still take, if it lives. */
void sim_wire_fence_off(sim_wire_t *self, uint32_t rank)
{
    sim_wire_t *other = self->of[rank];
    if (self->fenced_off[rank]) return;
    drop_between(other, self, 0);
    drop_between(self, other, self->net->ops->presence(other) == SIM_DEAD ? 0 : UINT64_MAX);
    self->fenced_off[rank] = 1;
}

int sim_wire_is_behind(const sim_wire_t *self, uint32_t rank)
{
    const sim_message_t *m = self->net->messages;
    if (self->fenced_off[rank]) return 0;
    while (m != NULL && (m->from != self || m->to != self->of[rank] || m->stage == TAKEN)) m = m->next;
    return m != NULL;
}

void sim_wire_clear(sim_net_t *net)
{
    while (net->messages != NULL) drop(net, net->messages);
}
