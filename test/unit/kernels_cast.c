/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Unit test of plugins/kernels/cast.c: every bf16 and fp16 input at several amax, fp32 samples, odd lengths,
 * against a reference that looks e4m3 up in a table of its values; and every kernel against the scalar one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cast_table.h"
#include "cpu.h"
#include "unit.h"

enum { GROUP = 128, MOST = 7168 };

/* ---- the reference ---- */

static double e4m3_value[127]; /* of codes 0 .. 0x7e, ascending */

void unit_before_each(void)
{
    for (int code = 0; code < 127; code++) {
        int exponent = code >> 3, fraction = code & 7;
        e4m3_value[code] = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
    }
}

/* the nearest code, the even one of two as near, by looking at all */
static uint8_t e4m3_of(float value)
{
    double magnitude = fabs((double)value);
    int best = 0;
    if (isnan(value)) return 0x7f;
    for (int code = 1; code < 127; code++) {
        double now = fabs(e4m3_value[code] - magnitude), before = fabs(e4m3_value[best] - magnitude);
        if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    return (uint8_t)(best | (signbit(value) ? 0x80 : 0));
}

static float bf16_value(uint16_t bits)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)bits << 16};
    return v.f;
}

static float fp16_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float sign = bits >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * ldexpf((float)(exponent ? 1024 + fraction : fraction), (exponent ? exponent : 1) - 25);
}

static float value_at(xep_dtype_t dtype, const void *x, size_t i)
{
    if (dtype == XEP_FP32) return ((const float *)x)[i];
    uint16_t bits = ((const uint16_t *)x)[i];
    return dtype == XEP_BF16 ? bf16_value(bits) : fp16_value(bits);
}

static void cast_by_table(xep_dtype_t dtype, uint8_t *q, float *scale, const void *x, size_t elems, int pow2)
{
    float amax = 1e-4f, factor;
    for (size_t i = 0; i < elems; i++)
        if (isgreater(fabsf(value_at(dtype, x, i)), amax))
            amax = fabsf(value_at(dtype, x, i)); /* a NaN does not count */
    if (pow2) {
        int e = -200;
        while (e < 200 && ldexp(448.0, e) < (double)amax) e++; /* the least power not below amax / 448 */
        *scale = isinf(amax) ? INFINITY : ldexpf(1, e);
        factor = isinf(amax) ? 0 : ldexpf(1, -e);
    } else {
        *scale = amax * (1.0f / 448.0f);
        factor = isinf(amax) ? 0 : 448.0f / amax;
    }
    for (size_t i = 0; i < elems; i++) q[i] = e4m3_of(value_at(dtype, x, i) * factor);
}

/* ---- tests ---- */

static size_t bytes_of(xep_dtype_t dtype)
{
    return dtype == XEP_FP32 ? 4 : 2;
}

static int type_of(xep_dtype_t dtype)
{
    return dtype == XEP_BF16 ? XEP_CAST_BF16 : dtype == XEP_FP16 ? XEP_CAST_FP16 : XEP_CAST_FP32;
}

/* every kernel of this CPU; q and scales of the first are compared with expectations by the caller */
static void cast_all(xep_dtype_t dtype, uint8_t *q, float *scales, const void *x, size_t elems, int pow2)
{
    static uint8_t other[MOST + 64];
    static float other_scales[MOST / GROUP + 2];
    xep_cast_groups_by(type_of(dtype), XEP_SIMD_SCALAR)(q, scales, x, elems, pow2, x);
    for (xep_simd_t simd = XEP_SIMD_AVX2; simd <= xep_cpu_simd(); simd++) {
        memset(other, 0xa5, sizeof other);
        memset(other_scales, 0xa5, sizeof other_scales);
        xep_cast_groups_by(type_of(dtype), simd)(other, other_scales, x, elems, pow2, x);
        if (memcmp(other, q, elems) != 0 || memcmp(other_scales, scales, xep_cast_groups(elems) * 4) != 0)
            fail_msg("%s differs from scalar: dtype %d, %zu elements, pow2 %d", xep_cpu_simd_name(simd), dtype, elems,
                     pow2);
        assert_int_equal(other[elems], 0xa5);
        uint32_t guard;
        memcpy(&guard, &other_scales[xep_cast_groups(elems)], sizeof guard);
        assert_int_equal(guard, 0xa5a5a5a5);
    }
}

