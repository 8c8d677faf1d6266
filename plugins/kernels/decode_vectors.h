/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Decoding by vectors of LANES floats. Included by the file of an instruction set, which has said TARGET, LANES,
 * words_t, and what C has no words for: load_codes(), LANES channels from the first of a byte on, and store_halves(),
 * two vectors of words that have no more than 16 bits.
 */
#ifndef XEP_DECODE_VECTORS_H
#define XEP_DECODE_VECTORS_H

#define KERNEL __attribute__((always_inline)) TARGET static inline

#include "decode_walk.h"

typedef int32_t ints_t __attribute__((vector_size(LANES * 4)));
typedef float floats_t __attribute__((vector_size(LANES * 4)));

/* float_of_code() of decode.c. */
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
    for (; i + 2 * LANES <= elems; i += 2 * LANES) {
        const uint8_t *first = q + i * element->bits / 8, *second = first + LANES * element->bits / 8;
        const words_t low = bf16_of_floats(floats_of_codes(element, load_codes(element, first)) * scale),
                      high = bf16_of_floats(floats_of_codes(element, load_codes(element, second)) * scale);
        store_halves(row + i, low, high);
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

#endif
