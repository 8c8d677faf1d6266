/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The AVX2 and AVX-512 kernels: one function sums a few neighbouring lines of 64 bytes, one walks a row. Four lines of
 * a row at a time take half the time of one, in the first cache and in the last: fewer loads of pointers and
 * weights, and longer runs of each row for the prefetcher.
 */
#include "weigh_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>

enum { LINE = 64, HALF = 32, LINES = 4 };

/* the sums must be registers, not an array */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

/* two uses of a line make gcc load it twice, and loads are what is short */
#define LOAD_ONCE(_v) __asm__("" : "+x"(_v))

#define AVX512 __attribute__((always_inline, target("avx512f"))) static inline
#define AVX2 __attribute__((always_inline, target("avx2,fma,f16c"))) static inline

static int is_line_aligned(const void *p)
{
    return ((uintptr_t)p & (LINE - 1)) == 0;
}

/* ---- AVX-512 ---- */

AVX512 __m512i load512(const void *row, size_t at)
{
    return _mm512_loadu_si512((const char *)row + at);
}

AVX512 void store512(char *to, __m512i v, int streaming)
{
    if (streaming) _mm512_stream_si512((void *)to, v);
    else _mm512_storeu_si512(to, v);
}

AVX512 __m512i plain_nan512(__m512 sum, __m512i bits, uint32_t nan)
{
    return _mm512_mask_mov_epi32(bits, _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q), _mm512_set1_epi32((int)nan));
}

/* fp32 bits rounded so that their upper half is the bf16 */
AVX512 __m512i round_bf16_512(__m512 sum)
{
    __m512i bits = _mm512_castps_si512(sum);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return plain_nan512(sum, bits, 0x7fc00000);
}

/* Even and odd elements of a line are the lower and upper halves of its 32-bit lanes. */
AVX512 void bf16_lines512(char *out, const void *const *rows, const float *weights, size_t n, size_t at, int lines, int streaming)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    __m512 even[LINES], odd[LINES];
    UNROLL for (int i = 0; i < lines; i++) even[i] = odd[i] = _mm512_setzero_ps();
    for (size_t j = 0; j < n; j++) {
        __m512 w = _mm512_set1_ps(weights[j]);
        UNROLL for (int i = 0; i < lines; i++) {
            __m512i v = load512(rows[j], at + (size_t)i * LINE);
            LOAD_ONCE(v);
            even[i] = _mm512_fmadd_ps(w, _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)), even[i]);
            odd[i] = _mm512_fmadd_ps(w, _mm512_castsi512_ps(_mm512_and_si512(v, upper)), odd[i]);
        }
    }
    UNROLL for (int i = 0; i < lines; i++) {
        __m512i low = _mm512_srli_epi32(round_bf16_512(even[i]), 16), high = _mm512_and_si512(round_bf16_512(odd[i]), upper);
        store512(out + at + (size_t)i * LINE, _mm512_or_si512(low, high), streaming);
    }
}

AVX512 __m512i round_fp16_512(__m512 sum)
{
    __m256i half = _mm512_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return plain_nan512(sum, _mm512_cvtepu16_epi32(half), 0x7e00);
}

AVX512 void fp16_lines512(char *out, const void *const *rows, const float *weights, size_t n, size_t at, int lines, int streaming)
{
    __m512 lower[LINES], upper[LINES];
    UNROLL for (int i = 0; i < lines; i++) lower[i] = upper[i] = _mm512_setzero_ps();
    for (size_t j = 0; j < n; j++) {
        __m512 w = _mm512_set1_ps(weights[j]);
        UNROLL for (int i = 0; i < lines; i++) {
            __m512i v = load512(rows[j], at + (size_t)i * LINE);
            lower[i] = _mm512_fmadd_ps(w, _mm512_cvtph_ps(_mm512_castsi512_si256(v)), lower[i]);
            upper[i] = _mm512_fmadd_ps(w, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1)), upper[i]);
        }
    }
    UNROLL for (int i = 0; i < lines; i++) {
        __m256i low = _mm512_cvtepi32_epi16(round_fp16_512(lower[i])), high = _mm512_cvtepi32_epi16(round_fp16_512(upper[i]));
        store512(out + at + (size_t)i * LINE, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), streaming);
    }
}

