/* SPDX-License-Identifier: BSD-3-Clause */

/* Pieces know nothing of one another here: a row belongs to the piece that its number says. */
#include "oracle_pieces.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "oracle_check.h"
#include "oracle_number.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/*
 * As a rank has it: by expert its alignment is its own. Pieces are not padded, and take_scales() puts their scales side
 * by side.
 */
static oracle_shape_t shape_of(const oracle_shape_t *shape, uint32_t rank)
{
    oracle_shape_t own = *shape;
    if (shape->by_expert && shape->alignments != NULL) own.alignment = shape->alignments[rank];
    own.padded = own.by_column = 0;
    return own;
}

/* By expert a piece begins where an expert may. */
static uint64_t rows_of_piece(const oracle_shape_t *own, uint64_t room)
{
    return own->by_expert && own->alignment > 1 ? room / own->alignment * own->alignment : room;
}

/* The rank with most rows says how many there are for all. */
uint64_t oracle_count_pieces(const oracle_shape_t *shape, uint64_t room)
{
    uint64_t most = 1;
    for (uint32_t r = 0; r < shape->routing->params.nranks; r++) {
        const oracle_shape_t own = shape_of(shape, r);
        const uint64_t rows = rows_of_piece(&own, room), pieces = (oracle_rows_needed(&own, r) + rows - 1) / rows;
        if (pieces > most) most = pieces;
    }
    return most;
}

static size_t idx_bytes(const xep_recv_t *recv)
{
    return recv->topk * oracle_element_bytes(recv->topk_idx_dtype);
}

static size_t scale_bytes(const xep_recv_t *recv)
{
    return oracle_element_bytes(recv->scales_dtype);
}

/*
 * Room for all rows that this rank gets, known before the first piece is taken. In recv the arrays are the oracle's own
 * from here on; all else is as the first piece has it.
 */
static void open_all(oracle_pieces_t *pieces, const xep_recv_t *recv, uint64_t rows, uint32_t nranks)
{
    xep_recv_t *to = &pieces->recv;
    *to = *recv;
    to->rows = 0;
    to->x = oracle_alloc(rows * recv->x_stride);
    to->topk_idx = oracle_alloc(rows * idx_bytes(recv));
    if (recv->topk_weights != NULL) to->topk_weights = oracle_alloc(rows * recv->topk * sizeof(float));
    if (recv->scales != NULL) to->scales = oracle_alloc(rows * recv->nscales * scale_bytes(recv));
    for (uint32_t i = 0; i < recv->npayloads; i++) {
        pieces->payloads[i] = recv->payloads[i];
        const size_t bytes = (rows * recv->payloads[i].stride + 64) / 64 * 64;
        /* what is aligned in the library is aligned here, too */
        pieces->payloads[i].data = oracle_must(aligned_alloc(64, bytes), bytes);
    }
    if (recv->npayloads != 0) to->payloads = pieces->payloads;
    to->src_token = oracle_alloc(rows * sizeof(int32_t));
    pieces->begin = oracle_alloc((nranks + (size_t)1) * sizeof *pieces->begin);
    pieces->pair_begin = oracle_alloc(recv->local_experts * (size_t)nranks * sizeof *pieces->pair_begin);
    pieces->pair_count = oracle_alloc(recv->local_experts * (size_t)nranks * sizeof *pieces->pair_count);
    pieces->expert_begin = oracle_alloc(recv->local_experts * sizeof *pieces->expert_begin);
    pieces->expert_aligned = oracle_alloc(recv->local_experts * sizeof *pieces->expert_aligned);
    pieces->counts = oracle_alloc(recv->local_experts * sizeof *pieces->counts);
    pieces->opened = 1;
}

/* As oracle_differ_number(), for arrays whose place is one number. */
static int differs(oracle_difference_t *difference, const char *array, uint64_t column, uint64_t expected, uint64_t got)
{
    return oracle_differ_number(difference, array, 0, column, (int64_t)expected, (int64_t)got);
}

/* Selections of the piece, counted from its indices: whether these are right is seen when all are there. */
static int check_counts(oracle_pieces_t *pieces, const oracle_shape_t *shape, const xep_recv_t *recv,
                        oracle_difference_t *difference)
{
    const uint64_t alignment = shape->alignment != 0 ? shape->alignment : 1;
    uint64_t *counts = oracle_alloc(recv->local_experts * sizeof *counts);
    int found = 0;
    for (uint64_t i = 0; i < recv->rows * recv->topk; i++) {
        const int64_t expert = oracle_idx_at(recv, i / recv->topk, (uint32_t)(i % recv->topk));
        if (expert >= 0 && expert < (int64_t)recv->local_experts) counts[expert]++;
    }
    for (uint32_t e = 0; e < recv->local_experts && !found; e++) {
        found = differs(difference, "expert_rows", e, (counts[e] + alignment - 1) / alignment * alignment,
                        recv->expert_rows[e]);
        pieces->counts[e] += counts[e];
    }
    free(counts);
    return found;
}

