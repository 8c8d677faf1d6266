/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The oracle finds what is wrong: outputs made here, independently, pass; one bit flipped
 * in any of them is reported with its array, row and column.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "oracle_number.h"
#include "unit.h"

enum { RANKS = 3, EXPERTS = 7, TOPK = 3, HIDDEN = 10, SCALES = 2, TOKENS = 6, MAX_ROWS = RANKS * TOKENS, ROOM = 64 };

/* A world of three ranks with 5, 0 and 6 tokens; rank ME receives. */
enum { ME = 1 };

static const uint64_t tokens_of[RANKS] = {5, 0, 6};

typedef struct world {
    oracle_routing_t *routing;
    oracle_shape_t shape;
    xep_recv_t recv;
    uint8_t x[MAX_ROWS][ROOM];
    int64_t idx[MAX_ROWS + 4][TOPK];
    float weights[MAX_ROWS][TOPK];
    uint32_t scales[MAX_ROWS][SCALES];
    int32_t src_token[MAX_ROWS];
    uint64_t src_begin[RANKS + 1];
    uint32_t rank_rows[RANKS][RANKS];
    uint64_t expert_rows[EXPERTS];
    uint32_t experts[2];
    uint8_t out[TOKENS][ROOM];
    float out_weights[TOKENS][TOPK];
} world_t;

/* Experts 0-2 are rank 0's, 3-4 rank 1's, 5-6 rank 2's: 7 over 3 ranks. */
static int owner_of(int32_t expert)
{
    return expert < 3 ? 0 : expert < 5 ? 1 : 2;
}

static int goes_to(const int32_t *idx, int rank)
{
    for (int k = 0; k < TOPK; k++)
        if (idx[k] >= 0 && owner_of(idx[k]) == rank) return 1;
    return 0;
}

static void receive(world_t *w, uint32_t src, uint64_t token, const int32_t *idx, const float *weights)
{
    const uint64_t row = w->recv.rows++;

    for (int k = 0; k < TOPK; k++) {
        const int mine = idx[k] >= 0 && owner_of(idx[k]) == ME;
        w->idx[row][k] = mine ? idx[k] - 3 : -1;
        w->weights[row][k] = mine ? weights[k] : 0;
        if (mine) w->expert_rows[idx[k] - 3]++;
    }
    oracle_fill_row(&w->shape, src, token, w->x[row]);
    oracle_fill_scales(&w->shape, src, token, w->scales[row]);
    w->src_token[row] = (int32_t)token;
}

static void fill_world(world_t *w)
{
    int32_t idx[TOPK];
    float weights[TOPK];

    for (uint32_t src = 0; src < RANKS; src++) {
        w->src_begin[src] = w->recv.rows;
        for (uint64_t token = 0; token < tokens_of[src]; token++) {
            oracle_route(w->routing, src, token, idx, weights);
            for (int rank = 0; rank < RANKS; rank++) w->rank_rows[src][rank] += goes_to(idx, rank);
            if (goes_to(idx, ME)) receive(w, src, token, idx, weights);
        }
    }
    w->src_begin[RANKS] = w->recv.rows;
}

static void combine_world(world_t *w, uint32_t rank)
{
    int32_t idx[TOPK];
    uint8_t term[ROOM];

    for (uint64_t token = 0; token < tokens_of[rank]; token++) {
        float sum[HIDDEN] = {0};
        oracle_route(w->routing, rank, token, idx, w->out_weights[token]);
        oracle_fill_bias(&w->shape, 1, rank, token, term);
        oracle_row_add(sum, term, w->shape.combine_dtype, HIDDEN);
        for (uint32_t from = 0; from < RANKS; from++) {
            if (!goes_to(idx, (int)from)) continue;
            oracle_fill_output(&w->shape, from, rank, token, term);
            oracle_row_add(sum, term, w->shape.combine_dtype, HIDDEN);
        }
        oracle_row_round(w->out[token], sum, w->shape.combine_dtype, HIDDEN);
        for (int k = 0; k < TOPK; k++)
            if (idx[k] < 0) w->out_weights[token][k] = 0;
    }
}

