/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of plugins/kernels/weigh.c: order and rounding of sums, and every kernel against the scalar one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "cpu.h"
#include "unit.h"
#include "weigh.h"

enum { MOST = 1100, ROWS = 9 };

static const xep_dtype_t dtypes[] = {XEP_BF16, XEP_FP16, XEP_FP32};

/*
 * All kernels, cached and streaming, aligned and not, with rows to fetch behind these and without, must give the bits
 * of the scalar one and not write beyond.
 */
static void check_kernels(xep_dtype_t dtype, const void *const *rows, const float *weights, size_t n, size_t elems)
{
    static _Alignas(64) uint8_t expected[MOST * 4], out[MOST * 4 + 128];
    size_t bytes = elems * (dtype == XEP_FP32 ? 4 : 2);
    xep_weigh_select(dtype, XEP_SIMD_SCALAR, 0)(expected, rows, weights, n, 0, elems);
    for (xep_simd_t simd = XEP_SIMD_AVX2; simd <= xep_cpu_simd(); simd++)
        for (int way = 0; way < 8; way++) {
            uint8_t *to = out + (way & 1) * 4;
            size_t more = way & 4 ? n : 0;
            memset(out, 0xa5, sizeof out);
            xep_weigh_select(dtype, simd, way >> 1 & 1)(to, rows, weights, n, more, elems);
            xep_stores_fence();
            if (memcmp(to, expected, bytes) != 0)
                fail_msg("%s differs from scalar: dtype %d, %zu rows of %zu", xep_cpu_simd_name(simd), dtype, n, elems);
            assert_int_equal(to[bytes], 0xa5);
        }
}

/* random patterns: numbers of all sizes, Inf and NaN too */
TEST(every_length_and_count)
{
    static uint32_t data[ROWS][MOST];
    const void *rows[2 * ROWS];
    float weights[ROWS];
    uint64_t random = 5;
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t i = 0; i < MOST; i++) data[r][i] = unit_random(&random);
        rows[r] = rows[ROWS + r] = data[r];
        weights[r] = (float)(int32_t)unit_random(&random) / 0x1p30f;
    }
    for (size_t d = 0; d < 3; d++)
        for (size_t n = 0; n <= ROWS; n++)
            for (size_t elems = 1; elems < MOST; elems += elems < 140 ? 1 : 157)
                check_kernels(dtypes[d], rows, weights, n, elems);
}

/* fma rounds once: 1 + 2^-24 * 1.5 with a product that fp32 alone cannot hold */
TEST(sums_are_fused)
{
    float a[16], b[16], out[16], weights[2] = {1.0f, 1.0f + 0x1p-12f};
    const void *rows[2] = {a, b};
    for (int i = 0; i < 16; i++) a[i] = -1.0f, b[i] = 1.0f + 0x1p-12f;
    float expected = 0x1p-11f + 0x1p-24f;
    for (xep_simd_t simd = XEP_SIMD_SCALAR; simd <= xep_cpu_simd(); simd++) {
        xep_weigh_select(XEP_FP32, simd, 0)(out, rows, weights, 2, 0, 16);
        for (int i = 0; i < 16; i++) assert_true(out[i] == expected);
    }
}

/* first to last: (1 + 2^24) - 2^24 loses the 1 */
TEST(sums_are_in_order)
{
    float one = 1, large = 0x1p24f, out, weights[3] = {1, 1, -1};
    const void *rows[3] = {&one, &large, &large};
    one = 0.5f;
    xep_weigh_select(XEP_FP32, XEP_SIMD_SCALAR, 0)(&out, rows, weights, 3, 0, 1);
    assert_true(out == 0);
    const void *other[3] = {&large, &large, &one};
    float turned[3] = {1, -1, 1};
    xep_weigh_select(XEP_FP32, XEP_SIMD_SCALAR, 0)(&out, other, turned, 3, 0, 1);
    assert_true(out == 0.5f);
}

