/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Reads /proc/self/maps anew for each question: mappings come and go, and these questions are asked when a heap is
 * made, not on the data path.
 */
#include "mapping.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* "7f1c4000-7f1c8000 rw-s 00000000 00:01 32769  /SYSV00000000 (deleted)" */
static int parse_line(const char *line, xep_mapping_t *mapping)
{
    char access[8];
    *mapping = (xep_mapping_t){0};
    if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %" SCNx64 " %*x:%*x %" SCNu64 " %63s", &mapping->begin,
               &mapping->end, access, &mapping->offset, &mapping->inode, mapping->path) < 5)
        return 0;
    mapping->shared = strchr(access, 's') != NULL;
    return 1;
}

/* the mappings from the one that holds address on, until visit returns 0; -1: the list cannot be read */
static int visit_from(const void *address, int (*visit)(const xep_mapping_t *mapping, void *arg), void *arg)
{
    char line[4352];
    int more = 1;
    FILE *list = fopen("/proc/self/maps", "re");
    if (list == NULL) return -1;
    while (more && fgets(line, sizeof line, list) != NULL) {
        xep_mapping_t mapping;
        if (parse_line(line, &mapping) && mapping.end > (uintptr_t)address) more = visit(&mapping, arg);
    }
    fclose(list);
    return 0;
}

static int keep_first(const xep_mapping_t *mapping, void *arg)
{
    *(xep_mapping_t *)arg = *mapping;
    return 0;
}

/* The part of a mapping from address on: that is what two processes can compare. */
int xep_mapping_find(const void *address, xep_mapping_t *mapping_p)
{
    xep_mapping_t mapping = {0};
    if (visit_from(address, keep_first, &mapping) != 0 || mapping.end == 0 || mapping.begin > (uintptr_t)address)
        return 0;
    mapping.offset += (uintptr_t)address - mapping.begin;
    mapping.begin = (uintptr_t)address;
    *mapping_p = mapping;
    return 1;
}

void xep_mapping_each(int (*visit)(const xep_mapping_t *mapping, void *arg), void *arg)
{
    (void)visit_from(NULL, visit, arg);
}

/* "KernelPageSize:        4 kB" */
static void parse_pages(const char *line, xep_mapping_pages_t *pages)
{
    (void)(sscanf(line, "KernelPageSize: %" SCNu64, &pages->kilobytes) == 1 ||
           sscanf(line, "Rss: %" SCNu64, &pages->present_kilobytes) == 1 ||
           sscanf(line, "ShmemPmdMapped: %" SCNu64, &pages->huge_kilobytes) == 1);
}

int xep_mapping_find_pages(const void *address, xep_mapping_pages_t *pages_p)
{
    char line[4352];
    int inside = 0, found = 0;
    FILE *list = fopen("/proc/self/smaps", "re");
    *pages_p = (xep_mapping_pages_t){0};
    while (list != NULL && fgets(line, sizeof line, list) != NULL) {
        xep_mapping_t mapping;
        if (!parse_line(line, &mapping)) {
            if (inside) parse_pages(line, pages_p);
            continue;
        }
        if (inside) break;
        inside = mapping.begin <= (uintptr_t)address && (uintptr_t)address < mapping.end;
        found |= inside;
    }
    if (list != NULL) fclose(list);
    return found && pages_p->kilobytes != 0;
}

/* The names that System V and POSIX shared memory have on Linux. */
int xep_mapping_is_segment(const xep_mapping_t *mapping)
{
    return strncmp(mapping->path, "/SYSV", 5) == 0 || strncmp(mapping->path, "/dev/shm/", 9) == 0;
}

typedef struct cover {
    uintptr_t at, end; /* covered up to, wanted up to */
    uint64_t inode;
    int first;
} cover_t;

/* one segment may be several mappings: advice about a part of it splits it */
static int extend_cover(const xep_mapping_t *mapping, void *arg)
{
    cover_t *cover = arg;
    if (mapping->begin > cover->at || !mapping->shared || (!cover->first && mapping->inode != cover->inode)) return 0;
    cover->first = 0;
    cover->inode = mapping->inode;
    cover->at = mapping->end;
    return cover->at < cover->end;
}

/* If the list cannot be read, the answer is yes. */
int xep_mapping_is_shared(const void *address, uint64_t bytes)
{
    cover_t cover = {.at = (uintptr_t)address, .end = (uintptr_t)address + bytes, .first = 1};
    if (cover.end < cover.at) return 0;
    return visit_from(address, extend_cover, &cover) != 0 || cover.at >= cover.end;
}
