/* SPDX-License-Identifier: BSD-3-Clause */

/* The kernels of ll's combines in plain C (standin_ll.c). */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <oracle_number.h>
#include <xep/xep.h>

#include "standin.h"
#include "standin_ll_heaps.h"
#include "standin_words.h"

/* ---- offers, on buffers that push rows ---- */

static xep_cuda_ll_told_t *told_of(const heaps_t *at, uint32_t heap, uint32_t slot, uint32_t writer)
{
    return (xep_cuda_ll_told_t *)(void *)(at->peer[heap] + at->told) + slot * (uint64_t)at->nranks + writer;
}

static void tell_offer(const heaps_t *at, const uint64_t *offer)
{
    const uint32_t area = at->slot->area;
    for (uint32_t r = 0; r < at->nranks; r++) {
        xep_cuda_ll_told_t *told = told_of(at, r, at->slot_number, at->rank);
        for (int w = 0; w < 4; w++)
            *word((char *)&told->area[area].offer[w], 0) =
                at->now->epoch << 32 | (uint32_t)(offer[w / 2] >> w % 2 * 32);
        atomic_store_explicit(word((char *)&told->area[area].ready, 0), at->now->epoch, memory_order_release);
    }
}

/* One of a later epoch says that its writer has found that of this one the same. */
static int offers_same(const xep_cuda_ll_sums_t *c, const uint64_t *offer, uint64_t epoch)
{
    int same = 1;
    for (int w = 0; w < 4; w++) {
        const uint64_t told = *word((char *)(uintptr_t)&offer[w], 0);
        same &= told >> 32 != (uint32_t)epoch || (uint32_t)told == (uint32_t)(c->offer[w / 2] >> w % 2 * 32);
    }
    return same;
}

/* 0: ranks differ, or the deadline has passed. */
static int await_offers(const xep_cuda_ll_sums_t *c, uint64_t epoch)
{
    const heaps_t *at = &c->at;
    const uint64_t begin = now_ns();
    const uint32_t area = at->slot->area;
    for (uint32_t r = 0; r < at->nranks; r++) {
        char *told = (char *)&told_of(at, at->rank, at->there[r], r)->area[area];
        if (!wait_word(told, 0, r, epoch, begin, &c->deadline)) return 0;
        if (offers_same(c, (const uint64_t *)(const void *)told + 1, epoch)) continue;
        __atomic_store_n(c->differs, (r < at->rank ? at->rank : r) + 1, __ATOMIC_RELEASE);
        return 0;
    }
    return 1;
}

/* ---- send ---- */

static void tell_line(const heaps_t *at, const uint64_t *offer, uint64_t epoch)
{
    for (uint32_t r = 0; r < at->nranks; r++) {
        char *line = at->peer[r] + line_offset(at, at->slot_number, at->rank);
        memcpy(line + at->line_said, offer, 2 * sizeof *offer);
        atomic_store_explicit(word(line, at->line_ready), epoch * XEP_CUDA_WHOLE, memory_order_release);
    }
}

/* Counts it; 0: there is nothing to offer. */
static int begin_offer(const heaps_t *at)
{
    if (is_left_out(at)) return 0;
    at->slot->epoch = ++at->now->epoch;
    return at->slot->verdict == XEP_CUDA_LL_HERE;
}

static void run_offer(const void *args)
{
    const xep_cuda_ll_offer_t *o = args;
    if (!begin_offer(&o->at)) return;
    for (uint32_t pair = 0; o->x != NULL && pair < o->pairs; pair++)
        for (uint64_t i = 0, row = o->pair_begin[pair]; pair % o->at.nranks != o->at.rank && i < o->pair_count[pair];
             i++, row++)
            memcpy(o->input + row * o->row_stride, o->x + row * o->x_stride, o->row_bytes);
    tell_line(&o->at, o->offer, o->at.now->epoch);
}

static char *sum_of(const heaps_t *at, uint32_t heap, uint64_t sums, uint64_t stride, uint32_t owner, uint64_t token)
{
    return at->peer[heap] + sums + ((at->there[heap] * (uint64_t)at->nranks + owner) * at->tokens + token) * stride;
}

