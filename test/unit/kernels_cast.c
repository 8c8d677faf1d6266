/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Unit test of the casts of plugins/kernels: every bf16 at every place of a group, every fp16, ties, odd lengths and
 * what is no number, by every kernel, against the oracle.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cast.h"
#include "cast_table.h"
#include "cpu.h"
#include "oracle_cast.h"
#include "oracle_number.h"
#include "unit.h"

enum { MOST = 7168, GROUP = 128 }; /* of the casts to e4m3 with a table */

static void fail_at(const char *who, const oracle_shape_t *shape, const char *what, size_t at, unsigned got,
                    unsigned expected)
{
    fail_msg("%s: quant %d of %s, %u channels, quant_scale %g: %s %zu is %#x, expected %#x", who, (int)shape->quant,
             xep_dtype_name(shape->dtype), shape->hidden, (double)shape->quant_scale, what, at, got, expected);
}

/* A row by the kernel of an instruction set, compared with the oracle's, and what lies behind it. */
static void check_kernel(xep_simd_t simd, const oracle_shape_t *shape, const void *x, const uint8_t *q,
                         const uint32_t *scales)
{
    static uint8_t got[MOST + 64];
    static uint32_t got_scales[MOST];
    const size_t bytes = oracle_received_bytes(shape), words = oracle_received_scales(shape);
    const xep_cast_t cast = xep_cast_select(shape->quant, shape->dtype, simd, shape->quant_scale);
    memset(got, 0xa5, bytes + 64);
    memset(got_scales, 0xa5, (words + 1) * sizeof *got_scales);
    cast.row(&cast, got, got_scales, x, shape->hidden, x);
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != q[i]) fail_at(xep_cpu_simd_name(simd), shape, "byte", i, got[i], q[i]);
    for (size_t i = 0; i < words; i++)
        if (got_scales[i] != scales[i]) fail_at(xep_cpu_simd_name(simd), shape, "scale", i, got_scales[i], scales[i]);
    assert_int_equal(got[bytes], 0xa5);
    assert_int_equal(got_scales[words], 0xa5a5a5a5);
}

static void check_row(const oracle_shape_t *shape, const void *x)
{
    static uint8_t q[MOST];
    static uint32_t scales[MOST];
    xep_cast_format_t format;
    assert_true(xep_cast_format(shape->quant, shape->hidden, &format));
    assert_int_equal(format.dtype, oracle_received_dtype(shape));
    assert_int_equal(format.row_bytes, oracle_received_bytes(shape));
    assert_int_equal(format.scale_words, oracle_received_scales(shape));
    if (format.scale_words != 0) assert_int_equal(format.scales_dtype, oracle_received_scales_dtype(shape));
    oracle_cast_row(shape, x, q, scales);
    for (xep_simd_t simd = XEP_SIMD_SCALAR; simd <= xep_cpu_simd(); simd++) check_kernel(simd, shape, x, q, scales);
}

/* With every cast, and with a scale of the caller's where there may be one. */
static void check_all(xep_dtype_t dtype, uint32_t hidden, const void *x)
{
    for (uint32_t n = 0; n < oracle_casts(); n++) {
        const xep_quant_t quant = oracle_cast_at(n);
        oracle_shape_t shape = {.hidden = hidden, .dtype = dtype, .quant = quant};
        if (quant == XEP_QUANT_E4M3_STATIC) shape.quant_scale = 0.37f;
        check_row(&shape, x);
        if (quant != XEP_QUANT_NVFP4) continue;
        shape.quant_scale = 0.002f;
        check_row(&shape, x);
    }
}

/* With those that have a table: e4m3 in groups of 128. */
static void check_by_table(xep_dtype_t dtype, uint32_t hidden, const void *x)
{
    for (xep_quant_t quant = XEP_QUANT_E4M3; quant <= XEP_QUANT_E4M3_POW2; quant++)
        check_row(&(oracle_shape_t){.hidden = hidden, .dtype = dtype, .quant = quant}, x);
}

