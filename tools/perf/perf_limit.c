/* SPDX-License-Identifier: BSD-3-Clause */

/* The machine's limit: the same rows, planned, stored and summed by the same processes at
 * the same time, but in each one's private memory and with no word to each other. */

#include "perf_limit.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "perf_plan.h"

struct perf_limit {
    const perf_t *perf;
    perf_kernels_t kernels;
    perf_plan_t plan;
    const void **terms; /* [width] */
    xep_cast_t cast;
    char *row, *scales; /* what it makes of a row; NULL: nothing is cast */
};

/* Destinations one behind the other, as in the memory of one receiver. */
static uint64_t row_of(const perf_limit_t *limit, uint64_t token, uint32_t i)
{
    const uint64_t at = token * limit->plan.width + i;

    return limit->plan.begin[limit->plan.to[at]] + limit->plan.place[at];
}

perf_limit_t *perf_limit_open(const perf_t *perf)
{
    perf_limit_t *limit = oracle_alloc(sizeof *limit);

    limit->perf = perf;
    limit->kernels = perf_kernels(perf->shape.combine_dtype);
    perf_plan_open(&limit->plan, perf);
    limit->terms = oracle_alloc(limit->plan.width * sizeof *limit->terms);
    if (perf->shape.quant == XEP_QUANT_NONE) return limit;
    limit->cast = xep_cast_select(perf->shape.quant, perf->shape.dtype, limit->kernels.simd, perf->shape.quant_scale);
    limit->row = oracle_alloc(perf->placed_bytes);
    limit->scales = oracle_alloc(perf->placed_scales);
    return limit;
}

void perf_limit_close(perf_limit_t *limit)
{
    if (limit == NULL) return;
    perf_plan_close(&limit->plan);
    free(limit->terms);
    free(limit->row);
    free(limit->scales);
    free(limit);
}

/* A row as it is stored, and what lies beside it: the caller's scales, those of a cast, or for payloads any bytes. */
static const char *cast_row(const perf_limit_t *limit, uint64_t token, const char **scales_p)
{
    const perf_t *perf = limit->perf;
    const char *x = (const char *)perf->x + token * perf->row_bytes;

    *scales_p = perf->scales != NULL ? (const char *)perf->scales + token * perf->scale_bytes : x;
    if (limit->row == NULL) return x;
    limit->cast.row(&limit->cast, limit->row, limit->scales, x, perf->shape.hidden,
                    token + 1 < perf->tokens ? x + perf->row_bytes : x);
    *scales_p = limit->scales;
    return limit->row;
}

/*
 * What the C library does well is left to it, as the modes do. Behind this row lies that of the next token, unless it
 * was cast.
 */
static void store(const perf_limit_t *limit, void *to, const char *from, size_t bytes, int streaming)
{
    const char *next = limit->row == NULL ? from + limit->perf->row_bytes : from;

    if (streaming) limit->kernels.copy_streaming(to, from, bytes, next);
    else memcpy(to, from, bytes);
}

/*
 * Rows and scales as the receivers would have them; no metadata, no signals, no waiting. The fence counts: until then
 * streaming stores are on their way.
 */
void perf_limit_dispatch(perf_limit_t *limit, int planned, int streaming)
{
    const perf_t *perf = limit->perf;
    const size_t stride = perf_line_up(perf->placed_bytes);
    char *scales = perf->area + perf->sent_rows * stride;

    if (planned) perf_plan_make(&limit->plan, perf);
    for (uint64_t token = 0; token < perf->tokens; token++) {
        const char *own, *x = cast_row(limit, token, &own);
        for (uint32_t i = 0; i < limit->plan.copies[token]; i++) {
            const uint64_t row = row_of(limit, token, i);
            store(limit, perf->area + row * stride, x, perf->placed_bytes, streaming);
            if (perf->placed_scales != 0) memcpy(scales + row * perf->placed_scales, own, perf->placed_scales);
        }
    }
    xep_stores_fence();
}

/* Where dispatched rows cannot be read as outputs, numbers are put there that can. */
void perf_limit_experts(perf_limit_t *limit)
{
    const perf_t *perf = limit->perf;

    if (perf->shape.dtype != perf->shape.combine_dtype || perf->placed_bytes != perf->sum_bytes)
        memset(perf->area, 0x3e, perf->sent_rows * perf_line_up(perf->sum_bytes));
}

/* Every copy of a token is read, and the sum stored once. */
void perf_limit_combine(perf_limit_t *limit, int streaming)
{
    const perf_t *perf = limit->perf;
    const xep_weigh_fn sum = limit->kernels.sum[streaming != 0];
    char *out = perf->limit_sums[streaming != 0];
    const size_t stride = perf_line_up(perf->sum_bytes);

    for (uint64_t token = 0; token < perf->tokens; token++) {
        const uint32_t n = limit->plan.copies[token];
        for (uint32_t i = 0; i < n; i++) limit->terms[i] = perf->area + row_of(limit, token, i) * stride;
        sum(out + token * perf->sum_bytes, limit->terms, NULL, n, 0, perf->shape.hidden);
    }
    xep_stores_fence();
}
