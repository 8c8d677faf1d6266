/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of sums and copies of rows, plugins/kernels/weigh.c and copy.c: every kernel against the oracle's sums. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "cpu.h"
#include "oracle_number.h"
#include "unit.h"
#include "weigh.h"

enum { ALL = 65536, MOST = 1100, ROWS = 11, MOST_SKEW = 40 };

static const xep_dtype_t dtypes[] = {XEP_BF16, XEP_FP16, XEP_FP32};

static uint64_t random_state = 5;

static uint32_t below(uint32_t n)
{
    return unit_random(&random_state) % n;
}

/* ---- sums ---- */

static void sum_slowly(xep_dtype_t dtype, void *out, const void *const *rows, const float *weights, size_t n,
                       uint32_t elems)
{
    static float sum[ALL];
    memset(sum, 0, elems * sizeof *sum);
    for (size_t r = 0; r < n; r++)
        if (weights == NULL) oracle_row_add(sum, rows[r], dtype, elems);
        else oracle_row_add_weighted(sum, weights[r], rows[r], dtype, elems);
    oracle_row_round(out, sum, dtype, elems);
}

/*
 * All kernels, cached and streaming, aligned and not, with rows or sums to fetch behind these and without, must give
 * the bits of the oracle and write nothing else. The scalar kernels are the same for all of that, and slow: once, not
 * aligned.
 */
static void check_sum(xep_dtype_t dtype, const void *const *rows, const float *weights, size_t n, uint32_t elems)
{
    static _Alignas(64) uint8_t expected[ALL * 4], room[64 + (ALL + MOST_SKEW) * 4 + 1];
    const size_t more[] = {0, elems & 1 ? n : XEP_WEIGH_GOES_ON};
    const size_t size = oracle_element_bytes(dtype), bytes = elems * size;
    sum_slowly(dtype, expected, rows, weights, n, elems);
    for (xep_simd_t simd = XEP_SIMD_SCALAR; simd <= xep_cpu_simd(); simd++)
        for (int way = simd == XEP_SIMD_SCALAR; way < (simd == XEP_SIMD_SCALAR ? 2 : 8); way++) {
            uint8_t *to = room + 64 + (way & 1 ? size * below(MOST_SKEW) : 0);
            memset(to - 64, 0xa5, bytes + 65);
            xep_weigh_select(dtype, simd, way >> 1 & 1)(to, rows, weights, n, more[way >> 2], elems);
            xep_stores_fence();
            if (memcmp(to, expected, bytes) != 0)
                fail_msg("%s: dtype %d, %zu rows of %u: other numbers", xep_cpu_simd_name(simd), dtype, n, elems);
            assert_int_equal(to[-1], 0xa5);
            assert_int_equal(to[bytes], 0xa5);
        }
}

/* Every value there is, alone and with every kind of partner; weights of 1 change nothing. */
TEST(every_half)
{
    static const uint16_t partners[] = {0x0000, 0x8000, 0x0001, 0x7fff, 0x7f80, 0xff80,
                                        0x7c00, 0xfc00, 0x3c00, 0x3f80, 0xffff};
    static const float ones[] = {1, 1};
    static uint16_t all[ALL], partner[ALL];
    const void *rows[] = {all, partner, all, partner};
    for (uint32_t i = 0; i < ALL; i++) all[i] = (uint16_t)i;
    for (size_t d = 0; d < 2; d++)
        for (size_t p = 0; p <= sizeof partners / sizeof partners[0]; p += unit_step()) {
            for (uint32_t i = 0; i < ALL && p > 0; i++) partner[i] = partners[p - 1];
            check_sum(dtypes[d], rows, NULL, p > 0 ? 2 : 1, ALL);
            check_sum(dtypes[d], rows, ones, p > 0 ? 2 : 1, ALL);
        }
}

/* Any bits, Inf and NaN among them, or numbers that are of about the same size, so that their sums are rounded. */
static void fill(xep_dtype_t dtype, void *row, uint32_t elems, int any_bits)
{
    for (uint32_t i = 0; i < elems; i++) {
        uint32_t bits = unit_random(&random_state);
        float value = ldexpf((float)(int32_t)unit_random(&random_state), (int)(bits % 16) - 39);
        if (dtype == XEP_FP32) memcpy((float *)row + i, any_bits ? (void *)&bits : (void *)&value, sizeof value);
        else if (any_bits) ((uint16_t *)row)[i] = (uint16_t)bits;
        else oracle_row_round((uint16_t *)row + i, &value, dtype, 1);
    }
}

