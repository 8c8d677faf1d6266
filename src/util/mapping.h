/* SPDX-License-Identifier: BSD-3-Clause */

/** The mappings of this process, as the kernel lists them. */
#ifndef XEP_UTIL_MAPPING_H
#define XEP_UTIL_MAPPING_H

#include <stdint.h>

typedef struct xep_mapping {
    uintptr_t begin, end;
    int shared;      /* with other processes */
    uint64_t offset; /* in its file or segment, of what begins there */
    uint64_t inode;  /* of a System V segment: its id */
    char path[64];   /* as far as it fits */
} xep_mapping_t;

/** The mapping from an address on; 0: none there, or the list cannot be read. Reads a file: not for the data path. */
int xep_mapping_find(const void *address, xep_mapping_t *mapping_p);

typedef struct xep_mapping_pages {
    uint64_t kilobytes;         /* of a page: more than the system's page size if pages were reserved (hugetlb) */
    uint64_t present_kilobytes; /* of the mapping, in this process; 0 where pages were reserved */
    uint64_t huge_kilobytes;    /* of these, in pages that the system made huge by itself (transparent) */
} xep_mapping_pages_t;

/** The pages of the mapping at an address; 0: none there, or the list cannot be read. Slow: walks all page tables. */
int xep_mapping_find_pages(const void *address, xep_mapping_pages_t *pages_p);

/** Every mapping, until visit returns 0. */
void xep_mapping_each(int (*visit)(const xep_mapping_t *mapping, void *arg), void *arg);

/** Whether it is a segment of System V or of /dev/shm, whose inode and offset mean the same in every process. */
int xep_mapping_is_segment(const xep_mapping_t *mapping);

/** Whether all these bytes are there and shared, in one piece of memory; 1 also where the list cannot be read. */
int xep_mapping_is_shared(const void *address, uint64_t bytes);

#endif
