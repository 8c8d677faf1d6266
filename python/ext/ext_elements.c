/* SPDX-License-Identifier: BSD-3-Clause */

#include "ext_elements.h"

static const dl_type_t types[EXT_DTYPES] = {
    [XEP_BF16] = {DL_BFLOAT, 16, 1},       [XEP_FP16] = {DL_FLOAT, 16, 1},          [XEP_FP32] = {DL_FLOAT, 32, 1},
    [XEP_E4M3] = {DL_FLOAT8_E4M3FN, 8, 1}, [XEP_E5M2] = {DL_FLOAT8_E5M2, 8, 1},     [XEP_U8] = {DL_UINT, 8, 1},
    [XEP_INT32] = {DL_INT, 32, 1},         [XEP_INT64] = {DL_INT, 64, 1},           [XEP_FP64] = {DL_FLOAT, 64, 1},
    [XEP_INT8] = {DL_INT, 8, 1},           [XEP_E2M1X2] = {DL_FLOAT4_E2M1FN, 4, 2},
};

Py_ssize_t ext_dtype_size(xep_dtype_t dtype)
{
    return types[dtype].bits * types[dtype].lanes / 8;
}

dl_type_t ext_dtype_dl(xep_dtype_t dtype)
{
    return types[dtype];
}

xep_dtype_t ext_dtype_of_dl(dl_type_t type)
{
    for (int i = 1; i < EXT_DTYPES; i++)
        if (memcmp(&type, &types[i], sizeof type) == 0) return (xep_dtype_t)i;
    return XEP_DTYPE_DEFAULT;
}

int ext_element_is_bits(const ext_element_t *element)
{
    if (element->kind != EXT_NUMPY && element->kind != EXT_DEVICE) return 0;
    return element->dtype == XEP_BF16 || element->dtype == XEP_E4M3 || element->dtype == XEP_E5M2;
}
