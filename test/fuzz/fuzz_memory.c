/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Addresses and keys come over the bootstrap and may be spoiled there: they are checked as those of UCX are. A heap
 * that its owner has closed stays until the world ends, as a segment does that peers have mapped.
 */
#include "fuzz_memory.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "fuzz_target.h"
#include "fuzz_turns.h"
#include "fuzz_world.h"

enum { MAGIC = 0x7a7a7566, MOST_INFLIGHT = 16, PAGE = 4096 };

typedef struct message {
    struct message *next;
    uint32_t to;
    uint64_t offset, signal_offset, value;
    const void *src;
    void *dst; /* of a get */
    size_t bytes;
    int has_signal;
} message_t;

typedef struct key {
    uint32_t magic, heap; /* number of it in the world */
    uint64_t bytes;
} heap_key_t;

typedef struct heap {
    xep_heap_wire_t super;
    struct heap *next;
    struct memory_transport *transport; /* NULL: closed */
    struct heap *of[FUZZ_MOST_RANKS];
    message_t *messages, **end;
    uint32_t number, pending;
    uint64_t posted;
    heap_key_t key;
} heap_t;

struct fuzz_memory {
    uint32_t nranks, nheaps, node[FUZZ_MOST_RANKS];
    heap_t *heaps;
};

typedef struct memory_transport {
    xep_transport_t super;
    fuzz_memory_t *memory;
    uint32_t rank;
    uint8_t may_map[FUZZ_MOST_RANKS];
    uint8_t address[FUZZ_MOST_RANKS + 8]; /* the length differs from rank to rank */
} memory_transport_t;

/* ---- wire ---- */

static char *place(heap_t *heap, uint32_t rank, uint64_t offset, uint64_t bytes)
{
    const heap_t *of = heap->of[rank];
    if (bytes > of->super.bytes || offset > of->super.bytes - bytes)
        fuzz_fail("%llu bytes at %llu of rank %u, whose heap has %llu", (unsigned long long)bytes,
                  (unsigned long long)offset, rank, (unsigned long long)of->super.bytes);
    return (char *)of->super.base + offset;
}

static void store_word(heap_t *heap, uint32_t rank, uint64_t offset, uint64_t value)
{
    char *to = place(heap, rank, offset, sizeof value);
    if (offset % sizeof value != 0) fuzz_fail("a signal at %llu", (unsigned long long)offset);
    atomic_store_explicit((_Atomic uint64_t *)(void *)to, value, memory_order_release);
}

static int is_mapped(const heap_t *heap, uint32_t rank)
{
    const memory_transport_t *t = heap->transport;
    return rank == t->rank || (t->may_map[rank] && t->memory->node[rank] == t->memory->node[t->rank]);
}

static void *wire_map(xep_wire_t *wire, uint32_t rank)
{
    heap_t *heap = (heap_t *)wire;
    return is_mapped(heap, rank) ? heap->of[rank]->super.base : NULL;
}

static void deliver(heap_t *heap)
{
    message_t *m = heap->messages;
    char *there = place(heap, m->to, m->offset, m->bytes);
    if (m->bytes > 0) memcpy(m->dst != NULL ? m->dst : there, m->dst != NULL ? there : m->src, m->bytes);
    if (m->has_signal) store_word(heap, m->to, m->signal_offset, m->value);
    heap->messages = m->next;
    if (heap->messages == NULL) heap->end = &heap->messages;
    heap->pending--;
    atomic_fetch_add(&heap->transport->super.moves, 1);
    free(m);
}

static xep_status_t post(heap_t *heap, const message_t *message)
{
    if (heap->pending >= MOST_INFLIGHT) return XEP_INPROGRESS;
    message_t *m = malloc(sizeof *m);
    if (m == NULL) fuzz_fail("no memory");
    *m = *message;
    m->next = NULL;
    *heap->end = m;
    heap->end = &m->next;
    heap->pending++;
    heap->posted++;
    (void)place(heap, m->to, m->offset, m->bytes);
    if (is_mapped(heap, m->to) && heap->messages == m) deliver(heap);
    return XEP_OK;
}

