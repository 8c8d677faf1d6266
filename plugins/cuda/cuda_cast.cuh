/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows cast on the way, by the rules and the definitions of plugins/kernels (cast_formats.h): one walk for all casts,
 * compiled for each. A lane has EACH channels of a group, and a warp all groups of a unit.
 */
#ifndef XEP_CUDA_CAST_CUH
#define XEP_CUDA_CAST_CUH

#include <cast_formats.h>

#include "cuda_args.h"
#include "cuda_elements.cuh"

/* Channels of a lane, and of a warp at once; units whose loads a warp has on their way. */
enum { EACH = 8, UNIT = 32 * EACH, AHEAD = 4 };

/* DeepEP's casts have rules of their own for NaN, Inf and zeros, and a scale that follows by cast_kernels.h. */
template <int QUANT> __device__ constexpr xep_cast_rule_t rule_of()
{
    return {XEP_E4M3, XEP_ELEMENT_E4M3, QUANT == XEP_QUANT_UE8M0 ? XEP_SCALE_E8M0 : XEP_SCALE_FP32, XEP_CAST_GROUP};
}

#define RULE_OF_(_quant, _name, _dtype, _element, _scale, _group)                  \
    template <> __device__ constexpr xep_cast_rule_t rule_of<XEP_QUANT_##_quant>() \
    {                                                                              \
        return {_dtype, _element, _scale, _group};                                 \
    }
XEP_CAST_BLOCKS(RULE_OF_)

template <int QUANT> __device__ constexpr bool is_deepep()
{
    return QUANT <= XEP_QUANT_UE8M0;
}

/* The channels of a lane; 0 behind the end of the row. */
template <typename E> struct channels {
    static constexpr int PACKS = EACH * sizeof(typename E::raw) / 16;
    union {
        int4 pack[PACKS];
        typename E::raw raw[EACH];
    };

    __device__ __forceinline__ void load(const char *row, uint32_t first, uint32_t hidden, int aligned)
    {
        const typename E::raw *from = (const typename E::raw *)row + first;
        if (aligned && first + EACH <= hidden) {
#pragma unroll
            for (int i = 0; i < PACKS; i++) pack[i] = ((const int4 *)from)[i];
        } else {
#pragma unroll
            for (int i = 0; i < EACH; i++) raw[i] = first + i < hidden ? from[i] : 0;
        }
    }
};

/* ---- codes ---- */

