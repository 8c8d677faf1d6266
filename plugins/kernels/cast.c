/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The definition of the casts to e4m3 with a scale for each 128 channels, one element after the other, and the choice
 * of their kernel. All other kernels are compared with these loops bit for bit, and leave to them what is rare: groups
 * with an Inf or a NaN.
 */
#include "cast_kernels.h"

#include <math.h>
#include <string.h>

/* element i of x as a float */
typedef float (*element_fn)(const void *x, size_t i);

/*
 * Each type has a function of its own, so that the loops of a group are compiled once for each, without a question
 * inside.
 */
static float bf16_at(const void *x, size_t i)
{
    return xep_float_of_bf16(((const uint16_t *)x)[i]);
}

static float fp16_at(const void *x, size_t i)
{
    return xep_float_of_fp16(((const uint16_t *)x)[i]);
}

static float fp32_at(const void *x, size_t i)
{
    return ((const float *)x)[i];
}

/* A NaN is never larger, so that it does not count. */
static inline void cast_group(uint8_t *q, float *scale, const void *x, size_t elems, int pow2, element_fn at)
{
    float amax = XEP_CAST_LEAST_AMAX;
    for (size_t i = 0; i < elems; i++) {
        float magnitude = fabsf(at(x, i));
        if (magnitude > amax) amax = magnitude;
    }
    float factor = xep_cast_scale(amax, pow2, scale);
    for (size_t i = 0; i < elems; i++) q[i] = xep_e4m3_of_float(at(x, i) * factor);
}

/* The one place where the rule is written out: the vector kernels come back to it for what they leave out. */
void xep_cast_group(int type, uint8_t *q, float *scale, const void *x, size_t elems, int pow2)
{
    if (type == XEP_CAST_BF16) cast_group(q, scale, x, elems, pow2, bf16_at);
    else if (type == XEP_CAST_FP16) cast_group(q, scale, x, elems, pow2, fp16_at);
    else cast_group(q, scale, x, elems, pow2, fp32_at);
}

void xep_cast_row(xep_cast_groups_fn cast, int type, uint8_t *q, float *scales, const void *x, size_t elems, int pow2,
                  const void *next)
{
    _Alignas(64) uint8_t padded[XEP_CAST_GROUP * 4] = {0}, out[XEP_CAST_GROUP];
    size_t groups = elems / XEP_CAST_GROUP, whole = groups * XEP_CAST_GROUP;
    cast(q, scales, x, groups, pow2, next);
    if (whole == elems) return;
    memcpy(padded, (const char *)x + whole * xep_cast_type_bytes(type), (elems - whole) * xep_cast_type_bytes(type));
    cast(out, scales + groups, padded, 1, pow2, padded);
    memcpy(q + whole, out, elems - whole);
}

/* Groups of 128 from the row's first element on; only the last one may be shorter. */
static void cast_scalar(int type, uint8_t *q, float *scales, const void *x, size_t elems, int pow2)
{
    const char *group = x;
    for (size_t i = 0; i < elems; i += XEP_CAST_GROUP, group += XEP_CAST_GROUP * xep_cast_type_bytes(type)) {
        size_t n = elems - i < XEP_CAST_GROUP ? elems - i : XEP_CAST_GROUP;
        xep_cast_group(type, q + i, scales++, group, n, pow2);
    }
}

static void bf16_scalar(uint8_t *q, float *scales, const void *x, size_t elems, int pow2, const void *next)
{
    (void)next;
    cast_scalar(XEP_CAST_BF16, q, scales, x, elems, pow2);
}

static void fp16_scalar(uint8_t *q, float *scales, const void *x, size_t elems, int pow2, const void *next)
{
    (void)next;
    cast_scalar(XEP_CAST_FP16, q, scales, x, elems, pow2);
}

static void fp32_scalar(uint8_t *q, float *scales, const void *x, size_t elems, int pow2, const void *next)
{
    (void)next;
    cast_scalar(XEP_CAST_FP32, q, scales, x, elems, pow2);
}

xep_cast_fn xep_cast_groups_by(int type, xep_simd_t simd)
{
    static const xep_cast_fn scalar[XEP_CAST_TYPES] = {bf16_scalar, fp16_scalar, fp32_scalar};
#if defined(__x86_64__)
    if (simd >= XEP_SIMD_AVX512VBMI && type == XEP_CAST_BF16) return xep_cast_vbmi;
    if (simd >= XEP_SIMD_AVX2) return xep_cast_avx2[type];
#elif defined(__aarch64__)
    if (simd >= XEP_SIMD_NEON) return xep_cast_neon[type];
#else
    (void)simd;
#endif
    return scalar[type];
}

/* Scales that are powers of two have no fraction: the exponent byte is all there is to send. */
void xep_cast_pack_exponents(uint32_t *packed, const float *scales, size_t groups)
{
    for (size_t word = 0; word * 4 < groups; word++) {
        packed[word] = 0;
        for (size_t i = 0; i < 4 && word * 4 + i < groups; i++)
            packed[word] |= xep_bits_of_float(scales[word * 4 + i]) >> 23 << 8 * i;
    }
}
