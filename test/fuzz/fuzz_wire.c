/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A heap that its owner has closed stays until the world ends, as a segment does that peers have mapped. Keys are
 * checked as those of UCX are, since they come over the bootstrap and may be spoiled there.
 */
#include "fuzz_memory.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "fuzz_target.h"
#include "sim_heap.h"

enum { MAGIC = 0x7a7a7566 };

/* ---- what wires call ---- */

static void net_fail(sim_wire_t *self, const char *text)
{
    (void)self;
    fuzz_fail("%s", text);
}

/* Ranks get turns where the library makes progress. */
static void net_pause(sim_wire_t *self)
{
    (void)self;
}

static void net_progress(sim_wire_t *self)
{
    fuzz_wire_move((fuzz_heap_t *)(void *)self);
}

static sim_presence_t net_presence(const sim_wire_t *self)
{
    const fuzz_heap_t *heap = (const fuzz_heap_t *)(const void *)self;
    return heap->memory->stopped[heap->place] ? SIM_STOPPED : SIM_PRESENT;
}

static const sim_net_ops_t net_ops = {.fail = net_fail,
                                      .pause = net_pause,
                                      .progress = net_progress,
                                      .presence = net_presence};

void fuzz_wire_move(fuzz_heap_t *heap)
{
    const sim_net_t *net = heap->wire.net;
    const uint64_t pending = net->pending;
    for (uint64_t n = sim_below(net->dice, 8); n > 0; n--) sim_wire_move(&heap->wire);
    if (net->pending != pending) atomic_fetch_add(&heap->transport->super.moves, 1);
}

/* ---- heaps ---- */

xep_status_t fuzz_wire_open(xep_transport_t *transport, uint64_t bytes, xep_heap_wire_t **heap_p)
{
    fuzz_transport_t *t = (fuzz_transport_t *)transport;
    fuzz_memory_t *memory = t->memory;
    fuzz_heap_t *heap = calloc(1, sizeof *heap);
    if (heap == NULL || bytes > 1 << 28) {
        free(heap);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a heap of %llu bytes", (unsigned long long)bytes);
    }
    heap->memory = memory;
    heap->transport = t;
    heap->place = t->place;
    heap->key = (fuzz_key_t){MAGIC, memory->nheaps++, bytes};
    heap->wire.net = &memory->net;
    heap->wire.dice = memory->net.dice;
    heap->wire.super = (xep_heap_wire_t){.wire = {&sim_wire_ops},
                                         .base = sim_heap_make(bytes, 0),
                                         .bytes = bytes,
                                         .key = &heap->key,
                                         .key_bytes = sizeof heap->key};
    heap->next = memory->heaps;
    memory->heaps = heap;
    *heap_p = &heap->wire.super;
    return XEP_OK;
}

static fuzz_heap_t *find_heap(const fuzz_transport_t *of, const fuzz_key_t *key)
{
    for (fuzz_heap_t *h = of->memory->heaps; h != NULL; h = h->next)
        if (h->key.heap == key->heap && h->transport == of) return h;
    return NULL;
}

xep_status_t fuzz_wire_connect(xep_heap_wire_t *super, const void *const *keys, const size_t *bytes)
{
    sim_wire_t *wire = (sim_wire_t *)(void *)super;
    const fuzz_transport_t *t = ((fuzz_heap_t *)(void *)super)->transport;
    wire->rank = t->rank;
    wire->nranks = t->nranks;
    for (uint32_t r = 0; r < t->nranks; r++) {
        fuzz_key_t key = {0};
        if (bytes[r] == sizeof key) memcpy(&key, keys[r], sizeof key);
        fuzz_heap_t *other = key.magic == MAGIC ? find_heap(t->of[r], &key) : NULL;
        if (other == NULL || key.bytes != super->bytes || other->wire.super.bytes != key.bytes)
            return xep_fail(XEP_ERR_PROTOCOL, "invalid key from rank %u", r);
        wire->of[r] = &other->wire;
        wire->is_mapped[r] =
            r == t->rank || (t->may_map[r] && t->memory->node[other->place] == t->memory->node[t->place]);
    }
    return XEP_OK;
}

void fuzz_wire_close(xep_heap_wire_t *super)
{
    fuzz_heap_t *heap = (fuzz_heap_t *)(void *)super;
    sim_wire_finish(&heap->wire); /* what is owed to peers */
    if (super->release != NULL) super->release(super->release_arg);
    heap->transport = NULL;
}

void fuzz_wire_fence_off(xep_heap_wire_t *super, uint32_t rank)
{
    sim_wire_fence_off((sim_wire_t *)(void *)super, rank);
}

int fuzz_wire_is_behind(xep_heap_wire_t *super, uint32_t rank)
{
    return sim_wire_is_behind((sim_wire_t *)(void *)super, rank);
}

void fuzz_wire_begin(fuzz_memory_t *memory, sim_dice_t *dice)
{
    memory->options = (sim_options_t){.inflight = 1 + (uint32_t)sim_below(dice, 16),
                                      .hold = sim_chance(dice, 30),
                                      .refuse = sim_chance(dice, 30) ? 30 : 0,
                                      .spoiled = 1}; /* what is sent may change where an operation has failed */
    memory->net = (sim_net_t){.ops = &net_ops, .options = &memory->options, .dice = dice};
}

void fuzz_wire_free_all(fuzz_memory_t *memory)
{
    sim_wire_clear(&memory->net);
    while (memory->heaps != NULL) {
        fuzz_heap_t *heap = memory->heaps;
        if (heap->transport != NULL) fuzz_fail("a heap of rank %u was never closed", heap->place);
        memory->heaps = heap->next;
        sim_heap_free(heap->wire.super.base, heap->wire.super.bytes, 0);
        free(heap);
    }
}
