/* SPDX-License-Identifier: BSD-3-Clause */

/* The kernels of rows by expert in plain C: what cuda_experts.h says that they do. */
#include <stdlib.h>
#include <string.h>

#include <cuda_experts.h>
#include <oracle_number.h>

#include "standin.h"

static uint32_t expert_of(const xep_cuda_expand_t *e, uint64_t i)
{
    int64_t wide;
    int32_t narrow;
    memcpy(&wide, e->topk_idx + i * sizeof wide * e->wide, sizeof wide * e->wide);
    memcpy(&narrow, e->topk_idx + i * sizeof narrow * !e->wide, sizeof narrow * !e->wide);
    const int64_t index = e->wide ? wide : narrow;
    return index >= 0 && index < e->experts ? (uint32_t)index : e->experts;
}

void standin_slots(const void *args)
{
    const xep_cuda_expand_t *e = args;
    const uint64_t all = e->rows * e->topk;
    uint64_t *next = calloc(e->experts + 1, sizeof *next), begin = 0;
    if (next == NULL) abort();
    for (uint64_t i = 0; i < all; i++) next[expert_of(e, i)]++;
    for (uint32_t x = 0; x < e->experts; x++) {
        e->begin[x] = begin;
        e->count[x] = next[x];
        next[x] = begin;
        begin += (e->count[x] + e->alignment - 1) / e->alignment * e->alignment;
    }
    for (uint64_t i = 0; i < all; i++) {
        const uint32_t expert = expert_of(e, i);
        const uint64_t slot = expert < e->experts ? next[expert]++ : e->capacity;
        e->slots[i] = slot < e->capacity ? (int32_t)slot : -1;
    }
    free(next);
}

static void zero_slot(const xep_cuda_expand_t *e, int64_t slot)
{
    if (e->to != NULL) memset(e->to + (uint64_t)slot * e->to_stride, 0, e->row_bytes);
    if (e->to_weights != NULL) e->to_weights[slot] = 0;
    for (uint32_t s = 0; e->to_scales != NULL && s < e->nscales; s++)
        memset(e->to_scales + slot * e->to_scales_token_stride + s * e->to_scales_stride, 0, 4);
}

static void fill_slot(const xep_cuda_expand_t *e, int64_t slot, uint64_t i)
{
    const uint64_t row = i / e->topk;
    if (e->to != NULL) memcpy(e->to + (uint64_t)slot * e->to_stride, e->x + row * e->x_stride, e->row_bytes);
    if (e->to_weights != NULL) e->to_weights[slot] = e->weights[i];
    for (uint32_t s = 0; e->to_scales != NULL && s < e->nscales; s++)
        memcpy(e->to_scales + slot * e->to_scales_token_stride + s * e->to_scales_stride,
               e->scales + (int64_t)row * e->scales_token_stride + s * e->scales_stride, 4);
}

void standin_expand(const void *args)
{
    const xep_cuda_expand_t *e = args;
    if (e->part == XEP_CUDA_FIRST) return; /* the second launch does all */
    uint8_t *taken = calloc(e->capacity + 1, 1);
    if (taken == NULL) abort();
    for (uint64_t i = 0; i < e->rows * e->topk; i++) {
        if (e->slots[i] < 0) continue;
        taken[e->slots[i]] = 1;
        fill_slot(e, e->slots[i], i);
    }
    for (uint64_t slot = 0; e->zero && slot < e->capacity; slot++)
        if (!taken[slot]) zero_slot(e, (int64_t)slot);
    free(taken);
}

void standin_reduce(const void *args)
{
    const xep_cuda_reduce_t *r = args;
    float *sum = malloc(r->hidden * sizeof *sum + 1);
    if (sum == NULL) abort();
    for (uint64_t row = 0; row < r->rows; row++) {
        memset(sum, 0, r->hidden * sizeof *sum);
        for (uint32_t k = 0; k < r->topk; k++) {
            const int32_t slot = r->slots[row * r->topk + k];
            if (r->weights != NULL) r->out_weights[row * r->topk + k] = slot < 0 ? 0 : r->weights[slot];
            if (slot >= 0) oracle_row_add(sum, r->x + (uint64_t)slot * r->x_stride, r->dtype, r->hidden);
        }
        oracle_row_round(r->out + row * r->out_stride, sum, r->wide ? XEP_FP32 : r->dtype, r->hidden);
    }
    free(sum);
}