AVX512 void fp32_lines512(char *out, const void *const *rows, const float *weights, size_t n, size_t at, int lines, int streaming)
{
    __m512 sum[LINES];
    UNROLL for (int i = 0; i < lines; i++) sum[i] = _mm512_setzero_ps();
    for (size_t j = 0; j < n; j++) {
        __m512 w = _mm512_set1_ps(weights[j]);
        UNROLL for (int i = 0; i < lines; i++)
            sum[i] = _mm512_fmadd_ps(w, _mm512_castsi512_ps(load512(rows[j], at + (size_t)i * LINE)), sum[i]);
    }
    UNROLL for (int i = 0; i < lines; i++)
        store512(out + at + (size_t)i * LINE, plain_nan512(sum[i], _mm512_castps_si512(sum[i]), 0x7fc00000), streaming);
}

AVX512 void lines512(int type, void *out, const void *const *rows, const float *weights, size_t n, size_t at, int lines, int streaming)
{
    if (type == XEP_WEIGH_BF16) bf16_lines512(out, rows, weights, n, at, lines, streaming);
    else if (type == XEP_WEIGH_FP16) fp16_lines512(out, rows, weights, n, at, lines, streaming);
    else fp32_lines512(out, rows, weights, n, at, lines, streaming);
}

/* Whole lines of out; returns the bytes done. */
AVX512 size_t walk512(int type, void *out, const void *const *rows, const float *weights, size_t n, size_t bytes, int streams)
{
    size_t at = 0;
    int streaming = streams && is_line_aligned(out);
    if (streaming)
        for (; at + LINES * LINE <= bytes; at += LINES * LINE) lines512(type, out, rows, weights, n, at, LINES, 1);
    else
        for (; at + LINES * LINE <= bytes; at += LINES * LINE) lines512(type, out, rows, weights, n, at, LINES, 0);
    for (; at + LINE <= bytes; at += LINE) lines512(type, out, rows, weights, n, at, 1, 0);
    return at;
}

__attribute__((target("avx512f"))) static void bf16_512(void *out, const void *const *rows, const float *weights,
    size_t n, size_t elems)
{
    size_t done = walk512(XEP_WEIGH_BF16, out, rows, weights, n, elems * 2, 0);
    xep_weigh_bf16_from(out, rows, weights, n, done / 2, elems);
}

__attribute__((target("avx512f"))) static void bf16_512s(void *out, const void *const *rows, const float *weights,
    size_t n, size_t elems)
{
    size_t done = walk512(XEP_WEIGH_BF16, out, rows, weights, n, elems * 2, 1);
    xep_weigh_bf16_from(out, rows, weights, n, done / 2, elems);
}

__attribute__((target("avx512f"))) static void fp16_512(void *out, const void *const *rows, const float *weights,
    size_t n, size_t elems)
{
    size_t done = walk512(XEP_WEIGH_FP16, out, rows, weights, n, elems * 2, 0);
    xep_weigh_fp16_from(out, rows, weights, n, done / 2, elems);
}

__attribute__((target("avx512f"))) static void fp16_512s(void *out, const void *const *rows, const float *weights,
    size_t n, size_t elems)
{
    size_t done = walk512(XEP_WEIGH_FP16, out, rows, weights, n, elems * 2, 1);
    xep_weigh_fp16_from(out, rows, weights, n, done / 2, elems);
}

__attribute__((target("avx512f"))) static void fp32_512(void *out, const void *const *rows, const float *weights,
    size_t n, size_t elems)
{
    size_t done = walk512(XEP_WEIGH_FP32, out, rows, weights, n, elems * 4, 0);
    xep_weigh_fp32_from(out, rows, weights, n, done / 4, elems);
}

