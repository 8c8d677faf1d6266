/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Unit test of plugins/kernels/codec.c and logfmt.c: rows encoded and decoded are what the oracle says, of every cast
 * and LogFMT, of bf16 and fp32, and of every length; and every code with every scale decodes alike with all kernels.
 */
#include <stdlib.h>
#include <string.h>

#include "cast_formats.h"
#include "codec.h"
#include "cpu.h"
#include "oracle_cast.h"
#include "unit.h"

enum { MOST = 7168 };

static float scale_for(xep_quant_t quant)
{
    return quant == XEP_QUANT_E4M3_STATIC ? 0.37f : 0;
}

static void check_kernel(xep_simd_t simd, const oracle_shape_t *shape, const void *row, const uint16_t *expected,
                         size_t expected_bytes)
{
    static uint32_t coded[MOST];
    static uint16_t got[MOST + 1];
    const xep_codec_t codec =
        xep_codec_select(shape->quant, shape->quant_scale, shape->hidden, shape->dtype == XEP_FP32, simd);
    assert_int_equal(codec.from, shape->dtype);
    memset(coded, 0xa5, sizeof coded);
    memset(got, 0xa5, sizeof got);
    const size_t bytes = xep_codec_encode(&codec, coded, row);
    assert_int_equal(bytes, expected_bytes);
    assert_true(bytes <= codec.stride);
    assert_int_equal(xep_codec_bytes(&codec, coded), bytes);
    assert_int_equal(((uint8_t *)coded)[bytes], 0xa5);
    xep_codec_decode(&codec, got, coded);
    for (uint32_t i = 0; i < shape->hidden; i++)
        if (got[i] != expected[i])
            fail_msg("%s: quant %d of %s: channel %u of %u arrived as %#x, expected %#x", xep_cpu_simd_name(simd),
                     (int)shape->quant, xep_dtype_name(shape->dtype), i, shape->hidden, got[i], expected[i]);
    assert_int_equal(got[shape->hidden], 0xa5a5);
}

static void check_all(const oracle_shape_t *shape, const void *row, const uint16_t *expected, size_t bytes)
{
    for (xep_simd_t simd = XEP_SIMD_SCALAR; simd <= xep_cpu_simd(); simd++)
        check_kernel(simd, shape, row, expected, bytes);
}

/* Returns the largest code in it. */
static int check_logfmt(uint32_t hidden, const void *row)
{
    static uint16_t expected[MOST];
    const oracle_shape_t shape = {.hidden = hidden, .dtype = XEP_BF16, .quant = XEP_QUANT_LOGFMT};
    int most_code = 0;
    size_t bytes = oracle_logfmt_journey(row, hidden, expected, &most_code);
    check_all(&shape, row, expected, bytes);
    return most_code;
}

static void check_row(xep_dtype_t dtype, uint32_t hidden, const void *row)
{
    static uint16_t expected[MOST];
    for (uint32_t n = 0; n < oracle_casts(); n++) {
        const xep_quant_t quant = oracle_cast_at(n);
        const oracle_shape_t shape = {.hidden = hidden,
                                      .dtype = dtype,
                                      .quant = quant,
                                      .combine_quant = quant,
                                      .quant_scale = scale_for(quant)};
        oracle_cast_journey(&shape, row, expected);
        check_all(&shape, row, expected, oracle_travel_bytes(&shape));
    }
    if (dtype == XEP_BF16) check_logfmt(hidden, row);
}

/* ---- tests ---- */

TEST(every_bf16)
{
    static uint16_t row[4096];
    for (uint32_t from = 0; from < 65536; from += 4096) {
        for (uint32_t i = 0; i < 4096; i++) row[i] = (uint16_t)(from + i);
        check_row(XEP_BF16, 4096, row);
        for (uint32_t i = 0; i < 4096; i++) row[i] = (uint16_t)((from + i) * 40503u & 0x87ffu) | 0x3c00;
        check_row(XEP_BF16, 4096, row);
    }
}

TEST(every_length)
{
    static uint16_t row[MOST];
    static float wide[300];
    uint64_t random = 3;
    for (int i = 0; i < MOST; i++) row[i] = (uint16_t)(unit_random(&random) & 0xbfff);
    for (int i = 0; i < 300; i++) wide[i] = (float)(int32_t)unit_random(&random) / 0x1p29f;
    for (uint32_t hidden = 1; hidden < 300; hidden++) {
        check_row(XEP_BF16, hidden, row);
        check_row(XEP_FP32, hidden, wide);
    }
    check_row(XEP_BF16, MOST, row);
}

/* Codes and scales as a peer might write them: all of a byte, beside all exponents of a scale. */
TEST(any_bytes)
{
    enum { CHANNELS = 256 };
    static uint8_t q[CHANNELS], scales[CHANNELS * 4 + 4];
    uint16_t expected[CHANNELS], got[CHANNELS];
    uint64_t random = 7;
    for (int i = 0; i < CHANNELS; i++) q[i] = (uint8_t)i;
    for (uint32_t n = 0; n < oracle_casts(); n++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            const xep_quant_t quant = oracle_cast_at(n);
            memset(scales, (int)byte, sizeof scales);
            for (size_t i = 0; i < sizeof scales; i += 4) scales[i] = (uint8_t)unit_random(&random);
            xep_decode_select(XEP_SIMD_SCALAR)(quant, expected, q, scales, CHANNELS, 0.37f);
            for (xep_simd_t simd = XEP_SIMD_AVX2; simd <= xep_cpu_simd(); simd++) {
                xep_decode_select(simd)(quant, got, q, scales, CHANNELS, 0.37f);
                if (memcmp(got, expected, sizeof got) != 0)
                    fail_msg("%s: quant %d, scales of %#x: other numbers", xep_cpu_simd_name(simd), (int)quant, byte);
            }
        }
}

/* ---- LogFMT ---- */

/* Magnitudes below 1, spread over more and more powers of two. */
TEST(many_spans)
{
    static uint16_t row[MOST];
    uint64_t random = 11;
    int most_code = 0;
    for (unsigned powers = 1; powers < 60; powers++) {
        for (size_t i = 0; i < MOST; i++) {
            unsigned exponent = 126 - unit_random(&random) % powers;
            row[i] = (uint16_t)((unit_random(&random) & 0x807f) | exponent << 7);
        }
        int code = check_logfmt(powers % 2 ? 2880 : MOST, row);
        check_logfmt(1 + unit_random(&random) % 1200, row);
        if (code > most_code) most_code = code;
    }
    assert_int_equal(most_code, 511); /* the largest of a group has the last code */
}

/* All patterns there are, in groups of which one that is 1 or more makes none unfit. */
TEST(every_small_pattern)
{
    static uint16_t row[512];
    for (uint32_t base = 0; base < 65536; base += 512) {
        for (uint32_t i = 0; i < 512; i++) row[i] = i % 4 ? (uint16_t)(base + i) & 0xbf7f : (uint16_t)(0x3000 + i);
        check_logfmt(512, row);
    }
}

TEST(no_span)
{
    uint16_t row[512] = {0};
    assert_int_equal(check_logfmt(512, row), 0);
    for (int i = 0; i < 512; i++) row[i] = 0x3f00;
    assert_int_equal(check_logfmt(512, row), 0);
    row[7] = 0x3f80; /* 1 */
    assert_int_equal(check_logfmt(512, row), 0);
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
