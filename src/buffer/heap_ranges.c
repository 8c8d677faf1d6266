/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Where the heaps of this process lie. Entries are used again but not freed while the library is loaded, so that a
 * search needs no lock. It may meet an entry that is just changing, with the begin of one heap and the length of
 * another: so a hit counts only if a second search, with the lock, finds it, too.
 */
#include <pthread.h>
#include <stdlib.h>

#include "error.h"
#include "heap.h"

typedef struct range {
    struct range *next;
    atomic_uintptr_t begin, bytes; /* bytes 0: the entry is free */
    const xep_buffer_t *buffer;    /* read with the lock */
} range_t;

atomic_uintptr_t xep_heap_lowest = UINTPTR_MAX, xep_heap_highest;

static _Atomic(range_t *) ranges;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static range_t *find_free(void)
{
    range_t *range = ranges;
    while (range != NULL && range->bytes != 0) range = range->next;
    if (range != NULL || (range = calloc(1, sizeof *range)) == NULL) return range;
    range->next = ranges;
    ranges = range;
    return range;
}

static void set_bounds(void)
{
    uintptr_t lowest = UINTPTR_MAX, highest = 0;
    for (range_t *range = ranges; range != NULL; range = range->next) {
        if (range->bytes == 0) continue;
        if (range->begin < lowest) lowest = range->begin;
        if (range->begin + range->bytes > highest) highest = range->begin + range->bytes;
    }
    xep_heap_lowest = lowest;
    xep_heap_highest = highest;
}

xep_status_t xep_heap_note(const xep_buffer_t *buffer, const void *base, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    range_t *range = find_free();
    if (range != NULL) {
        range->buffer = buffer;
        range->begin = (uintptr_t)base;
        range->bytes = bytes;
        set_bounds();
    }
    pthread_mutex_unlock(&lock);
    return range != NULL ? XEP_OK : xep_fail(XEP_ERR_NO_MEMORY, "no memory for a heap");
}

void xep_heap_forget(const xep_buffer_t *buffer)
{
    pthread_mutex_lock(&lock);
    for (range_t *range = ranges; range != NULL; range = range->next)
        if (range->buffer == buffer) range->bytes = 0;
    set_bounds();
    pthread_mutex_unlock(&lock);
}

static int look(uintptr_t address)
{
    for (const range_t *range = ranges; range != NULL; range = range->next)
        if (address - atomic_load_explicit(&range->begin, memory_order_relaxed) <
            atomic_load_explicit(&range->bytes, memory_order_relaxed))
            return 1;
    return 0;
}

int xep_heap_holds(const void *address)
{
    if (!xep_heap_is_near(address) || !look((uintptr_t)address)) return 0;
    pthread_mutex_lock(&lock);
    int held = look((uintptr_t)address);
    pthread_mutex_unlock(&lock);
    return held;
}

/* The library is unloaded, or the process ends: threads with a buffer may still search then. */
__attribute__((destructor)) static void free_ranges(void)
{
    range_t *range = xep_heap_highest == 0 ? ranges : NULL;
    while (range != NULL) {
        range_t *next = range->next;
        free(range);
        range = next;
    }
}