/* The sum of a token's rows here, to its source. */
static void push_token(const xep_cuda_ll_push_t *p, xep_dtype_t dtype, uint32_t source, uint64_t token, float *sum)
{
    const heaps_t *at = &p->offer.at;
    const uint32_t *rows = p->came.rows + (source * at->tokens + token) * p->topk;
    uint32_t found = 0;
    memset(sum, 0, p->hidden * sizeof *sum);
    for (uint32_t k = 0; k < p->topk; k++) {
        if (rows[k] == (uint32_t)XEP_CUDA_LL_NO_ROW) continue;
        oracle_row_add(sum, p->offer.x + rows[k] * p->offer.x_stride, dtype, p->hidden);
        found++;
    }
    if (found == 0) return;
    oracle_row_round(sum_of(at, source, p->sums, p->offer.row_stride, at->rank, token), sum, dtype, p->hidden);
}

static void push(const xep_cuda_ll_push_t *p, xep_dtype_t dtype)
{
    const heaps_t *at = &p->offer.at;
    if (!begin_offer(at)) return;
    if (at->told != 0) tell_offer(at, p->offer.offer);
    float *sum = malloc(p->hidden * sizeof *sum);
    for (uint32_t s = 0; sum != NULL && s < at->nranks; s++)
        for (uint64_t t = 0; t < p->came.tokens[s]; t++) push_token(p, dtype, s, t, sum);
    free(sum);
    tell_line(at, p->offer.offer, at->now->epoch);
}

/* ---- receive ---- */

/* Of each owner that is with the combine, ascending. */
static void add_owners(const xep_cuda_ll_sums_t *c, xep_dtype_t dtype, uint64_t token, float *sum)
{
    const heaps_t *at = &c->at;
    for (uint32_t owner = 0; owner < at->nranks; owner++) {
        int has = 0;
        for (uint32_t k = 0; k < c->topk; k++) {
            const int32_t expert = c->kept.picks[token * c->topk + k].expert;
            has |= expert >= 0 && at->owner[expert] == owner;
        }
        if (has && how_with(&at->outs, owner) == XEP_CUDA_WITH)
            oracle_row_add(sum, sum_of(at, at->rank, c->sums, c->row_stride, owner, token), dtype, c->sum.hidden);
    }
}

static const char *row_of(const xep_cuda_ll_sums_t *c, xep_cuda_pick_t pick)
{
    const heaps_t *at = &c->at;
    uint32_t owner = at->owner[pick.expert];
    uint64_t row =
        table_of(at, at->rank, at->slot_number, owner)[(uint32_t)pick.expert - at->first_expert[owner]] + pick.ordinal;
    if (owner == at->rank) return c->own + row * c->own_stride;
    return at->peer[owner] + c->input + at->there[owner] * c->input_bytes + row * c->row_stride;
}

static void sum_token(const xep_cuda_ll_sums_t *c, xep_dtype_t dtype, uint64_t token, float *sum)
{
    memset(sum, 0, c->sum.hidden * sizeof *sum);
    for (int b = 0; b < 2; b++)
        if (c->sum.bias[b] != NULL)
            oracle_row_add(sum, c->sum.bias[b] + token * c->sum.bias_stride[b], dtype, c->sum.hidden);
    if (c->at_owner) add_owners(c, dtype, token, sum);
    for (uint32_t k = 0; k < c->topk && !c->at_owner; k++) {
        xep_cuda_pick_t pick = c->kept.picks[token * c->topk + k];
        float weight = 1;
        if (pick.expert < 0 || how_with(&c->at.outs, c->at.owner[pick.expert]) != XEP_CUDA_WITH) continue;
        if (c->weights != NULL)
            memcpy(&weight, c->weights + token * c->weights_stride + k * sizeof weight, sizeof weight);
        oracle_row_add_weighted(sum, weight, row_of(c, pick), dtype, c->sum.hidden);
    }
    oracle_row_round(c->sum.out + token * c->sum.out_stride, sum, dtype, c->sum.hidden);
}

/* How the combine is with a rank, whose slot it is that the word is of; STANDIN_LATE: it does not come. */
static int await_owner(const xep_cuda_ll_sums_t *c, uint32_t rank, uint64_t epoch, uint64_t begin)
{
    const heaps_t *at = &c->at;
    const standin_waiter_t w = {&at->outs, at->peer, at->rank, at->nranks};
    const uint64_t ready = line_offset(at, at->there[rank], rank) + at->line_ready;
    const uint64_t value = epoch * XEP_CUDA_WHOLE;
    if (at->outs.gone == NULL)
        return wait_word(at->peer[at->rank], ready, rank, value, begin, &c->deadline) ? XEP_CUDA_WITH : STANDIN_LATE;
    const int how = await_rank(&w, ready, rank, value, epoch, &c->deadline);
    if (how != STANDIN_LATE) at->outs.with[rank] = (uint32_t)how;
    return is_left_by_others(&w) ? STANDIN_LATE : how;
}

