/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A rank for contrib/soak, which starts such processes, kills them and starts others, for as long as one likes. Rank 0
 * begins as a group of one; all others join. Whoever is left after a death makes a smaller group, which then grows
 * again; between these, operations of both modes and many shapes are compared with the oracle.
 *
 * soak first ADDRESS RANKS SECONDS    rank 0, for so long at least; says what it has used, again and again
 * soak joiner ADDRESS RANKS
 */
#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { JOBS = 2, ROUNDS = 6, REPORTS = 8 /* that contrib/soak needs */, GROW_MS = 20 * 1000, LOST_MS = 15 * 1000 };

/* Of the buffers that follow from group to group. */
static const mp_case_t kept[JOBS] = {
    {.name = "kept normal", MP_SHAPE(21, 4, 264, 40), .ragged = 1, .weights = 1},
    {.name = "kept ll", .mode = "ll", MP_SHAPE(19, 3, 136, 24), .weights = 1},
};

static const char *address_path;
static uint32_t wanted;
static mp_job_t jobs[JOBS];
static xep_group_t *group;
static uint64_t operations, groups, tries;

/** What rank 0 says before each turn. */
typedef struct turn {
    uint64_t number;
    uint32_t stops, reserved;
} turn_t;

/* ---- what it uses ---- */

static int count_files(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL) count++;
    if (folder != NULL) closedir(folder);
    return count - 3; /* ".", "..", and the folder itself */
}

