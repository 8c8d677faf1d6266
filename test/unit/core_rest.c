/* SPDX-License-Identifier: BSD-3-Clause */

/* How a wait rests: it does not sleep while something moves, and its deadline passes all the same. */

#define _GNU_SOURCE
#include <sys/resource.h>

#include "rest.h"
#include "unit.h"

enum { LONG_NS = 900 * 1000 * 1000, TURNS = 20, MANY_TURNS = 1000, FEW_MS_NS = 5 * 1000 * 1000 };

/* a wait in which nothing has happened for so long that it sleeps between turns */
static xep_rest_t tired(uint64_t deadline_ns)
{
    xep_rest_t rest;
    xep_rest_begin(&rest, XEP_REST_RARE, deadline_ns);
    assert_int_equal(xep_rest_turn(&rest, 0), deadline_ns == UINT64_MAX);
    rest.begin_ns = rest.now_ns - LONG_NS;
    return rest;
}

/* times this thread gave up its core to sleep in as many turns, with moves going up by step in each */
static long sleeps(xep_rest_t *rest, uint32_t step)
{
    struct rusage before, after;
    uint32_t moves = rest->moves;
    assert_int_equal(getrusage(RUSAGE_THREAD, &before), 0);
    for (int i = 0; i < TURNS; i++) assert_int_equal(xep_rest_turn(rest, moves += step), 1);
    assert_int_equal(getrusage(RUSAGE_THREAD, &after), 0);
    return after.ru_nvcsw - before.ru_nvcsw;
}

TEST(sleeps_when_nothing_moves)
{
    xep_rest_t rest = tired(UINT64_MAX);
    assert_true(sleeps(&rest, 0) >= TURNS);
}

TEST(is_awake_while_something_moves)
{
    xep_rest_t rest = tired(UINT64_MAX);
    assert_true(sleeps(&rest, 1) < TURNS / 2);
}

/* a few milliseconds are long where the core may be what the other one needs */
TEST(sleeps_sooner_in_a_crowd)
{
    const xep_rest_kind_t kinds[] = {XEP_REST_ALONE, XEP_REST_CROWDED};
    for (int i = 0; i < 2; i++) {
        xep_rest_t rest = tired(UINT64_MAX);
        rest.kind = kinds[i];
        rest.turns = MANY_TURNS * MANY_TURNS + 1; /* has spun, and is between two looks at the clock */
        rest.begin_ns = rest.now_ns - FEW_MS_NS;
        assert_int_equal(xep_rest_turn(&rest, 0), 1);
        assert_int_equal(rest.now_ns != rest.begin_ns + FEW_MS_NS, kinds[i] == XEP_REST_CROWDED);
    }
}

/* what has moved once is no reason to sleep in the next turn */
TEST(begins_anew)
{
    xep_rest_t rest = tired(UINT64_MAX);
    assert_int_equal(xep_rest_turn(&rest, 1), 1);
    assert_true(sleeps(&rest, 0) < TURNS / 2);
}

TEST(deadline_passes_while_something_moves)
{
    xep_rest_t rest = tired(1);
    uint32_t turns = 0;
    while (turns < MANY_TURNS && xep_rest_turn(&rest, turns + 1)) turns++;
    assert_in_range(turns, 0, MANY_TURNS - 1);
}
