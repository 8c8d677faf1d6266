/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What the kernels to e4m3 with a scale for each 128 channels share (E4M3, E4M3_POW2, UE8M0): the rule of a group, and
 * tables of the kernels.
 */
#ifndef XEP_CAST_KERNELS_H
#define XEP_CAST_KERNELS_H

#include "cast.h"
#include "floats.h"

enum { XEP_CAST_BF16, XEP_CAST_FP16, XEP_CAST_FP32, XEP_CAST_TYPES };
enum { XEP_CAST_GROUP = 128 };

/**
 * Casts elems elements of x: q [elems], scales [xep_cast_groups(elems)]. pow2: scales are powers of two.
 * next as of xep_cast_t.
 */
typedef void (*xep_cast_fn)(uint8_t *q, float *scales, const void *x, size_t elems, int pow2, const void *next);

/** By the kernel of a machine; type is XEP_CAST_*. */
xep_cast_fn xep_cast_groups_by(int type, xep_simd_t simd);

static inline size_t xep_cast_groups(size_t elems)
{
    return elems / XEP_CAST_GROUP + (elems % XEP_CAST_GROUP != 0);
}

/** Exponent bytes of scales, four to a word, the lowest byte first; bytes that are over are 0. */
void xep_cast_pack_exponents(uint32_t *packed, const float *scales, size_t groups);

#define XEP_CAST_LEAST_AMAX 1e-4f

static inline size_t xep_cast_type_bytes(int type)
{
    return type == XEP_CAST_FP32 ? 4 : 2;
}

/** From a group's amax, which is a number or Inf, its scale; returns what its elements are multiplied by. */
XEP_FLOATS_INLINE float xep_cast_scale(float amax, int pow2, float *scale_p)
{
    float scale = amax * (1.0f / 448.0f);
    if (!pow2) {
        *scale_p = scale;
        return 448.0f / amax; /* 0 of Inf */
    }
    uint32_t bits = xep_bits_of_float(scale), exponent = (bits >> 23) + ((bits & 0x7fffff) != 0);
    *scale_p = xep_float_of_bits(exponent << 23);
    return exponent == 255 ? 0 : xep_float_of_bits((254 - exponent) << 23);
}

/** A group of elems elements, at most 128, by the definition; type is XEP_CAST_*. */
void xep_cast_group(int type, uint8_t *q, float *scale, const void *x, size_t elems, int pow2);

/** What a kernel does: whole groups, any number of them. */
typedef void (*xep_cast_groups_fn)(uint8_t *q, float *scales, const void *x, size_t groups, int pow2, const void *next);

/**
 * A row by a kernel of whole groups: a shorter last group is padded with zeros, which change neither its amax
 * nor its other elements.
 */
void xep_cast_row(xep_cast_groups_fn cast, int type, uint8_t *q, float *scales, const void *x, size_t elems, int pow2,
                  const void *next);

#if defined(__x86_64__)
extern const xep_cast_fn xep_cast_avx2[XEP_CAST_TYPES];
extern const xep_cast_fn xep_cast_vbmi; /* of bf16 */
#elif defined(__aarch64__)
extern const xep_cast_fn xep_cast_neon[XEP_CAST_TYPES];
#endif

#endif