static int take_offers(const xep_cuda_ll_sums_t *c, uint64_t epoch)
{
    const heaps_t *at = &c->at;
    const uint64_t begin = now_ns();
    char *own = at->peer[at->rank];
    for (uint32_t r = 0; r < at->nranks; r++)
        if (await_owner(c, r, epoch, begin) == STANDIN_LATE) {
            at->now->lost = epoch;
            return 0;
        }
    for (uint32_t r = 0; r < at->nranks; r++) {
        if (how_with(&at->outs, r) != XEP_CUDA_WITH) continue;
        if (memcmp(own + line_offset(at, at->there[r], r) + at->line_said,
                   own + line_offset(at, at->there[at->rank], at->rank) + at->line_said, 16) == 0)
            continue;
        __atomic_store_n(c->differs, r + 1, __ATOMIC_RELEASE);
        return 0;
    }
    return 1;
}

static void tell_missing(const xep_cuda_ll_sums_t *c)
{
    for (uint64_t i = 0; c->missing != NULL && i < (uint64_t)c->sum.tokens * c->topk; i++) {
        const int32_t expert = c->kept.picks[i].expert;
        c->missing[i / c->topk * c->missing_stride + i % c->topk] =
            expert >= 0 && how_with(&c->at.outs, c->at.owner[expert]) != XEP_CUDA_WITH;
    }
}

static void combine(const xep_cuda_ll_sums_t *c, xep_dtype_t dtype)
{
    const heaps_t *at = &c->at;
    const int here = at->slot->verdict == XEP_CUDA_LL_HERE;
    if (c->offers && !is_stale(&at->life) && at->now->lost == 0) {
        at->slot->epoch = ++at->now->epoch;
        if (here) tell_line(at, c->offer, at->now->epoch);
    }
    const uint64_t epoch = at->slot->epoch, read = words_offset(at, 0) + offsetof(xep_cuda_ll_words_t, read);
    float *sum = malloc(c->sum.hidden * sizeof *sum);
    const int goes_on = !is_stale(&at->life) && at->now->lost == 0 && here && sum != NULL;
    const int agreed = !goes_on || at->told == 0 || await_offers(c, epoch);
    if (!agreed) at->now->lost = epoch;
    if (goes_on && agreed) {
        int good = take_offers(c, epoch);
        for (uint64_t t = 0; good && t < c->sum.tokens; t++) sum_token(c, dtype, t, sum);
        if (good) tell_missing(c);
        for (uint32_t r = 0; r < at->nranks; r++)
            atomic_store_explicit(word(at->peer[r], read + at->rank * sizeof(xep_cuda_ll_words_t)),
                                  epoch * XEP_CUDA_WHOLE, memory_order_release);
        at->now->read = epoch;
        if (!await_all(at, read, epoch, &c->at_the_end, 0)) at->now->lost = epoch;
    }
    free(sum);
}

/* ---- rows that are pushed: told by "ready", as no kernel here looks at words of rows ---- */

static char *inbox_of(const xep_cuda_ll_rows_t *c, uint32_t heap, uint64_t token, uint32_t k)
{
    const heaps_t *at = &c->sums.at;
    const uint64_t area = at->there[heap] * UINT64_C(2) + at->slot->area;
    return at->peer[heap] + c->inbox + ((area * at->tokens + token) * c->topk + k) * c->sums.row_stride;
}

/* The kernel would take for this row what lies there: it must be empty. */
static void push_row(const xep_cuda_ll_rows_t *c, char *to, uint32_t row)
{
    const uint64_t bytes = (c->row_bytes + UINT64_C(15)) / 16 * 16;
    for (uint64_t i = 0; i < bytes; i++)
        if ((unsigned char)to[i] != 0xff) abort();
    memset(to, 0, bytes);
    memcpy(to, c->sums.own + row * c->sums.own_stride, c->row_bytes);
}

static void push_rows(const xep_cuda_ll_rows_t *c)
{
    const heaps_t *at = &c->sums.at;
    for (uint32_t s = 0; s < at->nranks; s++)
        for (uint64_t i = 0; s != at->rank && i < (uint64_t)c->came.tokens[s] * c->topk; i++) {
            const uint32_t row = c->came.rows[s * at->tokens * c->topk + i];
            if (row != (uint32_t)XEP_CUDA_LL_NO_ROW)
                push_row(c, inbox_of(c, s, i / c->topk, (uint32_t)(i % c->topk)), row);
        }
}

