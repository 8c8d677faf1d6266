/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Casts in fp32 arithmetic, one element after the other: the order of operations is part of the definition in xep.h, as
 * q depends on how the factor was rounded.
 */
#include "oracle_cast.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "oracle_number.h"

enum { GROUP = 128 };

/* What each cast makes: by xep_quant_t. */
static const struct cast {
    xep_dtype_t dtype;
    int bits;          /* of a channel */
    uint32_t group;    /* channels with one scale; 0: the row */
    int scale_bytes;   /* 0: none travels */
    int row_words;     /* behind the scales */
    int places, least; /* of its floats: bits of the fraction, exponent of the least number that is not subnormal */
    double most;       /* the greatest number */
} casts[] = {
    [XEP_QUANT_E4M3] = {XEP_E4M3, 8, GROUP, 4, 0, 3, -6, 448},
    [XEP_QUANT_E4M3_POW2] = {XEP_E4M3, 8, GROUP, 4, 0, 3, -6, 448},
    [XEP_QUANT_UE8M0] = {XEP_E4M3, 8, GROUP, 1, 0, 3, -6, 448},
    [XEP_QUANT_MXFP8] = {XEP_E4M3, 8, 32, 1, 0, 3, -6, 448},
    [XEP_QUANT_MXFP8_E5M2] = {XEP_E5M2, 8, 32, 1, 0, 2, -14, 57344},
    [XEP_QUANT_MXFP4] = {XEP_E2M1X2, 4, 32, 1, 0, 1, 0, 6},
    [XEP_QUANT_NVFP4] = {XEP_E2M1X2, 4, 16, 1, 1, 1, 0, 6},
    [XEP_QUANT_INT8] = {XEP_INT8, 8, 128, 4, 0, 0, 0, 127},
    [XEP_QUANT_INT8_ROW] = {XEP_INT8, 8, 0, 4, 0, 0, 0, 127},
    [XEP_QUANT_E4M3_STATIC] = {XEP_E4M3, 8, 0, 0, 0, 3, -6, 448},
    [XEP_QUANT_LOGFMT] = {XEP_BF16, 0, 0, 0, 0, 0, 0, 0}, /* of a combine alone */
};

/* Rows of the table without bits are no casts of a dispatch. */
xep_quant_t oracle_cast_at(uint64_t n)
{
    uint32_t quant = 0;

    for (n %= oracle_casts(); casts[quant].bits == 0 || n > 0; quant++) n -= casts[quant].bits != 0;
    return (xep_quant_t)quant;
}

uint32_t oracle_casts(void)
{
    uint32_t count = 0;

    for (size_t quant = 0; quant < sizeof casts / sizeof *casts; quant++) count += casts[quant].bits != 0;
    return count;
}

static uint32_t group_of(const oracle_shape_t *shape)
{
    const uint32_t group = casts[shape->quant].group;
    return group == 0 ? shape->hidden : group;
}

/* The last group may be short, but has a scale, too. */
static uint32_t groups_of(const oracle_shape_t *shape)
{
    return (shape->hidden + group_of(shape) - 1) / group_of(shape);
}

/* The type that arrives: another one than was sent if rows are cast on their way. */
xep_dtype_t oracle_received_dtype(const oracle_shape_t *shape)
{
    return shape->quant == XEP_QUANT_NONE ? shape->dtype : casts[shape->quant].dtype;
}

uint32_t oracle_received_hidden(const oracle_shape_t *shape)
{
    return oracle_received_dtype(shape) == XEP_E2M1X2 ? (shape->hidden + 1) / 2 : shape->hidden;
}

size_t oracle_received_bytes(const oracle_shape_t *shape)
{
    return oracle_received_hidden(shape) * oracle_element_bytes(oracle_received_dtype(shape));
}

xep_dtype_t oracle_received_scales_dtype(const oracle_shape_t *shape)
{
    if (shape->quant == XEP_QUANT_NONE) return shape->scales_dtype;
    return casts[shape->quant].scale_bytes == 1 ? XEP_INT32 : XEP_FP32;
}

uint32_t oracle_received_scales(const oracle_shape_t *shape)
{
    if (shape->quant == XEP_QUANT_NONE) return shape->nscales;
    return (groups_of(shape) * (uint32_t)casts[shape->quant].scale_bytes + 3) / 4 +
           (uint32_t)casts[shape->quant].row_words;
}

/* ---- DeepEP's: e4m3, groups of 128 ---- */

/*
 * The scale of a group, and in *factor_p the factor of its elements. A power of two is found by doubling, not by its
 * bits as in the library; it is never below 2^-30, as amax is at least 1e-4.
 */
static float scale_of(const oracle_shape_t *shape, float amax, float *factor_p)
{
    float power = 0x1p-30f;

    *factor_p = 448.0f / amax;
    if (shape->quant == XEP_QUANT_E4M3) return amax * (1.0f / 448.0f);
    if (isinf(amax)) power = amax;
    while (power * 448.0f < amax) power *= 2;
    *factor_p = 1 / power;
    return power;
}

