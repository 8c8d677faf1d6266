/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Addresses and keys come over the bootstrap and may be spoiled there: they are checked as those of UCX are. A heap
 * that its owner has closed stays until the world ends, as a segment does that peers have mapped; so does a transport,
 * to which others may still send. The ranks of a group that has shrunk or grown have other numbers than those of the
 * world: a transport knows the others by their transports.
 */
#include "fuzz_memory.h"

#include <stdio.h>
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
    uint64_t number; /* how many were posted before it */
    uint64_t offset, signal_offset, value;
    const void *src;
    void *dst; /* of a get */
    size_t bytes;
    int has_signal;
    char copy[]; /* of what src was, where the heap spares ranks */
} message_t;

/* mail, with the transport that sent it */
typedef struct letter {
    struct letter *next;
    struct memory_transport *from;
    size_t bytes;
    char data[];
} letter_t;

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
    uint32_t number, pending, pending_to[FUZZ_MOST_RANKS];
    uint8_t severed[FUZZ_MOST_RANKS];
    uint64_t posted;
    heap_key_t key;
} heap_t;

struct fuzz_memory {
    uint32_t nranks, nheaps, ntransports, node[FUZZ_MOST_RANKS];
    uint8_t stopped[FUZZ_MOST_RANKS], dead[FUZZ_MOST_RANKS];
    heap_t *heaps;
    struct memory_transport *transports;
};

typedef struct memory_transport {
    xep_transport_t super;
    struct memory_transport *next;
    fuzz_memory_t *memory;
    uint32_t number, place; /* of all transports; of the rank in the world */
    uint32_t rank, nranks;  /* in the group; nranks 0: not connected */
    struct memory_transport *of[FUZZ_MOST_RANKS];
    letter_t *letters, **end;
    int is_closed;
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
    return rank == t->rank || (t->may_map[rank] && t->memory->node[t->of[rank]->place] == t->memory->node[t->place]);
}

static void *wire_map(xep_wire_t *wire, uint32_t rank)
{
    heap_t *heap = (heap_t *)wire;
    return is_mapped(heap, rank) ? heap->of[rank]->super.base : NULL;
}

/* What a rank that is out sends, and what is sent to it, is nowhere stored. */
static void store(heap_t *heap, const message_t *m)
{
    char *there = place(heap, m->to, m->offset, m->bytes);
    if (heap->severed[m->to] || heap->of[m->to]->severed[heap->transport->rank]) return;
    if (m->bytes > 0) memcpy(m->dst != NULL ? m->dst : there, m->dst != NULL ? there : m->src, m->bytes);
    if (m->has_signal) store_word(heap, m->to, m->signal_offset, m->value);
}

static void deliver(heap_t *heap, message_t **at)
{
    message_t *m = *at;
    store(heap, m);
    *at = m->next;
    if (m->next == NULL) heap->end = at;
    heap->pending--;
    heap->pending_to[m->to]--;
    atomic_fetch_add(&heap->transport->super.moves, 1);
    free(m);
}

static int is_full(const heap_t *heap, uint32_t to)
{
    int spares = atomic_load(&heap->super.spares);
    return heap->pending >= MOST_INFLIGHT && (!spares || heap->pending_to[to] > 0);
}

static xep_status_t post(heap_t *heap, const message_t *message)
{
    size_t kept = atomic_load(&heap->super.spares) && message->src != NULL ? message->bytes : 0;
    if (is_full(heap, message->to)) return XEP_INPROGRESS;
    (void)place(heap, message->to, message->offset, message->bytes);
    message_t *m = malloc(sizeof *m + kept), **at = heap->end;
    if (m == NULL) fuzz_fail("no memory");
    *m = *message;
    if (kept > 0) m->src = memcpy(m->copy, message->src, kept);
    m->next = NULL;
    m->number = heap->posted++;
    *heap->end = m;
    heap->end = &m->next;
    heap->pending++;
    heap->pending_to[m->to]++;
    if (is_mapped(heap, m->to) && heap->messages == m) deliver(heap, at);
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
    const heap_t *heap = (heap_t *)wire;
    uint32_t pending = 0;
    for (uint32_t r = 0; r < FUZZ_MOST_RANKS; r++) pending += heap->severed[r] ? 0 : heap->pending_to[r];
    return pending == 0 ? XEP_OK : XEP_INPROGRESS;
}

static uint64_t wire_mark(xep_wire_t *wire)
{
    return ((heap_t *)wire)->posted;
}

static xep_status_t wire_flush_to(xep_wire_t *wire, uint64_t mark)
{
    for (const message_t *m = ((heap_t *)wire)->messages; m != NULL; m = m->next)
        if (m->number < mark && !((heap_t *)wire)->severed[m->to]) return XEP_INPROGRESS;
    return XEP_OK;
}