static void take_token(const xep_cuda_ll_rows_t *c, xep_dtype_t dtype, uint64_t token, float *sum)
{
    const xep_cuda_ll_sums_t *s = &c->sums;
    memset(sum, 0, s->sum.hidden * sizeof *sum);
    for (int b = 0; b < 2; b++)
        if (s->sum.bias[b] != NULL)
            oracle_row_add(sum, s->sum.bias[b] + token * s->sum.bias_stride[b], dtype, s->sum.hidden);
    for (uint32_t k = 0; k < c->topk; k++) {
        const uint32_t own = c->came.rows[(s->at.rank * s->at.tokens + token) * c->topk + k];
        char *inbox = inbox_of(c, s->at.rank, token, k);
        float weight = 1;
        if (s->kept.picks[token * c->topk + k].expert < 0) continue;
        if (s->weights != NULL)
            memcpy(&weight, s->weights + token * s->weights_stride + k * sizeof weight, sizeof weight);
        const char *row = own == (uint32_t)XEP_CUDA_LL_NO_ROW ? inbox : s->own + own * s->own_stride;
        oracle_row_add_weighted(sum, weight, row, dtype, s->sum.hidden);
        if (row == inbox) memset(inbox, 0xff, (c->row_bytes + UINT64_C(15)) / 16 * 16);
    }
    oracle_row_round(s->sum.out + token * s->sum.out_stride, sum, dtype, s->sum.hidden);
}

static void combine_rows(const xep_cuda_ll_rows_t *c, xep_dtype_t dtype)
{
    const heaps_t *at = &c->sums.at;
    const int here = at->slot->verdict == XEP_CUDA_LL_HERE;
    if (c->sends && begin_offer(at)) {
        push_rows(c);
        tell_offer(at, c->sums.offer);
    }
    float *sum = malloc(c->sums.sum.hidden * sizeof *sum);
    if (c->receives && !is_stale(&at->life) && at->now->lost == 0 && here && sum != NULL) {
        const int good = await_offers(&c->sums, at->slot->epoch);
        for (uint64_t t = 0; good && t < c->sums.sum.tokens; t++) take_token(c, dtype, t, sum);
        if (good) tell_missing(&c->sums);
        else at->now->lost = at->slot->epoch;
        at->slot->area ^= 1;
    }
    free(sum);
}

static void run_rows_bf16(const void *args)
{
    combine_rows(args, XEP_BF16);
}

static void run_rows_fp16(const void *args)
{
    combine_rows(args, XEP_FP16);
}

static void run_rows_fp32(const void *args)
{
    combine_rows(args, XEP_FP32);
}

static void run_push_bf16(const void *args)
{
    push(args, XEP_BF16);
}

static void run_push_fp16(const void *args)
{
    push(args, XEP_FP16);
}

static void run_push_fp32(const void *args)
{
    push(args, XEP_FP32);
}

static void run_sum_bf16(const void *args)
{
    combine(args, XEP_BF16);
}

static void run_sum_fp16(const void *args)
{
    combine(args, XEP_FP16);
}

static void run_sum_fp32(const void *args)
{
    combine(args, XEP_FP32);
}

const standin_kernel_t standin_ll_combine_kernels[] = {
    {"xep_cuda_ll_offer", sizeof(xep_cuda_ll_offer_t), run_offer},
    {"xep_cuda_ll_push_bf16", sizeof(xep_cuda_ll_push_t), run_push_bf16},
    {"xep_cuda_ll_push_fp16", sizeof(xep_cuda_ll_push_t), run_push_fp16},
    {"xep_cuda_ll_push_fp32", sizeof(xep_cuda_ll_push_t), run_push_fp32},
    {"xep_cuda_ll_sum_bf16", sizeof(xep_cuda_ll_sums_t), run_sum_bf16},
    {"xep_cuda_ll_sum_fp16", sizeof(xep_cuda_ll_sums_t), run_sum_fp16},
    {"xep_cuda_ll_sum_fp32", sizeof(xep_cuda_ll_sums_t), run_sum_fp32},
    {"xep_cuda_ll_rows_bf16", sizeof(xep_cuda_ll_rows_t), run_rows_bf16},
    {"xep_cuda_ll_rows_fp16", sizeof(xep_cuda_ll_rows_t), run_rows_fp16},
    {"xep_cuda_ll_rows_fp32", sizeof(xep_cuda_ll_rows_t), run_rows_fp32},
};
const int standin_ll_combine_count = sizeof standin_ll_combine_kernels / sizeof standin_ll_combine_kernels[0];
