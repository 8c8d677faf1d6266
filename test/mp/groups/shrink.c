/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For shrink.sh: ranks are killed at any instruction, in operations, while buffers are made and while the group
 * shrinks; the others make smaller groups until all of those are gone, and compare every operation with the oracle.
 * All survivors must have gone through the same groups, which they leave in memory of this test.
 *
 * shrink SCENARIO SEED
 *   killed N     N ranks, by timers
 *   early        one rank in mid-operation; the others shrink while one of them computes, and it is not left out
 *   late         rank 1 stops, is left out, which a warning has announced, and is told when it goes on
 *   few          two ranks die, and the others want more than are left
 *   none         all are well
 *   alone        all but rank 0 die
 */
#define _GNU_SOURCE /* kill */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { RANKS = 8, GROUPS = 16, ROUNDS = 6, SPREAD_US = 400 * 1000 };

static const mp_case_t cases[] = {
    {.name = "normal", MP_SHAPE(21, 4, 264, 40), .ragged = 1, .mask = 100, .weights = 1, .copy_in = 1},
    {.name = "ll", .mode = "ll", MP_SHAPE(19, 3, 136, 24), .slots = 2, .weights = 1, .copy_in = 1},
};

/** Sets of ranks, by their first numbers. */
typedef struct log {
    atomic_int pid[RANKS], back[RANKS], here, warned;
    uint32_t groups[RANKS][GROUPS];
} log_t;

static log_t *said;
static uint32_t self, first_nranks; /* in the first group */
static uint32_t ids[RANKS], ngroups;

/* Rounds of both modes, for ever or so many. */
static xep_status_t play(xep_group_t *group, uint32_t rounds)
{
    mp_job_t jobs[2];
    xep_status_t status = XEP_OK;
    for (int m = 0; m < 2; m++) {
        mp_job_open(&jobs[m], &cases[m], 7 + ngroups);
        if (status == XEP_OK) status = mp_job_try_buffer(&jobs[m], group);
    }
    for (uint32_t i = 0; status == XEP_OK && (rounds == 0 || i < rounds); i++)
        status = mp_job_try_round(&jobs[i % 2], 100 + i);
    for (int m = 0; m < 2; m++) mp_job_close(&jobs[m]);
    return status;
}

/* The new group's ranks say the same of who they are, and each is who the others take it for. */
static xep_status_t compare(xep_group_t *group, const uint32_t *origins)
{
    uint32_t now[RANKS], all[RANKS][RANKS], set = 0;
    memset(now, 0xff, sizeof now);
    for (uint32_t r = 0; r < mp_nranks(); r++) {
        now[r] = ids[origins[r]];
        set |= 1u << now[r];
    }
    MP_CHECK(now[mp_rank()] == self);
    MP_CHECK(ngroups < GROUPS);
    memcpy(ids, now, sizeof ids);
    said->groups[self][ngroups++] = set;
    xep_status_t status = xep_group_allgather(group, now, all, sizeof now);
    for (uint32_t r = 0; status == XEP_OK && r < mp_nranks(); r++) MP_CHECK(memcmp(all[r], now, sizeof now) == 0);
    return status;
}

/* Destroys the old group before or after. */
static xep_group_t *shrink(xep_group_t *group, const xep_shrink_args_t *args)
{
    uint32_t origins[RANKS], count = 0;
    xep_mask_t masks[RANKS];
    xep_shrink_args_t own = *args;
    xep_group_t *next = NULL;
    uint32_t before = mp_nranks();
    own.origins = origins;
    MP_OK(xep_group_shrink(group, &own, &next));
    MP_OK(xep_group_mask_query(group, masks, sizeof *masks, RANKS, &count));
    MP_FAILS(XEP_ERR_INVALID, xep_group_shrink(group, &own, &next));
    MP_FAILS(XEP_ERR_ABORTED, xep_group_barrier(group));
    xep_group_destroy(group);
    mp_go_on(next);
    MP_CHECK(mp_nranks() + count == before);
    xep_status_t status = compare(next, origins);
    MP_CHECK(status == XEP_OK || mp_is_failure_of_others(status));
    return next;
}

/* ---- scenarios ---- */

static uint32_t choose(uint64_t seed, uint32_t count)
{
    uint32_t set = 0;
    for (uint64_t i = 0; (uint32_t)__builtin_popcount(set) < count; i++) {
        uint64_t words[2] = {seed, i};
        set |= 1u << oracle_hash_row(words, sizeof words, 9) % first_nranks;
    }
    return set;
}

static xep_group_t *go_on(xep_group_t *group, uint32_t left)
{
    const xep_shrink_args_t args = XEP_SHRINK_ARGS_INIT;
    for (;;) {
        MP_CHECK(mp_nranks() >= left); /* else one has died that was to live: nobody else will, and this never ends */
        xep_status_t status = play(group, mp_nranks() == left ? ROUNDS : 0);
        if (status == XEP_OK) return group;
        MP_CHECK(mp_is_failure_of_others(status));
        group = shrink(group, &args);
    }
}

