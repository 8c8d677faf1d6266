/* SPDX-License-Identifier: BSD-3-Clause */

/* Decoding by vectors, those of AVX2 with AVX-512, too: it is as fast as rows come from the memory. */
#include "cast_formats.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { LANES = 8, UNIT = 2 * LANES };

#define TARGET __attribute__((target("avx2")))
#define KERNEL __attribute__((always_inline)) TARGET static inline

#include "decode_walk.h"

typedef uint32_t words_t __attribute__((vector_size(LANES * 4)));
typedef int32_t ints_t __attribute__((vector_size(LANES * 4)));
typedef float floats_t __attribute__((vector_size(LANES * 4)));

/* Channels from the first of a byte on. */
KERNEL words_t load_codes(const xep_cast_element_t *element, const uint8_t *q)
{
    uint32_t nibbles;
    if (element->bits == 8) return (words_t)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)q));
    memcpy(&nibbles, q, sizeof nibbles);
    return ((words_t){0} + nibbles) >> (words_t){0, 4, 8, 12, 16, 20, 24, 28} & 15;
}

/* float_of_code() of codec.c. */
KERNEL floats_t floats_of_codes(const xep_cast_element_t *element, words_t codes)
{
    if (element->fraction == 0) return __builtin_convertvector((ints_t)(codes << 24) >> 24, floats_t);
    const uint32_t least = element->least << 23;
    const words_t magnitude = codes & ((1u << (element->bits - 1)) - 1);
    words_t bits = (magnitude << (23 - element->fraction)) + (least - (1u << 23));
    const words_t small = (words_t)((floats_t)(bits + (1u << 23)) - xep_float_of_bits(least));
    const words_t is_small = (words_t)(magnitude < 1u << element->fraction);
    bits = (bits & ~is_small) | (small & is_small);
    const words_t is_nan = (words_t)((ints_t)bits > (int32_t)element->most);
    bits = (bits & ~is_nan) | (is_nan & XEP_CAST_NAN);
    return (floats_t)(bits | codes >> (element->bits - 1) << 31);
}

/* xep_bf16_of_float(), in words */
KERNEL words_t bf16_of_floats(floats_t number)
{
    const words_t bits = (words_t)number, is_nan = (words_t)((ints_t)(bits & 0x7fffffffu) > (int32_t)XEP_CAST_INFINITE);
    const words_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (rounded & ~is_nan) | (is_nan & 0x7fc0u);
}

/* The compiler knows the element, and mostly how many there are. */
KERNEL void decode_lanes(const xep_cast_element_t *element, uint16_t *row, const uint8_t *q, size_t elems, float scale)
{
    size_t i = 0;
    for (; i + UNIT <= elems; i += UNIT) {
        const uint8_t *first = q + i * element->bits / 8, *second = first + LANES * element->bits / 8;
        const words_t low = bf16_of_floats(floats_of_codes(element, load_codes(element, first)) * scale),
                      high = bf16_of_floats(floats_of_codes(element, load_codes(element, second)) * scale);
        /* packing works within lanes of 128 bits: the permutation puts them in order */
        const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)low, (__m256i)high), 0xd8);
        _mm256_storeu_si256((void *)(row + i), halves);
    }
    if (i < elems) xep_decode_group(element, row + i, q + i * element->bits / 8, elems - i, scale);
}

KERNEL void decode_group(const xep_cast_element_t *element, uint16_t *row, const uint8_t *q, size_t elems, float scale)
{
    static const xep_cast_element_t int8 = XEP_ELEMENT_INT8, e2m1 = XEP_ELEMENT_E2M1, e5m2 = XEP_ELEMENT_E5M2,
                                    e4m3 = XEP_ELEMENT_E4M3;
    switch (element->fraction) {
    case 0: decode_lanes(&int8, row, q, elems, scale); break;
    case 1: decode_lanes(&e2m1, row, q, elems, scale); break;
    case 2: decode_lanes(&e5m2, row, q, elems, scale); break;
    default: decode_lanes(&e4m3, row, q, elems, scale);
    }
}

TARGET void xep_decode_avx2(xep_quant_t quant, uint16_t *row, const void *q, const void *scales, size_t elems,
                            float given)
{
    decode_row(xep_cast_rule(quant), row, q, scales, elems, given);
}

#endif