/* The least amax is part of the definition: a group of zeros has a scale, too, and no division by 0. */
static float cast_group(const oracle_shape_t *shape, const void *row, uint32_t from, uint8_t *q)
{
    const uint32_t end = from + GROUP < shape->hidden ? from + GROUP : shape->hidden;
    float amax = 1e-4f, factor, scale;

    for (uint32_t h = from; h < end; h++) {
        const float magnitude = fabsf(oracle_element(row, shape->dtype, h));
        if (magnitude > amax) amax = magnitude; /* not fmaxf(), which ignores a NaN */
    }
    scale = scale_of(shape, amax, &factor);
    for (uint32_t h = from; h < end; h++) q[h] = oracle_float_to_e4m3(oracle_element(row, shape->dtype, h) * factor);
    return scale;
}

/* Packed scales are the exponents alone. */
static void cast_row_deepep(const oracle_shape_t *shape, const void *row, uint8_t *q, uint32_t *scales)
{
    for (uint32_t g = 0; g < groups_of(shape); g++) {
        const float scale = cast_group(shape, row, g * GROUP, q);
        uint32_t bits;
        memcpy(&bits, &scale, sizeof bits);
        if (shape->quant == XEP_QUANT_UE8M0) ((uint8_t *)scales)[g] = (uint8_t)(bits >> 23);
        else scales[g] = bits;
    }
}

/* ---- all others ---- */

/* ldexp(1, exponent), which as a call was a tenth of what the simulator takes. */
static double power_of_two(int exponent)
{
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;

    memcpy(&power, &bits, sizeof power);
    return power;
}

/*
 * The nearest number of the type by its definition, in double: a multiple of the last place, which the exponent
 * determines.
 */
static double nearest(const struct cast *cast, double value)
{
    int exponent = 0;
    const double magnitude = fabs(value);

    if (isinf(value)) return copysign(cast->most, value);
    if (cast->places == 0) return nearbyint(value);
    if (magnitude > 0) exponent = ilogb(magnitude);
    if (magnitude == 0 || exponent < cast->least) exponent = cast->least;
    const double place = power_of_two(exponent - cast->places), number = nearbyint(magnitude / place) * place;
    return copysign(number > cast->most ? cast->most : number, value);
}

/* Codes of floats count the numbers of the type from zero on. */
static uint8_t code_of(const struct cast *cast, double number)
{
    const double magnitude = fabs(number);
    int exponent = cast->least, code;

    if (cast->places == 0) return (uint8_t)(int8_t)number;
    if (magnitude >= power_of_two(cast->least)) exponent = ilogb(magnitude);
    code = (int)(magnitude * power_of_two(cast->places - exponent)) + ((exponent - cast->least) << cast->places);
    return (uint8_t)(code | (signbit(number) ? 1 << (cast->bits - 1) : 0));
}

static void set_code(const struct cast *cast, uint8_t *q, uint32_t h, uint8_t code)
{
    if (cast->bits == 8) q[h] = code;
    else q[h / 2] = (uint8_t)(h % 2 == 0 ? code : q[h / 2] | code << 4);
}

/* The greatest magnitude; NaN if there is an Inf or a NaN. */
static float amax_of(const oracle_shape_t *shape, const void *row, uint32_t from, uint32_t end)
{
    float amax = 0;

    for (uint32_t h = from; h < end; h++) {
        const float magnitude = fabsf(oracle_element(row, shape->dtype, h));
        if (!isfinite(magnitude)) return NAN;
        if (magnitude > amax) amax = magnitude;
    }
    return amax;
}

/* Stores the canonical NaN for any NaN. */
static void set_scale(uint32_t *word, float scale)
{
    memcpy(word, &scale, sizeof scale);
    if (isnan(scale)) *word = 0x7fc00000;
}

/* Stores the scale of a group; returns the factor of its elements. */
static float scale_group(const oracle_shape_t *shape, float amax, float inverse, uint32_t g, uint32_t *scales)
{
    const struct cast *cast = &casts[shape->quant];
    uint8_t *bytes = (uint8_t *)scales;

    if (shape->quant == XEP_QUANT_E4M3_STATIC) return inverse;
    if (cast->scale_bytes == 4) {
        const float most = amax < 1e-10f ? 1e-10f : amax, scale = isnan(amax) ? NAN : most / 127.0f;
        set_scale(&scales[g], scale);
        return 127.0f / most;
    }
    if (shape->quant == XEP_QUANT_NVFP4) {
        const double byte = isnan(amax) ? NAN : nearest(&casts[XEP_QUANT_E4M3], amax * (1.0f / 6.0f) * inverse);
        bytes[g] = isnan(amax) ? 0x7f : code_of(&casts[XEP_QUANT_E4M3], byte);
        return byte == 0 ? 0 : inverse / (float)byte;
    }
    int e = -127;
    for (double most = cast->most * power_of_two(e); !isnan(amax) && (double)amax > most; e++) most *= 2;
    bytes[g] = isnan(amax) ? 255 : (uint8_t)(e + 127);
    return ldexpf(1, -e);
}