/* of rows that are wide where mask has a bit: every kernel gives what the rows give one by one */
static void check_mixed(xep_dtype_t dtype, const void *const *rows, unsigned mask, size_t n, size_t elems)
{
    static _Alignas(64) float widened[ROWS][MOST], sum[MOST];
    static _Alignas(64) uint8_t expected[MOST * 4], out[MOST * 4 + 8];
    const void *same[ROWS];
    uint8_t wide[ROWS];
    for (size_t r = 0; r < n; r++) {
        wide[r] = mask >> r & 1;
        same[r] = widened[r];
        xep_weigh_select_mixed(dtype, 1, XEP_SIMD_SCALAR)(widened[r], &rows[r], &wide[r], 1, elems);
    }
    xep_weigh_select(XEP_FP32, XEP_SIMD_SCALAR, 0)(sum, same, NULL, n, 0, elems);
    for (int wide_out = 0; wide_out < 2; wide_out++) {
        const void *total = sum;
        const size_t size = wide_out ? 4 : 2;
        uint8_t *to = out + size; /* aligned as its elements, no more */
        xep_weigh_select_mixed(dtype, wide_out, XEP_SIMD_SCALAR)(expected, &total, &(uint8_t){1}, 1, elems);
        for (xep_simd_t simd = XEP_SIMD_SCALAR; simd <= xep_cpu_simd(); simd++) {
            memset(out, 0xa5, sizeof out);
            xep_weigh_select_mixed(dtype, wide_out, simd)(to, rows, wide, n, elems);
            if (memcmp(to, expected, elems * size) != 0)
                fail_msg("%s: dtype %d, %zu rows of %zu, wide %#x, sums wide %d", xep_cpu_simd_name(simd), dtype, n,
                         elems, mask, wide_out);
            assert_int_equal(to[elems * size], 0xa5);
        }
    }
}

TEST(rows_of_two_types)
{
    static uint32_t data[ROWS][MOST];
    const void *rows[ROWS];
    uint64_t random = 7;
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t i = 0; i < MOST; i++) data[r][i] = unit_random(&random);
        rows[r] = data[r];
    }
    for (size_t d = 0; d < 2; d++)
        for (size_t n = 0; n <= ROWS; n++)
            for (size_t elems = 1; elems < MOST; elems += elems < 70 ? 1 : 157)
                check_mixed(dtypes[d], rows, unit_random(&random), n, elems);
}

/* 1 + 2^-8 is no bf16: one of it is rounded to 1, and three of it are 3 and 3/4 of the last place of a bf16 there */
TEST(wide_rows_are_not_rounded)
{
    float more = 1 + 0x1p-8f;
    uint16_t one = 0x3f80, out;
    const void *rows[] = {&one, &more, &more, &more};
    xep_weigh_fn cast = xep_weigh_select(XEP_BF16, XEP_SIMD_SCALAR, 0);
    xep_weigh_select_mixed(XEP_BF16, 0, XEP_SIMD_SCALAR)(&out, &rows[1], (const uint8_t[]){1}, 1, 1);
    assert_int_equal(out, one);
    xep_weigh_select_mixed(XEP_BF16, 0, XEP_SIMD_SCALAR)(&out, &rows[1], (const uint8_t[]){1, 1, 1}, 3, 1);
    assert_int_equal(out, 0x4041);
    cast(&out, (const void *const[]){&one, &one, &one}, NULL, 3, 0, 1);
    assert_int_equal(out, 0x4040);
    xep_weigh_select_mixed(XEP_BF16, 0, XEP_SIMD_SCALAR)(&out, rows, (const uint8_t[]){0, 1, 1, 1}, 4, 1);
    assert_int_equal(out, 0x4080);
}

TEST(nothing_is_zero)
{
    uint16_t out[70];
    for (xep_simd_t simd = XEP_SIMD_SCALAR; simd <= xep_cpu_simd(); simd++) {
        memset(out, 0xff, sizeof out);
        xep_weigh_select(XEP_BF16, simd, 0)(out, NULL, NULL, 0, 0, 70);
        for (int i = 0; i < 70; i++) assert_int_equal(out[i], 0);
    }
}
