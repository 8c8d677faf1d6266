/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine, as an owner: the expert outputs are made readable, and said to be (steps 1 to 3 of ll.h). */
#include <string.h>

#include "ll.h"

static size_t row_bytes(const xep_combine_args_t *args)
{
    return args->hidden * xep_elem_bytes(args->dtype);
}

xep_status_t ll_check_combine(ll_t *mode, xep_op_t *op)
{
    if ((op->combine->flags & XEP_COMBINE_LOGFMT) != 0 && !mode->all_mapped && mode->coded == NULL)
        return mode->env->fail(mode->env, op, XEP_ERR_NO_MEMORY, "there was no memory for rows in LogFMT when the buffer was made");
    if (op->combine->topk_weights == NULL && op->combine->out_weights == NULL) return XEP_OK;
    return mode->env->fail(mode->env, op, XEP_ERR_UNSUPPORTED, "%s: mode ll brings no weights back",
                           op->combine->topk_weights != NULL ? "topk_weights" : "out_weights");
}

int ll_is_drained(const ll_t *mode, uint32_t slot)
{
    for (uint32_t r = 0; r < mode->shape->nranks; r++) {
        const ll_mail_t *mail = ll_own(mode, ll_mail_offset(mode, slot, r));
        if (atomic_load_explicit(&mail->read, memory_order_acquire) < mode->slots[slot].combined) return 0;
    }
    return 1;
}

xep_status_t ll_drain(ll_t *mode, xep_op_t *op)
{
    xep_status_t status = mode->slots[op->slot].combined == 0 ? XEP_OK : ll_wait(mode, op);
    if (status == XEP_OK) mode->slots[op->slot].combined = op->epoch;
    return status;
}

/* ---- rows of the user's memory ---- */

/* Own rows are summed where they are. */
static int pulls(const ll_t *mode, uint32_t reader)
{
    return reader != mode->shape->rank && mode->base[reader] != NULL;
}

/*
 * Where the rows of each (expert, reader) are: as the handle has them where the user writes them there; else one after
 * the other for each reader, without the padding. Spread over the pages of padded experts, 16 tokens took a sixth longer.
 */
static const uint32_t *lay_input(ll_t *mode, const xep_op_t *op)
{
    const ll_slot_t *slot = &mode->slots[op->slot];
    const uint32_t nranks = mode->shape->nranks, pairs = mode->shape->local_experts * nranks;
    uint32_t next = 0;
    if (op->combine->x == NULL) return slot->pair_begin;
    for (uint32_t reader = 0; reader < nranks; reader++)
        for (uint32_t pair = reader; pair < pairs; pair += nranks) {
            mode->input_begin[pair] = next;
            if (pulls(mode, reader)) next += slot->pair_count[pair];
        }
    return mode->input_begin;
}

typedef struct fill {
    const ll_t *mode;
    const xep_op_t *op;
    const uint32_t *begin; /* [L][R] first row in the input */
    xep_copy_fn copy;
} fill_t;

static void fill_pair(const fill_t *fill, uint32_t pair, char *input)
{
    const ll_slot_t *slot = &fill->mode->slots[fill->op->slot];
    const xep_combine_args_t *args = fill->op->combine;
    size_t bytes = row_bytes(args), stride = fill->mode->layout.combine_stride;
    uint64_t begin = slot->pair_begin[pair], end = begin + slot->pair_count[pair];
    char *to = input + fill->begin[pair] * stride;
    for (uint64_t row = begin; row < end; row++, to += stride) {
        const char *from = (const char *)args->x + row * args->x_stride;
        fill->copy(to, from, bytes, row + 1 < end ? from + args->x_stride : from);
    }
}

/* A thread's share of the (expert, source) pairs, without those nobody pulls. */
static void fill_share(void *arg, uint32_t thread, uint32_t nthreads)
{
    const fill_t *fill = arg;
    const ll_t *mode = fill->mode;
    const uint32_t nranks = mode->shape->nranks, pairs = mode->shape->local_experts * nranks;
    char *input = ll_own(mode, ll_area(mode, fill->op->slot, mode->layout.input));
    uint32_t end = (uint32_t)((uint64_t)pairs * (thread + 1) / nthreads);
    for (uint32_t pair = (uint32_t)((uint64_t)pairs * thread / nthreads); pair < end; pair++)
        if (pulls(mode, pair % nranks)) fill_pair(fill, pair, input);
    xep_stores_fence();
}

static void fill_input(ll_t *mode, xep_op_t *op, const uint32_t *begin)
{
    xep_copy_fn copy = xep_copy_select(mode->env->simd, xep_streams_to_others(mode->env));
    fill_t fill = {.mode = mode, .op = op, .begin = begin, .copy = copy};
    mode->env->parallel(mode->env, fill_share, &fill);
}

/* ---- rows in LogFMT ---- */

static const char *output_row(const ll_t *mode, const xep_op_t *op, uint64_t row)
{
    if (op->combine->x != NULL) return (const char *)op->combine->x + row * op->combine->x_stride;
    return (const char *)ll_own(mode, ll_area(mode, op->slot, mode->layout.input)) + row * mode->layout.combine_stride;
}

