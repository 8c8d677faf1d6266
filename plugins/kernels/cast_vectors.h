/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The casts of cast_formats.h by vectors of any width. Included by the file of an instruction set, which has said
 * TARGET, VECTOR (bytes), REGISTER, the constraint of one, and what C has no words for: max32(), min32() and max16() of
 * signed lanes, largest_word() and largest_half(), the largest lane, is_any_below() of halves, load_fp16(), and pack(),
 * UNIT words as bytes.
 */
#ifndef XEP_CAST_VECTORS_H
#define XEP_CAST_VECTORS_H

#include "cast_formats.h"

enum { LANES = VECTOR / 4, VECTORS = UNIT / LANES };

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll_count(4)")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

#define KERNEL __attribute__((always_inline)) TARGET static inline

typedef float floats_t __attribute__((vector_size(VECTOR)));
typedef uint8_t singles8_t __attribute__((vector_size(VECTOR / 2)));
typedef uint16_t lanes16_t __attribute__((vector_size(VECTOR / 2)));
typedef uint8_t lanes8_t __attribute__((vector_size(VECTOR / 4)));
typedef uint16_t pairs_t __attribute__((vector_size(UNIT)));
typedef uint8_t nibbles_t __attribute__((vector_size(UNIT / 2)));

/* By its bits: a sum with 0 would be computed, as it changes -0. */
KERNEL floats_t all_lanes(float number)
{
    return (floats_t)((words_t){0} + xep_bits_of_float(number));
}

/* A vector of elements as the bits of floats. */
KERNEL words_t load_lanes(int type, const char *x)
{
    words_t words;
    lanes16_t lanes;
    if (type == XEP_CAST_FP16) return load_fp16(x);
    if (type == XEP_CAST_FP32) {
        memcpy(&words, x, sizeof words);
        return words;
    }
    memcpy(&lanes, x, sizeof lanes);
    return __builtin_convertvector(lanes, words_t) << 16;
}

/* So many elements of UNIT, with zeros behind them. */
KERNEL void pad(int type, char *padded, const char *x, size_t elems)
{
    memset(padded, 0, UNIT * 4);
    memcpy(padded, x, elems * xep_cast_type_bytes(type));
}

/* Magnitudes compare as numbers of their bits, halves too. */
KERNEL halves_t larger_halves(halves_t most, const char *x)
{
    UNROLL for (size_t i = 0; i < UNIT * 2; i += sizeof(halves_t))
    {
        halves_t halves;
        memcpy(&halves, x + i, sizeof halves);
        most = max16(most, halves & (uint16_t)0x7fff);
    }
    return most;
}

KERNEL words_t larger_words(words_t most, const char *x)
{
    UNROLL for (int v = 0; v < VECTORS; v++) most =
        max32(most, load_lanes(XEP_CAST_FP32, x + v * VECTOR) & 0x7fffffffu);
    return most;
}

KERNEL uint32_t amax_of(int type, const char *x, size_t elems)
{
    char padded[UNIT * 4];
    const size_t elem = xep_cast_type_bytes(type);
    halves_t halves = {0};
    words_t words = {0};
    size_t i = 0;
    UNROLL for (; i + UNIT <= elems; i += UNIT) if (type == XEP_CAST_FP32) words = larger_words(words, x + i * elem);
    else halves = larger_halves(halves, x + i * elem);
    if (i < elems) {
        pad(type, padded, x + i * elem, elems - i);
        if (type == XEP_CAST_FP32) words = larger_words(words, padded);
        else halves = larger_halves(halves, padded);
    }
    if (type == XEP_CAST_FP32) return largest_word(words);
    return type == XEP_CAST_BF16 ? (uint32_t)largest_half(halves) << 16
                                 : xep_bits_of_float(xep_float_of_fp16(largest_half(halves)));
}

/*
 * Codes of a vector. Adding to a magnitude a power of two that is as many places larger as the fraction has not, or,
 * where the number will be subnormal, the least one has not, rounds it to a place: the sum's last bits count places. An
 * int8 likewise, from 2^23 on, where the places are ones.
 */
