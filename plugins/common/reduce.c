/* SPDX-License-Identifier: BSD-3-Clause */

#include "reduce_kernels.h"

#include "floats.h"

static float plain_nan(float value)
{
    return value != value ? xep_float_of_bits(0x7fc00000) : value;
}

void xep_reduce_bf16_from(void *out, const void *const *rows, size_t n, size_t from, size_t elems)
{
    for (size_t i = from; i < elems; i++) {
        float sum = 0;
        for (size_t j = 0; j < n; j++) sum += xep_float_of_bf16(((const uint16_t *)rows[j])[i]);
        ((uint16_t *)out)[i] = xep_bf16_of_float(sum);
    }
}

void xep_reduce_fp16_from(void *out, const void *const *rows, size_t n, size_t from, size_t elems)
{
    for (size_t i = from; i < elems; i++) {
        float sum = 0;
        for (size_t j = 0; j < n; j++) sum += xep_float_of_fp16(((const uint16_t *)rows[j])[i]);
        ((uint16_t *)out)[i] = xep_fp16_of_float(sum);
    }
}

void xep_reduce_fp32_from(void *out, const void *const *rows, size_t n, size_t from, size_t elems)
{
    for (size_t i = from; i < elems; i++) {
        float sum = 0;
        for (size_t j = 0; j < n; j++) sum += ((const float *)rows[j])[i];
        ((float *)out)[i] = plain_nan(sum);
    }
}

static void bf16_scalar(void *out, const void *const *rows, size_t n, size_t elems)
{
    xep_reduce_bf16_from(out, rows, n, 0, elems);
}

static void fp16_scalar(void *out, const void *const *rows, size_t n, size_t elems)
{
    xep_reduce_fp16_from(out, rows, n, 0, elems);
}

static void fp32_scalar(void *out, const void *const *rows, size_t n, size_t elems)
{
    xep_reduce_fp32_from(out, rows, n, 0, elems);
}

xep_reduce_fn xep_reduce_select(xep_dtype_t dtype, xep_simd_t simd, int streaming)
{
    static const xep_reduce_fn scalar[XEP_REDUCE_TYPES] = {bf16_scalar, fp16_scalar, fp32_scalar};
    int type = dtype == XEP_BF16 ? XEP_REDUCE_BF16 : dtype == XEP_FP16 ? XEP_REDUCE_FP16 : XEP_REDUCE_FP32;
#if defined(__x86_64__)
    if (simd == XEP_SIMD_AVX512) return xep_reduce_avx512[type][streaming != 0];
    if (simd == XEP_SIMD_AVX2) return xep_reduce_avx2[type][streaming != 0];
#else
    (void)simd;
    (void)streaming;
#endif
    return scalar[type];
}
