/* SPDX-License-Identifier: BSD-3-Clause */

/* The oracle's numbers: rows as they are published, and floats of 16 and 8 bits rounded as they must be. */

#include <math.h>

#include "oracle.h"
#include "unit.h"

TEST(published_row)
{
    static const uint16_t first[] = {0xbe72, 0xbe02, 0xbe8f, 0x3f12, 0xbfb2, 0xbf1a, 0xbeda, 0x3e2f};
    const oracle_shape_t shape = {.payload = 1, .hidden = 8, .dtype = XEP_BF16};
    uint16_t row[8];

    oracle_fill_row(&shape, 0, 0, row);
    assert_memory_equal(row, first, sizeof row);
}

TEST(sixteen_bits_round_trip)
{
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        const uint16_t half = (uint16_t)bits;
        if ((half & 0x7c00) != 0x7c00 || !(half & 0x3ff))
            assert_int_equal(oracle_float_to_fp16(oracle_fp16_to_float(half)), half);
        if ((half & 0x7f80) != 0x7f80 || !(half & 0x7f))
            assert_int_equal(oracle_float_to_bf16(oracle_bf16_to_float(half)), half);
    }
}

/* Between two neighbours the middle goes to the even one, a little more or less to the nearer. */
TEST(ties_go_to_even)
{
    for (uint32_t bits = 0; bits < 0x7bff; bits++) {
        const double low = (double)oracle_fp16_to_float((uint16_t)bits);
        const double high = (double)oracle_fp16_to_float((uint16_t)(bits + 1));
        const double middle = (low + high) / 2, little = (high - low) / 64;
        assert_int_equal(oracle_float_to_fp16((float)middle), bits & 1 ? bits + 1 : bits);
        assert_int_equal(oracle_float_to_fp16((float)(middle - little)), bits);
        assert_int_equal(oracle_float_to_fp16((float)(middle + little)), bits + 1);
    }
    for (uint32_t bits = 0; bits < 0x7f7f; bits++) {
        const double low = (double)oracle_bf16_to_float((uint16_t)bits);
        const double high = (double)oracle_bf16_to_float((uint16_t)(bits + 1));
        assert_int_equal(oracle_float_to_bf16((float)((low + high) / 2)), bits & 1 ? bits + 1 : bits);
    }
    assert_int_equal(oracle_float_to_fp16(65519.0f), 0x7bff);
    assert_int_equal(oracle_float_to_fp16(65520.0f), 0x7c00);
    assert_int_equal(oracle_float_to_fp16(-1e9f), 0xfc00);
}

static double e4m3_value(int code)
{
    const int exponent = code >> 3, fraction = code & 7;
    return exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
}

TEST(e4m3_is_the_nearest)
{
    for (int code = 0; code < 0x7e; code++) {
        const double low = e4m3_value(code), high = e4m3_value(code + 1);
        const double middle = (low + high) / 2, little = (high - low) / 64;
        assert_int_equal(oracle_float_to_e4m3((float)low), code);
        assert_int_equal(oracle_float_to_e4m3((float)middle), code % 2 == 0 ? code : code + 1);
        assert_int_equal(oracle_float_to_e4m3((float)-(middle - little)), code | 0x80);
        assert_int_equal(oracle_float_to_e4m3((float)(middle + little)), code + 1);
    }
    assert_int_equal(oracle_float_to_e4m3(INFINITY), 0x7e);
    assert_int_equal(oracle_float_to_e4m3(-NAN), 0x7f);
}
