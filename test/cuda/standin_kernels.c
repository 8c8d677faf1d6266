/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The kernels of normal in plain C: what cuda_kernels.h says that they do, as one thread would do it. They share no
 * code with those for devices, which contrib/check-cuda.sh compares with the same oracle.
 */
#include <stdlib.h>
#include <string.h>

#include <oracle_number.h>
#include <xep/xep.h>

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
    return p->wide ? wide : narrow;
}

static int selects(const xep_cuda_plan_t *p, uint64_t token, uint32_t rank)
{
    for (uint32_t k = 0; k < p->topk; k++) {
        int32_t expert = p->chosen[token * p->topk + k];
        if (expert >= 0 && (uint32_t)expert < p->experts && p->owner[expert] == rank) return 1;
    }
    return 0;
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
        for (uint32_t r = 0; r < p->nranks; r++)
            if (selects(p, t, r)) p->dest[t * p->max_dests + n++] = (xep_cuda_dest_t){(int32_t)r, p->rows[r]++};
        for (; n < p->max_dests; n++) p->dest[t * p->max_dests + n] = (xep_cuda_dest_t){XEP_CUDA_NOBODY, 0};
    }
}

/* ---- layout ---- */

/* As in a plan: the index that a row of the same look has. */
static int64_t index_in(const xep_cuda_layout_t *l, uint64_t token, uint32_t k)
{
    const xep_cuda_plan_t rows = {.topk_idx = l->topk_idx, .topk_idx_stride = l->topk_idx_stride, .wide = l->wide};
    return index_of(&rows, token, k);
}

/* The first E % R ranks own one expert more than the others. */
static int64_t first_of(const xep_cuda_layout_t *l, uint32_t rank)
{
    const uint32_t more = l->experts % l->nranks;
    return (int64_t)rank * (l->experts / l->nranks) + (rank < more ? rank : more);
}

static int selects_one_of(const xep_cuda_layout_t *l, uint64_t token, uint32_t rank, uint32_t count)
{
    for (uint32_t k = 0; k < l->topk; k++)
        for (uint32_t r = rank; r < rank + count && r < l->nranks; r++) {
            int64_t expert = index_in(l, token, k);
            if (expert >= first_of(l, r) && expert < first_of(l, r + 1)) return 1;
        }
    return 0;
}

static void count_groups(const xep_cuda_layout_t *l, uint32_t groups, uint32_t ranks, int32_t *counts)
{
    for (uint32_t g = 0; g < groups && counts != NULL; g++) {
        counts[g] = 0;
        for (uint64_t t = 0; t < l->tokens; t++) counts[g] += selects_one_of(l, t, g * ranks, ranks);
    }
}

static void run_layout(const void *args)
{
    const xep_cuda_layout_t *l = args;
    count_groups(l, l->nranks, 1, l->tokens_per_rank);
    count_groups(l, l->nodes, l->ranks_per_node, l->tokens_per_node);
    for (uint64_t i = 0; l->token_in_rank != NULL && i < l->tokens * l->nranks; i++)
        l->token_in_rank[i] = (uint8_t)selects_one_of(l, i / l->nranks, (uint32_t)(i % l->nranks), 1);
    if (l->tokens_per_expert == NULL) return;
    memset(l->tokens_per_expert, 0, l->experts * sizeof *l->tokens_per_expert);
    for (uint64_t i = 0; i < l->tokens * l->topk; i++) {
        int64_t expert = index_in(l, i / l->topk, (uint32_t)(i % l->topk));
        if (expert >= 0 && expert < l->experts) l->tokens_per_expert[expert]++;
    }
}

/* ---- counts ---- */

static const normal_record_t *record_from(const xep_cuda_counts_t *c, uint32_t rank)
{
    return (const normal_record_t *)(const void *)(c->peer[c->rank] + c->records + rank * c->record_bytes);
}

