/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Unit test of plugins/kernels/codec.c: rows encoded and decoded are what the oracle says, of every cast, of bf16 and
 * fp32, and of every length; and every code with every scale decodes alike with all kernels.
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

static void check_kernel(xep_simd_t simd, const oracle_shape_t *shape, const void *row, const uint16_t *expected)
{
    static uint32_t coded[MOST];
    static uint16_t got[MOST + 1];
    const xep_codec_t codec =
        xep_codec_select(shape->quant, shape->quant_scale, shape->hidden, shape->dtype == XEP_FP32, simd);
    assert_int_equal(codec.from, shape->dtype);
    memset(coded, 0xa5, sizeof coded);
    memset(got, 0xa5, sizeof got);
    const size_t bytes = xep_codec_encode(&codec, coded, row);
    assert_int_equal(xep_codec_bytes(&codec, coded), bytes);
    assert_int_equal(((uint8_t *)coded)[bytes], 0xa5);
    xep_codec_decode(&codec, got, coded);
    for (uint32_t i = 0; i < shape->hidden; i++)
        if (got[i] != expected[i])
            fail_msg("%s: quant %d of %s: channel %u of %u arrived as %#x, expected %#x", xep_cpu_simd_name(simd),
                     (int)shape->quant, xep_dtype_name(shape->dtype), i, shape->hidden, got[i], expected[i]);
    assert_int_equal(got[shape->hidden], 0xa5a5);
}

static void check_row(xep_dtype_t dtype, uint32_t hidden, const void *row)
{
    static uint16_t expected[MOST];
    for (xep_quant_t quant = XEP_QUANT_E4M3; strcmp(xep_quant_name(quant), "unknown") != 0; quant++) {
        if (quant == XEP_QUANT_LOGFMT && dtype != XEP_BF16) continue;
        const oracle_shape_t shape = {.hidden = hidden,
                                      .dtype = dtype,
                                      .quant = quant,
                                      .quant_scale = scale_for(quant)};
        oracle_cast_journey(&shape, row, expected);
        for (xep_simd_t simd = XEP_SIMD_SCALAR; simd <= xep_cpu_simd(); simd++)
            check_kernel(simd, &shape, row, expected);
    }
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
