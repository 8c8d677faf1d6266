/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows past the caches where that pays (copy.h says when), and the C library's copy for all else. The vector loops take
 * four registers at a time, so that several loads are on their way before the first store.
 */
#include "copy.h"

#include <stdint.h>
#include <string.h>

enum { LINE = 64 };

/* The C library prefetches by itself; next is for the streaming copies. */
static void copy_cached(void *dst, const void *src, size_t bytes, const void *next)
{
    (void)next;
    memcpy(dst, src, bytes);
}

#if defined(__x86_64__)
#include <immintrin.h>

/* Streaming stores of parts of a line would be slower than cached ones: rows are laid on lines for this. */
static int is_line_aligned(const void *p)
{
    return ((uintptr_t)p & (LINE - 1)) == 0;
}

enum { STORES_AHEAD = 1024 };

/*
 * Through the caches, into lines that have left them: the C library's copy waits for each, and these are fetched a few
 * with each step, behind the end of a row those of the next one. 8 ranks, 128 tokens in mode ll: 0.85 of the time.
 */
__attribute__((target("avx512f,prfchw"))) static void copy_fetching_avx512(void *dst, const void *src, size_t bytes,
                                                                           const void *next)
{
    char *d = dst;
    const char *s = src;
    size_t i = 0;
    (void)next;
    for (; i + 4 * LINE <= bytes; i += 4 * LINE) {
        for (size_t j = 0; j < 4 * LINE; j += LINE) __builtin_prefetch(d + i + STORES_AHEAD + j, 1);
        __m512i a = _mm512_loadu_si512(s + i), b = _mm512_loadu_si512(s + i + LINE);
        __m512i c = _mm512_loadu_si512(s + i + 2 * LINE), e = _mm512_loadu_si512(s + i + 3 * LINE);
        _mm512_storeu_si512(d + i, a);
        _mm512_storeu_si512(d + i + LINE, b);
        _mm512_storeu_si512(d + i + 2 * LINE, c);
        _mm512_storeu_si512(d + i + 3 * LINE, e);
    }
    memcpy(d + i, s + i, bytes - i);
}

/* Without the prefetch of the next row a streaming copy stalls at each row's start, where the
 * hardware prefetcher has to find its stride again. */
__attribute__((target("avx512f"))) static void copy_stream_avx512(void *dst, const void *src, size_t bytes,
                                                                  const void *next)
{
    char *d = dst;
    const char *s = src, *n = next;
    size_t i = 0;
    if (!is_line_aligned(dst)) {
        memcpy(dst, src, bytes);
        return;
    }
    for (; i + 4 * LINE <= bytes; i += 4 * LINE) {
        for (size_t j = 0; j < 4 * LINE; j += LINE) _mm_prefetch(n + i + j, _MM_HINT_T0);
        __m512i a = _mm512_loadu_si512(s + i), b = _mm512_loadu_si512(s + i + LINE);
        __m512i c = _mm512_loadu_si512(s + i + 2 * LINE), e = _mm512_loadu_si512(s + i + 3 * LINE);
        _mm512_stream_si512((void *)(d + i), a);
        _mm512_stream_si512((void *)(d + i + LINE), b);
        _mm512_stream_si512((void *)(d + i + 2 * LINE), c);
        _mm512_stream_si512((void *)(d + i + 3 * LINE), e);
    }
    for (; i + LINE <= bytes; i += LINE) _mm512_stream_si512((void *)(d + i), _mm512_loadu_si512(s + i));
    if (i < bytes) memcpy(d + i, s + i, bytes - i);
}

/* Likewise. Its streaming stores need addresses that are multiples of 32: from the beginning of a line on all are. */
__attribute__((target("avx2"))) static void copy_stream_avx2(void *dst, const void *src, size_t bytes, const void *next)
{
    char *d = dst;
    const char *s = src, *n = next;
    size_t i = 0;
    if (!is_line_aligned(dst)) {
        memcpy(dst, src, bytes);
        return;
    }
    for (; i + 2 * LINE <= bytes; i += 2 * LINE) {
        _mm_prefetch(n + i, _MM_HINT_T0);
        _mm_prefetch(n + i + LINE, _MM_HINT_T0);
        __m256i a = _mm256_loadu_si256((const void *)(s + i)), b = _mm256_loadu_si256((const void *)(s + i + 32));
        __m256i c = _mm256_loadu_si256((const void *)(s + i + 64)), e = _mm256_loadu_si256((const void *)(s + i + 96));
        _mm256_stream_si256((void *)(d + i), a);
        _mm256_stream_si256((void *)(d + i + 32), b);
        _mm256_stream_si256((void *)(d + i + 64), c);
        _mm256_stream_si256((void *)(d + i + 96), e);
    }
    for (; i + 32 <= bytes; i += 32) _mm256_stream_si256((void *)(d + i), _mm256_loadu_si256((const void *)(s + i)));
    if (i < bytes) memcpy(d + i, s + i, bytes - i);
}

void xep_stores_fence(void)
{
    _mm_sfence();
}

#else

void xep_stores_fence(void) {}

#endif

/* Cached copies are left to the C library, which knows the processor, on every instruction set. */
xep_copy_fn xep_copy_select(xep_simd_t simd, int streaming)
{
#if defined(__x86_64__)
    if (streaming && simd >= XEP_SIMD_AVX512) return copy_stream_avx512;
    if (streaming && simd == XEP_SIMD_AVX2) return copy_stream_avx2;
#else
    (void)simd;
    (void)streaming;
#endif
    return copy_cached;
}

xep_copy_fn xep_copy_select_fetching(xep_simd_t simd)
{
#if defined(__x86_64__)
    if (simd >= XEP_SIMD_AVX512) return copy_fetching_avx512;
#endif
    return xep_copy_select(simd, 0);
}

xep_copy_fn xep_copy_for(const xep_env_t *env, uint64_t bytes)
{
    return xep_copy_select(env->simd, bytes >= env->stream_bytes);
}

xep_copy_fn xep_copy_for_own(const xep_env_t *env, uint64_t bytes)
{
    return bytes >= env->stream_bytes ? xep_copy_for(env, bytes) : xep_copy_select_fetching(env->simd);
}