static __device__ __forceinline__ uint32_t e4m3_pair(float low, float high)
{
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

static __device__ __forceinline__ uint32_t e5m2_pair(float low, float high)
{
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Two channels of 8 bits, or of 4 in a byte. */
template <int QUANT> static __device__ __forceinline__ uint32_t code_pair(float low, float high)
{
    constexpr xep_cast_element_t element = rule_of<QUANT>().element;
    if (element.fraction == 0) return (__float2int_rn(low) & 0xff) | (__float2int_rn(high) & 0xff) << 8;
    if (element.bits == 4) return xep_e2m1_of_float(low) | xep_e2m1_of_float(high) << 4;
    return element.fraction == 3 ? e4m3_pair(low, high) : e5m2_pair(low, high);
}

/* The channels of a lane; those behind the end of the row are 0, and so is what they share a byte with. */
template <int QUANT>
static __device__ __forceinline__ void store_codes(uint8_t *q, uint32_t first, uint32_t hidden, const float *value,
                                                   float factor, int is_number)
{
    constexpr uint32_t BITS = rule_of<QUANT>().element.bits, PAIR = 2 * BITS, WORDS = EACH * BITS / 32;
    uint32_t out[WORDS] = {};
#pragma unroll
    for (uint32_t i = 0; i < EACH / 2; i++)
        out[i * PAIR / 32] |= code_pair<QUANT>(__fmul_rn(value[2 * i], factor), __fmul_rn(value[2 * i + 1], factor))
                              << i * PAIR % 32;
#pragma unroll
    for (uint32_t i = 0; i < WORDS; i++) out[i] = is_number ? out[i] : 0;
    q += first * BITS / 8;
    if (first + EACH <= hidden && WORDS == 2) *(uint2 *)q = make_uint2(out[0], out[WORDS - 1]);
    else if (first + EACH <= hidden) *(uint32_t *)q = out[0];
    else
        for (uint32_t i = 0; i < ((hidden - first) * BITS + 7) / 8; i++) q[i] = (uint8_t)(out[i / 4] >> 8 * (i % 4));
}

/* ---- scales ---- */

/* What all groups of a row have in common: bits of its largest magnitude; its own scale, and the inverse of that. */
typedef struct whole_row {
    uint32_t amax, word;
    float inverse;
} whole_row_t;

/* Whether the whole row is looked at before a channel is cast. */
template <int QUANT> static __device__ __forceinline__ bool needs_row(float given)
{
    constexpr xep_cast_rule_t rule = rule_of<QUANT>();
    return rule.scale == XEP_SCALE_E4M3 ? given == 0 : rule.scale == XEP_SCALE_FP32 && rule.group == XEP_CAST_WHOLE_ROW;
}

template <int QUANT> static __device__ __forceinline__ whole_row_t row_of(float given, uint32_t amax)
{
    whole_row_t row = {amax, __float_as_uint(given), 1};
    if (rule_of<QUANT>().scale == XEP_SCALE_E4M3 && given == 0) row.inverse = xep_cast_scale_row(amax, &row.word);
    else if (given != 0) row.inverse = __fdiv_rn(1.0f, given);
    return row;
}

/* Of a group; of DeepEP's, in which a NaN does not count, at least 1e-4. */
template <int QUANT> static __device__ __forceinline__ uint32_t amax_of(const float *value)
{
    uint32_t amax = is_deepep<QUANT>() ? __float_as_uint(XEP_CAST_LEAST_AMAX) : 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (!is_deepep<QUANT>() || value[i] == value[i]) amax = max(amax, __float_as_uint(fabsf(value[i])));
    return amax;
}

/* The scale of a group, as the bytes that travel; returns what its channels are multiplied by. */
template <int QUANT>
static __device__ __forceinline__ float find_scale(uint32_t amax, float inverse, int is_number, uint32_t *scale_p)
{
    const xep_cast_rule_t rule = rule_of<QUANT>();
    uint8_t bytes[4] = {};
    float scale, factor = 0;
    if (is_deepep<QUANT>()) {
        factor = xep_cast_scale(__uint_as_float(amax), QUANT != XEP_QUANT_E4M3, &scale);
        *scale_p = QUANT == XEP_QUANT_UE8M0 ? __float_as_uint(scale) >> 23 : __float_as_uint(scale);
        return factor;
    }
    if (is_number) factor = xep_cast_scale_group(&rule, amax, inverse, bytes, 0);
    else xep_cast_scale_no_number(&rule, bytes, 0);
    memcpy(scale_p, bytes, sizeof bytes);
    return factor;
}

/* One lane of a group. That of the last one fills up its word, and adds that of the row. */
template <int QUANT>
static __device__ __forceinline__ void store_scale(uint8_t *scales, uint32_t group, uint32_t groups, uint32_t scale,
                                                   const whole_row_t &row)
{
    constexpr xep_scale_kind_t kind = rule_of<QUANT>().scale;
    if constexpr (kind == XEP_SCALE_FP32) ((uint32_t *)scales)[group] = scale;
    if constexpr (kind == XEP_SCALE_E8M0 || kind == XEP_SCALE_E4M3) {
        scales[group] = (uint8_t)scale;
        if (group + 1 != groups) return;
        for (uint32_t i = groups; i % 4 != 0; i++) scales[i] = 0;
        if (kind == XEP_SCALE_E4M3) ((uint32_t *)scales)[(groups + 3) / 4] = row.word;
    }
}

/* ---- the walk ---- */

/* The groups of a unit. */
template <int QUANT, typename E>
static __device__ __forceinline__ void cast_unit(uint32_t hidden, uint8_t *q, uint8_t *scales, uint32_t first,
                                                 const channels<E> &x, const whole_row_t &row)
{
    constexpr xep_cast_rule_t rule = rule_of<QUANT>();
    constexpr uint32_t GROUP = rule.group, LANES = GROUP == XEP_CAST_WHOLE_ROW ? 1 : GROUP / EACH;
    const uint32_t group = first / GROUP, groups = (hidden - 1) / GROUP + 1;
    uint32_t scale;
    float value[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) value[i] = E::load(x.raw[i]);
    uint32_t amax = GROUP == XEP_CAST_WHOLE_ROW ? row.amax : amax_of<QUANT>(value);
#pragma unroll
    for (uint32_t step = LANES / 2; step > 0; step /= 2) amax = max(amax, __shfl_xor_sync(UINT32_MAX, amax, step));
    /* not before: lanes behind the end of the row are needed by the shuffles */
    if (first >= hidden) return;
    const int is_number = is_deepep<QUANT>() || amax < XEP_CAST_INFINITE;
    const float factor = find_scale<QUANT>(amax, row.inverse, is_number, &scale);
    store_codes<QUANT>(q, first, hidden, value, factor, is_number);
    if (first % GROUP == 0) store_scale<QUANT>(scales, group, groups, scale, row);
}

/* Units begin, begin + step, .. before end, over all rows; a warp has the loads of some of them on their way. */
template <int QUANT, typename E>
static __device__ __forceinline__ void cast_units(const xep_cuda_cast_t &c, uint8_t *rows, uint32_t begin,
                                                  uint32_t step, uint32_t end, const whole_row_t &row)
{
    const uint32_t hidden = c.hidden, of_row = (hidden + UNIT - 1) / UNIT;
    const int aligned = ((uint64_t)c.x | c.x_stride) % 16 == 0;
    for (; begin < end; begin += AHEAD * step) {
        channels<E> x[AHEAD];
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) {
            const uint32_t u = begin + a * step, first = u % of_row * UNIT + threadIdx.x % 32 * EACH;
            if (u < end) x[a].load(c.x + u / of_row * c.x_stride, first, hidden, aligned);
        }
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) {
            const uint32_t u = begin + a * step, first = u % of_row * UNIT + threadIdx.x % 32 * EACH;
            uint8_t *q = rows + u / of_row * c.row_stride, *scales = rows + c.scales + u / of_row * c.scales_stride;
            if (u < end) cast_unit<QUANT, E>(hidden, q, scales, first, x[a], row);
        }
    }
}

