/* SPDX-License-Identifier: BSD-3-Clause */

/* Reads /sys: the C library knows one cache at most, and none on some processors. */
#include "cache.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

/*
 * The most that is counted of a cache for each processor that shares it: servers have 2 to 5 MiB for each core. A
 * virtual machine is shown the whole cache of its host, most of which its neighbours use.
 *
 * Two such machines (Intel, L2 2 MiB for each processor), one with 2 processors that are shown 260 MiB, one with 16 and
 * 300 MiB. A dispatch, and it and one read of all rows received, streamed and cached, in us; the MB of a rank are all
 * rows that it stores, of 14,336 bytes:
 *    2 processors, 2 ranks,  4 MB   200,   660 and   225,   400;  15 MB  850, 2,600 and 900, 1,600
 *                           29 MB 2,200, 5,900 and 3,900, 6,900;  59 MB  4,500, 11,000 and 9,000, 16,000
 *   16 processors, 2 ranks, 29 MB 1,540, 4,180 and 1,730, 2,840;  59 MB  3,250, 8,600 and 4,690, 8,140
 *                  8 ranks, 10 MB   510, 1,540 and   480,   870;  19 MB  995, 3,070 and 1,460, 2,780
 *                           39 MB 2,100, 6,300 and 4,500, 8,100;  16 ranks, 12 MB  1,010, 2,510 and 1,230, 2,250
 * In these runs the rows of the last dispatch were still in the cache. Where a rank has read 128 MB meanwhile, as a
 * layer of a model does, the same with 2 processors and ranks: 4 MB 220, 600 and 350, 525; 15 MB 1,060, 2,800 and
 * 1,730, 2,600; in mode ll 15 MB 1,000, 2,600 and 1,970, 3,300. So what all ranks store together may gain by the cache
 * up to about 12 MB of 2 processors and 100 of 16. A combine, with the rows that it sums, on 16 processors: 2 ranks, 44
 * MB, 1,390, 2,900 and 1,770, 2,360; 8 ranks, 11 MB, 376, 577 and 404, 472; 23 MB, 880, 1,260 and 1,190, 1,470. Two
 * cores of an AMD that are shown 32 MiB, 2 ranks: 4 MB 123, 257 and 60, 208; 7 MB (ll) 439, 907 and 419, 928; 11 MB
 * 573, 824 and 626, 877; 4 ranks, 3 MB 289, 632 and 307, 669.
 *
 * More processors do not make it more. 64 of an Intel, 8 ranks, mode ll, outputs of 14,336 bytes; a dispatch, it and
 * one read, and a combine, streamed and cached: 7 MB 602, 1,363, 797 and 667, 1,403, 898; 15 MB 1,077, 2,731, 1,474
 * and 1,534, 3,075, 1,805.
 */
enum { PROCESSOR_BYTES = 6 << 20, CACHE_BYTES = 96 << 20 };

enum { PATH_BYTES = 4096, LIST_BYTES = 4096, MOST_LEVELS = 16 };

/* a file of one line; 0: there is none */
static int read_line(const char *root, const char *name, char line[LIST_BYTES])
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/%s", root, name);
    return xep_text_read(path, line, LIST_BYTES);
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
    if (sharers == 0) sharers = 1;
    if (bytes > sharers * PROCESSOR_BYTES) bytes = sharers * PROCESSOR_BYTES;
    if (bytes > CACHE_BYTES) bytes = CACHE_BYTES;
    online = read_line(root, "online", text) ? count_list(text) : sharers;
    return online > sharers ? bytes * (online / sharers) : bytes;
}

/* ---- streaming copies: they bypass the caches, so that rows that are not read soon evict nothing ---- */

/*
 * Head and tail, which are not whole cache lines, go through the caches: a streaming store of part of a line costs more
 * than it saves.
 */

#if defined(__x86_64__)
#include <emmintrin.h>

enum { LINE = 64 };

/* SSE2 is on every x86-64: this is not worth a choice of instruction sets. */
static void copy_line(char *dst, const char *src)
{
    for (size_t i = 0; i < LINE; i += 16) _mm_stream_si128((void *)(dst + i), _mm_loadu_si128((const void *)(src + i)));
}

void xep_streaming_copy(void *dst, const void *src, size_t bytes)
{
    char *to = dst;
    const char *from = src;
    size_t head = -(uintptr_t)to % LINE;
    if (head > bytes) head = bytes;
    memcpy(to, from, head);
    for (to += head, from += head, bytes -= head; bytes >= LINE; to += LINE, from += LINE, bytes -= LINE)
        copy_line(to, from);
    memcpy(to, from, bytes);
}

void xep_streaming_fence(void)
{
    _mm_sfence();
}

#else

void xep_streaming_copy(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

void xep_streaming_fence(void) {}

#endif
