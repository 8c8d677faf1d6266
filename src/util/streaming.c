/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Head and tail that are no whole cache lines go through the caches: a streaming store of part of a line costs more
 * than it saves.
 */
#include "streaming.h"

#include <stdint.h>
#include <string.h>

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
