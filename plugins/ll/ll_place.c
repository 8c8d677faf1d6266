/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows out of parcels to their places in expert order (step 5 of dispatch in ll.h). */
#include <string.h>

#include "ll.h"

/* ---- the list ---- */

/*
 * Rows of a source by token, then selection, up to *n_p = end. Selections that are not here count in next_row[L]:
 * without a branch it takes half the time where every other selection is. 0: not as many as were counted.
 */
static int pick_source(ll_t *mode, uint32_t source, const ll_notice_t *notice, uint64_t *n_p, uint64_t end)
{
    const int32_t *idx = (const int32_t *)(const void *)(mode->parcels[source] + mode->places[source].idx);
    const uint32_t first = mode->shape->first_expert, count = mode->shape->local_experts, topk = notice->topk;
    uint32_t *next_row = mode->next_row;
    ll_pick_t *picks = mode->picks;
    uint64_t n = *n_p;
    for (uint32_t t = 0; t < notice->tokens; t++, idx += topk) {
        if (n > end) return 0; /* before it runs out of the list, which has room for K more */
        for (uint32_t k = 0; k < topk; k++) {
            uint32_t local = (uint32_t)idx[k] - first;
            local = local < count ? local : count;
            picks[n] = (ll_pick_t){.token = t, .k = k, .row = next_row[local]++};
            n += local < count;
        }
    }
    *n_p = n;
    return n == end;
}

static uint64_t rows_from(const ll_t *mode, const ll_slot_t *slot, uint32_t source)
{
    const uint32_t *begin = slot->pair_begin + source, *count = slot->pair_count + source;
    const uint32_t experts = mode->shape->local_experts, nranks = mode->shape->nranks;
    uint32_t *next_row = mode->next_row;
    uint64_t rows = 0;
    for (uint32_t e = 0; e < experts; e++, begin += nranks, count += nranks) {
        next_row[e] = *begin;
        rows += *count;
    }
    return rows;
}

/* Every expert got as many rows as were counted for it: no row lies outside its place. */
static int is_as_counted(const ll_t *mode, const ll_slot_t *slot, uint32_t source)
{
    const uint32_t *begin = slot->pair_begin + source, *count = slot->pair_count + source;
    const uint32_t experts = mode->shape->local_experts, nranks = mode->shape->nranks, *next_row = mode->next_row;
    uint32_t wrong = 0;
    for (uint32_t e = 0; e < experts; e++, begin += nranks, count += nranks) wrong |= next_row[e] ^ (*begin + *count);
    return wrong == 0;
}

xep_status_t ll_pick_rows(ll_t *mode, xep_op_t *op)
{
    const ll_slot_t *slot = &mode->slots[op->slot];
    uint64_t n = 0;
    for (uint32_t s = 0; s < mode->shape->nranks; s++) {
        uint64_t end = n + rows_from(mode, slot, s);
        mode->pick_begin[s] = n;
        if (!pick_source(mode, s, &slot->from[s], &n, end) || !is_as_counted(mode, slot, s))
            return mode->env->fail(mode->env, op, XEP_ERR_PROTOCOL, "the indices of rank %u are not what it counted", s);
    }
    mode->pick_begin[mode->shape->nranks] = n;
    return XEP_OK;
}

/* ---- the copying ---- */

typedef struct place {
    const ll_t *mode;
    const xep_op_t *op;
    ll_slot_t *slot;
    xep_copy_fn copy;
} place_t;

/* By column, padded: a block [nscales][R * tokens] for each expert, so that an expert's scales are a matrix of their own. */
static char *scales_of(const xep_recv_t *recv, uint64_t row)
{
    uint64_t column = (uint64_t)recv->scales_stride / 4;
    if (recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED && recv->scales_token_stride == 4)
        row += row / column * column * (recv->nscales - 1);
    return (char *)recv->scales + (ptrdiff_t)row * recv->scales_token_stride;
}

static void place_scales(const xep_recv_t *recv, const char *from, uint64_t row)
{
    char *to = scales_of(recv, row);
    if (recv->scales_stride == 4) memcpy(to, from, recv->nscales * (size_t)4);
    else
        for (uint32_t s = 0; s < recv->nscales; s++, to += recv->scales_stride) memcpy(to, from + s * (size_t)4, 4);
}

static void place_metadata(const place_t *place, uint32_t source, const ll_pick_t *pick)
{
    const ll_notice_t *notice = &place->slot->from[source];
    const xep_recv_t *recv = place->op->recv;
    uint64_t selection = (uint64_t)pick->token * notice->topk + pick->k;
    recv->src_token[pick->row] = (int32_t)pick->token;
    if (place->slot->origin != NULL) place->slot->origin[pick->row] = selection;
    if (notice->sends_weights)
        memcpy(&recv->topk_weights[pick->row], place->mode->parcels[source] + place->mode->places[source].weights + selection * 4, 4);
}

/* The first pick of the list that is of another token than pick, or pick. */
static const ll_pick_t *next_token(const ll_pick_t *pick, const ll_pick_t *end)
{
    for (const ll_pick_t *next = pick; next < end; next++)
        if (next->token != pick->token) return next;
    return pick;
}

/* Rows of a token are neighbours in the list: while they are copied out of the cache, the next token comes into it. */
static void place_source(const place_t *place, uint32_t source, uint64_t begin, uint64_t end)
{
    const ll_parcel_t *at = &place->mode->places[source];
    const char *records = place->mode->parcels[source] + at->rows;
    const xep_recv_t *recv = place->op->recv;
    const ll_pick_t *pick = place->mode->picks + begin, *last = place->mode->picks + end, *next = pick;
    for (; pick < last; pick++) {
        const char *record = records + pick->token * at->stride;
        if (next->token == pick->token) next = next_token(pick, last);
        place->copy((char *)recv->x + pick->row * recv->x_stride, record, at->row_bytes, records + next->token * at->stride);
        if (recv->nscales != 0) place_scales(recv, record + at->scales, pick->row);
        place_metadata(place, source, pick);
    }
}

static void place_share(void *arg, uint32_t thread, uint32_t nthreads)
{
    const place_t *place = arg;
    const ll_t *mode = place->mode;
    uint64_t rows = mode->pick_begin[mode->shape->nranks];
    uint64_t begin = rows * thread / nthreads, end = rows * (thread + 1) / nthreads;
    for (uint32_t i = 0; i < mode->shape->nranks; i++) {
        uint32_t s = (mode->shape->rank + i) % mode->shape->nranks; /* own rows first: others' lines may still be on their way */
        uint64_t from = mode->pick_begin[s] > begin ? mode->pick_begin[s] : begin;
        uint64_t to = mode->pick_begin[s + 1] < end ? mode->pick_begin[s + 1] : end;
        if (from < to) place_source(place, s, from, to);
    }
    xep_stores_fence();
}

void ll_place_rows(ll_t *mode, xep_op_t *op)
{
    uint64_t bytes = mode->pick_begin[mode->shape->nranks] * mode->places[mode->shape->rank].row_bytes;
    place_t place = {.mode = mode,
                     .op = op,
                     .slot = &mode->slots[op->slot],
                     .copy = xep_copy_select(mode->env->simd, bytes >= mode->env->stream_bytes)};
    mode->env->parallel(mode->env, place_share, &place);
}
