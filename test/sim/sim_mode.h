/* SPDX-License-Identifier: BSD-3-Clause */

/** What the simulator must know of a mode: the table that a new one brings, in one file (sim_normal.c, sim_ll.c). */
#ifndef SIM_MODE_H
#define SIM_MODE_H

#include "script.h"

/** A test that only this mode has. */
typedef struct sim_mode_test {
    const char *name;
    void (*fn)(void **state); /* as cmocka calls it; *state: sim_case_t */
} sim_mode_test_t;

typedef struct sim_mode {
    const char *name; /* of xep_<name>.so */
    int by_expert;    /* rows are one per selection, weighed by combine; else one per token and rank */

    /** Adds to a random call what this mode can do beyond what all can. */
    void (*make_dispatch)(sim_dice_t *dice, const script_t *script, script_call_t *call);
    void (*make_combine)(sim_dice_t *dice, const script_t *script, script_call_t *call);

    /** Whether all ranks notice that one says something else: call->odd, which is none of those all modes notice. */
    int (*notices)(const script_t *script, const script_call_t *call);

    const sim_mode_test_t *tests;
    size_t ntests;
} sim_mode_t;

extern const sim_mode_t sim_normal, sim_ll;

#endif
