/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine, as an owner: the expert outputs are made readable, and said to be (steps 2 and 3 of ll.h). */
#include <string.h>

#include "ll.h"

/* ---- rows of the user's memory ---- */

/*
 * Where the rows of each (expert, reader) are: as the handle has them where the user writes them there; else one after
 * the other for each reader, without the padding, but for own rows, which are summed where they are. Spread over the
 * pages of padded experts, 16 tokens took a sixth longer.
 */
static const uint32_t *lay_input(ll_t *mode, const xep_op_t *op)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint32_t nranks = mode->kit.shape->nranks, pairs = mode->kit.shape->local_experts * nranks;
    uint32_t next = 0;
    if (op->combine->x == NULL) return slot->pair_begin;
    for (uint32_t reader = 0; reader < nranks; reader++)
        for (uint32_t pair = reader; pair < pairs; pair += nranks) {
            mode->input_begin[pair] = next;
            if (mode->kit.pulls[reader]) next += slot->pair_count[pair];
        }
    return mode->input_begin;
}

typedef struct fill {
    const ll_t *mode;
    const xep_op_t *op;
    const uint32_t *begin; /* [L][R] first row in the input; NULL: rows go into "returned" of their readers */
    xep_copy_fn copy;
} fill_t;

/*
 * In the input rows of a pair are neighbours as they are here, so that the reader walks through its own without a jump.
 * In "returned" each has a place of its own, that of its token and selection (origin), so that neither threads nor
 * owners write over one another.
 */
static void fill_pair(const fill_t *fill, uint32_t pair, uint32_t reader)
{
    const ll_t *mode = fill->mode;
    const ll_slot_t *slot = ll_slot(mode, fill->op->slot);
    const int returned = fill->begin == NULL;
    const uint64_t begin = slot->pair_begin[pair], end = begin + slot->pair_count[pair];
    const size_t bytes = xep_combine_row_bytes(fill->op->combine),
                 apart = returned ? mode->layout.return_stride : mode->layout.common.combine_stride;
    size_t stride;
    const char *from = xep_combine_outputs(&mode->kit, fill->op, &stride) + begin * stride;
    char *to =
        returned ? mode->kit.base[reader] + xep_area_at(mode->layout.returned, slot->from[reader].slot)
                 : xep_kit_own_area(&mode->kit, mode->layout.common.input, fill->op->slot) + fill->begin[pair] * apart;
    for (uint64_t row = begin; row < end; row++, from += stride)
        fill->copy(to + (returned ? slot->origin[row] : row - begin) * apart, from, bytes,
                   row + 1 < end ? from + stride : from);
}

/* Copies a thread's share of the (expert, reader) pairs, without those whose rows no mapped rank reads there. */
static void fill_share(void *arg, uint32_t thread, uint32_t nthreads)
{
    const fill_t *fill = arg;
    const ll_t *mode = fill->mode;
    const uint32_t nranks = mode->kit.shape->nranks, pairs = mode->kit.shape->local_experts * nranks;
    uint32_t end = (uint32_t)((uint64_t)pairs * (thread + 1) / nthreads);
    for (uint32_t pair = (uint32_t)((uint64_t)pairs * thread / nthreads); pair < end; pair++) {
        const uint32_t reader = pair % nranks;
        if (fill->begin == NULL ? mode->kit.base[reader] != NULL : mode->kit.pulls[reader])
            fill_pair(fill, pair, reader);
    }
    xep_stores_fence();
}

static void fill_pairs(ll_t *mode, const xep_op_t *op, const uint32_t *begin)
{
    const uint64_t bytes = op->recv->rows * xep_combine_row_bytes(op->combine);
    fill_t fill = {.mode = mode, .op = op, .begin = begin, .copy = xep_copy_for(mode->kit.env, bytes)};
    mode->kit.env->parallel(mode->kit.env, fill_share, &fill);
}

/* Rows that go over the wire are sent from where they are, without a copy. */
static const char *output_row(const ll_t *mode, const xep_op_t *op, uint64_t row)
{
    size_t stride;
    const char *rows = xep_combine_outputs(&mode->kit, op, &stride);
    return rows + row * stride;
}

