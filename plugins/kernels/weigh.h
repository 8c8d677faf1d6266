/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Sums of rows, weighted or not. Every element is fma(weights[n-1], rows[n-1], .. fma(weights[0], rows[0], +0)) in
 * fp32, rounded once to nearest even; a sum that is not a number is the type's positive quiet NaN with an empty payload
 * (bf16 0x7fc0, fp16 0x7e00, fp32 0x7fc00000), whatever NaN went in. The scalar functions are the definition, the
 * others have the same bits.
 */
#ifndef XEP_WEIGH_H
#define XEP_WEIGH_H

#include <stddef.h>
#include <stdint.h>

#include <xep/plugin.h>

/**
 * out and rows: elems elements of one type, any alignment of it. n may be 0. weights NULL: all are 1, which the kernels
 * know: +0 + rows[0] + rows[1] + ... Behind the n rows stand more that are summed next: a streaming sum fetches them
 * ahead, as nothing else will where rows lie anywhere. 0: they follow these in memory, or are not known.
 * XEP_WEIGH_GOES_ON: likewise, and the sum that comes next goes behind out in memory, whose begin is fetched.
 */
typedef void (*xep_weigh_fn)(void *out, const void *const *rows, const float *weights, size_t n, size_t more,
                             size_t elems);

#define XEP_WEIGH_GOES_ON SIZE_MAX

/**
 * The sum for XEP_BF16, XEP_FP16 or XEP_FP32. Streaming is for what the caches do not hold. It has effect where out is
 * 64-byte aligned, and needs xep_stores_fence() before another thread or process is told.
 */
xep_weigh_fn xep_weigh_select(xep_dtype_t dtype, xep_simd_t simd, int streaming);

/** The same of XEP_BF16 without weights, and out is not rounded: whoever goes on with it does that once. */
typedef void (*xep_weigh_wide_fn)(float *out, const void *const *rows, size_t n, size_t elems);

xep_weigh_wide_fn xep_weigh_select_wide(xep_simd_t simd);

#endif