__attribute__((target("avx512f"))) static void fp32_512s(void *out, const void *const *rows, const float *weights,
    size_t n, size_t elems)
{
    size_t done = walk512(XEP_WEIGH_FP32, out, rows, weights, n, elems * 4, 1);
    xep_weigh_fp32_from(out, rows, weights, n, done / 4, elems);
}

/* ---- AVX2: a vector is half a line ---- */

AVX2 __m256i load256(const void *row, size_t at)
{
    return _mm256_loadu_si256((const void *)((const char *)row + at));
}

AVX2 void store256(char *to, __m256i v, int streaming)
{
    if (streaming) _mm256_stream_si256((void *)to, v);
    else _mm256_storeu_si256((void *)to, v);
}

AVX2 __m256i plain_nan256(__m256 sum, __m256i bits, uint32_t nan)
{
    __m256i mask = _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(bits, _mm256_set1_epi32((int)nan), mask);
}

AVX2 __m256i round_bf16_256(__m256 sum)
{
    __m256i bits = _mm256_castps_si256(sum);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    return plain_nan256(sum, bits, 0x7fc00000);
}

AVX2 void bf16_halves256(char *out, const void *const *rows, const float *weights, size_t n, size_t at, int halves, int streaming)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    __m256 even[LINES], odd[LINES];
    UNROLL for (int i = 0; i < halves; i++) even[i] = odd[i] = _mm256_setzero_ps();
    for (size_t j = 0; j < n; j++) {
        __m256 w = _mm256_set1_ps(weights[j]);
        UNROLL for (int i = 0; i < halves; i++) {
            __m256i v = load256(rows[j], at + (size_t)i * HALF);
            LOAD_ONCE(v);
            even[i] = _mm256_fmadd_ps(w, _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)), even[i]);
            odd[i] = _mm256_fmadd_ps(w, _mm256_castsi256_ps(_mm256_and_si256(v, upper)), odd[i]);
        }
    }
    UNROLL for (int i = 0; i < halves; i++) {
        __m256i low = _mm256_srli_epi32(round_bf16_256(even[i]), 16), high = _mm256_and_si256(round_bf16_256(odd[i]), upper);
        store256(out + at + (size_t)i * HALF, _mm256_or_si256(low, high), streaming);
    }
}

AVX2 __m128i round_fp16_256(__m256 sum)
{
    __m128i half = _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i mask = _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
    __m128i narrow = _mm_packs_epi32(_mm256_castsi256_si128(mask), _mm256_extracti128_si256(mask, 1));
    return _mm_blendv_epi8(half, _mm_set1_epi16(0x7e00), narrow);
}

AVX2 void fp16_halves256(char *out, const void *const *rows, const float *weights, size_t n, size_t at, int halves, int streaming)
{
    __m256 lower[LINES], upper[LINES];
    UNROLL for (int i = 0; i < halves; i++) lower[i] = upper[i] = _mm256_setzero_ps();
    for (size_t j = 0; j < n; j++) {
        __m256 w = _mm256_set1_ps(weights[j]);
        UNROLL for (int i = 0; i < halves; i++) {
            __m256i v = load256(rows[j], at + (size_t)i * HALF);
            lower[i] = _mm256_fmadd_ps(w, _mm256_cvtph_ps(_mm256_castsi256_si128(v)), lower[i]);
            upper[i] = _mm256_fmadd_ps(w, _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)), upper[i]);
        }
    }
    UNROLL for (int i = 0; i < halves; i++) {
        __m256i low = _mm256_castsi128_si256(round_fp16_256(lower[i]));
        store256(out + at + (size_t)i * HALF, _mm256_inserti128_si256(low, round_fp16_256(upper[i]), 1), streaming);
    }
}

AVX2 void fp32_halves256(char *out, const void *const *rows, const float *weights, size_t n, size_t at, int halves, int streaming)
{
    __m256 sum[LINES];
    UNROLL for (int i = 0; i < halves; i++) sum[i] = _mm256_setzero_ps();
    for (size_t j = 0; j < n; j++) {
        __m256 w = _mm256_set1_ps(weights[j]);
        UNROLL for (int i = 0; i < halves; i++)
            sum[i] = _mm256_fmadd_ps(w, _mm256_castsi256_ps(load256(rows[j], at + (size_t)i * HALF)), sum[i]);
    }
    UNROLL for (int i = 0; i < halves; i++)
        store256(out + at + (size_t)i * HALF, plain_nan256(sum[i], _mm256_castps_si256(sum[i]), 0x7fc00000), streaming);
}

