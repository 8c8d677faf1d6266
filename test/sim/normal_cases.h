/* SPDX-License-Identifier: BSD-3-Clause */

/** Tests of the mode "normal" in simulated worlds: what the random ones and those by hand share. */
#ifndef NORMAL_CASES_H
#define NORMAL_CASES_H

#include "script.h"

enum { NORMAL_TURNS = 400000 };

/** A world of so many ranks (0: as it comes) in which everything else is chance. */
void normal_world_begin(sim_world_t *world, sim_options_t *options, const xep_plugin_t *plugin, uint64_t seed, uint32_t nranks);

/** Fails the test if something in the world did. */
void normal_world_end(sim_world_t *world);

/** Plays the script on all ranks; quiet: ranks need not finish. */
void normal_run(sim_world_t *world, script_t *script, uint64_t turns, int quiet);

script_player_t *normal_player(const sim_world_t *world, uint32_t rank);

/** Runs with share seeds, or those the environment says. */
void normal_runs(void **state, uint64_t share, void (*run)(const xep_plugin_t *plugin, uint64_t seed));

/* ---- normal_cases.c ---- */

void test_overflow(void **state);
void test_mismatch(void **state);
void test_lies(void **state);
void test_explain(void **state);
void test_unsupported(void **state);
void test_heap_size(void **state);

#endif
