/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * In fp32 arithmetic, one element after the other: the order of operations is part of the definition in xep.h, as q
 * depends on how the factor was rounded.
 */
#include "oracle_cast.h"

#include <math.h>
#include <string.h>

#include "oracle_number.h"

enum { GROUP = 128 };

/* The last group may be short; it has a scale all the same. */
static uint32_t groups_of(const oracle_shape_t *shape)
{
    return (shape->hidden + GROUP - 1) / GROUP;
}

/* The type that arrives, which is not the one that was sent where rows are cast on their way. */
xep_dtype_t oracle_received_dtype(const oracle_shape_t *shape)
{
    return shape->quant == XEP_QUANT_NONE ? shape->dtype : XEP_E4M3;
}

size_t oracle_received_bytes(const oracle_shape_t *shape)
{
    return shape->hidden * oracle_element_bytes(oracle_received_dtype(shape));
}

uint32_t oracle_received_scales(const oracle_shape_t *shape)
{
    if (shape->quant == XEP_QUANT_NONE) return shape->nscales;
    return shape->quant == XEP_QUANT_UE8M0 ? (groups_of(shape) + 3) / 4 : groups_of(shape);
}

/*
 * The scale of a group, and in *factor_p what its elements are multiplied by. A power of two is found by doubling, and
 * not by its bits as the library does; below 2^-30 it never falls, as amax is 1e-4 at least.
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
        if (magnitude > amax) amax = magnitude; /* not fmaxf(), which gives way to a signalling NaN */
    }
    scale = scale_of(shape, amax, &factor);
    for (uint32_t h = from; h < end; h++) q[h] = oracle_float_to_e4m3(oracle_element(row, shape->dtype, h) * factor);
    return scale;
}

/*
 * Packed scales are the exponents alone, four in a word, the first in the lowest byte; bytes that are left over are 0.
 */
void oracle_cast_row(const oracle_shape_t *shape, const void *row, uint8_t *q, uint32_t *scales)
{
    memset(scales, 0, oracle_received_scales(shape) * sizeof *scales);
    for (uint32_t g = 0; g < groups_of(shape); g++) {
        const float scale = cast_group(shape, row, g * GROUP, q);
        uint32_t bits;
        memcpy(&bits, &scale, sizeof bits);
        if (shape->quant == XEP_QUANT_UE8M0) scales[g / 4] |= (bits >> 23) << 8 * (g % 4);
        else scales[g] = bits;
    }
}
