/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_limit.h"

#include <string.h>

static xep_simd_t widest(void)
{
    static const char *const names[] =
        {[XEP_SIMD_AVX2] = "avx2", [XEP_SIMD_AVX512] = "avx512", [XEP_SIMD_AVX512VBMI] = "avx512vbmi"};
    xep_library_info_t info = XEP_LIBRARY_INFO_INIT;
    if (xep_library_query(&info) != XEP_OK) return XEP_SIMD_SCALAR;
    if (strcmp(info.simd, "neon") == 0) return XEP_SIMD_NEON;
    for (int simd = XEP_SIMD_AVX512VBMI; simd > XEP_SIMD_SCALAR; simd--)
        if (strcmp(info.simd, names[simd]) == 0) return (xep_simd_t)simd;
    return XEP_SIMD_SCALAR;
}

perf_kernels_t perf_kernels(xep_dtype_t dtype)
{
    const xep_simd_t simd = widest();
    return (perf_kernels_t){.simd = simd,
                            .copy_streaming = xep_copy_select(simd, 1),
                            .sum = {xep_weigh_select(dtype, simd, 0), xep_weigh_select(dtype, simd, 1)}};
}
