/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The kernels of normal in plain C: what cuda_kernels.h says that they do, as one thread would do it. They share no
 * code with those for devices, which contrib/check-cuda.sh compares with the same oracle.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oracle_number.h>
#include <xep/direct.h>
#include <xep/xep.h>

#include "cuda_experts.h"
#include "cuda_kernels.h"
#include "cuda_layout.h"
#include "standin.h"
#include "standin_words.h"

/* ---- plan ---- */

static int64_t index_of(const xep_cuda_plan_t *p, uint64_t token, uint32_t k)
{
    const char *row = p->topk_idx + token * p->topk_idx_stride;
    int64_t wide;
    int32_t narrow;
    memcpy(&wide, row + k * (p->wide ? sizeof wide : 0), p->wide ? sizeof wide : 0);
    memcpy(&narrow, row + k * sizeof narrow, p->wide ? 0 : sizeof narrow);
    const int64_t expert = p->wide ? wide : narrow;
    return p->number != NULL && expert >= 0 && expert < p->experts ? p->number[expert] : expert;
}

/* How many selections there are up to the last one of this rank; 0: there is none. */
static uint32_t last_of(const xep_cuda_plan_t *p, uint64_t token, uint32_t rank)
{
    for (uint32_t k = p->topk; k > 0; k--) {
        int32_t expert = p->chosen[token * p->topk + k - 1];
        if (expert >= 0 && (uint32_t)expert < p->experts && p->owner[expert] == rank) return k;
    }
    return 0;
}

static void run_cast(const void *args)
{
    const xep_cuda_cast_rows_t *c = args;
    if (is_stale(&c->life)) return;
    for (uint64_t t = 0; t < c->cast.tokens; t++) standin_cast_row(&c->cast, t, c->rows);
}

static void run_plan(const void *args)
{
    const xep_cuda_plan_t *p = args;
    if (is_stale(&p->life)) return;
    *p->wrong = UINT64_MAX;
    memset(p->rows, 0, p->nranks * sizeof *p->rows);
    memset(p->selections, 0, p->experts * sizeof *p->selections);
    for (uint64_t t = 0; t < p->tokens; t++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < p->topk; k++) {
            int64_t expert = index_of(p, t, k);
            p->chosen[t * p->topk + k] = (int32_t)expert;
            if (expert >= 0 && expert < p->experts) p->selections[expert]++;
            else if (expert != -1 && *p->wrong == UINT64_MAX) *p->wrong = t * p->topk + k;
        }
        for (uint32_t turn = 1; turn <= (p->by_selection ? p->topk : 1); turn++)
            for (uint32_t r = 0; r < p->nranks; r++) {
                const uint32_t last = last_of(p, t, r);
                if (p->by_selection ? last != turn : last == 0) continue;
                p->dest[t * p->max_dests + n++] = (xep_cuda_dest_t){(int32_t)r, p->rows[r]++};
            }
        for (; n < p->max_dests; n++) p->dest[t * p->max_dests + n] = (xep_cuda_dest_t){XEP_CUDA_NOBODY, 0};
    }
}

/* ---- counts ---- */

static const normal_record_t *record_from(const xep_cuda_dispatch_t *d, uint32_t rank)
{
    return (const normal_record_t *)(const void *)(d->peer[d->rank] + d->counts.records +
                                                   rank * d->counts.record_bytes);
}

static standin_waiter_t waiter_of(const xep_cuda_dispatch_t *d)
{
    return (standin_waiter_t){&d->outs, d->peer, d->rank, d->plan.nranks};
}

static int is_without(const xep_cuda_dispatch_t *d, uint32_t rank)
{
    return how_with(&d->outs, rank) == XEP_CUDA_WITHOUT;
}

