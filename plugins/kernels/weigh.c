/* SPDX-License-Identifier: BSD-3-Clause */

/* The definition of the weighted sums, one element after the other, and the choice of a kernel. */
#include "weigh_kernels.h"

#include <math.h>

#include "floats.h"

/* type is known to the compiler wherever this is inlined. */
static inline float load(int type, const void *row, size_t i)
{
    if (type == XEP_WEIGH_BF16) return xep_float_of_bf16(((const uint16_t *)row)[i]);
    if (type == XEP_WEIGH_FP16) return xep_float_of_fp16(((const uint16_t *)row)[i]);
    return ((const float *)row)[i];
}

/* What is not a number becomes one pattern, so that results do not depend on the order of operands. */
static inline void store(int type, void *out, size_t i, float sum)
{
    if (type == XEP_WEIGH_BF16) ((uint16_t *)out)[i] = xep_bf16_of_float(sum);
    else if (type == XEP_WEIGH_FP16) ((uint16_t *)out)[i] = xep_fp16_of_float(sum);
    else ((float *)out)[i] = sum != sum ? xep_float_of_bits(0x7fc00000) : sum;
}

/*
 * The order of rows is the order of additions: every kernel must have the same, or the bits would differ. fmaf()
 * rounds once, as the instructions of the vector kernels do; a product and a sum would round twice.
 */
void xep_weigh_from(int type, void *out, const void *const *rows, const float *weights, size_t n, size_t from,
                    size_t elems)
{
    for (size_t i = from; i < elems; i++) {
        float sum = 0;
        for (size_t j = 0; j < n; j++)
            sum = weights == NULL ? sum + load(type, rows[j], i) : fmaf(weights[j], load(type, rows[j], i), sum);
        store(type, out, i, sum);
    }
}

void xep_weigh_wide_from(float *out, const void *const *rows, size_t n, size_t from, size_t elems)
{
    for (size_t i = from; i < elems; i++) {
        float sum = 0;
        for (size_t j = 0; j < n; j++) sum += load(XEP_WEIGH_BF16, rows[j], i);
        store(XEP_WEIGH_FP32, out, i, sum);
    }
}

/* One function for each type, so that the inner loop above is compiled with the type known. */
static void bf16_scalar(void *out, const void *const *rows, const float *weights, size_t n, size_t more, size_t elems)
{
    (void)more;
    xep_weigh_from(XEP_WEIGH_BF16, out, rows, weights, n, 0, elems);
}

static void fp16_scalar(void *out, const void *const *rows, const float *weights, size_t n, size_t more, size_t elems)
{
    (void)more;
    xep_weigh_from(XEP_WEIGH_FP16, out, rows, weights, n, 0, elems);
}

static void fp32_scalar(void *out, const void *const *rows, const float *weights, size_t n, size_t more, size_t elems)
{
    (void)more;
    xep_weigh_from(XEP_WEIGH_FP32, out, rows, weights, n, 0, elems);
}

/* Streaming is a question of the vector kernels alone: the scalar ones are for machines without them, and for tests. */
xep_weigh_fn xep_weigh_select(xep_dtype_t dtype, xep_simd_t simd, int streaming)
{
    static const xep_weigh_fn scalar[XEP_WEIGH_TYPES] = {bf16_scalar, fp16_scalar, fp32_scalar};
    int type = dtype == XEP_BF16 ? XEP_WEIGH_BF16 : dtype == XEP_FP16 ? XEP_WEIGH_FP16 : XEP_WEIGH_FP32;
#if defined(__x86_64__)
    if (simd >= XEP_SIMD_AVX512) return xep_weigh_avx512[type][streaming != 0];
    if (simd == XEP_SIMD_AVX2) return xep_weigh_avx2[type][streaming != 0];
#elif defined(__aarch64__)
    if (simd >= XEP_SIMD_NEON) return xep_weigh_neon[type][streaming != 0];
#else
    (void)simd;
    (void)streaming;
#endif
    return scalar[type];
}

static void wide_scalar(float *out, const void *const *rows, size_t n, size_t elems)
{
    xep_weigh_wide_from(out, rows, n, 0, elems);
}

xep_weigh_wide_fn xep_weigh_select_wide(xep_simd_t simd)
{
#if defined(__x86_64__)
    if (simd >= XEP_SIMD_AVX512) return xep_weigh_wide_avx512;
    if (simd == XEP_SIMD_AVX2) return xep_weigh_wide_avx2;
#elif defined(__aarch64__)
    if (simd >= XEP_SIMD_NEON) return xep_weigh_wide_neon;
#else
    (void)simd;
#endif
    return wide_scalar;
}
