/* SPDX-License-Identifier: BSD-3-Clause */

/** Storing what travels beside a row: its token, its selections as the receiver numbers them, weights and scales. */
#ifndef XEP_NORMAL_METADATA_H
#define XEP_NORMAL_METADATA_H

#include <string.h>

#include "normal_shared.h"

/** Of a token, as its source has it. */
typedef struct normal_metadata {
    int32_t token;
    const int32_t *experts; /* [K] or -1 */
    const char *weights;    /* [K] floats, any alignment; NULL: none */
    const char *scales;     /* any strides */
    ptrdiff_t scales_stride;
} normal_metadata_t;

/**
 * Indices and weights of one row: experts of the receiver as it numbers them, -1 and 0 for the others. Without
 * branches, and with the choices known to the compiler: at 20 ns a row it would show beside the copy.
 */
__attribute__((always_inline)) static inline void normal_store_selections(const normal_metadata_t *from, uint32_t topk,
                                                                          uint32_t first, uint32_t count, char *idx,
                                                                          float *weights, int wide, int weighted)
{
    for (uint32_t k = 0; k < topk; k++) {
        uint32_t local = (uint32_t)from->experts[k] - first,
                 bits; /* of -1 and of lower ranks' experts: 2^31 and more */
        int32_t value = local < count ? (int32_t)local : -1;
        if (wide) ((int64_t *)idx)[k] = value;
        else ((int32_t *)idx)[k] = value;
        if (!weighted) continue;
        memcpy(&bits, from->weights + k * sizeof bits, sizeof bits);
        bits = local < count ? bits : 0;
        memcpy(weights + k, &bits, sizeof bits);
    }
}

/* A scale has 4 bytes, of whatever type: they are gathered to a row here. */
static inline void normal_store_scales(const normal_metadata_t *from, uint32_t nscales, char *to)
{
    for (uint32_t s = 0; s < nscales; s++)
        memcpy(to + s * (size_t)4, from->scales + (ptrdiff_t)s * from->scales_stride, 4);
}

/** Row of a target that is rank's. One of four copies of the above, so that the loop over K has no questions left. */
static inline void normal_store_metadata(const normal_t *mode, const xep_dispatch_args_t *args,
                                         const normal_metadata_t *from, uint32_t rank, const normal_target_t *target,
                                         size_t row)
{
    uint32_t topk = args->topk, first = mode->kit.first_expert[rank];
    uint32_t count = mode->kit.first_expert[rank + 1] - first;
    size_t at = row * topk;
    float *weights = target->weights + at;
    target->tokens[row] = from->token;
    if (args->topk_idx_dtype == XEP_INT64 && from->weights != NULL)
        normal_store_selections(from, topk, first, count, target->idx + at * sizeof(int64_t), weights, 1, 1);
    else if (args->topk_idx_dtype == XEP_INT64)
        normal_store_selections(from, topk, first, count, target->idx + at * sizeof(int64_t), weights, 1, 0);
    else if (from->weights != NULL)
        normal_store_selections(from, topk, first, count, target->idx + at * sizeof(int32_t), weights, 0, 1);
    else normal_store_selections(from, topk, first, count, target->idx + at * sizeof(int32_t), weights, 0, 0);
    if (args->nscales) normal_store_scales(from, args->nscales, target->scales + row * args->nscales * 4);
}

#endif
