/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Addresses come over the bootstrap and may be spoiled there: they are checked as those of UCX are. A transport that
 * its owner has closed stays until the world ends, as others may still send to it. The ranks of a group that has shrunk
 * or grown have other numbers than those of the world: a transport knows the others by their transports.
 */
#include "fuzz_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "fuzz_target.h"

/* control messages, with the transport that sent it */
typedef struct fuzz_msg {
    struct fuzz_msg *next;
    struct fuzz_transport *from;
    size_t bytes;
    char data[];
} msg_t;

/* ---- transport ---- */

static void shared_room(xep_transport_t *transport, uint64_t bytes, xep_shared_room_t rooms[XEP_SHARED_KINDS])
{
    (void)transport, (void)bytes;
    memset(rooms, 0, XEP_SHARED_KINDS * sizeof *rooms);
}

static void shared_look(uint64_t ranks[XEP_SHARED_KINDS])
{
    memset(ranks, 0, XEP_SHARED_KINDS * sizeof *ranks);
}

static xep_status_t start(xep_transport_t *transport, const xep_neighbours_t *neighbours,
                          const xep_whereabouts_t *where)
{
    (void)transport, (void)neighbours, (void)where;
    return XEP_OK;
}

static fuzz_transport_t *find_transport(const fuzz_memory_t *memory, const uint8_t *address, size_t bytes)
{
    for (fuzz_transport_t *t = memory->transports; t != NULL; t = t->next)
        if (bytes == 8 + t->place && memcmp(address, t->address, bytes) == 0) return t;
    return NULL;
}

static xep_status_t connect(xep_transport_t *transport, uint32_t rank, uint32_t nranks, const void *const *addresses,
                            const size_t *bytes, const uint8_t *peers)
{
    fuzz_transport_t *t = (fuzz_transport_t *)transport;
    for (uint32_t r = 0; r < nranks; r++) {
        t->of[r] = r < FUZZ_MOST_RANKS ? find_transport(t->memory, addresses[r], bytes[r]) : NULL;
        for (uint32_t i = 0; i < r; i++)
            if (t->of[i] == t->of[r]) t->of[r] = NULL;
        if (t->of[r] == NULL) return xep_fail(XEP_ERR_PROTOCOL, "invalid address from rank %u", r);
        t->may_map[r] = peers[r] & XEP_PEER_MAY_MAP;
    }
    t->rank = rank;
    t->nranks = nranks;
    return XEP_OK;
}

static xep_status_t meet(xep_transport_t *transport, const xep_whereabouts_t *where, uint32_t most)
{
    (void)where, (void)most;
    ((fuzz_transport_t *)transport)->admits = 1;
    return XEP_OK;
}

/* Hardly ever are there more than so many, and then the first one is long gone. */
static xep_status_t admit(xep_transport_t *transport, uint32_t index, const void *bytes_of, size_t bytes)
{
    fuzz_transport_t *t = (fuzz_transport_t *)transport, *other = find_transport(t->memory, bytes_of, bytes);
    if (other == NULL) return xep_fail(XEP_ERR_PROTOCOL, "invalid address of a joiner");
    t->of[index % FUZZ_MOST_RANKS] = other;
    return XEP_OK;
}

/* ---- control messages ---- */

static xep_status_t ctl(xep_transport_t *transport, uint32_t rank, const void *data, size_t bytes)
{
    fuzz_transport_t *t = (fuzz_transport_t *)transport, *to = t->of[rank % FUZZ_MOST_RANKS];
    msg_t *msg = malloc(sizeof *msg + bytes);
    if (msg == NULL) fuzz_fail("no memory");
    *msg = (msg_t){.from = t, .bytes = bytes};
    memcpy(msg->data, data, bytes);
    *to->end = msg;
    to->end = &msg->next;
    return XEP_OK;
}

static int ctl_has_left(xep_transport_t *transport)
{
    (void)transport;
    return 1;
}

static void take_msg(fuzz_transport_t *t)
{
    msg_t *msg = t->msgs;
    uint32_t from = 0;
    t->msgs = msg->next;
    if (msg->next == NULL) t->end = &t->msgs;
    while (from < t->nranks && t->of[from] != msg->from) from++;
    if ((from < t->nranks || t->admits) && t->super.on_ctl != NULL)
        t->super.on_ctl(t->super.on_ctl_arg, from, msg->data, msg->bytes);
    atomic_fetch_add(&t->super.moves, 1);
    free(msg);
}

