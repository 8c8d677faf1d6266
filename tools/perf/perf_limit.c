/* SPDX-License-Identifier: BSD-3-Clause */

/* The machine's limit: the same rows, planned, stored and summed by the same processes at
 * the same time, but in each one's private memory and with no word to each other. */

#include "perf_limit.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "perf_kernels.h"

struct perf_limit {
    const perf_t *perf;
    const perf_kernels_t *kernels;
    uint32_t ndest;     /* destinations: ranks, or experts where rows are by expert */
    uint32_t width;     /* most destinations of a token */
    uint32_t *owner;    /* [experts] destination of an expert */
    uint32_t *copies;   /* [T] destinations of a token */
    uint32_t *to;       /* [T][width] these, in order of selection */
    uint64_t *place;    /* [T][width] row within that destination's share */
    uint64_t *begin;    /* [ndest + 1] first row of a destination's share */
    uint64_t *seen;     /* [ndest] last token, plus 1, that went there */
    const void **terms; /* [width] */
};

/* What a mode must find out as well: which destinations a token has, each once, and which row it is there. */
static void plan(perf_limit_t *limit)
{
    const perf_t *perf = limit->perf;
    const uint32_t ndest = limit->ndest, topk = (uint32_t)perf->options.topk;

    memset(limit->begin, 0, (ndest + 1) * sizeof *limit->begin);
    memset(limit->seen, 0, ndest * sizeof *limit->seen);
    for (uint64_t token = 0; token < perf->tokens; token++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < topk; k++) {
            const int64_t expert = perf->idx[token * topk + k];
            if (expert < 0 || limit->seen[limit->owner[expert]] == token + 1) continue;
            const uint32_t dest = limit->owner[expert];
            limit->seen[dest] = token + 1;
            limit->to[token * limit->width + n] = dest;
            limit->place[token * limit->width + n++] = limit->begin[dest + 1]++;
        }
        limit->copies[token] = n;
    }
    for (uint32_t dest = 0; dest < ndest; dest++) limit->begin[dest + 1] += limit->begin[dest];
}

/* Destinations one behind the other, as in the memory of one receiver. */
static uint64_t row_of(const perf_limit_t *limit, uint64_t token, uint32_t i)
{
    const uint64_t at = token * limit->width + i;

    return limit->begin[limit->to[at]] + limit->place[at];
}

/* The fastest kernels of this CPU, whatever XEP_SIMD says to the modes. */
perf_limit_t *perf_limit_open(const perf_t *perf)
{
    const uint32_t experts = (uint32_t)perf->options.experts,
                   ndest = perf->options.by_expert ? experts : perf->info.nranks;
    const size_t width = perf->options.topk < ndest ? perf->options.topk : ndest;
    perf_limit_t *limit = oracle_alloc(sizeof *limit);
    const perf_kernels_t *kernels[PERF_KERNELS];

    perf_kernels(kernels);
    limit->perf = perf;
    limit->kernels = kernels[0];
    limit->ndest = ndest;
    limit->width = (uint32_t)width;
    limit->owner = oracle_alloc(experts * sizeof *limit->owner);
    limit->copies = oracle_alloc(perf->tokens * sizeof *limit->copies);
    limit->to = oracle_alloc(perf->tokens * width * sizeof *limit->to);
    limit->place = oracle_alloc(perf->tokens * width * sizeof *limit->place);
    limit->begin = oracle_alloc((ndest + 1) * sizeof *limit->begin);
    limit->seen = oracle_alloc(ndest * sizeof *limit->seen);
    limit->terms = oracle_alloc(width * sizeof *limit->terms);
    for (uint32_t e = 0; e < experts; e++)
        limit->owner[e] = perf->options.by_expert ? e : oracle_owner(perf->routing, e);
    plan(limit);
    return limit;
}

void perf_limit_close(perf_limit_t *limit)
{
    if (limit == NULL) return;
    free(limit->owner);
    free(limit->copies);
    free(limit->to);
    free(limit->place);
    free(limit->begin);
    free(limit->seen);
    free(limit->terms);
    free(limit);
}

static void store(const perf_limit_t *limit, void *to, const void *from, size_t bytes, int streaming)
{
    if (streaming) limit->kernels->copy_streaming(to, from, bytes);
    else memcpy(to, from, bytes);
}

/* Rows and scales as the receivers would have them; no metadata, no signals, no waiting. */
void perf_limit_dispatch(perf_limit_t *limit, int planned, int streaming)
{
    const perf_t *perf = limit->perf;
    const size_t stride = perf_line_up(perf->placed_bytes);
    char *scales = perf->area + perf->sent_rows * stride;

    if (planned) plan(limit);
    for (uint64_t token = 0; token < perf->tokens; token++) {
        const char *x = (const char *)perf->x + token * perf->row_bytes;
        for (uint32_t i = 0; i < limit->copies[token]; i++) {
            const uint64_t row = row_of(limit, token, i);
            store(limit, perf->area + row * stride, x, perf->placed_bytes, streaming);
            if (!perf->placed_scales) continue;
            memcpy(scales + row * perf->placed_scales,
                   perf->scales ? (const char *)perf->scales + token * perf->scale_bytes : x, perf->placed_scales);
        }
    }
    limit->kernels->fence();
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
    const size_t stride = perf_line_up(perf->sum_bytes);

    for (uint64_t token = 0; token < perf->tokens; token++) {
        const uint32_t n = limit->copies[token];
        for (uint32_t i = 0; i < n; i++) limit->terms[i] = perf->area + row_of(limit, token, i) * stride;
        limit->kernels->sum(perf->out + token * perf->sum_bytes, limit->terms, n, perf->shape.hidden,
                            perf->shape.combine_dtype, streaming);
    }
    limit->kernels->fence();
}