static void send_records(const xep_cuda_counts_t *c, uint64_t epoch)
{
    const int cached = c->header.params[NORMAL_CACHED] != 0;
    for (uint32_t r = 0; r < c->nranks; r++) {
        char *to = c->peer[r] + c->records + c->rank * c->record_bytes;
        uint32_t first = c->first_expert[r], count = c->first_expert[r + 1] - first;
        normal_record_t header = c->header;
        header.epoch = epoch;
        header.wrong = !cached && *c->wrong != UINT64_MAX;
        memcpy(to, &header, sizeof header);
        if (cached) continue;
        memcpy(to + sizeof header, c->rows, c->nranks * sizeof *c->rows);
        memcpy(to + sizeof header + c->nranks * sizeof *c->rows, c->selections + first, count * sizeof *c->selections);
    }
}

static int all_agree(const xep_cuda_counts_t *c)
{
    for (uint32_t a = 0; a < c->nranks; a++)
        for (uint32_t b = 0; b < a; b++)
            for (int p = 0; p < NORMAL_PARAMS; p++) {
                uint32_t x = record_from(c, a)->params[p], y = record_from(c, b)->params[p];
                if (x != y && x != UINT32_MAX && y != UINT32_MAX) return 0;
            }
    return 1;
}

static int judge_rank(const xep_cuda_counts_t *c, uint64_t epoch, uint32_t rank)
{
    const normal_record_t *record = record_from(c, rank);
    const int cached = c->header.params[NORMAL_CACHED] != 0;
    uint64_t rows = 0, before = 0;
    for (uint32_t s = 0; s < c->nranks; s++) {
        uint32_t *count = &c->rank_rows[s * c->nranks + rank];
        if (!cached) memcpy(count, (const char *)(record_from(c, s) + 1) + rank * sizeof *count, sizeof *count);
        if (s < c->rank) before += *count;
        rows += *count;
    }
    if (record->epoch != epoch || record->wrong || record->slot >= c->slots || rows > record->capacity ||
        record->capacity > c->recv_rows || (cached && record->routing != c->header.routing))
        return 0;
    for (int i = 0; i < XEP_CUDA_AREAS; i++)
        c->there[rank].area[i] =
            c->peer[rank] + c->area[i].first + record->slot * c->area[i].stride + before * c->area[i].row_bytes;
    return 1;
}

/* Counts that no host waits for. */
static void show_counts(const xep_cuda_counts_t *c, int go)
{
    c->src_begin[0] = 0;
    for (uint32_t r = 0; r < c->nranks; r++)
        c->src_begin[r + 1] = go ? c->src_begin[r] + c->rank_rows[r * c->nranks + c->rank] : 0;
    for (uint32_t e = 0; e < c->first_expert[c->rank + 1] - c->first_expert[c->rank]; e++) {
        const uint64_t rest = go ? c->local[e] % c->alignment : 0;
        c->expert_rows[e] = go ? c->local[e] + (rest == 0 ? 0 : c->alignment - rest) : 0;
    }
}

static void add_selections(const xep_cuda_counts_t *c)
{
    const uint32_t experts = c->first_expert[c->rank + 1] - c->first_expert[c->rank];
    if (c->header.params[NORMAL_CACHED] != 0) return;
    memset(c->local, 0, experts * sizeof *c->local);
    for (uint32_t s = 0; s < c->nranks; s++)
        for (uint32_t e = 0; e < experts; e++) {
            uint32_t count;
            memcpy(&count, (const char *)(record_from(c, s) + 1) + (c->nranks + e) * sizeof count, sizeof count);
            c->local[e] += count;
        }
}

static void keep_refusal(const xep_cuda_counts_t *c)
{
    xep_cuda_refusal_t *refusal = c->refusal;
    if (refusal->refused != 0) return;
    memcpy(c->refused, record_from(c, 0), c->nranks * c->record_bytes);
    refusal->wrong = c->header.params[NORMAL_CACHED] ? UINT64_MAX : *c->wrong;
    for (refusal->rank = 0; refusal->rank < c->nranks; refusal->rank++) {
        refusal->rows = 0;
        for (uint32_t s = 0; s < c->nranks; s++) refusal->rows += c->rank_rows[s * c->nranks + refusal->rank];
        if (refusal->rows > record_from(c, refusal->rank)->capacity) break;
    }
    __atomic_store_n(&refusal->refused, 1, __ATOMIC_RELEASE);
}

