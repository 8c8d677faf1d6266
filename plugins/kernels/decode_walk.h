/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The walk over a row that a cast has made, back to bf16. Included by a file that has said KERNEL, and defines
 * decode_group() behind it.
 */
#ifndef XEP_DECODE_WALK_H
#define XEP_DECODE_WALK_H

#include "codec.h"

/* Channels of a group, the first of which begins with a byte of q. */
KERNEL void decode_group(const xep_cast_element_t *element, uint16_t *row, const uint8_t *q, size_t elems, float scale);

/* A byte of 255 is no number: NaN, or of UE8M0 an Inf, whose channels are NaN either way. */
KERNEL float decode_e8m0(uint8_t byte)
{
    if (byte == 255) return xep_float_of_bits(XEP_CAST_NAN);
    return xep_float_of_bits(byte == 0 ? 0x00400000 : (uint32_t)byte << 23); /* 2^-127 is subnormal */
}

KERNEL float decode_scale(const xep_cast_rule_t *rule, const uint8_t *scales, size_t g, float row_scale)
{
    float scale;
    if (rule->scale == XEP_SCALE_GIVEN) return row_scale;
    if (rule->scale == XEP_SCALE_E8M0) return decode_e8m0(scales[g]);
    if (rule->scale == XEP_SCALE_E4M3) return xep_float_of_e4m3(scales[g]) * row_scale;
    memcpy(&scale, scales + g * sizeof scale, sizeof scale);
    return scale;
}

KERNEL void decode_row(const xep_cast_rule_t *rule, uint16_t *row, const uint8_t *q, const uint8_t *scales,
                       size_t elems, float given)
{
    const size_t group = rule->group < elems ? rule->group : elems;
    if (rule->scale == XEP_SCALE_E4M3) memcpy(&given, scales + (elems + group * 4 - 1) / (group * 4) * 4, sizeof given);
    for (size_t g = 0, at = 0; at < elems; g++, at += group) {
        const size_t n = elems - at < group ? elems - at : group;
        decode_group(&rule->element, row + at, q + at * rule->element.bits / 8, n,
                     decode_scale(rule, scales, g, given));
    }
}

#endif
