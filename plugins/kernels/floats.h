/* SPDX-License-Identifier: BSD-3-Clause */

/** Small floats, one at a time: the definitions every kernel is compared with. Rounding is to nearest even. */
#ifndef XEP_FLOATS_H
#define XEP_FLOATS_H

#include <stdint.h>
#include <string.h>

/* Kernels of devices have the same definitions. */
#ifdef __CUDACC__
#define XEP_FLOATS_INLINE static __host__ __device__ __forceinline__
#else
#define XEP_FLOATS_INLINE static inline
#endif

XEP_FLOATS_INLINE float xep_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

XEP_FLOATS_INLINE uint32_t xep_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

XEP_FLOATS_INLINE float xep_float_of_bf16(uint16_t half)
{
    return xep_float_of_bits((uint32_t)half << 16);
}

/** NaN: 0x7fc0. */
XEP_FLOATS_INLINE uint16_t xep_bf16_of_float(float value)
{
    uint32_t bits = xep_bits_of_float(value);
    if (value != value) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

XEP_FLOATS_INLINE float xep_float_of_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) return xep_float_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    if (magnitude >= 0x0400) return xep_float_of_bits(sign | ((magnitude << 13) + (112u << 23)));
    return xep_float_of_bits(sign | xep_bits_of_float((float)magnitude * 0x1p-24f));
}

/** NaN: 0x7e00. */
XEP_FLOATS_INLINE uint16_t xep_fp16_of_float(float value)
{
    uint32_t bits = xep_bits_of_float(value), magnitude = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (value != value) return 0x7e00;
    if (magnitude >= 0x47800000) return sign | 0x7c00;
    if (magnitude < 0x38800000) /* below 2^-14: 0.5 has the weight of fp16's last place, the sum rounds to it */
        return (uint16_t)(sign | (xep_bits_of_float(xep_float_of_bits(magnitude) + 0.5f) - xep_bits_of_float(0.5f)));
    return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13));
}

/** Saturates at 448, Inf too. NaN: 0x7f. */
XEP_FLOATS_INLINE uint8_t xep_e4m3_of_float(float value)
{
    uint32_t bits = xep_bits_of_float(value), magnitude = bits & 0x7fffffff;
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    if (value != value) return 0x7f;
    if (magnitude >= 0x43e00000) return sign | 0x7e;
    if (magnitude < 0x3c800000) /* below 2^-6: 2^14 has the weight of e4m3's last place, 2^-9, the sum rounds to it */
        return (uint8_t)(sign |
                         (xep_bits_of_float(xep_float_of_bits(magnitude) + 0x1p14f) - xep_bits_of_float(0x1p14f)));
    return (uint8_t)(sign | ((magnitude - (120u << 23) + 0x7ffff + ((magnitude >> 20) & 1)) >> 20));
}

/** Saturates at 57344, Inf too. NaN: 0x7f. */
XEP_FLOATS_INLINE uint8_t xep_e5m2_of_float(float value)
{
    uint32_t bits = xep_bits_of_float(value), magnitude = bits & 0x7fffffff;
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    if (value != value) return 0x7f;
    if (magnitude >= 0x47600000) return sign | 0x7b;
    if (magnitude < 0x38800000) /* below 2^-14: 2^7 has the weight of e5m2's last place, 2^-16, the sum rounds to it */
        return (uint8_t)(sign | (xep_bits_of_float(xep_float_of_bits(magnitude) + 0x1p7f) - xep_bits_of_float(0x1p7f)));
    return (uint8_t)(sign | ((magnitude - (112u << 23) + 0xfffff + ((magnitude >> 21) & 1)) >> 21));
}

/** Saturates at 6, Inf too; four bits. Not for NaN, which e2m1 does not have. */
XEP_FLOATS_INLINE uint8_t xep_e2m1_of_float(float value)
{
    uint32_t bits = xep_bits_of_float(value), magnitude = bits & 0x7fffffff;
    uint8_t sign = (uint8_t)(bits >> 28 & 8);
    if (magnitude >= 0x40c00000) return sign | 7;
    if (magnitude < 0x3f800000) /* below 1: 2^22 has the weight of e2m1's last place, 2^-1, the sum rounds to it */
        return (uint8_t)(sign |
                         (xep_bits_of_float(xep_float_of_bits(magnitude) + 0x1p22f) - xep_bits_of_float(0x1p22f)));
    return (uint8_t)(sign | ((magnitude - (126u << 23) + 0x1fffff + ((magnitude >> 22) & 1)) >> 22));
}

XEP_FLOATS_INLINE float xep_float_of_e4m3(uint8_t code)
{
    uint32_t magnitude = code & 0x7f;
    if (magnitude == 0x7f) return xep_float_of_bits(0x7fc00000);
    if (magnitude < 8) return (float)magnitude * (code & 0x80 ? -0x1p-9f : 0x1p-9f);
    return xep_float_of_bits((uint32_t)(code & 0x80) << 24 | ((magnitude << 20) + (120u << 23)));
}

#endif