/* By the numbers of the host. */
static void show_host(const xep_cuda_counts_t *c, uint64_t epoch)
{
    for (uint32_t r = 0; r < c->nranks; r++) {
        normal_record_t *shown = (normal_record_t *)(void *)(c->mirror + r * c->record_bytes);
        memcpy(shown, record_from(c, r), c->record_bytes);
        shown->epoch = shown->epoch - epoch + c->header.epoch;
    }
    *c->wrong_first = c->header.params[NORMAL_CACHED] ? UINT64_MAX : *c->wrong;
    __atomic_store_n(c->counted, c->header.epoch, __ATOMIC_RELEASE);
}

static void run_counts(const void *args)
{
    const xep_cuda_counts_t *c = args;
    const uint64_t epoch = c->now->epoch + 1;
    int go = 1;
    if (is_stale(&c->life)) return;
    *c->verdict = XEP_CUDA_LOST;
    if (c->counts_there) show_counts(c, 0);
    if (c->now->lost != 0) return;
    c->now->epoch = epoch;
    send_records(c, epoch);
    tell_all(c->peer, c->rank, c->nranks, c->word, c->word_stride, epoch);
    if (!wait_all(c->peer[c->rank], c->nranks, c->word, c->word_stride, epoch, &c->deadline)) {
        c->now->lost = epoch;
        return;
    }
    go = all_agree(c);
    for (uint32_t r = 0; r < c->nranks; r++) go &= judge_rank(c, epoch, r);
    add_selections(c);
    *c->verdict = go ? XEP_CUDA_GO : XEP_CUDA_STAY;
    if (c->counts_there && go) show_counts(c, 1);
    else if (c->counts_there) keep_refusal(c);
    if (!c->counts_there) show_host(c, epoch);
}

/* ---- rows ---- */

