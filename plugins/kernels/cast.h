/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows to e4m3 with a scale for each 128 channels, by the rules of xep_quant_t. The scalar function is the
 * definition, the others have the same bits for every input, Inf and NaN included.
 */
#ifndef XEP_CAST_H
#define XEP_CAST_H

#include <stddef.h>
#include <stdint.h>

#include <xep/plugin.h>

enum { XEP_CAST_GROUP = 128 };

/**
 * Casts elems elements of x: q [elems], scales [xep_cast_groups(elems)]. pow2: scales are powers of two.
 * next is the row that will be cast after this one, or x: it is fetched meanwhile. Any alignment of the type.
 */
typedef void (*xep_cast_fn)(uint8_t *q, float *scales, const void *x, size_t elems, int pow2, const void *next);

/** The cast of XEP_BF16, XEP_FP16 or XEP_FP32. */
xep_cast_fn xep_cast_select(xep_dtype_t dtype, xep_simd_t simd);

static inline size_t xep_cast_groups(size_t elems)
{
    return elems / XEP_CAST_GROUP + (elems % XEP_CAST_GROUP != 0);
}

/** Exponent bytes of scales, four to a word, the lowest byte first; bytes that are over are 0. */
void xep_cast_pack_exponents(uint32_t *packed, const float *scales, size_t groups);

#endif
