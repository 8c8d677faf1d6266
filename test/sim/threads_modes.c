/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * All modes on ranks that are threads: the scripts of the simulated worlds, by each kind of kernels, undisturbed and
 * with ranks that are stopped at any instruction.
 *
 * limit: 240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "sim_cases.h"
#include "sim_world.h"

enum { RANKS = 4, WORLDS = 60 };

static void play(void **state, uint64_t seed, int delays)
{
    sim_run_t *run = sim_run_begin(state, seed, RANKS);
    memset(run->options.node, 0, sizeof run->options.node);
    script_make(&run->world, run->mode, &run->script, RANKS, NULL);
    if (sim_run_open(run)) sim_threads_run(&run->world, delays);
    sim_run_end(run);
}

static void play_undisturbed(void **state, uint64_t seed)
{
    play(state, seed, 0);
}

static void undisturbed(void **state)
{
    sim_each_seed(state, WORLDS, play_undisturbed);
}

static void play_with_delays(void **state, uint64_t seed)
{
    play(state, seed, 1);
}

static void with_delays(void **state)
{
    sim_each_seed(state, WORLDS, play_with_delays);
}

int main(void)
{
    sim_case_t normal = sim_case_load(&sim_normal), ll = sim_case_load(&sim_ll);
    const struct CMUnitTest tests[] = {
        {.name = "normal_undisturbed", .test_func = undisturbed, .initial_state = &normal},
        {.name = "normal_with_delays", .test_func = with_delays, .initial_state = &normal},
        {.name = "ll_undisturbed", .test_func = undisturbed, .initial_state = &ll},
        {.name = "ll_with_delays", .test_func = with_delays, .initial_state = &ll},
    };
    return cmocka_run_group_tests_name("sim_threads", tests, NULL, NULL);
}
