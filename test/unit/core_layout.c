/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of xep_layout() and xep_expert_range(): against the oracle. */
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "oracle.h"
#include "unit.h"
#include <xep/xep.h>

enum { MAX_TOKENS = 40, MAX_TOPK = 12, MAX_RANKS = 70, MAX_EXPERTS = 200, CANARY = 0x5a };

/* ---- expert ranges ---- */

TEST(ranges_cover_every_expert_once)
{
    for (uint32_t nranks = 1; nranks <= 17; nranks++)
        for (uint32_t experts = 1; experts <= 70; experts++) {
            uint32_t expected = 0;
            for (uint32_t rank = 0; rank < nranks; rank++) {
                uint32_t first, count;
                xep_expert_range(experts, nranks, rank, &first, &count);
                assert_int_equal(first, expected);
                assert_int_equal(count, experts / nranks + (rank < experts % nranks));
                for (uint32_t e = first; e < first + count; e++)
                    assert_int_equal(xep_expert_owner(experts, nranks, e), rank);
                expected += count;
            }
            assert_int_equal(expected, experts);
        }
}

TEST(a_rank_that_is_none_has_no_experts)
{
    uint32_t first = 77, count = 77;
    xep_expert_range(10, 4, 4, &first, &count);
    assert_int_equal(first, 10);
    assert_int_equal(count, 0);
    xep_expert_range(10, 0, 0, NULL, &count);
    assert_int_equal(count, 0);
    xep_expert_range(10, 4, 3, &first, NULL);
    assert_int_equal(first, 8);
}

/* ---- layouts ---- */

typedef struct shape {
    uint64_t tokens;
    uint32_t topk, experts, nranks, ranks_per_node;
    int wide;      /* 64-bit indices */
    size_t stride; /* bytes between rows, more than dense */
} shape_t;

typedef struct arrays {
    int32_t rank[MAX_RANKS], node[MAX_RANKS], expert[MAX_EXPERTS];
    uint8_t in_rank[MAX_TOKENS * MAX_RANKS];
} arrays_t;

static uint32_t nodes_of(const shape_t *s)
{
    return s->ranks_per_node == 0 ? 1 : (s->nranks + s->ranks_per_node - 1) / s->ranks_per_node;
}

/* The oracle's selections: those of a matrix. */
static void route(const oracle_shape_t *shape, uint32_t rank, uint64_t token, int32_t *idx, float *weights)
{
    const int64_t *row = (const int64_t *)shape->source_arg + token * MAX_TOPK;
    (void)rank;
    (void)weights;
    for (uint32_t k = 0; k < shape->routing->params.topk; k++) idx[k] = (int32_t)row[k];
}

/* the caller's matrix: of either width, its rows apart, what lies between them no index */
static void *matrix(const shape_t *s, int64_t topk[][MAX_TOPK])
{
    size_t width = s->wide ? 8 : 4, row = s->stride != 0 ? s->stride : s->topk * width;
    char *m = malloc(s->tokens * row + 1);
    assert_non_null(m);
    memset(m, 0x7f, s->tokens * row + 1);
    for (uint64_t t = 0; t < s->tokens; t++)
        for (uint32_t k = 0; k < s->topk; k++) {
            int32_t narrow = (int32_t)topk[t][k];
            memcpy(m + t * row + k * width, s->wide ? (void *)&topk[t][k] : (void *)&narrow, width);
        }
    return m;
}

static xep_layout_args_t args_of(const shape_t *s, const void *topk_idx)
{
    xep_layout_args_t args = XEP_LAYOUT_ARGS_INIT;
    args.tokens = s->tokens;
    args.topk = s->topk;
    args.experts = s->experts;
    args.nranks = s->nranks;
    args.ranks_per_node = s->ranks_per_node;
    args.topk_idx = topk_idx;
    args.topk_idx_stride = s->stride;
    args.topk_idx_dtype = s->wide ? XEP_DTYPE_DEFAULT : XEP_INT32;
    return args;
}

