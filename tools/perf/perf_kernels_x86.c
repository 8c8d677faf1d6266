/* SPDX-License-Identifier: BSD-3-Clause */

/* AVX2 and AVX-512 kernels of the limit, compiled for their instruction sets function by function. */

#include "perf_kernels_x86.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

#include "oracle_number.h"

/*
 * Each function names its instruction set, so that the file is compiled without flags for one and runs on every CPU.
 * What is inlined names the same set as the function it is inlined into.
 */
#define AVX2   __attribute__((target("avx2,f16c")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define INSIDE static inline __attribute__((always_inline))

enum { LINE = 64, STEP = 32 }; /* bytes of a cache line; elements summed at once */

/* Streaming stores want a whole line: rows of odd sizes are copied as the C library does it. */
static int is_aligned(const void *address)
{
    return ((uintptr_t)address & (LINE - 1)) == 0;
}

/* Elements behind the last whole step, by the oracle's own scalar code. */
static void sum_rest(void *out, const void *const *rows, uint32_t n, uint32_t from, uint32_t hidden, xep_dtype_t dtype)
{
    const size_t at = from * oracle_element_bytes(dtype);
    float sum[STEP] = {0};

    if (from == hidden) return;
    for (uint32_t i = 0; i < n; i++) oracle_row_add(sum, (const char *)rows[i] + at, dtype, hidden - from);
    oracle_row_round((char *)out + at, sum, dtype, hidden - from);
}

/* Streaming stores are not ordered with others: they end before a flag tells of them. */
static void fence_stores(void)
{
    _mm_sfence();
}

/* ---- AVX-512 ---------------------------------------------------------------------- */

/* The next row is what a dispatch reads next, so lines as far ahead as a row is long are fetched. */
AVX512 static void copy_avx512(void *to, const void *from, size_t bytes)
{
    const size_t whole = bytes / LINE * LINE;
    char *t = to;
    const char *f = from;

    if (!is_aligned(to)) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t at = 0; at < whole; at += LINE) {
        _mm_prefetch(f + at + bytes, _MM_HINT_T0);
        _mm512_stream_si512((void *)(t + at), _mm512_loadu_si512(f + at));
    }
    memcpy(t + whole, f + whole, bytes - whole);
}

/* Sixteen elements from h on, as fp32: bf16 is the upper half of one. */
INSIDE AVX512 __m512 load_avx512(const void *row, size_t h, xep_dtype_t dtype)
{
    const uint16_t *halves = (const uint16_t *)row + h;

    if (dtype == XEP_BF16)
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)halves)), 16));
    if (dtype == XEP_FP16) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)halves));
    return _mm512_loadu_ps((const float *)row + h);
}

/* Sixteen sums, rounded to 16 bits each; round_to_bf16_avx2() says how the last bit comes about. */
INSIDE AVX512 __m256i round_avx512(__m512 sum, xep_dtype_t dtype)
{
    __m512i bits = _mm512_castps_si512(sum);

    if (dtype == XEP_FP16) return _mm512_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    bits = _mm512_add_epi32(bits, _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), 16));
}

/* STEP sums from h on: one line of 16-bit elements or two of fp32, so a streaming store always fills a whole line. */
INSIDE AVX512 void store_avx512(void *out, size_t h, __m512 low, __m512 high, xep_dtype_t dtype, int streaming)
{
    if (dtype == XEP_FP32) {
        float *to = (float *)out + h;
        if (streaming) {
            _mm512_stream_ps(to, low);
            _mm512_stream_ps(to + 16, high);
        } else {
            _mm512_storeu_ps(to, low);
            _mm512_storeu_ps(to + 16, high);
        }
        return;
    }
    void *to = (uint16_t *)out + h;
    const __m512i both =
        _mm512_inserti64x4(_mm512_castsi256_si512(round_avx512(low, dtype)), round_avx512(high, dtype), 1);
    if (streaming) _mm512_stream_si512(to, both);
    else _mm512_storeu_si512(to, both);
}

/*
 * dtype is a constant wherever this is inlined, so the loop does not ask for it. Rows are added in the order they are
 * given in, as the oracle adds them: the bits are the same (test/unit/perf_kernels_exact.c).
 */
INSIDE AVX512 void sum_body_avx512(void *out, const void *const *rows, uint32_t n, uint32_t hidden, xep_dtype_t dtype,
                                   int streaming)
{
    uint32_t h = 0;

    for (; h + STEP <= hidden; h += STEP) {
        __m512 low = _mm512_setzero_ps(), high = _mm512_setzero_ps();
        for (uint32_t i = 0; i < n; i++) {
            low = _mm512_add_ps(low, load_avx512(rows[i], h, dtype));
            high = _mm512_add_ps(high, load_avx512(rows[i], h + 16, dtype));
        }
        store_avx512(out, h, low, high, dtype, streaming);
    }
    sum_rest(out, rows, n, h, hidden, dtype);
}

/* bf16, the default type, has a loop of its own for either kind of stores; the others look at it for each step. */
AVX512 static void sum_avx512(void *out, const void *const *rows, uint32_t n, uint32_t hidden, xep_dtype_t dtype,
                              int streaming)
{
    streaming = streaming && is_aligned(out);
    if (dtype == XEP_BF16 && streaming) sum_body_avx512(out, rows, n, hidden, XEP_BF16, 1);
    else if (dtype == XEP_BF16) sum_body_avx512(out, rows, n, hidden, XEP_BF16, 0);
    else if (dtype == XEP_FP16) sum_body_avx512(out, rows, n, hidden, XEP_FP16, streaming);
    else sum_body_avx512(out, rows, n, hidden, XEP_FP32, streaming);
}

