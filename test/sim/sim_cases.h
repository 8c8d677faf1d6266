/* SPDX-License-Identifier: BSD-3-Clause */

/** Tests that every mode must pass, and what the tests of one mode are made of. */
#ifndef SIM_CASES_H
#define SIM_CASES_H

#include "script_player.h"
#include "sim_mode.h"

enum { SIM_TURNS = 400000 }; /* far more than any script needs */

/** What is tested: the state of every test. */
typedef struct sim_case {
    const sim_mode_t *mode;
    const xep_plugin_t *plugin;
} sim_case_t;

/** With the plugin of XEP_PLUGIN_PATH; fails the test. */
sim_case_t sim_case_load(const sim_mode_t *mode);

/** A world and the script it plays. */
typedef struct sim_run {
    const sim_mode_t *mode;
    sim_world_t world;
    sim_options_t options;
    script_t script;
} sim_run_t;

/** Random options, nothing open yet; nranks 0: any. The run is one for all tests: at most one is begun. */
sim_run_t *sim_run_begin(void **state, uint64_t seed, uint32_t nranks);

/** Opens the world of the script's shape, with players in it. 0 on failure. */
int sim_run_open(sim_run_t *run);

/** Plays; where ranks have not finished, the failure says what each waits for. quiet: they need not finish. */
void sim_run_play(sim_run_t *run, uint64_t turns, int quiet);

/** All that is under way arrives, and nobody does anything meanwhile; whether all players are at their ends. */
void sim_arrive(sim_world_t *world);
int sim_has_finished(const sim_world_t *world);

/** Opens and plays a run to its end, and ends it: how many times the wire had to be waited for; 30: too often. */
uint64_t sim_run_latencies(sim_run_t *run);

/** Frees all; fails the test, with the seed, if something failed. */
void sim_run_end(sim_run_t *run);

/**
 * A quarter of them with XEP_TEST_BRIEF, an eighth where that is "quick": what goes wrong in an order that is rare is
 * found where all are played.
 */
uint64_t sim_few_if_brief(uint64_t share);

/** Calls fn for so many seeds, or those of XEP_TEST_SEED and XEP_TEST_RUNS. */
void sim_each_seed(void **state, uint64_t share, void (*fn)(void **state, uint64_t seed));

/** Three ranks, 7 experts, top 2, 40 bf16, a scale, 3 slots, 6 tokens. */
extern const xep_shape_t sim_small_shape;

/** 17 rows of room at rank 1, which gets more: all ranks say so, and with room enough it works. */
void sim_check_overflow(void **state, uint64_t rows, const char *reason);

/** What all ranks say of ODD_REFUSED. */
#define NOT_THE_SAME "rank 0 and rank 2 are not in the same call: 1 of those before it failed on rank 2 alone"

/** One rank says something else, and all ranks end in the same words. */
typedef struct sim_mismatch {
    script_kind_t kind;
    script_odd_t odd;
    const char *reason;
} sim_mismatch_t;

/** edit: adds what the dispatches need for the difference to show; may be NULL. */
void sim_check_mismatches(void **state, const sim_mismatch_t *mismatches, size_t count,
                          void (*edit)(script_call_t *call));

/* ---- tests of all modes ---- */

void sim_random_worlds(void **state);
void sim_resets(void **state);
void sim_hostile_peers(void **state);
void sim_many_ranks(void **state);
void sim_tight_rooms(void **state);
void sim_explains(void **state);

#endif
