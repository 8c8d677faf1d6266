/* SPDX-License-Identifier: BSD-3-Clause */

/* The kernels of ll in plain C: what cuda_ll_kernels.h says that they do, as one thread would do it. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <oracle_cast.h>
#include <oracle_number.h>
#include <xep/xep.h>

#include "standin.h"
#include "standin_ll_heaps.h"
#include "standin_words.h"

/* ---- send ---- */

static int64_t index_of(const xep_cuda_ll_dispatch_t *s, uint64_t i)
{
    const char *at =
        s->given.topk_idx + i / s->notice.topk * s->given.topk_idx_stride + i % s->notice.topk * s->given.idx_bytes;
    int64_t wide;
    int32_t narrow;
    memcpy(&wide, at, s->given.wide ? sizeof wide : 0);
    memcpy(&narrow, at, s->given.wide ? 0 : sizeof narrow);
    const int64_t expert = s->given.wide ? wide : narrow;
    for (uint32_t e = 0; s->given.callers != NULL && e < s->at.experts; e++)
        if (s->given.callers[e] == expert) return e;
    return expert;
}

static float weight_of(const xep_cuda_ll_dispatch_t *s, uint64_t i)
{
    float weight = 1;
    if (s->given.weights != NULL)
        memcpy(&weight,
               s->given.weights + i / s->notice.topk * s->given.weights_stride + i % s->notice.topk * sizeof weight,
               sizeof weight);
    return weight;
}

static void number_selections(const xep_cuda_ll_dispatch_t *s, uint64_t turn)
{
    uint32_t *counts = calloc(s->at.experts, sizeof *counts);
    for (uint64_t i = 0; counts != NULL && i < (uint64_t)s->notice.tokens * s->notice.topk; i++) {
        int64_t expert = index_of(s, i);
        xep_cuda_pick_t pick = {-1, 0};
        if (expert >= 0 && expert < s->at.experts) pick = (xep_cuda_pick_t){(int32_t)expert, counts[expert]++};
        else if (expert != -1 && *s->wrong == UINT64_MAX) *s->wrong = i;
        s->kept.picks[i] = pick;
        s->kept.weights[i] = weight_of(s, i);
        for (uint32_t r = 0; r < s->at.nranks; r++) {
            char *head = head_of(&s->at, r, turn, s->at.rank);
            ((xep_cuda_pick_t *)(void *)head)[i] = pick;
            if (s->notice.sends_weights) ((float *)(void *)(head + s->at.head_weights))[i] = s->kept.weights[i];
        }
    }
    for (uint32_t r = 0; counts != NULL && r < s->at.nranks; r++)
        memcpy(counts_of(&s->at, r, turn, s->at.rank), counts, s->at.experts * sizeof *counts);
    free(counts);
}

void standin_cast_row(const xep_cuda_cast_t *cast, uint64_t token, char *rows)
{
    const oracle_shape_t shape = {.dtype = (xep_dtype_t)cast->dtype,
                                  .quant = (xep_quant_t)cast->quant,
                                  .quant_scale = cast->scale,
                                  .hidden = cast->hidden};
    oracle_cast_row(&shape, cast->x + token * cast->x_stride, (uint8_t *)rows + token * cast->row_stride,
                    (uint32_t *)(void *)(rows + cast->scales + token * cast->scales_stride));
}

static void pack_token(const xep_cuda_ll_dispatch_t *s, uint64_t token, char *item)
{
    const char *x = s->cast.x + token * s->cast.x_stride;
    char *scales = item + s->item.scales;
    if (s->notice.quant != XEP_QUANT_NONE) {
        standin_cast_row(&s->cast, token, item - token * s->item.stride);
        return;
    }
    memcpy(item, x, s->item.row_bytes);
    for (uint32_t i = 0; i < s->notice.nscales; i++)
        memcpy(scales + i * (size_t)4,
               s->given.scales + (int64_t)token * s->given.scales_token_stride + (int64_t)i * s->given.scales_stride,
               4);
}

/* What sources write to a rank: devices have lines of 128 bytes, and none of them is two sources'. */
static int has_own_lines(const heaps_t *at)
{
    return (at->heads | at->head_bytes | at->head_weights | at->head_counts) % 128 == 0;
}

/* 0: it is left out. */
static int send_packets(const xep_cuda_ll_dispatch_t *s)
{
    const uint64_t epoch = s->at.now->epoch + 1, turn = s->at.now->turn, wrong_before = *s->wrong;
    ll_notice_t notice = s->notice;
    if (is_left_out(&s->at)) return 0;
    if (wrong_before != UINT64_MAX || !has_own_lines(&s->at)) abort();
    number_selections(s, turn);
    for (uint64_t t = 0; t < notice.tokens; t++)
        pack_token(s, t, items_of(&s->at, turn, s->at.rank) + t * s->item.stride);
    notice.word = epoch;
    *s->at.slot = (xep_cuda_ll_slot_t){epoch, turn, *s->wrong, s->at.slot->ready, XEP_CUDA_LL_LOST, 0, {0}};
    *s->at.now = (xep_cuda_ll_now_t){epoch, turn + 1, 0, epoch, s->at.now->read, 0};
    for (uint32_t r = 0; r < s->at.nranks; r++) {
        xep_cuda_ll_words_t *words = words_of_turn(&s->at, r, turn, s->at.rank);
        memcpy(s->at.peer[r] + notice_offset(&s->at, turn, s->at.rank), &notice, sizeof notice);
        if (*s->wrong != UINT64_MAX) words->wrong = epoch;
        atomic_store_explicit(word(s->at.peer[r], words_offset(&s->at, s->at.rank)), epoch * XEP_CUDA_WHOLE,
                              memory_order_release);
    }
    *s->wrong = UINT64_MAX;
    return 1;
}