/* ---- AVX2 ------------------------------------------------------------------------- */

/* As copy_avx512(), with two stores for a line. */
AVX2 static void copy_avx2(void *to, const void *from, size_t bytes)
{
    const size_t whole = bytes / LINE * LINE;
    char *t = to;
    const char *f = from;

    if (!is_aligned(to)) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t at = 0; at < whole; at += LINE) {
        _mm_prefetch(f + at + bytes, _MM_HINT_T0);
        _mm256_stream_si256((__m256i *)(t + at), _mm256_loadu_si256((const __m256i *)(f + at)));
        _mm256_stream_si256((__m256i *)(t + at + 32), _mm256_loadu_si256((const __m256i *)(f + at + 32)));
    }
    memcpy(t + whole, f + whole, bytes - whole);
}

/* Eight elements from h on, as fp32. */
INSIDE AVX2 __m256 load_avx2(const void *row, size_t h, xep_dtype_t dtype)
{
    const uint16_t *halves = (const uint16_t *)row + h;

    if (dtype == XEP_BF16)
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)halves)), 16));
    if (dtype == XEP_FP16) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves));
    return _mm256_loadu_ps((const float *)row + h);
}

/* To nearest, ties to even: half of the last place is added, and one less where the last bit kept is even. No NaN comes
 * here: the limit sums finite numbers. */
INSIDE AVX2 __m256i round_to_bf16_avx2(__m256 sum)
{
    __m256i bits = _mm256_castps_si256(sum);

    bits = _mm256_add_epi32(bits, _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1)));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), 16);
}

/* Sixteen sums of 16 bits each. Packing works within halves of a register: the permutation puts them in order. */
INSIDE AVX2 __m256i round_avx2(__m256 low, __m256 high, xep_dtype_t dtype)
{
    if (dtype == XEP_FP16)
        return _mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                                _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(round_to_bf16_avx2(low), round_to_bf16_avx2(high)), 0xd8);
}

INSIDE AVX2 void store_avx2(void *out, __m256i bits, int streaming)
{
    if (streaming) _mm256_stream_si256(out, bits);
    else _mm256_storeu_si256(out, bits);
}

/* As sum_body_avx512(), but sixteen elements at once. Fewer than STEP are left for sum_rest(), as it needs it. */
INSIDE AVX2 void sum_body_avx2(void *out, const void *const *rows, uint32_t n, uint32_t hidden, xep_dtype_t dtype,
                               int streaming)
{
    uint32_t h = 0;

    for (; h + 16 <= hidden; h += 16) {
        __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
        for (uint32_t i = 0; i < n; i++) {
            low = _mm256_add_ps(low, load_avx2(rows[i], h, dtype));
            high = _mm256_add_ps(high, load_avx2(rows[i], h + 8, dtype));
        }
        if (dtype == XEP_FP32) {
            store_avx2((float *)out + h, _mm256_castps_si256(low), streaming);
            store_avx2((float *)out + h + 8, _mm256_castps_si256(high), streaming);
        } else {
            store_avx2((uint16_t *)out + h, round_avx2(low, high, dtype), streaming);
        }
    }
    sum_rest(out, rows, n, h, hidden, dtype);
}

AVX2 static void sum_avx2(void *out, const void *const *rows, uint32_t n, uint32_t hidden, xep_dtype_t dtype,
                          int streaming)
{
    streaming = streaming && is_aligned(out);
    if (dtype == XEP_BF16 && streaming) sum_body_avx2(out, rows, n, hidden, XEP_BF16, 1);
    else if (dtype == XEP_BF16) sum_body_avx2(out, rows, n, hidden, XEP_BF16, 0);
    else if (dtype == XEP_FP16) sum_body_avx2(out, rows, n, hidden, XEP_FP16, streaming);
    else sum_body_avx2(out, rows, n, hidden, XEP_FP32, streaming);
}

/* ---- choice ----------------------------------------------------------------------- */

/* Besides AVX2, which has no conversions of fp16. Not by __builtin_cpu_supports: clang 14 does not know the name. */
static int has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* All that AVX512 above names: some CPUs have the first and not the others. */
static int has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

uint32_t perf_kernels_x86(const perf_kernels_t **kernels)
{
    static const perf_kernels_t avx512 = {.name = "avx512",
                                          .copy_streaming = copy_avx512,
                                          .sum = sum_avx512,
                                          .fence = fence_stores};
    static const perf_kernels_t avx2 = {.name = "avx2",
                                        .copy_streaming = copy_avx2,
                                        .sum = sum_avx2,
                                        .fence = fence_stores};
    uint32_t n = 0;

    __builtin_cpu_init();
    if (has_avx512()) kernels[n++] = &avx512;
    if (__builtin_cpu_supports("avx2") && has_f16c()) kernels[n++] = &avx2;
    return n;
}

#else

uint32_t perf_kernels_x86(const perf_kernels_t **kernels)
{
    (void)kernels;
    return 0;
}

#endif