static void compare(const shape_t *s, int64_t topk[][MAX_TOPK])
{
    static const oracle_source_t source = {.route = route};
    const oracle_routing_t routing = {
        .params = {.nranks = s->nranks, .experts = s->experts, .topk = s->topk, .tokens_of = &s->tokens}};
    const oracle_shape_t shape = {.routing = &routing, .source = &source, .source_arg = topk};
    oracle_difference_t difference;
    arrays_t got;
    char text[256];
    void *m = matrix(s, topk);
    xep_layout_args_t args = args_of(s, m);
    xep_layout_t out = XEP_LAYOUT_INIT;
    out.tokens_per_rank = got.rank, out.tokens_per_node = got.node;
    out.tokens_per_expert = got.expert, out.token_in_rank = got.in_rank;
    memset(&got, CANARY, sizeof got);
    assert_int_equal(xep_layout(&args, &out), XEP_OK);
    if (oracle_check_layout(&shape, 0, s->ranks_per_node, &out, &difference) != 0) {
        oracle_difference_text(&difference, text, sizeof text);
        fail_msg("%s", text);
    }
    assert_int_equal(((uint8_t *)(got.rank + s->nranks))[0], CANARY);
    assert_int_equal(((uint8_t *)(got.node + nodes_of(s)))[0], CANARY);
    assert_int_equal(((uint8_t *)(got.expert + s->experts))[0], CANARY);
    assert_int_equal(got.in_rank[s->tokens * s->nranks], CANARY);
    free(m);
}

TEST(random_layouts)
{
    uint64_t seed = 7;
    for (int round = 0; round < 3000; round++) {
        static int64_t topk[MAX_TOKENS][MAX_TOPK];
        shape_t s = {.tokens = unit_random(&seed) % MAX_TOKENS,
                     .topk = 1 + (uint32_t)(unit_random(&seed) % MAX_TOPK),
                     .nranks = 1 + (uint32_t)(unit_random(&seed) % (MAX_RANKS - 1)),
                     .ranks_per_node = (uint32_t)(unit_random(&seed) % 9),
                     .wide = (int)(unit_random(&seed) % 2)};
        s.experts = s.topk + (uint32_t)(unit_random(&seed) % (MAX_EXPERTS - 1 - s.topk));
        if (unit_random(&seed) % 2) s.stride = s.topk * 8 + 8 * (unit_random(&seed) % 3);
        /* repeated selections too: counted for the expert, one row for the rank */
        for (uint64_t t = 0; t < s.tokens; t++)
            for (uint32_t k = 0; k < s.topk; k++)
                topk[t][k] = unit_random(&seed) % 5 == 0 ? -1 : (int64_t)(unit_random(&seed) % s.experts);
        compare(&s, topk);
    }
}

TEST(more_ranks_than_the_stack_has_room_for)
{
    static const int64_t topk[3][2] = {{0, 4999}, {4999, -1}, {2500, 2500}};
    shape_t s = {.tokens = 3, .topk = 2, .experts = 5000, .nranks = 5000, .wide = 1};
    int32_t *per_rank = calloc(5000, sizeof *per_rank);
    xep_layout_args_t args = args_of(&s, topk);
    xep_layout_t out = XEP_LAYOUT_INIT;
    assert_non_null(per_rank);
    out.tokens_per_rank = per_rank;
    assert_int_equal(xep_layout(&args, &out), XEP_OK);
    assert_int_equal(per_rank[0], 1);
    assert_int_equal(per_rank[2500], 1);
    assert_int_equal(per_rank[4999], 2);
    free(per_rank);
}

TEST(wrong_index_is_named)
{
    static const int64_t wrong[] = {5, -2, INT64_MAX, INT64_MIN, (int64_t)1 << 32};
    shape_t s = {.tokens = 2, .topk = 2, .experts = 5, .nranks = 2, .wide = 1};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int64_t topk[2][2] = {{0, 1}, {2, wrong[i]}};
        xep_layout_args_t args = args_of(&s, topk);
        xep_layout_t out = XEP_LAYOUT_INIT;
        assert_int_equal(xep_layout(&args, &out), XEP_ERR_INVALID);
        assert_non_null(strstr(xep_last_error(), "topk_idx[1][1]"));
    }
}

/* ---- any numbers ---- */

/* mostly small, sometimes at the edges of 64 bits */
static uint64_t wild(uint64_t *seed, uint64_t most)
{
    switch (unit_random(seed) % 8) {
    case 0: return (uint64_t)unit_random(seed) << 33 ^ (uint64_t)unit_random(seed) << 10 ^ unit_random(seed);
    case 1: return UINT64_C(1) << unit_random(seed) % 64;
    case 2: return (UINT64_C(1) << unit_random(seed) % 64) - 1;
    default: return unit_random(seed) % (most + 1);
    }
}