/*
 * All patterns of a half, in so many rounds, in each of which every pattern is one place further on in its group. The
 * patterns are taken in steps of stride, an odd number; those of their bits that are in mask count, and bits are set.
 */
static void every_half(xep_dtype_t dtype, int rounds, uint32_t stride, uint16_t mask, uint16_t bits)
{
    enum { CHANNELS = 4096 };
    static uint16_t x[CHANNELS];
    for (int round = 0; round < rounds; round++)
        for (uint32_t from = 0; from < 65536; from += CHANNELS) {
            for (uint32_t i = 0; i < CHANNELS; i++) {
                uint32_t pattern = (from + i + 65536 - (uint32_t)round) * stride;
                x[i] = (uint16_t)((pattern & mask) | bits);
            }
            check_all(dtype, CHANNELS, x);
        }
}

/*
 * All patterns of a half that are not above the greatest of their group, 127 to a group, which is the last element;
 * those above it are zeros, as they were in the round of a greater one.
 */
static void every_half_below(xep_dtype_t dtype, const uint16_t *greatest, size_t count)
{
    uint16_t x[GROUP];
    for (size_t g = 0; g < count; g++)
        for (uint32_t bits = 0; bits < 65536; bits += GROUP - 1) {
            for (uint32_t i = 0; i < GROUP - 1; i++) {
                uint16_t value = (uint16_t)(bits + i), magnitude = value & 0x7fff;
                x[i] = magnitude > greatest[g] && g + 1 < count ? (uint16_t)(value & 0x8000) : value;
            }
            x[GROUP - 1] = greatest[g];
            check_by_table(dtype, GROUP, x);
        }
}

/* ---- tests ---- */

/* As they follow one another all of a group are of about the same size. */
TEST(every_bf16_at_every_place)
{
    every_half(XEP_BF16, 32, 1, 0xffff, 0);
}

/* Sizes mixed, from 2^-7 to 2^8 and from the least to 2^-112, so that there is no Inf. */
TEST(bf16_of_all_sizes)
{
    every_half(XEP_BF16, 1, 40503, 0x87ff, 0x3c00);
    every_half(XEP_BF16, 1, 40503, 0x87ff, 0);
    every_half(XEP_BF16, 1, 40503, 0xffff, 0);
}

TEST(every_fp16)
{
    every_half(XEP_FP16, 2, 1, 0xffff, 0);
    every_half(XEP_FP16, 1, 40503, 0xbfff, 0);
}

TEST(every_half_below_many_maxima)
{
    /* 0, 1e-4 or so, 0.7, 1, 3.5 (= 448 / 128), just above, 448, 1e4, the greatest number */
    static const uint16_t bf16[] = {0, 0x38d1, 0x38d2, 0x3f33, 0x3f80, 0x4060, 0x4061, 0x43e0, 0x461c, 0x7f7f};
    static const uint16_t fp16[] = {0, 0x068d, 0x068e, 0x3c00, 0x4300, 0x4301, 0x5f00, 0x7bff};
    every_half_below(XEP_BF16, bf16, sizeof bf16 / sizeof *bf16);
    every_half_below(XEP_FP16, fp16, sizeof fp16 / sizeof *fp16);
}

/* The table, worked out again; what kernels make of it is every_pair_of_fractions(). */
TEST(table)
{
    for (uint32_t row = 0; row < XEP_CAST_ROWS; row++)
        for (uint32_t fraction = 0; fraction < XEP_CAST_FRACTIONS; fraction++) {
            const uint16_t half = (uint16_t)(126 << 7 | fraction); /* with exponent 126, so that all are below amax */
            const float most = oracle_bf16_to_float((uint16_t)(127 << 7 | row));
            const float factor = row == XEP_CAST_POW2 ? 256.0f : 448.0f / most;
            const uint8_t step = xep_cast_codes[row].steps[fraction / 8];
            assert_int_equal(xep_cast_codes[row].first + (step >> 4) + (fraction % 8 > (step & 7)),
                             oracle_float_to_e4m3(oracle_bf16_to_float(half) * factor) + 8);
        }
}

