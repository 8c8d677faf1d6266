/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The walk of the vector casts to e4m3 with a scale for each 128 channels. Included behind cast_vectors.h by the file
 * of an instruction set, which has said codes_of_group() and, for bf16, codes_by_table() (cast_table.h; 0: the group
 * has numbers that it does not know, and all of it is to be done by codes_of_group()). As many groups at a time as a
 * vector has floats: first the largest magnitude of each, then their scales in one vector, then the codes. Group by
 * group, each would wait for its own reduction and division. A group with an Inf or a NaN is left to the definition.
 */
#ifndef XEP_CAST_BLOCKS_H
#define XEP_CAST_BLOCKS_H

/* xep_cast_scale() of a block's groups; what it gives for a group that is not finite is not used */
KERNEL floats_t find_scales(floats_t amax, int pow2, floats_t *scale_p)
{
    floats_t scale = amax * (1.0f / 448.0f);
    if (!pow2) {
        *scale_p = scale;
        return 448.0f / amax;
    }
    /* the least power of two that is not smaller: a carry out of the fraction */
    words_t power = ((words_t)scale + 0x7fffffu) & 0x7f800000u;
    *scale_p = (floats_t)power;
    return (floats_t)((254u << 23) - power);
}

/*
 * Codes go to lines that others have read since they were last written, so each store would have to take its line away
 * from all of them first. STORES_AHEAD: bytes; behind the end of this row another one follows.
 */
enum { STORES_AHEAD = 2048 };

KERNEL void fetch_codes(const uint8_t *q)
{
    UNROLL for (size_t i = 0; i < XEP_CAST_GROUP; i += LINE) __builtin_prefetch(q + STORES_AHEAD + i, 1);
}

KERNEL void cast_block(int type, uint8_t *q, float *scales, const char *x, size_t groups, int pow2, const char *next)
{
    const size_t step = XEP_CAST_GROUP * xep_cast_type_bytes(type);
    const uint32_t least = xep_bits_of_float(XEP_CAST_LEAST_AMAX);
    union {
        floats_t vector;
        float one[LANES];
        uint32_t bits[LANES];
    } amax = {0}, scale, factor;
    for (size_t g = 0; g < groups; g++) {
        uint32_t most = amax_of(type, x + g * step, XEP_CAST_GROUP);
        amax.bits[g] = most > least ? most : least;
        UNROLL for (size_t i = 0; i < step; i += LINE) __builtin_prefetch(next + g * step + i);
    }
    factor.vector = find_scales(amax.vector, pow2, &scale.vector);
    for (size_t g = 0; g < groups; g++, x += step, q += XEP_CAST_GROUP) {
        scales[g] = scale.one[g];
        fetch_codes(q);
        if (amax.bits[g] >= 0x7f800000) xep_cast_group(type, q, &scales[g], x, XEP_CAST_GROUP, pow2);
        else if (type != XEP_CAST_BF16 || !codes_by_table(q, x, amax.bits[g], scale.bits[g], pow2))
            codes_of_group(type, q, x, factor.one[g]);
    }
}

KERNEL void cast_blocks(int type, uint8_t *q, float *scales, const void *x, size_t groups, int pow2, const void *next)
{
    const char *from = x, *ahead = next;
    for (size_t g = 0; g < groups; g += LANES) {
        size_t n = groups - g < LANES ? groups - g : LANES, bytes = n * XEP_CAST_GROUP * xep_cast_type_bytes(type);
        cast_block(type, q + g * XEP_CAST_GROUP, scales + g, from, n, pow2, ahead);
        from += bytes, ahead += bytes;
    }
}

TARGET static void bf16_groups(uint8_t *q, float *scales, const void *x, size_t groups, int pow2, const void *next)
{
    cast_blocks(XEP_CAST_BF16, q, scales, x, groups, pow2, next);
}

static void cast_bf16(uint8_t *q, float *scales, const void *x, size_t elems, int pow2, const void *next)
{
    xep_cast_row(bf16_groups, XEP_CAST_BF16, q, scales, x, elems, pow2, next);
}

#ifndef BF16_ALONE

TARGET static void fp16_groups(uint8_t *q, float *scales, const void *x, size_t groups, int pow2, const void *next)
{
    cast_blocks(XEP_CAST_FP16, q, scales, x, groups, pow2, next);
}

TARGET static void fp32_groups(uint8_t *q, float *scales, const void *x, size_t groups, int pow2, const void *next)
{
    cast_blocks(XEP_CAST_FP32, q, scales, x, groups, pow2, next);
}

static void cast_fp16(uint8_t *q, float *scales, const void *x, size_t elems, int pow2, const void *next)
{
    xep_cast_row(fp16_groups, XEP_CAST_FP16, q, scales, x, elems, pow2, next);
}

static void cast_fp32(uint8_t *q, float *scales, const void *x, size_t elems, int pow2, const void *next)
{
    xep_cast_row(fp32_groups, XEP_CAST_FP32, q, scales, x, elems, pow2, next);
}

#endif

#endif
