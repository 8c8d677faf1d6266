/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What each xep_quant_t but those of cast_blocks.h is made of: a type of elements, a kind of scales, how many channels
 * have one. A cast of such elements and scales is a line of XEP_CAST_BLOCKS() and a value of xep_quant_t: the walk over
 * a row is the same for all (cast_walk.h), scalar (cast_rows.c, the definition) and by vectors (cast_vectors.h).
 * Devices have one kernel for all (cuda_cast.cuh).
 */
#ifndef XEP_CAST_FORMATS_H
#define XEP_CAST_FORMATS_H

#include <string.h>

#include "cast_kernels.h"

/** How a block's scale follows from its largest magnitude. */
typedef enum {
    XEP_SCALE_E8M0, /* a byte, the exponent of the least power of two with which nothing saturates */
    XEP_SCALE_E4M3, /* a byte, of the row's or the caller's scale, which is the word behind them */
    XEP_SCALE_FP32,
    XEP_SCALE_GIVEN /* the caller's; none travels */
} xep_scale_kind_t;

/** What elements are rounded to: floats by their places, or int8. */
typedef struct xep_cast_element {
    uint32_t fraction; /* bits of it; 0: int8 */
    uint32_t least;    /* exponent, as fp32 has it, of the least number that is not subnormal */
    uint32_t most;     /* the greatest number, as the bits of a float */
    uint32_t bits;
} xep_cast_element_t;

typedef struct xep_cast_rule {
    xep_dtype_t dtype; /* what elements are called */
    xep_cast_element_t element;
    xep_scale_kind_t scale;
    uint32_t group; /* channels with one scale */
} xep_cast_rule_t;

#define XEP_CAST_WHOLE_ROW UINT32_MAX

/** The rule of a cast, DeepEP's among them. */
const xep_cast_rule_t *xep_cast_rule(xep_quant_t quant);

#define XEP_ELEMENT_E4M3      \
    {                         \
        3, 121, 0x43e00000, 8 \
    } /* 2^-6 .. 448 */
#define XEP_ELEMENT_E5M2      \
    {                         \
        2, 113, 0x47600000, 8 \
    } /* 2^-14 .. 57344 */
#define XEP_ELEMENT_E2M1      \
    {                         \
        1, 127, 0x40c00000, 4 \
    } /* 1 .. 6 */
#define XEP_ELEMENT_INT8    \
    {                       \
        0, 0, 0x42fe0000, 8 \
    } /* 127 */

/** The casts: X(xep_quant_t without its prefix, name of its functions, type, element, scale, channels of a group). */
#define XEP_CAST_BLOCKS(X)                                                                \
    X(MXFP8, mxfp8, XEP_E4M3, XEP_ELEMENT_E4M3, XEP_SCALE_E8M0, 32)                       \
    X(MXFP8_E5M2, mxfp8_e5m2, XEP_E5M2, XEP_ELEMENT_E5M2, XEP_SCALE_E8M0, 32)             \
    X(MXFP4, mxfp4, XEP_E2M1X2, XEP_ELEMENT_E2M1, XEP_SCALE_E8M0, 32)                     \
    X(NVFP4, nvfp4, XEP_E2M1X2, XEP_ELEMENT_E2M1, XEP_SCALE_E4M3, 16)                     \
    X(INT8, int8, XEP_INT8, XEP_ELEMENT_INT8, XEP_SCALE_FP32, 128)                        \
    X(INT8_ROW, int8_row, XEP_INT8, XEP_ELEMENT_INT8, XEP_SCALE_FP32, XEP_CAST_WHOLE_ROW) \
    X(E4M3_STATIC, e4m3_static, XEP_E4M3, XEP_ELEMENT_E4M3, XEP_SCALE_GIVEN, XEP_CAST_WHOLE_ROW)

#define XEP_CAST_INFINITE  0x7f800000u /* bits from here on are no number */
#define XEP_CAST_NAN       0x7fc00000u
#define XEP_INT8_LEAST     1e-10f    /* amax of a group, at least */
#define XEP_NVFP4_LEAST    0x1p-100f /* amax of a row, at least: its inverse is a number */
#define XEP_NVFP4_GREATEST 2688.0f   /* 448 * 6: the scale of a block times an element */

/**
 * The scale of group g from the bits of its amax, into scales; returns what its channels are multiplied by. inverse: of
 * the scale that the row has, or the caller gave.
 */
XEP_FLOATS_INLINE float xep_cast_scale_group(const xep_cast_rule_t *rule, uint32_t amax, float inverse, uint8_t *scales,
                                             size_t g)
{
    if (rule->scale == XEP_SCALE_GIVEN) return inverse;
    if (rule->scale == XEP_SCALE_E8M0) {
        /* one exponent more where the fraction is above that of the greatest number */
        const uint32_t fraction = rule->element.most & 0x7fffff, top = (rule->element.most >> 23) - 127;
        uint32_t exponent = (amax + (0x7fffff - fraction)) >> 23;
        exponent = exponent > top ? exponent - top : 0;
        scales[g] = (uint8_t)exponent;
        return xep_float_of_bits((254 - exponent) << 23);
    }
    float most = xep_float_of_bits(amax);
    if (rule->scale == XEP_SCALE_E4M3) {
        scales[g] = xep_e4m3_of_float(most * (1.0f / 6.0f) * inverse);
        return scales[g] == 0 ? 0 : inverse / xep_float_of_e4m3(scales[g]);
    }
    if (most < XEP_INT8_LEAST) most = XEP_INT8_LEAST;
    float scale = most / 127.0f;
    memcpy(scales + g * sizeof scale, &scale, sizeof scale);
    return 127.0f / most;
}

/** The scale of a group with an Inf or a NaN, whose elements are 0: none that is a number. */
XEP_FLOATS_INLINE void xep_cast_scale_no_number(const xep_cast_rule_t *rule, uint8_t *scales, size_t g)
{
    const uint32_t nan = XEP_CAST_NAN;
    if (rule->scale == XEP_SCALE_FP32) memcpy(scales + g * sizeof nan, &nan, sizeof nan);
    else scales[g] = rule->scale == XEP_SCALE_E8M0 ? 255 : 0x7f;
}

/** The word behind the scales of XEP_SCALE_E4M3 from the bits of the row's amax; returns the inverse of it. */
XEP_FLOATS_INLINE float xep_cast_scale_row(uint32_t amax, uint32_t *word)
{
    float most = xep_float_of_bits(amax);
    if (amax >= XEP_CAST_INFINITE) {
        *word = XEP_CAST_NAN;
        return 1;
    }
    if (most < XEP_NVFP4_LEAST) most = XEP_NVFP4_LEAST;
    *word = xep_bits_of_float(most / XEP_NVFP4_GREATEST);
    return XEP_NVFP4_GREATEST / most;
}

/** Casts a whole row. scale is the caller's quant_scale; 0: none was given. */
typedef void (*xep_cast_row_fn)(uint8_t *q, uint8_t *scales, const void *x, size_t elems, float scale,
                                const void *next);

/** By xep_quant_t and XEP_CAST_BF16 ..; NULL: not of XEP_CAST_BLOCKS(). */
#if defined(__x86_64__)
extern const xep_cast_row_fn xep_cast_rows_avx2[XEP_CAST_TABLE][XEP_CAST_TYPES];
extern const xep_cast_row_fn xep_cast_rows_avx512[XEP_CAST_TABLE][XEP_CAST_TYPES];
#elif defined(__aarch64__)
extern const xep_cast_row_fn xep_cast_rows_neon[XEP_CAST_TABLE][XEP_CAST_TYPES];
#endif

#endif
