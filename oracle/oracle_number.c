/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Conversions by the definition of the types, one number at a time, with no instruction that does it: what the vector
 * kernels are compared with.
 */
#include "oracle_number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

size_t oracle_element_bytes(xep_dtype_t dtype)
{
#define BYTES(_name, _value, _bytes, _text) [_name] = (_bytes),
    static const size_t bytes[] = {XEP_DTYPE_LIST(BYTES)};
#undef BYTES

    return bytes[dtype];
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

float oracle_bf16_to_float(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

/*
 * Half of the last place minus one is added, and one more where the last bit is odd: ties go to even. The sum may carry
 * into the exponent, and from there to infinity, which is right both times.
 */
uint16_t oracle_float_to_bf16(float value)
{
    const uint32_t bits = bits_of(value);

    if (isnan(value)) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Numbers below the least normal have no hidden bit: they are multiples of 2^-24. A zero keeps its sign. */
float oracle_fp16_to_float(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    const float tiny = (float)fraction * 0x1p-24f;

    if (exponent == 31) return float_of(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) return sign ? -tiny : tiny;
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t oracle_float_to_fp16(float value)
{
    const uint32_t bits = bits_of(value);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;

    if (isnan(value)) return 0x7e00;
    if (magnitude >= 0x477ff000) return sign | 0x7c00; /* 65520 and above round to infinity */
    if (magnitude < 0x38800000)                        /* below the least normal, 2^-14: a multiple of 2^-24 */
        return (uint16_t)(sign | (uint16_t)rintf(fabsf(value) * 0x1p24f));
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

void oracle_row_add(float *sum, const void *row, xep_dtype_t dtype, uint32_t hidden)
{
    const uint16_t *halves = row;
    const float *floats = row;

    if (dtype == XEP_BF16)
        for (uint32_t h = 0; h < hidden; h++) sum[h] += oracle_bf16_to_float(halves[h]);
    else if (dtype == XEP_FP16)
        for (uint32_t h = 0; h < hidden; h++) sum[h] += oracle_fp16_to_float(halves[h]);
    else
        for (uint32_t h = 0; h < hidden; h++) sum[h] += floats[h];
}

float oracle_element(const void *row, xep_dtype_t dtype, uint32_t h)
{
    if (dtype == XEP_FP32) return ((const float *)row)[h];
    return dtype == XEP_BF16 ? oracle_bf16_to_float(((const uint16_t *)row)[h])
                             : oracle_fp16_to_float(((const uint16_t *)row)[h]);
}

static inline __attribute__((always_inline)) void add_weighted(float *sum, float weight, const void *row,
                                                               xep_dtype_t dtype, uint32_t hidden)
{
    const uint16_t *halves = row;
    const float *floats = row;

    if (dtype == XEP_BF16)
        for (uint32_t h = 0; h < hidden; h++) sum[h] = fmaf(weight, float_of((uint32_t)halves[h] << 16), sum[h]);
    else if (dtype == XEP_FP16)
        for (uint32_t h = 0; h < hidden; h++) sum[h] = fmaf(weight, oracle_fp16_to_float(halves[h]), sum[h]);
    else
        for (uint32_t h = 0; h < hidden; h++) sum[h] = fmaf(weight, floats[h], sum[h]);
}

/*
 * fmaf() as the instruction that it is on nearly every machine, not as a call for each number: that call was most of
 * what the tests of sums took.
 */
#if defined(__x86_64__)
__attribute__((target("fma"))) static void add_weighted_fma(float *sum, float weight, const void *row,
                                                            xep_dtype_t dtype, uint32_t hidden)
{
    add_weighted(sum, weight, row, dtype, hidden);
}
#endif

void oracle_row_add_weighted(float *sum, float weight, const void *row, xep_dtype_t dtype, uint32_t hidden)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("fma")) {
        add_weighted_fma(sum, weight, row, dtype, hidden);
        return;
    }
#endif
    add_weighted(sum, weight, row, dtype, hidden);
}

/* e4m3 has no infinity: what is too large becomes the largest number, an infinity as well. */
uint8_t oracle_float_to_e4m3(float value)
{
    const uint8_t sign = signbit(value) ? 0x80 : 0;
    const float magnitude = fabsf(value);

    if (isnan(value)) return 0x7f;
    if (magnitude > 448.0f) return sign | 0x7e;
    if (magnitude < 0x1p-6f) return (uint8_t)(sign | (uint8_t)rintf(magnitude * 512.0f)); /* multiples of 2^-9 */
    const uint32_t bits = bits_of(magnitude);
    return (uint8_t)(sign | ((bits - (120u << 23) + 0x7ffff + (bits >> 20 & 1)) >> 20));
}

/* fp32 is rounded nowhere, but its NaN is made the one pattern as well. */
void oracle_row_round(void *row, const float *sum, xep_dtype_t dtype, uint32_t hidden)
{
    uint16_t *halves = row;
    float *floats = row;

    if (dtype == XEP_BF16)
        for (uint32_t h = 0; h < hidden; h++) halves[h] = oracle_float_to_bf16(sum[h]);
    else if (dtype == XEP_FP16)
        for (uint32_t h = 0; h < hidden; h++) halves[h] = oracle_float_to_fp16(sum[h]);
    else
        for (uint32_t h = 0; h < hidden; h++) floats[h] = isnan(sum[h]) ? float_of(0x7fc00000) : sum[h];
}

/* The bits always, the value where the type has one that says more: what differs may be in the last bit alone. */
void oracle_element_text(const void *row, uint32_t at, xep_dtype_t dtype, char *text, size_t bytes)
{
    const size_t size = oracle_element_bytes(dtype);
    uint64_t bits = 0;
    float value;
    int used;

    for (size_t i = 0; i < size; i++) bits |= (uint64_t)((const uint8_t *)row)[at * size + i] << 8 * i;
    used = snprintf(text, bytes, "0x%0*" PRIx64, (int)size * 2, bits);
    if (dtype != XEP_BF16 && dtype != XEP_FP16 && dtype != XEP_FP32) return;
    value = dtype == XEP_BF16   ? oracle_bf16_to_float((uint16_t)bits)
            : dtype == XEP_FP16 ? oracle_fp16_to_float((uint16_t)bits)
                                : float_of((uint32_t)bits);
    if (used > 0 && (size_t)used < bytes) snprintf(text + used, bytes - (size_t)used, " (%g)", (double)value);
}