static void cast_row(const oracle_shape_t *shape, const void *row, uint8_t *q, uint32_t *scales)
{
    const struct cast *cast = &casts[shape->quant];
    const uint32_t words = oracle_received_scales(shape);
    float inverse = 1.0f / shape->quant_scale, scale = shape->quant_scale;

    if (shape->quant == XEP_QUANT_NVFP4) {
        if (scale == 0) {
            float amax = amax_of(shape, row, 0, shape->hidden);
            if (amax < 0x1p-100f) amax = 0x1p-100f;
            scale = amax / 2688.0f;
            inverse = isnan(amax) ? 1 : 2688.0f / amax;
        }
        set_scale(&scales[words - 1], scale);
    }
    for (uint32_t g = 0; g < groups_of(shape); g++) {
        const uint32_t from = g * group_of(shape);
        const uint32_t end = from + group_of(shape) < shape->hidden ? from + group_of(shape) : shape->hidden;
        const float amax = amax_of(shape, row, from, end), factor = scale_group(shape, amax, inverse, g, scales);
        for (uint32_t h = from; h < end; h++) {
            const float product = oracle_element(row, shape->dtype, h) * factor;
            uint8_t code = 0;
            if (shape->quant == XEP_QUANT_E4M3_STATIC) code = oracle_float_to_e4m3(product);
            else if (!isnan(amax)) code = code_of(cast, nearest(cast, (double)product));
            set_code(cast, q, h, code);
        }
    }
}

/* A word has four scales of a byte, the first in the lowest byte; unused bytes are 0. */
void oracle_cast_row(const oracle_shape_t *shape, const void *row, uint8_t *q, uint32_t *scales)
{
    memset(scales, 0, oracle_received_scales(shape) * sizeof *scales);
    if (shape->quant <= XEP_QUANT_UE8M0) cast_row_deepep(shape, row, q, scales);
    else cast_row(shape, row, q, scales);
}

/* ---- and back ---- */

/* The value of a code; NaN for codes above that of the largest finite value. */
static double number_of(const struct cast *cast, int code)
{
    const int magnitude = code & ((1 << (cast->bits - 1)) - 1), exponent = magnitude >> cast->places;
    const int fraction = magnitude & ((1 << cast->places) - 1);
    double number = fraction * power_of_two(cast->least - cast->places);

    if (cast->places == 0) return (int8_t)code;
    if (exponent > 0) number = (number + power_of_two(cast->least)) * power_of_two(exponent - 1);
    if (number > cast->most) return NAN;
    return code >> (cast->bits - 1) ? -number : number;
}

static float scale_back(const oracle_shape_t *shape, const uint32_t *scales, uint32_t g)
{
    const struct cast *cast = &casts[shape->quant];
    const uint8_t byte = cast->scale_bytes == 1 ? ((const uint8_t *)scales)[g] : 0;
    float scale;

    if (cast->scale_bytes == 0) return shape->quant_scale;
    if (cast->scale_bytes == 1 && cast->row_words == 0) return byte == 255 ? NAN : ldexpf(1, byte - 127);
    memcpy(&scale, &scales[cast->row_words ? oracle_received_scales(shape) - 1 : g], sizeof scale);
    return cast->row_words ? (float)number_of(&casts[XEP_QUANT_E4M3], byte) * scale : scale;
}

/* Products are rounded to fp32, and then to bf16. */
void oracle_cast_journey(const oracle_shape_t *shape, const void *row, uint16_t *arrived)
{
    const struct cast *cast = &casts[shape->quant];
    int code = 0;

    if (shape->quant == XEP_QUANT_LOGFMT) {
        oracle_logfmt_journey(row, shape->hidden, arrived, &code);
        return;
    }
    uint8_t *q = oracle_alloc(oracle_received_bytes(shape));
    uint32_t *scales = oracle_alloc((oracle_received_scales(shape) + UINT64_C(1)) * sizeof *scales);
    oracle_cast_row(shape, row, q, scales);
    for (uint32_t h = 0; h < shape->hidden; h++) {
        code = cast->bits == 8 ? q[h] : q[h / 2] >> h % 2 * 4 & 15;
        arrived[h] =
            oracle_float_to_bf16((float)number_of(cast, code) * scale_back(shape, scales, h / group_of(shape)));
    }
    free(scales);
    free(q);
}

size_t oracle_travel_bytes(const oracle_shape_t *shape)
{
    const oracle_shape_t travels = {.hidden = shape->hidden, .dtype = XEP_BF16, .quant = shape->combine_quant};

    if (shape->combine_quant == XEP_QUANT_NONE) return shape->hidden * oracle_element_bytes(shape->combine_dtype);
    if (shape->combine_quant == XEP_QUANT_LOGFMT)
        return (shape->hidden + UINT64_C(15)) / 16 * 20 + (shape->hidden + UINT64_C(127)) / 128 * 4;
    return (oracle_received_bytes(&travels) + 3) / 4 * 4 + oracle_received_scales(&travels) * 4;
}