static void check_row(xep_dtype_t dtype, const void *x, size_t elems, int pow2)
{
    static uint8_t q[MOST], expected[MOST];
    static float scales[MOST / GROUP + 1], expected_scales[MOST / GROUP + 1];
    cast_all(dtype, q, scales, x, elems, pow2);
    for (size_t i = 0, g = 0; i < elems; i += GROUP, g++) {
        size_t n = elems - i < GROUP ? elems - i : GROUP;
        cast_by_table(dtype, expected + i, &expected_scales[g], (const char *)x + i * bytes_of(dtype), n, pow2);
        assert_memory_equal(&scales[g], &expected_scales[g], 4);
        for (size_t j = i; j < i + n; j++)
            if (q[j] != expected[j])
                fail_msg("dtype %d pow2 %d: element %zu (%g, scale %g) is %#x, expected %#x", dtype, pow2, j,
                         (double)value_at(dtype, x, j), (double)scales[g], q[j], expected[j]);
    }
}

/* All 65,536 patterns, 127 to a group, the last element sets the least amax of the group. */
static void every_half(xep_dtype_t dtype, const uint16_t *amax, size_t namax)
{
    uint16_t x[GROUP];
    for (size_t a = 0; a < namax; a++)
        for (uint32_t bits = 0; bits < 65536; bits += GROUP - 1) {
            for (uint32_t i = 0; i < GROUP - 1; i++) {
                uint16_t value = (uint16_t)(bits + i), magnitude = value & 0x7fff;
                /* larger than this amax: once is enough, in the round of the greatest */
                x[i] = magnitude > amax[a] && a + 1 < namax ? (uint16_t)(value & 0x8000) : value;
            }
            x[GROUP - 1] = amax[a];
            check_row(dtype, x, GROUP, 0);
            check_row(dtype, x, GROUP, 1);
        }
}

TEST(every_bf16)
{
    /* 0, 1e-4 or so, 0.7, 1, 3.5 (= 448 / 128), just above, 448, 1e4, the greatest number */
    static const uint16_t amax[] = {0, 0x38d1, 0x38d2, 0x3f33, 0x3f80, 0x4060, 0x4061, 0x43e0, 0x461c, 0x7f7f};
    every_half(XEP_BF16, amax, sizeof amax / sizeof *amax);
}

/* The table, worked out again; what kernels make of it is every_pair_of_fractions(). */
TEST(table)
{
    for (uint32_t row = 0; row < XEP_CAST_ROWS; row++)
        for (uint32_t fraction = 0; fraction < XEP_CAST_FRACTIONS; fraction++) {
            const uint16_t half = (uint16_t)(126 << 7 | fraction); /* with exponent 126, so that all are below amax */
            const float factor = row == XEP_CAST_POW2 ? 256.0f : 448.0f / bf16_value((uint16_t)(127 << 7 | row));
            const uint8_t step = xep_cast_codes[row].steps[fraction / 8];
            assert_int_equal(xep_cast_codes[row].first + (step >> 4) + (fraction % 8 > (step & 7)),
                             e4m3_of(bf16_value(half) * factor) + 8);
        }
}

/* Every fraction with every fraction of amax, at every distance at which there is a code, and at two beyond. */
TEST(every_pair_of_fractions)
{
    enum { DISTANCES = 22 };
    static uint16_t x[DISTANCES * GROUP];
    for (uint32_t base = 118; base <= 254;
         base += 136) /* of amax: the least that counts and a bit more, the greatest */
        for (uint32_t most = 0; most < 128; most++) {
            for (uint32_t d = 0; d < DISTANCES; d++)
                for (uint32_t i = 0; i < GROUP; i++) { /* amax itself is in every group, in place of what is above it */
                    int fits = i < 127 && (d > 0 || i <= most);
                    x[d * GROUP + i] = (uint16_t)(fits ? (base - d) << 7 | i : base << 7 | most);
                    if ((i + d) % 3 == 0) x[d * GROUP + i] |= 0x8000;
                }
            check_row(XEP_BF16, x, DISTANCES * GROUP, 0);
            check_row(XEP_BF16, x, DISTANCES * GROUP, 1);
        }
}

