/* SPDX-License-Identifier: BSD-3-Clause */

/* The definition of decoding, one channel after the other. */
#define KERNEL static inline

#include "decode_walk.h"

/* Codes count the numbers of a type from zero on; those above the greatest are no number. */
static float float_of_code(const xep_cast_element_t *element, uint32_t code)
{
    if (element->fraction == 0) return (float)(int8_t)code;
    const uint32_t sign = code >> (element->bits - 1), magnitude = code & ((1u << (element->bits - 1)) - 1);
    const uint32_t place = 23 - element->fraction, least = element->least << 23;
    uint32_t bits = (magnitude << place) + least - (1u << 23);
    if (magnitude >> element->fraction == 0)
        bits = xep_bits_of_float(xep_float_of_bits(bits + (1u << 23)) - xep_float_of_bits(least));
    if (bits > element->most) bits = XEP_CAST_NAN;
    return xep_float_of_bits(sign << 31 | bits);
}

void xep_decode_group(const xep_cast_element_t *element, uint16_t *row, const uint8_t *q, size_t elems, float scale)
{
    for (size_t i = 0; i < elems; i++) {
        const uint32_t code = element->bits == 8 ? q[i] : q[i / 2] >> (i % 2 * 4) & 15;
        row[i] = xep_bf16_of_float(float_of_code(element, code) * scale);
    }
}

static inline void decode_group(const xep_cast_element_t *element, uint16_t *row, const uint8_t *q, size_t elems,
                                float scale)
{
    xep_decode_group(element, row, q, elems, scale);
}

void xep_decode_scalar(xep_quant_t quant, uint16_t *row, const void *q, const void *scales, size_t elems, float given)
{
    decode_row(xep_cast_rule(quant), row, q, scales, elems, given);
}