KERNEL words_t codes_of_lanes(const xep_cast_rule_t *rule, words_t bits, floats_t factor)
{
    const xep_cast_element_t *element = &rule->element;
    const words_t zero = {0};
    if (element->fraction == 0) {
        floats_t number = (floats_t)bits * factor;
        __asm__("" : "+" REGISTER(number)); /* no fused multiplication: that would round once less */
        return (words_t)(number + 0x1.8p23f) & 0xffu;
    }
    floats_t number = (floats_t)(bits & 0x7fffffffu) * factor;
    __asm__("" : "+" REGISTER(number));
    words_t magnitude = (words_t)number;
    /* by the scale of their own group none is larger */
    if (rule->scale == XEP_SCALE_E4M3 || rule->scale == XEP_SCALE_GIVEN)
        magnitude = min32(magnitude, zero + element->most);
    words_t power = max32(magnitude & 0x7f800000u, zero + (element->least << 23));
    words_t large = power + ((23 - element->fraction) << 23);
    words_t codes = (words_t)((floats_t)magnitude + (floats_t)large) - large;
    codes += (power >> (23 - element->fraction)) - (element->least << element->fraction);
    return codes;
}

/* With signs; a NaN, which only a cast without amax has not looked for, is the code 0x7f. */
KERNEL words_t signed_codes(const xep_cast_rule_t *rule, words_t bits, floats_t factor)
{
    const xep_cast_element_t *element = &rule->element;
    words_t codes = codes_of_lanes(rule, bits, factor);
    if (element->fraction == 0) return codes;
    codes |= bits >> 31 << (element->bits - 1);
    if (rule->scale != XEP_SCALE_GIVEN) return codes;
    words_t is_nan = (words_t)((bits & 0x7fffffffu) > XEP_CAST_INFINITE);
    return (codes & ~is_nan) | (is_nan & 0x7fu);
}

/*
 * Scales of UNIT groups, as xep_cast_scale_group() has them one by one. What it gives for a group that is no number is
 * not used. e4m3: the sum's last bits count places, and what is left of the sum is the number that was rounded.
 */
KERNEL words_t scales_of_lanes(const xep_cast_rule_t *rule, words_t amax, float inverse, floats_t *factor_p)
{
    const words_t zero = {0};
    if (rule->scale == XEP_SCALE_E8M0) {
        const uint32_t fraction = rule->element.most & 0x7fffff, top = (rule->element.most >> 23) - 127;
        words_t exponent = max32((amax + (0x7fffff - fraction)) >> 23, zero + top) - top;
        *factor_p = (floats_t)((254 - exponent) << 23);
        return exponent;
    }
    floats_t most = (floats_t)amax;
    if (rule->scale == XEP_SCALE_E4M3) {
        floats_t scale = most * (1.0f / 6.0f) * inverse;
        __asm__("" : "+" REGISTER(scale));
        words_t magnitude = min32((words_t)scale, zero + 0x43e00000u), power;
        power = max32(magnitude & 0x7f800000u, zero + (121u << 23));
        words_t large = power + (20u << 23), sum = (words_t)((floats_t)magnitude + (floats_t)large);
        floats_t rounded = (floats_t)sum - (floats_t)large;
        *factor_p = (floats_t)((words_t)(inverse / rounded) & (words_t)(rounded != 0));
        return sum - large + (power >> 20) - (121u << 3);
    }
    most = (floats_t)max32((words_t)most, zero + xep_bits_of_float(XEP_INT8_LEAST));
    *factor_p = 127.0f / most;
    return (words_t)(most / 127.0f);
}

KERNEL void scale_groups(const xep_cast_rule_t *rule, const uint32_t *amax, size_t groups, float inverse,
                         uint8_t *scales, float *factor)
{
    words_t lanes[VECTORS];
    floats_t factors[VECTORS];
    if (rule->scale == XEP_SCALE_GIVEN) {
        for (size_t g = 0; g < groups; g++) factor[g] = inverse;
        return;
    }
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        memcpy(&lanes[v], amax + v * LANES, sizeof lanes[v]);
        lanes[v] = scales_of_lanes(rule, lanes[v], inverse, &factors[v]);
    }
    memcpy(factor, factors, sizeof factors);
    if (rule->scale == XEP_SCALE_FP32) {
        memcpy(scales, lanes, groups * sizeof(float));
        return;
    }
    unit_t bytes = pack(lanes);
    memcpy(scales, &bytes, groups);
}

/*
 * As many bf16 as a vector holds, by a power of two, which changes exponents alone: magnitudes are rounded as they are.
 * 0: some are subnormal, or will be.
 */
