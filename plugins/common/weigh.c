/* SPDX-License-Identifier: BSD-3-Clause */

#include "weigh_kernels.h"

#include <math.h>

#include "floats.h"

void xep_weigh_bf16_from(void *out, const void *const *rows, const float *weights, size_t n, size_t from, size_t elems)
{
    for (size_t i = from; i < elems; i++) {
        float sum = 0;
        for (size_t j = 0; j < n; j++) sum = fmaf(weights[j], xep_float_of_bf16(((const uint16_t *)rows[j])[i]), sum);
        ((uint16_t *)out)[i] = xep_bf16_of_float(sum);
    }
}

void xep_weigh_fp16_from(void *out, const void *const *rows, const float *weights, size_t n, size_t from, size_t elems)
{
    for (size_t i = from; i < elems; i++) {
        float sum = 0;
        for (size_t j = 0; j < n; j++) sum = fmaf(weights[j], xep_float_of_fp16(((const uint16_t *)rows[j])[i]), sum);
        ((uint16_t *)out)[i] = xep_fp16_of_float(sum);
    }
}

void xep_weigh_fp32_from(void *out, const void *const *rows, const float *weights, size_t n, size_t from, size_t elems)
{
    for (size_t i = from; i < elems; i++) {
        float sum = 0;
        for (size_t j = 0; j < n; j++) sum = fmaf(weights[j], ((const float *)rows[j])[i], sum);
        ((float *)out)[i] = sum != sum ? xep_float_of_bits(0x7fc00000) : sum;
    }
}

static void bf16_scalar(void *out, const void *const *rows, const float *weights, size_t n, size_t elems)
{
    xep_weigh_bf16_from(out, rows, weights, n, 0, elems);
}

static void fp16_scalar(void *out, const void *const *rows, const float *weights, size_t n, size_t elems)
{
    xep_weigh_fp16_from(out, rows, weights, n, 0, elems);
}

static void fp32_scalar(void *out, const void *const *rows, const float *weights, size_t n, size_t elems)
{
    xep_weigh_fp32_from(out, rows, weights, n, 0, elems);
}

xep_weigh_fn xep_weigh_select(xep_dtype_t dtype, xep_simd_t simd, int streaming)
{
    static const xep_weigh_fn scalar[XEP_WEIGH_TYPES] = {bf16_scalar, fp16_scalar, fp32_scalar};
    int type = dtype == XEP_BF16 ? XEP_WEIGH_BF16 : dtype == XEP_FP16 ? XEP_WEIGH_FP16 : XEP_WEIGH_FP32;
#if defined(__x86_64__)
    if (simd == XEP_SIMD_AVX512) return xep_weigh_avx512[type][streaming != 0];
    if (simd == XEP_SIMD_AVX2) return xep_weigh_avx2[type][streaming != 0];
#else
    (void)simd;
    (void)streaming;
#endif
    return scalar[type];
}
