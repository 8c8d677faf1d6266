/* SPDX-License-Identifier: BSD-3-Clause */

/* Inputs of the mode "ll" as pure functions of (seed, call, rank, token, ...), and what casting makes of them. */
#include <math.h>
#include <string.h>

#include "ll_script.h"

uint32_t ll_first_expert(const ll_script_t *script, uint32_t rank)
{
    uint32_t each = script->shape.experts / script->shape.nranks, more = script->shape.experts % script->shape.nranks;
    return rank * each + (rank < more ? rank : more);
}

uint32_t ll_owner(const ll_script_t *script, int64_t expert)
{
    uint32_t rank = 0;
    while (ll_first_expert(script, rank + 1) <= expert) rank++;
    return rank;
}

/* The source as data knows it: (rank, token), or one number where tokens are global. */
static uint64_t source_hash(const ll_script_t *script, uint64_t what, uint32_t rank, uint64_t token, uint64_t more)
{
    if (script->global_tokens) return sim_hash(script->seed, what, 0, token * script->shape.nranks + rank, more);
    return sim_hash(script->seed, what, rank, token, more);
}

int64_t ll_expert(const ll_script_t *script, const ll_call_t *call, uint32_t rank, uint64_t token, uint32_t k)
{
    uint64_t h = source_hash(script, call->origin, rank, token, k), experts = script->shape.experts;
    switch (call->route) {
    case ROUTE_NOWHERE:
        return -1;
    case ROUTE_ONE_EXPERT:
        return (int64_t)(experts / 2);
    case ROUTE_SELF:
        return ll_owner(script, (int64_t)(h % experts)) == rank ? (int64_t)(h % experts) : -1;
    case ROUTE_ALL:
        return (int64_t)((token + k) % experts);
    case ROUTE_DUPLICATES:
        return h % 5 == 0 ? -1 : (int64_t)(source_hash(script, call->origin, rank, token, k / 2) % experts);
    default:
        return h % 7 == 0 ? -1 : (int64_t)(h / 7 % experts);
    }
}

uint64_t ll_count(const ll_script_t *script, const ll_call_t *call, uint32_t rank, int64_t expert)
{
    uint64_t count = 0;
    for (uint64_t t = 0; t < call->tokens[rank]; t++)
        for (uint32_t k = 0; k < call->topk; k++) count += ll_expert(script, call, rank, t, k) == expert;
    return count;
}

float ll_weight(const ll_script_t *script, const ll_call_t *call, uint32_t rank, uint64_t token, uint32_t k)
{
    uint64_t h = source_hash(script, call->number + 5000, rank, token, k);
    return (float)((double)(h >> 11) * 0x1p-53 - 0.25);
}

uint32_t ll_scale(const ll_script_t *script, const ll_call_t *call, uint32_t rank, uint64_t token, uint32_t s)
{
    return (uint32_t)source_hash(script, call->number + 6000, rank, token, s);
}

static float ordinary(uint64_t h)
{
    return (float)ldexp((double)(h >> 40) * 0x1p-23 - 1, (int)(h % 14) - 7);
}

/* Any bits where they are moved as bytes or summed with "special"; numbers where they are cast or summed. */
void ll_row(const ll_script_t *script, const ll_call_t *call, int64_t expert, uint32_t rank, uint64_t token, void *row)
{
    uint64_t key = source_hash(script, call->number + 7000, rank, token, (uint64_t)expert);
    size_t bytes = script_bytes(call->dtype);
    int any_bits = call->kind == CALL_DISPATCH ? call->quant == XEP_QUANT_NONE || key % 3 == 0 : call->special;
    for (uint32_t i = 0; i < call->hidden; i++) {
        uint64_t h = (key + i) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
        if (any_bits) memcpy((char *)row + i * bytes, &h, bytes);
        else script_round(call->dtype, h % 37 == 0 ? 0 : ordinary(h), row, i);
    }
}

/* ---- casting ---- */

static uint8_t e4m3_round(double value)
{
    uint8_t sign = signbit(value) ? 0x80 : 0;
    if (isnan(value)) return 0x7f;
    if (fabs(value) > 448) return sign | 0x7e;
    if (value == 0) return sign;
    int exponent = ilogb(value) < -6 ? -6 : ilogb(value);
    return (uint8_t)(sign | ((int)nearbyint(ldexp(fabs(value), 3 - exponent)) + ((exponent + 6) << 3)));
}

static void cast_group(const ll_call_t *call, const void *row, uint32_t from, uint32_t to, uint8_t *q, float *scale)
{
    float amax = 1e-4f, factor;
    for (uint32_t i = from; i < to; i++) {
        float value = (float)fabs(script_value(call->dtype, row, i));
        if (value > amax) amax = value;
    }
    *scale = amax * (1.0f / 448.0f);
    factor = 448.0f / amax;
    if (call->quant != XEP_QUANT_E4M3) {
        int e = isinf(amax) ? 128 : ilogb(*scale) + (ldexpf(1, ilogb(*scale)) != *scale);
        *scale = isinf(amax) ? INFINITY : ldexpf(1, e);
        factor = isinf(amax) ? 0 : ldexpf(1, -e);
    }
    for (uint32_t i = from; i < to; i++) q[i] = e4m3_round((double)((float)script_value(call->dtype, row, i) * factor));
}

void ll_cast(const ll_call_t *call, const void *row, uint8_t *q, uint32_t *scales)
{
    for (uint32_t from = 0, g = 0; from < call->hidden; from += 128, g++) {
        float scale;
        uint32_t bits;
        cast_group(call, row, from, from + 128 < call->hidden ? from + 128 : call->hidden, q, &scale);
        memcpy(&bits, &scale, sizeof bits);
        if (call->quant != XEP_QUANT_UE8M0) {
            scales[g] = bits;
            continue;
        }
        if (g % 4 == 0) scales[g / 4] = 0;
        scales[g / 4] |= bits >> 23 << 8 * (g % 4);
    }
}
