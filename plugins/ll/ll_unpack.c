/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows out of packets into expert order (step 5 of dispatch in ll.h). */
#include <string.h>

#include "ll_flow.h"

enum { LINE = 64 };

/* ---- the list ---- */

/*
 * Adds a source's selections of this rank's experts, by token, then selection. Without a branch it takes half the time
 * if every other selection is one. 0: more than a slot has rows.
 */
static int list_source(const ll_t *mode, const ll_list_t *list, uint32_t source, const ll_notice_t *notice,
                       uint64_t *n_p)
{
    const int32_t *idx = (const int32_t *)(const void *)list->packets[source].head;
    const uint32_t first = mode->kit.first_expert[mode->kit.shape->rank], count = mode->kit.shape->local_experts,
                   topk = notice->topk;
    const uint64_t room = mode->layout.common.recv_rows;
    ll_pick_t *picks = list->picks;
    uint64_t n = *n_p;
    for (uint32_t t = 0; t < notice->tokens; t++, idx += topk) {
        if (n > room) return 0; /* before it runs out of the list, which has room for K more */
        for (uint32_t k = 0; k < topk; k++) {
            uint32_t local = (uint32_t)idx[k] - first;
            picks[n] = (ll_pick_t){.token = t, .k = k, .row = local};
            n += local < count;
        }
    }
    *n_p = n;
    return n <= room;
}

/* Source by source, so that rows of a pair (expert, source) come in the order of tokens. */
xep_status_t ll_list_rows(ll_t *mode, xep_op_t *op)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    uint64_t *begin = slot->list.begin;
    begin[0] = 0;
    for (uint32_t s = 0; s < mode->kit.shape->nranks; s++) {
        begin[s + 1] = begin[s];
        if (!list_source(mode, &slot->list, s, &slot->from[s], &begin[s + 1]))
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL, "rank %u sends more rows than it announced",
                                       s);
    }
    return XEP_OK;
}

/* ---- the copying ---- */

typedef struct unpack {
    const ll_t *mode;
    const xep_op_t *op;
    const ll_slot_t *slot;
    const uint64_t *from, *to; /* [R] picks of each source that are copied */
    uint64_t rows;             /* all of them */
    char *x;                   /* of the slot */
    size_t x_stride;
    const xep_fields_t *fields;
    char *beside; /* likewise */
    xep_copy_fn copy;
} unpack_t;

/* By column, padded: a block [nscales][R * tokens] for each expert, so that an expert's scales are a matrix of their
 * own. */
static char *scales_of(const xep_recv_t *recv, uint64_t row)
{
    const uint64_t width = xep_elem_bytes(recv->scales_dtype), column = (uint64_t)recv->scales_stride / width;
    if (recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED && recv->scales_token_stride == (ptrdiff_t)width)
        row += row / column * column * (recv->nscales - 1);
    return (char *)recv->scales + (ptrdiff_t)row * recv->scales_token_stride;
}

static void scatter_scales(const xep_recv_t *recv, const char *from, uint64_t row)
{
    const size_t width = xep_elem_bytes(recv->scales_dtype);
    char *to = scales_of(recv, row);
    for (uint32_t s = 0; s < recv->nscales; s++, to += recv->scales_stride) memcpy(to, from + s * width, width);
}

/* A row's scales are one piece in an item; by column they are scattered. */
static void unpack_beside(const unpack_t *unpack, const char *from, uint64_t row)
{
    const xep_recv_t *recv = unpack->op->recv;
    const int by_column = recv->scales_stride != (ptrdiff_t)unpack->fields->of[0].element;
    if (by_column) scatter_scales(recv, from, row);
    xep_fields_store(unpack->fields, by_column, from, 0, unpack->beside, unpack->mode->layout.common.recv_rows, row);
}

/* Indices are filled expert by expert elsewhere: here only what differs from row to row. */
static void unpack_metadata(const unpack_t *unpack, uint32_t source, const ll_pick_t *pick)
{
    const ll_notice_t *notice = &unpack->slot->from[source];
    const xep_recv_t *recv = unpack->op->recv;
    uint64_t selection = (uint64_t)pick->token * notice->topk + pick->k;
    recv->src_token[pick->row] = (int32_t)pick->token;
    if (unpack->slot->origin != NULL) unpack->slot->origin[pick->row] = selection;
    if (notice->sends_weights)
        memcpy(&recv->topk_weights[pick->row],
               unpack->slot->list.packets[source].head + unpack->slot->list.packets[source].weights + selection * 4, 4);
}

/* The first pick of the list that is of another token than pick, or pick. */
static const ll_pick_t *next_token(const ll_pick_t *pick, const ll_pick_t *end)
{
    for (const ll_pick_t *next = pick; next < end; next++)
        if (next->token != pick->token) return next;
    return pick;
}

/* Copies only what is beside a row that stays in place. */
static void fetch_beside(const unpack_t *unpack, const char *from)
{
    for (size_t i = 0; i < unpack->fields->bytes; i += LINE) __builtin_prefetch(from + i);
}

static const char *item_of(const unpack_t *unpack, const ll_packet_t *at, const ll_pick_t *pick)
{
    const ll_list_t *list = &unpack->slot->list;
    return at->items + (list->item == NULL ? pick->token : list->item[pick - list->picks]) * at->stride;
}

