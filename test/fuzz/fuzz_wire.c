/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A heap that its owner has closed stays until the world ends, as a segment does that peers have mapped. Keys are
 * checked as those of UCX are, since they come over the bootstrap and may be spoiled there.
 */
#include "fuzz_wire.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "fuzz_target.h"
#include "fuzz_turns.h"

enum { MAGIC = 0x7a7a7566, MOST_INFLIGHT = 16, PAGE = 4096 };

static char *place(fuzz_heap_t *heap, uint32_t rank, uint64_t offset, uint64_t bytes)
{
    const fuzz_heap_t *of = heap->of[rank];
    if (bytes > of->super.bytes || offset > of->super.bytes - bytes)
        fuzz_fail("%llu bytes at %llu of rank %u, whose heap has %llu", (unsigned long long)bytes,
                  (unsigned long long)offset, rank, (unsigned long long)of->super.bytes);
    return (char *)of->super.base + offset;
}

static void store_word(fuzz_heap_t *heap, uint32_t rank, uint64_t offset, uint64_t value)
{
    char *to = place(heap, rank, offset, sizeof value);
    if (offset % sizeof value != 0) fuzz_fail("a signal at %llu", (unsigned long long)offset);
    atomic_store_explicit((_Atomic uint64_t *)(void *)to, value, memory_order_release);
}

static int is_mapped(const fuzz_heap_t *heap, uint32_t rank)
{
    const fuzz_transport_t *t = heap->transport;
    return rank == t->rank || (t->may_map[rank] && t->memory->node[t->of[rank]->place] == t->memory->node[t->place]);
}

static void *wire_map(xep_wire_t *wire, uint32_t rank)
{
    fuzz_heap_t *heap = (fuzz_heap_t *)wire;
    return is_mapped(heap, rank) ? heap->of[rank]->super.base : NULL;
}

/* What a rank that is out sends, and what is sent to it, is nowhere stored. */
static void store(fuzz_heap_t *heap, const fuzz_message_t *m)
{
    char *there = place(heap, m->to, m->offset, m->bytes);
    if (heap->fenced_off[m->to] || heap->of[m->to]->fenced_off[heap->transport->rank]) return;
    if (m->bytes > 0) memcpy(m->dst != NULL ? m->dst : there, m->dst != NULL ? there : m->src, m->bytes);
    if (m->has_signal) store_word(heap, m->to, m->signal_offset, m->value);
}

static void deliver(fuzz_heap_t *heap, fuzz_message_t **at)
{
    fuzz_message_t *m = *at;
    store(heap, m);
    *at = m->next;
    if (m->next == NULL) heap->end = at;
    heap->pending--;
    heap->pending_to[m->to]--;
    atomic_fetch_add(&heap->transport->super.moves, 1);
    free(m);
}

static int is_full(const fuzz_heap_t *heap, uint32_t to)
{
    int spares = atomic_load(&heap->super.spares);
    return heap->pending >= MOST_INFLIGHT && (!spares || heap->pending_to[to] > 0);
}

static xep_status_t post(fuzz_heap_t *heap, const fuzz_message_t *message)
{
    size_t kept = atomic_load(&heap->super.spares) && message->src != NULL ? message->bytes : 0;
    if (is_full(heap, message->to)) return XEP_INPROGRESS;
    (void)place(heap, message->to, message->offset, message->bytes);
    fuzz_message_t *m = malloc(sizeof *m + kept), **at = heap->end;
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
    return post((fuzz_heap_t *)wire, &(fuzz_message_t){.to = rank, .offset = offset, .src = src, .bytes = bytes});
}

static xep_status_t wire_put_signal(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes,
                                    uint64_t signal_offset, uint64_t value)
{
    return post((fuzz_heap_t *)wire, &(fuzz_message_t){.to = rank,
                                                       .offset = bytes == 0 ? 0 : offset,
                                                       .src = src,
                                                       .bytes = bytes,
                                                       .has_signal = 1,
                                                       .signal_offset = signal_offset,
                                                       .value = value});
}

static xep_status_t wire_signal_later(xep_wire_t *wire, uint32_t rank, uint64_t signal_offset, uint64_t value)
{
    return wire_put_signal(wire, rank, 0, NULL, 0, signal_offset, value);
}

static xep_status_t wire_get(xep_wire_t *wire, uint32_t rank, uint64_t offset, void *dst, size_t bytes)
{
    return post((fuzz_heap_t *)wire, &(fuzz_message_t){.to = rank, .offset = offset, .dst = dst, .bytes = bytes});
}

