/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The AVX-512 cast. Sixteen groups at a time: first the largest magnitude of each, then their scales in one
 * vector, then the codes. Group by group, each would wait for its own reduction and division. A group with an Inf
 * or a NaN is left to the definition.
 */
#include "cast_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { GROUP = XEP_CAST_GROUP, LINE = 64, BLOCK = 16 };

#define AVX512 __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512dq"))) static inline

AVX512 size_t type_bytes(int type)
{
    return type == XEP_CAST_FP32 ? 4 : 2;
}

AVX512 __m512 load512(int type, const char *x)
{
    if (type == XEP_CAST_FP16) return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)x));
    return _mm512_loadu_ps(x);
}

/* largest of 32 16-bit patterns */
AVX512 uint16_t largest_of_32(__m512i v)
{
    __m256i a = _mm256_max_epu16(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i b = _mm_max_epu16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return (uint16_t)~_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(b, _mm_set1_epi16(-1))), 0);
}

/* largest magnitude of a group, as the bits of a float: halves of bf16 compare as 16-bit numbers */
AVX512 uint32_t amax512(int type, const char *x)
{
    __m512i most = _mm512_setzero_si512();
    if (type == XEP_CAST_BF16) {
        for (int i = 0; i < 4; i++)
            most = _mm512_max_epu16(most, _mm512_and_si512(_mm512_loadu_si512(x + i * LINE), _mm512_set1_epi16(0x7fff)));
        return (uint32_t)largest_of_32(most) << 16;
    }
    for (int i = 0; i < 8; i++) {
        __m512i bits = _mm512_castps_si512(load512(type, x + i * 16 * type_bytes(type)));
        most = _mm512_max_epi32(most, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
    return (uint32_t)_mm512_reduce_max_epi32(most);
}

/* xep_cast_scale() of 16 groups; what it gives for a group that is not finite is not used */
AVX512 __m512 scales512(__m512 amax, int pow2, __m512 *scale_p)
{
    amax = _mm512_max_ps(amax, _mm512_set1_ps(XEP_CAST_LEAST_AMAX));
    __m512 scale = _mm512_mul_ps(amax, _mm512_set1_ps(1.0f / 448.0f));
    if (!pow2) {
        *scale_p = scale;
        return _mm512_div_ps(_mm512_set1_ps(448.0f), amax);
    }
    /* the least power of two that is not smaller: a carry out of the fraction */
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(scale), _mm512_set1_epi32(0x7fffff));
    __m512i power = _mm512_and_si512(bits, _mm512_set1_epi32(0x7f800000));
    *scale_p = _mm512_castsi512_ps(power);
    return _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32(254 << 23), power));
}

/*
 * e4m3 of 16 magnitudes up to 448, plus 968. Adding 2^20 times the power of two in v, but not less than that of
 * 2^-6, rounds v to a place of its code: the sum's last bits count places, eight to each exponent.
 */
AVX512 __m512i codes512(__m512 v)
{
    __m512i power = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7f800000));
    power = _mm512_max_epi32(power, _mm512_set1_epi32(121 << 23));
    __m512i large = _mm512_add_epi32(power, _mm512_set1_epi32(20 << 23));
    __m512i sum = _mm512_castps_si512(_mm512_add_ps(v, _mm512_castsi512_ps(large)));
    return _mm512_add_epi32(_mm512_sub_epi32(sum, large), _mm512_srli_epi32(power, 20));
}

