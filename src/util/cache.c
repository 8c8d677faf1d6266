/* SPDX-License-Identifier: BSD-3-Clause */

/* What Linux lists in /sys: the C library knows one cache at most, and none on some processors. */
#include "cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