AVX2 void halves256(int type, void *out, const void *const *rows, const float *weights, size_t n, size_t at, int halves, int streaming)
{
    if (type == XEP_WEIGH_BF16) bf16_halves256(out, rows, weights, n, at, halves, streaming);
    else if (type == XEP_WEIGH_FP16) fp16_halves256(out, rows, weights, n, at, halves, streaming);
    else fp32_halves256(out, rows, weights, n, at, halves, streaming);
}

AVX2 size_t walk256(int type, void *out, const void *const *rows, const float *weights, size_t n, size_t bytes, int streams)
{
    size_t at = 0;
    int streaming = streams && is_line_aligned(out);
    if (streaming)
        for (; at + LINES * HALF <= bytes; at += LINES * HALF) halves256(type, out, rows, weights, n, at, LINES, 1);
    else
        for (; at + LINES * HALF <= bytes; at += LINES * HALF) halves256(type, out, rows, weights, n, at, LINES, 0);
    for (; at + HALF <= bytes; at += HALF) halves256(type, out, rows, weights, n, at, 1, 0);
    return at;
}

__attribute__((target("avx2,fma,f16c"))) static void bf16_256(void *out, const void *const *rows, const float *weights,
    size_t n, size_t elems)
{
    size_t done = walk256(XEP_WEIGH_BF16, out, rows, weights, n, elems * 2, 0);
    xep_weigh_bf16_from(out, rows, weights, n, done / 2, elems);
}

__attribute__((target("avx2,fma,f16c"))) static void bf16_256s(void *out, const void *const *rows, const float *weights,
    size_t n, size_t elems)
{
    size_t done = walk256(XEP_WEIGH_BF16, out, rows, weights, n, elems * 2, 1);
    xep_weigh_bf16_from(out, rows, weights, n, done / 2, elems);
}

__attribute__((target("avx2,fma,f16c"))) static void fp16_256(void *out, const void *const *rows, const float *weights,
    size_t n, size_t elems)
{
    size_t done = walk256(XEP_WEIGH_FP16, out, rows, weights, n, elems * 2, 0);
    xep_weigh_fp16_from(out, rows, weights, n, done / 2, elems);
}

__attribute__((target("avx2,fma,f16c"))) static void fp16_256s(void *out, const void *const *rows, const float *weights,
    size_t n, size_t elems)
{
    size_t done = walk256(XEP_WEIGH_FP16, out, rows, weights, n, elems * 2, 1);
    xep_weigh_fp16_from(out, rows, weights, n, done / 2, elems);
}

__attribute__((target("avx2,fma,f16c"))) static void fp32_256(void *out, const void *const *rows, const float *weights,
    size_t n, size_t elems)
{
    size_t done = walk256(XEP_WEIGH_FP32, out, rows, weights, n, elems * 4, 0);
    xep_weigh_fp32_from(out, rows, weights, n, done / 4, elems);
}

__attribute__((target("avx2,fma,f16c"))) static void fp32_256s(void *out, const void *const *rows, const float *weights,
    size_t n, size_t elems)
{
    size_t done = walk256(XEP_WEIGH_FP32, out, rows, weights, n, elems * 4, 1);
    xep_weigh_fp32_from(out, rows, weights, n, done / 4, elems);
}

const xep_weigh_fn xep_weigh_avx512[XEP_WEIGH_TYPES][2] = {
    {bf16_512, bf16_512s}, {fp16_512, fp16_512s}, {fp32_512, fp32_512s}};
const xep_weigh_fn xep_weigh_avx2[XEP_WEIGH_TYPES][2] = {
    {bf16_256, bf16_256s}, {fp16_256, fp16_256s}, {fp32_256, fp32_256s}};

#endif