static xep_status_t wire_put(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes)
{
    return post((heap_t *)wire, &(message_t){.to = rank, .offset = offset, .src = src, .bytes = bytes});
}

static xep_status_t wire_put_signal(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes,
                                    uint64_t signal_offset, uint64_t value)
{
    return post((heap_t *)wire, &(message_t){.to = rank,
                                             .offset = bytes == 0 ? 0 : offset,
                                             .src = src,
                                             .bytes = bytes,
                                             .has_signal = 1,
                                             .signal_offset = signal_offset,
                                             .value = value});
}

static xep_status_t wire_get(xep_wire_t *wire, uint32_t rank, uint64_t offset, void *dst, size_t bytes)
{
    return post((heap_t *)wire, &(message_t){.to = rank, .offset = offset, .dst = dst, .bytes = bytes});
}

static xep_status_t wire_flush(xep_wire_t *wire)
{
    return ((heap_t *)wire)->pending == 0 ? XEP_OK : XEP_INPROGRESS;
}

static uint64_t wire_mark(xep_wire_t *wire)
{
    return ((heap_t *)wire)->posted;
}

static xep_status_t wire_flush_to(xep_wire_t *wire, uint64_t mark)
{
    const heap_t *heap = (heap_t *)wire;
    return heap->posted - heap->pending >= mark ? XEP_OK : XEP_INPROGRESS;
}

static void move_some(heap_t *heap)
{
    for (uint64_t n = fuzz_dice(4); n > 0 && heap->messages != NULL; n--) deliver(heap);
}

static xep_status_t wire_progress(xep_wire_t *wire)
{
    move_some((heap_t *)wire);
    return XEP_OK;
}

static const xep_wire_ops_t wire_ops = {.size = sizeof wire_ops,
                                        .map = wire_map,
                                        .put = wire_put,
                                        .put_signal = wire_put_signal,
                                        .get = wire_get,
                                        .flush = wire_flush,
                                        .mark = wire_mark,
                                        .flush_to = wire_flush_to,
                                        .progress = wire_progress};

/* ---- heaps ---- */

static xep_status_t heap_open(xep_transport_t *transport, uint64_t bytes, xep_heap_wire_t **heap_p)
{
    memory_transport_t *t = (memory_transport_t *)transport;
    heap_t *heap = calloc(1, sizeof *heap);
    void *base;
    if (heap == NULL || bytes > 1 << 28 || posix_memalign(&base, PAGE, bytes) != 0) {
        free(heap);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a heap of %llu bytes", (unsigned long long)bytes);
    }
    memset(base, 0, bytes);
    heap->super = (xep_heap_wire_t){.wire = {&wire_ops}, .base = base, .bytes = bytes};
    heap->transport = t;
    heap->end = &heap->messages;
    heap->number = t->memory->nheaps++;
    heap->key = (heap_key_t){MAGIC, heap->number, bytes};
    heap->super.key = &heap->key;
    heap->super.key_bytes = sizeof heap->key;
    heap->next = t->memory->heaps;
    t->memory->heaps = heap;
    *heap_p = &heap->super;
    return XEP_OK;
}

static heap_t *find_heap(const fuzz_memory_t *memory, uint32_t rank, const heap_key_t *key)
{
    for (heap_t *h = memory->heaps; h != NULL; h = h->next)
        if (h->number == key->heap && h->transport != NULL && h->transport->rank == rank) return h;
    return NULL;
}

static xep_status_t heap_connect(xep_heap_wire_t *super, const void *const *keys, const size_t *bytes)
{
    heap_t *heap = (heap_t *)super;
    for (uint32_t r = 0; r < heap->transport->memory->nranks; r++) {
        heap_key_t key = {0};
        if (bytes[r] == sizeof key) memcpy(&key, keys[r], sizeof key);
        heap->of[r] = key.magic == MAGIC ? find_heap(heap->transport->memory, r, &key) : NULL;
        if (heap->of[r] == NULL || key.bytes != super->bytes || heap->of[r]->super.bytes != key.bytes)
            return xep_fail(XEP_ERR_PROTOCOL, "invalid key from rank %u", r);
    }
    return XEP_OK;
}

