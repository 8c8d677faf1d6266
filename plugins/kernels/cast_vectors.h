/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The casts of cast_formats.h by vectors of any width. Included by the file of an instruction set, which has said
 * TARGET, VECTOR (bytes), REGISTER, the constraint of one, and what C has no words for: max32(), min32() and max16() of
 * signed lanes, largest_word() and largest_half(), the largest lane, load_fp16(), and pack(), UNIT words as bytes.
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
typedef uint16_t lanes16_t __attribute__((vector_size(VECTOR / 2)));
typedef uint16_t pairs_t __attribute__((vector_size(UNIT)));
typedef uint8_t nibbles_t __attribute__((vector_size(UNIT / 2)));

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
    halves_t halves;
    memcpy(&halves, x, sizeof halves);
    return max16(most, halves & (uint16_t)0x7fff);
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
KERNEL words_t codes_of_lanes(const xep_cast_rule_t *rule, words_t bits, float factor)
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
    if (rule->scale != XEP_SCALE_E8M0) magnitude = min32(magnitude, zero + element->most); /* else none is larger */
    words_t power = max32(magnitude & 0x7f800000u, zero + (element->least << 23));
    words_t large = power + ((23 - element->fraction) << 23);
    words_t codes = (words_t)((floats_t)magnitude + (floats_t)large) - large;
    codes += (power >> (23 - element->fraction)) - (element->least << element->fraction);
    return codes;
}

/* With signs; a NaN, which only a cast without amax has not looked for, is the code 0x7f. */
KERNEL words_t signed_codes(const xep_cast_rule_t *rule, words_t bits, float factor)
{
    const xep_cast_element_t *element = &rule->element;
    words_t codes = codes_of_lanes(rule, bits, factor);
    if (element->fraction == 0) return codes;
    codes |= bits >> 31 << (element->bits - 1);
    if (rule->scale != XEP_SCALE_GIVEN) return codes;
    words_t is_nan = (words_t)((bits & 0x7fffffffu) > XEP_CAST_INFINITE);
    return (codes & ~is_nan) | (is_nan & 0x7fu);
}

/* UNIT elements. Of two channels of four bits the first is in the lower half of the byte. */
KERNEL void codes_of_unit(const xep_cast_rule_t *rule, int type, uint8_t *q, const char *x, float factor)
{
    words_t codes[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        words_t bits = load_lanes(type, x + v * LANES * xep_cast_type_bytes(type));
        codes[v] = signed_codes(rule, bits, factor);
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
    UNROLL for (; i + UNIT <= elems; i += UNIT) codes_of_unit(rule, type, q + i * bits / 8, x + i * elem, factor);
    if (i == elems) return;
    pad(type, padded, x + i * elem, elems - i);
    codes_of_unit(rule, type, last, padded, factor);
    memcpy(q + i * bits / 8, last, ((elems - i) * bits + 7) / 8);
}

#include "cast_walk.h"

#endif
