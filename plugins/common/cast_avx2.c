/* SPDX-License-Identifier: BSD-3-Clause */

/* The AVX2 cast, group by group. A group with an Inf or a NaN is left to the definition. */
#include "cast_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { GROUP = XEP_CAST_GROUP, LINE = 64 };

#define AVX2 __attribute__((always_inline, target("avx2,f16c"))) static inline

AVX2 size_t type_bytes(int type)
{
    return type == XEP_CAST_FP32 ? 4 : 2;
}

AVX2 __m256 load256(int type, const char *x)
{
    if (type == XEP_CAST_FP32) return _mm256_loadu_ps((const float *)(const void *)x);
    __m128i halves = _mm_loadu_si128((const void *)x);
    if (type == XEP_CAST_FP16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* largest magnitude of a group, as the bits of a float */
AVX2 uint32_t amax256(int type, const char *x)
{
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < GROUP / 8; i++) {
        __m256i bits = _mm256_castps_si256(load256(type, x + i * 8 * type_bytes(type)));
        most = _mm256_max_epu32(most, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    }
    __m128i a = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(a);
}

/*
 * e4m3 of 8 numbers up to 448. Adding 2^20 times the power of two in the magnitude, but not less than that of 2^-6,
 * rounds it to a place of its code: the sum's last bits count places, eight to each exponent.
 */
AVX2 __m256i codes256(__m256 v)
{
    __m256i bits = _mm256_castps_si256(v), magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i power = _mm256_and_si256(magnitude, _mm256_set1_epi32(0x7f800000));
    power = _mm256_max_epi32(power, _mm256_set1_epi32(121 << 23));
    __m256i large = _mm256_add_epi32(power, _mm256_set1_epi32(20 << 23));
    __m256i sum = _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(large)));
    __m256i places = _mm256_add_epi32(_mm256_sub_epi32(sum, large), _mm256_srli_epi32(power, 20));
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    return _mm256_or_si256(_mm256_sub_epi32(places, _mm256_set1_epi32(968)), sign);
}

AVX2 __m256i load_codes(int type, const char *x, __m256 factor)
{
    return codes256(_mm256_mul_ps(load256(type, x), factor));
}

/* 32 elements: packing works within 128-bit lanes, the permutation puts the lanes' fours in order again */
AVX2 void cast_32(int type, uint8_t *q, const char *x, __m256 factor)
{
    const size_t step = 8 * type_bytes(type);
    __m256i a = load_codes(type, x, factor), b = load_codes(type, x + step, factor);
    __m256i c = load_codes(type, x + 2 * step, factor), d = load_codes(type, x + 3 * step, factor);
    __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((void *)q, packed);
}

AVX2 void cast_one(int type, uint8_t *q, float *scale, const char *x, int pow2, const char *next)
{
    const size_t bytes = GROUP * type_bytes(type);
    uint32_t largest = amax256(type, x);
    for (size_t i = 0; i < bytes; i += LINE) _mm_prefetch(next + i, _MM_HINT_T0);
    if (largest >= 0x7f800000) {
        xep_cast_group(type, q, scale, x, GROUP, pow2);
        return;
    }
    float amax = xep_float_of_bits(largest);
    __m256 factor = _mm256_set1_ps(xep_cast_scale(amax > XEP_CAST_LEAST_AMAX ? amax : XEP_CAST_LEAST_AMAX, pow2, scale));
    for (size_t i = 0; i < 4; i++) cast_32(type, q + i * 32, x + i * bytes / 4, factor);
}

AVX2 void cast_groups(int type, uint8_t *q, float *scales, const void *x, size_t groups, int pow2, const void *next)
{
    const size_t step = GROUP * type_bytes(type);
    for (size_t g = 0; g < groups; g++)
        cast_one(type, q + g * GROUP, &scales[g], (const char *)x + g * step, pow2, (const char *)next + g * step);
}

__attribute__((target("avx2,f16c"))) static void bf16_groups(uint8_t *q, float *scales, const void *x,
    size_t groups, int pow2, const void *next)
{
    cast_groups(XEP_CAST_BF16, q, scales, x, groups, pow2, next);
}

__attribute__((target("avx2,f16c"))) static void fp16_groups(uint8_t *q, float *scales, const void *x,
    size_t groups, int pow2, const void *next)
{
    cast_groups(XEP_CAST_FP16, q, scales, x, groups, pow2, next);
}

__attribute__((target("avx2,f16c"))) static void fp32_groups(uint8_t *q, float *scales, const void *x,
    size_t groups, int pow2, const void *next)
{
    cast_groups(XEP_CAST_FP32, q, scales, x, groups, pow2, next);
}

static void cast_bf16(uint8_t *q, float *scales, const void *x, size_t elems, int pow2, const void *next)
{
    xep_cast_row(bf16_groups, XEP_CAST_BF16, q, scales, x, elems, pow2, next);
}

static void cast_fp16(uint8_t *q, float *scales, const void *x, size_t elems, int pow2, const void *next)
{
    xep_cast_row(fp16_groups, XEP_CAST_FP16, q, scales, x, elems, pow2, next);
}

static void cast_fp32(uint8_t *q, float *scales, const void *x, size_t elems, int pow2, const void *next)
{
    xep_cast_row(fp32_groups, XEP_CAST_FP32, q, scales, x, elems, pow2, next);
}

const xep_cast_fn xep_cast_avx2[XEP_CAST_TYPES] = {cast_bf16, cast_fp16, cast_fp32};

#endif