/* The rows begin at any element. */
TEST(every_length_and_count)
{
    static float data[ROWS][MOST + MOST_SKEW];
    const void *rows[2 * ROWS];
    float weights[ROWS];
    for (uint32_t turn = 0; turn < 4; turn += unit_step())
        for (size_t d = 0; d < 3; d++) {
            for (size_t r = 0; r < ROWS; r++) {
                fill(dtypes[d], data[r], MOST + MOST_SKEW, turn & 1);
                rows[r] = rows[ROWS + r] = (char *)data[r] + below(MOST_SKEW) * oracle_element_bytes(dtypes[d]);
                weights[r] = (float)(int32_t)unit_random(&random_state) / 0x1p30f;
            }
            for (size_t n = 0; n <= ROWS; n++)
                for (uint32_t elems = 1; elems < MOST; elems += elems < 140 ? 1 : 157)
                    check_sum(dtypes[d], rows, turn & 2 ? weights : NULL, n, elems);
        }
}

/* Any bits, from any element on; nothing is rounded, and nothing else is written. */
TEST(wide_sums_of_bf16)
{
    static uint16_t data[ROWS][MOST];
    static float expected[MOST], out[MOST + 2];
    const void *rows[ROWS];
    for (size_t r = 0; r < ROWS; r++) {
        fill(XEP_BF16, data[r], MOST, 1);
        rows[r] = data[r];
    }
    for (size_t n = 0; n <= ROWS; n++)
        for (uint32_t elems = 1; elems < MOST; elems += elems < 70 ? 1 : 157) {
            static float sum[MOST];
            memset(sum, 0, sizeof sum);
            for (size_t r = 0; r < n; r++) oracle_row_add(sum, rows[r], XEP_BF16, elems);
            oracle_row_round(expected, sum, XEP_FP32, elems);
            for (xep_simd_t simd = XEP_SIMD_SCALAR; simd <= xep_cpu_simd(); simd++) {
                memset(out, 0xa5, sizeof out);
                xep_weigh_select_wide(simd)(out + 1, rows, n, elems);
                if (memcmp(out + 1, expected, elems * sizeof *out) != 0)
                    fail_msg("%s: %zu rows of %u: other numbers", xep_cpu_simd_name(simd), n, elems);
                assert_int_equal(((uint8_t *)out)[3], 0xa5);
                assert_int_equal(((uint8_t *)(out + 1 + elems))[0], 0xa5);
            }
        }
}

/* ---- copies ---- */

static void copy_once(xep_copy_fn copy, size_t to, size_t from, size_t bytes)
{
    static _Alignas(64) unsigned char room[4096];
    unsigned char *src = malloc(from + bytes + 1);
    for (size_t i = 0; i < bytes; i++) src[from + i] = (unsigned char)below(256);
    memset(room, 0xa5, sizeof room);
    copy(room + 64 + to, src + from, bytes, src + from);
    xep_stores_fence();
    assert_memory_equal(room + 64 + to, src + from, bytes);
    for (size_t i = 0; i < sizeof room; i++)
        if (i < 64 + to || i >= 64 + to + bytes) assert_int_equal(room[i], 0xa5);
    free(src);
}

TEST(every_length_is_copied)
{
    for (int simd = XEP_SIMD_SCALAR; simd <= (int)xep_cpu_simd(); simd++)
        for (int streaming = 0; streaming < 2; streaming++)
            for (size_t bytes = 0; bytes < 1500; bytes += bytes < 300 ? 1 : 17) {
                copy_once(xep_copy_select((xep_simd_t)simd, streaming), 0, below(64), bytes);
                copy_once(xep_copy_select((xep_simd_t)simd, streaming), below(64), below(64), bytes);
                copy_once(xep_copy_select_fetching((xep_simd_t)simd), below(64), below(64), bytes);
            }
}
