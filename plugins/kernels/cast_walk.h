/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The walk of the casts of cast_formats.h over a row. Included by a file that has said KERNEL and TARGET, and has:
 *  - amax_of(type, x, elems), the bits of the largest magnitude;
 *  - scale_groups(rule, amax, groups, inverse, scales, factor), scales, and what channels are multiplied by;
 *  - codes_of(rule, type, q, x, elems, factor);
 *  - codes_of_two(rule, type, q, x, factor), the codes of two groups, or 0: it does not do that.
 * Groups are taken AT_A_TIME: one by one, each would wait for its own reduction and division.
 */
#ifndef XEP_CAST_WALK_H
#define XEP_CAST_WALK_H

#include "cast_formats.h"

enum { LINE = 64, AT_A_TIME = 16 };

/* Groups of so many elements each; the compiler knows what rule says, and mostly how many elements there are. */
KERNEL void cast_groups(const xep_cast_rule_t *rule, int type, uint8_t *q, uint8_t *scales, const char *x,
                        size_t groups, size_t elems, float inverse)
{
    const size_t bytes = (elems * rule->element.bits + 7) / 8, step = elems * xep_cast_type_bytes(type);
    uint32_t amax[AT_A_TIME] = {0};
    float factor[AT_A_TIME];
    for (size_t g = 0; g < groups && rule->scale != XEP_SCALE_GIVEN; g++) amax[g] = amax_of(type, x + g * step, elems);
    scale_groups(rule, amax, groups, inverse, scales, factor);
    for (size_t g = 0; g < groups; g++) {
        const int is_number = amax[g] < XEP_CAST_INFINITE;
        if (is_number && g + 1 < groups && amax[g + 1] < XEP_CAST_INFINITE &&
            codes_of_two(rule, type, q + g * bytes, x + g * step, factor + g)) {
            g++;
        } else if (is_number) {
            codes_of(rule, type, q + g * bytes, x + g * step, elems, factor[g]);
        } else {
            xep_cast_scale_no_number(rule, scales, g);
            memset(q + g * bytes, 0, bytes);
        }
    }
}

/* Bytes from the scale of group 0 to that of group g. */
KERNEL size_t scales_before(const xep_cast_rule_t *rule, size_t g)
{
    return rule->scale == XEP_SCALE_FP32 ? g * sizeof(float) : g;
}

/* Bytes of scales are words, the last one filled up with zeros; behind those of NVFP4 is the word of the row. */
KERNEL float cast_row_scale(const xep_cast_rule_t *rule, int type, uint8_t *scales, size_t groups, const char *x,
                            size_t elems, float scale)
{
    uint32_t word = 0;
    const size_t words = (groups + 3) / 4;
    if (rule->scale == XEP_SCALE_GIVEN) return 1.0f / scale;
    if (rule->scale == XEP_SCALE_FP32) return 1;
    memcpy(scales + (words - 1) * sizeof word, &word, sizeof word);
    if (rule->scale == XEP_SCALE_E8M0) return 1;
    float inverse = 1.0f / scale;
    if (scale != 0) word = xep_bits_of_float(scale);
    else inverse = xep_cast_scale_row(amax_of(type, x, elems), &word);
    memcpy(scales + words * sizeof word, &word, sizeof word);
    return inverse;
}

KERNEL void cast_row(const xep_cast_rule_t *rule, int type, uint8_t *q, uint8_t *scales, const void *x, size_t elems,
                     float scale, const void *next)
{
    const size_t elem = xep_cast_type_bytes(type), whole = rule->group < elems ? elems / rule->group : 0;
    const char *from = x, *ahead = next;
    const float inverse = cast_row_scale(rule, type, scales, whole + (whole * rule->group != elems), x, elems, scale);
    for (size_t g = 0, n; g < whole; g += n) {
        n = whole - g < AT_A_TIME ? whole - g : AT_A_TIME;
        const size_t bytes = n * rule->group * elem;
        for (size_t i = 0; i < bytes; i += LINE) __builtin_prefetch(ahead + i);
        cast_groups(rule, type, q, scales + scales_before(rule, g), from, n, rule->group, inverse);
        from += bytes, ahead += bytes;
        q += n * rule->group * rule->element.bits / 8;
    }
    const size_t rest = elems - whole * rule->group;
    for (size_t i = 0; i < rest * elem; i += LINE) __builtin_prefetch(ahead + i);
    if (rest > 0) cast_groups(rule, type, q, scales + scales_before(rule, whole), from, 1, rest, inverse);
}

/* Line-aligned, so that what stands before it in the file does not move its loops. */
#define CAST_ROW_(_name, _type, _TYPE, _rule)                                                                      \
    __attribute__((aligned(LINE))) TARGET static void _name##_##_type(uint8_t *q, uint8_t *scales, const void *x,  \
                                                                      size_t elems, float scale, const void *next) \
    {                                                                                                              \
        cast_row(_rule, _TYPE, q, scales, x, elems, scale, next);                                                  \
    }
#define CAST_ROWS_(_quant, _name, _dtype, _element, _scale, _group)                 \
    static const xep_cast_rule_t _name##_rule = {_dtype, _element, _scale, _group}; \
    CAST_ROW_(_name, bf16, XEP_CAST_BF16, &_name##_rule)                            \
    CAST_ROW_(_name, fp16, XEP_CAST_FP16, &_name##_rule)                            \
    CAST_ROW_(_name, fp32, XEP_CAST_FP32, &_name##_rule)
#define CAST_ENTRY_(_quant, _name, _dtype, _element, _scale, _group) \
    [XEP_QUANT_##_quant] = {_name##_bf16, _name##_fp16, _name##_fp32},

#ifndef BF16_ALONE /* cast_vbmi.c: all others are those of AVX-512 */
XEP_CAST_BLOCKS(CAST_ROWS_)
#endif

#endif
