/* SPDX-License-Identifier: BSD-3-Clause */

/* The choice of a cast, and the scalar functions of those in cast_formats.h, with which the others are compared. */
#include "cast_formats.h"

#include <math.h>

/* ---- one element after the other ---- */

#define TARGET
#define KERNEL __attribute__((always_inline)) static inline

KERNEL float element_at(int type, const char *x, size_t i)
{
    uint16_t half;
    float single;
    if (type == XEP_CAST_FP32) {
        memcpy(&single, x + i * sizeof single, sizeof single);
        return single;
    }
    memcpy(&half, x + i * sizeof half, sizeof half);
    return type == XEP_CAST_BF16 ? xep_float_of_bf16(half) : xep_float_of_fp16(half);
}

KERNEL uint32_t amax_of(int type, const char *x, size_t elems)
{
    uint32_t most = 0;
    for (size_t i = 0; i < elems; i++) {
        uint32_t magnitude = xep_bits_of_float(element_at(type, x, i)) & 0x7fffffff;
        if (magnitude > most) most = magnitude;
    }
    return most;
}

KERNEL uint8_t code_of(const xep_cast_element_t *element, float value)
{
    if (element->fraction == 0) return (uint8_t)(int8_t)rintf(value);
    if (element->bits < 8) return xep_e2m1_of_float(value);
    return element->fraction == 3 ? xep_e4m3_of_float(value) : xep_e5m2_of_float(value);
}

/* Channels of four bits: the first of two in the lower half of a byte. */
KERNEL void codes_of(const xep_cast_rule_t *rule, int type, uint8_t *q, const char *x, size_t elems, float factor)
{
    for (size_t i = 0; i < elems; i++) {
        uint8_t code = code_of(&rule->element, element_at(type, x, i) * factor);
        if (rule->element.bits == 8) q[i] = code;
        else if (i % 2 == 0) q[i / 2] = code;
        else q[i / 2] |= (uint8_t)(code << 4);
    }
}

KERNEL void scale_groups(const xep_cast_rule_t *rule, const uint32_t *amax, size_t groups, float inverse,
                         uint8_t *scales, float *factor)
{
    for (size_t g = 0; g < groups; g++) factor[g] = xep_cast_scale_group(rule, amax[g], inverse, scales, g);
}

KERNEL int codes_of_two(const xep_cast_rule_t *rule, int type, uint8_t *q, const char *x, const float *factor)
{
    (void)rule, (void)type, (void)q, (void)x, (void)factor;
    return 0;
}

#include "cast_walk.h"

static const xep_cast_row_fn scalar[XEP_CAST_TABLE][XEP_CAST_TYPES] = {XEP_CAST_BLOCKS(CAST_ENTRY_)};

static xep_cast_row_fn select_row(xep_quant_t quant, int type, xep_simd_t simd)
{
#if defined(__x86_64__)
    if (simd >= XEP_SIMD_AVX512) return xep_cast_rows_avx512[quant][type];
    if (simd == XEP_SIMD_AVX2) return xep_cast_rows_avx2[quant][type];
#elif defined(__aarch64__)
    if (simd >= XEP_SIMD_NEON) return xep_cast_rows_neon[quant][type];
#else
    (void)simd;
#endif
    return scalar[quant][type];
}

/* ---- a row ---- */

static void row_by_groups(const xep_cast_t *cast, void *q, void *scales, const void *x, size_t elems, const void *next)
{
    ((xep_cast_fn)cast->kernel)(q, scales, x, elems, cast->pow2, next);
}

/* Scales of four groups make one word; pieces of the row, so that they need no memory but the stack. */
static void row_packed(const xep_cast_t *cast, void *q, void *scales, const void *x, size_t elems, const void *next)
{
    enum { GROUPS = 64, PIECE = GROUPS * XEP_CAST_GROUP };
    const char *from = x, *ahead = next;
    uint32_t *packed = scales;
    for (size_t i = 0; i < elems; i += PIECE, packed += GROUPS / 4) {
        float singles[GROUPS];
        size_t n = elems - i < PIECE ? elems - i : PIECE, at = i * cast->elem_bytes;
        ((xep_cast_fn)cast->kernel)((uint8_t *)q + i, singles, from + at, n, 1, ahead + at);
        xep_cast_pack_exponents(packed, singles, xep_cast_groups(n));
    }
}

static void row_by_blocks(const xep_cast_t *cast, void *q, void *scales, const void *x, size_t elems, const void *next)
{
    ((xep_cast_row_fn)cast->kernel)(q, scales, x, elems, cast->scale, next);
}

/* The library has checked that dtype is one of these three. */
xep_cast_t xep_cast_select(xep_quant_t quant, xep_dtype_t dtype, xep_simd_t simd, float scale)
{
    int type = dtype == XEP_BF16 ? XEP_CAST_BF16 : dtype == XEP_FP16 ? XEP_CAST_FP16 : XEP_CAST_FP32;
    xep_cast_t cast = {.elem_bytes = xep_cast_type_bytes(type), .scale = scale, .pow2 = quant == XEP_QUANT_E4M3_POW2};
    if (quant > XEP_QUANT_UE8M0) {
        cast.row = row_by_blocks;
        cast.kernel = (void (*)(void))select_row(quant, type, simd);
        return cast;
    }
    cast.row = quant == XEP_QUANT_UE8M0 ? row_packed : row_by_groups;
    cast.kernel = (void (*)(void))xep_cast_groups_by(type, simd);
    return cast;
}
