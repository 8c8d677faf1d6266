/* SPDX-License-Identifier: BSD-3-Clause */

/* How a wait rests: it does not sleep while something moves, and its deadline passes all the same. */

#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "rest.h"

enum { LONG_NS = 900 * 1000 * 1000, TURNS = 20, MANY_TURNS = 1000 };

/* a wait in which nothing has happened for so long that it sleeps between turns */
static xep_rest_t tired(uint64_t deadline_ns)
{
    xep_rest_t rest;
    xep_rest_begin(&rest, 0, deadline_ns);
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

static void sleeps_when_nothing_moves(void **state)
{
    xep_rest_t rest = tired(UINT64_MAX);
    (void)state;
    assert_true(sleeps(&rest, 0) >= TURNS);
}

static void is_awake_while_something_moves(void **state)
{
    xep_rest_t rest = tired(UINT64_MAX);
    (void)state;
    assert_true(sleeps(&rest, 1) < TURNS / 2);
}

/* what has moved once is no reason to sleep in the next turn */
static void begins_anew(void **state)
{
    xep_rest_t rest = tired(UINT64_MAX);
    (void)state;
    assert_int_equal(xep_rest_turn(&rest, 1), 1);
    assert_true(sleeps(&rest, 0) < TURNS / 2);
}

static void deadline_passes_while_something_moves(void **state)
{
    xep_rest_t rest = tired(1);
    uint32_t turns = 0;
    (void)state;
    while (turns < MANY_TURNS && xep_rest_turn(&rest, turns + 1)) turns++;
    assert_in_range(turns, 0, MANY_TURNS - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sleeps_when_nothing_moves),
        cmocka_unit_test(is_awake_while_something_moves),
        cmocka_unit_test(begins_anew),
        cmocka_unit_test(deadline_passes_while_something_moves),
    };
    return cmocka_run_group_tests_name("rest", tests, NULL, NULL);
}