/* as much as the arguments say is there: what they do not fit in is read or written out of bounds */
static void call_wildly(uint64_t *seed, long *accepted_p)
{
    static int64_t nothing[1];
    xep_layout_args_t args = XEP_LAYOUT_ARGS_INIT;
    xep_layout_t out = XEP_LAYOUT_INIT;
    args.tokens = wild(seed, 20), args.topk = (uint32_t)wild(seed, 8), args.experts = (uint32_t)wild(seed, 100);
    args.nranks = (uint32_t)wild(seed, 40), args.ranks_per_node = (uint32_t)wild(seed, 8);
    args.topk_idx_stride = unit_random(seed) % 2 ? 0 : wild(seed, 64);
    args.topk_idx_dtype = unit_random(seed) % 2 ? XEP_INT64 : XEP_INT32;
    size_t elem = args.topk_idx_dtype == XEP_INT64 ? 8 : 4, row = args.topk * elem;
    size_t stride = args.topk_idx_stride == 0 ? row : args.topk_idx_stride;
    unsigned __int128 apart = args.tokens == 0 ? 0 : (unsigned __int128)(args.tokens - 1) * stride;
    int exists = apart < 1 << 16 && row < 1 << 16; /* what is larger and could exist is not tried */
    if (!exists && apart <= PTRDIFF_MAX) return;
    if (args.nranks > 1 << 16 || args.experts > 1 << 16) return;
    char *indices = exists ? malloc((size_t)apart + row) : (char *)nothing;
    for (size_t i = 0; exists && i < ((size_t)apart + row) / 4; i++)
        ((int32_t *)indices)[i] = elem == 8 && i % 2 ? 0 : (int32_t)(unit_random(seed) % (args.experts + 1));
    args.topk_idx = indices;
    out.tokens_per_rank = malloc(4 * (size_t)args.nranks);
    out.tokens_per_node = malloc(4 * (size_t)args.nranks);
    out.tokens_per_expert = malloc(4 * (size_t)args.experts);
    xep_status_t status = xep_layout(&args, &out);
    *accepted_p += status == XEP_OK;
    assert_true(status == XEP_OK || (status == XEP_ERR_INVALID && xep_last_error()[0] != '\0'));
    free(out.tokens_per_expert);
    free(out.tokens_per_node);
    free(out.tokens_per_rank);
    if (exists) free(indices);
}

TEST(any_numbers)
{
    uint64_t seed = 11;
    long accepted = 0;
    for (int i = 0; i < 100000; i++) call_wildly(&seed, &accepted);
    assert_true(accepted > 1000);
}

TEST(wrong_arguments)
{
    static const int64_t topk[1][1] = {{0}};
    shape_t s = {.tokens = 1, .topk = 1, .experts = 1, .nranks = 1, .wide = 1};
    xep_layout_t out = XEP_LAYOUT_INIT;
    xep_layout_args_t good = args_of(&s, topk), args;
    assert_int_equal(xep_layout(&good, &out), XEP_OK);
    assert_int_equal(xep_layout(NULL, &out), XEP_ERR_INVALID);
    assert_int_equal(xep_layout(&good, NULL), XEP_ERR_INVALID);
    args = good, args.experts = 0;
    assert_int_equal(xep_layout(&args, &out), XEP_ERR_INVALID);
    args = good, args.nranks = 0;
    assert_int_equal(xep_layout(&args, &out), XEP_ERR_INVALID);
    args = good, args.topk_idx = NULL;
    assert_int_equal(xep_layout(&args, &out), XEP_ERR_INVALID);
    args.tokens = 0; /* then there may be none */
    assert_int_equal(xep_layout(&args, &out), XEP_OK);
    args = good, args.topk_idx_dtype = XEP_BF16;
    assert_int_equal(xep_layout(&args, &out), XEP_ERR_INVALID);
    args = good, args.tokens = 2, args.topk_idx_stride = 4; /* rows overlap */
    assert_int_equal(xep_layout(&args, &out), XEP_ERR_INVALID);
    args = good, args.tokens = 2, args.topk_idx_stride = (size_t)-8; /* a negative one */
    assert_int_equal(xep_layout(&args, &out), XEP_ERR_INVALID);
    assert_non_null(strstr(xep_last_error(), "invalid topk_idx_stride: 18446744073709551608 bytes (2 rows must fit"));
    args = good, args.size = 0;
    assert_int_equal(xep_layout(&args, &out), XEP_ERR_INVALID);
}