/* Whoever is alive at the end has been in the same groups. */
static void check_logs(uint32_t dead)
{
    for (uint32_t r = 0; r < first_nranks; r++) {
        if (dead >> r & 1) continue;
        for (uint32_t g = 0; g < ngroups; g++)
            if (said->groups[r][g] != said->groups[self][g])
                mp_fail(__FILE__, __LINE__, "group %u of rank %u is %#x, of this rank %#x", g, r, said->groups[r][g],
                        said->groups[self][g]);
    }
}

static void killed(xep_group_t *group, uint64_t seed, uint32_t count)
{
    uint32_t dead = choose(seed, count);
    if (dead >> self & 1) mp_die_within(seed * RANKS + self, SPREAD_US);
    group = go_on(group, first_nranks - count);
    while (dead >> self & 1) pause();
    MP_OK(xep_group_barrier(group));
    check_logs(dead);
    xep_group_destroy(group);
}

static void early(xep_group_t *group)
{
    const xep_shrink_args_t args = XEP_SHRINK_ARGS_INIT;
    if (self == 2) raise(SIGKILL);
    if (self == 0) mp_sleep_us(1500 * 1000);
    group = shrink(group, &args);
    MP_CHECK(mp_nranks() == first_nranks - 1);
    MP_OK(play(group, ROUNDS));
    xep_group_destroy(group);
}

static void hear_warning(void *arg, xep_log_level_t level, const char *message)
{
    if (level != XEP_LOG_WARN || strstr(message, "half of the deadline has passed, after ") == NULL) return;
    if (strstr(message, "xep_group_shrink, agreeing on who is left: still missing: rank 1") != NULL)
        atomic_store((atomic_int *)arg, 1);
}

/* One of the others at least has had the processor in the second half of its deadline. */
static void late(xep_group_t *group)
{
    xep_shrink_args_t args = XEP_SHRINK_ARGS_INIT;
    xep_group_t *next = NULL;
    args.timeout_ms = 4000;
    args.least = 2; /* rank 1 may have slept through all mail, and the others have gone without a trace */
    if (self == 1) raise(SIGSTOP);
    if (self == 1) {
        MP_FAILS(XEP_ERR_PEER, xep_group_shrink(group, &args, &next));
        MP_CHECK(strstr(xep_last_error(), "out of the group") != NULL ||
                 strstr(xep_last_error(), "at least 2") != NULL);
        xep_group_destroy(group);
        atomic_store(&said->back[1], 1);
        return;
    }
    xep_log_set(hear_warning, &said->warned);
    group = shrink(group, &args);
    xep_log_set(NULL, NULL);
    MP_CHECK(mp_nranks() == first_nranks - 1);
    MP_OK(play(group, ROUNDS));
    MP_CHECK(atomic_load(&said->warned));
    if (mp_rank() == 0) MP_CHECK(kill(said->pid[1], SIGCONT) == 0);
    mp_await(&said->back[1], 1);
    MP_OK(play(group, ROUNDS));
    xep_group_destroy(group);
}

static void few(xep_group_t *group)
{
    xep_shrink_args_t args = XEP_SHRINK_ARGS_INIT;
    xep_group_t *next = NULL;
    args.least = first_nranks - 1;
    if (self == 1 || self == 2) raise(SIGKILL);
    MP_SAYS(XEP_ERR_PEER, "are left (at least", xep_group_shrink(group, &args, &next));
    MP_CHECK(next == NULL);
    xep_group_destroy(group);
}

static void none(xep_group_t *group)
{
    const xep_shrink_args_t args = XEP_SHRINK_ARGS_INIT;
    for (int i = 0; i < 3; i++) {
        MP_OK(play(group, ROUNDS));
        group = shrink(group, &args);
        MP_CHECK(mp_nranks() == first_nranks);
    }
    MP_OK(play(group, ROUNDS));
    xep_group_destroy(group);
}

static void alone(xep_group_t *group)
{
    const xep_shrink_args_t args = XEP_SHRINK_ARGS_INIT;
    if (self != 0) raise(SIGKILL);
    group = shrink(group, &args);
    MP_CHECK(mp_nranks() == 1);
    MP_OK(play(group, ROUNDS));
    xep_group_destroy(group);
}

int main(int argc, char **argv)
{
    const char *scenario = argc > 1 ? argv[1] : "";
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
    uint32_t count = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 0) : 1;
    xep_group_t *group = mp_group();
    self = mp_rank();
    first_nranks = mp_nranks();
    MP_CHECK(first_nranks <= RANKS && count < first_nranks);
    for (uint32_t r = 0; r < RANKS; r++) ids[r] = r;
    said = mp_shared(group, sizeof *said);
    said->pid[self] = getpid();
    ++said->here;
    mp_await(&said->here, (int)first_nranks); /* no barrier of the group: a rank behind it may shrink it under others */
    if (strcmp(scenario, "killed") == 0) killed(group, seed, count);
    else if (strcmp(scenario, "early") == 0) early(group);
    else if (strcmp(scenario, "late") == 0) late(group);
    else if (strcmp(scenario, "few") == 0) few(group);
    else if (strcmp(scenario, "alone") == 0) alone(group);
    else if (strcmp(scenario, "none") == 0) none(group);
    else mp_fail(__FILE__, __LINE__, "no such scenario: %s", scenario);
    printf("survived\n");
    return 0;
}
