/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Pages are placed before anybody touches them, and touched when the buffer is created, never by a timed operation: an
 * untouched worst case costs dozens of slow operations.
 */
#define _GNU_SOURCE
#include "heap.h"

#include <numa.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "log.h"
#include "room.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* the node this thread runs on, or -1: one node only, or not asked for */
static int home_node(const xep_config_t *config)
{
    int cpu;
    if (!config->numa || numa_available() < 0 || numa_max_node() == 0) return -1;
    cpu = sched_getcpu();
    return cpu < 0 ? -1 : numa_node_of_cpu(cpu);
}

/* The policy holds for what UCX touches while it allocates (posix segments), and is put on the
 * range for what is touched later (sysv segments). */
xep_status_t xep_heap_open(const xep_config_t *config, xep_transport_t *transport, uint64_t bytes,
                           xep_heap_wire_t **heap_p)
{
    int node = home_node(config);
    xep_status_t status = xep_room_check(bytes);
    if (status != XEP_OK) return status;
    if (node >= 0) numa_set_preferred(node);
    status = transport->ops->heap_open(transport, bytes, heap_p);
    if (node >= 0) {
        numa_set_localalloc();
        if (status == XEP_OK) numa_tonode_memory((*heap_p)->base, (*heap_p)->bytes, node);
    }
    /* refused where shared memory has no huge pages: nothing lost */
    if (status == XEP_OK) madvise((*heap_p)->base, (*heap_p)->bytes, MADV_HUGEPAGE);
    return status;
}

/* adds 0 to a byte of each page: present and writable, contents kept even if a peer writes meanwhile */
static void touch(char *begin, char *end, size_t page)
{
    for (char *p = begin; p < end; p += page) __atomic_fetch_add(p, 0, __ATOMIC_RELAXED);
}

/* MADV_POPULATE_WRITE leaves contents as they are, and so does adding 0, where the kernel is older. */
void xep_heap_prefault(void *base, uint64_t bytes, uint64_t *budget_p)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > *budget_p) bytes = *budget_p;
    if (bytes == 0) return;
    *budget_p -= bytes;
    char *begin = (char *)((uintptr_t)base & ~(uintptr_t)(page - 1)), *end = (char *)base + bytes;
    if (madvise(begin, (size_t)(end - begin), MADV_POPULATE_WRITE) != 0) touch(begin, end, page);
}
