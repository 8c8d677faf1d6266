/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Copies, and sums of rows without weights: scalar against arithmetic done another way, the others bit for bit against
 * scalar.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "cpu.h"
#include "unit.h"
#include "weigh.h"

enum { ALL = 65536, MOST_ROWS = 11 };

static uint64_t random_state = 1;

static uint64_t random_next(void)
{
    uint64_t x = random_state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static size_t elem_bytes(xep_dtype_t dtype)
{
    return dtype == XEP_FP32 ? 4 : 2;
}

/* ---- arithmetic from the definition of the formats ---- */

static double half_value(xep_dtype_t dtype, uint16_t bits)
{
    int fbits = dtype == XEP_BF16 ? 7 : 10, bias = dtype == XEP_BF16 ? 127 : 15, most = dtype == XEP_BF16 ? 255 : 31;
    int exponent = (bits & 0x7fff) >> fbits, fraction = bits & ((1 << fbits) - 1);
    double value = exponent == most ? (fraction ? NAN : INFINITY)
                   : exponent       ? ldexp(fraction + (1 << fbits), exponent - bias - fbits)
                                    : ldexp(fraction, 1 - bias - fbits);
    return bits & 0x8000 ? -value : value;
}

/* Of the values of the format the nearest, of two the even one, found by looking at both neighbours. */
static uint16_t half_nearest(xep_dtype_t dtype, float value)
{
    uint16_t infinity = dtype == XEP_BF16 ? 0x7f80 : 0x7c00, low = 0, high = infinity,
             sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs((double)value), beyond = dtype == XEP_BF16 ? 0x1p128 : 0x1p16, above;
    if (isnan(value)) return dtype == XEP_BF16 ? 0x7fc0 : 0x7e00;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (half_value(dtype, middle) <= magnitude) low = middle;
        else high = middle;
    }
    above = high == infinity ? beyond : half_value(dtype, high);
    if (magnitude - half_value(dtype, low) > above - magnitude) return sign | high;
    if (magnitude - half_value(dtype, low) == above - magnitude) return sign | (low % 2 ? high : low);
    return sign | low;
}

static void sum_slowly(xep_dtype_t dtype, void *out, const void *const *rows, size_t n, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        volatile float sum = 0; /* each step rounded to fp32 */
        for (size_t j = 0; j < n; j++)
            sum = sum + (dtype == XEP_FP32 ? ((const float *)rows[j])[i]
                                           : (float)half_value(dtype, ((const uint16_t *)rows[j])[i]));
        uint32_t nan = 0x7fc00000;
        if (dtype != XEP_FP32) ((uint16_t *)out)[i] = half_nearest(dtype, sum);
        else memcpy((float *)out + i, isnan(sum) ? (void *)&nan : (void *)&sum, sizeof nan);
    }
}

/* ---- sums ---- */

/* All kernels against one result, without weights and with those that change nothing; out is 64-byte aligned. */
static void check_all(xep_dtype_t dtype, const void *const *rows, size_t n, size_t elems, const void *want)
{
    size_t bytes = elems * elem_bytes(dtype);
    char *out = aligned_alloc(64, (bytes + 127) / 64 * 64);
    static const float ones[MOST_ROWS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int simd = XEP_SIMD_SCALAR; simd <= (int)xep_cpu_simd(); simd++)
        for (int way = 0; way < 4; way++) {
            memset(out, 0xa5, (bytes + 127) / 64 * 64);
            xep_weigh_select(dtype, (xep_simd_t)simd, way & 1)(out, rows, way & 2 ? ones : NULL, n, 0, elems);
            xep_stores_fence();
            assert_memory_equal(out, want, bytes);
            for (size_t i = bytes; i < (bytes + 127) / 64 * 64; i++) assert_int_equal((unsigned char)out[i], 0xa5);
        }
    free(out);
}

/* Every value there is, alone and with every kind of partner. */
TEST(test_all_halves)
{
    static const uint32_t partners[] = {0x0000, 0x8000, 0x0001, 0x7fff, 0x7f80, 0xff80,
                                        0x7c00, 0xfc00, 0x3c00, 0x3f80, 0xffff};
    static uint16_t all[ALL], partner[ALL], want[ALL];
    const void *rows[2] = {all, partner};
    for (uint32_t i = 0; i < ALL; i++) all[i] = (uint16_t)i;
    for (xep_dtype_t dtype = XEP_BF16; dtype <= XEP_FP16; dtype++)
        for (size_t p = 0; p <= sizeof partners / sizeof partners[0]; p++) {
            for (uint32_t i = 0; i < ALL && p; i++) partner[i] = (uint16_t)partners[p - 1];
            sum_slowly(dtype, want, rows, p ? 2 : 1, ALL);
            check_all(dtype, rows, p ? 2 : 1, ALL, want);
        }
}

