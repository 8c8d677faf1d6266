/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of src/util/dtype.c: size and name of every element type, names of casts, and of what is neither. */

#include <xep/xep.h>

#include "unit.h"

TEST(every_type_has_a_size_and_a_name)
{
    static const struct {
        xep_dtype_t dtype;
        size_t bytes;
        const char *name;
    } expected[] = {{XEP_BF16, 2, "bf16"}, {XEP_FP16, 2, "fp16"}, {XEP_FP32, 4, "fp32"},    {XEP_E4M3, 1, "e4m3"},
                    {XEP_E5M2, 1, "e5m2"}, {XEP_U8, 1, "u8"},     {XEP_INT32, 4, "int32"},  {XEP_INT64, 8, "int64"},
                    {XEP_FP64, 8, "fp64"}, {XEP_INT8, 1, "int8"}, {XEP_E2M1X2, 1, "e2m1x2"}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        assert_int_equal(xep_dtype_size(expected[i].dtype), expected[i].bytes);
        assert_string_equal(xep_dtype_name(expected[i].dtype), expected[i].name);
    }
}

TEST(other_values_are_no_type)
{
    static const int values[] = {0, 12, -1, 1 << 30};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        assert_int_equal(xep_dtype_size((xep_dtype_t)values[i]), 0);
        assert_string_equal(xep_dtype_name((xep_dtype_t)values[i]), "unknown");
    }
}

TEST(every_cast_has_a_name)
{
    assert_string_equal(xep_quant_name(XEP_QUANT_NONE), "none");
    assert_string_equal(xep_quant_name(XEP_QUANT_MXFP8_E5M2), "mxfp8_e5m2");
    assert_string_equal(xep_quant_name(XEP_QUANT_LOGFMT), "logfmt");
    assert_string_equal(xep_quant_name((xep_quant_t)12), "unknown");
    assert_string_equal(xep_quant_name((xep_quant_t)-1), "unknown");
}
