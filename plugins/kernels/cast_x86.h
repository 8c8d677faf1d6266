/* SPDX-License-Identifier: BSD-3-Clause */

/** What the vector casts of x86 have in common, of 256 bits; included by the file of an instruction set. */
#ifndef XEP_CAST_X86_H
#define XEP_CAST_X86_H

#include <immintrin.h>
#include <stdint.h>

enum { UNIT = 16 };

typedef uint32_t words_t __attribute__((vector_size(VECTOR)));
typedef uint16_t halves_t __attribute__((vector_size(2 * UNIT)));
typedef uint16_t singles_t __attribute__((vector_size(VECTOR)));
typedef uint8_t unit_t __attribute__((vector_size(UNIT)));

#define X86 __attribute__((always_inline)) TARGET static inline

X86 halves_t max16(halves_t a, halves_t b)
{
    return (halves_t)_mm256_max_epu16((__m256i)a, (__m256i)b);
}

/* An instruction finds the least of eight such numbers, but none the largest: it gets their complements. */
X86 uint16_t largest_half(halves_t v)
{
    __m128i a = _mm_max_epu16(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    return (uint16_t)~_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(a, _mm_set1_epi16(-1))), 0);
}

#endif