static xep_status_t wire_flush(xep_wire_t *wire)
{
    const fuzz_heap_t *heap = (fuzz_heap_t *)wire;
    uint32_t pending = 0;
    for (uint32_t r = 0; r < FUZZ_MOST_RANKS; r++) pending += heap->fenced_off[r] ? 0 : heap->pending_to[r];
    return pending == 0 ? XEP_OK : XEP_INPROGRESS;
}

static uint64_t wire_mark(xep_wire_t *wire)
{
    return ((fuzz_heap_t *)wire)->posted;
}

static xep_status_t wire_flush_to(xep_wire_t *wire, uint64_t mark)
{
    for (const fuzz_message_t *m = ((fuzz_heap_t *)wire)->messages; m != NULL; m = m->next)
        if (m->number < mark && !((fuzz_heap_t *)wire)->fenced_off[m->to]) return XEP_INPROGRESS;
    return XEP_OK;
}

void fuzz_wire_move(fuzz_heap_t *heap)
{
    fuzz_message_t **at = &heap->messages;
    for (uint64_t n = fuzz_dice(4); n > 0 && *at != NULL;) {
        uint32_t to = (*at)->to;
        if (heap->transport->memory->stopped[heap->transport->of[to]->place] && !heap->fenced_off[to]) {
            at = &(*at)->next;
            continue;
        }
        deliver(heap, at);
        n--;
    }
}

static xep_status_t wire_progress(xep_wire_t *wire)
{
    fuzz_wire_move((fuzz_heap_t *)wire);
    return XEP_OK;
}

static const xep_wire_ops_t wire_ops = {.size = sizeof wire_ops,
                                        .map = wire_map,
                                        .put = wire_put,
                                        .put_signal = wire_put_signal,
                                        .signal_later = wire_signal_later,
                                        .get = wire_get,
                                        .flush = wire_flush,
                                        .mark = wire_mark,
                                        .flush_to = wire_flush_to,
                                        .progress = wire_progress};

/* ---- heaps ---- */

xep_status_t fuzz_wire_open(xep_transport_t *transport, uint64_t bytes, xep_heap_wire_t **heap_p)
{
    fuzz_transport_t *t = (fuzz_transport_t *)transport;
    fuzz_heap_t *heap = calloc(1, sizeof *heap);
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
    heap->key = (fuzz_key_t){MAGIC, heap->number, bytes};
    heap->super.key = &heap->key;
    heap->super.key_bytes = sizeof heap->key;
    heap->next = t->memory->heaps;
    t->memory->heaps = heap;
    *heap_p = &heap->super;
    return XEP_OK;
}

static fuzz_heap_t *find_heap(const fuzz_transport_t *of, const fuzz_key_t *key)
{
    for (fuzz_heap_t *h = of->memory->heaps; h != NULL; h = h->next)
        if (h->number == key->heap && h->transport == of) return h;
    return NULL;
}

xep_status_t fuzz_wire_connect(xep_heap_wire_t *super, const void *const *keys, const size_t *bytes)
{
    fuzz_heap_t *heap = (fuzz_heap_t *)super;
    for (uint32_t r = 0; r < heap->transport->nranks; r++) {
        fuzz_key_t key = {0};
        if (bytes[r] == sizeof key) memcpy(&key, keys[r], sizeof key);
        heap->of[r] = key.magic == MAGIC ? find_heap(heap->transport->of[r], &key) : NULL;
        if (heap->of[r] == NULL || key.bytes != super->bytes || heap->of[r]->super.bytes != key.bytes)
            return xep_fail(XEP_ERR_PROTOCOL, "invalid key from rank %u", r);
    }
    return XEP_OK;
}

void fuzz_wire_close(xep_heap_wire_t *super)
{
    fuzz_heap_t *heap = (fuzz_heap_t *)super;
    while (heap->messages != NULL) deliver(heap, &heap->messages); /* what is owed to peers */
    if (super->release != NULL) super->release(super->release_arg);
    heap->transport = NULL;
}

void fuzz_wire_fence_off(xep_heap_wire_t *super, uint32_t rank)
{
    ((fuzz_heap_t *)super)->fenced_off[rank] = 1;
}

int fuzz_wire_is_behind(xep_heap_wire_t *super, uint32_t rank)
{
    return ((fuzz_heap_t *)super)->pending_to[rank] > 0;
}

static void drop_messages(fuzz_heap_t *heap)
{
    while (heap->messages != NULL) {
        fuzz_message_t *m = heap->messages;
        heap->messages = m->next;
        free(m);
    }
}

void fuzz_wire_free_all(fuzz_memory_t *memory)
{
    while (memory->heaps != NULL) {
        fuzz_heap_t *heap = memory->heaps;
        if (heap->transport != NULL) fuzz_fail("a heap of rank %u was never closed", heap->transport->place);
        memory->heaps = heap->next;
        drop_messages(heap);
        free(heap->super.base);
        free(heap);
    }
}