static void fill_random(xep_dtype_t dtype, void *row, size_t elems, int any_bits)
{
    for (size_t i = 0; i < elems; i++) {
        uint64_t bits = random_next();
        float value = (float)ldexp((double)(int64_t)bits, -63 + (int)(bits % 16) - 8);
        uint16_t half = any_bits            ? (uint16_t)bits
                        : dtype == XEP_BF16 ? half_nearest(dtype, value)
                                            : half_nearest(XEP_FP16, value);
        if (dtype == XEP_FP32) memcpy((float *)row + i, any_bits ? (void *)&bits : (void *)&value, 4);
        else ((uint16_t *)row)[i] = half;
    }
}

/* So many rows, at addresses of any alignment, with a tail of any length. */
static void sums_random(xep_dtype_t dtype, size_t n, size_t elems, int any_bits)
{
    char *memory[MOST_ROWS];
    const void *rows[MOST_ROWS];
    size_t bytes = elems * elem_bytes(dtype);
    char *want = malloc(bytes + 1);
    for (size_t j = 0; j < n; j++) {
        size_t skew = random_next() % 8 * elem_bytes(dtype);
        memory[j] = malloc(bytes + skew + 1);
        rows[j] = memory[j] + skew;
        fill_random(dtype, memory[j] + skew, elems, any_bits);
    }
    sum_slowly(dtype, want, rows, n, elems);
    check_all(dtype, rows, n, elems, want);
    for (size_t j = 0; j < n; j++) free(memory[j]);
    free(want);
}

TEST(test_random_sums)
{
    for (xep_dtype_t dtype = XEP_BF16; dtype <= XEP_FP32; dtype++)
        for (size_t n = 0; n < MOST_ROWS; n++)
            for (int turn = 0; turn < 40; turn++) sums_random(dtype, n, random_next() % 300, turn % 2);
}

TEST(test_unaligned_out)
{
    uint16_t row[500], want[500], room[600];
    const void *rows[] = {row, row};
    fill_random(XEP_BF16, row, 500, 0);
    sum_slowly(XEP_BF16, want, rows, 2, 500);
    for (size_t at = 0; at < 40; at++)
        for (int simd = XEP_SIMD_SCALAR; simd <= (int)xep_cpu_simd(); simd++) {
            memset(room, 0xa5, sizeof room);
            xep_weigh_select(XEP_BF16, (xep_simd_t)simd, 1)(room + at, rows, NULL, 2, 0, 500);
            xep_stores_fence();
            assert_memory_equal(room + at, want, sizeof want);
            for (size_t i = 0; i < 600; i++)
                if (i < at || i >= at + 500) assert_int_equal(room[i], 0xa5a5);
        }
}

/* ---- copies ---- */

static void copy_once(xep_copy_fn copy, size_t to, size_t from, size_t bytes)
{
    static _Alignas(64) unsigned char room[4096];
    unsigned char *src = malloc(from + bytes + 1);
    for (size_t i = 0; i < bytes; i++) src[from + i] = (unsigned char)random_next();
    memset(room, 0xa5, sizeof room);
    copy(room + 64 + to, src + from, bytes, src + from);
    xep_stores_fence();
    assert_memory_equal(room + 64 + to, src + from, bytes);
    for (size_t i = 0; i < sizeof room; i++)
        if (i < 64 + to || i >= 64 + to + bytes) assert_int_equal(room[i], 0xa5);
    free(src);
}

TEST(test_copies)
{
    for (int simd = XEP_SIMD_SCALAR; simd <= (int)xep_cpu_simd(); simd++)
        for (int streaming = 0; streaming < 2; streaming++)
            for (size_t bytes = 0; bytes < 1500; bytes += bytes < 300 ? 1 : 17) {
                copy_once(xep_copy_select((xep_simd_t)simd, streaming), 0, random_next() % 64, bytes);
                copy_once(xep_copy_select((xep_simd_t)simd, streaming), random_next() % 64, random_next() % 64, bytes);
            }
}
