/* SPDX-License-Identifier: BSD-3-Clause */

/* What Linux lists in /sys: the C library knows one cache at most, and none on some processors. */
#include "cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OWN_PART = 4, OWN_MOST = 4 << 20 };

enum { PATH_BYTES = 4096, LIST_BYTES = 4096, MOST_LEVELS = 16 };

/* the first line of a file; 0: there is none */
static int read_line(const char *root, const char *name, char line[LIST_BYTES])
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/%s", root, name);
    FILE *file = fopen(path, "re");
    int found = file != NULL && fgets(line, LIST_BYTES, file) != NULL;
    if (file != NULL) fclose(file);
    return found;
}

/* processors of a list: "0-15,32-47" has 32 */
static uint64_t count_list(const char *list)
{
    uint64_t count = 0;
    while (*list >= '0' && *list <= '9') {
        char *end;
        uint64_t first = strtoull(list, &end, 10), last = first;
        if (*end == '-') last = strtoull(end + 1, &end, 10);
        if (last >= first) count += last - first + 1;
        list = *end == ',' ? end + 1 : end;
    }
    return count;
}

/* "32768K" */
static uint64_t parse_size(const char *text)
{
    char *unit;
    uint64_t size = strtoull(text, &unit, 10);
    return *unit == 'K' ? size << 10 : *unit == 'M' ? size << 20 : size;
}

/* Indices are in the order of levels, so the last one counts. Each cache serves as many processors as the first. */
uint64_t xep_cache_bytes(const char *root)
{
    char name[64], text[LIST_BYTES];
    uint64_t bytes = 0, sharers = 1, online;
    for (int index = 0; index < MOST_LEVELS; index++) {
        snprintf(name, sizeof name, "cpu0/cache/index%d/size", index);
        if (!read_line(root, name, text)) break;
        bytes = parse_size(text);
        snprintf(name, sizeof name, "cpu0/cache/index%d/shared_cpu_list", index);
        sharers = read_line(root, name, text) ? count_list(text) : 1;
    }
    online = read_line(root, "online", text) ? count_list(text) : sharers;
    return sharers != 0 && online > sharers ? bytes * (online / sharers) : bytes;
}

/*
 * Rows of 14,336 bytes, and of 7,168 in mode ll, on two cores of a shared virtual machine (L2 1 MiB, L3 32 MiB): a
 * dispatch, and it and one read of the rows received, streamed and cached, in us:
 *   normal, 2 ranks: 128 tokens (3.7 MB)  123, 257 and 60, 208;   384 tokens (11 MB)  573, 824 and 626, 877
 *           4 ranks:  64 tokens (3.3 MB)  289, 632 and 307, 669
 *   ll, 2 ranks:  16 tokens (0.9 MB)  52, 89 and 37, 66;   64 (3.7 MB)  218, 437 and 112, 402;
 *           128 (7.3 MB)  439, 907 and 419, 928
 *       8 ranks:  16 tokens (0.9 MB)  287, 531 and 215, 432
 * A copy by the C library beside streaming stores, as rows for others are cached, is slower than either alone.
 */
uint64_t xep_cache_own_bytes(uint64_t share, uint64_t least)
{
    const uint64_t part = share / OWN_PART, most = part < OWN_MOST ? part : OWN_MOST;
    return most > least ? most : least;
}
