/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A sanitizer fences off every allocation. Without one there are pages that nobody may touch around the heap, many of
 * them, since a number that a peer has spoiled leads far. What is left of the last page is looked at in the end.
 */
#define _GNU_SOURCE
#include "sim_heap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined __SANITIZE_ADDRESS__
#define HAS_SANITIZER 1
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif
#ifndef HAS_SANITIZER
#define HAS_SANITIZER 0
#endif

enum { PAGE = 4096 };
#define FENCE ((size_t)1 << 30)

static size_t whole_pages(uint64_t bytes)
{
    return (size_t)(bytes + PAGE - 1) / PAGE * PAGE;
}

static void *make_fenced(uint64_t bytes)
{
    size_t whole = whole_pages(bytes);
    char *all = mmap(NULL, whole + 2 * FENCE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED || mprotect(all + FENCE, whole, PROT_READ | PROT_WRITE) != 0) abort();
    return all + FENCE;
}

void *sim_heap_make(uint64_t bytes, int fence)
{
    void *heap;
    if (fence && !HAS_SANITIZER) return make_fenced(bytes);
    if (posix_memalign(&heap, PAGE, bytes) != 0) abort(); /* exactly this long */
    memset(heap, 0, bytes);
    return heap;
}

int sim_heap_free(void *heap, uint64_t bytes, int fence)
{
    int good = 1;
    if (!fence || HAS_SANITIZER) {
        free(heap);
        return good;
    }
    size_t whole = whole_pages(bytes);
    for (uint64_t at = bytes; at < whole; at++) good &= ((char *)heap)[at] == 0;
    munmap((char *)heap - FENCE, whole + 2 * FENCE);
    return good;
}

uint64_t sim_heap_pages(uint64_t bytes, int fence)
{
    return fence && !HAS_SANITIZER ? whole_pages(bytes) : bytes / PAGE * PAGE;
}