static world_t *world_open(xep_dtype_t dtype, xep_dtype_t combine_dtype)
{
    const oracle_routing_params_t params =
        {.seed = 4, .nranks = RANKS, .experts = EXPERTS, .topk = TOPK, .mask = 200, .tokens_of = tokens_of};
    world_t *w = calloc(1, sizeof *w);
    char why[100];

    assert_non_null(w);
    assert_int_equal(oracle_routing_create(&params, &w->routing, why, sizeof why), 0);
    w->shape = (oracle_shape_t){.routing = w->routing,
                                .payload = 9,
                                .hidden = HIDDEN,
                                .nscales = SCALES,
                                .dtype = dtype,
                                .combine_dtype = combine_dtype,
                                .idx_dtype = XEP_INT64,
                                .scales_dtype = XEP_FP32,
                                .weights = 1,
                                .capacity = MAX_ROWS + 4};
    for (int i = 0; i < MAX_ROWS + 4; i++)
        for (int k = 0; k < TOPK; k++) w->idx[i][k] = -1;
    w->experts[0] = 3;
    w->experts[1] = 4;
    w->recv = (xep_recv_t){.arrangement = XEP_ROWS_BY_RANK,
                           .capacity = MAX_ROWS + 4,
                           .x = w->x,
                           .x_stride = ROOM,
                           .dtype = dtype,
                           .hidden = HIDDEN,
                           .topk = TOPK,
                           .topk_idx_dtype = XEP_INT64,
                           .topk_idx = w->idx,
                           .topk_weights = w->weights[0],
                           .scales = w->scales,
                           .nscales = SCALES,
                           .scales_dtype = XEP_FP32,
                           .scales_token_stride = SCALES * 4,
                           .scales_stride = 4,
                           .src_token = w->src_token,
                           .src_begin = w->src_begin,
                           .rank_rows = w->rank_rows[0],
                           .first_expert = 3,
                           .local_experts = 2,
                           .experts = w->experts,
                           .expert_rows = w->expert_rows};
    fill_world(w);
    assert_in_range(w->recv.rows, 4, MAX_ROWS); /* or there is nothing to corrupt */
    return w;
}

static void world_close(world_t *w)
{
    oracle_routing_destroy(w->routing);
    free(w);
}

static void expect_passes(const world_t *w)
{
    oracle_difference_t difference;
    char text[200];

    if (!oracle_check_recv(&w->shape, ME, &w->recv, &difference)) return;
    oracle_difference_text(&difference, text, sizeof text);
    fail_msg("%s", text);
}

/* Flips a bit of a byte, expects it found there, flips it back. */
static void expect_found(world_t *w, void *at, const char *array, uint64_t row, uint64_t column)
{
    oracle_difference_t difference;

    *(uint8_t *)at ^= 1;
    assert_int_equal(oracle_check_recv(&w->shape, ME, &w->recv, &difference), 1);
    assert_int_equal(difference.found, 1);
    assert_int_equal(difference.rank, ME);
    assert_string_equal(difference.array, array);
    assert_int_equal(difference.row, row);
    assert_int_equal(difference.column, column);
    assert_string_not_equal(difference.expected, difference.got);
    *(uint8_t *)at ^= 1;
}

TEST(flipped_rows_are_found)
{
    static const xep_dtype_t dtypes[] = {XEP_BF16, XEP_FP16, XEP_FP32, XEP_E4M3};

    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        world_t *w = world_open(dtypes[i], XEP_BF16);
        const size_t size = oracle_element_bytes(dtypes[i]);
        expect_passes(w);
        for (uint64_t row = 0; row < w->recv.rows; row++)
            for (uint32_t h = 0; h < HIDDEN; h++) expect_found(w, w->x[row] + h * size, "x", row, h);
        world_close(w);
    }
}

TEST(flipped_metadata_are_found)
{
    world_t *w = world_open(XEP_E4M3, XEP_BF16);

    for (uint64_t row = 0; row < w->recv.rows; row++) {
        for (uint32_t k = 0; k < TOPK; k++) {
            expect_found(w, &w->idx[row][k], "topk_idx", row, k);
            expect_found(w, &w->weights[row][k], "topk_weights", row, k);
        }
        for (uint32_t i = 0; i < SCALES; i++) expect_found(w, &w->scales[row][i], "scales", row, i);
        expect_found(w, &w->src_token[row], "src_token", row, 0);
    }
    for (uint64_t row = w->recv.rows; row < w->recv.capacity; row++)
        expect_found(w, &w->idx[row][2], "topk_idx", row, 2);
    world_close(w);
}