/* ---- receive ---- */

/* Until it is asked for the next one. Of a rank that is out: what agrees with all. */
static const ll_notice_t *notice_from(const xep_cuda_ll_dispatch_t *r, uint32_t source)
{
    static _Thread_local ll_notice_t imagined, told;
    const uint64_t turn = r->at.slot->turn;
    imagined = r->notice;
    imagined.word = r->at.slot->epoch;
    imagined.capacity = UINT32_MAX;
    imagined.alignment = 1;
    imagined.tokens = imagined.slot = imagined.padded = imagined.wrong = 0;
    if (how_with(&r->at.outs, source) != XEP_CUDA_WITH) return &imagined;
    memcpy(&told, r->at.peer[r->at.rank] + notice_offset(&r->at, turn, source), sizeof told);
    told.wrong = words_of_turn(&r->at, r->at.rank, turn, source)->wrong == r->at.slot->epoch;
    return &told;
}

static uint32_t count_from(const xep_cuda_ll_dispatch_t *r, uint32_t source, uint32_t expert)
{
    if (how_with(&r->at.outs, source) != XEP_CUDA_WITH) return 0;
    return counts_of(&r->at, r->at.rank, r->at.slot->turn, source)[expert];
}

/* Selections of an expert: of all sources. */
static uint64_t total_of(const xep_cuda_ll_dispatch_t *r, uint32_t expert)
{
    uint64_t total = 0;
    for (uint32_t s = 0; s < r->at.nranks; s++) total += count_from(r, s, expert);
    return total;
}

static uint64_t align(uint64_t rows, uint64_t alignment)
{
    return (rows + alignment - 1) / alignment * alignment;
}

static uint64_t rows_needed(const xep_cuda_ll_dispatch_t *r, uint32_t rank)
{
    const ll_notice_t *n = notice_from(r, rank);
    uint64_t sum = 0, most = 0;
    for (uint32_t e = r->at.first_expert[rank]; e < r->at.first_expert[rank + 1]; e++) {
        uint64_t total = total_of(r, e);
        sum += align(total, n->alignment);
        if (total > most) most = total;
    }
    return n->padded ? most : sum;
}

static int agrees(const xep_cuda_ll_dispatch_t *r, const ll_notice_t *n)
{
    const ll_notice_t *own = &r->notice;
    return n->refused == own->refused && n->dtype == own->dtype && n->hidden == own->hidden && n->topk == own->topk &&
           n->quant == own->quant && n->nscales == own->nscales && n->scales_dtype == own->scales_dtype &&
           n->sends_weights == own->sends_weights && !n->wrong;
}

/* The rank whose rows do not fit; nranks: the dispatch is refused for another reason; nranks + 1: it is not. */
static uint32_t judge(const xep_cuda_ll_dispatch_t *r)
{
    for (uint32_t s = 0; s < r->at.nranks; s++)
        if (notice_from(r, s)->word != r->at.slot->epoch || !agrees(r, notice_from(r, s))) return r->at.nranks;
    for (uint32_t s = 0; s < r->at.nranks; s++)
        if (rows_needed(r, s) > notice_from(r, s)->capacity) return s;
    return r->at.nranks + 1;
}

static void refuse(const xep_cuda_ll_dispatch_t *r, uint32_t rank)
{
    r->at.slot->verdict = XEP_CUDA_LL_REFUSED;
    if (r->refusal->refused) return;
    for (uint32_t s = 0; s < r->at.nranks; s++)
        memcpy(r->mirror + s * sizeof(ll_notice_t), notice_from(r, s), sizeof(ll_notice_t));
    r->refusal->rank = rank;
    r->refusal->rows = rank < r->at.nranks ? rows_needed(r, rank) : 0;
    r->refusal->wrong = r->at.slot->wrong;
    __atomic_store_n(&r->refusal->refused, 1, __ATOMIC_RELEASE);
}

static void store_index(const xep_cuda_ll_dispatch_t *r, uint64_t row, int64_t expert)
{
    if (r->wide) ((int64_t *)(void *)r->topk_idx)[row] = expert;
    else ((int32_t *)(void *)r->topk_idx)[row] = (int32_t)expert;
}

