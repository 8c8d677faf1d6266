/* SPDX-License-Identifier: BSD-3-Clause */

/** A rank's shared memory: where its pages lie and when they appear. */
#ifndef XEP_BUFFER_HEAP_H
#define XEP_BUFFER_HEAP_H

#include <stdatomic.h>
#include <stdint.h>

#include "config.h"
#include "transport.h"

/** Opens a heap whose pages will be on this rank's NUMA node, huge where the system has such pages. */
xep_status_t xep_heap_open(const xep_config_t *config, xep_transport_t *transport, uint64_t bytes,
                           xep_heap_wire_t **heap_p);

/** Whose pages they are: a rank allocates its own, and maps those of others. */
typedef enum { XEP_PAGES_OWN, XEP_PAGES_OF_PEER } xep_pages_t;

/** Makes pages present in this process, without changing their contents; at most *budget_p bytes, which it uses up. */
void xep_heap_prefault(void *base, uint64_t bytes, xep_pages_t whose, uint64_t *budget_p);

/** Ranges of peers' pages, to be made present when the peers have made theirs. Zeroed: there are none. */
typedef struct xep_page_ranges {
    struct xep_page_range {
        void *base;
        uint64_t bytes;
    } * ranges;
    size_t count, room;
} xep_page_ranges_t;

/** Remembers a range; without memory for that, makes it present at once. */
void xep_heap_prefault_later(xep_page_ranges_t *later, void *base, uint64_t bytes, uint64_t *budget_p);

/** Makes all of them present, and forgets them. */
void xep_heap_prefault_all(xep_page_ranges_t *later, uint64_t *budget_p);

/** Says in the log how large the pages of a heap are: huge ones make low latency about 1.2 times as fast. */
void xep_heap_log_pages(const xep_heap_wire_t *heap);

/* ---- heap_ranges.c ---- */

/** Notes that the range, a heap or a peer's as it is mapped here, belongs to a buffer. Errors: XEP_ERR_NO_MEMORY. */
xep_status_t xep_heap_note(const xep_buffer_t *buffer, const void *base, uint64_t bytes);

/** Forgets all ranges of the buffer. */
void xep_heap_forget(const xep_buffer_t *buffer);

/** All ranges lie between these two. */
extern atomic_uintptr_t xep_heap_lowest, xep_heap_highest;

/** 0: the address is in no range. */
static inline int xep_heap_is_near(const void *address)
{
    int is_above = (uintptr_t)address >= atomic_load_explicit(&xep_heap_lowest, memory_order_relaxed),
        is_below = (uintptr_t)address < atomic_load_explicit(&xep_heap_highest, memory_order_relaxed);
    return is_above & is_below; /* one branch for all outputs of a call */
}

/** Whether the address is in a range, of whatever buffer of this process. From any thread. */
int xep_heap_holds(const void *address);

#endif