TEST(flipped_counts_are_found)
{
    world_t *w = world_open(XEP_BF16, XEP_BF16);

    for (uint32_t from = 0; from < RANKS; from++) {
        expect_found(w, &w->src_begin[from], "src_begin", 0, from);
        for (uint32_t to = 0; to < RANKS; to++) expect_found(w, &w->rank_rows[from][to], "rank_rows", from, to);
    }
    expect_found(w, &w->src_begin[RANKS], "src_begin", 0, RANKS);
    expect_found(w, &w->recv.rows, "rows", 0, 0);
    expect_found(w, &w->recv.capacity, "capacity", 0, 0);
    expect_found(w, &w->recv.hidden, "hidden", 0, 0);
    expect_found(w, &w->recv.first_expert, "first_expert", 0, 0);
    expect_found(w, &w->recv.local_experts, "local_experts", 0, 0);
    expect_found(w, &w->experts[1], "experts", 1, 0);
    expect_found(w, &w->expert_rows[0], "expert_rows", 0, 0);
    expect_found(w, &w->expert_rows[1], "expert_rows", 0, 1);
    w->shape.alignment = 8;
    w->expert_rows[0] = (w->expert_rows[0] + 7) / 8 * 8;
    w->expert_rows[1] = (w->expert_rows[1] + 7) / 8 * 8;
    expect_passes(w);
    world_close(w);
}

/* Rows of two sources swapped whole: nothing but the rows is wrong. */
TEST(swapped_rows_are_found)
{
    world_t *w = world_open(XEP_BF16, XEP_BF16);
    oracle_difference_t difference;
    uint8_t row[ROOM];

    memcpy(row, w->x[0], ROOM);
    memcpy(w->x[0], w->x[w->recv.rows - 1], ROOM);
    memcpy(w->x[w->recv.rows - 1], row, ROOM);
    assert_int_equal(oracle_check_recv(&w->shape, ME, &w->recv, &difference), 1);
    assert_string_equal(difference.array, "x");
    assert_int_equal(difference.row, 0);
    world_close(w);
}

/* Experts of other ranks may be here, too: a row that goes to another instance is not missed, a wrong one is found. */
TEST(rows_of_instances)
{
    static const uint32_t instances[EXPERTS] = {1, 1, 1, 2, 6, 4, 4};
    world_t *w = world_open(XEP_FP32, XEP_FP32);

    w->shape.instances = instances;
    expect_passes(w);
    for (uint64_t row = 0; row < w->recv.rows; row++) {
        expect_found(w, w->x[row], "x", row, 0);
        for (uint32_t k = 0; k < TOPK; k++) {
            expect_found(w, &w->idx[row][k], "topk_idx", row, k);
            expect_found(w, &w->weights[row][k], "topk_weights", row, k);
        }
    }
    expect_found(w, &w->expert_rows[1], "expert_rows", 0, 1);
    expect_found(w, &w->recv.rows, "rows", 0, 0);
    expect_found(w, &w->recv.local_experts, "local_experts", 0, 0);
    const uint64_t last = w->src_begin[RANKS] = --w->recv.rows;
    for (uint32_t k = 0; k < TOPK; k++)
        if (w->idx[last][k] >= 0) w->expert_rows[w->idx[last][k]]--;
    expect_passes(w);
    world_close(w);
}

TEST(flipped_sums_are_found)
{
    static const xep_dtype_t dtypes[] = {XEP_BF16, XEP_FP16, XEP_FP32};
    const uint32_t rank = 2;
    oracle_difference_t difference;

    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        world_t *w = world_open(XEP_BF16, dtypes[i]);
        const size_t size = oracle_element_bytes(dtypes[i]);
        combine_world(w, rank);
        assert_int_equal(oracle_check_combine(&w->shape, rank, 2, w->out, ROOM, &difference), 0);
        assert_int_equal(difference.found, 0);
        assert_int_equal(oracle_check_combine(&w->shape, rank, 0, w->out, ROOM, &difference), 1); /* the bias counts */
        for (uint64_t token = 0; token < tokens_of[rank]; token++)
            for (uint32_t h = 0; h < HIDDEN; h++) {
                w->out[token][h * size] ^= 1;
                assert_int_equal(oracle_check_combine(&w->shape, rank, 2, w->out, ROOM, &difference), 1);
                assert_int_equal(difference.row, token);
                assert_int_equal(difference.column, h);
                assert_string_equal(difference.array, "out");
                w->out[token][h * size] ^= 1;
            }
        world_close(w);
    }
}