/* Where rows of each expert and source begin; rows that are unused. */
static void lay_rows(const xep_cuda_ll_dispatch_t *r)
{
    const uint32_t first = r->at.first_expert[r->at.rank], experts = r->at.first_expert[r->at.rank + 1] - first;
    uint64_t row = 0, received = 0;
    for (uint32_t e = 0; e < experts; e++) {
        const uint64_t begin = r->rows_of_expert != 0 ? e * r->rows_of_expert : row;
        row = begin;
        for (uint32_t s = 0; s < r->at.nranks; s++) {
            const uint32_t pair = e * r->at.nranks + s;
            r->pair_begin[pair] = (uint32_t)row;
            r->pair_count[pair] = count_from(r, s, first + e);
            table_of(&r->at, s, notice_from(r, s)->slot, r->at.rank)[e] = (uint32_t)row;
            row += r->pair_count[pair];
        }
        r->expert_begin[e] = begin;
        r->expert_count[e] = row - begin;
        r->expert_rows[e] = align(row - begin, r->notice.alignment);
        received += row - begin;
        if (r->stats != NULL) r->stats[e] += (int32_t)(row - begin);
        if (r->rows_of_expert != 0) continue;
        for (; row < begin + r->expert_rows[e]; row++) store_index(r, row, -1);
    }
    if (r->rows != NULL) *r->rows = r->rows_of_expert != 0 ? received : row;
    for (; r->rows_of_expert == 0 && row < r->capacity; row++) store_index(r, row, -1);
}

static void store_row(const xep_cuda_ll_dispatch_t *r, const char *item, uint64_t row)
{
    uint64_t block = r->scales_expert_stride == 0 ? 0 : row / r->rows_of_expert;
    uint64_t in_block = r->scales_expert_stride == 0 ? row : row % r->rows_of_expert;
    char *scales = r->scales + block * r->scales_expert_stride + in_block * r->scales_token_stride;
    memcpy(r->x + row * r->x_stride, item, r->item.row_bytes);
    for (uint64_t i = 0; i < r->item.scale_words; i++)
        memcpy(scales + i * r->scales_stride, item + r->item.scales + i * 4, 4);
}

static void unpack_source(const xep_cuda_ll_dispatch_t *r, uint32_t source)
{
    const uint64_t turn = r->at.slot->turn;
    const char *head = head_of(&r->at, r->at.rank, turn, source), *items = items_of(&r->at, turn, source);
    const uint32_t first = r->at.first_expert[r->at.rank], end = r->at.first_expert[r->at.rank + 1];
    for (uint64_t i = 0; i < (uint64_t)notice_from(r, source)->tokens * r->notice.topk; i++) {
        xep_cuda_pick_t pick = ((const xep_cuda_pick_t *)(const void *)head)[i];
        uint32_t *came = r->came.rows + source * r->at.tokens * r->notice.topk + i;
        *came = (uint32_t)XEP_CUDA_LL_NO_ROW;
        if (pick.expert < (int64_t)first || pick.expert >= (int64_t)end) continue;
        uint32_t local = (uint32_t)pick.expert - first;
        uint64_t row = r->pair_begin[local * r->at.nranks + source] + pick.ordinal;
        *came = (uint32_t)row;
        store_row(r, items + i / r->notice.topk * r->item.stride, row);
        store_index(r, row, local);
        r->src_token[row] = (int32_t)(i / r->notice.topk);
        r->weights[row] =
            r->notice.sends_weights ? ((const float *)(const void *)(head + r->at.head_weights))[i] : 1.0f;
    }
}

static void receive_packets(const xep_cuda_ll_dispatch_t *r)
{
    const heaps_t *at = &r->at;
    if (is_stale(&at->life) || at->now->lost != 0) return;
    if (!await_all(at, words_offset(at, 0), at->slot->epoch, &r->deadline, 1)) {
        at->now->lost = at->slot->epoch;
        return;
    }
    uint32_t verdict = judge(r);
    if (verdict != at->nranks + 1) {
        refuse(r, verdict);
        return;
    }
    at->slot->verdict = XEP_CUDA_LL_HERE;
    for (uint32_t s = 0; s < at->nranks; s++) {
        at->there[s] = notice_from(r, s)->slot;
        r->came.tokens[s] = notice_from(r, s)->tokens;
        r->out[s] = how_with(&at->outs, s) != XEP_CUDA_WITH;
    }
    lay_rows(r);
    for (uint32_t s = 0; s < at->nranks; s++) unpack_source(r, s);
}

static void run_dispatch(const void *args)
{
    const xep_cuda_ll_dispatch_t *d = args;
    if (d->sends && !send_packets(d)) return;
    if (d->receives) receive_packets(d);
}

const standin_kernel_t standin_ll_kernels[] = {
    {"xep_cuda_ll_dispatch", sizeof(xep_cuda_ll_dispatch_t), run_dispatch},
    {"xep_cuda_ll_dispatch_usual", sizeof(xep_cuda_ll_dispatch_t), run_dispatch},
};
const int standin_ll_count = sizeof standin_ll_kernels / sizeof standin_ll_kernels[0];
_Static_assert(sizeof(xep_cuda_ll_dispatch_t) <= STANDIN_ARGS_BYTES, "work holds a copy");