/* Every fraction with every fraction of amax, at every distance at which there is a code, and at two beyond. */
TEST(every_pair_of_fractions)
{
    enum { DISTANCES = 22 };
    static uint16_t x[DISTANCES * GROUP];
    /* of amax: the least that counts and a bit more, the greatest */
    for (uint32_t base = 118; base <= 254; base += 136)
        for (uint32_t most = 0; most < 128; most++) {
            for (uint32_t d = 0; d < DISTANCES; d++)
                for (uint32_t i = 0; i < GROUP; i++) { /* amax itself is in every group, in place of what is above it */
                    int fits = i < 127 && (d > 0 || i <= most);
                    x[d * GROUP + i] = (uint16_t)(fits ? (base - d) << 7 | i : base << 7 | most);
                    if ((i + d) % 3 == 0) x[d * GROUP + i] |= 0x8000;
                }
            check_by_table(XEP_BF16, DISTANCES * GROUP, x);
        }
}

/* Halves between two numbers of each type, the numbers beside them, and as the greatest of the group its limits. */
TEST(ties)
{
    static const float most[] = {448, 57344, 6, 127};
    float x[32];
    for (size_t m = 0; m < sizeof most / sizeof *most; m++)
        for (int exponent = -18; exponent < 17; exponent++)
            for (int step = 0; step < 32; step++) { /* 1/32: a place more than e4m3 has */
                float middle = ldexpf(1 + (float)step / 32, exponent);
                for (int i = 0; i < 32; i += 4) {
                    x[i] = middle, x[i + 1] = nextafterf(middle, 0), x[i + 2] = nextafterf(middle, 1e9f);
                    x[i + 3] = -middle;
                }
                x[step] = step % 3 == 0 ? most[m] : nextafterf(most[m], step % 3 == 1 ? 0 : 1e9f);
                check_all(XEP_FP32, 32, x);
            }
}

TEST(fp32_samples)
{
    static const float scales[] = {0, 1e-44f, 1e-38f, 1e-10f, 1e-5f, 1e-4f, 1, 3.5f, 448, 1e30f, 3e38f};
    uint64_t random = 5;
    float x[160];
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++)
        for (int round = 0; round < 80; round++) {
            for (int i = 0; i < 160; i++) {
                int shift = (int)(unit_random(&random) % 24);
                x[i] = ldexpf((float)(int32_t)unit_random(&random) / 0x1p31f, -shift) * scales[s];
            }
            /* the greatest of its group, and one place above and below it */
            if (round % 4 != 0) x[3] = round % 4 == 1 ? scales[s] : nextafterf(scales[s], round % 4 == 2 ? 1e38f : 0);
            check_all(XEP_FP32, 160, x);
        }
}

TEST(every_length)
{
    static uint16_t x[MOST + 1];
    uint64_t random = 3;
    for (int i = 0; i <= MOST; i++) x[i] = (uint16_t)(unit_random(&random) & 0xbfff);
    for (uint32_t hidden = 1; hidden < 400; hidden++) check_all(XEP_BF16, hidden, x);
    check_all(XEP_BF16, MOST - 1, x + 1); /* not aligned to more than an element */
    check_all(XEP_BF16, MOST, x);
}

/* Where there is no number there is no scale that is one, and the neighbours are as if it were not there. */
TEST(not_finite)
{
    uint16_t x[256];
    for (int i = 0; i < 256; i++) x[i] = (uint16_t)(0x3f80 + i);
    for (int at = 0; at < 256; at += 51) {
        uint16_t before = x[at];
        for (int which = 0; which < 3; which++) {
            x[at] = which == 0 ? 0x7f80 : which == 1 ? 0xff80 : 0x7fc1;
            check_all(XEP_BF16, 256, x);
        }
        x[at] = before;
    }
}
