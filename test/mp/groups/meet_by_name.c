/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Processes of one launcher meet under a name that its PMIx keeps: rank 0 begins as a group of one, which grows by all
 * others; then by nobody, so that the name is free again. Operations are compared with the oracle.
 *
 * meet_by_name RANKS          they meet
 * meet_by_name RANKS unnamed  by no name that they give
 * meet_by_name RANKS refused  the launcher keeps no names: all are told so, at once
 * meet_by_name RANKS alone    no launcher
 */
#define _GNU_SOURCE /* setenv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mp_job.h"
#include "mp_rig.h"

static const mp_case_t cases[] = {
    {.name = "met normal", MP_SHAPE(21, 4, 264, 40), .ragged = 1, .weights = 1},
    {.name = "met ll", .mode = "ll", MP_SHAPE(19, 3, 136, 24), .weights = 1},
};

static const char *name = "pmix:met here";

static unsigned own_rank(void)
{
    const char *rank = getenv("PMIX_RANK");
    MP_CHECK(rank != NULL);
    return (unsigned)strtoul(rank, NULL, 10);
}

static void play(xep_group_t *group)
{
    mp_go_on(group);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mp_job_t job;
        mp_job_begin(&job, &cases[i], 3, group);
        for (uint64_t round = 0; round < 3; round++) MP_OK(mp_job_try_round(&job, round));
        mp_job_close(&job);
    }
}

static xep_grow_args_t args_of(uint32_t joiners, const char *path)
{
    xep_grow_args_t args = XEP_GROW_ARGS_INIT;
    args.joiners = joiners;
    args.path = path;
    args.flags = XEP_GROW_ANYWHERE;
    return args;
}

/* After one that nobody came to, the name is free. */
static void check_free(xep_group_t *group)
{
    xep_group_t *next = NULL;
    for (int i = 0; i < 2; i++) {
        xep_grow_args_t args = args_of(1, name);
        args.timeout_ms = 100;
        MP_SAYS(XEP_ERR_TIMEOUT, name == NULL ? "0 of 1 joiners came in 100 ms to xep" : "came in 100 ms to met here",
                xep_group_grow(group, &args, &next));
    }
}

static void check_names(xep_group_t *group)
{
    char path[512] = "pmix:";
    xep_group_t *next = NULL;
    memset(path + 5, 'a', 300);
    for (int i = 0; i < 2; i++) {
        xep_grow_args_t args = args_of(1, i == 0 ? "pmix:" : path);
        xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
        params.path = args.path;
        MP_SAYS(XEP_ERR_INVALID, "invalid path: a PMIx name of ", xep_group_grow(group, &args, &next));
        MP_SAYS(XEP_ERR_INVALID, i == 0 ? "of 0 bytes behind \"pmix:\" (1 to 127)" : "of 300 bytes",
                xep_group_join(&params, &next));
    }
}

/* status: how both calls end */
static void check_refused(xep_group_t *group, xep_status_t status, const char *grows, const char *joins)
{
    xep_group_t *next = NULL;
    xep_grow_args_t args = args_of(1, name);
    xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
    params.path = name;
    MP_SAYS(status, grows, xep_group_grow(group, &args, &next));
    MP_SAYS(status, joins, xep_group_join(&params, &next));
}

static xep_group_t *make_alone(void)
{
    xep_group_t *group;
    setenv("XEP_BOOT", "single", 1);
    MP_OK(xep_group_create(NULL, &group));
    mp_go_on(group);
    return group;
}

int main(int argc, char **argv)
{
    xep_group_t *group = NULL, *next = NULL;
    uint32_t ranks = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 0;
    const char *how = argc > 2 ? argv[2] : "";
    MP_CHECK(ranks >= 1);
    if (strcmp(how, "unnamed") == 0) name = NULL;
    if (strcmp(how, "alone") == 0) {
        const char *why = "the PMIx name \"met here\" cannot be used: no launcher that serves PMIx";
        group = make_alone();
        check_names(group);
        check_refused(group, XEP_ERR_UNSUPPORTED, why, why);
        name = NULL;
        why = "the PMIx name \"xep\" cannot be used: no launcher that serves PMIx";
        check_refused(group, XEP_ERR_UNSUPPORTED, why, why);
    } else if (strcmp(how, "refused") == 0) {
        const char *why = "this launcher keeps no names: PMIx_";
        group = make_alone();
        check_refused(group, XEP_ERR_UNSUPPORTED, why, why);
    } else if (own_rank() == 0) {
        xep_grow_args_t args = args_of(ranks - 1, name);
        group = make_alone();
        MP_OK(xep_group_grow(group, &args, &next));
        check_free(group);
    } else {
        xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
        params.path = name;
        MP_OK(xep_group_join(&params, &next));
    }
    if (next != NULL) {
        MP_CHECK(mp_group_info(next).nranks == ranks);
        play(next);
    }
    xep_group_destroy(next);
    xep_group_destroy(group);
    printf("met\n");
    return 0;
}