static long count_kb(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*s %ld", &pages) != 1) pages = 0;
    if (file != NULL) fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* What is allocated and not freed: the rest of what a process has of memory is room that malloc keeps. */
static size_t count_live_kb(void)
{
    struct mallinfo2 info = mallinfo2();
    return (info.uordblks + info.hblkhd) / 1024;
}

static void report(double begin)
{
    printf("used: %.1f s, %llu operations, %llu groups, %llu failed to grow, %ld kB, %zu kB live, %d files\n",
           mp_now() - begin, (unsigned long long)operations, (unsigned long long)groups, (unsigned long long)tries,
           count_kb(), count_live_kb(), count_files());
    fflush(stdout);
}

/* ---- operations ---- */

static int is_failure_of_others(xep_status_t status)
{
    return mp_is_failure_of_others(status) || status == XEP_ERR_TIMEOUT;
}

static xep_status_t play_round(mp_job_t *job, uint64_t payload)
{
    xep_status_t status = mp_job_try_round(job, payload);
    if (status == XEP_OK) operations += 2;
    return status;
}

/* A shape of its own for each turn. */
static mp_case_t draw(uint64_t number)
{
    uint64_t h = oracle_hash_row(&number, sizeof number, 3);
    return (
        mp_case_t){.name = "drawn",
                   .mode = h & 1 ? "ll" : NULL,
                   MP_SHAPE(1 + (uint32_t)(h >> 1 & 63), 1, 8 * (1 + (uint32_t)(h >> 8 & 127)), 1 + (h >> 16 & 127)),
                   .ragged = (int)(h >> 24 & 1),
                   .mask = (uint32_t)(h >> 25 & 255),
                   .strided = (int)(h >> 34 & 1),
                   .copy_in = (int)(h >> 35 & 1),
                   .weights = 1,
                   .slots = 1 + (uint32_t)(h >> 36 & 3)};
}

static xep_status_t play_drawn(uint64_t number)
{
    mp_case_t c = draw(number);
    mp_job_t job;
    mp_job_open(&job, &c, number);
    xep_status_t status = mp_job_try_buffer(&job, group);
    for (uint64_t i = 0; status == XEP_OK && i < ROUNDS; i++) status = play_round(&job, number + i);
    mp_job_close(&job);
    return status;
}

static xep_status_t play(uint64_t number)
{
    xep_status_t status = XEP_OK;
    for (uint64_t i = 0; status == XEP_OK && i < ROUNDS; i++) status = play_round(&jobs[i % JOBS], number + i);
    return status == XEP_OK ? play_drawn(number) : status;
}

/* ---- groups ---- */

static xep_status_t make_followers(xep_group_t *next, xep_buffer_t *fresh[JOBS])
{
    xep_status_t status = XEP_OK;
    memset(fresh, 0, JOBS * sizeof *fresh);
    for (int m = 0; m < JOBS && status == XEP_OK; m++)
        status = xep_buffer_follow(group == NULL ? NULL : jobs[m].buffer, next, &fresh[m]);
    if (status == XEP_OK) return XEP_OK;
    MP_CHECK(is_failure_of_others(status) || (group == NULL && status == XEP_ERR_INVALID));
    xep_group_abort(next);
    for (int m = 0; m < JOBS; m++) xep_buffer_destroy(fresh[m]);
    return status;
}

static xep_group_t *shrink(xep_group_t *from)
{
    xep_shrink_args_t args = XEP_SHRINK_ARGS_INIT;
    xep_group_t *less = NULL;
    args.timeout_ms = LOST_MS;
    MP_OK(xep_group_shrink(from, &args, &less));
    groups++;
    return less;
}

/* Everything moves to another group, or to what is left of it. */
static void follow(xep_group_t *next)
{
    xep_buffer_t *fresh[JOBS];
    while (make_followers(next, fresh) != XEP_OK) {
        xep_group_t *less = shrink(next);
        xep_group_destroy(next);
        next = less;
    }
    for (int m = 0; group != NULL && m < JOBS; m++) mp_job_close(&jobs[m]);
    xep_group_destroy(group);
    group = next;
    mp_go_on(next);
    for (int m = 0; m < JOBS; m++) {
        mp_job_open(&jobs[m], &kept[m], mp_nranks());
        jobs[m].buffer = fresh[m];
    }
}

/* An error that is the joiner's leaves the group as it was; whether it is one of a member shows in the next call. */
static void grow(void)
{
    xep_grow_args_t args = XEP_GROW_ARGS_INIT;
    xep_group_t *next = NULL;
    args.path = address_path;
    args.timeout_ms = GROW_MS;
    xep_status_t status = xep_group_grow(group, &args, &next);
    if (status == XEP_OK) {
        groups++;
        follow(next);
        return;
    }
    MP_CHECK(is_failure_of_others(status) || status == XEP_ERR_PROTOCOL || status == XEP_ERR_MISMATCH);
    tries++;
}

static xep_status_t agree(turn_t *turn)
{
    turn_t *all = calloc(mp_nranks(), sizeof *all);
    MP_CHECK(all != NULL);
    xep_status_t status = xep_group_allgather(group, turn, all, sizeof *turn);
    if (status == XEP_OK) *turn = all[0];
    free(all);
    return status;
}

static void go_round(double begin, double seconds)
{
    double said = 0;
    unsigned reports = 0;
    for (turn_t turn = {.number = 1};; turn.number++) {
        turn.stops = mp_now() - begin > seconds && reports >= REPORTS;
        xep_status_t status = agree(&turn);
        if (status == XEP_OK && mp_nranks() < wanted) { /* also at the end: a joiner may be on its way */
            grow();
            continue;
        }
        if (status == XEP_OK && turn.stops) return;
        if (status == XEP_OK) status = play(turn.number);
        MP_CHECK(status == XEP_OK || is_failure_of_others(status));
        if (status != XEP_OK) follow(shrink(group));
        if (seconds > 0 && mp_now() - said > 1) {
            report(begin);
            said = mp_now();
            reports++;
        }
    }
}

int main(int argc, char **argv)
{
    int is_first = argc == 5 && strcmp(argv[1], "first") == 0;
    double begin = mp_now();
    if (!is_first && (argc != 4 || strcmp(argv[1], "joiner") != 0))
        mp_fail(__FILE__, __LINE__, "soak first ADDRESS RANKS SECONDS, or soak joiner ADDRESS RANKS");
    address_path = argv[2];
    wanted = (uint32_t)strtoul(argv[3], NULL, 0);
    if (is_first) {
        group = mp_group();
        for (int m = 0; m < JOBS; m++) {
            mp_job_begin(&jobs[m], &kept[m], 1, group);
        }
    } else {
        xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
        xep_group_t *next = NULL;
        params.path = address_path;
        while (xep_group_join(&params, &next) != XEP_OK) MP_CHECK(mp_now() - begin < 120);
        follow(next);
    }
    go_round(begin, is_first ? strtod(argv[4], NULL) : 0);
    for (int m = 0; m < JOBS; m++) mp_job_close(&jobs[m]);
    xep_group_destroy(group);
    if (is_first) report(begin);
    return 0;
}