static xep_status_t progress(xep_transport_t *transport)
{
    fuzz_transport_t *t = (fuzz_transport_t *)transport;
    for (fuzz_heap_t *h = t->memory->heaps; h != NULL; h = h->next)
        if (h->transport == t) fuzz_wire_move(h);
    for (uint64_t n = sim_below(t->memory->net.dice, 4); n > 0 && t->msgs != NULL && (t->nranks > 0 || t->admits); n--)
        take_msg(t);
    fuzz_turn(1000);
    return XEP_OK;
}

static const char *describe(xep_transport_t *transport, uint32_t rank)
{
    (void)transport, (void)rank;
    return "messages of a fuzz world";
}

static xep_status_t watch(xep_transport_t *transport, const uint8_t *ranks, int32_t interval_ms)
{
    (void)transport, (void)ranks, (void)interval_ms;
    return XEP_OK;
}

static int is_gone(xep_transport_t *transport, uint32_t rank, char *why, size_t bytes)
{
    const fuzz_transport_t *t = (fuzz_transport_t *)transport, *other = t->of[rank % FUZZ_MOST_RANKS];
    if (other == NULL) return 0;
    int closed = t->admits && other->is_closed && t->msgs == NULL;
    if (!closed && !t->memory->dead[other->place]) return 0;
    snprintf(why, bytes, "its connection is gone");
    return 1;
}

static void close_transport(xep_transport_t *transport)
{
    ((fuzz_transport_t *)transport)->is_closed = 1;
}

static const xep_transport_ops_t transport_ops = {.shared_look = shared_look,
                                                  .start = start,
                                                  .connect = connect,
                                                  .meet = meet,
                                                  .admit = admit,
                                                  .shared_room = shared_room,
                                                  .heap_open = fuzz_wire_open,
                                                  .heap_connect = fuzz_wire_connect,
                                                  .heap_close = fuzz_wire_close,
                                                  .heap_fence_off = fuzz_wire_fence_off,
                                                  .heap_is_behind = fuzz_wire_is_behind,
                                                  .progress = progress,
                                                  .ctl = ctl,
                                                  .ctl_has_left = ctl_has_left,
                                                  .describe = describe,
                                                  .watch = watch,
                                                  .is_gone = is_gone,
                                                  .close = close_transport};

xep_transport_t *fuzz_memory_transport(fuzz_memory_t *memory, uint32_t rank)
{
    fuzz_transport_t *t = calloc(1, sizeof *t);
    if (t == NULL) fuzz_fail("no memory");
    t->super.ops = &transport_ops;
    t->memory = memory;
    t->number = memory->ntransports++;
    t->place = rank;
    memset(t->address, (int)rank, sizeof t->address);
    memcpy(t->address + 1, &t->number, sizeof t->number);
    t->super.address = t->address;
    t->super.address_bytes = 8 + rank;
    t->end = &t->msgs;
    t->next = memory->transports;
    memory->transports = t;
    return &t->super;
}

fuzz_memory_t *fuzz_memory_make(uint32_t nranks, const uint32_t *node, sim_dice_t *dice)
{
    fuzz_memory_t *memory = calloc(1, sizeof *memory);
    if (memory == NULL) fuzz_fail("no memory");
    memory->nranks = nranks;
    fuzz_wire_begin(memory, dice);
    memcpy(memory->node, node, nranks * sizeof *node);
    return memory;
}

void fuzz_memory_stop(fuzz_memory_t *memory, uint32_t rank, int stopped, int dead)
{
    memory->stopped[rank] = (uint8_t)stopped;
    memory->dead[rank] = (uint8_t)dead;
}

static void free_transports(fuzz_memory_t *memory)
{
    while (memory->transports != NULL) {
        fuzz_transport_t *t = memory->transports;
        if (!t->is_closed) fuzz_fail("a transport of rank %u was never closed", t->place);
        memory->transports = t->next;
        while (t->msgs != NULL) {
            msg_t *msg = t->msgs;
            t->msgs = msg->next;
            free(msg);
        }
        free(t);
    }
}

void fuzz_memory_free(fuzz_memory_t *memory)
{
    fuzz_wire_free_all(memory);
    free_transports(memory);
    free(memory);
}