TEST(flipped_weights_are_found)
{
    const size_t stride = TOPK * sizeof(float);
    world_t *w = world_open(XEP_BF16, XEP_BF16);
    oracle_difference_t difference;

    combine_world(w, 0);
    assert_int_equal(oracle_check_weights(&w->shape, 0, w->out_weights[0], stride, &difference), 0);
    for (uint64_t token = 0; token < tokens_of[0]; token++)
        for (uint32_t k = 0; k < TOPK; k++) {
            *(uint8_t *)&w->out_weights[token][k] ^= 1;
            assert_int_equal(oracle_check_weights(&w->shape, 0, w->out_weights[0], stride, &difference), 1);
            assert_int_equal(difference.row, token);
            assert_int_equal(difference.column, k);
            *(uint8_t *)&w->out_weights[token][k] ^= 1;
        }
    world_close(w);
}

TEST(flipped_layout_is_found)
{
    world_t *w = world_open(XEP_BF16, XEP_BF16);
    int32_t per_rank[RANKS] = {0}, per_node[2] = {0}, per_expert[EXPERTS] = {0}, idx[TOPK];
    uint8_t in_rank[TOKENS][RANKS];
    float weights[TOPK];
    xep_layout_t layout = {.tokens_per_rank = per_rank,
                           .tokens_per_node = per_node,
                           .tokens_per_expert = per_expert,
                           .token_in_rank = in_rank[0]};
    oracle_difference_t difference;

    for (uint64_t token = 0; token < tokens_of[2]; token++) {
        oracle_route(w->routing, 2, token, idx, weights);
        for (int k = 0; k < TOPK; k++)
            if (idx[k] >= 0) per_expert[idx[k]]++;
        for (int rank = 0; rank < RANKS; rank++) per_rank[rank] += in_rank[token][rank] = (uint8_t)goes_to(idx, rank);
        per_node[0] += in_rank[token][0] || in_rank[token][1];
        per_node[1] += in_rank[token][2];
    }
    assert_int_equal(oracle_check_layout(&w->shape, 2, 2, &layout, &difference), 0);
    in_rank[4][1] ^= 1;
    assert_int_equal(oracle_check_layout(&w->shape, 2, 2, &layout, &difference), 1);
    assert_string_equal(difference.array, "token_in_rank");
    assert_int_equal(difference.row, 4);
    assert_int_equal(difference.column, 1);
    in_rank[4][1] ^= 1;
    per_node[1]++;
    assert_int_equal(oracle_check_layout(&w->shape, 2, 2, &layout, &difference), 1);
    assert_string_equal(difference.array, "tokens_per_node");
    per_node[1]--;
    per_expert[6]++;
    assert_int_equal(oracle_check_layout(&w->shape, 2, 2, &layout, &difference), 1);
    assert_string_equal(difference.array, "tokens_per_expert");
    assert_int_equal(difference.column, 6);
    world_close(w);
}

TEST(hash_sees_rows_not_their_order)
{
    world_t *w = world_open(XEP_BF16, XEP_BF16);
    const uint64_t hash = oracle_hash_recv(&w->recv, RANKS);
    uint8_t row[ROOM];

    assert_int_equal(oracle_hash_recv(&w->recv, RANKS), hash);
    w->x[1][3] ^= 4;
    assert_true(oracle_hash_recv(&w->recv, RANKS) != hash);
    w->x[1][3] ^= 4;
    memcpy(row, w->x[0], ROOM); /* two rows swapped under their sources' names */
    memcpy(w->x[0], w->x[1], ROOM);
    memcpy(w->x[1], row, ROOM);
    assert_true(oracle_hash_recv(&w->recv, RANKS) != hash);
    w->src_token[0] ^= w->src_token[1]; /* and the names with them: the same set of rows */
    w->src_token[1] ^= w->src_token[0];
    w->src_token[0] ^= w->src_token[1];
    assert_true(oracle_hash_recv(&w->recv, RANKS) == hash);
    world_close(w);
}