static void move_selections(const xep_cuda_dispatch_t *d, uint64_t token, xep_cuda_dest_t dest)
{
    char *const *to = d->there[dest.rank].area;
    for (uint32_t k = 0; k < d->topk; k++) {
        int64_t expert = d->chosen[token * d->topk + k], first = d->first_expert[dest.rank];
        int here = expert >= first && expert < d->first_expert[dest.rank + 1];
        uint64_t at = (uint64_t)dest.row * d->topk + k;
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
    char *const *to = d->there[dest.rank].area;
    memcpy(to[XEP_CUDA_X] + dest.row * d->row_stride, d->x + token * d->x_stride, d->row_bytes);
    ((int32_t *)(void *)to[XEP_CUDA_SRC_TOKEN])[dest.row] = (int32_t)token;
    move_selections(d, token, dest);
    for (uint32_t s = 0; s < d->nscales; s++)
        memcpy(to[XEP_CUDA_SCALES] + ((uint64_t)dest.row * d->nscales + s) * 4,
               d->scales + (int64_t)token * d->scales_token_stride + (int64_t)s * d->scales_stride, 4);
}

static void run_dispatch(const void *args)
{
    const xep_cuda_dispatch_t *d = args;
    if (is_stale(&d->life)) return;
    if (d->tail != NULL) {
        const uint64_t rows = *d->verdict == XEP_CUDA_GO ? d->src_begin[d->nranks] : 0;
        for (uint64_t i = rows * d->topk * (d->wide ? 2 : 1); i < d->tail_words; i++) d->tail[i] = UINT32_MAX;
    }
    if (*d->verdict == XEP_CUDA_LOST) return;
    for (uint64_t t = 0; *d->verdict == XEP_CUDA_GO && t < d->tokens; t++)
        for (uint32_t n = 0; n < d->max_dests && d->dest[t * d->max_dests + n].rank != XEP_CUDA_NOBODY; n++)
            move_token(d, t, d->dest[t * d->max_dests + n]);
    const uint64_t epoch = d->now->epoch;
    tell_all(d->peer, d->rank, d->nranks, d->word, d->word_stride, epoch);
    if (!wait_all(d->peer[d->rank], d->nranks, d->word, d->word_stride, epoch, &d->deadline)) d->now->lost = epoch;
}

/* ---- combine ---- */

static void sum_token(const xep_cuda_combine_t *c, xep_dtype_t dtype, uint64_t token, float *sum)
{
    const xep_cuda_dest_t *dest = c->dest + token * c->max_dests;
    memset(sum, 0, c->sum.hidden * sizeof *sum);
    for (int b = 0; b < 2; b++)
        if (c->sum.bias[b] != NULL)
            oracle_row_add(sum, c->sum.bias[b] + token * c->sum.bias_stride[b], dtype, c->sum.hidden);
    for (uint32_t n = 0; n < c->max_dests && dest[n].rank != XEP_CUDA_NOBODY; n++)
        oracle_row_add(sum, c->there[dest[n].rank].area[XEP_CUDA_INPUT] + dest[n].row * c->row_stride, dtype,
                       c->sum.hidden);
    oracle_row_round(c->sum.out + token * c->sum.out_stride, sum, dtype, c->sum.hidden);
}

static void sum_weights(const xep_cuda_combine_t *c, uint64_t token)
{
    const xep_cuda_dest_t *dest = c->dest + token * c->max_dests;
    for (uint32_t k = 0; k < c->topk; k++) {
        float sum = 0;
        for (uint32_t n = 0; n < c->max_dests && dest[n].rank != XEP_CUDA_NOBODY; n++) {
            const char *weights = c->there[dest[n].rank].area[XEP_CUDA_INPUT_WEIGHTS];
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
                uint64_t x = *word(c->peer[c->rank], c->said + a * c->word_stride + (uint64_t)i * 8);
                uint64_t y = *word(c->peer[c->rank], c->said + b * c->word_stride + (uint64_t)i * 8);
                if (x == y || x == UINT64_MAX || y == UINT64_MAX) continue;
                __atomic_store_n(c->differs, a + 1, __ATOMIC_RELEASE);
                return 0;
            }
    return 1;
}

static void combine(const xep_cuda_combine_t *c, xep_dtype_t dtype)
{
    const uint64_t epoch = c->now->epoch + 1;
    if (is_stale(&c->life) || c->now->lost != 0) return;
    c->now->epoch = epoch;
    for (uint32_t r = 0; r < c->nranks; r++) memcpy(c->peer[r] + c->said + c->rank * c->word_stride, c->offer, 16);
    tell_all(c->peer, c->rank, c->nranks, c->ready, c->word_stride, epoch);
    int good = wait_all(c->peer[c->rank], c->nranks, c->ready, c->word_stride, epoch, &c->deadline);
    if (!good) c->now->lost = epoch;
    if (good) good = compare_offers(c) && *c->verdict == XEP_CUDA_GO;
    float *sum = malloc(c->sum.hidden * sizeof *sum);
    for (uint64_t t = 0; good && sum != NULL && t < c->sum.tokens; t++) {
        sum_token(c, dtype, t, sum);
        if (c->out_weights != NULL) sum_weights(c, t);
    }
    free(sum);
    tell_all(c->peer, c->rank, c->nranks, c->read, c->word_stride, epoch);
    if (!wait_all(c->peer[c->rank], c->nranks, c->read, c->word_stride, epoch, &c->at_the_end)) c->now->lost = epoch;
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

const standin_kernel_t standin_normal_kernels[] = {
    {"xep_cuda_plan", sizeof(xep_cuda_plan_t), run_plan},
    {"xep_cuda_layout", sizeof(xep_cuda_layout_t), run_layout},
    {"xep_cuda_counts", sizeof(xep_cuda_counts_t), run_counts},
    {"xep_cuda_dispatch", sizeof(xep_cuda_dispatch_t), run_dispatch},
    {"xep_cuda_combine_bf16", sizeof(xep_cuda_combine_t), run_combine_bf16},
    {"xep_cuda_combine_fp16", sizeof(xep_cuda_combine_t), run_combine_fp16},
    {"xep_cuda_combine_fp32", sizeof(xep_cuda_combine_t), run_combine_fp32},
};
const int standin_normal_count = sizeof standin_normal_kernels / sizeof standin_normal_kernels[0];
_Static_assert(sizeof(xep_cuda_counts_t) <= STANDIN_ARGS_BYTES, "work holds a copy");
