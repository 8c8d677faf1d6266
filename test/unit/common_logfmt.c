/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of plugins/common/logfmt.c against a reference that codes one channel after the other by the formulas of logfmt.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "logfmt.h"

enum { MOST = 7168 };

static float value_of(uint16_t bits)
{
    union { uint32_t u; float f; } v = {.u = (uint32_t)bits << 16};
    return v.f;
}

static uint16_t bf16_of(double value)
{
    union { float f; uint32_t u; } v = {.f = (float)value};
    return (uint16_t)((v.u + 0x7fff + (v.u >> 16 & 1)) >> 16);
}

/* ---- the reference: what a row is after its journey, and how many bytes it took ---- */

static void span_of(const uint16_t *row, size_t from, size_t to, double *largest, double *smallest)
{
    *largest = 0, *smallest = INFINITY;
    for (size_t i = from; i < to; i++) {
        double magnitude = fabs((double)value_of(row[i]));
        if (isnan(magnitude)) magnitude = INFINITY;
        if (magnitude > *largest) *largest = magnitude;
        if (magnitude < *smallest) *smallest = magnitude;
    }
}

static int group_can(const uint16_t *row, size_t from, size_t to, double *low, double *high)
{
    double largest, smallest;
    span_of(row, from, to, &largest, &smallest);
    if (largest == 0 || largest >= 1) return 0;
    *high = log2(largest);
    *low = *high - 32;
    if (smallest > 0 && log2(smallest) > *low) *low = log2(smallest);
    return *low < *high;
}

static uint16_t journey(uint16_t bits, double low, double high, int *code_p)
{
    double step = (high - low) / 510, magnitude = fabs((double)value_of(bits));
    double code = magnitude == 0 ? 0 : floor(log2(magnitude) / step + 2 - log2((1 + exp2(step)) / 2) / step - low / step);
    *code_p = code < 0 ? 0 : (int)code;
    uint16_t sign = bits & 0x8000;
    return *code_p == 0 ? sign : sign | bf16_of(exp2((*code_p - 1) * step + low));
}

static size_t reference(const uint16_t *row, size_t channels, uint16_t *arrived, int *most_code)
{
    size_t chunk = channels % 1024 == 0 ? 1024 : 512, bytes = (channels + 127) / 128 * 4;
    for (size_t i = 0; i < channels; i += chunk) {
        size_t end = i + chunk < channels ? i + chunk : channels, coded = (end - i + 15) / 16 * 20;
        double low = 0, high = 0;
        int can = coded < (end - i) * 2, code;
        for (size_t g = i; g < end; g += 128) can = can && group_can(row, g, g + 128 < end ? g + 128 : end, &low, &high);
        bytes += can ? coded : (end - i) * 2;
        for (size_t j = i; j < end; j++) {
            size_t g = j / 128 * 128;
            arrived[j] = row[j];
            if (!can) continue;
            group_can(row, g, g + 128 < end ? g + 128 : end, &low, &high);
            arrived[j] = journey(row[j], low, high, &code);
            if (code > *most_code) *most_code = code;
        }
    }
    return bytes;
}

static void check(const uint16_t *row, size_t channels, int *most_code)
{
    static uint32_t coded[MOST];
    static uint16_t got[MOST + 8], expected[MOST];
    size_t bytes = reference(row, channels, expected, most_code);
    memset(coded, 0xa5, sizeof coded);
    memset(got, 0xa5, sizeof got);
    assert_int_equal(xep_logfmt_encode(coded, row, channels), bytes);
    assert_int_equal(xep_logfmt_bytes(coded, channels), bytes);
    assert_true(bytes <= xep_logfmt_room(channels));
    assert_int_equal(((unsigned char *)coded)[bytes], 0xa5);
    xep_logfmt_decode(got, coded, channels);
    for (size_t i = 0; i < channels; i++)
        if (got[i] != expected[i])
            fail_msg("channel %zu of %zu: %#x arrived as %#x, expected %#x", i, channels, row[i], got[i], expected[i]);
    assert_int_equal(got[channels], 0xa5a5);
}

/* ---- tests ---- */

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* magnitudes below 1, spread over so many powers of two */
static void fill(uint16_t *row, size_t channels, uint64_t *random, unsigned powers)
{
    for (size_t i = 0; i < channels; i++) {
        unsigned exponent = 126 - next_random(random) % powers;
        row[i] = (uint16_t)((next_random(random) & 0x807f) | exponent << 7);
    }
}

static void rows_of_every_length(void **state)
{
    static uint16_t row[MOST];
    uint64_t random = 11;
    int most = 0;
    (void)state;
    for (size_t channels = 1; channels < 1200; channels += channels < 70 ? 1 : 61) {
        fill(row, channels, &random, 1 + next_random(&random) % 60);
        check(row, channels, &most);
    }
    for (unsigned powers = 1; powers < 60; powers++) {
        fill(row, MOST, &random, powers);
        check(row, powers % 2 ? 2880 : MOST, &most);
    }
    assert_int_equal(most, 511); /* the largest of a group has the last code */
}

/* all patterns there are, those of a group with one that makes it unfit, too */
static void every_pattern(void **state)
{
    static uint16_t row[512];
    int most = 0;
    (void)state;
    for (uint32_t base = 0; base < 65536; base += 512) {
        for (uint32_t i = 0; i < 512; i++) row[i] = (uint16_t)(base + i);
        check(row, 512, &most);
        for (uint32_t i = 0; i < 512; i++) row[i] = i % 4 ? (uint16_t)(base + i) & 0xbf7f : (uint16_t)(0x3000 + i);
        check(row, 512, &most);
    }
}

static void zeros_and_ones_stay(void **state)
{
    uint16_t row[512] = {0};
    int most = 0;
    (void)state;
    check(row, 512, &most);
    for (int i = 0; i < 512; i++) row[i] = 0x3f00; /* no span */
    check(row, 512, &most);
    row[7] = 0x3f80; /* 1 */
    check(row, 512, &most);
    assert_int_equal(most, 0);
}

/* a head that nobody wrote makes no read beyond the room (a sanitizer sees it) */
static void any_head_is_safe(void **state)
{
    uint64_t random = 5;
    (void)state;
    for (int round = 0; round < 300; round++) {
        size_t channels = 1 + next_random(&random) % 1100, room = xep_logfmt_room(channels);
        uint16_t *row = malloc(channels * 2), *coded = malloc((room + 3) / 4 * 4);
        for (size_t i = 0; i < (room + 3) / 4 * 2; i++) coded[i] = (uint16_t)next_random(&random) & (round % 2 ? 0x3fff : 0xffff);
        assert_true(xep_logfmt_bytes(coded, channels) <= room);
        xep_logfmt_decode(row, coded, channels);
        free(row);
        free(coded);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_every_length),
        cmocka_unit_test(every_pattern),
        cmocka_unit_test(zeros_and_ones_stay),
        cmocka_unit_test(any_head_is_safe),
    };
    return cmocka_run_group_tests_name("logfmt", tests, NULL, NULL);
}