/* To all ranks but this one, or only to this one. */
static void send_records(const xep_cuda_dispatch_t *d, uint64_t epoch, int own)
{
    const int cached = d->counts.header.params[NORMAL_CACHED] != 0;
    for (uint32_t r = 0; r < d->plan.nranks; r++) {
        if ((r == d->rank) != own) continue;
        char *to = d->peer[r] + d->counts.records + d->rank * d->counts.record_bytes;
        uint32_t first = d->first_expert[r], count = d->first_expert[r + 1] - first;
        normal_record_t header = d->counts.header;
        header.epoch = epoch;
        header.wrong = !cached && *d->plan.wrong != UINT64_MAX;
        memcpy(to, &header, sizeof header);
        if (cached) continue;
        memcpy(to + sizeof header, d->plan.rows, d->plan.nranks * sizeof *d->plan.rows);
        memcpy(to + sizeof header + d->plan.nranks * sizeof *d->plan.rows, d->plan.selections + first,
               count * sizeof *d->plan.selections);
    }
}

/* Where ranks may be out: 0: others have left this one out. */
static int claim_record(const xep_cuda_dispatch_t *d, uint64_t epoch)
{
    const standin_waiter_t w = waiter_of(d);
    xep_cuda_own_words_t *own = words_of(&w, d->rank);
    uint64_t before = __atomic_load_n(&own->claim, __ATOMIC_ACQUIRE);
    send_records(d, epoch, 1);
    if (d->outs.gone == NULL) return 1;
    __atomic_store_n(&own->storing, epoch, __ATOMIC_RELEASE);
    if (before % 2 == 0 &&
        __atomic_compare_exchange_n(&own->claim, &before, 2 * epoch, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return 1;
    return !is_left_by_others(&w);
}

/* From its own heap; what it has told of selections went to others. */
static void fetch_record(const xep_cuda_dispatch_t *d, uint32_t source)
{
    const uint64_t at = d->counts.records + source * d->counts.record_bytes;
    const size_t bytes = sizeof(normal_record_t) + d->plan.nranks * sizeof(uint32_t);
    memcpy(d->peer[d->rank] + at, d->peer[source] + at, bytes);
    memset(d->peer[d->rank] + at + bytes, 0, d->counts.record_bytes - bytes);
}

/* Of a rank that is out: it agrees with this one, and sends nothing. */
static void imagine_record(const xep_cuda_dispatch_t *d, uint32_t rank, uint64_t epoch)
{
    char *to = d->peer[d->rank] + d->counts.records + rank * d->counts.record_bytes;
    normal_record_t header = d->counts.header;
    header.epoch = epoch;
    header.capacity = d->counts.recv_rows;
    header.slot = header.wrong = 0;
    memcpy(to, &header, sizeof header);
    memset(to + sizeof header, 0, d->counts.record_bytes - sizeof header);
}

/* Of ranks that may be out; 0: some record does not come. */
static int await_records(const xep_cuda_dispatch_t *d, uint64_t epoch)
{
    const standin_waiter_t w = waiter_of(d);
    if (d->outs.gone == NULL)
        return wait_all(d->peer[d->rank], d->plan.nranks, d->counts.word, d->word_stride, epoch, &d->counts.deadline);
    for (uint32_t r = 0; r < d->plan.nranks; r++) {
        const int how = await_rank(&w, d->counts.word + r * d->word_stride, r, epoch, epoch, &d->counts.deadline);
        if (how == STANDIN_LATE) return 0;
        d->outs.with[r] = (uint32_t)how;
        if (how == XEP_CUDA_HEARD) fetch_record(d, r);
        if (how == XEP_CUDA_WITHOUT) imagine_record(d, r, epoch);
    }
    return !is_left_by_others(&w);
}

static int all_agree(const xep_cuda_dispatch_t *d)
{
    for (uint32_t a = 0; a < d->plan.nranks; a++)
        for (uint32_t b = 0; b < a; b++)
            for (int p = 0; p < NORMAL_PARAMS; p++) {
                uint32_t x = record_from(d, a)->params[p], y = record_from(d, b)->params[p];
                if (x != y && x != UINT32_MAX && y != UINT32_MAX) return 0;
            }
    return 1;
}

static int judge_rank(const xep_cuda_dispatch_t *d, uint64_t epoch, uint32_t rank)
{
    const normal_record_t *record = record_from(d, rank);
    const int cached = d->counts.header.params[NORMAL_CACHED] != 0;
    uint64_t rows = 0, before = 0;
    for (uint32_t s = 0; s < d->plan.nranks; s++) {
        uint32_t *count = &d->counts.rank_rows[s * d->plan.nranks + rank];
        if (is_without(d, s)) *count = 0;
        else if (!cached) memcpy(count, (const char *)(record_from(d, s) + 1) + rank * sizeof *count, sizeof *count);
        if (s < d->rank) before += *count;
        rows += *count;
    }
    if (record->epoch != epoch || record->wrong || record->slot >= d->counts.slots || rows > record->capacity ||
        record->capacity > d->counts.recv_rows || (cached && record->routing != d->counts.header.routing))
        return 0;
    for (int i = 0; i < XEP_CUDA_AREAS; i++)
        d->counts.there[rank].area[i] = is_without(d, rank) ? NULL
                                                            : d->peer[rank] + d->counts.area[i].first +
                                                                  record->slot * d->counts.area[i].stride +
                                                                  before * d->counts.area[i].row_bytes;
    return 1;
}

/* Counts that no host waits for. */
static void show_counts(const xep_cuda_dispatch_t *d, int go)
{
    d->counts.src_begin[0] = 0;
    for (uint32_t r = 0; r < d->plan.nranks; r++)
        d->counts.src_begin[r + 1] =
            go ? d->counts.src_begin[r] + d->counts.rank_rows[r * d->plan.nranks + d->rank] : 0;
    for (uint32_t e = 0; e < d->first_expert[d->rank + 1] - d->first_expert[d->rank]; e++) {
        const uint64_t rest = go ? d->counts.local[e] % d->counts.alignment : 0;
        d->counts.expert_rows[e] = go ? d->counts.local[e] + (rest == 0 ? 0 : d->counts.alignment - rest) : 0;
    }
}

static void add_selections(const xep_cuda_dispatch_t *d)
{
    const uint32_t experts = d->first_expert[d->rank + 1] - d->first_expert[d->rank];
    if (d->counts.header.params[NORMAL_CACHED] != 0) return;
    memset(d->counts.local, 0, experts * sizeof *d->counts.local);
    for (uint32_t s = 0; s < d->plan.nranks; s++)
        for (uint32_t e = 0; e < experts; e++) {
            uint32_t count;
            memcpy(&count, (const char *)(record_from(d, s) + 1) + (d->plan.nranks + e) * sizeof count, sizeof count);
            d->counts.local[e] += count;
        }
}

static void keep_refusal(const xep_cuda_dispatch_t *d)
{
    xep_cuda_refusal_t *refusal = d->counts.refusal;
    if (refusal->refused != 0) return;
    memcpy(d->counts.refused, record_from(d, 0), d->plan.nranks * d->counts.record_bytes);
    refusal->wrong = d->counts.header.params[NORMAL_CACHED] ? UINT64_MAX : *d->plan.wrong;
    for (refusal->rank = 0; refusal->rank < d->plan.nranks; refusal->rank++) {
        refusal->rows = 0;
        for (uint32_t s = 0; s < d->plan.nranks; s++)
            refusal->rows += d->counts.rank_rows[s * d->plan.nranks + refusal->rank];
        if (refusal->rows > record_from(d, refusal->rank)->capacity) break;
    }
    __atomic_store_n(&refusal->refused, 1, __ATOMIC_RELEASE);
}

/* By the numbers of the host. */
static void show_host(const xep_cuda_dispatch_t *d, uint64_t epoch)
{
    for (uint32_t r = 0; r < d->plan.nranks; r++) {
        normal_record_t *shown = (normal_record_t *)(void *)(d->counts.mirror + r * d->counts.record_bytes);
        memcpy(shown, record_from(d, r), d->counts.record_bytes);
        shown->epoch = shown->epoch - epoch + d->counts.header.epoch;
    }
    *d->counts.wrong_first = d->counts.header.params[NORMAL_CACHED] ? UINT64_MAX : *d->plan.wrong;
    __atomic_store_n(d->counts.counted, d->counts.header.epoch, __ATOMIC_RELEASE);
}

/* XEP_CUDA_LOST, and why, if some record does not come. */
static int exchange(const xep_cuda_dispatch_t *d, uint64_t epoch)
{
    int go = 1;
    *d->counts.verdict = XEP_CUDA_LOST;
    if (d->counts.counts_there) show_counts(d, 0);
    if (d->now->lost != 0) return XEP_CUDA_LOST;
    d->now->epoch = epoch;
    const int claimed = claim_record(d, epoch);
    if (claimed) {
        send_records(d, epoch, 0);
        tell_all(d->peer, d->rank, d->plan.nranks, d->counts.word, d->word_stride, epoch);
    }
    if (!claimed || !await_records(d, epoch)) {
        if (d->outs.gone != NULL) { /* it stores no rows */
            const standin_waiter_t w = waiter_of(d);
            __atomic_store_n(&words_of(&w, d->rank)->storing, 0, __ATOMIC_RELEASE);
        }
        d->now->lost = epoch;
        return XEP_CUDA_LOST;
    }
    go = all_agree(d);
    for (uint32_t r = 0; r < d->plan.nranks; r++) go &= judge_rank(d, epoch, r);
    add_selections(d);
    *d->counts.verdict = go ? XEP_CUDA_GO : XEP_CUDA_STAY;
    if (d->counts.counts_there && go) show_counts(d, 1);
    else if (d->counts.counts_there) keep_refusal(d);
    if (!d->counts.counts_there) show_host(d, epoch);
    return *d->counts.verdict;
}

/* ---- rows ---- */

static void move_selections(const xep_cuda_dispatch_t *d, uint64_t token, xep_cuda_dest_t dest)
{
    char *const *to = d->counts.there[dest.rank].area;
    for (uint32_t k = 0; k < d->plan.topk; k++) {
        int64_t expert = d->plan.chosen[token * d->plan.topk + k], first = d->first_expert[dest.rank];
        int here = expert >= first && expert < d->first_expert[dest.rank + 1];
        uint64_t at = (uint64_t)dest.row * d->plan.topk + k;
        float weight = 0;
        if (d->wide) ((int64_t *)(void *)to[XEP_CUDA_TOPK_IDX])[at] = here ? expert - first : -1;
        else ((int32_t *)(void *)to[XEP_CUDA_TOPK_IDX])[at] = here ? (int32_t)(expert - first) : -1;
        if (d->weights == NULL) continue;
        if (here) memcpy(&weight, d->weights + token * d->weights_stride + k * sizeof weight, sizeof weight);
        ((float *)(void *)to[XEP_CUDA_WEIGHTS])[at] = weight;
    }
}

static void move_token(const xep_cuda_dispatch_t *d, uint64_t token, xep_cuda_dest_t dest)
{
    char *const *to = d->counts.there[dest.rank].area;
    memcpy(to[XEP_CUDA_X] + dest.row * d->row_stride, d->x + token * d->x_stride, d->row_bytes);
    ((int32_t *)(void *)to[XEP_CUDA_SRC_TOKEN])[dest.row] = (int32_t)token;
    move_selections(d, token, dest);
    for (uint32_t s = 0; s < d->nscales; s++)
        memcpy(to[XEP_CUDA_SCALES] + ((uint64_t)dest.row * d->nscales + s) * 4,
               d->scales + (int64_t)token * d->scales_token_stride + (int64_t)s * d->scales_stride, 4);
}

/* Rows of a rank whose last word does not come select no expert. */
static void drop_rows(const xep_cuda_dispatch_t *d, uint32_t rank)
{
    const xep_cuda_area_t *idx = &d->counts.area[XEP_CUDA_TOPK_IDX];
    uint64_t first = 0;
    for (uint32_t s = 0; s < rank; s++) first += d->counts.rank_rows[(uint64_t)s * d->plan.nranks + d->rank];
    memset(d->peer[d->rank] + idx->first + d->counts.header.slot * idx->stride + first * idx->row_bytes, 0xff,
           d->counts.rank_rows[(uint64_t)rank * d->plan.nranks + d->rank] * idx->row_bytes);
}

static int await_rows(const xep_cuda_dispatch_t *d, uint64_t epoch, int go)
{
    const standin_waiter_t w = waiter_of(d);
    if (d->outs.gone == NULL)
        return wait_all(d->peer[d->rank], d->plan.nranks, d->done, d->word_stride, epoch * XEP_CUDA_WHOLE,
                        &d->deadline);
    __atomic_store_n(&words_of(&w, d->rank)->storing, 0, __ATOMIC_RELEASE);
    for (uint32_t r = 0; r < d->plan.nranks; r++) {
        const int how = await_rank(&w, d->done + r * d->word_stride, r, epoch * XEP_CUDA_WHOLE, epoch, &d->deadline);
        const uint64_t begin = now_ns();
        if (how == STANDIN_LATE) return 0;
        d->out[r] = how != XEP_CUDA_WITH || is_without(d, r);
        if (d->out[r] == 0 || is_without(d, r)) continue;
        while (__atomic_load_n(&words_of(&w, r)->storing, __ATOMIC_ACQUIRE) != 0 &&
               __atomic_load_n(&d->outs.gone[r], __ATOMIC_ACQUIRE) != 2 &&
               __atomic_load_n(d->deadline.stop, __ATOMIC_ACQUIRE) == 0 && now_ns() - begin < d->deadline.timeout_ns) {
            __atomic_store_n(&words_of(&w, d->rank)->beat, now_ns(), __ATOMIC_RELEASE);
            rest(50);
        }
        if (go) drop_rows(d, r);
    }
    return !is_left_by_others(&w);
}

static void run_dispatch(const void *args)
{
    const xep_cuda_dispatch_t *d = args;
    if (is_stale(&d->plan.life) || d->part == XEP_CUDA_REST) return; /* the first launch does all */
    const uint64_t epoch = d->now->epoch + 1;
    if (d->planning) run_plan(&d->plan);
    const int verdict = exchange(d, epoch);
    if (d->tail != NULL) {
        const uint64_t rows = verdict == XEP_CUDA_GO ? d->counts.src_begin[d->plan.nranks] : 0;
        for (uint64_t i = rows * d->plan.topk * (d->wide ? 2 : 1); i < d->tail_words; i++) d->tail[i] = UINT32_MAX;
    }
    if (verdict == XEP_CUDA_LOST) return;
    for (uint64_t t = 0; verdict == XEP_CUDA_GO && t < d->plan.tokens; t++)
        for (uint32_t n = 0; n < d->plan.max_dests && d->plan.dest[t * d->plan.max_dests + n].rank != XEP_CUDA_NOBODY;
             n++)
            if (!is_without(d, (uint32_t)d->plan.dest[t * d->plan.max_dests + n].rank))
                move_token(d, t, d->plan.dest[t * d->plan.max_dests + n]);
    tell_all(d->peer, d->rank, d->plan.nranks, d->done, d->word_stride, epoch * XEP_CUDA_WHOLE);
    if (!await_rows(d, epoch, verdict == XEP_CUDA_GO)) d->now->lost = epoch;
}

/* ---- combine ---- */

static uint64_t first_of_reader(const xep_cuda_combine_t *c, uint32_t reader)
{
    uint64_t row = 0;
    for (uint32_t r = 0; r < reader; r++) row += c->rank_rows[(uint64_t)r * c->nranks + c->rank];
    return row;
}

/* A row of the input: as x has it, or the sum of the rows by expert that the slots name. */
static void bring_row(const xep_cuda_combine_t *c, xep_dtype_t dtype, uint64_t row, float *sum)
{
    char *to = c->input.input + row * c->row_stride;
    if (c->input.slots == NULL) {
        memcpy(to, c->input.x + row * c->input.x_stride, c->sum.hidden * (dtype == XEP_FP32 ? 4ul : 2ul));
        return;
    }
    memset(sum, 0, c->sum.hidden * sizeof *sum);
    for (uint32_t k = 0; k < c->topk; k++) {
        const int32_t slot = c->input.slots[row * c->topk + k];
        if (slot >= 0) oracle_row_add(sum, c->input.x + (uint64_t)slot * c->input.x_stride, dtype, c->sum.hidden);
    }
    oracle_row_round(to, sum, dtype, c->sum.hidden);
}

/* Brings the rows of each reader into the input, part by part, and tells. */
static void bring_parts(const xep_cuda_combine_t *c, xep_dtype_t dtype, uint64_t epoch, float *sum)
{
    for (uint32_t begin = 0, end = 1; c->input.x != NULL && end <= XEP_CUDA_PARTS; begin = end, end *= 2) {
        for (uint32_t r = 0; r < c->nranks; r++) {
            const uint64_t first = first_of_reader(c, r), rows = first_of_reader(c, r + 1) - first;
            if (r == c->rank && c->input.slots == NULL) continue;
            for (uint64_t row = rows * begin / XEP_CUDA_PARTS; row < rows * end / XEP_CUDA_PARTS; row++)
                bring_row(c, dtype, first + row, sum);
        }
        tell_all(c->peer, c->rank, c->nranks, c->ready, c->word_stride, epoch * XEP_CUDA_STEPS + end);
    }
}

static int is_with(const xep_cuda_combine_t *c, uint32_t rank)
{
    return how_with(&c->outs, rank) == XEP_CUDA_WITH && c->there[rank].area[XEP_CUDA_INPUT] != NULL;
}

static const char *row_of(const xep_cuda_combine_t *c, xep_cuda_dest_t dest)
{
    if (c->input.x != NULL && c->input.slots == NULL && (uint32_t)dest.rank == c->rank)
        return c->input.x + (first_of_reader(c, c->rank) + dest.row) * c->input.x_stride;
    return c->there[dest.rank].area[XEP_CUDA_INPUT] + dest.row * c->row_stride;
}

/* 0: some owner's part with a row of the token did not come. */
static int wait_rows(const xep_cuda_combine_t *c, uint64_t token, uint64_t epoch)
{
    const xep_cuda_dest_t *dest = c->dest + token * c->max_dests;
    for (uint32_t n = 0; n < c->max_dests && dest[n].rank != XEP_CUDA_NOBODY; n++) {
        const uint64_t rows = c->rank_rows[(uint64_t)c->rank * c->nranks + (uint32_t)dest[n].rank];
        uint32_t parts = 1;
        if (!is_with(c, (uint32_t)dest[n].rank)) continue;
        while (rows * parts / XEP_CUDA_PARTS <= dest[n].row) parts++;
        if (!wait_word(c->peer[c->rank], c->ready + (uint32_t)dest[n].rank * c->word_stride, (uint32_t)dest[n].rank,
                       epoch * XEP_CUDA_STEPS + parts, now_ns(), &c->deadline))
            return 0;
    }
    return 1;
}

static void sum_token(const xep_cuda_combine_t *c, xep_dtype_t dtype, uint64_t token, float *sum)
{
    const xep_cuda_dest_t *dest = c->dest + token * c->max_dests;
    memset(sum, 0, c->sum.hidden * sizeof *sum);
    for (int b = 0; b < 2; b++)
        if (c->sum.bias[b] != NULL)
            oracle_row_add(sum, c->sum.bias[b] + token * c->sum.bias_stride[b], dtype, c->sum.hidden);
    for (uint32_t n = 0; n < c->max_dests && dest[n].rank != XEP_CUDA_NOBODY; n++)
        if (is_with(c, (uint32_t)dest[n].rank)) oracle_row_add(sum, row_of(c, dest[n]), dtype, c->sum.hidden);
    oracle_row_round(c->sum.out + token * c->sum.out_stride, sum, dtype, c->sum.hidden);
}

static void sum_weights(const xep_cuda_combine_t *c, uint64_t token)
{
    const xep_cuda_dest_t *dest = c->dest + token * c->max_dests;
    for (uint32_t k = 0; k < c->topk; k++) {
        float sum = 0;
        for (uint32_t n = 0; n < c->max_dests && dest[n].rank != XEP_CUDA_NOBODY; n++) {
            const char *weights = c->there[dest[n].rank].area[XEP_CUDA_INPUT_WEIGHTS];
            if (is_with(c, (uint32_t)dest[n].rank))
                sum += ((const float *)(const void *)weights)[(uint64_t)dest[n].row * c->topk + k];
        }
        memcpy(c->out_weights + token * c->out_weights_stride + k * sizeof sum, &sum, sizeof sum);
    }
}

static int compare_offers(const xep_cuda_combine_t *c)
{
    for (int i = 0; i < 2; i++)
        for (uint32_t a = 0; a < c->nranks; a++)
            for (uint32_t b = 0; b < a; b++) {
                if (how_with(&c->outs, a) != XEP_CUDA_WITH || how_with(&c->outs, b) != XEP_CUDA_WITH) continue;
                uint64_t x = *word(c->peer[c->rank], c->said + a * c->word_stride + (uint64_t)i * 8);
                uint64_t y = *word(c->peer[c->rank], c->said + b * c->word_stride + (uint64_t)i * 8);
                if (x == y || x == UINT64_MAX || y == UINT64_MAX) continue;
                __atomic_store_n(c->differs, a + 1, __ATOMIC_RELEASE);
                return 0;
            }
    return 1;
}

/* Owners, or readers, of which those may be out; 0: the word of one does not come. */
static int await_combine(const xep_cuda_combine_t *c, uint64_t at, uint64_t value, uint64_t epoch,
                         const xep_cuda_deadline_t *deadline, int decides)
{
    const standin_waiter_t w = {&c->outs, c->peer, c->rank, c->nranks};
    if (c->outs.gone == NULL) return wait_all(c->peer[c->rank], c->nranks, at, c->word_stride, value, deadline);
    for (uint32_t r = 0; r < c->nranks; r++) {
        const int how = await_rank(&w, at + r * c->word_stride, r, value, epoch, deadline);
        if (how == STANDIN_LATE) return 0;
        if (decides) c->outs.with[r] = (uint32_t)how;
    }
    return !is_left_by_others(&w);
}

static void tell_missing(const xep_cuda_combine_t *c)
{
    for (uint64_t i = 0; c->missing != NULL && i < (uint64_t)c->sum.tokens * c->topk; i++)
        c->missing[i / c->topk * c->missing_stride + i % c->topk] =
            c->chosen[i] >= 0 && !is_with(c, c->owner[c->chosen[i]]);
}

static void combine(const xep_cuda_combine_t *c, xep_dtype_t dtype)
{
    const uint64_t epoch = c->now->epoch + 1;
    if (is_stale(&c->life) || c->now->lost != 0) return;
    c->now->epoch = epoch;
    for (uint32_t r = 0; r < c->nranks; r++) memcpy(c->peer[r] + c->said + c->rank * c->word_stride, c->offer, 16);
    tell_all(c->peer, c->rank, c->nranks, c->ready, c->word_stride,
             epoch * XEP_CUDA_STEPS + (c->input.x == NULL ? XEP_CUDA_PARTS : 0));
    int good = await_combine(c, c->ready, epoch * XEP_CUDA_STEPS, epoch, &c->deadline, 1);
    if (!good) c->now->lost = epoch;
    if (good) good = compare_offers(c) && *c->verdict == XEP_CUDA_GO;
    float *sum = malloc(c->sum.hidden * sizeof *sum);
    if (good && sum != NULL) bring_parts(c, dtype, epoch, sum);
    for (uint64_t t = 0; good && sum != NULL && t < c->sum.tokens; t++) {
        good = wait_rows(c, t, epoch);
        if (!good) c->now->lost = epoch;
        sum_token(c, dtype, t, sum);
        if (c->out_weights != NULL) sum_weights(c, t);
    }
    free(sum);
    if (good) tell_missing(c);
    tell_all(c->peer, c->rank, c->nranks, c->read, c->word_stride, epoch * XEP_CUDA_WHOLE);
    if (!await_combine(c, c->read, epoch * XEP_CUDA_WHOLE, epoch, &c->at_the_end, 0)) c->now->lost = epoch;
}

static void run_combine_bf16(const void *args)
{
    combine(args, XEP_BF16);
}

static void run_combine_fp16(const void *args)
{
    combine(args, XEP_FP16);
}

static void run_combine_fp32(const void *args)
{
    combine(args, XEP_FP32);
}

/* ---- rows that are direct ---- */

static void run_gather(const void *args)
{
    const xep_direct_gather_t *g = args;
    for (uint32_t r = 0; r < g->nranks; r++)
        for (uint64_t i = g->begin[r]; i < g->begin[r + 1]; i++)
            memcpy(g->to[r] + (i - g->begin[r]) * g->stride, g->x + g->tokens[i] * g->x_stride, g->bytes);
}

/* With STANDIN_SLOW_SUMS it begins so many microseconds late. */
static void sum_direct(const xep_direct_sum_t *s, xep_dtype_t dtype)
{
    const char *slow = getenv("STANDIN_SLOW_SUMS");
    if (slow != NULL) usleep((useconds_t)strtoul(slow, NULL, 10));
    float *sum = malloc(s->hidden * sizeof *sum);
    for (uint64_t t = 0; sum != NULL && t < s->tokens; t++) {
        memset(sum, 0, s->hidden * sizeof *sum);
        for (int b = 0; b < 2; b++)
            if (s->bias[b] != NULL) oracle_row_add(sum, s->bias[b] + t * s->bias_stride[b], dtype, s->hidden);
        for (uint64_t i = s->first[t]; i < s->first[t + 1]; i++) {
            const xep_direct_source_t *source = &s->sources[s->terms[i].rank];
            oracle_row_add(sum, source->x + s->terms[i].row * source->stride, dtype, s->hidden);
        }
        oracle_row_round(s->out + t * s->out_stride, sum, dtype, s->hidden);
    }
    free(sum);
}

static void run_sum_bf16(const void *args)
{
    sum_direct(args, XEP_BF16);
}

static void run_sum_fp16(const void *args)
{
    sum_direct(args, XEP_FP16);
}

static void run_sum_fp32(const void *args)
{
    sum_direct(args, XEP_FP32);
}

/* That of xep_perf: to, from, bytes. */
static void run_copy(const void *args)
{
    const uint64_t *copy = args;
    memcpy((void *)(uintptr_t)copy[0], (const void *)(uintptr_t)copy[1], copy[2]);
}

const standin_kernel_t standin_normal_kernels[] = {
    {"perf_copy", 3 * sizeof(uint64_t), run_copy},
    {"xep_cuda_dispatch_with_all", sizeof(xep_cuda_dispatch_t), run_dispatch},
    {"xep_cuda_plan", sizeof(xep_cuda_plan_t), run_plan},
    {"xep_cuda_cast", sizeof(xep_cuda_cast_rows_t), run_cast},
    {"xep_cuda_layout", sizeof(xep_cuda_layout_t), standin_layout},
    {"xep_cuda_slots", sizeof(xep_cuda_expand_t), standin_slots},
    {"xep_cuda_expand", sizeof(xep_cuda_expand_t), standin_expand},
    {"xep_cuda_reduce", sizeof(xep_cuda_reduce_t), standin_reduce},
    {"xep_cuda_dispatch", sizeof(xep_cuda_dispatch_t), run_dispatch},
    {"xep_cuda_gather", sizeof(xep_direct_gather_t), run_gather},
    {"xep_cuda_sum_bf16", sizeof(xep_direct_sum_t), run_sum_bf16},
    {"xep_cuda_sum_fp16", sizeof(xep_direct_sum_t), run_sum_fp16},
    {"xep_cuda_sum_fp32", sizeof(xep_direct_sum_t), run_sum_fp32},
    {"xep_cuda_combine_bf16", sizeof(xep_cuda_combine_t), run_combine_bf16},
    {"xep_cuda_combine_fp16", sizeof(xep_cuda_combine_t), run_combine_fp16},
    {"xep_cuda_combine_fp32", sizeof(xep_cuda_combine_t), run_combine_fp32},
};
const int standin_normal_count = sizeof standin_normal_kernels / sizeof standin_normal_kernels[0];
_Static_assert(sizeof(xep_cuda_dispatch_t) <= STANDIN_ARGS_BYTES, "work holds a copy");
