/* SPDX-License-Identifier: BSD-3-Clause */

/** The AVX-512 cast: largest magnitude and codes of a group, for the walk of cast_blocks.h. */
#ifndef XEP_CAST_AVX512_H
#define XEP_CAST_AVX512_H

#include <immintrin.h>

#include "cast_table.h"

enum { VECTOR = 64 };

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define AVX512 __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512dq"))) static inline

/* Sixteen elements as floats; bf16 goes another way, without being widened. */
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
AVX512 uint32_t amax_of_group(int type, const char *x)
{
    __m512i most = _mm512_setzero_si512();
    if (type == XEP_CAST_BF16) {
        for (int i = 0; i < 4; i++)
            most =
                _mm512_max_epu16(most, _mm512_and_si512(_mm512_loadu_si512(x + i * VECTOR), _mm512_set1_epi16(0x7fff)));
        return (uint32_t)largest_of_32(most) << 16;
    }
    for (int i = 0; i < 8; i++) {
        __m512i bits = _mm512_castps_si512(load512(type, x + i * 16 * xep_cast_type_bytes(type)));
        most = _mm512_max_epi32(most, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
    return (uint32_t)_mm512_reduce_max_epi32(most);
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
    __m512i odd = _mm512_and_si512(magnitude, _mm512_set1_epi32((int)0xffff0000u)),
            even = _mm512_slli_epi32(magnitude, 16);
    even = codes512(_mm512_mul_ps(_mm512_castsi512_ps(even), factor));
    odd = codes512(_mm512_mul_ps(_mm512_castsi512_ps(odd), factor));
    __m256i codes = _mm512_cvtepi32_epi16(_mm512_add_epi32(even, _mm512_slli_epi32(odd, 8)));
    codes = _mm256_sub_epi16(codes, _mm256_set1_epi16((short)(uint16_t)(968u * 257)));
    codes = _mm256_mask_add_epi8(codes, _mm512_movepi16_mask(v), codes, _mm256_set1_epi8((char)0x80));
    _mm256_storeu_si256((void *)q, codes);
}

/* Sixteen codes: 968 is what codes512() has added to each. Signs are a mask here, and cost one instruction. */
AVX512 void cast_16(int type, uint8_t *q, const char *x, __m512 factor)
{
    __m512i v = _mm512_castps_si512(load512(type, x));
    __m512 magnitude = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(0x7fffffff)));
    __m128i codes = _mm512_cvtepi32_epi8(codes512(_mm512_mul_ps(magnitude, factor)));
    codes = _mm_sub_epi8(codes, _mm_set1_epi8((char)(uint8_t)(968u % 256)));
    codes = _mm_mask_add_epi8(codes, _mm512_movepi32_mask(v), codes, _mm_set1_epi8((char)0x80));
    _mm_storeu_si128((void *)q, codes);
}

/* A group is four lines of bf16, or eight vectors of floats. */
AVX512 void codes_of_group(int type, uint8_t *q, const char *x, float scale)
{
    __m512 factor = _mm512_set1_ps(scale);
    if (type == XEP_CAST_BF16)
        for (int i = 0; i < 4; i++) cast_bf16_line(q + i * 32, x + i * VECTOR, factor);
    else
        for (int i = 0; i < 8; i++) cast_16(type, q + i * 16, x + i * 16 * xep_cast_type_bytes(type), factor);
}

#endif