/* In order, but for those to ranks that are stopped, behind which others go on. */
static void move_some(heap_t *heap)
{
    message_t **at = &heap->messages;
    for (uint64_t n = fuzz_dice(4); n > 0 && *at != NULL;) {
        uint32_t to = (*at)->to;
        if (heap->transport->memory->stopped[heap->transport->of[to]->place] && !heap->severed[to]) {
            at = &(*at)->next;
            continue;
        }
        deliver(heap, at);
        n--;
    }
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

static heap_t *find_heap(const memory_transport_t *of, const heap_key_t *key)
{
    for (heap_t *h = of->memory->heaps; h != NULL; h = h->next)
        if (h->number == key->heap && h->transport == of) return h;
    return NULL;
}

static xep_status_t heap_connect(xep_heap_wire_t *super, const void *const *keys, const size_t *bytes)
{
    heap_t *heap = (heap_t *)super;
    for (uint32_t r = 0; r < heap->transport->nranks; r++) {
        heap_key_t key = {0};
        if (bytes[r] == sizeof key) memcpy(&key, keys[r], sizeof key);
        heap->of[r] = key.magic == MAGIC ? find_heap(heap->transport->of[r], &key) : NULL;
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
    while (heap->messages != NULL) deliver(heap, &heap->messages); /* what is owed to peers */
    if (super->release != NULL) super->release(super->release_arg);
    heap->transport = NULL;
}

static void heap_sever(xep_heap_wire_t *super, uint32_t rank)
{
    ((heap_t *)super)->severed[rank] = 1;
}

static int heap_is_behind(xep_heap_wire_t *super, uint32_t rank)
{
    return ((heap_t *)super)->pending_to[rank] > 0;
}

/* ---- transport ---- */

static void address(xep_transport_t *transport, const void **address_p, size_t *bytes_p)
{
    memory_transport_t *t = (memory_transport_t *)transport;
    memset(t->address, (int)t->place, sizeof t->address);
    memcpy(t->address + 1, &t->number, sizeof t->number);
    *address_p = t->address;
    *bytes_p = 8 + t->place;
}

static memory_transport_t *find_transport(const fuzz_memory_t *memory, const uint8_t *address, size_t bytes)
{
    for (memory_transport_t *t = memory->transports; t != NULL; t = t->next)
        if (bytes == 8 + t->place && memcmp(address, t->address, bytes) == 0) return t;
    return NULL;
}

static xep_status_t connect(xep_transport_t *transport, uint32_t rank, uint32_t nranks, const void *const *addresses,
                            const size_t *bytes, const uint8_t *may_map)
{
    memory_transport_t *t = (memory_transport_t *)transport;
    for (uint32_t r = 0; r < nranks; r++) {
        t->of[r] = r < FUZZ_MOST_RANKS ? find_transport(t->memory, addresses[r], bytes[r]) : NULL;
        for (uint32_t i = 0; i < r; i++)
            if (t->of[i] == t->of[r]) t->of[r] = NULL;
        if (t->of[r] == NULL) return xep_fail(XEP_ERR_PROTOCOL, "invalid address from rank %u", r);
        t->may_map[r] = may_map[r];
    }
    t->rank = rank;
    t->nranks = nranks;
    return XEP_OK;
}

/* ---- mail ---- */

static xep_status_t mail(xep_transport_t *transport, uint32_t rank, const void *data, size_t bytes)
{
    memory_transport_t *t = (memory_transport_t *)transport, *to = t->of[rank];
    letter_t *letter = malloc(sizeof *letter + bytes);
    if (letter == NULL) fuzz_fail("no memory");
    *letter = (letter_t){.from = t, .bytes = bytes};
    memcpy(letter->data, data, bytes);
    *to->end = letter;
    to->end = &letter->next;
    return XEP_OK;
}

static int mail_has_left(xep_transport_t *transport)
{
    (void)transport;
    return 1;
}

static void take_letter(memory_transport_t *t)
{
    letter_t *letter = t->letters;
    uint32_t from = 0;
    t->letters = letter->next;
    if (letter->next == NULL) t->end = &t->letters;
    while (from < t->nranks && t->of[from] != letter->from) from++;
    if (from < t->nranks && t->super.mailed != NULL)
        t->super.mailed(t->super.mailed_arg, from, letter->data, letter->bytes);
    atomic_fetch_add(&t->super.moves, 1);
    free(letter);
}

static xep_status_t progress(xep_transport_t *transport)
{
    memory_transport_t *t = (memory_transport_t *)transport;
    for (heap_t *h = t->memory->heaps; h != NULL; h = h->next)
        if (h->transport == t) move_some(h);
    for (uint64_t n = fuzz_dice(4); n > 0 && t->letters != NULL && t->nranks > 0; n--) take_letter(t);
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
    const memory_transport_t *t = (memory_transport_t *)transport;
    if (t->of[rank] == NULL || !t->memory->dead[t->of[rank]->place]) return 0;
    snprintf(why, bytes, "its connection is gone");
    return 1;
}

static void close_transport(xep_transport_t *transport)
{
    ((memory_transport_t *)transport)->is_closed = 1;
}

static const xep_transport_ops_t transport_ops = {.name = "fuzz",
                                                  .address = address,
                                                  .connect = connect,
                                                  .heap_open = heap_open,
                                                  .heap_connect = heap_connect,
                                                  .heap_close = heap_close,
                                                  .heap_sever = heap_sever,
                                                  .heap_is_behind = heap_is_behind,
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
    t->number = memory->ntransports++;
    t->place = rank;
    t->end = &t->letters;
    t->next = memory->transports;
    memory->transports = t;
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

void fuzz_memory_stop(fuzz_memory_t *memory, uint32_t rank, int stopped, int dead)
{
    memory->stopped[rank] = (uint8_t)stopped;
    memory->dead[rank] = (uint8_t)dead;
}

static void free_transports(fuzz_memory_t *memory)
{
    while (memory->transports != NULL) {
        memory_transport_t *t = memory->transports;
        if (!t->is_closed) fuzz_fail("a transport of rank %u was never closed", t->place);
        memory->transports = t->next;
        while (t->letters != NULL) {
            letter_t *letter = t->letters;
            t->letters = letter->next;
            free(letter);
        }
        free(t);
    }
}

void fuzz_memory_free(fuzz_memory_t *memory)
{
    while (memory->heaps != NULL) {
        heap_t *heap = memory->heaps;
        if (heap->transport != NULL) fuzz_fail("a heap of rank %u was never closed", heap->transport->place);
        memory->heaps = heap->next;
        drop_messages(heap);
        free(heap->super.base);
        free(heap);
    }
    free_transports(memory);
    free(memory);
}
