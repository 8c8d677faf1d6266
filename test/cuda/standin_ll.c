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
    *s->at.slot = (xep_cuda_ll_slot_t){epoch, turn, *s->wrong, s->at.slot->ready, XEP_CUDA_LL_LOST, {0}};
    *s->at.now = (xep_cuda_ll_now_t){epoch, turn + 1, 0, epoch, s->at.now->read};
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
        uint32_t *came = r->came.rows == NULL ? NULL : r->came.rows + source * r->at.tokens * r->notice.topk + i;
        if (came != NULL) *came = (uint32_t)XEP_CUDA_LL_NO_ROW;
        if (pick.expert < (int64_t)first || pick.expert >= (int64_t)end) continue;
        uint32_t local = (uint32_t)pick.expert - first;
        uint64_t row = r->pair_begin[local * r->at.nranks + source] + pick.ordinal;
        if (came != NULL) *came = (uint32_t)row;
        store_row(r, items + i / r->notice.topk * r->item.stride, row);
        store_index(r, row, local);
        r->src_token[row] = (int32_t)(i / r->notice.topk);
        r->weights[row] =
            r->notice.sends_weights ? ((const float *)(const void *)(head + r->at.head_weights))[i] : 1.0f;
    }
}

/* Waits for all ranks that are not out. at: of rank 0; 0: step is lost. */
static int await_all(const heaps_t *at, uint64_t first, uint64_t epoch, const xep_cuda_deadline_t *deadline,
                     int decides)
{
    const standin_waiter_t w = {&at->outs, at->peer, at->rank, at->nranks};
    const uint64_t stride = sizeof(xep_cuda_ll_words_t), value = epoch * XEP_CUDA_WHOLE;
    if (at->outs.gone == NULL) return wait_all(at->peer[at->rank], at->nranks, first, stride, value, deadline);
    for (uint32_t r = 0; r < at->nranks; r++) {
        const int how = await_rank(&w, first + r * stride, r, value, epoch, deadline);
        if (how == STANDIN_LATE) return 0;
        if (decides) at->outs.with[r] = (uint32_t)how;
    }
    return !is_left_by_others(&w);
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
        if (r->came.rows != NULL) r->came.tokens[s] = notice_from(r, s)->tokens;
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

/* ---- combine ---- */

static void tell_offer(const heaps_t *at, const uint64_t *offer, uint64_t epoch)
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
    tell_offer(&o->at, o->offer, o->at.now->epoch);
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
    float *sum = malloc(p->hidden * sizeof *sum);
    for (uint32_t s = 0; sum != NULL && s < at->nranks; s++)
        for (uint64_t t = 0; t < p->came.tokens[s]; t++) push_token(p, dtype, s, t, sum);
    free(sum);
    tell_offer(at, p->offer.offer, at->now->epoch);
}

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
        if (here) tell_offer(at, c->offer, at->now->epoch);
    }
    const uint64_t epoch = at->slot->epoch, read = words_offset(at, 0) + offsetof(xep_cuda_ll_words_t, read);
    float *sum = malloc(c->sum.hidden * sizeof *sum);
    if (!is_stale(&at->life) && at->now->lost == 0 && here && sum != NULL) {
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

const standin_kernel_t standin_ll_kernels[] = {
    {"xep_cuda_ll_dispatch", sizeof(xep_cuda_ll_dispatch_t), run_dispatch},
    {"xep_cuda_ll_dispatch_usual", sizeof(xep_cuda_ll_dispatch_t), run_dispatch},
    {"xep_cuda_ll_offer", sizeof(xep_cuda_ll_offer_t), run_offer},
    {"xep_cuda_ll_push_bf16", sizeof(xep_cuda_ll_push_t), run_push_bf16},
    {"xep_cuda_ll_push_fp16", sizeof(xep_cuda_ll_push_t), run_push_fp16},
    {"xep_cuda_ll_push_fp32", sizeof(xep_cuda_ll_push_t), run_push_fp32},
    {"xep_cuda_ll_sum_bf16", sizeof(xep_cuda_ll_sums_t), run_sum_bf16},
    {"xep_cuda_ll_sum_fp16", sizeof(xep_cuda_ll_sums_t), run_sum_fp16},
    {"xep_cuda_ll_sum_fp32", sizeof(xep_cuda_ll_sums_t), run_sum_fp32},
};
const int standin_ll_count = sizeof standin_ll_kernels / sizeof standin_ll_kernels[0];
_Static_assert(sizeof(xep_cuda_ll_dispatch_t) <= STANDIN_ARGS_BYTES, "work holds a copy");
