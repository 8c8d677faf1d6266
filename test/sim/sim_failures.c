/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_suites.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "sim_wire.h"

enum { RANKS = 3, MOST_CALLS = 20000 };

/* One operation of each kind after the other, several in flight. */
static void make_script(sim_run_t *run)
{
    script_t *script = &run->script;
    script_begin(&run->world, run->mode, script, &sim_small_shape);
    script_dispatch(script, 0, SCRIPT_NO_HANDLE)->weights = 1;
    script_dispatch(script, 1, 0)->nscales = 1;
    script_combine(script, 0);
    script_combine(script, 1);
    script_combine(script, 0);
    script_release(script, 0);
}

static int is_over(const sim_rank_t *rank)
{
    const sim_rank_t *failing = rank->world->ranks;
    return script_player(failing)->broken || script_player_is_finished(rank);
}

/* After a reset there are other wires, and everything works on the memory as it was left. */
static void reset(sim_run_t *run)
{
    static script_t before;
    sim_wire_clear(&run->world.net);
    script_players_free(&run->world);
    before = run->script;
    script_make(&run->world, run->mode, &run->script, RANKS, &before);
    run->world.options.fail_at = 0;
    if (!sim_world_reopen(&run->world)) return;
    script_players_make(&run->world, &run->script);
    sim_run_play(run, SIM_TURNS, 0);
}

/* Whether there was such a call in the run of this seed. */
static int fail_at(void **state, uint64_t seed, const uint32_t *node, uint64_t call, int once, int pieces)
{
    sim_run_t *run = sim_run_begin(state, seed, RANKS);
    sim_world_t *world = &run->world;
    const sim_rank_t *failing;
    int failed;
    run->options.fail_at = call;
    run->options.fail_once = once;
    memcpy(run->options.node, node, RANKS * sizeof *node);
    if (pieces) sim_pieces_script(run);
    else make_script(run);
    assert_true(sim_run_open(run));
    world->finished = is_over;
    sim_run_play(run, SIM_TURNS, 0);
    failing = world->ranks;
    failed = failing->wire.sentence[0] != '\0';
    if (failed && !script_player(failing)->broken && !failing->refused)
        sim_fail(world, "nobody was told that %s", failing->wire.sentence);
    if (script_player(failing)->broken && !world->failed) reset(run);
    sim_run_end(run);
    return failed;
}

/* Every call of a run, until one has fewer; in brief every fourth, or eighth. */
static void fail_each(void **state, uint64_t seed, const uint32_t *node, int once, int pieces)
{
    uint64_t step = 8 / sim_few_if_brief(8), call = 1 + (seed + (uint64_t)once) % step;
    while (call < MOST_CALLS && fail_at(state, seed, node, call, once, pieces)) call += step;
    assert_in_range(call, node[1] == 0 && node[2] == 0 ? 1 : 20, MOST_CALLS - 1); /* all mapped: it is not called */
}

void sim_wire_failures(void **state)
{
    static const uint32_t nodes[][RANKS] = {{0, 0, 0}, {0, 0, 1}, {0, 1, 0}, {0, 1, 1}, {0, 1, 2}};
    static const uint64_t seeds[] = {3, 5}; /* without masks, and with them */
    const int has_pieces = ((const sim_case_t *)*state)->plugin->next != NULL;
    for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++)
        for (int once = 0; once < 2; once++) {
            for (size_t s = 0; s < sizeof seeds / sizeof seeds[0]; s++) fail_each(state, seeds[s], nodes[i], once, 0);
            if (has_pieces) fail_each(state, seeds[0], nodes[i], once, 1);
        }
}
