/* SPDX-License-Identifier: BSD-3-Clause */

/* Pieces know nothing of one another here: a row belongs to the piece that its number says. */
#include "oracle_pieces.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "oracle_number.h"
#include "oracle_recv.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The rank with most rows says how many there are for all. */
uint64_t oracle_count_pieces(const oracle_shape_t *shape, uint64_t room)
{
    uint64_t most = 1;
    for (uint32_t r = 0; r < shape->routing->params.nranks; r++) {
        const uint64_t pieces = (oracle_rows_needed(shape, r) + room - 1) / room;
        if (pieces > most) most = pieces;
    }
    return most;
}

static size_t idx_bytes(const xep_recv_t *recv)
{
    return recv->topk * oracle_element_bytes(recv->topk_idx_dtype);
}

static void open_all(oracle_pieces_t *pieces, const xep_recv_t *recv, uint64_t rows, uint32_t nranks)
{
    xep_recv_t *to = &pieces->recv;
    *to = *recv;
    to->rows = 0;
    to->x = oracle_alloc(rows * recv->x_stride);
    to->topk_idx = oracle_alloc(rows * idx_bytes(recv));
    if (recv->topk_weights != NULL) to->topk_weights = oracle_alloc(rows * recv->topk * sizeof(float));
    if (recv->scales != NULL) to->scales = oracle_alloc(rows * recv->nscales * (size_t)4);
    to->src_token = oracle_alloc(rows * sizeof(int32_t));
    pieces->begin = oracle_alloc((nranks + (size_t)1) * sizeof *pieces->begin);
    pieces->counts = oracle_alloc(recv->local_experts * sizeof *pieces->counts);
    pieces->opened = 1;
}

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
        const int64_t expert = recv->topk_idx_dtype == XEP_INT32 ? ((const int32_t *)recv->topk_idx)[i]
                                                                 : ((const int64_t *)recv->topk_idx)[i];
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

static void take_rows(oracle_pieces_t *pieces, const xep_recv_t *recv, uint32_t nranks)
{
    xep_recv_t *to = &pieces->recv;
    const uint64_t first = to->rows, rows = recv->rows;
    memcpy((char *)to->x + first * to->x_stride, recv->x, rows * to->x_stride);
    memcpy((char *)to->topk_idx + first * idx_bytes(to), recv->topk_idx, rows * idx_bytes(to));
    memcpy(to->src_token + first, recv->src_token, rows * sizeof(int32_t));
    if (to->topk_weights != NULL)
        memcpy(to->topk_weights + first * to->topk, recv->topk_weights, rows * to->topk * sizeof(float));
    if (to->scales != NULL) memcpy((char *)to->scales + first * to->nscales * 4, recv->scales, rows * to->nscales * 4);
    for (uint32_t r = 0; r <= nranks; r++) pieces->begin[r] += recv->src_begin[r];
    to->rows += rows;
    to->piece = recv->piece;
}

static int check_all(oracle_pieces_t *pieces, const oracle_shape_t *shape, uint32_t rank,
                     oracle_difference_t *difference)
{
    const uint64_t alignment = shape->alignment != 0 ? shape->alignment : 1;
    xep_recv_t *recv = &pieces->recv;
    for (uint32_t e = 0; e < recv->local_experts; e++)
        pieces->counts[e] = (pieces->counts[e] + alignment - 1) / alignment * alignment;
    recv->capacity = recv->rows;
    recv->src_begin = pieces->begin;
    recv->expert_rows = pieces->counts;
    return oracle_check_recv(shape, rank, recv, difference);
}

int oracle_pieces_take(oracle_pieces_t *pieces, const oracle_shape_t *shape, uint32_t rank, uint64_t room,
                       const xep_recv_t *recv, oracle_difference_t *difference_p)
{
    const uint32_t nranks = shape->routing->params.nranks;
    const uint64_t all = oracle_rows_needed(shape, rank), count = oracle_count_pieces(shape, room);
    const uint64_t piece = pieces->opened ? pieces->recv.piece + 1 : 0, first = least(piece * room, all);
    const uint64_t rows = least(room, all - first);
    *difference_p = (oracle_difference_t){.rank = rank};
    if (differs(difference_p, "pieces", 0, count, recv->pieces) ||
        differs(difference_p, "piece", 0, piece, recv->piece) ||
        differs(difference_p, "all_rows", 0, all, recv->all_rows) ||
        differs(difference_p, "first_row", 0, first, recv->first_row) ||
        differs(difference_p, "rows", 0, rows, recv->rows) ||
        differs(difference_p, "capacity", 0, rows, recv->capacity) ||
        differs(difference_p, "src_begin", 0, 0, recv->src_begin[0]) ||
        differs(difference_p, "src_begin", nranks, rows, recv->src_begin[nranks]))
        return 1;
    if (!pieces->opened) open_all(pieces, recv, all, nranks);
    if (check_counts(pieces, shape, recv, difference_p)) return 1;
    take_rows(pieces, recv, nranks);
    return piece + 1 == count ? check_all(pieces, shape, rank, difference_p) : 0;
}

void oracle_pieces_free(oracle_pieces_t *pieces)
{
    if (pieces->opened) {
        free(pieces->recv.x);
        free(pieces->recv.topk_idx);
        free(pieces->recv.topk_weights);
        free(pieces->recv.scales);
        free(pieces->recv.src_token);
        free(pieces->begin);
        free(pieces->counts);
    }
    *pieces = (oracle_pieces_t){.opened = 0};
}