/*
 * Of one expert, whose rows begin at *row_p; *row_p is then where the next one's begin. Its pairs lie one behind the
 * other, its rows say that they are its own, and those behind nobody's. That there are as many rows is asked before the
 * first of them is read.
 */
static int check_expert(oracle_pieces_t *pieces, const oracle_shape_t *shape, const xep_recv_t *recv, uint32_t e,
                        uint64_t *row_p, oracle_difference_t *difference)
{
    const uint32_t nranks = shape->routing->params.nranks;
    const uint64_t alignment = shape->alignment != 0 ? shape->alignment : 1, begin = *row_p;
    uint64_t row = begin;
    for (uint32_t src = 0; src < nranks; src++) {
        const size_t pair = (size_t)e * nranks + src;
        if (differs(difference, "pair_begin", pair, row, recv->pair_begin[pair])) return 1;
        row += recv->pair_count[pair];
        pieces->pair_count[pair] += recv->pair_count[pair];
    }
    const uint64_t end = begin + (row - begin + alignment - 1) / alignment * alignment;
    if (differs(difference, "expert_begin", e, begin, recv->expert_begin[e]) ||
        differs(difference, "expert_count", e, row - begin, recv->expert_count[e]) ||
        differs(difference, "expert_rows", e, end - begin, recv->expert_rows[e]) ||
        differs(difference, "rows, at least,", e, 1, end <= recv->rows))
        return 1;
    for (uint64_t i = begin; i < end; i++)
        if (differs(difference, "topk_idx", i, i < row ? e : (uint64_t)-1, (uint64_t)oracle_idx_at(recv, i, 0)))
            return 1;
    *row_p = end;
    return 0;
}

/*
 * By expert: a piece is as if it were all. Whether it is the right one is seen when all are there: experts keep their
 * order over all pieces, and so do the pairs, so their counts are only added.
 */
static int check_places(oracle_pieces_t *pieces, const oracle_shape_t *shape, const xep_recv_t *recv,
                        oracle_difference_t *difference)
{
    uint64_t row = 0;
    for (uint32_t e = 0; e < recv->local_experts; e++)
        if (check_expert(pieces, shape, recv, e, &row, difference)) return 1;
    return differs(difference, "rows", 0, row, recv->rows);
}

/* Side by side, however they lie in the piece. */
static void take_scales(const xep_recv_t *to, const xep_recv_t *recv, uint64_t first)
{
    const size_t width = scale_bytes(recv);
    for (uint64_t row = 0; row < recv->rows; row++)
        for (uint32_t s = 0; s < recv->nscales; s++)
            memcpy((char *)to->scales + ((first + row) * to->nscales + s) * width,
                   (const char *)recv->scales + (ptrdiff_t)row * recv->scales_token_stride +
                       (ptrdiff_t)s * recv->scales_stride,
                   width);
}

/*
 * Copied, since the next piece is written to the same memory of the slot. By rank, where each source begins adds up
 * over the pieces to where it begins in all of them.
 */
static void take_rows(oracle_pieces_t *pieces, const xep_recv_t *recv, uint32_t nranks)
{
    xep_recv_t *to = &pieces->recv;
    const uint64_t first = to->rows, rows = recv->rows;
    memcpy((char *)to->x + first * to->x_stride, recv->x, rows * to->x_stride);
    memcpy((char *)to->topk_idx + first * idx_bytes(to), recv->topk_idx, rows * idx_bytes(to));
    memcpy(to->src_token + first, recv->src_token, rows * sizeof(int32_t));
    if (to->topk_weights != NULL)
        memcpy(to->topk_weights + first * to->topk, recv->topk_weights, rows * to->topk * sizeof(float));
    if (to->scales != NULL) take_scales(to, recv, first);
    for (uint32_t i = 0; i < recv->npayloads; i++)
        memcpy((char *)to->payloads[i].data + first * recv->payloads[i].stride, recv->payloads[i].data,
               rows * recv->payloads[i].stride);
    for (uint32_t r = 0; r <= nranks && recv->src_begin != NULL; r++) pieces->begin[r] += recv->src_begin[r];
    to->rows += rows;
    to->piece = recv->piece;
}

