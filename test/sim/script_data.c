/* SPDX-License-Identifier: BSD-3-Clause */

/* Inputs as pure functions of (seed, call, rank, token, ...), and the arithmetic of the oracle. */
#include <math.h>
#include <string.h>

#include "script.h"

/* ---- routing ---- */

int64_t script_expert(const script_t *script, const script_call_t *call, uint32_t rank, uint64_t token, uint32_t k)
{
    uint64_t h = sim_hash(script->seed, call->origin, rank, token, k), experts = script->shape.experts;
    switch (call->route) {
    case ROUTE_NOWHERE:
        return -1;
    case ROUTE_ONE_EXPERT:
        return (int64_t)(experts / 2);
    case ROUTE_SELF: {
        uint64_t e = h % experts;
        return script_owner(script, (int64_t)e) == rank ? (int64_t)e : -1;
    }
    case ROUTE_ALL:
        return (int64_t)((token + k * script->shape.nranks) % experts);
    case ROUTE_DUPLICATES:
        return h % 5 == 0 ? -1 : (int64_t)(sim_hash(script->seed, call->origin, rank, token, k / 2) % experts);
    default:
        return h % 7 == 0 ? -1 : (int64_t)(h / 7 % experts);
    }
}

uint32_t script_first_expert(const script_t *script, uint32_t rank)
{
    uint32_t first = 0;
    for (uint32_t r = 0; r < rank; r++)
        first += script->shape.experts / script->shape.nranks + (r < script->shape.experts % script->shape.nranks);
    return first;
}

uint32_t script_owner(const script_t *script, int64_t expert)
{
    const xep_shape_t *shape = &script->shape;
    int64_t end = 0;
    for (uint32_t rank = 0;; rank++) {
        end += shape->experts / shape->nranks + (rank < shape->experts % shape->nranks);
        if (expert < end) return rank;
    }
}

int script_goes(const script_t *script, const script_call_t *call, uint32_t rank, uint64_t token, uint32_t to)
{
    for (uint32_t k = 0; k < call->topk; k++) {
        int64_t expert = script_expert(script, call, rank, token, k);
        if (expert >= 0 && script_owner(script, expert) == to) return 1;
    }
    return 0;
}

uint64_t script_rows_to(const script_t *script, const script_call_t *call, uint32_t from, uint32_t to)
{
    uint64_t rows = 0;
    for (uint64_t t = 0; t < call->tokens[from]; t++) rows += (uint64_t)script_goes(script, call, from, t, to);
    return rows;
}

/* ---- payload ---- */

float script_weight(const script_t *script, const script_call_t *call, uint32_t from, uint32_t rank, uint64_t token, uint32_t k)
{
    uint64_t h = sim_hash(script->seed, call->number * 2000 + from, rank, token, k + 1000);
    return (float)((double)(h >> 11) * 0x1p-53 - 0.25);
}

uint32_t script_scale(const script_t *script, const script_call_t *call, uint32_t rank, uint64_t token, uint32_t s)
{
    return (uint32_t)sim_hash(script->seed, call->number, rank, token, s + 100000);
}

size_t script_bytes(xep_dtype_t dtype)
{
    static const size_t bytes[] = {0, 2, 2, 4, 1, 1, 1, 4, 8, 8};
    return bytes[dtype];
}

static float ordinary(uint64_t h)
{
    return (float)ldexp((double)(h >> 40) * 0x1p-23 - 1, (int)(h % 12) - 6);
}

void script_row(const script_t *script, const script_call_t *call, uint32_t from, uint32_t rank, uint64_t token, void *row)
{
    uint64_t key = sim_hash(script->seed, call->number * 2000 + from, rank, token, 1);
    size_t bytes = script_bytes(call->dtype);
    int any_bits = !script->integers && (call->kind == CALL_DISPATCH || call->special);
    for (uint32_t i = 0; i < call->hidden; i++) {
        uint64_t h = (key + i) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
        if (any_bits)
            memcpy((char *)row + i * bytes, &h, bytes);
        else
            script_round(call->dtype, script->integers ? (float)(h % 9) - 4 : ordinary(h), row, i);
    }
}

/* ---- numbers ---- */

static double value_of(uint32_t sign, int exponent, double fraction)
{
    return (sign ? -1 : 1) * ldexp(fraction, exponent);
}

/* Of a format with so many exponent and fraction bits. */
static double value_of_bits(uint32_t bits, int ebits, int fbits)
{
    uint32_t sign = bits >> (ebits + fbits) & 1, e = bits >> fbits & ((1u << ebits) - 1), f = bits & ((1u << fbits) - 1);
    int bias = (1 << (ebits - 1)) - 1;
    if (e == (1u << ebits) - 1) return f ? NAN : sign ? -INFINITY : INFINITY;
    if (e == 0) return value_of(sign, 1 - bias - fbits, f);
    return value_of(sign, (int)e - bias - fbits, (double)f + (double)(1u << fbits));
}

double script_value(xep_dtype_t dtype, const void *row, uint32_t i)
{
    uint16_t half;
    uint32_t word;
    if (dtype == XEP_FP32) {
        memcpy(&word, (const char *)row + i * sizeof word, sizeof word);
        return value_of_bits(word, 8, 23);
    }
    memcpy(&half, (const char *)row + i * sizeof half, sizeof half);
    return dtype == XEP_BF16 ? value_of_bits(half, 8, 7) : value_of_bits(half, 5, 10);
}

/* Rounds to a multiple of the last place by the C library, then writes the multiple down. */
static uint32_t bits_of_value(double value, int ebits, int fbits)
{
    int bias = (1 << (ebits - 1)) - 1, exponent = 0;
    uint32_t sign = signbit(value) ? 1u << (ebits + fbits) : 0, infinity = ((1u << ebits) - 1) << fbits;
    if (isnan(value)) return infinity | 1u << (fbits - 1);
    if (isinf(value)) return sign | infinity;
    if (value == 0) return sign;
    exponent = ilogb(value) < 1 - bias ? 1 - bias : ilogb(value);
    double places = nearbyint(ldexp(fabs(value), fbits - exponent)); /* < 2^(fbits + 1), or that */
    uint32_t magnitude = (uint32_t)places + ((uint32_t)(exponent + bias - 1) << fbits);
    return sign | (magnitude > infinity ? infinity : magnitude);
}

void script_round(xep_dtype_t dtype, float value, void *row, uint32_t i)
{
    uint32_t bits = dtype == XEP_FP32   ? bits_of_value((double)value, 8, 23)
                    : dtype == XEP_BF16 ? bits_of_value((double)value, 8, 7)
                                        : bits_of_value((double)value, 5, 10);
    uint16_t half = (uint16_t)bits;
    if (dtype == XEP_FP32)
        memcpy((char *)row + i * sizeof bits, &bits, sizeof bits);
    else
        memcpy((char *)row + i * sizeof half, &half, sizeof half);
}