KERNEL int codes_of_shifted(const xep_cast_rule_t *rule, uint8_t *q, const char *x, float factor)
{
    const uint32_t least = rule->element.least + 127 - (xep_bits_of_float(factor) >> 23),
                   off = 7 - rule->element.fraction;
    singles_t v, magnitude, codes;
    if (rule->scale != XEP_SCALE_E8M0 || rule->element.fraction < 2 || least - 1 > 253) return 0;
    memcpy(&v, x, sizeof v);
    magnitude = v & 0x7fff;
    if (is_any_below(magnitude, (uint16_t)(least << 7))) return 0;
    codes = (magnitude + ((magnitude >> off) & 1) + (uint16_t)((1u << (off - 1)) - 1)) >> off;
    codes -= (uint16_t)((least - 1) << rule->element.fraction);
    codes |= (v >> 8) & 0x80;
    singles8_t bytes = __builtin_convertvector(codes, singles8_t);
    memcpy(q, &bytes, sizeof bytes);
    return 1;
}

/*
 * As many bf16 as a vector holds: those that are the lower halves of its words, and the upper ones. Their codes meet in
 * a word, in the order in which they are stored.
 */
KERNEL void codes_of_bf16(const xep_cast_rule_t *rule, uint8_t *q, const char *x, floats_t factor)
{
    words_t words;
    memcpy(&words, x, sizeof words);
    words_t codes = signed_codes(rule, words << 16, factor) | signed_codes(rule, words & 0xffff0000u, factor)
                                                                  << rule->element.bits;
    lanes16_t halves = __builtin_convertvector(codes, lanes16_t);
    lanes8_t bytes = __builtin_convertvector(codes, lanes8_t);
    if (rule->element.bits == 8) memcpy(q, &halves, sizeof halves);
    else memcpy(q, &bytes, sizeof bytes);
}

/* Where two groups of bf16 fill a vector. */
KERNEL int codes_of_two(const xep_cast_rule_t *rule, int type, uint8_t *q, const char *x, const float *factor)
{
    static const int32_t halves[] = {0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1};
    words_t is_second;
    if (type != XEP_CAST_BF16 || rule->group != LANES || sizeof halves != sizeof is_second) return 0;
    memcpy(&is_second, halves, sizeof is_second);
    const words_t first = (words_t)all_lanes(factor[0]), second = (words_t)all_lanes(factor[1]);
    codes_of_bf16(rule, q, x, (floats_t)((first & ~is_second) | (second & is_second)));
    return 1;
}

/* UNIT elements. Of two channels of four bits the first is in the lower half of the byte. */
KERNEL void codes_of_unit(const xep_cast_rule_t *rule, int type, uint8_t *q, const char *x, float factor)
{
    words_t codes[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        words_t bits = load_lanes(type, x + v * LANES * xep_cast_type_bytes(type));
        codes[v] = signed_codes(rule, bits, all_lanes(factor));
    }
    unit_t unit = pack(codes);
    if (rule->element.bits == 8) {
        memcpy(q, &unit, sizeof unit);
        return;
    }
    pairs_t pairs = (pairs_t)unit;
    nibbles_t nibbles = __builtin_convertvector((pairs & 15) | pairs >> 4, nibbles_t);
    memcpy(q, &nibbles, sizeof nibbles);
}

KERNEL void codes_of(const xep_cast_rule_t *rule, int type, uint8_t *q, const char *x, size_t elems, float factor)
{
    const size_t elem = xep_cast_type_bytes(type), bits = rule->element.bits;
    char padded[UNIT * 4];
    uint8_t last[UNIT];
    size_t i = 0;
    if (type == XEP_CAST_BF16)
        UNROLL for (; i + 2 * LANES <= elems;
                    i += 2 * LANES) if (!codes_of_shifted(rule, q + i * bits / 8, x + i * elem, factor))
            codes_of_bf16(rule, q + i * bits / 8, x + i * elem, all_lanes(factor));
    UNROLL for (; i + UNIT <= elems; i += UNIT) codes_of_unit(rule, type, q + i * bits / 8, x + i * elem, factor);
    if (i == elems) return;
    pad(type, padded, x + i * elem, elems - i);
    codes_of_unit(rule, type, last, padded, factor);
    memcpy(q + i * bits / 8, last, ((elems - i) * bits + 7) / 8);
}

/* For codes_of_group() of cast_blocks.h. */
static const xep_cast_rule_t e4m3_rule = {XEP_E4M3, XEP_ELEMENT_E4M3, XEP_SCALE_FP32, XEP_CAST_GROUP};

#include "cast_walk.h"

#endif