TEST(every_fp16)
{
    static const uint16_t amax[] = {0, 0x068d, 0x068e, 0x3c00, 0x4300, 0x4301, 0x5f00, 0x7bff};
    every_half(XEP_FP16, amax, sizeof amax / sizeof *amax);
}

TEST(fp32_samples)
{
    static const float amax[] = {1e-5f, 1e-4f, 3.5f, 448.0f, 1e30f, 3e38f};
    uint64_t random = 7;
    float x[GROUP];
    for (size_t a = 0; a < sizeof amax / sizeof *amax; a++)
        for (int round = 0; round < 200; round++) {
            for (int i = 0; i < GROUP; i++) {
                int shift = (int)(unit_random(&random) % 24);
                x[i] = ldexpf((float)(int32_t)unit_random(&random) / 0x1p31f, -shift) * amax[a];
            }
            /* an exact power of two times 448, and one place above and below it */
            x[3] = round % 3 == 0 ? amax[a] : nextafterf(amax[a], round % 3 == 1 ? INFINITY : 0);
            check_row(XEP_FP32, x, GROUP, round & 1);
        }
}

/* exact halves between two codes, and the numbers beside them */
TEST(ties)
{
    float x[GROUP] = {448.0f};
    for (int code = 0; code < 126; code++) {
        float middle = (float)((e4m3_value[code] + e4m3_value[code + 1]) / 2);
        x[1] = middle, x[2] = nextafterf(middle, 0), x[3] = nextafterf(middle, 1000), x[4] = -middle;
        check_row(XEP_FP32, x, GROUP, 0);
        check_row(XEP_FP32, x, GROUP, 1);
    }
}

TEST(not_finite)
{
    uint16_t x[GROUP];
    uint8_t q[GROUP];
    float scale;
    for (int i = 0; i < GROUP; i++) x[i] = 0x3f80;
    x[5] = 0x7fc1, x[6] = 0xffc1; /* NaNs are NaNs, the others as if they were not there */
    cast_all(XEP_BF16, q, &scale, x, GROUP, 0);
    assert_int_equal(q[5], 0x7f);
    assert_int_equal(q[6], 0x7f);
    assert_int_equal(q[0], 0x7e);
    assert_true(scale == 1.0f / 448.0f);
    for (int pow2 = 0; pow2 < 2; pow2++) {
        uint32_t packed;
        x[7] = 0xff80;
        cast_all(XEP_BF16, q, &scale, x, GROUP, pow2);
        assert_true(isinf(scale));
        assert_int_equal(q[0], 0);
        assert_int_equal(q[7], 0x7f);
        xep_cast_pack_exponents(&packed, &scale, 1);
        assert_int_equal(packed, 255);
    }
}

TEST(every_length)
{
    static uint16_t x[MOST];
    uint64_t random = 3;
    for (int i = 0; i < MOST; i++) x[i] = (uint16_t)(unit_random(&random) & 0xbfff);
    for (size_t elems = 1; elems < 400; elems++) check_row(XEP_BF16, x, elems, (int)(elems & 1));
    check_row(XEP_BF16, x, 2880, 1);
    check_row(XEP_BF16, x, MOST, 0);
    check_row(XEP_BF16, x + 1, MOST - 1, 0); /* not aligned to more than an element */
}

TEST(exponents_are_packed)
{
    float scales[6] = {1, 2, 0.5f, 0x1p-22f, 4, 8};
    uint32_t packed[2];
    xep_cast_pack_exponents(packed, scales, 6);
    assert_int_equal(packed[0], 127u | 128u << 8 | 126u << 16 | 105u << 24);
    assert_int_equal(packed[1], 129u | 130u << 8);
}
