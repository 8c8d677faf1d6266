/* SPDX-License-Identifier: BSD-3-Clause */

/* Waiting for words: each rank is booked its own time, whatever the order they come in, and the clock is left alone
 * else. */

#include <string.h>

#include "unit.h"
#include "words.h"

enum { RANKS = 4 };
static const uint32_t numbers[RANKS] = {0, 1, 2, 3};

/** Words in reach, and a clock that shows how often it was read. */
typedef struct desk {
    xep_env_t env; /* first: the clock finds the desk by it */
    xep_shape_t shape;
    _Atomic uint64_t words[RANKS];
    uint32_t ranks[RANKS];
    uint64_t wait_ns[RANKS];
    uint64_t now;
    unsigned looks; /* at the clock */
    xep_op_t op;
} desk_t;

static uint64_t now_ns(const xep_env_t *env)
{
    desk_t *desk = (desk_t *)(uintptr_t)env;
    desk->looks++;
    return desk->now;
}

static const _Atomic uint64_t *word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const desk_t *desk = mode;
    *value_p = op->epoch;
    return &desk->words[rank];
}

static void desk_set(desk_t *desk)
{
    *desk = (desk_t){.shape = {.nranks = RANKS}, .op = {.epoch = 1}};
    desk->env = (xep_env_t){.shape = &desk->shape, .now_ns = now_ns};
    desk->op.late = (xep_late_t){.ranks = desk->ranks, .wait_ns = desk->wait_ns};
    desk->op.with = (xep_ranks_t){RANKS, 0, numbers};
}

static int arrived(desk_t *desk, uint64_t now)
{
    desk->now = now;
    return xep_words_arrived(&desk->env, word, desk, &desk->op);
}

static void expect(const desk_t *desk, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    const uint64_t expected[RANKS] = {a, b, c, d};
    assert_memory_equal(desk->wait_ns, expected, sizeof expected);
}

TEST(all_are_there)
{
    desk_t desk;
    desk_set(&desk);
    for (uint32_t r = 0; r < RANKS; r++) desk.words[r] = 1;
    assert_true(arrived(&desk, 10));
    assert_int_equal(desk.op.late.count, 0);
    assert_int_equal(desk.looks, 0);
    expect(&desk, 0, 0, 0, 0);
}

TEST(any_order)
{
    desk_t desk;
    desk_set(&desk);
    desk.words[1] = 1;
    assert_false(arrived(&desk, 10));
    assert_int_equal(desk.op.late.count, 3);
    desk.op.late.since_ns = 12; /* as the core does when somebody waits */
    assert_false(arrived(&desk, 15));
    assert_int_equal(desk.looks, 0);
    desk.words[3] = 1; /* the last in the scan comes first */
    assert_false(arrived(&desk, 20));
    desk.words[0] = desk.words[2] = 2; /* a later epoch is as good; one look for both */
    assert_true(arrived(&desk, 50));
    assert_int_equal(desk.looks, 2);
    assert_int_equal(desk.op.late.count, 0);
    assert_int_equal(desk.op.late.since_ns, 0);
    expect(&desk, 38, 0, 38, 8);
}

/* Rank 1 comes between two looks at it; rank 0 is heard through it. */
static const _Atomic uint64_t *comes_meanwhile(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    desk_t *desk = (desk_t *)(uintptr_t)mode;
    const _Atomic uint64_t *seen = word(mode, op, rank, value_p);
    if (rank == 1 && desk->looks++ > 0) desk->words[1] = 1;
    return seen;
}

/* Who is behind a rank that is late is not late itself, and is not forgotten either, whenever that one comes. */
TEST(one_is_heard_through_another)
{
    static const uint32_t through[RANKS] = {1, XEP_NO_RANK, XEP_NO_RANK, XEP_NO_RANK};
    desk_t desk;
    desk_set(&desk);
    desk.words[2] = desk.words[3] = 1;
    assert_false(xep_words_arrived_through(&desk.env, comes_meanwhile, through, &desk, &desk.op));
    assert_int_equal(desk.op.late.count, 1);
    assert_int_equal(desk.ranks[0], 1);
    assert_false(xep_words_arrived_through(&desk.env, comes_meanwhile, through, &desk, &desk.op));
    assert_int_equal(desk.op.late.count, 1);
    assert_int_equal(desk.ranks[0], 0);
    desk.words[0] = 1;
    assert_true(xep_words_arrived_through(&desk.env, comes_meanwhile, through, &desk, &desk.op));
}

/* The rank through which others hear it hears it without. */
TEST(one_is_heard_here)
{
    static const uint32_t through[RANKS] = {2, XEP_NO_RANK, 1, 2};
    assert_true(xep_words_are_through(through, 1, 0));
    assert_false(xep_words_are_through(through, 1, 1));
    assert_false(xep_words_are_through(through, 1, 2));
    assert_true(xep_words_are_through(through, 1, 3));
}

/* Comes at the fourth look at it. */
static const _Atomic uint64_t *comes_soon(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    desk_t *desk = (desk_t *)(uintptr_t)mode;
    if (rank == 2 && ++desk->looks == 4) desk->words[2] = 1;
    return word(mode, op, rank, value_p);
}

/* All looks together are as many as were allowed, and a rank that does not come in them is left for a wait. */
TEST(one_comes_soon)
{
    for (uint32_t looks = 2; looks <= 3; looks++) {
        desk_t desk;
        desk_set(&desk);
        desk.words[0] = desk.words[1] = desk.words[3] = 1;
        assert_int_equal(xep_words_arrive_soon(comes_soon, &desk, &desk.op, looks), looks == 3);
        assert_int_equal(desk.looks, looks + 1);
        assert_int_equal(desk.op.late.count, 0);
    }
}
