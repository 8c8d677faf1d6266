/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Pages are placed before their first touch, and touched when the buffer is created, not by a timed operation: an
 * untouched worst case costs dozens of slow operations.
 */
#define _GNU_SOURCE
#include "heap.h"

#include <numa.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "log.h"
#include "mapping.h"
#include "room.h"

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

/* the node this thread runs on, or -1: one node only, or not asked for */
static int home_node(const xep_config_t *config)
{
    int cpu;
    if (!config->numa || numa_available() < 0 || numa_max_node() == 0) return -1;
    cpu = sched_getcpu();
    return cpu < 0 ? -1 : numa_node_of_cpu(cpu);
}

/*
 * Places what is touched from now on. What the transport touched as it allocated is on this thread's node as well,
 * unless the program has a memory policy of its own, which is left alone.
 */
xep_status_t xep_heap_open(const xep_config_t *config, xep_transport_t *transport, uint64_t bytes,
                           xep_heap_wire_t **heap_p)
{
    int node = home_node(config);
    xep_status_t status = xep_room_check(bytes);
    if (status == XEP_OK) status = transport->ops->heap_open(transport, bytes, heap_p);
    if (status != XEP_OK) return status;
    if (node >= 0) numa_tonode_memory((*heap_p)->base, (*heap_p)->bytes, node);
    /* refused if shared memory has no huge pages: no harm */
    madvise((*heap_p)->base, (*heap_p)->bytes, MADV_HUGEPAGE);
    return XEP_OK;
}

/* adds 0 to a byte of each page: present and writable, contents kept even if a peer writes meanwhile */
static void touch(char *begin, char *end, size_t page)
{
    for (char *p = begin; p < end; p += page) __atomic_fetch_add(p, 0, __ATOMIC_RELAXED);
}

static void look_at(const char *begin, const char *end, size_t page)
{
    for (const char *p = begin; p < end; p += page) (void)*(const volatile char *)p;
}

/*
 * A page of a peer is there already. In shared memory a read fault maps it for writing, too, and is cheaper: 0.87 us in
 * place of 1.1 in a System V segment, where each page takes one; 0.4 in place of 1.2 in a POSIX segment, where the
 * kernel maps 16 at once.
 */
void xep_heap_prefault(void *base, uint64_t bytes, xep_pages_t whose, uint64_t *budget_p)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int advice = whose == XEP_PAGES_OWN ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    if (bytes > *budget_p) bytes = *budget_p;
    if (bytes == 0) return;
    *budget_p -= bytes;
    char *begin = (char *)((uintptr_t)base & ~(uintptr_t)(page - 1)), *end = (char *)base + bytes;
    if (madvise(begin, (size_t)(end - begin), advice) == 0) return;
    if (whose == XEP_PAGES_OWN) touch(begin, end, page); /* the kernel is older */
    else look_at(begin, end, page);
}

static int make_room(xep_page_ranges_t *later)
{
    size_t room = later->room == 0 ? 256 : later->room * 2;
    if (later->count < later->room) return 1;
    void *ranges = realloc(later->ranges, room * sizeof *later->ranges);
    if (ranges == NULL) return 0;
    later->ranges = ranges;
    later->room = room;
    return 1;
}

void xep_heap_prefault_later(xep_page_ranges_t *later, void *base, uint64_t bytes, uint64_t *budget_p)
{
    if (make_room(later)) later->ranges[later->count++] = (struct xep_page_range){base, bytes};
    else xep_heap_prefault(base, bytes, XEP_PAGES_OF_PEER, budget_p);
}

void xep_heap_prefault_all(xep_page_ranges_t *later, uint64_t *budget_p)
{
    for (size_t i = 0; i < later->count; i++)
        xep_heap_prefault(later->ranges[i].base, later->ranges[i].bytes, XEP_PAGES_OF_PEER, budget_p);
    free(later->ranges);
    *later = (xep_page_ranges_t){0};
}

void xep_heap_log_pages(const xep_heap_wire_t *heap)
{
    xep_mapping_pages_t pages;
    if (!xep_log_enabled(XEP_LOG_INFO) || !xep_mapping_find_pages(heap->base, &pages)) return;
    if (pages.kilobytes * 1024 > (uint64_t)sysconf(_SC_PAGESIZE))
        xep_log(XEP_LOG_INFO, "pages of the heap: %llu KiB, reserved ones", (unsigned long long)pages.kilobytes);
    else if (pages.huge_kilobytes != 0)
        xep_log(XEP_LOG_INFO, "pages of the heap: %llu of %llu KiB in huge ones",
                (unsigned long long)pages.huge_kilobytes, (unsigned long long)pages.present_kilobytes);
    else
        xep_log(XEP_LOG_INFO,
                "pages of the heap: %llu KiB; no huge ones (none are reserved in vm.nr_hugepages, and "
                "transparent_hugepage/shmem_enabled gives none)",
                (unsigned long long)pages.kilobytes);
}
