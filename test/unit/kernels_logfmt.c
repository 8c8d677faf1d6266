/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of plugins/kernels/logfmt.c against the codec of the oracle. */
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "logfmt.h"
#include "oracle_cast.h"
#include "unit.h"

enum { MOST = 7168 };

static void check_kernel(xep_simd_t simd, const uint16_t *row, size_t channels, int *most_code)
{
    static uint32_t coded[MOST];
    static uint16_t got[MOST + 8], expected[MOST];
    const xep_logfmt_t logfmt = xep_logfmt_select(simd);
    size_t bytes = oracle_logfmt_journey(row, channels, expected, most_code);
    memset(coded, 0xa5, sizeof coded);
    memset(got, 0xa5, sizeof got);
    assert_int_equal(logfmt.encode(coded, row, channels), bytes);
    assert_int_equal(xep_logfmt_bytes(coded, channels), bytes);
    assert_true(bytes <= xep_logfmt_room(channels));
    assert_int_equal(((unsigned char *)coded)[bytes], 0xa5);
    logfmt.decode(got, coded, channels);
    for (size_t i = 0; i < channels; i++)
        if (got[i] != expected[i])
            fail_msg("channel %zu of %zu: %#x arrived as %#x, expected %#x", i, channels, row[i], got[i], expected[i]);
    assert_int_equal(got[channels], 0xa5a5);
}

static void check(const uint16_t *row, size_t channels, int *most_code)
{
    for (xep_simd_t simd = XEP_SIMD_SCALAR; simd <= xep_cpu_simd(); simd++)
        check_kernel(simd, row, channels, most_code);
}

/* ---- tests ---- */

/* magnitudes below 1, spread over so many powers of two */
static void fill(uint16_t *row, size_t channels, uint64_t *random, unsigned powers)
{
    for (size_t i = 0; i < channels; i++) {
        unsigned exponent = 126 - unit_random(random) % powers;
        row[i] = (uint16_t)((unit_random(random) & 0x807f) | exponent << 7);
    }
}

TEST(rows_of_every_length)
{
    static uint16_t row[MOST];
    uint64_t random = 11;
    int most = 0;
    for (size_t channels = 1; channels < 1200; channels += channels < 70 ? 1 : 61) {
        fill(row, channels, &random, 1 + unit_random(&random) % 60);
        check(row, channels, &most);
    }
    for (unsigned powers = 1; powers < 60; powers++) {
        fill(row, MOST, &random, powers);
        check(row, powers % 2 ? 2880 : MOST, &most);
    }
    assert_int_equal(most, 511); /* the largest of a group has the last code */
}

/* all patterns there are, those of a group with one that makes it unfit, too */
TEST(every_pattern)
{
    static uint16_t row[512];
    int most = 0;
    for (uint32_t base = 0; base < 65536; base += 512) {
        for (uint32_t i = 0; i < 512; i++) row[i] = (uint16_t)(base + i);
        check(row, 512, &most);
        for (uint32_t i = 0; i < 512; i++) row[i] = i % 4 ? (uint16_t)(base + i) & 0xbf7f : (uint16_t)(0x3000 + i);
        check(row, 512, &most);
    }
}

TEST(zeros_and_ones_stay)
{
    uint16_t row[512] = {0};
    int most = 0;
    check(row, 512, &most);
    for (int i = 0; i < 512; i++) row[i] = 0x3f00; /* no span */
    check(row, 512, &most);
    row[7] = 0x3f80; /* 1 */
    check(row, 512, &most);
    assert_int_equal(most, 0);
}

/* a head that nobody wrote makes no read beyond the room (a sanitizer sees it) */
TEST(any_head_is_safe)
{
    uint64_t random = 5;
    for (int round = 0; round < 300; round++) {
        size_t channels = 1 + unit_random(&random) % 1100, room = xep_logfmt_room(channels);
        uint16_t *row = malloc(channels * 2), *coded = malloc((room + 3) / 4 * 4);
        for (size_t i = 0; i < (room + 3) / 4 * 2; i++)
            coded[i] = (uint16_t)unit_random(&random) & (round % 2 ? 0x3fff : 0xffff);
        assert_true(xep_logfmt_bytes(coded, channels) <= room);
        for (xep_simd_t simd = XEP_SIMD_SCALAR; simd <= xep_cpu_simd(); simd++)
            xep_logfmt_select(simd).decode(row, coded, channels);
        free(row);
        free(coded);
    }
}