/* A warp. */
template <typename E> static __device__ __forceinline__ uint32_t row_amax(const xep_cuda_cast_t &c, uint32_t token)
{
    const int aligned = ((uint64_t)c.x | c.x_stride) % 16 == 0;
    uint32_t amax = 0;
#pragma unroll 4
    for (uint32_t first = threadIdx.x % 32 * EACH; first < c.hidden; first += UNIT) {
        channels<E> x;
        x.load(c.x + token * c.x_stride, first, c.hidden, aligned);
#pragma unroll
        for (int i = 0; i < EACH; i++) amax = max(amax, __float_as_uint(fabsf(E::load(x.raw[i]))));
    }
    return __reduce_max_sync(UINT32_MAX, amax);
}

/*
 * All rows, by so many warps, of which this is one. Where a row is looked at first, warps have as many of its units
 * each as come out even: the more warps share few rows, the more often these are looked at, in the cache.
 */
template <int QUANT, typename E>
static __device__ __noinline__ void cast_rows_as(const xep_cuda_cast_t &c, uint8_t *rows, uint32_t warp, uint32_t warps)
{
    const uint32_t of_row = (c.hidden + UNIT - 1) / UNIT, units = c.tokens * of_row;
    if (!needs_row<QUANT>(c.scale)) {
        cast_units<QUANT, E>(c, rows, warp, warps, units, row_of<QUANT>(c.scale, 0));
        return;
    }
    const uint32_t share = min(of_row, (units + warps - 1) / warps), shares = (of_row + share - 1) / share;
    for (uint32_t i = warp; i < c.tokens * shares; i += warps) {
        const uint32_t t = i / shares, begin = t * of_row + i % shares * share;
        const whole_row_t row = row_of<QUANT>(c.scale, row_amax<E>(c, t));
        cast_units<QUANT, E>(c, rows, begin, 1, min(begin + share, (t + 1) * of_row), row);
    }
}

#define CASE_(_quant, _name, _dtype, _element, _scale, _group) \
    case XEP_QUANT_##_quant: cast_rows_as<XEP_QUANT_##_quant, E>(c, rows, warp, warps); break;

template <typename E>
static __device__ __forceinline__ void cast_rows_of(const xep_cuda_cast_t &c, uint8_t *rows, uint32_t warp,
                                                    uint32_t warps)
{
    switch (c.quant) {
    case XEP_QUANT_E4M3: cast_rows_as<XEP_QUANT_E4M3, E>(c, rows, warp, warps); break;
    case XEP_QUANT_E4M3_POW2: cast_rows_as<XEP_QUANT_E4M3_POW2, E>(c, rows, warp, warps); break;
    case XEP_QUANT_UE8M0:
        cast_rows_as<XEP_QUANT_UE8M0, E>(c, rows, warp, warps);
        break;
        XEP_CAST_BLOCKS(CASE_)
    }
}

/* All rows, by so many warps, of which this is one. */
static __device__ __forceinline__ void cast_rows(const xep_cuda_cast_t &c, char *rows, uint32_t warp, uint32_t warps)
{
    if (c.dtype == XEP_FP32) cast_rows_of<fp32_t>(c, (uint8_t *)rows, warp, warps);
    else if (c.dtype == XEP_BF16) cast_rows_of<bf16_t>(c, (uint8_t *)rows, warp, warps);
    else cast_rows_of<fp16_t>(c, (uint8_t *)rows, warp, warps);
}

#endif
