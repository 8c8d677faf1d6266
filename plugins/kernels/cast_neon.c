/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * All casts with NEON: what cast_vectors.h cannot say in C of a vector of four floats, and e4m3 of bf16 by the table, a
 * byte of which is looked up for each of sixteen numbers at once.
 */
#include "cast_table.h"

#if defined(__aarch64__)

#include <arm_neon.h>

enum { VECTOR = 16, UNIT = 16 };

#define TARGET
#define REGISTER "w"
#define NEON     __attribute__((always_inline)) static inline

typedef uint32_t words_t __attribute__((vector_size(VECTOR)));
typedef uint16_t halves_t __attribute__((vector_size(VECTOR)));
typedef halves_t singles_t;
typedef uint8_t unit_t __attribute__((vector_size(UNIT)));

NEON halves_t max16(halves_t a, halves_t b)
{
    return (halves_t)vmaxq_u16((uint16x8_t)a, (uint16x8_t)b);
}

NEON uint16_t largest_half(halves_t v)
{
    return vmaxvq_u16((uint16x8_t)v);
}

NEON words_t max32(words_t a, words_t b)
{
    return (words_t)vmaxq_s32((int32x4_t)a, (int32x4_t)b);
}

NEON words_t min32(words_t a, words_t b)
{
    return (words_t)vminq_s32((int32x4_t)a, (int32x4_t)b);
}

NEON uint32_t largest_word(words_t v)
{
    return (uint32_t)vmaxvq_s32((int32x4_t)v);
}

NEON int is_any_below(singles_t v, uint16_t least)
{
    return vminvq_u16((uint16x8_t)v) < least;
}

NEON words_t load_fp16(const char *x)
{
    return (words_t)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const void *)x)));
}

/* every other half of two vectors, then every other byte: codes have no more */
NEON unit_t pack(const words_t codes[4])
{
    uint16x8_t low = vuzp1q_u16((uint16x8_t)codes[0], (uint16x8_t)codes[1]);
    uint16x8_t high = vuzp1q_u16((uint16x8_t)codes[2], (uint16x8_t)codes[3]);
    return (unit_t)vuzp1q_u8((uint8x16_t)low, (uint8x16_t)high);
}

#include "cast_vectors.h"

const xep_cast_row_fn xep_cast_rows_neon[XEP_CAST_TABLE][XEP_CAST_TYPES] = {XEP_CAST_BLOCKS(CAST_ENTRY_)};

/* ---- e4m3 with a scale for each 128 channels ---- */

NEON void codes_of_group(int type, uint8_t *q, const char *x, float factor)
{
    codes_of(&e4m3_rule, type, q, x, XEP_CAST_GROUP, factor);
}

/*
 * 16 bf16. The low byte of a number has the last bit of its exponent above its fraction, the high one the sign above
 * the rest of the exponent. rare gets the bytes whose codes the table does not know: of numbers too small, zero apart.
 */
NEON void look_up_16(uint8_t *q, const char *x, uint8x16_t first, uint8x16_t last, uint8x16_t top, uint8x16_t *rare)
{
    const uint8x16x2_t bytes = vld2q_u8((const uint8_t *)x);
    const uint8x16_t low = bytes.val[0], high = bytes.val[1], fraction = vandq_u8(low, vdupq_n_u8(0x7f));
    const uint8x16_t exponents = vsriq_n_u8(vshlq_n_u8(high, 1), low, 7), h = vshrq_n_u8(fraction, 3);
    const uint8x16_t is_next = vcgtq_u8(vandq_u8(low, vdupq_n_u8(7)), vqtbl1q_u8(last, h)); /* -1 */
    const uint8x16_t below = vminq_u8(vsubq_u8(top, exponents), vdupq_n_u8(16));
    uint8x16_t codes = vsubq_u8(vqtbl1q_u8(first, h), is_next);
    codes = vqsubq_u8(codes, vshlq_n_u8(below, 3));
    const uint8x16_t magnitude = vorrq_u8(fraction, exponents), is_some = vtstq_u8(magnitude, magnitude);
    *rare = vorrq_u8(*rare, vandq_u8(is_some, vcltq_u8(codes, vdupq_n_u8(XEP_CAST_LEAST_PLACE))));
    vst1q_u8(q, vorrq_u8(codes, vandq_u8(high, vdupq_n_u8(0x80))));
}

/* Returns 0 where the table lacks a code: the caller makes all of the group again, by arithmetic. */
NEON int codes_by_table(uint8_t *q, const char *x, uint32_t amax, uint32_t scale, int pow2)
{
    uint8_t top;
    const xep_cast_codes_t *codes = xep_cast_codes_of(amax, scale, pow2, &top);
    if (codes == NULL) return 0;
    const uint8x16_t steps = vld1q_u8(codes->steps), last = vandq_u8(steps, vdupq_n_u8(15));
    const uint8x16_t first = vaddq_u8(vshrq_n_u8(steps, 4), vdupq_n_u8(codes->first));
    uint8x16_t rare = vdupq_n_u8(0);
    UNROLL for (size_t i = 0; i < XEP_CAST_GROUP; i += 16)
        look_up_16(q + i, x + i * 2, first, last, vdupq_n_u8(top), &rare);
    return vmaxvq_u8(rare) == 0;
}

#include "cast_blocks.h"

const xep_cast_fn xep_cast_neon[XEP_CAST_TYPES] = {cast_bf16, cast_fp16, cast_fp32};

#endif