/* ---- tables ---- */

/* For mapped readers alone: all others find rows at [token][k], which needs no table. */
static void fill_table(const ll_t *mode, const xep_op_t *op, const uint32_t *begin, uint32_t reader)
{
    uint32_t *table = xep_kit_own(&mode->kit, ll_table_offset(mode, op->slot, reader));
    for (uint32_t e = 0; e < mode->kit.shape->local_experts; e++)
        table[e] = begin[e * mode->kit.shape->nranks + reader];
}

/* Step 2. Table and input of this slot are free to be written: drain has seen to it. */
xep_status_t ll_copy_outputs(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    const uint32_t *begin = lay_input(mode, op);
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        if (mode->kit.pulls[r]) fill_table(mode, op, begin, r);
    fill_table(mode, op, ll_slot(mode, op->slot)->pair_begin, mode->kit.shape->rank); /* own rows stay where they are */
    if (op->combine->x != NULL) fill_pairs(mode, op, begin);
    return XEP_OK;
}

/* This rank is among the mapped readers. */
void ll_return_outputs(ll_t *mode, const xep_op_t *op)
{
    fill_pairs(mode, op, NULL);
}

/* Rows that are pulled are copied all at once. */
xep_status_t ll_copy_all(void *opaque, xep_op_t *op)
{
    const ll_t *mode = opaque;
    return op->coming != 0 && mode->kit.is_pulled ? XEP_INPROGRESS : ll_copy_outputs(opaque, op);
}

/* ---- readers that are not mapped ---- */

/*
 * Rows of a pair that are there: those that are still coming (xep_op_t.coming) are at the end of all, and rows of
 * experts follow one another.
 */
static uint64_t rows_here(const ll_t *mode, const xep_op_t *op, uint32_t pair)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint64_t here = op->recv->rows - op->coming, begin = slot->pair_begin[pair];
    if (op->coming == 0 || here >= begin + slot->pair_count[pair]) return slot->pair_count[pair];
    return here > begin ? here - begin : 0;
}

/* One put for each row of an expert: its place in the reader's slot follows from the token and the selection. */
static int cut_row(const void *opaque, const xep_op_t *op, uint32_t reader, uint32_t expert, uint64_t *row_p,
                   xep_put_t *put)
{
    const ll_t *mode = opaque;
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    uint32_t pair = expert * mode->kit.shape->nranks + reader;
    uint64_t row = slot->pair_begin[pair] + *row_p,
             returned = xep_area_at(mode->layout.returned, slot->from[reader].slot);
    if (*row_p >= rows_here(mode, op, pair)) return 0;
    *put = (xep_put_t){.src = output_row(mode, op, row),
                       .offset = returned + slot->origin[row] * mode->layout.return_stride,
                       .bytes = xep_combine_row_bytes(op->combine),
                       .rows = 1};
    return 1;
}

/*
 * Transfer n has the rows of local expert n. One that the reader has no rows of is there all the same, and empty. A
 * piece may have no outputs.
 */
int ll_outputs_transfer(const void *opaque, const xep_op_t *op, uint32_t reader, uint32_t number,
                        xep_transfer_t *transfer)
{
    const ll_t *mode = opaque;
    const uint32_t pair = number * mode->kit.shape->nranks + reader;
    if (op->combine == NULL || number >= mode->kit.shape->local_experts) return 0;
    *transfer = (xep_transfer_t){.cut = cut_row,
                                 .coming = ll_slot(mode, op->slot)->pair_count[pair] - rows_here(mode, op, pair)};
    return 1;
}

/* The rows of each expert, then the offer. */
int ll_returned_transfer(const void *opaque, const xep_op_t *op, uint32_t reader, uint32_t number,
                         xep_transfer_t *transfer)
{
    const ll_t *mode = opaque;
    if (ll_outputs_transfer(mode, op, reader, number, transfer)) return 1;
    xep_combine_offer_transfer(&mode->kit, op, transfer);
    return number <= mode->kit.shape->local_experts;
}