/* What all of them are together, from the counts alone. */
static void show_places(oracle_pieces_t *pieces, const oracle_shape_t *shape)
{
    const uint32_t nranks = shape->routing->params.nranks;
    const uint64_t alignment = shape->alignment != 0 ? shape->alignment : 1;
    xep_recv_t *recv = &pieces->recv;
    uint64_t row = 0;
    for (uint32_t e = 0; e < recv->local_experts; e++) {
        pieces->expert_begin[e] = row;
        for (uint32_t src = 0; src < nranks; src++) {
            pieces->pair_begin[(size_t)e * nranks + src] = (uint32_t)row;
            row += pieces->pair_count[(size_t)e * nranks + src];
        }
        pieces->counts[e] = row - pieces->expert_begin[e];
        pieces->expert_aligned[e] = (pieces->counts[e] + alignment - 1) / alignment * alignment;
        row = pieces->expert_begin[e] + pieces->expert_aligned[e];
    }
    recv->pair_begin = pieces->pair_begin;
    recv->pair_count = pieces->pair_count;
    recv->expert_begin = pieces->expert_begin;
    recv->expert_count = pieces->counts;
    recv->expert_rows = pieces->expert_aligned;
}

/*
 * All pieces together must be what one would have been, so they are shown to the check of one: as a receive with
 * exactly as much room as there are rows. By rank the counts of experts are aligned only now, since those of pieces
 * were aligned each for itself.
 */
static int check_all(oracle_pieces_t *pieces, const oracle_shape_t *shape, uint32_t rank,
                     oracle_difference_t *difference)
{
    const uint64_t alignment = shape->alignment != 0 ? shape->alignment : 1;
    xep_recv_t *recv = &pieces->recv;
    recv->capacity = recv->rows;
    recv->scales_stride = (ptrdiff_t)scale_bytes(recv);
    recv->scales_token_stride = (ptrdiff_t)recv->nscales * recv->scales_stride;
    if (shape->by_expert) {
        show_places(pieces, shape);
        return oracle_check_recv(shape, rank, recv, difference);
    }
    for (uint32_t e = 0; e < recv->local_experts; e++)
        pieces->counts[e] = (pieces->counts[e] + alignment - 1) / alignment * alignment;
    recv->src_begin = pieces->begin;
    recv->expert_rows = pieces->counts;
    return oracle_check_recv(shape, rank, recv, difference);
}

/* By expert there are no ranks whose rows are neighbours. */
static int check_begins(const oracle_shape_t *shape, const xep_recv_t *recv, uint64_t rows,
                        oracle_difference_t *difference)
{
    const uint32_t nranks = shape->routing->params.nranks;
    if (shape->by_expert) return differs(difference, "src_begin", 0, 0, recv->src_begin != NULL);
    return differs(difference, "src_begin", 0, 0, recv->src_begin[0]) ||
           differs(difference, "src_begin", nranks, rows, recv->src_begin[nranks]);
}

/*
 * Numbers first: they say which rows of the whole these are. Every piece but the last ones is full, so its first row
 * follows from its number alone; of a rank with fewer rows than others the last pieces are empty.
 */
int oracle_pieces_take(oracle_pieces_t *pieces, const oracle_shape_t *shape, uint32_t rank, uint64_t room,
                       const xep_recv_t *recv, oracle_difference_t *difference_p)
{
    const oracle_shape_t own = shape_of(shape, rank);
    const uint32_t nranks = shape->routing->params.nranks;
    const uint64_t all = oracle_rows_needed(&own, rank), count = oracle_count_pieces(shape, room);
    const uint64_t piece = pieces->opened ? pieces->recv.piece + 1 : 0, of_piece = rows_of_piece(&own, room);
    const uint64_t first = least(piece * of_piece, all), rows = least(of_piece, all - first);
    *difference_p = (oracle_difference_t){.rank = rank};
    if (differs(difference_p, "pieces", 0, count, recv->pieces) ||
        differs(difference_p, "piece", 0, piece, recv->piece) ||
        differs(difference_p, "all_rows", 0, all, recv->all_rows) ||
        differs(difference_p, "first_row", 0, first, recv->first_row) ||
        differs(difference_p, "rows", 0, rows, recv->rows) ||
        differs(difference_p, "capacity", 0, rows, recv->capacity) || check_begins(shape, recv, rows, difference_p))
        return 1;
    if (!pieces->opened) open_all(pieces, recv, all, nranks);
    if (shape->by_expert ? check_places(pieces, &own, recv, difference_p)
                         : check_counts(pieces, shape, recv, difference_p))
        return 1;
    take_rows(pieces, recv, nranks);
    return piece + 1 == count ? check_all(pieces, &own, rank, difference_p) : 0;
}

void oracle_pieces_free(oracle_pieces_t *pieces)
{
    if (pieces->opened) {
        free(pieces->recv.x);
        free(pieces->recv.topk_idx);
        free(pieces->recv.topk_weights);
        free(pieces->recv.scales);
        for (uint32_t i = 0; i < pieces->recv.npayloads; i++) free(pieces->payloads[i].data);
        free(pieces->recv.src_token);
        free(pieces->begin);
        free(pieces->pair_begin);
        free(pieces->pair_count);
        free(pieces->expert_begin);
        free(pieces->expert_aligned);
        free(pieces->counts);
    }
    *pieces = (oracle_pieces_t){.opened = 0};
}