/* Rows of a token are neighbours in the list: while they are copied out of the cache, the next token comes into it. */
static void unpack_source(const unpack_t *unpack, uint32_t source, uint64_t begin, uint64_t end)
{
    const ll_packet_t *at = &unpack->slot->list.packets[source];
    const ll_pick_t *pick = unpack->slot->list.picks + begin, *last = unpack->slot->list.picks + end, *next = pick;
    for (; pick < last; pick++) {
        const char *item = item_of(unpack, at, pick);
        if (next->token == pick->token) next = next_token(pick, last);
        const char *ahead = item_of(unpack, at, next);
        if (at->stays) fetch_beside(unpack, ahead + at->beside);
        else unpack->copy(unpack->x + pick->row * unpack->x_stride, item, at->row_bytes, ahead);
        if (unpack->fields->bytes != 0) unpack_beside(unpack, item + at->beside, pick->row);
        unpack_metadata(unpack, source, pick);
    }
}

/* A share of what is here for each thread, cut at the sources: threads write different rows. */
static void unpack_share(void *arg, uint32_t thread, uint32_t nthreads)
{
    const unpack_t *unpack = arg;
    const ll_t *mode = unpack->mode;
    const uint32_t nranks = mode->kit.shape->nranks;
    const uint64_t begin = unpack->rows * thread / nthreads, end = unpack->rows * (thread + 1) / nthreads;
    uint64_t before = 0; /* rows of the sources so far */
    for (uint32_t i = 0; i < nranks && before < end; i++) {
        uint32_t s = (mode->kit.shape->rank + i) % nranks; /* own rows first: others' lines may still be on their way */
        uint64_t first = unpack->from[s], rows = unpack->to[s] - first;
        uint64_t from = begin > before ? begin - before : 0, to = end - before < rows ? end - before : rows;
        if (from < to) unpack_source(unpack, s, first + from, first + to);
        before += rows;
    }
    xep_stores_fence();
}

/* Streaming stores pay only when more is written than the caches hold: the user reads these rows next. */
static void copy_rows(const ll_t *mode, const xep_op_t *op, const uint64_t *from, const uint64_t *to, uint64_t rows)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const ll_packet_t *own = &ll_state(op)->packet;
    /*
     * Of all rows of the operation, and not only those that are here, so that all of them go the same way. Outputs of
     * as many rows come into the same caches behind them, and are larger than rows that were cast: 8 ranks on 16
     * processors of a Xeon, e4m3, in us, streamed and cached, dispatch, one read of the rows, combine: 128 tokens
     * 1,260 + 1,390 + 1,160 and 1,830 + 1,100 + 1,420; 64 tokens 580 + 650 + 470 and 630 + 340 + 550.
     */
    const uint64_t output = mode->layout.common.combine_stride, row = own->row_bytes;
    uint64_t bytes = slot->list.begin[mode->kit.shape->nranks] * (row > output ? row : output);
    unpack_t unpack = {.mode = mode,
                       .op = op,
                       .slot = slot,
                       .from = from,
                       .to = to,
                       .rows = rows,
                       .x = xep_kit_own_area(&mode->kit, mode->layout.common.x, op->slot),
                       .x_stride = xep_row_stride(own->row_bytes),
                       .fields = &slot->fields,
                       .beside = xep_kit_own_area(&mode->kit, mode->layout.common.beside, op->slot),
                       .copy = xep_copy_for_own(mode->kit.env, bytes)};
    if (rows != 0) mode->kit.env->parallel(mode->kit.env, unpack_share, &unpack);
}

xep_status_t ll_unpack_rows(void *opaque, xep_op_t *op)
{
    const ll_t *mode = opaque;
    const uint64_t *begin = ll_slot(mode, op->slot)->list.begin;
    copy_rows(mode, op, begin, begin + 1, begin[mode->kit.shape->nranks]);
    return XEP_OK;
}

/* ---- as rows come ---- */

/* The end of the picks of a source whose tokens are here: they are in the order of tokens. */
static uint64_t find_here(const ll_list_t *list, uint32_t source, uint64_t tokens)
{
    const uint64_t begin = list->begin[source], end = list->begin[source + 1];
    if (begin == end || list->picks[end - 1].token < tokens) return end;
    return begin + xep_count_below(&list->picks[begin].token, sizeof *list->picks, end - begin, tokens);
}

/* Copied rows stay counted even if a faulty source lowers its word. */
static uint64_t count_here(ll_t *mode, const xep_op_t *op)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    uint64_t rows = 0;
    for (uint32_t s = 0; s < mode->kit.shape->nranks; s++) {
        const uint64_t copied = slot->list.copied[s];
        slot->recv_rings[s].taken = ll_tokens_here(mode, op, s);
        mode->here[s] = find_here(&slot->list, s, slot->recv_rings[s].taken);
        if (mode->here[s] < copied) mode->here[s] = copied;
        rows += mode->here[s] - copied;
    }
    return rows;
}

/* What was copied counts only when the team has finished: each thread computes its share from the state before. */
void ll_unpack_here(ll_t *mode, const xep_op_t *op)
{
    uint64_t *copied = ll_slot(mode, op->slot)->list.copied, rows = count_here(mode, op);
    copy_rows(mode, op, copied, mode->here, rows);
    memcpy(copied, mode->here, mode->kit.shape->nranks * sizeof *copied);
}