static void drop_messages(heap_t *heap)
{
    while (heap->messages != NULL) {
        message_t *m = heap->messages;
        heap->messages = m->next;
        free(m);
    }
}

static void heap_close(xep_heap_wire_t *super)
{
    heap_t *heap = (heap_t *)super;
    while (heap->messages != NULL) deliver(heap); /* what is owed to peers */
    heap->transport = NULL;
}

/* ---- transport ---- */

static void address(xep_transport_t *transport, const void **address_p, size_t *bytes_p)
{
    memory_transport_t *t = (memory_transport_t *)transport;
    memset(t->address, (int)t->rank, sizeof t->address);
    *address_p = t->address;
    *bytes_p = 8 + t->rank;
}

static xep_status_t connect(xep_transport_t *transport, uint32_t rank, uint32_t nranks, const void *const *addresses,
                            const size_t *bytes, const uint8_t *may_map)
{
    memory_transport_t *t = (memory_transport_t *)transport;
    (void)rank;
    for (uint32_t r = 0; r < nranks; r++) {
        if (bytes[r] != 8 + r || *(const uint8_t *)addresses[r] != r)
            return xep_fail(XEP_ERR_PROTOCOL, "invalid address from rank %u", r);
        t->may_map[r] = may_map[r];
    }
    return XEP_OK;
}

static xep_status_t progress(xep_transport_t *transport)
{
    memory_transport_t *t = (memory_transport_t *)transport;
    for (heap_t *h = t->memory->heaps; h != NULL; h = h->next)
        if (h->transport == t) move_some(h);
    fuzz_turn(1000);
    return XEP_OK;
}

static const char *describe(xep_transport_t *transport, uint32_t rank)
{
    (void)transport, (void)rank;
    return "messages of a fuzz world";
}

/* It is lost: best effort is all that is promised, and ranks of other nodes then end by their deadlines. */
static xep_status_t mail(xep_transport_t *transport, uint32_t rank, const void *data, size_t bytes)
{
    (void)transport, (void)rank, (void)data, (void)bytes;
    return XEP_OK;
}

static int mail_has_left(xep_transport_t *transport)
{
    (void)transport;
    return 1;
}

static xep_status_t watch(xep_transport_t *transport, const uint8_t *ranks, int32_t interval_ms)
{
    (void)transport, (void)ranks, (void)interval_ms;
    return XEP_OK;
}

static int is_gone(xep_transport_t *transport, uint32_t rank, char *why, size_t bytes)
{
    (void)transport, (void)rank, (void)why, (void)bytes;
    return 0;
}

static void close_transport(xep_transport_t *transport)
{
    free(transport);
}

static const xep_transport_ops_t transport_ops = {.name = "fuzz",
                                                  .address = address,
                                                  .connect = connect,
                                                  .heap_open = heap_open,
                                                  .heap_connect = heap_connect,
                                                  .heap_close = heap_close,
                                                  .progress = progress,
                                                  .mail = mail,
                                                  .mail_has_left = mail_has_left,
                                                  .describe = describe,
                                                  .watch = watch,
                                                  .is_gone = is_gone,
                                                  .close = close_transport};

xep_transport_t *fuzz_memory_transport(fuzz_memory_t *memory, uint32_t rank)
{
    memory_transport_t *t = calloc(1, sizeof *t);
    if (t == NULL) fuzz_fail("no memory");
    t->super.ops = &transport_ops;
    t->memory = memory;
    t->rank = rank;
    return &t->super;
}

fuzz_memory_t *fuzz_memory_make(uint32_t nranks, const uint32_t *node)
{
    fuzz_memory_t *memory = calloc(1, sizeof *memory);
    if (memory == NULL) fuzz_fail("no memory");
    memory->nranks = nranks;
    memcpy(memory->node, node, nranks * sizeof *node);
    return memory;
}

void fuzz_memory_free(fuzz_memory_t *memory)
{
    while (memory->heaps != NULL) {
        heap_t *heap = memory->heaps;
        if (heap->transport != NULL) fuzz_fail("a heap of rank %u was never closed", heap->transport->rank);
        memory->heaps = heap->next;
        drop_messages(heap);
        free(heap->super.base);
        free(heap);
    }
    free(memory);
}
