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

/*
 * As above, but for the type of each row. Sums that travel on in fp32 are not rounded here: whoever adds them does it
 * once.
 */
void xep_weigh_mixed_from(int type, int wide_out, void *out, const void *const *rows, const uint8_t *wide, size_t n,
                          size_t from, size_t elems)
{
    for (size_t i = from; i < elems; i++) {
        float sum = 0;
        for (size_t j = 0; j < n; j++) sum += load(wide[j] ? XEP_WEIGH_FP32 : type, rows[j], i);
        store(wide_out ? XEP_WEIGH_FP32 : type, out, i, sum);
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

/* Likewise, with the type of rows and that of sums known. */
#define MIXED(_name, _type, _wide_out)                                                                 \
    static void _name(void *out, const void *const *rows, const uint8_t *wide, size_t n, size_t elems) \
    {                                                                                                  \
        xep_weigh_mixed_from(_type, _wide_out, out, rows, wide, n, 0, elems);                          \
    }

MIXED(mixed_bf16, XEP_WEIGH_BF16, 0)
MIXED(mixed_bf16_wide, XEP_WEIGH_BF16, 1)
MIXED(mixed_fp16, XEP_WEIGH_FP16, 0)
MIXED(mixed_fp16_wide, XEP_WEIGH_FP16, 1)

xep_weigh_mixed_fn xep_weigh_select_mixed(xep_dtype_t dtype, int wide_out, xep_simd_t simd)
{
    static const xep_weigh_mixed_fn scalar[XEP_WEIGH_NARROW][2] = {{mixed_bf16, mixed_bf16_wide},
                                                                   {mixed_fp16, mixed_fp16_wide}};
    int type = dtype == XEP_BF16 ? XEP_WEIGH_BF16 : XEP_WEIGH_FP16;
#if defined(__x86_64__)
    if (simd >= XEP_SIMD_AVX512) return xep_weigh_mixed_avx512[type][wide_out != 0];
    if (simd == XEP_SIMD_AVX2) return xep_weigh_mixed_avx2[type][wide_out != 0];
#elif defined(__aarch64__)
    if (simd >= XEP_SIMD_NEON) return xep_weigh_mixed_neon[type][wide_out != 0];
#else
    (void)simd;
#endif
    return scalar[type][wide_out != 0];
}