/* 32 bf16: even elements are the lower halves of 32-bit lanes, odd ones the upper; their codes meet in 16 bits */
AVX512 void cast_bf16_line(uint8_t *q, const char *x, __m512 factor)
{
    __m512i v = _mm512_loadu_si512(x), magnitude = _mm512_and_si512(v, _mm512_set1_epi16(0x7fff));
    __m512i odd = _mm512_and_si512(magnitude, _mm512_set1_epi32((int)0xffff0000u)), even = _mm512_slli_epi32(magnitude, 16);
    even = codes512(_mm512_mul_ps(_mm512_castsi512_ps(even), factor));
    odd = codes512(_mm512_mul_ps(_mm512_castsi512_ps(odd), factor));
    __m256i codes = _mm512_cvtepi32_epi16(_mm512_add_epi32(even, _mm512_slli_epi32(odd, 8)));
    codes = _mm256_sub_epi16(codes, _mm256_set1_epi16((short)(uint16_t)(968u * 257)));
    codes = _mm256_mask_add_epi8(codes, _mm512_movepi16_mask(v), codes, _mm256_set1_epi8((char)0x80));
    _mm256_storeu_si256((void *)q, codes);
}

AVX512 void cast_16(int type, uint8_t *q, const char *x, __m512 factor)
{
    __m512i v = _mm512_castps_si512(load512(type, x));
    __m512 magnitude = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(0x7fffffff)));
    __m128i codes = _mm512_cvtepi32_epi8(codes512(_mm512_mul_ps(magnitude, factor)));
    codes = _mm_sub_epi8(codes, _mm_set1_epi8((char)(uint8_t)(968u % 256)));
    codes = _mm_mask_add_epi8(codes, _mm512_movepi32_mask(v), codes, _mm_set1_epi8((char)0x80));
    _mm_storeu_si128((void *)q, codes);
}

AVX512 void codes_of_group(int type, uint8_t *q, const char *x, __m512 factor)
{
    if (type == XEP_CAST_BF16)
        for (int i = 0; i < 4; i++) cast_bf16_line(q + i * 32, x + i * LINE, factor);
    else
        for (int i = 0; i < 8; i++) cast_16(type, q + i * 16, x + i * 16 * type_bytes(type), factor);
}

AVX512 void cast_block(int type, uint8_t *q, float *scales, const char *x, size_t groups, int pow2, const char *next)
{
    const size_t step = GROUP * type_bytes(type);
    _Alignas(LINE) uint32_t amax[BLOCK] = {0};
    _Alignas(LINE) float factor[BLOCK], scale[BLOCK];
    __m512 scale16;
    for (size_t g = 0; g < groups; g++) {
        amax[g] = amax512(type, x + g * step);
        for (size_t i = 0; i < step; i += LINE) _mm_prefetch(next + g * step + i, _MM_HINT_T0);
    }
    _mm512_store_ps(factor, scales512(_mm512_load_ps(amax), pow2, &scale16));
    _mm512_store_ps(scale, scale16);
    for (size_t g = 0; g < groups; g++, x += step, q += GROUP) {
        scales[g] = scale[g];
        if (amax[g] < 0x7f800000) codes_of_group(type, q, x, _mm512_set1_ps(factor[g]));
        else xep_cast_group(type, q, &scales[g], x, GROUP, pow2);
    }
}

AVX512 void cast_groups(int type, uint8_t *q, float *scales, const void *x, size_t groups, int pow2, const void *next)
{
    const char *from = x, *ahead = next;
    for (size_t g = 0; g < groups; g += BLOCK) {
        size_t n = groups - g < BLOCK ? groups - g : BLOCK, bytes = n * GROUP * type_bytes(type);
        cast_block(type, q + g * GROUP, scales + g, from, n, pow2, ahead);
        from += bytes, ahead += bytes;
    }
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static void bf16_groups(uint8_t *q, float *scales, const void *x,
    size_t groups, int pow2, const void *next)
{
    cast_groups(XEP_CAST_BF16, q, scales, x, groups, pow2, next);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static void fp16_groups(uint8_t *q, float *scales, const void *x,
    size_t groups, int pow2, const void *next)
{
    cast_groups(XEP_CAST_FP16, q, scales, x, groups, pow2, next);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static void fp32_groups(uint8_t *q, float *scales, const void *x,
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

const xep_cast_fn xep_cast_avx512[XEP_CAST_TYPES] = {cast_bf16, cast_fp16, cast_fp32};

#endif