static int is_logfmt(const xep_op_t *op)
{
    return (op->combine->flags & XEP_COMBINE_LOGFMT) != 0;
}

static void code_share(void *arg, uint32_t thread, uint32_t nthreads)
{
    const fill_t *fill = arg;
    const ll_t *mode = fill->mode;
    const ll_slot_t *slot = &mode->slots[fill->op->slot];
    const uint32_t nranks = mode->shape->nranks, pairs = mode->shape->local_experts * nranks;
    uint32_t end = (uint32_t)((uint64_t)pairs * (thread + 1) / nthreads);
    for (uint32_t pair = (uint32_t)((uint64_t)pairs * thread / nthreads); pair < end; pair++) {
        uint64_t row = slot->pair_begin[pair], last = row + slot->pair_count[pair];
        for (; row < last && mode->base[pair % nranks] == NULL; row++)
            xep_logfmt_encode(slot->coded + row * mode->layout.return_stride,
                              (const uint16_t *)(const void *)output_row(mode, fill->op, row), fill->op->combine->hidden);
    }
}

/* ---- tables and offers ---- */

static void fill_table(const ll_t *mode, const xep_op_t *op, const uint32_t *begin, uint32_t reader)
{
    uint32_t *table = ll_own(mode, ll_table_offset(mode, op->slot, reader));
    for (uint32_t e = 0; e < mode->shape->local_experts; e++)
        table[e] = begin[e * mode->shape->nranks + reader];
}

static void offer_to(const ll_t *mode, const xep_op_t *op, uint32_t reader)
{
    uint64_t offset = ll_mail_offset(mode, op->slot, mode->shape->rank);
    memcpy(mode->base[reader] + offset + offsetof(ll_mail_t, offer), &ll_state(op)->offer, sizeof(ll_offer_t));
    ll_store_word(mode, reader, offset + offsetof(ll_mail_t, ready), op->epoch);
}

xep_status_t ll_offer(ll_t *mode, xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const uint32_t nranks = mode->shape->nranks;
    ll_state(op)->offer = (ll_offer_t){.epoch = op->epoch, .dtype = args->dtype, .hidden = args->hidden, .flags = args->flags};
    const uint32_t *begin = lay_input(mode, op);
    for (uint32_t r = 0; r < nranks; r++)
        if (pulls(mode, r)) fill_table(mode, op, begin, r);
    if (args->x != NULL) fill_input(mode, op, begin);
    if (is_logfmt(op) && !mode->all_mapped) mode->env->parallel(mode->env, code_share, &(fill_t){.mode = mode, .op = op});
    for (uint32_t i = 1; i <= nranks; i++) {
        uint32_t reader = (mode->shape->rank + i) % nranks;
        if (mode->base[reader] != NULL) offer_to(mode, op, reader);
    }
    return XEP_OK;
}

/* ---- readers that are not mapped ---- */

static xep_status_t put_row(ll_t *mode, xep_op_t *op, uint32_t reader, uint64_t row)
{
    const ll_slot_t *slot = &mode->slots[op->slot];
    uint64_t to = ll_area(mode, slot->from[reader].slot, mode->layout.returned) + slot->origin[row] * mode->layout.return_stride;
    const char *from = output_row(mode, op, row);
    size_t bytes = row_bytes(op->combine);
    if (is_logfmt(op)) {
        from = slot->coded + row * mode->layout.return_stride;
        bytes = xep_logfmt_bytes(from, op->combine->hidden);
    }
    return mode->env->wire->ops->put(mode->env->wire, reader, to, from, bytes);
}

static xep_status_t put_rows_to(ll_t *mode, xep_op_t *op, uint32_t reader)
{
    const ll_slot_t *slot = &mode->slots[op->slot];
    ll_cursor_t *cursor = &ll_state(op)->cursor;
    uint64_t mail = ll_mail_offset(mode, op->slot, mode->shape->rank);
    for (; cursor->expert < mode->shape->local_experts; cursor->expert++, cursor->item = 0) {
        uint32_t pair = cursor->expert * mode->shape->nranks + reader;
        for (; cursor->item < slot->pair_count[pair]; cursor->item++) {
            xep_status_t status = put_row(mode, op, reader, slot->pair_begin[pair] + cursor->item);
            if (status != XEP_OK) return status;
        }
    }
    return mode->env->wire->ops->put_signal(mode->env->wire, reader, mail + offsetof(ll_mail_t, offer), &ll_state(op)->offer,
                                            sizeof(ll_offer_t), mail + offsetof(ll_mail_t, ready), op->epoch);
}

xep_status_t ll_put_rows(ll_t *mode, xep_op_t *op)
{
    ll_cursor_t *cursor = &ll_state(op)->cursor;
    const uint32_t nranks = mode->shape->nranks;
    while (cursor->peer < nranks) {
        uint32_t reader = (mode->shape->rank + 1 + cursor->peer) % nranks;
        xep_status_t status = mode->base[reader] != NULL ? XEP_OK : put_rows_to(mode, op, reader);
        if (status != XEP_OK) return ll_wire_status(mode, op, status);
        *cursor = (ll_cursor_t){.peer = cursor->peer + 1};
    }
    return XEP_OK;
}
